#pragma once
// Matrix products for compute capability 9.0: the copy engine fills a ring of slices of a and b in
// shared memory, and two groups of four warps multiply them from there (wgmma). One thread of a
// third group starts the copies, so no thread computes addresses of elements. A block stays for all
// tiles that fall to it: while one ends, slices of the next are on their way. Or two blocks, a
// cluster, have tiles one above the other: each copies half of a slice of b to both.

#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/gemm/ring.h"
#include "kernels/cuda/gpu_hopper.cuh"

namespace mixtape::kernels::cuda {

// A product with its matrices as the copy engine sees them. A batch counts through z and w.
template <class T>
struct GroupsGemm {
  Gemm<T> g;
  gpu::TensorMap a, b;
  gpu::TensorMap c, before;  // of results that go through shared memory, if `staged`
  bool staged;
  // Tiles of c (down: those of a cluster), parts of k, tiles of all parts and problems.
  int down, across, parts, all;
  int inner;                    // the size of the batch along z
  gpu::BoxAt a_batch, b_batch;  // z, w: 0 where all of the batch share the operand, else 1
};

namespace detail {

constexpr int consumers = 2;  // groups of four warps that multiply 64 rows of a each
constexpr int group_threads = 128, groups_threads = group_threads * (1 + consumers);
constexpr int groups_m = 64 * consumers;
constexpr int box_rows = 64, box_bytes = box_rows * gpu::box_row_bytes;
constexpr int ring_bytes = 192 * 1024, staging_bytes = consumers * 2 * box_bytes;

// A tile of c and the part of k that is summed for it, by its number and the block's rank in a
// cluster of `blocks`. Numbers go through bands of eight rows of tiles, as tile_origin() does.
struct GroupsTask {
  int m, n, k, steps, part, batch;
};
template <class T>
__device__ __forceinline__ GroupsTask groups_task(const GroupsGemm<T>& p, int number, int tile_n,
                                                  int depth, int rank, int blocks) {
  const int tiles_of_c = p.down * p.across, i = number % tiles_of_c, rest = number / tiles_of_c;
  const int band = 8 * p.across, first = i / band * 8;
  const int height = p.down - first < 8 ? p.down - first : 8;
  const int part = rest % p.parts, k = part * p.g.part_k;
  const int left = int(p.g.k) - k, size = left < p.g.part_k ? left : p.g.part_k;
  return {((first + i % band % height) * blocks + rank) * groups_m,
          i % band / height * tile_n,
          k,
          ceil_div(size, depth),
          part,
          rest / p.parts};
}

// The sums over k of 64 rows of a, or columns of b, which a consumer reads from boxes. `groups` of
// threads share a row, and their sums are added in order at the end.
template <class T, bool along_k>
struct BoxSums {
  static constexpr int chunk = 16 / int(sizeof(T)), row = gpu::box_row_bytes / int(sizeof(T));
  static constexpr int groups = along_k ? 2 : 16, count = along_k ? 1 : chunk;

  static __device__ __forceinline__ void add(Shared<T> box, float* sum) {
    const int t = int(gpu::thread().x) % group_threads;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int line = along_k ? t % 64 : t / 8 + i * 16;
      const int at = along_k ? t / 64 * 4 + i : t % 8;
      const auto pack =
          gpu::load_as<gpu::Pack<T, chunk>>(box + (line * row + (at ^ line % 8) * chunk));
#pragma unroll
      for (int e = 0; e < chunk; ++e) sum[along_k ? 0 : e] += gpu::widen(pack.v[e]);
    }
  }
  // Stores the sums of the first `size` rows by way of `all`. All threads of the group call it, and
  // meet again before they change `all`.
  static __device__ __forceinline__ void store(const float* sum, Shared<float> all, int barrier,
                                               float* out, int64_t size) {
    const int t = int(gpu::thread().x) % group_threads;
    gpu::sync_threads(barrier, group_threads);
    if constexpr (along_k) {
      all[t] = sum[0];
    } else {
#pragma unroll
      for (int e = 0; e < chunk; ++e) all[t / 8 * 64 + t % 8 * chunk + e] = sum[e];
    }
    gpu::sync_threads(barrier, group_threads);
    if (t < 64 && t < size) {
      float total = 0;
#pragma unroll
      for (int group = 0; group < groups; ++group) total += float(all[group * 64 + t]);
      out[t] = total;
    }
  }
};

// The steps of one kernel, for tiles of 128 x n in clusters of `blocks`. a_by_rows, b_by_rows: the
// operand is row-major, else column-major.
template <class T, bool a_by_rows, bool b_by_rows, int n, int blocks>
struct GroupsTile {
  static constexpr bool ta = !a_by_rows, tb = b_by_rows;  // transposed: not dense along k
  static constexpr int row = gpu::box_row_bytes / int(sizeof(T)), bk = row;
  static constexpr int a_size = groups_m * row, b_size = n * row, box_size = box_rows * row;
  static constexpr int stage_bytes = (a_size + b_size) * int(sizeof(T));
  static constexpr int stages = ring_bytes / stage_bytes;
  static constexpr int boxes = n / 64;  // of a consumer's results
  using Sums = float[n / 2];

