#pragma once
// Building blocks of row kernels: dense rows of numbers in vectors, the last of which may be partly
// filled.

#include <algorithm>
#include <array>

#include "kernels/common/activation.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/kernels.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
using namespace internal;

// Calls f(i, count) for i = 0, width, 2 width, ...; count is the width, or less for the last one.
template <class T, class F>
MIXTAPE_ALWAYS_INLINE void for_each_vec(int64_t n, F&& f) {
  constexpr int64_t width = Vec<T>::width;
  int64_t i = 0;
  for (; i + width <= n; i += width) f(i, width);
  if (i < n) f(i, n - i);
}

// Reads and writes `count` elements of type S as lanes of T; lanes beyond them read as `rest`.
template <class T, class S>
MIXTAPE_ALWAYS_INLINE Vec<T> read(const S* p, int64_t count, S rest = S(0.0f)) {
  return count == Vec<T>::width ? load<S, T>(p) : load_first<S, T>(p, count, rest);
}
template <class T, class S>
MIXTAPE_ALWAYS_INLINE void write(S* p, Vec<T> x, int64_t count) {
  if (count == Vec<T>::width)
    store(p, x);
  else
    store_first(p, x, count);
}

// The first `count` lanes of x, and the others from `rest`.
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> keep(Vec<T> x, int64_t count, Vec<T> rest = T(0)) {
  if (count >= Vec<T>::width) return x;
  typename detail::Vector<T>::integer lane;
  for (int i = 0; i < Vec<T>::width; ++i) lane[i] = i;
  using Index = std::decay_t<decltype(lane[0])>;
  return select(Mask<T>{lane < static_cast<Index>(count)}, x, rest);
}

// k sums over a row, to which f(i, count, sums) adds; in f64 of pieces that are short enough for
// f32.
template <class T, int k, class F>
MIXTAPE_ALWAYS_INLINE std::array<double, k> sums_over(int64_t n, F f) {
  constexpr int64_t piece = 2048;
  std::array<double, k> total = {};
  for (int64_t start = 0; start < n; start += piece) {
    std::array<Vec<T>, k> sums;
    sums.fill(T(0));
    for_each_vec<T>(std::min(piece, n - start),
                    [&](int64_t i, int64_t count) { f(start + i, count, sums); });
    for (int j = 0; j < k; ++j) total[j] += static_cast<double>(hsum(sums[j]));
  }
  return total;
}
// The sum of f(i, count).
template <class T, class F>
MIXTAPE_ALWAYS_INLINE double sum_over(int64_t n, F f) {
  return sums_over<T, 1>(n, [&](int64_t i, int64_t count, auto& sum) { sum[0] += f(i, count); })[0];
}
// True if any of n numbers is infinite or NaN; get(i, count) returns a vector of them. Such a
// number times zero is NaN. Four sums, so that no addition waits for the one before it.
template <class T, class F>
MIXTAPE_ALWAYS_INLINE bool any_nonfinite(int64_t n, F get) {
  constexpr int64_t w = Vec<T>::width, most = 4 * w;
  const Vec<T> zero(T(0));
  Vec<T> sums[4] = {zero, zero, zero, zero};
  int64_t i = 0;
  for (; i + most <= n; i += most)
    for (int64_t k = 0; k < 4; ++k) sums[k] += get(i + k * w, w) * zero;
  for (; i < n; i += w) sums[0] += get(i, std::min(w, n - i)) * zero;
  return hsum((sums[0] + sums[1]) + (sums[2] + sums[3])) != T(0);
}

// Replaces rows of sums by f(sums), in whole vectors. (Out of line: inlined, it would take
// registers from its caller.)
template <class F, class T>
[[gnu::noinline]] void replace_rows(T* sums, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i, sums += stride)
    in_groups<Vec<T>::width>(
        columns, [=](int64_t j) { return F::f(load<T, T>(sums + j)); },
        [=](int64_t j, Vec<T> y) { store(sums + j, y); });
}
template <class T>
void activate(Activation f, T* sums, int64_t stride, int64_t rows, int64_t columns) {
  visit_activation(f, [&]<class F>() { replace_rows<F>(sums, stride, rows, columns); });
}

// y[i] = T(x[i])
template <class S, class T>
void convert_run(const S* x, int64_t n, T* y) {
  using M = std::conditional_t<sizeof(S) < sizeof(T), math_t<T>, math_t<S>>;
  for_each_vec<M>(n, [&](int64_t i, int64_t count) { write(y + i, read<M>(x + i, count), count); });
}

// A parameter or statistic as dense T; null if absent.
template <class T>
const T* to_dense(Launch& launch, const View& v) {
  if (!v) return nullptr;
  if (v.dtype == dtype_of<T>() && v.layout.is_contiguous()) return v.as<T>();
  const View dense{launch.scratch<T>(v.size()), dtype_of<T>(), Layout(v.shape())};
  convert(launch, v, dense);
  return dense.as<T>();
}

// The elements of v as T, with v's strides, which are not negative: itself, or a copy in scratch
// memory.
template <class T>
const T* widened(Launch& launch, const View& v) {
  if (!v || v.dtype == dtype_of<T>()) return v.as<T>();
  int64_t last = 0;
  for (int d = 0; d < v.layout.rank(); ++d) last += (v.shape()[d] - 1) * v.strides()[d];
  const View wide{launch.scratch<T>(last + 1), dtype_of<T>(), v.layout};
  convert(launch, v, wide);
  return wide.as<T>();
}
// Converts dense T to a dense view of any float dtype.
template <class T>
void from_dense(const View& v, const T* x) {
  visit_float(v.dtype, [&]<class S>() { convert_run(x, v.size(), v.as<S>()); });
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
