// Softmax, with masks too, its logarithm and cross-entropy over rows, in vectors: lanes hold parts
// of a row or, where rows are the columns of matrices, neighbouring ones (worklog 103). A row is
// read for its maximum, then once more for the sum of exponentials; nothing overflows, and a row of
// -inf gives NaN.

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
    top = max(read<T>(x + i, count, minus_infinity<S>()), top);
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

// Rows of softmax, logsumexp and cross-entropy may be the columns of dense matrices: views of shape
// [..., b, n] and strides [..., 1, b]. Then so is whatever else has numbers for them: lse is a view
// [..., b, 3]. (A matrix [rows, 1] is of rows, whatever its stride.)
bool are_columns(In x) { return x.layout.rank() > 2 && x.strides()[-1] != 1; }

// As many of such rows as there are lanes.
template <class T>
struct Columns {
  static constexpr int64_t width = Lanes<T>::width;
  const int64_t first, count;  // of all rows; how many there are
  const int64_t matrix, column;

  // f(columns, room) for all rows of x; `rooms` times [n, width] numbers fit there.
  template <class F>
  static void visit(In x, int64_t rooms, F&& f) {
    const int64_t n = x.shape()[-1], b = x.shape()[-2], blocks = pieces(b, width);
    Layout matrices = x.layout;
    matrices.shape.rank -= 2;
    parallel_ranges(matrices.shape.size() * blocks, grain(n * width),
                    [&](int64_t begin, int64_t end) {
                      Buffer<T> room(rooms * n * width);
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t matrix = i / blocks, column = i % blocks * width;
                        f(Columns{matrix * b + column, std::min(width, b - column), matrix, column},
                          room.data());
                      }
                    });
  }
  template <class S>
  S* in(const View& v) const {  // where they begin
    return v.as<S>() + matrix * v.shape()[-1] * v.shape()[-2] + column;
  }
};

// The maximum of columns, whose elements go to `keep`.
template <class T, class S>
Lanes<T> column_max(const S* x, int64_t n, int64_t stride, int64_t count, T* keep) {
  Lanes<T> top(-std::numeric_limits<T>::infinity());
  for (int64_t i = 0; i < n; ++i) {
    const Lanes<T> v = read<T>(x + i * stride, count);
    store(keep + i * v.width, v);
    top = max(v, top);
  }
  return top;
}

// The sum of exp(x - top); each term also takes the place of x where that is wanted.
template <class T>
Lanes<T> column_sum_exp(T* x, int64_t n, Lanes<T> top, bool replace) {
  Lanes<T> sum(T(0));
  for (int64_t i = 0; i < n; ++i) {
    const Lanes<T> e = exp(load<T, T>(x + i * top.width) - top);
    if (replace) store(x + i * top.width, e);
    sum += e;
  }
  return sum;
}