  // Shared memory: the ring, two boxes of results for each consumer, barriers.
  static __device__ __forceinline__ Shared<T> slice_a(int slot) {
    return gpu::shared_memory<T>(size_t(slot) * stage_bytes);
  }
  static __device__ __forceinline__ Shared<T> slice_b(int slot) { return slice_a(slot) + a_size; }
  template <class S>
  static __device__ __forceinline__ Shared<S> staging(int consumer) {
    return gpu::shared_memory<S>(size_t(ring_bytes) + size_t(consumer) * 2 * box_bytes);
  }
  static __device__ __forceinline__ Shared<gpu::Barrier> full(int slot) {
    return gpu::shared_memory<gpu::Barrier>(size_t(ring_bytes) + staging_bytes) + slot;
  }
  static __device__ __forceinline__ Shared<gpu::Barrier> empty(int slot) {
    return full(stages + slot);
  }

  // The block's rank in its cluster; the number of the first tile of a cluster, and how many it
  // goes on.
  static __device__ __forceinline__ int rank() { return blocks > 1 ? gpu::cluster_rank() : 0; }
  static __device__ __forceinline__ int first() { return int(gpu::block().x) / blocks; }
  static __device__ __forceinline__ int clusters() { return int(gpu::grid_size().x) / blocks; }
  static __device__ __forceinline__ GroupsTask task(const GroupsGemm<T>& p, int number) {
    return groups_task(p, number, n, bk, rank(), blocks);
  }
  static __device__ void init_barriers() {
    for (int slot = 0; slot < stages; ++slot) {
      gpu::barrier_init(full(slot), 1);
      gpu::barrier_init(empty(slot), blocks * consumers * group_threads / gpu::warp_size);
    }
    gpu::fence_barrier_init();
  }
  // Blocks of a cluster meet before they reach each other's barriers, and before they end.
  static __device__ __forceinline__ void meet() {
    if constexpr (blocks > 1) {
      gpu::cluster_arrive();
      gpu::cluster_wait();
    }
  }

  // Copies the slices of all of this block's tiles to the ring. One thread calls it.
  static __device__ __forceinline__ void produce(const GroupsGemm<T>& p) {
    Ring<stages> ring;
    for (int number = first(); number < p.all; number += clusters()) {
      const GroupsTask task_now = task(p, number);
      const int z = task_now.batch % p.inner, w = task_now.batch / p.inner;
      for (int step = 0; step < task_now.steps; ++step, ring.next()) {
        gpu::barrier_wait(empty(ring.slot), ring.empty_parity());
        gpu::barrier_expect(full(ring.slot), stage_bytes);
        const int k = task_now.k + step * bk;
        const auto bar = full(ring.slot);
        load<ta, groups_m, 1>(slice_a(ring.slot), p.a, bar, k, task_now.m, z * p.a_batch.z,
                              w * p.a_batch.w);
        const int half = rank() * (n / blocks);  // its first line
        load<tb, n / blocks, blocks>(slice_b(ring.slot) + half * row, p.b, bar, k,
                                     task_now.n + half, z * p.b_batch.z, w * p.b_batch.w);
      }
    }
  }

