#pragma once
// Sums over the rows of a matrix, for all columns at once: the channels of pixels that lie side by
// side.

#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// k sums for each of n columns, [k, n], to which f(row, i, count, sums) adds columns [i, i +
// count); in f64 of pieces that are short enough for f32. Each part sums its own rows; the parts
// are added in order.
template <class T, int k, class F>
const double* column_sums(Launch& launch, int64_t rows, int64_t n, F f) {
  constexpr int64_t piece = 512, together = 4;
  const int64_t parts = std::clamp<int64_t>(rows * n / 65536, 1, 16),
                width = round_up(n, Vec<T>::width);
  double* const totals = launch.scratch<double>(parts * k * n);
  std::fill_n(totals, parts * k * n, 0.0);
  parallel_for(parts, [&](int64_t part) {
    Buffer<T> sums(k * width);
    const int64_t last = (part + 1) * rows / parts;
    for (int64_t begin = part * rows / parts; begin < last; begin += piece) {
      const int64_t end = std::min(begin + piece, last);
      std::fill_n(sums.data(), k * width, T(0));
      for (int64_t r = begin; r < end; r += together)
        for_each_vec<T>(n, [&](int64_t i, int64_t count) {
          std::array<Vec<T>, k> sum;
          for (int j = 0; j < k; ++j) sum[j] = load<T, T>(sums.data() + j * width + i);
          const auto add = [&](int64_t some) MIXTAPE_INLINE_LAMBDA {
            for (int64_t m = 0; m < some; ++m) f(r + m, i, count, sum);
          };
          r + together <= end ? add(together) : add(end - r);
          for (int j = 0; j < k; ++j) store(sums.data() + j * width + i, sum[j]);
        });
      for (int j = 0; j < k; ++j)
        for (int64_t i = 0; i < n; ++i)
          totals[(part * k + j) * n + i] += static_cast<double>(sums.data()[j * width + i]);
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < k * n; ++i) totals[i] += totals[part * k * n + i];
  return totals;
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
