#pragma once
// Sums over all but one dimension: for each column of [rows, n], for each channel of [n, c, inner].
// Each block sums one part of the data; a second kernel joins the parts in order. A functor F
// defines the sums: their type F::V, at(row, column) for the constants there, add(constants, sums,
// x, dy) for some elements, and finish(column, sums).

#include "kernels/cuda/rows.cuh"

namespace mixtape::kernels::cuda {

// Joins the sums of 8 threads in a column, for each of `columns`, through shared memory [8,
// columns], and calls done(column, sum). All of the block's 32 x 8 threads must call it.
inline constexpr int threads_down = 8;
template <int columns, class V, class Done>
__device__ void join_columns(V (&sums)[columns / 32], Done done) {
  const gpu::Shared<V> all = gpu::shared_memory<V>();
  const int x = int(gpu::thread().x), y = int(gpu::thread().y);
#pragma unroll
  for (int i = 0; i < columns / 32; ++i) all[y * columns + x * (columns / 32) + i] = sums[i];
  gpu::sync_block();
  const int column = y * 32 + x;
  if (column >= columns) return;
  V sum = all[column];
  for (int d = 1; d < threads_down; ++d) sum = V::joined(sum, V(all[d * columns + column]));
  done(column, sum);
}

// parts[part, column] of x and dy [rows, n]. Grid: columns, parts.
template <int width, class F, class S, class D>
__global__ void sum_columns(F f, int64_t rows, int64_t n, const S* x, const D* dy,
                            typename F::V* parts) {
  const int64_t part = gpu::block().y, all = gpu::grid_size().y;
  const int64_t begin = int64_t(gpu::block().x) * 32 * width,
                column = begin + int(gpu::thread().x) * width;
  typename F::V sums[width];
  if (column < n) {
    const int64_t end = rows * (part + 1) / all;
#pragma unroll 4
    for (int64_t r = rows * part / all + int(gpu::thread().y); r < end; r += threads_down) {
      S v[width];
      D g[width];
      load_vec(x + r * n + column, true, v);
      load_vec(dy + r * n + column, true, g);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const S one[1] = {v[i]};
        const D gradient[1] = {g[i]};
        f.add(f.at(r, column + i), sums[i], one, gradient);
      }
    }
  }
  join_columns<32 * width>(sums, [&](int i, const typename F::V& sum) {
    if (begin + i < n) parts[part * n + begin + i] = sum;
  });
}

// Planes of `inner` elements of [n, c, inner], cut into chunks, each for a group of threads.
struct Chunks {
  int64_t n, c, inner, length, per_plane;
  int group_size;
};
// parts[part, channel] of x and dy [n, c, inner]. Grid: channels, parts.
template <class F, class S, class D>
__global__ void sum_channels(F f, Chunks z, const S* x, const D* dy, typename F::V* parts) {
  const ThreadGroup group(z.group_size);
  ThreadGroup block(int(gpu::block_size().x));
  const int64_t c = gpu::block().x, part = gpu::block().y, all = gpu::grid_size().y;
  const int64_t end = z.n * z.per_plane * (part + 1) / all;
  const auto constants = f.at(0, c);
  typename F::V sum;
  for (int64_t i = z.n * z.per_plane * part / all + block.index / group.size; i < end;
       i += block.size / group.size) {
    const int64_t image = quotient(i, z.per_plane), from = (i - image * z.per_plane) * z.length;
    const GroupRow<Packing<S, S, D>> row(group, (image * z.c + c) * z.inner + from,
                                         std::min(z.length, z.inner - from));
    auto xs = row.load(x);
    auto dys = row.load(dy);
    row.for_each(
        [&]<int n>(int64_t, const S(&v)[n], const D(&g)[n]) { f.add(constants, sum, v, g); }, xs,
        dys);
  }
  sum = joined(block, sum);
  if (block.index == 0) parts[part * z.c + c] = sum;
}

// Joins [parts, columns]. The sums themselves go to `total`, if it is not null.
template <class F>
__global__ void join_parts(F f, int64_t count, int64_t columns, const typename F::V* parts,
                           typename F::V* total) {
  const int64_t begin = int64_t(gpu::block().x) * 32, column = begin + int(gpu::thread().x);
  typename F::V sum[1];
  if (column < columns) {
#pragma unroll 4
    for (int64_t p = gpu::thread().y; p < count; p += threads_down)
      sum[0] = F::V::joined(sum[0], parts[p * columns + column]);
  }
  join_columns<32>(sum, [&](int i, const typename F::V& all) {
    if (begin + i >= columns) return;
    f.finish(begin + i, all);
    if (total) total[begin + i] = all;
  });
}
template <class F>
void finish(Launch& launch, F f, int64_t parts, int64_t columns, const typename F::V* sums,
            typename F::V* total = nullptr) {
  if (columns == 0) return;
  gpu::launch({"join_parts",
               {unsigned(ceil_div(columns, 32)), 1, 1},
               {32, threads_down, 1},
               32 * threads_down * sizeof(typename F::V)},
              launch.stream, join_parts<F>, f, parts, columns, sums, total);
}