template <class S, class O>
void softmax_of_columns(bool log_of, In x, Out y) {
  using T = math_t<S>;
  const int64_t n = x.shape()[-1], b = x.shape()[-2];
  Columns<T>::visit(x, 1, [&](const Columns<T>& c, T* e) {
    O* const out = c.template in<O>(y);
    const Lanes<T> top = column_max<T>(c.template in<S>(x), n, b, c.count, e),
                   sum = column_sum_exp(e, n, top, !log_of), log_sum = log(sum),
                   scale = Lanes<T>(T(1)) / sum;
    for (int64_t i = 0; i < n; ++i) {
      const Lanes<T> v = load<T, T>(e + i * c.width);
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
      constexpr int64_t width = Lanes<T>::width;
      // What is read again at once is written in whole vectors: a partial one would be waited for.
      Buffer<T> scores(up(n, width)), bias_room(n);
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
        Lanes<T> tops = nothing;
        for_lanes<T>(seen, [&](int64_t i, int64_t count) {
          Lanes<T> v = read<T>(in + i, count) * factor;
          if (added) v = v + read<T>(added + i, count);
          if (allowed) v = select(read<T>(allowed + i, count) != Lanes<T>(T(0)), v, nothing);
          v = keep(v, count, nothing);
          store(e + i, v);
          tops = max(v, tops);
        });
        const T top = hmax(tops);
        if (top == minus_infinity<T>()) {
          std::fill_n(out, n, O(0.0f));
          continue;
        }
        Lanes<T> sum(T(0));
        for (int64_t i = 0; i < seen; i += width) {
          const Lanes<T> v = exp(load<T, T>(e + i) - Lanes<T>(top));
          store(e + i, v);
          sum += v;
        }
        const Lanes<T> share(T(1) / hsum(sum));
        for_lanes<T>(n, [&](int64_t i, int64_t count) {
          Lanes<T> v(T(0));
          if (i < seen) v = keep(load<T, T>(e + i) * share, seen - i);
          write(out + i, v, count);
        });
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
    Lanes<T> total(T(0));
    for (int64_t i = 0; i < n; ++i) {
      const Lanes<T> g = read<T>(dout + i * b, c.count);
      total += log_of ? g : g * read<T>(out + i * b, c.count);
    }
    for (int64_t i = 0; i < n; ++i) {
      const Lanes<T> v = read<T>(out + i * b, c.count), g = read<T>(dout + i * b, c.count);
      write(to + i * b, log_of ? g - exp(v) * total : v * (g - total), c.count);
    }
  });
}

}  // namespace

// dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) for the logarithm.
void softmax_grad(Launch&, bool log, In y, In dy, Out dx) {
  const int64_t n = y.shape()[-1];
  if (y.size() == 0) return;
  const auto run = [&]<class S, class D, class O>() {
    using T = math_t<S>;
    if (are_columns(y)) return softmax_grad_of_columns<S, D, O>(log, y, dy, dx);
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

namespace {

template <class S, class O>
void logsumexp_of_columns(In x, Out y) {
  using T = math_t<S>;
  const int64_t n = x.shape()[-1], b = x.shape()[-2];
  Columns<T>::visit(x, 1, [&](const Columns<T>& c, T* e) {
    const Lanes<T> top = column_max<T>(c.template in<S>(x), n, b, c.count, e),
                   sum = column_sum_exp(e, n, top, false);
    const Mask<T> finite = abs(top) <= Lanes<T>(std::numeric_limits<T>::max());
    write(y.as<O>() + c.first, select(finite, top + log(sum), top), c.count);
  });
}

}  // namespace

void logsumexp(Launch&, In x, Out y) {
  const int64_t n = x.shape()[-1];
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    if (are_columns(x)) return logsumexp_of_columns<S, O>(x, y);
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

namespace {

// What is wanted of each class, weighted: q = w ((1 - smoothing) p + smoothing / n). Where a class
// is the target, most of it is there.
template <class T>
class Targets {
 public:
  Targets(Launch& launch, In target, In w, int64_t ignore, double smoothing, int64_t n)
      : target_(target),
        w_(widened<T>(launch, w)),
        ignore_(ignore),
        n_(n),
        keep_(static_cast<T>(1 - smoothing)),
        even_(static_cast<T>(smoothing / static_cast<double>(n))) {
    if (are_probabilities() || smoothing == 0) return;
    T* const q = launch.scratch<T>(n);
    for (int64_t i = 0; i < n; ++i) q[i] = w_ ? w_[i] * even_ : even_;
    even_q_ = q;
  }

  bool are_probabilities() const { return is_float(target_.dtype); }

  struct Row {
    int64_t at = -1;       // the target class, if there is one
    T mass = 0;            // q there, beside
    const T* q = nullptr;  // what all classes have; null: nothing
    bool ignored() const { return at < 0 && !q; }
  };
  Row row(int64_t r, T* room) const {
    if (are_probabilities()) {
      visit_float(target_.dtype, [&]<class P>() { spread(target_.as<P>() + r * n_, room); });
      return {.q = room};
    }
    const int64_t at = target_.as<int64_t>()[r];
    if (at == ignore_) return {};
    return {at, w_ ? w_[at] * keep_ : keep_, even_q_};
  }
  // q of all classes in some columns, [n, width], and which columns are not ignored.
  Mask<T> spread_columns(const Columns<T>& c, int64_t b, T* q) const {
    using L = Lanes<T>;
    typename detail::Vector<T>::integer at{};
    using Class = std::decay_t<decltype(at[0])>;
    if (are_probabilities()) {
      visit_float(target_.dtype, [&]<class P>() {
        const P* const p = c.template in<P>(target_);
        for (int64_t i = 0; i < n_; ++i) {
          const L smoothed = read<T>(p + i * b, c.count) * L(keep_) + L(even_);
          store(q + i * L::width, w_ ? smoothed * L(w_[i]) : smoothed);
        }
      });
      return {at == 0};
    }
    const int64_t* const target = target_.as<int64_t>() + c.first;
    Class named[L::width];
    for (int64_t k = 0; k < L::width; ++k)
      named[k] = k < c.count && target[k] != ignore_ ? static_cast<Class>(target[k]) : -1;
    std::memcpy(&at, named, sizeof at);
    const Mask<T> counts{at >= 0};
    for (int64_t i = 0; i < n_; ++i) {
      const T others = even_q_ ? even_q_[i] : T(0), mass = w_ ? w_[i] * keep_ : keep_;
      const L all = select(Mask<T>{at == static_cast<Class>(i)}, L(mass + others), L(others));
      store(q + i * L::width, select(counts, all, L(T(0))));
    }
    return counts;
  }

 private:
  template <class P>
  void spread(const P* p, T* q) const {
    for_lanes<T>(n_, [&](int64_t i, int64_t count) {
      const Lanes<T> smoothed = read<T>(p + i, count) * Lanes<T>(keep_) + Lanes<T>(even_);
      write(q + i, w_ ? smoothed * read<T>(w_ + i, count) : smoothed, count);
    });
  }

  const View& target_;
  const T* const w_;
  const int64_t ignore_, n_;
  const T keep_, even_;
  const T* even_q_ = nullptr;
};

template <class S, class O>
void cross_entropy_of_columns(const Targets<math_t<S>>& targets, In x, Out loss, Out lse) {
  using T = math_t<S>;
  using L = Lanes<T>;
  const int64_t n = x.shape()[-1], b = x.shape()[-2];
  Columns<T>::visit(x, 2, [&](const Columns<T>& c, T* v) {
    T* const q = v + n * c.width;
    targets.spread_columns(c, b, q);
    const L top = column_max<T>(c.template in<S>(x), n, b, c.count, v),
            log_sum = log(column_sum_exp(v, n, top, false));
    L value(T(0)), total(T(0));
    for (int64_t i = 0; i < n; ++i) {
      const L part = load<T, T>(q + i * c.width);
      const L lost = top - load<T, T>(v + i * c.width) + log_sum;
      value += select(part == T(0), L(T(0)), part * lost);  // also if p is 0
      total += part;
    }
    T* const kept = c.template in<T>(lse);
    write(kept, top, c.count);
    write(kept + b, log_sum, c.count);
    write(kept + 2 * b, total, c.count);
    write(loss.as<O>() + c.first, value, c.count);
  });
}

template <class S, class O>
void cross_entropy_grad_of_columns(const Targets<math_t<S>>& targets, In x, In lse,
                                   const math_t<S>* dloss, Out dx) {
  using T = math_t<S>;
  using L = Lanes<T>;
  const int64_t n = x.shape()[-1], b = x.shape()[-2];
  Columns<T>::visit(x, 1, [&](const Columns<T>& c, T* q) {
    const Mask<T> counts = targets.spread_columns(c, b, q);
    const S* const in = c.template in<S>(x);
    O* const out = c.template in<O>(dx);
    const T* const kept = c.template in<T>(lse);
    const L top = read<T>(kept, c.count), log_sum = read<T>(kept + b, c.count),
            total = read<T>(kept + 2 * b, c.count), scale = read<T>(dloss + c.first, c.count);
    for (int64_t i = 0; i < n; ++i) {
      const L p = exp(read<T>(in + i * b, c.count) - top - log_sum);
      const L d = scale * (p * total - load<T, T>(q + i * c.width));
      write(out + i * b, select(counts, d, L(T(0))), c.count);
    }
  });
}

}  // namespace

// With log p = x - top - log_sum: loss = -sum(q log p).
void cross_entropy(Launch& launch, In x, In target, In w, int64_t ignore, double smoothing,
                   Out loss, Out lse) {
  const int64_t n = x.shape()[-1], rows = loss.size();
  visit_float(x.dtype, loss.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const Targets<T> targets(launch, target, w, ignore, smoothing, n);
    if (are_columns(x)) return cross_entropy_of_columns<S, O>(targets, x, loss, lse);
    parallel_ranges(rows, grain(n), [&](int64_t begin, int64_t end) {
      Buffer<T> room(targets.are_probabilities() ? n : 0);
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        const auto row = targets.row(r, room.data());
        const T top = row_max<T>(in, n);
        const T log_sum = std::log(row_sum_exp<T>(in, n, top, nullptr));
        T value(0), total(row.mass);
        if (row.mass != T(0)) value = row.mass * (top - static_cast<T>(in[row.at]) + log_sum);
        if (row.q) {
          Lanes<T> sum(T(0)), sum_q(T(0));
          for_lanes<T>(n, [&](int64_t i, int64_t count) {
            const Lanes<T> part = read<T>(row.q + i, count);
            const Lanes<T> lost = Lanes<T>(top) - read<T>(in + i, count) + Lanes<T>(log_sum);
            sum += select(part == T(0), Lanes<T>(T(0)), part * lost);  // also if p is 0
            sum_q += part;
          });
          value += hsum(sum);
          total += hsum(sum_q);
        }
        T* const kept = lse.as<T>() + 3 * r;
        kept[0] = top;
        kept[1] = log_sum;
        kept[2] = total;
        loss.as<O>()[r] = static_cast<O>(value);
      }
    });
  });
}

// dx = dloss (p sum(q) - q)
void cross_entropy_grad(Launch& launch, In x, In target, In w, In lse, In dloss, int64_t ignore,
                        double smoothing, Out dx) {
  const int64_t n = x.shape()[-1], rows = dloss.size();
  visit_float(x.dtype, dx.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const T* const scale = widened<T>(launch, dloss);
    const Targets<T> targets(launch, target, w, ignore, smoothing, n);
    if (are_columns(x)) return cross_entropy_grad_of_columns<S, O>(targets, x, lse, scale, dx);
    parallel_ranges(rows, grain(n), [&](int64_t begin, int64_t end) {
      Buffer<T> room(targets.are_probabilities() ? n : 0);
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        O* const out = dx.as<O>() + r * n;
        const auto row = targets.row(r, room.data());
        if (row.ignored()) {
          std::fill_n(out, n, O(0.0f));
          continue;
        }
        const T* const kept = lse.as<T>() + 3 * r;
        const T top = kept[0], log_sum = kept[1], total = kept[2];
        for_lanes<T>(n, [&](int64_t i, int64_t count) {
          Lanes<T> d =
              exp(read<T>(in + i, count) - Lanes<T>(top) - Lanes<T>(log_sum)) * Lanes<T>(total);
          if (row.q) d = d - read<T>(row.q + i, count);
          write(out + i, Lanes<T>(scale[r]) * d, count);
        });
        if (row.at < 0) continue;
        const T p = std::exp(static_cast<T>(in[row.at]) - top - log_sum);
        const T wanted = row.mass + (row.q ? row.q[row.at] : T(0));
        out[row.at] = static_cast<O>(scale[r] * (p * total - wanted));
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu
