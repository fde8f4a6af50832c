#pragma once
// LineIterator: work in order along one dimension and in any order along all others, as indexing
// and scans need it. Each line is done by one thread, so its order never changes.

#include <array>

#include "core/layout.h"
#include "kernels/cpu/loops/parallel.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
using namespace internal;

// Iterates over the lines of one shape for several operands, each with its own strides.
template <int n>
class LineIterator {
 public:
  LineIterator(int dim, const Shape& shape, const std::array<Shape, n>& strides)
      : length(shape[dim]) {
    Layout* all[n];
    for (int k = 0; k < n; ++k) {
      along[k] = strides[k][dim];
      for (int d = 0; d < shape.rank; ++d) {
        if (d == dim) continue;
        across_[k].shape.push_back(shape[d]);
        across_[k].strides.push_back(strides[k][d]);
      }
      all[k] = &across_[k];
    }
    collapse(all);
    for (int k = 0; k < n; ++k) next[k] = across_[k].strides[-1];
    width = across_[0].shape[-1];
  }

  // Calls f(offset, columns, steps) for blocks of at most most_columns neighbouring lines (`next`
  // apart) and most_steps steps along them (`along` apart); the block begins at offset[k] in
  // operand k. Blocks run in any order, so ordered work takes all steps at once.
  template <class F>
  void for_blocks(int64_t most_columns, int64_t most_steps, F&& f) const {
    const int64_t lines = across_[0].shape.size();
    if (lines == 0 || length == 0) return;
    const int64_t columns = std::min(width, most_columns), steps = std::min(length, most_steps);
    const int64_t blocks = ceil_div(width, columns), in_line = ceil_div(length, steps);
    const int64_t some = grain_of(columns * steps);
    parallel_ranges(lines / width * blocks * in_line, some, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t step = i % in_line * steps, column = i / in_line % blocks * columns;
        const int64_t line = i / in_line / blocks * width;
        int64_t offset[n];
        for (int k = 0; k < n; ++k)
          offset[k] = across_[k].at(line) + column * next[k] + step * along[k];
        f(offset, std::min(columns, width - column), std::min(steps, length - step));
      }
    });
  }

  int64_t length, width;      // elements of a line; number of neighbouring lines
  int64_t along[n], next[n];  // strides within a line, and from line to line

 private:
  Layout across_[n];
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
