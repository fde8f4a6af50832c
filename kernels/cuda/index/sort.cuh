#pragma once
// Stable sorting of rows of keys (kernels/common/order.h) on the device. A row that fits into
// shared memory is sorted there by a bitonic network, in which the position breaks ties. Longer
// ones go digit by digit from the lowest: the tiles of a row count their digits, the counts become
// places, and each tile puts its keys there in their order.

#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/common/order.h"
#include "kernels/cuda/gpu.cuh"

namespace mixtape::kernels::cuda {

constexpr int sort_threads = 256;

// --- running sums ---

// What the threads before this one hold, and all of them; both int. Eight words of shared memory
// from `room` on.
struct Before {
  int sum, total;
};
__device__ inline Before sum_before(int mine, gpu::Shared<int> room) {
  int sum = mine;  // of this lane and those below
  for (int by = 1; by < gpu::warp_size; by *= 2) {
    const int below = gpu::shuffle(sum, gpu::lane() - by);
    if (gpu::lane() >= by) sum += below;
  }
  const int warp = int(gpu::thread().x) / gpu::warp_size;
  gpu::sync_block();  // who is still reading the last sums
  if (gpu::lane() == gpu::warp_size - 1) room[warp] = sum;
  gpu::sync_block();
  Before before{sum - mine, 0};
  for (int w = 0; w < sort_threads / gpu::warp_size; ++w) {
    if (w < warp) before.sum += room[w];
    before.total += room[w];
  }
  return before;
}

// Each count becomes the sum of those before it in its row; a block for each row.
__global__ static void counts_to_places(int* counts, int64_t n) {
  constexpr int in_thread = 8;
  const gpu::Shared<int> room = gpu::shared_memory<int>();
  int* const row = counts + int64_t(gpu::block().x) * n;
  int carried = 0;
  for (int64_t begin = 0; begin < n; begin += sort_threads * in_thread) {
    const int64_t first = begin + int64_t(gpu::thread().x) * in_thread;
    int mine[in_thread], sum = 0;
#pragma unroll
    for (int k = 0; k < in_thread; ++k) {
      mine[k] = first + k < n ? row[first + k] : 0;
      sum += mine[k];
    }
    const Before before = sum_before(sum, room);
    int place = carried + before.sum;
#pragma unroll
    for (int k = 0; k < in_thread; ++k) {
      if (first + k < n) row[first + k] = place;
      place += mine[k];
    }
    carried += before.total;
  }
}
inline void launch_places(Launch& launch, int* counts, int64_t rows, int64_t n) {
  gpu::launch({"counts_to_places", {unsigned(rows), 1, 1}, {sort_threads, 1, 1}, 64}, launch.stream,
              counts_to_places, counts, n);
}

// --- what fits into shared memory ---

constexpr int64_t bitonic_most = 2048;

// Sorts rows of n keys, of which `source(row, i, key, at)` gives the i-th and its position, and
// gives the first `kept` to sink(row, i, key, at). Shared memory: `padded` of each, n rounded up to
// a power of two, for as many rows as sort_threads can work at.
template <class K, class Source, class Sink>
__global__ void bitonic_sort(int64_t rows, int n, int padded, int kept, Source source, Sink sink) {
  const int in_block = std::max(1, 2 * sort_threads / padded), all = in_block * padded;
  const gpu::Shared<K> key = gpu::shared_memory<K>();
  const gpu::Shared<uint32_t> at = gpu::shared_memory<uint32_t>(size_t(all) * sizeof(K));
  const int64_t first = int64_t(gpu::block().x) * in_block;
  const int t = int(gpu::thread().x);
  for (int i = t; i < all; i += sort_threads) {
    K k = K(~K(0));
    uint32_t from = ~0u;  // behind all that there is
    if (first + i / padded < rows && i % padded < n)
      source(first + i / padded, i % padded, k, from);
    key[i] = k;
    at[i] = from;
  }
  for (int run = 2; run <= padded; run *= 2)
    for (int by = run / 2; by > 0; by /= 2) {
      gpu::sync_block();
      for (int p = t; p < all / 2; p += sort_threads) {
        const int low = 2 * p - (p & (by - 1)), high = low + by;
        const bool up = (low & (padded - 1) & run) == 0;
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

// --- digit by digit ---

constexpr int digit_bits = 4, digits = 1 << digit_bits, of_thread = 8,
              tile_length = sort_threads * of_thread;

// The keys of a tile by digit: counts [row, digit, tile].
template <class K>
__global__ void count_digits(const K* keys, int64_t n, int tiles, int shift, int* counts) {
  const gpu::Shared<int> of_thread_counts = gpu::shared_memory<int>();
  const int64_t row = int64_t(gpu::block().x) / tiles;
  const int tile = int(gpu::block().x % unsigned(tiles)), t = int(gpu::thread().x);
  const int64_t begin = int64_t(tile) * tile_length;
  for (int d = 0; d < digits; ++d) of_thread_counts[d * sort_threads + t] = 0;
  for (int k = 0; k < of_thread; ++k) {
    const int64_t i = begin + k * sort_threads + t;
    if (i >= n) break;
    of_thread_counts[int(keys[row * n + i] >> shift & (digits - 1)) * sort_threads + t] += 1;
  }
  gpu::sync_block();
  constexpr int lanes = sort_threads / digits;  // that add up one digit
  int sum = 0;
  for (int k = 0; k < sort_threads / lanes; ++k)
    sum += of_thread_counts[t / lanes * sort_threads + k * lanes + t % lanes];
  for (int mask = lanes / 2; mask > 0; mask /= 2) sum += gpu::shuffle_xor(sum, mask);
  if (t % lanes == 0) counts[(row * digits + t / lanes) * tiles + tile] = sum;
}

// Puts the keys of a tile at their places. They are ordered in shared memory first, so that
// neighbours are written side by side. The last time only positions, to `index`.
template <class K>
__global__ void place_digits(const K* keys, const uint32_t* at, int64_t n, int tiles, int shift,
                             const int* places, K* next_keys, uint32_t* next_at, int64_t* index,
                             int64_t kept) {
  const gpu::Shared<K> key = gpu::shared_memory<K>();
  const gpu::Shared<uint32_t> position =
      gpu::shared_memory<uint32_t>(size_t(tile_length) * sizeof(K));
  constexpr size_t counts_at = size_t(tile_length) * (sizeof(K) + sizeof(uint32_t));
  const gpu::Shared<int> count = gpu::shared_memory<int>(counts_at);  // [digit, thread]
  const gpu::Shared<int> room =
      gpu::shared_memory<int>(counts_at + digits * sort_threads * sizeof(int));
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

  // Each thread takes keys that are neighbours, so that the threads' order is that of the keys.
  K mine[of_thread];
  uint32_t from[of_thread];
  int rank[of_thread];  // among those of this thread with the same digit
  const auto digit = [&](K k) { return int(k >> shift & (digits - 1)); };
#pragma unroll
  for (int k = 0; k < of_thread; ++k) {
    const int i = t * of_thread + k;
    if (i >= here) continue;
    mine[k] = key[i];
    from[k] = position[i];
    const int c = digit(mine[k]) * sort_threads + t;
    rank[k] = count[c];
    count[c] = rank[k] + 1;
  }
  gpu::sync_block();
  // Counts become places in the tile: thread t adds up 16 counts that follow each other.
  int sum = 0;
  for (int k = 0; k < digits; ++k) sum += count[t * digits + k];
  int place = sum_before(sum, room).sum;
  for (int k = 0; k < digits; ++k) {
    const int c = count[t * digits + k];
    count[t * digits + k] = place;
    place += c;
  }
  gpu::sync_block();
#pragma unroll
  for (int k = 0; k < of_thread; ++k) {
    if (t * of_thread + k >= here) continue;
    const int to = count[digit(mine[k]) * sort_threads + t] + rank[k];
    key[to] = mine[k];
    position[to] = from[k];
  }
  gpu::sync_block();
  for (int i = t; i < here; i += sort_threads) {
    const K k = key[i];
    const int d = digit(k);
    const int64_t to =
        int64_t(places[(row * digits + d) * tiles + tile]) + i - int(count[d * sort_threads]);
    if (index) {
      if (to < kept) index[row * kept + to] = position[i];
    } else {
      next_keys[row * n + to] = k;
      next_at[row * n + to] = position[i];
    }
  }
}

template <class K>
struct Sorted {
  K* keys;
  uint32_t* at;
};
// Sorts rows of n keys by their lowest `bits` bits; `keys` is used up. With an index, writes the
// first `kept` positions of each row there; else returns the keys with their positions.
template <class K>
Sorted<K> radix_sort(Launch& launch, K* keys, int64_t rows, int64_t n, int bits,
                     int64_t* index = nullptr, int64_t kept = 0) {
  const int tiles = int(ceil_div(n, tile_length));
  const gpu::Index3 blocks{unsigned(rows * tiles), 1, 1}, threads{sort_threads, 1, 1};
  int* const counts = launch.scratch<int>(rows * digits * tiles);
  Sorted<K> now{keys, nullptr},
      next{launch.scratch<K>(rows * n), launch.scratch<uint32_t>(rows * n)};
  uint32_t* const other = launch.scratch<uint32_t>(rows * n);
  for (int shift = 0; shift < bits; shift += digit_bits) {
    const bool last = shift + digit_bits >= bits;
    gpu::launch({"count_digits", blocks, threads, digits * sort_threads * sizeof(int)},
                launch.stream, count_digits<K>, static_cast<const K*>(now.keys), n, tiles, shift,
                counts);
    launch_places(launch, counts, rows, int64_t(digits) * tiles);
    gpu::launch(
        {"place_digits", blocks, threads,
         tile_length * (sizeof(K) + sizeof(uint32_t)) + digits * sort_threads * sizeof(int) + 64},
        launch.stream, place_digits<K>, static_cast<const K*>(now.keys),
        static_cast<const uint32_t*>(now.at), n, tiles, shift, static_cast<const int*>(counts),
        next.keys, next.at, last ? index : nullptr, kept);
    std::swap(now, next);
    if (!next.at) next.at = other;
  }
  return now;
}

}  // namespace mixtape::kernels::cuda
