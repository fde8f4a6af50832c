#pragma once
// Stable sorting of rows of keys (kernels/common/order.h). Rows that fit in shared memory take a
// bitonic network, with positions to break ties. Longer ones are radix sorted from the lowest
// digit: tiles count digits, a scan turns counts into offsets, and tiles write their keys there.

#include "kernels/common/order.h"
#include "kernels/cuda/gpu.cuh"

namespace mixtape::kernels::cuda {

constexpr int sort_threads = 256;

// --- prefix sums ---

// The sum of the values of the threads before this one, and of all in the block. Needs room for
// eight of shared memory.
template <class T>
struct Before {
  T sum, total;
};
template <class T>
__device__ inline Before<T> sum_before(T mine, gpu::Shared<T> warp_sums) {
  T sum = mine;  // of this lane and those below
  for (int by = 1; by < gpu::warp_size; by *= 2) {
    const T below = gpu::shuffle(sum, gpu::lane() - by);
    if (gpu::lane() >= by) sum += below;
  }
  const int warp = int(gpu::thread().x) / gpu::warp_size;
  gpu::sync_block();  // threads may still be reading the last sums
  if (gpu::lane() == gpu::warp_size - 1) warp_sums[warp] = sum;
  gpu::sync_block();
  Before<T> before{sum - mine, 0};
  for (int w = 0; w < sort_threads / gpu::warp_size; ++w) {
    if (w < warp) before.sum += warp_sums[w];
    before.total += warp_sums[w];
  }
  return before;
}

// Replaces each count by the sum of those before it in its row, of which 32 bits may be too few.
// One block per row.
__global__ static void counts_to_offsets(int64_t* counts, int64_t n) {
  constexpr int in_thread = 8;
  const gpu::Shared<int64_t> warp_sums = gpu::shared_memory<int64_t>();
  int64_t* const row = counts + int64_t(gpu::block().x) * n;
  int64_t carried = 0;
  for (int64_t begin = 0; begin < n; begin += sort_threads * in_thread) {
    const int64_t first = begin + int64_t(gpu::thread().x) * in_thread;
    int64_t mine[in_thread], sum = 0;
#pragma unroll
    for (int k = 0; k < in_thread; ++k) {
      mine[k] = first + k < n ? row[first + k] : 0;
      sum += mine[k];
    }
    const Before<int64_t> before = sum_before(sum, warp_sums);
    int64_t offset = carried + before.sum;
#pragma unroll
    for (int k = 0; k < in_thread; ++k) {
      if (first + k < n) row[first + k] = offset;
      offset += mine[k];
    }
    carried += before.total;
  }
}
inline void launch_offsets(Launch& launch, int64_t* counts, int64_t rows, int64_t n) {
  gpu::launch({"counts_to_offsets", {unsigned(rows), 1, 1}, {sort_threads, 1, 1}, 64},
              launch.stream, counts_to_offsets, counts, n);
}

// Keys and their positions; as a sink of bitonic_sort, rows of `kept`.
template <class K>
struct Sorted {
  K* keys;
  uint32_t* at;
  int64_t kept = 0;
  __device__ void operator()(int64_t row, int i, K key, uint32_t from) const {
    keys[row * kept + i] = key;
    at[row * kept + i] = from;
  }
};

// --- bitonic sort, in shared memory ---

constexpr int64_t bitonic_most = 2048;

// Sorts rows of n keys. source(row, i, key, at) sets the i-th key and its position; sink(row, i,
// key, at) gets the first `kept` in order. Shared memory holds `padded` of each, n rounded up to a
// power of two, for as many rows as a block of sort_threads sorts at once.
template <class K, class Source, class Sink>
__global__ void bitonic_sort(int64_t rows, int n, int padded, int kept, Source source, Sink sink) {
  const int in_block = std::max(1, 2 * sort_threads / padded), all = in_block * padded;
  const gpu::Shared<K> key = gpu::shared_memory<K>();
  const gpu::Shared<uint32_t> at = gpu::shared_memory<uint32_t>(size_t(all) * sizeof(K));
  const int64_t first = int64_t(gpu::block().x) * in_block;
  const int t = int(gpu::thread().x);
  for (int i = t; i < all; i += sort_threads) {
    K k = K(~K(0));
    uint32_t from = ~0u;  // sorts after all others
    if (first + i / padded < rows && i % padded < n)
      source(first + i / padded, i % padded, k, from);
    key[i] = k;
    at[i] = from;
  }
  for (int size = 2; size <= padded; size *= 2)
    for (int by = size / 2; by > 0; by /= 2) {
      gpu::sync_block();
      for (int p = t; p < all / 2; p += sort_threads) {
        const int low = 2 * p - (p & (by - 1)), high = low + by;
        const bool up = (low & (padded - 1) & size) == 0;
        const K a = key[low], b = key[high];
        const uint32_t at_a = at[low], at_b = at[high];
        const bool swapped = a != b ? a > b : at_a > at_b;
        if (swapped == up) {
          key[low] = b;
          key[high] = a;
          at[low] = at_b;
          at[high] = at_a;
        }
      }
    }
  gpu::sync_block();
  for (int i = t; i < all; i += sort_threads)
    if (first + i / padded < rows && i % padded < kept)
      sink(first + i / padded, i % padded, K(key[i]), uint32_t(at[i]));
}
template <class K, class Source, class Sink>
void launch_bitonic(Launch& launch, int64_t rows, int64_t n, int64_t kept, Source source,
                    Sink sink) {
  int padded = 2;
  while (padded < n) padded *= 2;
  const int in_block = std::max(1, 2 * sort_threads / padded);
  gpu::launch({"bitonic_sort",
               {unsigned(ceil_div(rows, in_block)), 1, 1},
               {sort_threads, 1, 1},
               size_t(in_block) * size_t(padded) * (sizeof(K) + sizeof(uint32_t))},
              launch.stream, bitonic_sort<K, Source, Sink>, rows, int(n), padded, int(kept), source,
              sink);
}

// --- radix sort ---

constexpr int digit_bits = 4, digits = 1 << digit_bits, per_thread = 8,
              tile_length = sort_threads * per_thread;

// Counts the keys of a tile by digit: counts [row, digit, tile].
template <class K>
__global__ void count_digits(const K* keys, int64_t n, int tiles, int shift, int64_t* counts) {
  const gpu::Shared<int> thread_counts = gpu::shared_memory<int>();
  const int64_t row = int64_t(gpu::block().x) / tiles;
  const int tile = int(gpu::block().x % unsigned(tiles)), t = int(gpu::thread().x);
  const int64_t begin = int64_t(tile) * tile_length;
  for (int d = 0; d < digits; ++d) thread_counts[d * sort_threads + t] = 0;
  for (int k = 0; k < per_thread; ++k) {
    const int64_t i = begin + k * sort_threads + t;
    if (i >= n) break;
    thread_counts[int(keys[row * n + i] >> shift & (digits - 1)) * sort_threads + t] += 1;
  }
  gpu::sync_block();
  constexpr int lanes = sort_threads / digits;  // per digit
  int sum = 0;
  for (int k = 0; k < sort_threads / lanes; ++k)
    sum += thread_counts[t / lanes * sort_threads + k * lanes + t % lanes];
  for (int mask = lanes / 2; mask > 0; mask /= 2) sum += gpu::shuffle_xor(sum, mask);
  if (t % lanes == 0) counts[(row * digits + t / lanes) * tiles + tile] = sum;
}

// Replaces counts [digit, thread] by the sums of those before them: thread t takes 16 consecutive
// ones.
__device__ inline void sum_counts(gpu::Shared<int> count, gpu::Shared<int> warp_sums) {
  const gpu::Shared<int> mine = count + int(gpu::thread().x) * digits;
  int sum = 0;
  for (int k = 0; k < digits; ++k) sum += mine[k];
  int offset = sum_before(sum, warp_sums).sum;
  for (int k = 0; k < digits; ++k) {
    const int c = mine[k];
    mine[k] = offset;
    offset += c;
  }
}

// Writes the keys of a tile to their offsets. They are ordered in shared memory first, so that
// neighbours are written together. The last pass writes only positions, to `index`.
template <class K>
__global__ void scatter_digits(const K* keys, const uint32_t* at, int64_t n, int tiles, int shift,
                               const int64_t* offsets, K* next_keys, uint32_t* next_at,
                               int64_t* index, int64_t kept) {
  const gpu::Shared<K> key = gpu::shared_memory<K>();
  const gpu::Shared<uint32_t> position =
      gpu::shared_memory<uint32_t>(size_t(tile_length) * sizeof(K));
  constexpr size_t counts_at = size_t(tile_length) * (sizeof(K) + sizeof(uint32_t));
  const gpu::Shared<int> count = gpu::shared_memory<int>(counts_at),  // [digit, thread]
      warp_sums = gpu::shared_memory<int>(counts_at + digits * sort_threads * sizeof(int));
  const int64_t row = int64_t(gpu::block().x) / tiles;
  const int tile = int(gpu::block().x % unsigned(tiles)), t = int(gpu::thread().x);
  const int64_t begin = int64_t(tile) * tile_length;
  const int here = int(n - begin < tile_length ? n - begin : tile_length);
  for (int i = t; i < here; i += sort_threads) {
    key[i] = keys[row * n + begin + i];
    position[i] = at ? at[row * n + begin + i] : uint32_t(begin + i);
  }
  for (int d = 0; d < digits; ++d) count[d * sort_threads + t] = 0;
  gpu::sync_block();

  // Each thread takes neighbouring keys, so that the order of threads is the order of keys.
  K mine[per_thread];
  uint32_t from[per_thread];
  int rank[per_thread];  // among the keys of this thread with the same digit
  const auto digit = [&](K k) { return int(k >> shift & (digits - 1)); };
#pragma unroll
  for (int k = 0; k < per_thread; ++k) {
    const int i = t * per_thread + k;
    if (i >= here) continue;
    mine[k] = key[i];
    from[k] = position[i];
    const int c = digit(mine[k]) * sort_threads + t;
    rank[k] = count[c];
    count[c] = rank[k] + 1;
  }
  gpu::sync_block();
  sum_counts(count, warp_sums);  // to offsets in the tile
  gpu::sync_block();
#pragma unroll
  for (int k = 0; k < per_thread; ++k) {
    if (t * per_thread + k >= here) continue;
    const int to = count[digit(mine[k]) * sort_threads + t] + rank[k];
    key[to] = mine[k];
    position[to] = from[k];
  }
  gpu::sync_block();
  for (int i = t; i < here; i += sort_threads) {
    const K k = key[i];
    const int d = digit(k);
    const int64_t to =
        offsets[(row * digits + d) * tiles + tile] + i - int(count[d * sort_threads]);
    if (index) {
      if (to < kept) index[row * kept + to] = position[i];
    } else {
      next_keys[row * n + to] = k;
      next_at[row * n + to] = position[i];
    }
  }
}

// Sorts rows of n keys by their lowest `bits` bits and overwrites `keys`. With an index, writes the
// first `kept` positions of each row there; else returns the sorted keys and their positions.
template <class K>
Sorted<K> radix_sort(Launch& launch, K* keys, int64_t rows, int64_t n, int bits,
                     int64_t* index = nullptr, int64_t kept = 0) {
  const int tiles = int(ceil_div(n, tile_length));
  const gpu::Index3 blocks{unsigned(rows * tiles), 1, 1}, threads{sort_threads, 1, 1};
  int64_t* const counts = launch.scratch<int64_t>(rows * digits * tiles);
  Sorted<K> now{keys, nullptr},
      next{launch.scratch<K>(rows * n), launch.scratch<uint32_t>(rows * n)};
  uint32_t* const other = launch.scratch<uint32_t>(rows * n);
  for (int shift = 0; shift < bits; shift += digit_bits) {
    const bool last = shift + digit_bits >= bits;
    gpu::launch({"count_digits", blocks, threads, digits * sort_threads * sizeof(int)},
                launch.stream, count_digits<K>, static_cast<const K*>(now.keys), n, tiles, shift,
                counts);
    launch_offsets(launch, counts, rows, int64_t(digits) * tiles);
    gpu::launch(
        {"scatter_digits", blocks, threads,
         tile_length * (sizeof(K) + sizeof(uint32_t)) + digits * sort_threads * sizeof(int) + 64},
        launch.stream, scatter_digits<K>, static_cast<const K*>(now.keys),
        static_cast<const uint32_t*>(now.at), n, tiles, shift, static_cast<const int64_t*>(counts),
        next.keys, next.at, last ? index : nullptr, kept);
    std::swap(now, next);
    if (!next.at) next.at = other;
  }
  return now;
}

}  // namespace mixtape::kernels::cuda
