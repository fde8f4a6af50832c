// The rungs of the ladder, in one file for the compiler.

#include "bench/lab/gemm/00_naive.cuh"
#include "bench/lab/gemm/01_coalesced.cuh"
#include "bench/lab/gemm/02_shared_tile.cuh"
#include "bench/lab/gemm/03_register_blocks.cuh"
#include "bench/lab/gemm/04_wmma.cuh"
#include "bench/lab/gemm/05_wmma_shared.cuh"
#include "bench/lab/gemm/06_ring.cuh"
#include "bench/lab/gemm/07_padding.cuh"
#include "bench/lab/gemm/08_mma.cuh"
#include "bench/lab/gemm/09_hoisted.cuh"
#include "bench/lab/gemm/10_swizzle.cuh"
#include "bench/lab/gemm/11_wgmma.cuh"
#include "bench/lab/gemm/12_specialised.cuh"
#include "bench/lab/gemm/13_persistent.cuh"
#include "bench/lab/gemm/14_cluster.cuh"

namespace mixtape::lab {

std::span<const Rung> rungs() {
  static const Rung all[] = {
      {"a thread per element", "rung_naive", {128, 1, 1}, run_naive},
      {"neighbours in a row", "rung_coalesced", {1, 128, 1}, run_coalesced},
      {"squares in shared memory", "rung_shared_tile", {32, 32, 32}, run_shared_tile},
      {"8 x 8 in registers", "rung_register_blocks", {128, 128, 16}, run_register_blocks},
      {"wmma from global memory", "rung_wmma", {16, 64, 16}, run_wmma},
      {"wmma from shared memory", "rung_wmma_shared", {64, 64, 32}, run_wmma_shared},
      {"a ring by cp.async", "rung_wmma_ring<64, 0>", {64, 64, 32}, run_wmma_ring<64, 0>},
      {"64 x 64 per warp, padding", "rung_wmma_ring<128, 8>", {128, 128, 32}, run_padding},
      {"ldmatrix and mma.sync", "rung_mma", {128, 128, 32}, run_mma},
      {"addresses before the loop", "rung_hoisted", {128, 128, 32}, run_hoisted},
      {"a swizzle, four slots", "rung_swizzle", {128, 128, 32}, run_swizzle},
      {"wgmma and the copy engine", "rung_wgmma", {64, 256, 64}, run_wgmma, true},
      {"warps that only copy", "rung_specialised", {128, 256, 64}, run_specialised, true},
      {"tile after tile, stores by boxes", "rung_persistent", {128, 256, 64}, run_persistent, true},
      {"two blocks share boxes", "rung_cluster", {256, 256, 64}, run_cluster, true},
  };
  return all;
}

}  // namespace mixtape::lab
