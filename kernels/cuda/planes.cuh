#pragma once
// The division of planes of results among threads: each takes four rows of one column, so that
// constants of the column are computed once and neighbouring threads access neighbours.

#include "kernels/cuda/gpu.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {

struct RowQuads {
  static constexpr int height = 4, threads = 256;
  int64_t count;  // in all planes
  int down, columns;

  RowQuads(int64_t planes, int64_t rows, int64_t columns)
      : count(planes * ceil_div(rows, height) * columns),
        down(int(ceil_div(rows, height))),
        columns(int(columns)) {}
  gpu::Grid grid(const char* name) const {
    return {name, {unsigned(ceil_div(count, threads)), 1, 1}, {threads, 1, 1}};
  }
  struct Position {
    int64_t plane;
    int row, column;  // row is the first of four
  };
  __device__ Position find(int64_t quad) const {
    const int64_t line = quad / columns, plane = line / down;
    return {plane, int(line - plane * down) * height, int(quad - line * columns)};
  }
};

// The first of [0, count) for which p is true, as it is for all after it; count if there is none.
template <class P>
__device__ int first_where(int64_t count, P p) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (p(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return int(low);
}

}  // namespace mixtape::kernels::cuda