  // Multiplies the slices, and ends every tile.
  static __device__ __forceinline__ void consume(const GroupsGemm<T>& p, int consumer) {
    Ring<stages> ring;
    Sums sum;
    int staged = 0;
    for (int number = first(); number < p.all; number += clusters()) {
      const GroupsTask now = task(p, number);
      using OfA = BoxSums<T, a_by_rows>;
      using OfB = BoxSums<T, !b_by_rows>;
      constexpr int b_boxes = boxes / consumers;  // each consumer sums half of b's columns
      float k_sums[std::max(OfA::count, b_boxes * OfB::count)] = {};
      const bool sums_a = p.g.row_sums && now.n == 0, sums_b = p.g.column_sums && now.m == 0;
      int before = -1;
      for (int step = 0; step < now.steps; ++step, ring.next()) {
        gpu::barrier_wait(full(ring.slot), ring.full_parity());
        const Shared<T> a = slice_a(ring.slot) + consumer * box_size;
        multiply(sum, a, slice_b(ring.slot), step > 0);
        if (sums_a || sums_b) {  // one condition in the loop of most products
          if (sums_a) {
            OfA::add(a, k_sums);
          } else {
#pragma unroll
            for (int i = 0; i < b_boxes; ++i)
              OfB::add(slice_b(ring.slot) + (consumer * b_boxes + i) * box_size,
                       k_sums + i * OfB::count);
          }
        }
        gpu::group_wait<1>();
        if (before >= 0) release(before);  // the product before this one is over
        before = ring.slot;
      }
      gpu::group_wait<0>();
      release(before);
      if (sums_a || sums_b) drain_staging();
      if (sums_a) {
        const int64_t m = now.m + consumer * 64;
        OfA::store(k_sums, staging<float>(consumer), 1 + consumer,
                   p.g.row_sums + now.part * p.g.m + m, p.g.m - m);
      } else if (sums_b) {
#pragma unroll
        for (int i = 0; i < b_boxes; ++i) {
          const int64_t at = now.n + (consumer * b_boxes + i) * 64;
          OfB::store(k_sums + i * OfB::count, staging<float>(consumer), 1 + consumer,
                     p.g.column_sums + now.part * p.g.n + at, p.g.n - at);
        }
      }
      end_tile(p, now, consumer, sum, staged);
    }
    gpu::store_wait<0>();
  }

 private:
  // Loads `lines` lines of an operand, bk deep along k, to this block or to all of the cluster.
  template <bool transposed, int lines, int readers>
  static __device__ __forceinline__ void load(Shared<T> to, const gpu::TensorMap& from,
                                              Shared<gpu::Barrier> barrier, int k, int line, int z,
                                              int w) {
    if constexpr (transposed) {
#pragma unroll
      for (int i = 0; i < lines / row; ++i)
        load_box<readers>(to + i * box_size, from, barrier, {line + i * row, k, z, w});
    } else {
      load_box<readers>(to, from, barrier, {k, line, z, w});
    }
  }
  template <int readers>
  static __device__ __forceinline__ void load_box(Shared<T> to, const gpu::TensorMap& from,
                                                  Shared<gpu::Barrier> barrier, gpu::BoxAt at) {
    if constexpr (readers > 1)
      gpu::load_box(to, from, barrier, at, (1u << readers) - 1);
    else
      gpu::load_box(to, from, barrier, at);
  }
  // Starts sum = a b (+ sum if `add`) for 64 rows of a.
  static __device__ __forceinline__ void multiply(Sums& sum, Shared<T> a, Shared<T> b, bool add) {
    constexpr int along = 32 / int(sizeof(T));  // of k in one product
    gpu::group_fence();
#pragma unroll
    for (int k = 0; k < bk; k += along)
      gpu::multiply_group<T, n, ta, tb>(
          sum, gpu::make_operand(a + k * (ta ? row : 1), ta, box_bytes),
          gpu::make_operand(b + k * (tb ? row : 1), tb, box_bytes), add || k > 0);
    gpu::group_commit();
  }
  // This warp has done with a slot, which all blocks of the cluster fill.
  static __device__ __forceinline__ void release(int slot) {
    gpu::sync_warp();
    if constexpr (blocks > 1) {
      if (gpu::lane() < blocks) gpu::barrier_arrive(empty(slot), gpu::lane());
    } else {
      if (gpu::lane() == 0) gpu::barrier_arrive(empty(slot));
    }
  }

  // Applies the epilogue to a consumer's 64 rows of a tile and stores them, 64 columns at a time.
  static __device__ __forceinline__ void end_tile(const GroupsGemm<T>& p, const GroupsTask& now,
                                                  int consumer, Sums& sum, int& staged) {
    const int t = int(gpu::thread().x) % group_threads, lane = gpu::lane();
    const int m0 = now.m + consumer * 64;
    const int64_t offset = p.g.batch.find(now.batch).c + now.part * p.g.split_stride;
#pragma unroll 1  // one copy of the code below for all columns
    for (int box = 0; box < boxes; ++box) {
      Vec<float, 2> q[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        q[i].row = m0 + t / 32 * 16 + lane / 4 + i % 2 * 8;
        q[i].column = now.n + box * 64 + i / 2 * 8 + lane % 4 * 2;
      }
#pragma unroll
      for (int e = 0; e < 32; ++e) q[e / 2].v[e % 2] = sum[e];
#pragma unroll
      for (int e = 32; e < n / 2; ++e) sum[e - 32] = sum[e];  // (registers cannot be indexed)
      finish(p.g, offset, q, [&](void* to) {
        if constexpr (sizeof(T) == 2) {
          if (p.staged) {
            const gpu::BoxAt at{now.n + box * 64, m0, now.batch % p.inner, now.batch / p.inner};
            return stage(to == p.g.c ? p.c : p.before, at, consumer, q, staged);
          }
        }
        store(p.g, to, offset, q);
      });
    }
  }
  // Copies 64 x 64 results to global memory through one of the consumer's two boxes.
  static __device__ __forceinline__ void stage(const gpu::TensorMap& to, const gpu::BoxAt& at,
                                               int consumer, const Vec<float, 2> (&q)[16],
                                               int& staged) {
    const int t = int(gpu::thread().x) % group_threads, line = t / 32 * 16 + t % 16;
    const Shared<T> box = staging<T>(consumer) + staged * box_size;
    staged ^= 1;
    if (t == 0) gpu::store_wait_read<1>();  // the copy before the last has read the box
    gpu::sync_threads(1 + consumer, group_threads);
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      uint32_t part[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) part[e] = gpu::round_pair<T>(q[i + e].v[0], q[i + e].v[1]);
      const int chunk = i / 2 + t % 32 / 16;
      gpu::store_matrices(box + (line * row + (chunk ^ line % 8) * 8), part);
    }
    gpu::fence_async();
    gpu::sync_threads(1 + consumer, group_threads);
    if (t == 0) {
      gpu::store_box(to, box, at);
      gpu::store_commit();
    }
  }
  // The copies of results have left shared memory, as far as the caller started them.
  static __device__ __forceinline__ void drain_staging() { gpu::store_wait_read<0>(); }
};

}  // namespace detail

// Dynamic shared memory of a block.
constexpr size_t groups_shared_bytes =
    size_t(detail::ring_bytes) + detail::staging_bytes + 2 * 8 * sizeof(uint64_t);

// Grid: at most a block for each multiprocessor, in clusters of `blocks`.
template <class T, bool a_by_rows, bool b_by_rows, int n, int blocks>
__global__ void __launch_bounds__(detail::groups_threads, 1)
    gemm_groups(const __grid_constant__ GroupsGemm<T> p) {
  if constexpr (gpu::compiled_for_hopper) {
    using Tile = detail::GroupsTile<T, a_by_rows, b_by_rows, n, blocks>;
    if (gpu::thread().x == 0) Tile::init_barriers();
    gpu::sync_block();
    Tile::meet();
    const int group = int(gpu::thread().x) / detail::group_threads;
    if (group == 0) {
      gpu::lower_registers<40>();
      if (gpu::thread().x == 0) Tile::produce(p);
    } else {
      gpu::raise_registers<232>();
      Tile::consume(p, group - 1);
    }
    Tile::meet();
  }
}

}  // namespace mixtape::kernels::cuda
