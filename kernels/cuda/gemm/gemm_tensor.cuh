#pragma once
// Matrix products on tensor cores: f16, bf16 or TF32 operands, f32 sums. A block copies slices of a
// and b through a ring of `stages` in shared memory (cp.async), in padded rows, which avoid bank
// conflicts, with zeros beyond edges. Each of its warps multiplies 64 x 64 or 32 x 32 of a tile of
// c in 16 x 16 fragments. Rows that do not begin at multiples of 16 bytes are copied by elements.

#include "kernels/cuda/gemm/gemm.cuh"

namespace mixtape::kernels::cuda {

namespace detail {

constexpr int stages = 3;           // of the ring: 2 copies are in flight during a step
constexpr int staging_padding = 8;  // of the epilogue's rows, in floats: no bank conflicts
constexpr int band_height = 8;      // in tiles; see tile_origin()
// The depth along k of a step, and of a fragment.
template <class T>
constexpr int k_step = 64 / int(sizeof(T));
template <class T>
constexpr int k_fragment = sizeof(T) == 4 ? 8 : 16;
// The distance between lines of `length` elements in shared memory: padded against bank conflicts.
template <class T>
constexpr int smem_stride(int length) {
  return length + (sizeof(T) == 4 && length > k_step<T> ? 8 : 16 / int(sizeof(T)));
}
template <class T>
constexpr int slice_elements(int lines, int length) {
  return lines * smem_stride<T>(length);
}

// Copies lines [line, line + lines) x elements [at, at + length) of a matrix whose lines are ld
// apart to shared memory, and zeros for what lies beyond line_end and end.
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

// Sums of a over k, slice by slice. A thread reads 16 bytes at a time; `groups` of threads share a
// row, and their sums are added in order at the end.
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
  // Stores the sums of the first `count` rows. All threads of the block call it, between barriers.
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

// Loads a fragment: 16 lines of an operand, 32 bytes deep, dense along k or the other dimension.
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

// The constants and steps of one kernel. a_by_rows, b_by_rows: the operand is row-major, else
// column-major.
template <class T, bool a_by_rows, bool b_by_rows, int tile>
struct TensorTile {
  static constexpr Tile t = tiles[tile];
  static constexpr int threads = t.threads(), bk = k_step<T>;
  // Slices of a and b in shared memory.
  static constexpr int a_lines = a_by_rows ? t.m : bk, a_length = a_by_rows ? bk : t.m;
  static constexpr int b_lines = b_by_rows ? bk : t.n, b_length = b_by_rows ? t.n : bk;
  static constexpr int a_size = slice_elements<T>(a_lines, a_length),
                       b_size = slice_elements<T>(b_lines, b_length), stage = a_size + b_size;
  // Fragments of a warp's tile of c, and the sums that a lane holds of them.
  static constexpr int rows = t.warp_m / 16, columns = t.warp_n / 16;
  using WarpSums = float[rows][columns][2][4];

  // Starts copies of step `step` of k, at k0, to its stage of the ring.
  static __device__ __forceinline__ void load_stage(Shared<T> ring, const Gemm<T>& g, const T* a,
                                                    const T* b, int64_t m0, int64_t n0,
                                                    int64_t step, int64_t k0) {
    const Shared<T> to_a = ring + step % stages * stage, to_b = to_a + a_size;
    const int64_t lda = a_by_rows ? g.a_down : g.a_right, ldb = b_by_rows ? g.b_down : g.b_right;
    if constexpr (a_by_rows)
      load_tile_async<T, a_lines, a_length, threads>(to_a, a, lda, m0, k0, g.m, g.k, g.fast_a);
    else
      load_tile_async<T, a_lines, a_length, threads>(to_a, a, lda, k0, m0, g.k, g.m, g.fast_a);
    if constexpr (b_by_rows)
      load_tile_async<T, b_lines, b_length, threads>(to_b, b, ldb, k0, n0, g.k, g.n, g.fast_b);
    else
      load_tile_async<T, b_lines, b_length, threads>(to_b, b, ldb, n0, k0, g.n, g.k, g.fast_b);
  }

