#pragma once
// The choice of a kernel for a matrix product: a pure function, tested without a device. It scores
// every possible plan by a small model of the machine: whole waves of blocks, each as long as its
// longest block.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/int_math.h"

namespace mixtape::kernels::cuda {

// A block's tile of c, m x n. On tensor cores it is divided into warp tiles of warp_m x warp_n,
// otherwise among 256 threads.
struct Tile {
  bool tensor;
  int m, n, warp_m, warp_n;
  constexpr int threads() const { return tensor ? m / warp_m * (n / warp_n) * 32 : 256; }
};
inline constexpr Tile tiles[] = {
    {true, 128, 256, 64, 64}, {true, 128, 128, 64, 64}, {true, 64, 64, 32, 32},
    {false, 128, 128, 0, 0},  {false, 64, 64, 0, 0},
};
inline constexpr int tile_count = 5;

inline constexpr int groups_tiles = 2;  // the first two, for groups of warps

struct GemmProblem {
  int64_t m, n, k, batch;
};
// The instructions that multiply in a tensor tile: mma.sync, wmma (f16 and bf16 alone), or wgmma,
// for which groups of warps divide tile 0 or 1 (gemm_groups.cuh). mma.sync replaces the others
// where they cannot be used.
enum class Tier { Mma, Wmma, Groups };
struct GemmPlan {
  int tile;   // index into tiles
  int split;  // the number of parts of k, whose sums are added in order afterwards
  Tier tier = Tier::Mma;
  int cluster = 1;  // of blocks, 1 or 2, whose tiles are one above the other; 2: groups, tile 0
  friend bool operator==(const GemmPlan&, const GemmPlan&) = default;
};

// Parts of k, each of `size` elements, a multiple of `step`; the last may be shorter.
struct KParts {
  int count, size;
  friend bool operator==(const KParts&, const KParts&) = default;
};
// Cuts k into `split` parts, or more, since kernels count within a part in 32 bits, or fewer, since
// a part is not empty.
inline KParts cut_k(int64_t k, int step, int split) {
  constexpr int64_t most = int64_t{1} << 30;
  const int64_t size = std::clamp(round_up(ceil_div(k, split), int64_t{step}), int64_t{step}, most);
  return {int(std::max(ceil_div(k, size), int64_t{1})), int(size)};
}

// The estimated time, in units of 64 x 64 x 32 multiplications by one multiprocessor at full speed.
inline double cost(const GemmProblem& p, const GemmPlan& plan, int multiprocessors) {
  const Tile& t = tiles[plan.tile];
  // The fraction of full speed that a tile reaches: smaller ones wait for shared memory more.
  // Groups of warps multiply faster, and start later; a cluster needs less from the cache.
  constexpr double efficiency[tile_count] = {1.0, 0.82, 0.5, 1.0, 0.7}, of_groups[] = {1.3, 1.0},
                   of_cluster = 1.04;
  // The blocks for which a multiprocessor has registers, and which reach that speed together: the
  // largest tile takes 255 for each of 256 threads, that of exact arithmetic more than 128.
  constexpr int resident[tile_count] = {1, 2, 2, 1, 2};
  const bool groups = plan.tier == Tier::Groups;
  const int per_multiprocessor = groups ? 1 : resident[plan.tile];
  // (Blocks of a cluster come and go together, and some may have nothing to do.)
  const int64_t places = std::max(multiprocessors * per_multiprocessor / plan.cluster, 1);
  const int64_t clusters = ceil_div(p.m, int64_t(t.m) * plan.cluster) * ceil_div(p.n, t.n);
  const int64_t waves = ceil_div(clusters * p.batch * plan.split, places);
  const double steps = double(ceil_div(ceil_div(p.k, 32), plan.split)) +
                       (groups ? 8 : 4);  // filling and draining the pipeline
  const double work = double(waves * per_multiprocessor) * steps * (t.m / 64.0) * (t.n / 64.0);
  // Parts are written and read once more in f32, at about 4 bytes per step and multiprocessor; a
  // step of exact arithmetic takes about ten times as long.
  const double reduce =
      plan.split > 1
          ? (double(p.m * p.n * p.batch) * (plan.split + 1) / (1000.0 * multiprocessors) + 8) /
                (t.tensor ? 1 : 10)
          : 0;
  const double speed = (groups ? of_groups : efficiency)[plan.tile];
  return work / (plan.cluster > 1 ? speed * of_cluster : speed) + reduce;
}

// The best plan on tensor cores, or in exact arithmetic. groups: also by groups of warps. asked:
// the tier to use on tensor cores wherever it can be; wmma is used only where asked for.
inline GemmPlan plan(const GemmProblem& p, bool tensor, int multiprocessors, bool groups = false,
                     std::optional<Tier> asked = {}) {
  GemmPlan best{-1, 1};
  double least = 0;
  const auto consider = [&](int tile, Tier tier, int cluster = 1) {
    for (int split = 1; split <= 32; split *= 2) {
      if (split > 1 && p.k < int64_t{256} * split) break;
      const double c = cost(p, {tile, split, tier, cluster}, multiprocessors);
      if (best.tile < 0 || c < least * 0.98) {
        least = c;
        best = {tile, split, tier, cluster};
      }
    }
  };
  groups = groups && asked.value_or(Tier::Groups) == Tier::Groups;
  for (int tile = tile_count - 1; tile >= 0 && !(groups && asked); --tile)
    if (tiles[tile].tensor == tensor) consider(tile, Tier::Mma);
  for (int tile = groups_tiles - 1; tile >= 0 && groups; --tile) consider(tile, Tier::Groups);
  if (groups) consider(0, Tier::Groups, 2);
  if (tensor && asked == Tier::Wmma) best.tier = Tier::Wmma;
  return best;
}

}  // namespace mixtape::kernels::cuda
