// Sorting, top-k, argmax and argmin. All compare keys (kernels/common/order.h).

#include "kernels/cuda/elementwise/elementwise.cuh"
#include "kernels/cuda/index/sort.cuh"
#include "kernels/cuda/thread_group.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// Keys of 1 and 2 bytes are sorted as 4.
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
__global__ void write_sort_keys(const T* x, int64_t n, bool descending, sort_key_t<T>* keys) {
  for (int64_t i = gpu::global_thread(); i < n; i += gpu::all_threads())
    keys[i] = ranked(x[i], descending);
}

// --- top-k of a long row: each tile keeps its first k, until one tile is left ---

// Tile `row % tiles` of row `row / tiles`; a row has c.kept candidates.
template <class K>
struct TilesOf {
  Sorted<K> c;
  int64_t tiles;
  __device__ void operator()(int64_t row, int i, K& key, uint32_t& at) const {
    const int64_t from = row % tiles * bitonic_most + i, to = row / tiles * c.kept + from;
    if (from >= c.kept) return;
    key = c.keys[to];
    at = c.at ? c.at[to] : uint32_t(from);
  }
};
constexpr int64_t tournament_most = bitonic_most / 4;  // larger k are fully sorted

template <class K>
void tournament(Launch& launch, Sorted<K> now, int64_t rows, Out index) {
  const int64_t k = index.shape()[-1];
  for (;;) {
    const int64_t tiles = ceil_div(now.kept, bitonic_most);
    const TilesOf<K> source{now, tiles};
    if (tiles == 1)
      return launch_bitonic<K>(launch, rows, now.kept, k, source, ToIndex{index.as<int64_t>(), k});
    const Sorted<K> next{launch.scratch<K>(rows * tiles * k),
                         launch.scratch<uint32_t>(rows * tiles * k), k};
    launch_bitonic<K>(launch, rows * tiles, bitonic_most, k, source, next);
    now = {next.keys, next.at, tiles * k};
  }
}

// --- argmax and argmin of each line ---

struct Winner {
  uint64_t merit = 0;
  int64_t at = std::numeric_limits<int64_t>::max();
};
__device__ inline Winner better(const Winner& a, const Winner& b) {
  return b.merit > a.merit || (b.merit == a.merit && b.at < a.at) ? b : a;
}

template <class T>
struct LinesOf {
  const T* x;
  int64_t* y;
  Winner* parts;   // [lines, count of parts], or null if there is one part
  Walk<2> beside;  // y, x
  int64_t lines, n, along;
  int group_size, part_count;
  bool largest;
};

// One group per line: a block, a warp, or one thread if neighbouring lines are neighbours in
// memory. Grid: groups, parts.
template <class T>
__global__ void find_winners(LinesOf<T> p) {
  ThreadGroup group(p.group_size);
  const int part = int(gpu::block().y);
  const int64_t line = gpu::global_thread() / p.group_size;
  int64_t at[2] = {};
  Winner best;
  if (line < p.lines) {
    p.beside.find(line, at);
    const int64_t begin = p.n * part / p.part_count, end = p.n * (part + 1) / p.part_count;
    for (int64_t i = begin + group.index; i < end; i += group.size) {
      const T x = p.x[at[1] + i * p.along];
      best = better(best, {p.largest ? merit<true>(x) : merit<false>(x), i});
    }
  }
  best = group.join(best, better, Winner());
  if (group.index != 0 || line >= p.lines) return;
  if (p.parts)
    p.parts[line * p.part_count + part] = best;
  else
    p.y[at[0]] = best.at;
}
// A warp per line.
__global__ void join_winners(const Winner* parts, int part_count, int64_t lines, Walk<2> beside,
                             int64_t* y) {
  ThreadGroup group(gpu::warp_size);
  const int64_t line = gpu::global_thread() / group.size;
  Winner best;
  for (int i = group.index; line < lines && i < part_count; i += group.size)
    best = better(best, parts[line * part_count + i]);
  best = group.join(best, better, Winner());
  if (group.index != 0 || line >= lines) return;
  int64_t at[2];
  beside.find(line, at);
  y[at[0]] = best.at;
}

}  // namespace

// Writes as many positions of each sorted row as index has.
void argsort(Launch& launch, bool descending, In x, Out index) {
  const int64_t n = x.shape()[-1], kept = index.shape()[-1];
  if (index.size() == 0) return;
  const int64_t rows = x.size() / n;
  visit(x.dtype, [&]<class T>() {
    using K = sort_key_t<T>;
    if (n <= bitonic_most)
      return launch_bitonic<K>(launch, rows, n, kept, RowsOf<T>{x.as<const T>(), n, descending},
                               ToIndex{index.as<int64_t>(), kept});
    K* const keys = launch.scratch<K>(x.size());
    gpu::launch_over(launch, "write_sort_keys", x.size(), write_sort_keys<T>, x.as<const T>(),
                     x.size(), descending, keys);
    if (kept <= tournament_most) return tournament<K>(launch, {keys, nullptr, n}, rows, index);
    radix_sort(launch, keys, rows, n, 8 * int(sizeof(T)), index.as<int64_t>(), kept);
  });
}
void topk(Launch& launch, bool largest, In x, Out index) { argsort(launch, largest, x, index); }

void arg_reduce(Launch& launch, Reduce op, int dim, In x, Out y) {
  Layout of_y = y.layout, of_x = x.layout;
  of_x.shape[dim] = 1;
  collapse(std::array{&of_y, &of_x});
  if (y.size() == 0) return;
  visit(x.dtype, [&]<class T>() {
    LinesOf<T> p{.x = x.as<const T>(),
                 .y = y.as<int64_t>(),
                 .parts = nullptr,
                 .beside = walk_of<2>({&of_y, &of_x}),
                 .lines = y.size(),
                 .n = x.shape()[dim],
                 .along = x.strides()[dim],
                 .group_size = gpu::warp_size,
                 .part_count = 1,
                 .largest = op == Reduce::Max};
    if (p.along != 1 && of_x.strides[-1] == 1 && p.lines >= 32)
      p.group_size = 1;
    else if (p.n > 1024)
      p.group_size = sort_threads;
    const int64_t blocks = ceil_div(p.lines * p.group_size, sort_threads);
    // Too few lines to fill the device are cut into parts.
    p.part_count = gpu::parts_for(launch, blocks, p.n / 1024);
    if (p.part_count > 1) p.parts = launch.scratch<Winner>(p.lines * p.part_count);
    gpu::launch({"find_winners",
                 {unsigned(blocks), unsigned(p.part_count), 1},
                 {sort_threads, 1, 1},
                 ThreadGroup::shared_bytes},
                launch.stream, find_winners<T>, p);
    if (p.parts)
      gpu::launch({"join_winners", {unsigned(ceil_div(p.lines, 8)), 1, 1}, {256, 1, 1}},
                  launch.stream, join_winners, static_cast<const Winner*>(p.parts), p.part_count,
                  p.lines, p.beside, p.y);
  });
}

}  // namespace mixtape::kernels::cuda