template <int width, class F, class S, class D>
void over_columns(Launch& launch, F f, int64_t rows, int64_t n, const S* x, const D* dy,
                  typename F::V* total) {
  const int64_t blocks = ceil_div(n, 32 * width);
  const int parts = gpu::parts_for(launch, blocks, rows / (4 * threads_down));
  auto* const sums = launch.scratch<typename F::V>(parts * n);
  gpu::launch({"sum_columns",
               {unsigned(blocks), unsigned(parts), 1},
               {32, threads_down, 1},
               32 * width * threads_down * sizeof(typename F::V)},
              launch.stream, sum_columns<width, F, S, D>, f, rows, n, x, dy, sums);
  finish(launch, f, parts, n, sums, total);
}
// Applies f to each column of x and dy [rows, n].
template <class F, class S, class D>
void columns(Launch& launch, F f, int64_t rows, int64_t n, const S* x, const D* dy,
             typename F::V* total = nullptr) {
  constexpr int width = 4;
  if (n == 0) return;
  if (n % width == 0 && is_aligned<width>(x) && is_aligned<width>(dy))
    over_columns<width>(launch, f, rows, n, x, dy, total);
  else
    over_columns<1>(launch, f, rows, n, x, dy, total);
}

// Sums over each channel of x and dy [n, c, inner], in at most `most` parts; returns their number.
template <class F, class S, class D>
int channel_parts(Launch& launch, F f, int64_t n, int64_t c, int64_t inner, const S* x, const D* dy,
                  int most, typename F::V*& sums) {
  using P = Packing<S, S, D>;
  Chunks z{n, c, inner, std::min<int64_t>(inner, gpu::warp_size * P::width * P::packs), 0, 1};
  if (inner > 0) z.per_plane = ceil_div(inner, z.length);
  z.group_size = group_size_for<P>(z.length);
  const int64_t all = n * z.per_plane, enough = 256 / z.group_size;
  const int parts = std::min(most, gpu::parts_for(launch, c, all / (4 * enough)));
  const int threads = all >= enough ? 256 : std::max(32, int(all) * z.group_size / 32 * 32);
  sums = launch.scratch<typename F::V>(parts * c);
  gpu::launch({"sum_channels",
               {unsigned(c), unsigned(parts), 1},
               {unsigned(threads), 1, 1},
               ThreadGroup::shared_bytes},
              launch.stream, sum_channels<F, S, D>, f, z, x, dy, sums);
  return parts;
}
// Applies f to each channel of x and dy [n, c, inner].
template <class F, class S, class D>
void channels(Launch& launch, F f, int64_t n, int64_t c, int64_t inner, const S* x, const D* dy,
              typename F::V* total = nullptr) {
  if (c == 0) return;
  if (inner == 1) return columns(launch, f, n, c, x, dy, total);
  typename F::V* sums;
  const int parts = channel_parts(launch, f, n, c, inner, x, dy, 1024, sums);
  finish(launch, f, parts, c, sums, total);
}

// --- sums of the gradients of norms: dw = sum(dy h) and db = sum(dy), with h = (x - mean) rstd ---

template <class T>
struct NormSums {
  using V = Sums<T, 2>;
  const T *mean, *rstd;  // an absent mean is 0
  bool by_row;           // statistics are of rows, else of columns_each columns
  int64_t columns_each;
  Parameter<T> dw, db;

  using Constants = StandardScore<T>;
  __device__ Constants at(int64_t row, int64_t column) const {
    const int64_t i = by_row ? row : columns_each == 1 ? column : quotient(column, columns_each);
    return {mean ? mean[i] : T(0), rstd[i]};
  }
  template <class S, class D, int n>
  __device__ void add(const Constants& k, V& sums, const S (&x)[n], const D (&dy)[n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const T g = gpu::widen(dy[i]);
      sums.v[0] += g * k(gpu::widen(x[i]));
      sums.v[1] += g;
    }
  }
  __device__ void finish(int64_t column, const V& sums) const {
    if (dw) dw.set(column, sums.v[0]);
    if (db) db.set(column, sums.v[1]);
  }
};
// NormSums over each channel of x and dy [n, c, ...], with a mean and rstd of each; the sums
// themselves go to `total`, if it is not null. (In norm.cu, which has their kernels.)
void norm_sums(Launch& launch, In x, In dy, In mean, In rstd, Out dw, Out db, void* total);

}  // namespace mixtape::kernels::cuda
