// Softmax, masked softmax, log_softmax and logsumexp.

#include "kernels/cpu/nn/softmax.h"

namespace mixtape::kernels::cpu {
using namespace internal;
namespace {

template <class S, class O>
void softmax_of_columns(bool log_of, In x, Out y) {
  using T = math_t<S>;
  const int64_t n = x.shape()[-1], b = x.shape()[-2];
  Columns<T>::visit(x, 1, [&](const Columns<T>& c, T* e) {
    O* const out = c.template in<O>(y);
    const Vec<T> top = column_max<T>(c.template in<S>(x), n, b, c.count, e),
                 sum = column_sum_exp(e, n, top, !log_of), log_sum = log(sum),
                 scale = Vec<T>(T(1)) / sum;
    for (int64_t i = 0; i < n; ++i) {
      const Vec<T> v = load<T, T>(e + i * c.width);
      write(out + i * b, log_of ? v - top - log_sum : v * scale, c.count);
    }
  });
}

}  // namespace

void softmax(Launch&, bool log, In x, Out y) {
  const int64_t n = x.shape()[-1];
  if (x.size() == 0) return;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    if (are_columns(x)) return softmax_of_columns<S, O>(log, x, y);
    parallel_ranges(x.size() / n, grain_of(n), [&](int64_t begin, int64_t end) {
      Buffer<T> terms(log ? 0 : n);
      T* const e = terms.data();
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        O* const out = y.as<O>() + r * n;
        const T top = row_max<T>(in, n), sum = row_sum_exp<T>(in, n, top, log ? nullptr : e);
        const Vec<T> shift(top), log_sum(std::log(sum)), scale(T(1) / sum);
        for_each_vec<T>(n, [&](int64_t i, int64_t count) {
          write(out + i,
                log ? read<T>(in + i, count) - shift - log_sum : read<T>(e + i, count) * scale,
                count);
        });
      }
    });
  });
}

void masked_softmax(Launch&, In x, In mask, In bias, bool causal, double scale, Out y) {
  const int64_t n = x.shape()[-1], queries = x.shape()[-2];
  if (x.size() == 0) return;
  visit_float(y.dtype, x.dtype, [&]<class O, class S>() {
    using T = math_t<S>;
    parallel_ranges(x.size() / n, grain_of(n), [&](int64_t begin, int64_t end) {
      Buffer<T> scores(round_up(n, Vec<T>::width)), bias_buffer(n);
      Buffer<bool> mask_buffer(n);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t visible = causal ? std::min(n, r % queries + 1) : n;
        const bool* const allowed =
            mask ? dense_row<bool, bool>(mask, r, n, mask_buffer.data()) : nullptr;
        const T* added = nullptr;
        if (bias)
          visit_float(bias.dtype,
                      [&]<class B>() { added = dense_row<T, B>(bias, r, n, bias_buffer.data()); });
        masked_softmax_row(x.as<S>() + r * n, n, visible, static_cast<T>(scale), added, allowed,
                           scores.data(), y.as<O>() + r * n);
      }
    });
  });
}

namespace {

template <class S, class D, class O>
void softmax_grad_of_columns(bool log_of, In y, In dy, Out dx) {
  using T = math_t<S>;
  const int64_t n = y.shape()[-1], b = y.shape()[-2];
  Columns<T>::visit(y, 0, [&](const Columns<T>& c, T*) {
    const S* const out = c.template in<S>(y);
    const D* const dout = c.template in<D>(dy);
    O* const to = c.template in<O>(dx);
    Vec<T> total(T(0)), whole(T(0));
    for (int64_t i = 0; i < n; ++i) {
      const Vec<T> v = read<T>(out + i * b, c.count), g = read<T>(dout + i * b, c.count);
      total += log_of ? g : g * v;
      whole += v;
    }
    if (!log_of) total = total / select(whole > Vec<T>(T(0)), whole, Vec<T>(T(1)));
    for (int64_t i = 0; i < n; ++i) {
      const Vec<T> v = read<T>(out + i * b, c.count), g = read<T>(dout + i * b, c.count);
      write(to + i * b, log_of ? g - exp(v) * total : v * (g - total), c.count);
    }
  });
}

}  // namespace

// dx = y (dy - sum(dy y) / sum(y)), or dy - exp(y) sum(dy) for the logarithm. (A rounded y has a
// sum near 1, and a dy of equal elements must give 0.)
void softmax_grad(Launch&, bool log, In y, In dy, Out dx) {
  const int64_t n = y.shape()[-1];
  if (y.size() == 0) return;
  const auto run = [&]<class S, class D, class O>() {
    using T = math_t<S>;
    if (are_columns(y)) return softmax_grad_of_columns<S, D, O>(log, y, dy, dx);
    parallel_ranges(y.size() / n, grain_of(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const S* const out = y.as<S>() + r * n;
        const D* const dout = dy.as<D>() + r * n;
        const auto [sum, shares] = sums_over<T, 2>(n, [&](int64_t i, int64_t count, auto& sums) {
          const Vec<T> v = read<T>(out + i, count), g = read<T>(dout + i, count);
          sums[0] += log ? g : g * v;
          sums[1] += v;
        });
        const Vec<T> total(static_cast<T>(log || !(shares > 0) ? sum : sum / shares));
        for_each_vec<T>(n, [&](int64_t i, int64_t count) {
          const Vec<T> v = read<T>(out + i, count), g = read<T>(dout + i, count);
          write(dx.as<O>() + r * n + i, log ? g - exp(v) * total : v * (g - total), count);
        });
      }
    });
  };
  // With a 16-bit input, y and dy are f32 if the result was.
  if (is_half(dx.dtype) && y.dtype == f32)
    visit_float(dx.dtype, [&]<class O>() { run.template operator()<float, float, O>(); });
  else
    visit_float(y.dtype, dy.dtype, dx.dtype, run);
}

namespace {

template <class S, class O>
void logsumexp_of_columns(In x, Out y) {
  using T = math_t<S>;
  const int64_t n = x.shape()[-1], b = x.shape()[-2];
  Columns<T>::visit(x, 1, [&](const Columns<T>& c, T* e) {
    const Vec<T> top = column_max<T>(c.template in<S>(x), n, b, c.count, e),
                 sum = column_sum_exp(e, n, top, false);
    const Mask<T> finite = abs(top) <= Vec<T>(std::numeric_limits<T>::max());
    write(y.as<O>() + c.first, select(finite, top + log(sum), top), c.count);
  });
}

}  // namespace

void logsumexp(Launch&, In x, Out y) {
  const int64_t n = x.shape()[-1];
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    if (are_columns(x)) return logsumexp_of_columns<S, O>(x, y);
    parallel_ranges(y.size(), grain_of(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        const T top = row_max<T>(in, n);  // the result, if not finite
        y.as<O>()[r] = static_cast<O>(
            std::isfinite(top) ? top + std::log(row_sum_exp<T>(in, n, top, nullptr)) : top);
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu
