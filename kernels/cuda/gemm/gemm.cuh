#pragma once
// Matrix products with their epilogues (kernels/common/epilogue.h). On tensor cores f16, bf16 or
// TF32 operands with f32 sums; f32 and f64 operands in exact arithmetic, at the end of this file.
//
// A block computes one tile of c. It copies slices of a and b through shared memory in a ring of
// `stages` (cp.async), and each warp multiplies 64 x 64 or 32 x 32 of the tile in 16 x 16
// fragments. Rows in shared memory are padded, which keeps fragment loads free of bank conflicts.
// Edges are filled with zeros. Operands are row- or column-major; rows that do not begin at
// multiples of 16 bytes are copied element by element. Large k and few tiles: k is split, parts go
// to an f32 workspace and are added in order by a second kernel, so results do not depend on
// scheduling.

#include "core/dtype.h"
#include "core/layout.h"
#include "kernels/common/activation.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/rows.cuh"

namespace mixtape::kernels::cuda {

using gpu::Shared;

// Where one problem of a batch begins: batch index i counts through `size`, last dimension fastest.
struct BatchOffsets {
  int rank = 0;
  int64_t size[max_rank - 2] = {}, a[max_rank - 2] = {}, b[max_rank - 2] = {}, c[max_rank - 2] = {};

  struct At {
    int64_t a, b, c;
  };
  __device__ At find(int64_t index) const {
    At at{0, 0, 0};
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t i = index % size[d];
      index /= size[d];
      at.a += i * a[d];
      at.b += i * b[d];
      at.c += i * c[d];
    }
    return at;
  }
};

// Four neighbours in a row of c.
template <class A>
struct Vec4 {
  int64_t row, column;
  A v[4];
};
template <class B>
constexpr bool packs = sizeof(B) <= 4;  // four of them are loaded and stored at once

// What is added to sums before they are rounded: any float dtype, `down` apart from row to row.
struct Bias {
  const void* data = nullptr;
  DType dtype = f32;
  int64_t down = 0, right = 0;
  bool fast = false;  // accesses of four neighbours are aligned

  // Loads all before it adds, so that loads are in flight together.
  template <class A, int n>
  __device__ __forceinline__ void add_to(Vec4<A> (&q)[n], int64_t m, int64_t columns) const {
    const auto add = [&](auto* from) {
      using B = std::remove_const_t<std::remove_pointer_t<decltype(from)>>;
      B loaded[n][4];
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const int64_t left = q[i].row < m ? columns - q[i].column : 0;
        const B* const p = from + q[i].row * down + q[i].column * right;
        if constexpr (packs<B>) {
          if (fast && left >= 4) {
            const auto pack = gpu::load_as<gpu::Pack<B, 4>>(p);
#pragma unroll
            for (int e = 0; e < 4; ++e) loaded[i][e] = pack.v[e];
            continue;
          }
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) loaded[i][e] = e < left ? p[e * right] : B(0.0f);
      }
#pragma unroll
      for (int i = 0; i < n; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) q[i].v[e] += A(gpu::widen(loaded[i][e]));
    };
    switch (dtype) {
      case f64:
        return add(static_cast<const double*>(data));
      case f16:
        return add(static_cast<const Half*>(data));
      case bf16:
        return add(static_cast<const BFloat16*>(data));
      default:
        return add(static_cast<const float*>(data));
    }
  }
};

// One product or a batch of them. c is by rows: of T, or of its sums' type if `wide`, as parts are.
template <class T>
struct Gemm {
  const T* a;
  const T* b;
  Bias bias;
  Activation activation;
  void *before, *c;
  gpu::math_t<T>* row_sums;  // [m], of parts [split, m]
  bool wide;
  int64_t m, n, k;
  int64_t a_down, a_right, b_down, b_right;  // strides between rows and between columns
  int64_t ldc;
  int split;
  int64_t split_stride;         // between the parts in c, if split > 1
  bool fast_a, fast_b, fast_c;  // 16-byte accesses are aligned
  BatchOffsets batch;
  int64_t first;  // the block's z counts the batch from here
};

// Sums to c, by way of the epilogue.
template <class T, class A, int n>
__device__ __forceinline__ void finish(const Gemm<T>& g, int64_t offset, Vec4<A> (&q)[n]) {
  if (g.bias.data) g.bias.add_to(q, g.m, g.n);
  const auto store_as = [&](auto* c) {
    using O = std::remove_pointer_t<decltype(c)>;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const int64_t left = q[i].row < g.m ? g.n - q[i].column : 0;
      O* const to = c + offset + q[i].row * g.ldc + q[i].column;
      gpu::Pack<O, 4> pack;
#pragma unroll
      for (int e = 0; e < 4; ++e) pack.v[e] = gpu::narrow<O>(q[i].v[e]);
      if (packs<O> && g.fast_c && left >= 4) {
        gpu::store_as(to, pack);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (e < left) to[e] = pack.v[e];
      }
    }
  };
  const auto store = [&](void* c) {
    if (g.wide)
      store_as(static_cast<A*>(c));
    else
      store_as(static_cast<T*>(c));
  };
  if (g.before) store(g.before);
  visit_activation(g.activation, [&]<class F>() {
#pragma unroll
    for (int i = 0; i < n; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) q[i].v[e] = F::f(q[i].v[e]);
  });
  store(g.c);
}

namespace detail {

constexpr int stages = 3;
constexpr int stage_padding = 8;  // of the epilogue's rows, in floats
// What one step advances k by, and how many of it one fragment takes.
template <class T>
constexpr int k_step = 64 / int(sizeof(T));
template <class T>
constexpr int k_fragment = sizeof(T) == 4 ? 8 : 16;
// An operand's slice in shared memory: `lines` dense runs of `length`, so far apart.
template <class T>
constexpr int smem_stride(int length) {
  return length + (sizeof(T) == 4 && length > k_step<T> ? 8 : 16 / int(sizeof(T)));
}
template <class T>
constexpr int slice_elements(int lines, int length) {
  return lines * smem_stride<T>(length);
}

// Copies lines [line, line + lines) x elements [at, at + length) of a matrix whose lines are ld
// apart.
template <class T, int lines, int length, int threads>
__device__ __forceinline__ void load_tile_async(Shared<T> to, const T* from, int64_t ld,
                                                int64_t line, int64_t at, int64_t line_end,
                                                int64_t end, bool fast) {
  constexpr int chunk = 16 / int(sizeof(T)), chunks = length / chunk;
  for (int i = int(gpu::thread().x); i < lines * chunks; i += threads) {
    const int l = i / chunks, e = i % chunks * chunk;
    const int64_t left = line + l < line_end ? end - at - e : 0;
    const int valid = left <= 0 ? 0 : left >= chunk ? chunk : int(left);
    const Shared<T> target = to + (l * smem_stride<T>(length) + e);
    const T* const source = valid > 0 ? from + (line + l) * ld + at + e : from;
    if (fast) {
      gpu::copy_async<T>(target, source, valid * int(sizeof(T)));
    } else {
      for (int j = 0; j < chunk; ++j) target[j] = j < valid ? source[j] : T(0.0f);
    }
  }
}

// Sums over k of the slices of a: 16 bytes at a time, so that threads share a row in `groups`,
// whose sums are added in order at the end.
template <class T, bool by_rows, int lines, int length, int threads>
struct RowSums {
  static constexpr int chunk = 16 / int(sizeof(T)), chunks = length / chunk;
  static constexpr int loads = lines * chunks / threads, rows = by_rows ? lines : length;
  static constexpr int groups = by_rows ? chunks : threads / chunks;
  static_assert(lines * chunks % threads == 0 && threads % chunks == 0 && threads >= rows);
  float sum[by_rows ? loads : chunk] = {};

  __device__ __forceinline__ void add(Shared<T> slice) {
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const int at = i * threads + int(gpu::thread().x);
      const auto pack = gpu::load_as<gpu::Pack<T, chunk>>(
          slice + (at / chunks * smem_stride<T>(length) + at % chunks * chunk));
#pragma unroll
      for (int e = 0; e < chunk; ++e) sum[by_rows ? i : e] += gpu::widen(pack.v[e]);
    }
  }
  // For `count` rows from `out` on; begins and ends with all threads together.
  __device__ __forceinline__ void store(float* out, int64_t count) const {
    const Shared<float> all = gpu::shared_memory<float>();
    const int id = int(gpu::thread().x);
#pragma unroll
    for (int i = 0; i < (by_rows ? loads : chunk); ++i) {
      const int group = by_rows ? id % chunks : id / chunks;
      all[group * rows + (by_rows ? (i * threads + id) / chunks : id % chunks * chunk + i)] =
          sum[i];
    }
    gpu::sync_block();
    if (id < rows && id < count) {
      float total = 0;
      for (int group = 0; group < groups; ++group) total += float(all[group * rows + id]);
      out[id] = total;
    }
    gpu::sync_block();
  }
};

// 16 lines of an operand, 32 bytes deep, from the first one on; they are dense along k, or along
// the other dimension.
template <class T, bool along_k>
__device__ __forceinline__ gpu::Fragment load_fragment(Shared<T> slice, int step) {
  const int lane = gpu::lane();
  gpu::Fragment f;
  if constexpr (along_k) {
    f = gpu::load_matrices<false>(slice + (lane % 16 * step + lane / 16 * (16 / int(sizeof(T)))));
  } else if constexpr (sizeof(T) == 2) {
    f = gpu::load_matrices<true>(slice + ((lane % 8 + lane / 16 * 8) * step + lane / 8 % 2 * 8));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f.part[i] = std::bit_cast<uint32_t>(
          float(slice[(lane % 4 + i / 2 * 4) * step + lane / 4 + i % 2 * 8]));
  }
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (uint32_t& part : f.part) part = gpu::rounded_to_tf32(std::bit_cast<float>(part));
  }
  return f;
}

}  // namespace detail

// Dynamic shared memory of a block: the ring, or the staging tiles of the epilogue, which come
// after it.
template <class T>
constexpr size_t gemm_shared_bytes(const Tile& t, bool a_by_rows, bool b_by_rows) {
  using namespace detail;
  const int a = a_by_rows ? slice_elements<T>(t.m, k_step<T>) : slice_elements<T>(k_step<T>, t.m);
  const int b = b_by_rows ? slice_elements<T>(k_step<T>, t.n) : slice_elements<T>(t.n, k_step<T>);
  const size_t ring = size_t(stages) * size_t(a + b) * sizeof(T);
  const size_t staging =
      size_t(t.threads() / 32) * 16 * size_t(t.warp_n + stage_padding) * sizeof(float);
  return ring > staging ? ring : staging;
}

// Grid: x tiles of c (grouped so that neighbours share operands in the cache), y parts of k, z
// batch.
template <class T, bool a_by_rows, bool b_by_rows, int tile>
__global__ void __launch_bounds__(tiles[tile].threads(), 1) gemm_tensor(Gemm<T> g) {
  using namespace detail;
  constexpr Tile t = tiles[tile];
  constexpr int threads = t.threads(), bk = k_step<T>, kf = k_fragment<T>;
  constexpr int a_lines = a_by_rows ? t.m : bk, a_length = a_by_rows ? bk : t.m;
  constexpr int b_lines = b_by_rows ? bk : t.n, b_length = b_by_rows ? t.n : bk;
  constexpr int a_size = slice_elements<T>(a_lines, a_length),
                b_size = slice_elements<T>(b_lines, b_length);
  constexpr int la = smem_stride<T>(a_length), lb = smem_stride<T>(b_length);
  const Shared<T> ring = gpu::shared_memory<T>();

  // Tiles in bands of eight rows: the tiles in flight then use few rows of a and few columns of b.
  const int64_t down = ceil_div(g.m, t.m), across = ceil_div(g.n, t.n),
                id = int64_t(gpu::block().x);
  constexpr int64_t band = 8;
  const int64_t first = id / (band * across) * band;
  const int64_t height = down - first < band ? down - first : band;
  const int64_t m0 = (first + id % (band * across) % height) * t.m,
                n0 = id % (band * across) / height * t.n;

  const auto at = g.batch.find(g.first + int64_t(gpu::block().z));
  const T *const a = g.a + at.a, *const b = g.b + at.b;
  const int64_t lda = a_by_rows ? g.a_down : g.a_right, ldb = b_by_rows ? g.b_down : g.b_right;

  // This block's part of k, in whole steps.
  const int64_t steps_in_all = ceil_div(g.k, bk), part = int64_t(gpu::block().y);
  const int64_t begin = steps_in_all * part / g.split, end = steps_in_all * (part + 1) / g.split;
  const int64_t steps = end - begin;

  const auto fetch = [&](int64_t step) {
    if (step < steps) {
      const int64_t k0 = (begin + step) * bk;
      const Shared<T> to_a = ring + step % stages * (a_size + b_size), to_b = to_a + a_size;
      if constexpr (a_by_rows)
        load_tile_async<T, a_lines, a_length, threads>(to_a, a, lda, m0, k0, g.m, g.k, g.fast_a);
      else
        load_tile_async<T, a_lines, a_length, threads>(to_a, a, lda, k0, m0, g.k, g.m, g.fast_a);
      if constexpr (b_by_rows)
        load_tile_async<T, b_lines, b_length, threads>(to_b, b, ldb, k0, n0, g.k, g.n, g.fast_b);
      else
        load_tile_async<T, b_lines, b_length, threads>(to_b, b, ldb, n0, k0, g.n, g.k, g.fast_b);
    }
    gpu::copy_commit();
  };

  constexpr int warps_across = t.n / t.warp_n, rows = t.warp_m / 16, columns = t.warp_n / 16;
  const int warp = int(gpu::thread().x) / 32;
  const int wm = warp / warps_across * t.warp_m, wn = warp % warps_across * t.warp_n;
  float sum[rows][columns][2][4] = {};

  RowSums<T, a_by_rows, a_lines, a_length, threads> row_sums;
  const bool sums_rows = g.row_sums && n0 == 0;

  for (int s = 0; s < stages - 1; ++s) fetch(s);
  for (int64_t step = 0; step < steps; ++step) {
    gpu::copy_wait<stages - 2>();
    gpu::sync_block();  // all have finished with the slot that is fetched next
    fetch(step + stages - 1);
    const Shared<T> as = ring + step % stages * (a_size + b_size), bs = as + a_size;
    if (sums_rows) row_sums.add(as);
#pragma unroll(sizeof(T) == 4 ? 1 : 2)  // (TF32 fragments of two steps do not fit in registers)
    for (int k = 0; k < bk; k += kf) {
      gpu::Fragment fa[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i)
        fa[i] = load_fragment<T, a_by_rows>(
            as + (a_by_rows ? (wm + i * 16) * la + k : k * la + wm + i * 16), la);
#pragma unroll
      for (int j = 0; j < columns; ++j) {  // one at a time: sums take half of the registers
        const gpu::Fragment fb = load_fragment<T, !b_by_rows>(
            bs + (b_by_rows ? k * lb + wn + j * 16 : (wn + j * 16) * lb + k), lb);
#pragma unroll
        for (int i = 0; i < rows; ++i) gpu::multiply<T>(sum[i][j], fa[i], fb);
      }
    }
  }
  gpu::copy_wait<0>();
  gpu::sync_block();

  if (sums_rows) row_sums.store(g.row_sums + part * g.m + m0, g.m - m0);

  // So that neighbours are written side by side, 16 rows of a warp at a time go through shared
  // memory.
  constexpr int ld = t.warp_n + stage_padding, quads = t.warp_n / 4, together = 4;
  const Shared<float> stage = gpu::shared_memory<float>(size_t(warp) * 16 * ld * sizeof(float));
  const int64_t offset = at.c + part * g.split_stride;
#pragma unroll 1  // one text of what follows, for all rows
  for (int i = 0; i < rows; ++i) {
#pragma unroll
    for (int r = 0; r < rows; ++r)  // (registers have no index)
      if (r == i) {
#pragma unroll
        for (int j = 0; j < columns; ++j)
#pragma unroll
          for (int e = 0; e < 8; e += 2) {
            const auto& of_half = sum[r][j][e / 4];
            const int down = gpu::lane() / 4 + e % 4 / 2 * 8,
                      right = j * 16 + e / 4 * 8 + gpu::lane() % 4 * 2;
            gpu::store_as(stage + (down * ld + right),
                          gpu::Pack<float, 2>{{of_half[e % 4], of_half[e % 4 + 1]}});
          }
      }
    gpu::sync_warp();  // a lane reads what others stored
#pragma unroll 1
    for (int first_of_lane = gpu::lane(); first_of_lane < 16 * quads;
         first_of_lane += together * 32) {
      Vec4<float> q[together];
#pragma unroll
      for (int x = 0; x < together; ++x) {
        const int number = first_of_lane + x * 32, r = number / quads, e = number % quads * 4;
        const auto four = gpu::load_as<gpu::Pack<float, 4>>(stage + (r * ld + e));
        q[x] = {m0 + wm + i * 16 + r, n0 + wn + e, {four.v[0], four.v[1], four.v[2], four.v[3]}};
      }
      finish(g, offset, q);
    }
    gpu::sync_warp();
  }
}

