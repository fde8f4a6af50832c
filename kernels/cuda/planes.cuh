#pragma once
// How threads share planes of results: each takes a few rows of one column of one plane, so that
// what belongs to the column is found once and neighbours read and write neighbours.

#include "kernels/cuda/gpu.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {

struct RowQuads {
  static constexpr int height = 4, threads = 256;
  int64_t count;  // of all planes
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
    int row, column;  // the first row
  };
  __device__ Position find(int64_t quad) const {
    const int64_t line = quad / columns, plane = line / down;
    return {plane, int(line - plane * down) * height, int(quad - line * columns)};
  }
};

}  // namespace mixtape::kernels::cuda
