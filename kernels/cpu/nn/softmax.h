#pragma once
// Shared by softmax and cross-entropy. Lanes hold parts of one row or, if rows are columns of
// matrices, neighbouring rows (worklog 103). A row is read once for its maximum, and again for the
// sum of exponentials: nothing overflows, and a row of -inf gives NaN.

#include <algorithm>
#include <limits>

#include "kernels/common/softmax.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
using namespace internal;

template <class S>
S minus_infinity() {
  return S(-std::numeric_limits<float>::infinity());
}

template <class T, class S>
T row_max(const S* x, int64_t n) {
  Vec<T> top(-std::numeric_limits<T>::infinity());
  for_each_vec<T>(n, [&](int64_t i, int64_t count) {
    top = max(read<T>(x + i, count, minus_infinity<S>()), top);
  });
  return hmax(top);
}

// The sum of exp(x - top); also stores each term in `keep`, unless that is null.
template <class T, class S>
T row_sum_exp(const S* x, int64_t n, T top, T* keep) {
  return static_cast<T>(sum_over<T>(n, [&](int64_t i, int64_t count) {
    const Vec<T> e = exp(read<T>(x + i, count, minus_infinity<S>()) - Vec<T>(top));
    if (keep) write(keep + i, e, count);
    return e;
  }));
}

// The logarithm of `sum`, that of exp(x - top). A sum near 1 has lost digits of all terms but the
// maximum's own, 1: they are added again without it.
template <class T, class S>
[[gnu::noinline]] T log_of_sum(T sum, const S* x, int64_t n, T top) {
  if (!(sum < T(1.5))) return std::log(sum);
  return std::log1p(static_cast<T>(sum_over<T>(n, [&](int64_t i, int64_t count) {
    const Vec<T> below = read<T>(x + i, count, minus_infinity<S>()) - Vec<T>(top), zero(T(0));
    return select(below == zero, zero, exp(below));
  })));
}

// log(sum(exp(x - top)))
template <class T, class S>
T row_log_sum(const S* x, int64_t n, T top) {
  return log_of_sum(row_sum_exp<T>(x, n, top, nullptr), x, n, top);
}

// Row r of a view as dense T: the view itself if possible, otherwise a copy in `buffer`.
template <class T, class S>
const T* dense_row(const View& v, int64_t r, int64_t n, T* buffer) {
  const int64_t step = v.strides()[-1];
  Layout rows = v.layout;
  --rows.shape.rank;
  const S* const from = v.as<S>() + rows.at(r);
  if constexpr (std::is_same_v<S, T>)
    if (step == 1) return from;
  for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<T>(from[i * step]);
  return buffer;
}

// out = softmax(factor in + added) over the first `visible` of n scores, or those of them that
// `allowed` has; zeros elsewhere, or everywhere if there are none. `e`: for round_up(n, width)
// numbers, since scores are stored in whole vectors: reading them back after partial stores would
// stall. out may be in.
template <class T, class S, class O>
void masked_softmax_row(const S* in, int64_t n, int64_t visible, T factor, const T* added,
                        const bool* allowed, T* e, O* out) {
  const Vec<T> nothing(minus_infinity<T>());
  Vec<T> tops = nothing;
  for_each_vec<T>(visible, [&](int64_t i, int64_t count) {
    Vec<T> v = read<T>(in + i, count) * Vec<T>(factor);
    if (added) v = v + read<T>(added + i, count);
    if (allowed) v = select(read<T>(allowed + i, count) != Vec<T>(T(0)), v, nothing);
    v = keep(v, count, nothing);
    store(e + i, v);
    tops = max(v, tops);
  });
  const T top = hmax(tops);
  if (top == minus_infinity<T>()) {
    std::fill_n(out, n, O(0.0f));
    return;
  }
  const double sum = sum_over<T>(round_up(visible, Vec<T>::width), [&](int64_t i, int64_t) {
    const Vec<T> v = exp(load<T, T>(e + i) - Vec<T>(top));
    store(e + i, v);
    return v;
  });
  const Vec<T> share(static_cast<T>(1 / sum));
  for_each_vec<T>(n, [&](int64_t i, int64_t count) {
    Vec<T> v(T(0));
    if (i < visible) v = keep(load<T, T>(e + i) * share, visible - i);
    write(out + i, v, count);
  });
}

// Rows of softmax, logsumexp and cross-entropy may be the columns of dense matrices: views of shape
// [..., b, n] and strides [..., 1, b]. Then all other operands have that layout too: lse is a view
// [..., b, 3]. (A matrix [rows, 1] counts as rows, whatever its stride.)
inline bool are_columns(In x) { return x.layout.rank() > 2 && x.strides()[-1] != 1; }

// One vector of such rows: a lane for each.
template <class T>
struct Columns {
  static constexpr int64_t width = Vec<T>::width;
  const int64_t first, count;  // index of the first row; number of rows
  const int64_t matrix, column;

  // Calls f(columns, buffer) for all rows of x, with a buffer for `buffers` times [n, width]
  // numbers.
  template <class F>
  static void visit(In x, int64_t buffers, F&& f) {
    const int64_t n = x.shape()[-1], b = x.shape()[-2], blocks = ceil_div(b, width);
    Layout matrices = x.layout;
    matrices.shape.rank -= 2;
    parallel_ranges(matrices.shape.size() * blocks, grain_of(n * width),
                    [&](int64_t begin, int64_t end) {
                      Buffer<T> buffer(buffers * n * width);
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t matrix = i / blocks, column = i % blocks * width;
                        f(Columns{matrix * b + column, std::min(width, b - column), matrix, column},
                          buffer.data());
                      }
                    });
  }
  template <class S>
  S* in(const View& v) const {  // the first of these rows
    return v.as<S>() + matrix * v.shape()[-1] * v.shape()[-2] + column;
  }
};

// The maximum of each column; copies their elements to `keep`.
template <class T, class S>
Vec<T> column_max(const S* x, int64_t n, int64_t stride, int64_t count, T* keep) {
  Vec<T> top(-std::numeric_limits<T>::infinity());
  for (int64_t i = 0; i < n; ++i) {
    const Vec<T> v = read<T>(x + i * stride, count);
    store(keep + i * v.width, v);
    top = max(v, top);
  }
  return top;
}

// The sum of exp(x - top); if `replace`, each term replaces its x.
template <class T>
Vec<T> column_sum_exp(T* x, int64_t n, Vec<T> top, bool replace) {
  Vec<T> sum(T(0));
  for (int64_t i = 0; i < n; ++i) {
    const Vec<T> e = exp(load<T, T>(x + i * top.width) - top);
    if (replace) store(x + i * top.width, e);
    sum += e;
  }
  return sum;
}

// log(sum(exp(x - top))), as row_log_sum().
template <class T>
Vec<T> column_log_sum(T* x, int64_t n, Vec<T> top) {
  const Vec<T> sum = column_sum_exp(x, n, top, false), zero(T(0));
  const Mask<T> is_near = sum < Vec<T>(T(1.5));
  if (!any(is_near)) return log(sum);
  Vec<T> rest = zero;
  for (int64_t i = 0; i < n; ++i) {
    const Vec<T> below = load<T, T>(x + i * top.width) - top;
    rest += select(below == zero, zero, exp(below));
  }
  return select(is_near, log1p(rest), log(sum));
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
