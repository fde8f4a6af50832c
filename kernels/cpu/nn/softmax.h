#pragma once
// What softmax and cross-entropy have in common. Lanes hold parts of a row or, where rows are the
// columns of matrices, neighbouring ones (worklog 103). A row is read for its maximum, then once
// more for the sum of exponentials; nothing overflows, and a row of -inf gives NaN.

#include <limits>

#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {

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

// The sum of exp(x - top); each term also goes to `keep` unless that is null.
template <class T, class S>
T row_sum_exp(const S* x, int64_t n, T top, T* keep) {
  Vec<T> sum(T(0));
  for_each_vec<T>(n, [&](int64_t i, int64_t count) {
    const Vec<T> e = exp(read<T>(x + i, count, minus_infinity<S>()) - Vec<T>(top));
    if (keep) write(keep + i, e, count);
    sum += e;
  });
  return hsum(sum);
}

// Rows of softmax, logsumexp and cross-entropy may be the columns of dense matrices: views of shape
// [..., b, n] and strides [..., 1, b]. Then so is whatever else has numbers for them: lse is a view
// [..., b, 3]. (A matrix [rows, 1] is of rows, whatever its stride.)
inline bool are_columns(In x) { return x.layout.rank() > 2 && x.strides()[-1] != 1; }

// As many of such rows as there are lanes.
template <class T>
struct Columns {
  static constexpr int64_t width = Vec<T>::width;
  const int64_t first, count;  // of all rows; how many there are
  const int64_t matrix, column;

  // f(columns, room) for all rows of x; `rooms` times [n, width] numbers fit there.
  template <class F>
  static void visit(In x, int64_t rooms, F&& f) {
    const int64_t n = x.shape()[-1], b = x.shape()[-2], blocks = ceil_div(b, width);
    Layout matrices = x.layout;
    matrices.shape.rank -= 2;
    parallel_ranges(matrices.shape.size() * blocks, grain_of(n * width),
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
Vec<T> column_max(const S* x, int64_t n, int64_t stride, int64_t count, T* keep) {
  Vec<T> top(-std::numeric_limits<T>::infinity());
  for (int64_t i = 0; i < n; ++i) {
    const Vec<T> v = read<T>(x + i * stride, count);
    store(keep + i * v.width, v);
    top = max(v, top);
  }
  return top;
}

// The sum of exp(x - top); each term also takes the place of x where that is wanted.
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

}  // namespace mixtape::kernels::cpu
