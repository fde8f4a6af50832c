// Order: sorting, selecting, finding the extreme. All of them compare keys (kernels/order.h).

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/sort.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {
namespace {

// Keys of 1 and 2 bytes sort as 4.
template <class T>
using sort_key_t = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
struct RowsOf {
  const T* x;
  int64_t n;
  bool descending;
  template <class K>
  __device__ void operator()(int64_t row, int i, K& key, uint32_t& at) const {
    key = ranked(x[row * n + i], descending);
    at = uint32_t(i);
  }
};
struct ToIndex {
  int64_t* index;
  int64_t kept;
  template <class K>
  __device__ void operator()(int64_t row, int i, K, uint32_t at) const {
    index[row * kept + i] = at;
  }
};

template <class T>
__global__ void write_keys(const T* x, int64_t n, bool descending, sort_key_t<T>* keys) {
  const int64_t all = gpu::all_threads();
  for (int64_t i = gpu::global_thread(); i < n; i += all) keys[i] = ranked(x[i], descending);
}

// --- the first k of a long row: tiles give their first k, and so on until one tile is left ---

template <class K>
struct Candidates {
  K* keys;
  uint32_t* at;
  int64_t in_row;
};
// Tile `row % tiles` of row `row / tiles`.
template <class K>
struct TilesOf {
  Candidates<K> c;
  int64_t tiles;
  __device__ void operator()(int64_t row, int i, K& key, uint32_t& at) const {
    const int64_t from = row % tiles * bitonic_most + i, to = row / tiles * c.in_row + from;
    if (from >= c.in_row) return;
    key = c.keys[to];
    at = c.at ? c.at[to] : uint32_t(from);
  }
};
template <class K>
struct ToCandidates {
  Candidates<K> c;
  int64_t kept;
  __device__ void operator()(int64_t row, int i, K key, uint32_t at) const {
    c.keys[row * kept + i] = key;
    c.at[row * kept + i] = at;
  }
};
constexpr int64_t tournament_most = bitonic_most / 4;  // of k, so that every round pays

template <class K>
void tournament(Launch& launch, Candidates<K> now, int64_t rows, Out index) {
  const int64_t k = index.shape()[-1];
  for (;;) {
    const int64_t tiles = pieces(now.in_row, bitonic_most);
    const TilesOf<K> source{now, tiles};
    if (tiles == 1)
      return launch_bitonic<K>(launch, rows, now.in_row, k, source,
                               ToIndex{index.as<int64_t>(), k});
    const Candidates<K> next{launch.scratch<K>(rows * tiles * k),
                             launch.scratch<uint32_t>(rows * tiles * k), tiles * k};
    launch_bitonic<K>(launch, rows * tiles, bitonic_most, k, source, ToCandidates<K>{next, k});
    now = next;
  }
}

// The first `kept` positions of each sorted row.
void sort_rows(Launch& launch, bool descending, In x, Out index) {
  const int64_t n = x.shape()[-1], kept = index.shape()[-1];
  if (index.size() == 0) return;
  const int64_t rows = x.size() / n;
  visit(x.dtype, [&]<class T>() {
    using K = sort_key_t<T>;
    if (n <= bitonic_most)
      return launch_bitonic<K>(launch, rows, n, kept, RowsOf<T>{x.as<const T>(), n, descending},
                               ToIndex{index.as<int64_t>(), kept});
    K* const keys = launch.scratch<K>(x.size());
    gpu::launch_over(launch, "write_keys", x.size(), write_keys<T>, x.as<const T>(), x.size(),
                     descending, keys);
    if (kept <= tournament_most) return tournament<K>(launch, {keys, nullptr, n}, rows, index);
    radix_sort(launch, keys, rows, n, 8 * int(sizeof(T)), index.as<int64_t>(), kept);
  });
}

// --- the extreme of each line ---

struct Winner {
  uint64_t merit = 0;
  int64_t at = std::numeric_limits<int64_t>::max();
};
__device__ inline Winner better(const Winner& a, const Winner& b) {
  return b.merit > a.merit || (b.merit == a.merit && b.at < a.at) ? b : a;
}

// That of neighbouring lanes.
template <int lanes>
__device__ inline Winner best_of(Winner best) {
  for (int mask = lanes / 2; mask > 0; mask /= 2)
    best = better(best, {gpu::shuffle_xor(best.merit, mask), gpu::shuffle_xor(best.at, mask)});
  return best;
}

template <class T>
struct LinesOf {
  const T* x;
  int64_t* y;
  Winner* parts;   // [lines, count of parts], or null if there is one part
  Walk<2> beside;  // y, x
  int64_t lines, n, along;
  int part_count;
  bool largest;
};

// A group of `lanes` threads for each line: a block, a warp, or one where neighbouring lines are
// neighbours in memory. Grid: groups, parts.
template <class T, int lanes>
__global__ void find_winners(LinesOf<T> p) {
  const int t = int(gpu::thread().x) % lanes, part = int(gpu::block().y);
  const int64_t line =
      int64_t(gpu::block().x) * (sort_threads / lanes) + int(gpu::thread().x) / lanes;
  int64_t at[2] = {};
  Winner best;
  if (line < p.lines) {
    p.beside.find(line, at);
    const int64_t begin = p.n * part / p.part_count, end = p.n * (part + 1) / p.part_count;
    for (int64_t i = begin + t; i < end; i += lanes) {
      const T x = p.x[at[1] + i * p.along];
      best = better(best, {p.largest ? merit<true>(x) : merit<false>(x), i});
    }
  }
  best = best_of<std::min(lanes, gpu::warp_size)>(best);
  if constexpr (lanes == sort_threads) {
    const gpu::Shared<uint64_t> merits = gpu::shared_memory<uint64_t>();
    const gpu::Shared<int64_t> places = gpu::shared_memory<int64_t>(64);
    if (gpu::lane() == 0) {
      merits[t / gpu::warp_size] = best.merit;
      places[t / gpu::warp_size] = best.at;
    }
    gpu::sync_block();
    for (int w = 0; w < sort_threads / gpu::warp_size; ++w)
      best = better(best, {merits[w], places[w]});
  }
  if (t != 0 || line >= p.lines) return;
  if (p.parts)
    p.parts[line * p.part_count + part] = best;
  else
    p.y[at[0]] = best.at;
}
// A warp per line.
__global__ void join_winners(const Winner* parts, int part_count, int64_t lines, Walk<2> beside,
                             int64_t* y) {
  const int64_t line = gpu::global_thread() / gpu::warp_size;
  if (line >= lines) return;
  Winner best;
  for (int i = gpu::lane(); i < part_count; i += gpu::warp_size)
    best = better(best, parts[line * part_count + i]);
  best = best_of<gpu::warp_size>(best);
  if (gpu::lane() != 0) return;
  int64_t at[2];
  beside.find(line, at);
  y[at[0]] = best.at;
}

}  // namespace

void argsort(Launch& launch, bool descending, In x, Out index) {
  sort_rows(launch, descending, x, index);
}
void topk(Launch& launch, bool largest, In x, Out index) { sort_rows(launch, largest, x, index); }

void arg_reduce(Launch& launch, Reduce op, int dim, In x, Out y) {
  Layout of_y = y.layout, of_x = x.layout;
  of_x.shape[dim] = 1;
  Layout* const beside[] = {&of_y, &of_x};
  collapse(beside);
  if (y.size() == 0) return;
  visit(x.dtype, [&]<class T>() {
    LinesOf<T> p{x.as<const T>(), y.as<int64_t>(),  nullptr, walk_of<2>({&of_y, &of_x}), y.size(),
                 x.shape()[dim],  x.strides()[dim], 1,       op == Reduce::Max};
    const int lanes = p.along != 1 && of_x.strides[-1] == 1 && p.lines >= 32 ? 1
                      : p.n > 1024                                           ? sort_threads
                                                                             : gpu::warp_size;
    const int64_t groups = pieces(p.lines * lanes, sort_threads);
    // Parts, where there are too few lines to fill the device.
    const int64_t wanted = int64_t(gpu::multiprocessors(launch.device.index)) * 8 / groups;
    p.part_count = int(std::clamp<int64_t>(std::min(wanted, p.n / 1024), 1, 1024));
    if (p.part_count > 1) p.parts = launch.scratch<Winner>(p.lines * p.part_count);
    const auto start = [&](auto kernel) {
      gpu::launch({"find_winners",
                   {unsigned(groups), unsigned(p.part_count), 1},
                   {sort_threads, 1, 1},
                   128},
                  launch.stream, kernel, p);
    };
    if (lanes == 1)
      start(find_winners<T, 1>);
    else if (lanes == gpu::warp_size)
      start(find_winners<T, gpu::warp_size>);
    else
      start(find_winners<T, sort_threads>);
    if (p.parts)
      gpu::launch({"join_winners", {unsigned(pieces(p.lines, 8)), 1, 1}, {256, 1, 1}},
                  launch.stream, join_winners, static_cast<const Winner*>(p.parts), p.part_count,
                  p.lines, p.beside, p.y);
  });
}

}  // namespace mixtape::kernels::cuda