// The sum over parts [split, batch, m, n] in order, four elements of a row per thread, and that of
// row sums [split, m].
template <class T, class A>
__global__ void gemm_add_parts(const A* parts, const A* row_parts, int split, Gemm<T> g,
                               int64_t batches) {
  const int64_t across = ceil_div(g.n, 4), quads = batches * g.m * across;
  const int64_t all = gpu::all_threads();
  for (int64_t i = gpu::global_thread(); i < quads; i += all) {
    const int64_t index = i / across / g.m;
    Vec4<A> q[1] = {{i / across % g.m, i % across * 4, {}}};
    const A* const p = parts + (index * g.m + q[0].row) * g.n + q[0].column;
#pragma unroll 4
    for (int s = 0; s < split; ++s) {
      const A* const from = p + s * batches * g.m * g.n;
      A v[4];
      if (g.n % 4 == 0)
        load_run(from, true, v);
      else
        for (int e = 0; e < 4; ++e) v[e] = q[0].column + e < g.n ? from[e] : A(0);
#pragma unroll
      for (int e = 0; e < 4; ++e) q[0].v[e] += v[e];
    }
    finish(g, g.batch.find(index).c, q);
  }
  if (!g.row_sums) return;
  for (int64_t i = gpu::global_thread(); i < g.m; i += all) {
    A total = 0;
    for (int s = 0; s < split; ++s) total += row_parts[s * g.m + i];
    g.row_sums[i] = total;
  }
}

// --- exact arithmetic: f32 or f64 operands of any strides ---

template <class T>
constexpr int exact_step = 64 / int(sizeof(T));  // what a step advances k by
template <class T>
constexpr size_t exact_shared_bytes(const Tile& t) {
  return 2 * size_t(exact_step<T>) * size_t(t.m + 4 + t.n + 4) * sizeof(T);
}

// A block of 256 threads computes a tile of c, each thread m/16 x n/16 of it in groups of four.
// Slices of a and b go through registers to two turns of shared memory, lines of k, so that a
// thread reads four neighbours at once. Grid as gemm_tensor's.
template <class T, int tile>
__global__ void __launch_bounds__(256) gemm_exact(Gemm<T> g) {
  constexpr Tile t = tiles[tile];
  constexpr int bk = exact_step<T>, la = t.m + 4, lb = t.n + 4, turn = bk * (la + lb);
  constexpr int loads_a = t.m * bk / 256, loads_b = t.n * bk / 256;
  constexpr int rows = t.m / 64, columns = t.n / 64;  // groups of four per thread
  const Shared<T> shared = gpu::shared_memory<T>();
  const int id = int(gpu::thread().x), down = id / 16 * 4, right = id % 16 * 4;

  const int64_t across = ceil_div(g.n, t.n);
  const int64_t m0 = gpu::block().x / across * t.m, n0 = gpu::block().x % across * t.n;
  const auto at = g.batch.find(g.first + int64_t(gpu::block().z));
  const T *const a = g.a + at.a, *const b = g.b + at.b;
  const int64_t steps_in_all = ceil_div(g.k, bk), part = int64_t(gpu::block().y);
  const int64_t begin = steps_in_all * part / g.split, end = steps_in_all * (part + 1) / g.split;

  // Neighbouring threads load along the dense dimension of their operand.
  const bool a_along_k = g.a_right == 1, b_along_k = g.b_down == 1 && g.b_right != 1;
  const auto place = [&](int i, int lines, bool along_k, int& line, int& k) {
    const int e = i * 256 + id;
    line = along_k ? e / bk : e % lines;
    k = along_k ? e % bk : e / lines;
  };
  T next_a[loads_a], next_b[loads_b];
  const auto fetch = [&](int64_t step) {
#pragma unroll
    for (int i = 0; i < loads_a; ++i) {
      int line, k;
      place(i, t.m, a_along_k, line, k);
      const int64_t row = m0 + line, depth = step * bk + k;
      next_a[i] = row < g.m && depth < g.k ? a[row * g.a_down + depth * g.a_right] : T(0);
    }
#pragma unroll
    for (int i = 0; i < loads_b; ++i) {
      int line, k;
      place(i, t.n, b_along_k, line, k);
      const int64_t column = n0 + line, depth = step * bk + k;
      next_b[i] = column < g.n && depth < g.k ? b[depth * g.b_down + column * g.b_right] : T(0);
    }
  };
  const auto put = [&](int which) {
    const Shared<T> as = shared + which * turn, bs = as + bk * la;
#pragma unroll
    for (int i = 0; i < loads_a; ++i) {
      int line, k;
      place(i, t.m, a_along_k, line, k);
      as[k * la + line] = next_a[i];
    }
#pragma unroll
    for (int i = 0; i < loads_b; ++i) {
      int line, k;
      place(i, t.n, b_along_k, line, k);
      bs[k * lb + line] = next_b[i];
    }
  };

  T sum[rows][4][columns][4] = {}, row_sum = 0;
  const bool sums_rows = g.row_sums && n0 == 0 && id < t.m;
  if (begin < end) {
    fetch(begin);
    put(0);
  }
  for (int64_t step = begin; step < end; ++step) {
    gpu::sync_block();
    const int which = int((step - begin) & 1);
    if (step + 1 < end) fetch(step + 1);
    const Shared<T> as = shared + which * turn, bs = as + bk * la;
    if (sums_rows)
      for (int k = 0; k < bk; ++k) row_sum += as[k * la + id];
#pragma unroll
    for (int k = 0; k < bk; ++k) {
      T x[rows][4], y[columns][4];
#pragma unroll
      for (int i = 0; i < rows; ++i) load_run(as + (k * la + i * 64 + down), true, x[i]);
#pragma unroll
      for (int j = 0; j < columns; ++j) load_run(bs + (k * lb + j * 64 + right), true, y[j]);
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int p = 0; p < 4; ++p)
#pragma unroll
          for (int j = 0; j < columns; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) sum[i][p][j][q] += x[i][p] * y[j][q];
    }
    if (step + 1 < end) put(1 - which);
  }
  if (sums_rows && m0 + id < g.m) g.row_sums[part * g.m + m0 + id] = row_sum;
#pragma unroll 1  // as in gemm_tensor
  for (int line = 0; line < rows * 4; ++line) {
    Vec4<T> q[columns];
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int p = 0; p < 4; ++p)
        if (i * 4 + p == line) {
#pragma unroll
          for (int j = 0; j < columns; ++j) {
            q[j].row = m0 + i * 64 + down + p;
            q[j].column = n0 + j * 64 + right;
#pragma unroll
            for (int e = 0; e < 4; ++e) q[j].v[e] = sum[i][p][j][e];
          }
        }
    finish(g, at.c + part * g.split_stride, q);
  }
}

}  // namespace mixtape::kernels::cuda
