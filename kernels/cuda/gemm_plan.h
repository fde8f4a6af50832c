#pragma once
// Which product kernel runs a problem: a pure function, so that its choices are tested without a
// device. It scores every legal way with a small model of the machine: whole waves of blocks, each
// as long as its longest block.

#include <algorithm>
#include <cstdint>

#include "core/half.h"  // MIXTAPE_HD

namespace mixtape::kernels::cuda {

// Block tile m x n; the warps of a block share it in tiles of warp_m x warp_n. k advances by 32
// bytes' worth of f16.
struct Tile {
  int m, n, warp_m, warp_n;
  constexpr int threads() const { return m / warp_m * (n / warp_n) * 32; }
};
inline constexpr Tile tiles[] = {{128, 256, 64, 64}, {128, 128, 64, 64}, {64, 64, 32, 32}};
inline constexpr int tile_count = 3;

struct GemmProblem {
  int64_t m, n, k, batch;
};
struct GemmPlan {
  int tile;   // index into tiles
  int split;  // parts of k that are summed apart and added in order afterwards
  friend bool operator==(const GemmPlan&, const GemmPlan&) = default;
};

MIXTAPE_HD inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// In units of the time one multiprocessor takes for 64 x 64 x 32 multiplications at full speed.
inline double cost(const GemmProblem& p, const GemmPlan& plan, int multiprocessors) {
  const Tile& t = tiles[plan.tile];
  // What a tile reaches of full speed: the smaller, the more it waits for shared memory
  // (bench/worklog).
  constexpr double efficiency[] = {1.0, 0.82, 0.5};
  const int per_multiprocessor = t.threads() >= 256 ? 1 : 2;
  const int64_t blocks = ceil_div(p.m, t.m) * ceil_div(p.n, t.n) * p.batch * plan.split;
  const int64_t waves = ceil_div(blocks, int64_t(multiprocessors) * per_multiprocessor);
  const double steps =
      double(ceil_div(ceil_div(p.k, 32), plan.split)) + 4;  // 4: filling and draining the pipeline
  const double work = double(waves * per_multiprocessor) * steps * (t.m / 64.0) * (t.n / 64.0);
  // The parts are written and read once more in f32, at about 4 bytes per step and multiprocessor.
  const double reduce =
      plan.split > 1
          ? double(p.m * p.n * p.batch) * (plan.split + 1) / (1000.0 * multiprocessors) + 8
          : 0;
  return work / efficiency[plan.tile] + reduce;
}

inline GemmPlan plan(const GemmProblem& p, int multiprocessors) {
  GemmPlan best{tile_count - 1, 1};
  double least = cost(p, best, multiprocessors);
  for (int tile = 0; tile < tile_count; ++tile)
    for (int split = 1; split <= 32; split *= 2) {
      if (split > 1 && ceil_div(p.k, 32) < int64_t(split) * 8)
        break;  // each part at least 256 long
      const double c = cost(p, {tile, split}, multiprocessors);
      if (c < least * 0.98) {
        least = c;
        best = {tile, split};
      }
    }
  return best;
}

}  // namespace mixtape::kernels::cuda