  // sum += a slice of a times one of b, for the warp's tile at (wm, wn) of the block's.
  static __device__ __forceinline__ void multiply_slices(Shared<T> as, Shared<T> bs, int wm, int wn,
                                                         WarpSums& sum) {
    constexpr int la = smem_stride<T>(a_length), lb = smem_stride<T>(b_length);
#pragma unroll(sizeof(T) == 4 ? 1 : 2)  // (TF32 fragments of two steps do not fit in registers)
    for (int k = 0; k < bk; k += k_fragment<T>) {
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

  // Stores a warp's tile of c, whose first element is (m0, n0): 16 rows at a time go through shared
  // memory, so that neighbours are written together.
  static __device__ __forceinline__ void store_tile(const Gemm<T>& g, int64_t offset, int64_t m0,
                                                    int64_t n0, int warp, const WarpSums& sum) {
    constexpr int ld = t.warp_n + staging_padding, vecs = t.warp_n / 4, in_flight = 4;
    const Shared<float> staging = gpu::shared_memory<float>(size_t(warp) * 16 * ld * sizeof(float));
#pragma unroll 1  // one copy of the code below for all rows
    for (int i = 0; i < rows; ++i) {
#pragma unroll
      for (int r = 0; r < rows; ++r)  // (registers cannot be indexed)
        if (r == i) stage_row(sum[r], staging);
      gpu::sync_warp();  // a lane reads what others stored
#pragma unroll 1
      for (int first = gpu::lane(); first < 16 * vecs; first += in_flight * 32) {
        Vec4<float> q[in_flight];
#pragma unroll
        for (int x = 0; x < in_flight; ++x) {
          const int number = first + x * 32, r = number / vecs, e = number % vecs * 4;
          const auto four = gpu::load_as<gpu::Pack<float, 4>>(staging + (r * ld + e));
          q[x] = {m0 + i * 16 + r, n0 + e, {four.v[0], four.v[1], four.v[2], four.v[3]}};
        }
        finish(g, offset, q);
      }
      gpu::sync_warp();
    }
  }

 private:
  // Puts 16 rows of the warp's tile in shared memory.
  static __device__ __forceinline__ void stage_row(const float (&sum)[columns][2][4],
                                                   Shared<float> staging) {
    constexpr int ld = t.warp_n + staging_padding;
#pragma unroll
    for (int j = 0; j < columns; ++j)
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const auto& of_half = sum[j][e / 4];
        const int down = gpu::lane() / 4 + e % 4 / 2 * 8,
                  right = j * 16 + e / 4 * 8 + gpu::lane() % 4 * 2;
        gpu::store_as(staging + (down * ld + right),
                      gpu::Pack<float, 2>{{of_half[e % 4], of_half[e % 4 + 1]}});
      }
  }
};

// The first row and column of this block's tile. Blocks go through bands of eight rows of tiles:
// those in flight then share few rows of a and few columns of b in the cache.
struct Origin {
  int64_t m, n;
};
__device__ __forceinline__ Origin tile_origin(int64_t m, int64_t n, const Tile& t) {
  const int64_t down = ceil_div(m, t.m), across = ceil_div(n, t.n), id = int64_t(gpu::block().x);
  constexpr int64_t band = band_height;
  const int64_t first = id / (band * across) * band;
  const int64_t height = down - first < band ? down - first : band;
  return {(first + id % (band * across) % height) * t.m, id % (band * across) / height * t.n};
}

}  // namespace detail

// Dynamic shared memory of a block: the ring, whose space the epilogue's staging tiles reuse.
template <class T>
constexpr size_t gemm_shared_bytes(const Tile& t, bool a_by_rows, bool b_by_rows) {
  using namespace detail;
  const int a = a_by_rows ? slice_elements<T>(t.m, k_step<T>) : slice_elements<T>(k_step<T>, t.m);
  const int b = b_by_rows ? slice_elements<T>(k_step<T>, t.n) : slice_elements<T>(t.n, k_step<T>);
  const size_t ring = size_t(stages) * size_t(a + b) * sizeof(T);
  const size_t staging =
      size_t(t.threads() / 32) * 16 * size_t(t.warp_n + staging_padding) * sizeof(float);
  return ring > staging ? ring : staging;
}

// Grid: x tiles of c, y parts of k, z batch.
template <class T, bool a_by_rows, bool b_by_rows, int tile>
__global__ void __launch_bounds__(tiles[tile].threads(), 1) gemm_tensor(Gemm<T> g) {
  using namespace detail;
  using Steps = TensorTile<T, a_by_rows, b_by_rows, tile>;
  constexpr Tile t = tiles[tile];
  const Shared<T> ring = gpu::shared_memory<T>();
  const Origin origin = tile_origin(g.m, g.n, t);
  const int64_t m0 = origin.m, n0 = origin.n;
  const auto at = g.batch.find(g.first + int64_t(gpu::block().z));
  const KSteps range = k_steps(g, k_step<T>);
  const int64_t part = int64_t(gpu::block().y), steps = range.end - range.begin;

  constexpr int warps_across = t.n / t.warp_n;
  const int warp = int(gpu::thread().x) / 32;
  const int wm = warp / warps_across * t.warp_m, wn = warp % warps_across * t.warp_n;
  typename Steps::WarpSums sum = {};
  RowSums<T, a_by_rows, Steps::a_lines, Steps::a_length, Steps::threads> row_sums;
  const bool sums_rows = g.row_sums && n0 == 0;

  const auto load = [&](int64_t step) {
    if (step < steps)
      Steps::load_stage(ring, g, g.a + at.a, g.b + at.b, m0, n0, step,
                        (range.begin + step) * k_step<T>);
    gpu::copy_commit();
  };
  for (int s = 0; s < stages - 1; ++s) load(s);
  for (int64_t step = 0; step < steps; ++step) {
    gpu::copy_wait<stages - 2>();
    gpu::sync_block();  // all have finished with the stage that is loaded next
    load(step + stages - 1);
    const Shared<T> as = ring + step % stages * Steps::stage;
    if (sums_rows) row_sums.add(as);
    Steps::multiply_slices(as, as + Steps::a_size, wm, wn, sum);
  }
  gpu::copy_wait<0>();
  gpu::sync_block();

  if (sums_rows) row_sums.store(g.row_sums + part * g.m + m0, g.m - m0);
  Steps::store_tile(g, at.c + part * g.split_stride, m0 + wm, n0 + wn, warp, sum);
}

}  // namespace mixtape::kernels::cuda
