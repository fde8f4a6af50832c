// Softmax, with masks too, its logarithm and cross-entropy over rows, in vectors. A row is read for
// its maximum, then once more for the sum of exponentials; nothing overflows, and a row of -inf
// gives NaN.

#include <limits>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

constexpr int64_t grain(int64_t n) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(n, 1)); }

template <class S>
S minus_infinity() {
  return S(-std::numeric_limits<float>::infinity());
}

template <class T, class S>
T row_max(const S* x, int64_t n) {
  Lanes<T> top(-std::numeric_limits<T>::infinity());
  for_lanes<T>(n, [&](int64_t i, int64_t count) {
    top = max(top, read<T>(x + i, count, minus_infinity<S>()));
  });
  return hmax(top);
}

// The sum of exp(x - top); each term also goes to `keep` unless that is null.
template <class T, class S>
T row_sum_exp(const S* x, int64_t n, T top, T* keep) {
  Lanes<T> sum(T(0));
  for_lanes<T>(n, [&](int64_t i, int64_t count) {
    const Lanes<T> e = exp(read<T>(x + i, count, minus_infinity<S>()) - Lanes<T>(top));
    if (keep) write(keep + i, e, count);
    sum += e;
  });
  return hsum(sum);
}

}  // namespace

void softmax(Launch&, bool log, In x, Out y) {
  const int64_t n = x.shape()[-1];
  if (x.size() == 0) return;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    parallel_ranges(x.size() / n, grain(n), [&](int64_t begin, int64_t end) {
      Buffer<T> room(log ? 0 : n);
      T* const e = room.data();
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        O* const out = y.as<O>() + r * n;
        const T top = row_max<T>(in, n), sum = row_sum_exp<T>(in, n, top, log ? nullptr : e);
        const Lanes<T> shift(top), log_sum(std::log(sum)), scale(T(1) / sum);
        for_lanes<T>(n, [&](int64_t i, int64_t count) {
          write(out + i,
                log ? read<T>(in + i, count) - shift - log_sum : read<T>(e + i, count) * scale,
                count);
        });
      }
    });
  });
}

namespace {

// Row r of a view as dense T: itself where possible, else a copy in `room`.
template <class T, class S>
const T* dense_row(const View& v, int64_t r, int64_t n, T* room) {
  const int64_t step = v.strides()[-1];
  Layout rows = v.layout;
  --rows.shape.rank;
  const S* const from = v.as<S>() + rows.at(r);
  if constexpr (std::is_same_v<S, T>)
    if (step == 1) return from;
  for (int64_t i = 0; i < n; ++i) room[i] = static_cast<T>(from[i * step]);
  return room;
}

}  // namespace

void masked_softmax(Launch&, In x, In mask, In bias, bool causal, double scale, Out y) {
  const int64_t n = x.shape()[-1], queries = x.shape()[-2];
  if (x.size() == 0) return;
  visit_float(y.dtype, x.dtype, [&]<class O, class S>() {
    using T = math_t<S>;
    const Lanes<T> factor(static_cast<T>(scale)), nothing(minus_infinity<T>());
    parallel_ranges(x.size() / n, grain(n), [&](int64_t begin, int64_t end) {
      Buffer<T> scores(n), bias_room(n);
      Buffer<bool> mask_room(n);
      T* const e = scores.data();
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        O* const out = y.as<O>() + r * n;
        const int64_t seen = causal ? std::min(n, r % queries + 1) : n;
        const bool* const allowed =
            mask ? dense_row<bool, bool>(mask, r, n, mask_room.data()) : nullptr;
        const T* added = nullptr;
        if (bias)
          visit_float(bias.dtype,
                      [&]<class B>() { added = dense_row<T, B>(bias, r, n, bias_room.data()); });
        for_lanes<T>(seen, [&](int64_t i, int64_t count) {
          Lanes<T> v = read<T>(in + i, count) * factor;
          if (added) v = v + read<T>(added + i, count);
          if (allowed) v = select(read<T>(allowed + i, count) != Lanes<T>(T(0)), v, nothing);
          write(e + i, v, count);
        });
        const T top = row_max<T>(e, seen);
        if (top == minus_infinity<T>()) {
          std::fill_n(out, n, O(0.0f));
          continue;
        }
        const Lanes<T> share(T(1) / row_sum_exp<T>(e, seen, top, e));
        for_lanes<T>(seen, [&](int64_t i, int64_t count) {
          write(out + i, read<T>(e + i, count) * share, count);
        });
        std::fill(out + seen, out + n, O(0.0f));
      }
    });
  });
}

// dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) for the logarithm.
void softmax_grad(Launch&, bool log, In y, In dy, Out dx) {
  const int64_t n = y.shape()[-1];
  if (y.size() == 0) return;
  const auto run = [&]<class S, class D, class O>() {
    using T = math_t<S>;
    parallel_ranges(y.size() / n, grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const S* const out = y.as<S>() + r * n;
        const D* const dout = dy.as<D>() + r * n;
        Lanes<T> sum(T(0));
        for_lanes<T>(n, [&](int64_t i, int64_t count) {
          const Lanes<T> g = read<T>(dout + i, count);
          sum += log ? g : g * read<T>(out + i, count);
        });
        const Lanes<T> total(hsum(sum));
        for_lanes<T>(n, [&](int64_t i, int64_t count) {
          const Lanes<T> v = read<T>(out + i, count), g = read<T>(dout + i, count);
          write(dx.as<O>() + r * n + i, log ? g - exp(v) * total : v * (g - total), count);
        });
      }
    });
  };
  // Of a narrow input, y and dy are f32 where the result was.
  if (is_narrow(dx.dtype) && y.dtype == f32)
    visit_float(dx.dtype, [&]<class O>() { run.template operator()<float, float, O>(); });
  else
    visit_gradient(y.dtype, dy.dtype, dx.dtype, run);
}

void logsumexp(Launch&, In x, Out y) {
  const int64_t n = x.shape()[-1];
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    parallel_ranges(y.size(), grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        const T top = row_max<T>(in, n);  // where not finite, the result
        y.as<O>()[r] = static_cast<O>(
            std::isfinite(top) ? top + std::log(row_sum_exp<T>(in, n, top, nullptr)) : top);
      }
    });
  });
}

// With log p = x - top - log_sum: loss = -(1 - smoothing) log p[target] - smoothing * mean(log p).
void cross_entropy(Launch&, In x, In target, int64_t ignore, double smoothing, Out loss, Out lse) {
  const int64_t n = x.shape()[-1], rows = target.size();
  visit_float(x.dtype, loss.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const T eps = static_cast<T>(smoothing);
    parallel_ranges(rows, grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        const int64_t t = target.as<int64_t>()[r];
        const T top = row_max<T>(in, n);
        const T log_sum = std::log(row_sum_exp<T>(in, n, top, nullptr));
        lse.as<T>()[2 * r] = top;
        lse.as<T>()[2 * r + 1] = log_sum;
        T value(0);
        if (t != ignore) {
          value = (T(1) - eps) * (top - static_cast<T>(in[t]) + log_sum);
          if (eps != T(0)) {
            Lanes<T> sum(T(0));
            for_lanes<T>(n, [&](int64_t i, int64_t count) {
              sum += keep(Lanes<T>(top) - read<T>(in + i, count) + Lanes<T>(log_sum), count);
            });
            value += eps * hsum(sum) / static_cast<T>(n);
          }
        }
        loss.as<O>()[r] = static_cast<O>(value);
      }
    });
  });
}

// dx = dloss (p - (1 - smoothing) [target] - smoothing / n)
void cross_entropy_grad(Launch& launch, In x, In target, In lse, In dloss, int64_t ignore,
                        double smoothing, Out dx) {
  const int64_t n = x.shape()[-1], rows = target.size();
  visit_float(x.dtype, dx.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const T* const scale = widened<T>(launch, dloss);
    const double share = smoothing / static_cast<double>(n);
    const T even = static_cast<T>(share), on_target = static_cast<T>(1 - smoothing + share);
    parallel_ranges(rows, grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        O* const out = dx.as<O>() + r * n;
        const int64_t t = target.as<int64_t>()[r];
        if (t == ignore) {
          std::fill_n(out, n, O(0.0f));
          continue;
        }
        const T top = lse.as<T>()[2 * r], log_sum = lse.as<T>()[2 * r + 1];
        for_lanes<T>(n, [&](int64_t i, int64_t count) {
          const Lanes<T> p = exp(read<T>(in + i, count) - Lanes<T>(top) - Lanes<T>(log_sum));
          write(out + i, Lanes<T>(scale[r]) * (p - Lanes<T>(even)), count);
        });
        const T p = std::exp(static_cast<T>(in[t]) - top - log_sum);
        out[t] = static_cast<O>(scale[r] * (p - on_target));
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu
