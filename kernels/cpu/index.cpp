// Rows of a table, by index: reading them, and adding gradients back to them.

#include <numeric>
#include <vector>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {

void gather_rows(Launch&, In table, In index, Out y) {
  const int64_t n = index.size();
  if (y.size() == 0) return;
  const int64_t width = y.size() / n;
  const int64_t* const rows = index.as<int64_t>();
  parallel_ranges(n, std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
    if (table.dtype == y.dtype) {
      const size_t bytes = static_cast<size_t>(width) * size_of(y.dtype);
      for (int64_t i = begin; i < end; ++i)
        std::memcpy(y.as<char>() + i * bytes, table.as<char>() + rows[i] * bytes, bytes);
    } else {
      visit_float(table.dtype, [&]<class S>() {
        for (int64_t i = begin; i < end; ++i)
          convert_run(table.as<S>() + rows[i] * width, width, y.as<float>() + i * width);
      });
    }
  });
}

// Positions are sorted by the row they name, so that each row of dtable is summed in one place, in
// the order of dy, and rounded once.
void scatter_add_rows(Launch& launch, In dy, In index, Out dtable) {
  std::memset(dtable.data, 0, static_cast<size_t>(dtable.size()) * size_of(dtable.dtype));
  const int64_t n = index.size();
  if (dy.size() == 0) return;
  const int64_t width = dy.size() / n;
  const int64_t* const row = index.as<int64_t>();
  int64_t* const order = launch.scratch<int64_t>(n);
  std::iota(order, order + n, int64_t{0});
  std::sort(order, order + n,
            [&](int64_t a, int64_t b) { return row[a] != row[b] ? row[a] < row[b] : a < b; });

  visit_float(dy.dtype, dtable.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    parallel_ranges(n, std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
      const auto starts = [&](int64_t i) { return i == 0 || row[order[i]] != row[order[i - 1]]; };
      Buffer<T> room(width);
      T* const sum = room.data();
      for (int64_t i = begin; i < end; ++i) {
        if (!starts(i)) continue;  // a row that began in an earlier piece is summed there
        convert_run(dy.as<S>() + order[i] * width, width, sum);
        for (int64_t j = i + 1; j < n && !starts(j); ++j) {
          const S* const from = dy.as<S>() + order[j] * width;
          for_lanes<T>(width, [&](int64_t c, int64_t count) {
            write(sum + c, read<T>(sum + c, count) + read<T>(from + c, count), count);
          });
        }
        convert_run(sum, width, dtable.as<O>() + row[order[i]] * width);
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu
