#pragma once
// Matrix products on tensor cores: f16, bf16 or TF32 operands, f32 sums. A block copies slices of a
// and b through a ring of `stages` in shared memory (cp.async), in padded rows, which avoid bank
// conflicts, with zeros beyond edges. Each of its warps multiplies 64 x 64 or 32 x 32 of a tile of
// c in 16 x 16 fragments, by the instructions of a tier. Rows that do not begin at multiples of 16
// bytes are copied by elements.

#include <utility>

#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/gpu_wmma.cuh"

namespace mixtape::kernels::cuda {

namespace detail {

constexpr int stages = 3;           // of the ring: 2 copies are in flight during a step
constexpr int staging_padding = 8;  // of the epilogue's rows, in floats: no bank conflicts
constexpr int band_height = 8;      // in tiles; see tile_origin()
// The depth of a fragment along k.
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

// A thread's share of the copies of one operand's slices: `count` chunks of 16 bytes, `apart` lines
// from each other, and zeros beyond edges. Whatever can be computed once is, so that a step costs
// few instructions.
template <class T, int lines, int length, int threads, bool along_k>
class SliceCopy {
  static constexpr int chunk = 16 / int(sizeof(T)), chunks = length / chunk, bk = k_step<T>;
  static constexpr int count = lines * chunks / threads, apart = threads / chunks;
  static_assert(lines * chunks % threads == 0 && threads % chunks == 0);

 public:
  // Slices of a matrix whose dense lines are ld apart, from line0 of `end` on, or from element
  // line0 of all lines, and k0 on. fast: lines begin at multiples of 16 bytes.
  __device__ __forceinline__ SliceCopy(const T* matrix, int64_t ld, int64_t line0, int64_t end,
                                       int64_t k0, bool fast)
      : to_next_chunk_(apart * ld), fast_(fast) {
    const int id = int(gpu::thread().x), line = id / chunks, element = id % chunks * chunk;
    to_ = line * smem_stride<T>(length) + element;
    const int64_t left = end - line0 - (along_k ? line : element);
    inside_ = left < lines + length ? int(left) : lines + length;
    if constexpr (along_k) {
      from_ = matrix + (line0 + line) * ld + k0 + element;
      to_next_step_ = bk;
      first_k_ = element;
    } else {
      from_ = matrix + (k0 + line) * ld + line0 + element;
      to_next_step_ = bk * ld;
      first_k_ = line;
    }
  }
  // Starts the copy of the next slice, of which the first k_left elements of k exist.
  __device__ __forceinline__ void start(Shared<T> slice, int k_left) {
    const T* from = from_;
    if (fast_ && k_left >= bk) {
      const int bytes = along_k ? 16 : clamp(inside_) * int(sizeof(T));
#pragma unroll
      for (int c = 0; c < count; ++c, from += to_next_chunk_) {
        const auto to = slice + place(c);
        if constexpr (along_k) {
          gpu::copy_async_or_zero<T>(to, from, c * apart < inside_);
        } else {
          gpu::copy_async<T>(to, from, bytes);
        }
      }
    } else {
#pragma unroll 1
      for (int c = 0; c < count; ++c, from += to_next_chunk_) {
        const auto to = slice + place(c);
        const int of_k = k_left - first_k_;
        const int n = along_k            ? c * apart < inside_ ? clamp(of_k) : 0
                      : c * apart < of_k ? clamp(inside_)
                                         : 0;
        if (fast_)
          gpu::copy_async<T>(to, from, n * int(sizeof(T)));
        else
          copy_elements(to, from, n);
      }
    }
    from_ += to_next_step_;
  }

 private:
  static __device__ __forceinline__ int clamp(int n) { return n < 0 ? 0 : n > chunk ? chunk : n; }
  __device__ __forceinline__ int place(int c) const {
    return to_ + c * apart * smem_stride<T>(length);
  }
  static __device__ __forceinline__ void copy_elements(Shared<T> to, const T* from, int n) {
    gpu::Pack<T, chunk> pack;
#pragma unroll
    for (int e = 0; e < chunk; ++e) pack.v[e] = e < n ? from[e] : T(0.0f);
    gpu::store_as(to, pack);
  }

  const T* from_;  // of the first chunk of the next step
  int64_t to_next_chunk_, to_next_step_;
  int to_;       // the place of the first chunk in a slice
  int first_k_;  // of the first chunk, from the beginning of a step
  int inside_;   // lines, or elements of a line, from the first chunk to the edge
  bool fast_;
};

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

// The place in a slice, whose lines are `stride` apart, where this lane begins to load a fragment.
// Pairs of b's tiles along k come to neighbouring registers, as mma takes them.
template <class T, bool along_k, bool is_b>
__device__ __forceinline__ int fragment_place(int stride) {
  const int lane = gpu::lane(), by_8 = lane / 8 % 2 * 8, by_16 = lane / 16 * 8;
  const int line = is_b ? by_16 : by_8, k = is_b ? by_8 : by_16;
  if constexpr (along_k)
    return (lane % 8 + line) * stride + k * 2 / int(sizeof(T));
  else if constexpr (sizeof(T) == 2)
    return (lane % 8 + k) * stride + line;
  else
    return lane % 4 * stride + lane / 4;
}
// Loads a fragment: 16 lines of an operand, 32 bytes deep, dense along k or the other dimension.
// `at` is its place for this lane.
template <class T, bool along_k, bool is_b>
__device__ __forceinline__ gpu::Fragment load_fragment(Shared<T> at, int stride) {
  gpu::Fragment f;
  if constexpr (along_k || sizeof(T) == 2) {
    f = gpu::load_matrices<!along_k>(at);
    if constexpr (is_b) std::swap(f.part[1], f.part[2]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f.part[i] = std::bit_cast<uint32_t>(float(at[i / 2 * 4 * stride + i % 2 * 8]));
  }
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (uint32_t& part : f.part) part = gpu::rounded_to_tf32(std::bit_cast<float>(part));
  }
  return f;
}

// A tier's instructions, for fragments of 16 x 16 of a warp's tile. place_a() and place_b() are the
// places in a slice, whose lines are `stride` apart, where this lane begins to load; stage() puts
// sums in rows that are `ld` apart.
template <Tier tier, class T, bool a_by_rows, bool b_by_rows>
struct Fragments {  // of Tier::Mma
  using A = gpu::Fragment;
  using B = gpu::Fragment;
  using Sum = float[2][4];

  static __device__ __forceinline__ int place_a(int stride) {
    return fragment_place<T, a_by_rows, false>(stride);
  }
  static __device__ __forceinline__ int place_b(int stride) {
    return fragment_place<T, !b_by_rows, true>(stride);
  }
  static __device__ __forceinline__ void load_a(A& a, Shared<T> at, int stride) {
    a = load_fragment<T, a_by_rows, false>(at, stride);
  }
  static __device__ __forceinline__ void load_b(B& b, Shared<T> at, int stride) {
    b = load_fragment<T, !b_by_rows, true>(at, stride);
  }
  static __device__ __forceinline__ void multiply(Sum& sum, const A& a, const B& b) {
    gpu::multiply<T>(sum, a, b);
  }
  static __device__ __forceinline__ void stage(Shared<float> to, int ld, const Sum& sum) {
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const auto& of_half = sum[e / 4];
      const int down = gpu::lane() / 4 + e % 4 / 2 * 8, right = e / 4 * 8 + gpu::lane() % 4 * 2;
      gpu::store_as(to + (down * ld + right),
                    gpu::Pack<float, 2>{{of_half[e % 4], of_half[e % 4 + 1]}});
    }
  }
};
template <class T, bool a_by_rows, bool b_by_rows>
struct Fragments<Tier::Wmma, T, a_by_rows, b_by_rows> {
  using A = gpu::Matrix<gpu::Use::A, T, a_by_rows>;
  using B = gpu::Matrix<gpu::Use::B, T, b_by_rows>;
  using Sum = gpu::MatrixSum<T>;

  static __device__ __forceinline__ int place_a(int) { return 0; }  // the same for all lanes
  static __device__ __forceinline__ int place_b(int) { return 0; }
  static __device__ __forceinline__ void load_a(A& a, Shared<T> at, int stride) {
    gpu::load_matrix(a, at, stride);
  }
  static __device__ __forceinline__ void load_b(B& b, Shared<T> at, int stride) {
    gpu::load_matrix(b, at, stride);
  }
  static __device__ __forceinline__ void multiply(Sum& sum, const A& a, const B& b) {
    gpu::multiply(sum, a, b);
  }
  static __device__ __forceinline__ void stage(Shared<float> to, int ld, const Sum& sum) {
    gpu::store_matrix(to, ld, sum);
  }
};

// The constants and steps of one kernel. a_by_rows, b_by_rows: the operand is row-major, else
// column-major.
template <class T, bool a_by_rows, bool b_by_rows, int tile, Tier tier>
struct TensorTile {
  using F = Fragments<tier, T, a_by_rows, b_by_rows>;
  static constexpr Tile t = tiles[tile];
  static constexpr int threads = t.threads(), bk = k_step<T>;
  // Slices of a and b in shared memory.
  static constexpr int a_lines = a_by_rows ? t.m : bk, a_length = a_by_rows ? bk : t.m;
  static constexpr int b_lines = b_by_rows ? bk : t.n, b_length = b_by_rows ? t.n : bk;
  static constexpr int a_size = slice_elements<T>(a_lines, a_length),
                       b_size = slice_elements<T>(b_lines, b_length), stage = a_size + b_size;
  static constexpr int la = smem_stride<T>(a_length), lb = smem_stride<T>(b_length);
  // Fragments of a warp's tile of c, and the sums that a lane holds of them.
  static constexpr int rows = t.warp_m / 16, columns = t.warp_n / 16;
  using WarpSums = typename F::Sum[rows][columns];

  using SumsOfRows = RowSums<T, a_by_rows, a_lines, a_length, threads>;

  // Copies slices of a and b, by A and B, to stages of the ring, one step after the other.
  template <class A, class B>
  struct LoaderOf {
    A a;
    B b;
    int k_left;

    __device__ __forceinline__ void start(Shared<T> to) {
      if (k_left > 0) {
        a.start(to, k_left);
        b.start(to + a_size, k_left);
        k_left -= bk;
      }
      gpu::copy_commit();
    }
  };
  using CopyA = SliceCopy<T, a_lines, a_length, threads, a_by_rows>;
  using CopyB = SliceCopy<T, b_lines, b_length, threads, !b_by_rows>;
  using Loader = LoaderOf<CopyA, CopyB>;

  // The places in slices of a and b where this lane's fragments of the warp's tile begin.
  static __device__ __forceinline__ int place_a(int wm) {
    return (a_by_rows ? wm * la : wm) + F::place_a(la);
  }
  static __device__ __forceinline__ int place_b(int wn) {
    return (b_by_rows ? wn : wn * lb) + F::place_b(lb);
  }
  // sum += a slice of a times one of b, for the warp's tile; as and bs begin at the lane's places.
  static __device__ __forceinline__ void multiply_slices(Shared<T> as, Shared<T> bs,
                                                         WarpSums& sum) {
#pragma unroll(sizeof(T) == 4 ? 1 : 2)  // (TF32 fragments of two steps do not fit in registers)
    for (int k = 0; k < bk; k += k_fragment<T>) {
      typename F::A fa[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i)
        F::load_a(fa[i], as + (a_by_rows ? i * 16 * la + k : k * la + i * 16), la);
#pragma unroll
      for (int j = 0; j < columns; ++j) {  // one at a time: sums take half of the registers
        typename F::B fb;
        F::load_b(fb, bs + (b_by_rows ? k * lb + j * 16 : j * 16 * lb + k), lb);
#pragma unroll
        for (int i = 0; i < rows; ++i) F::multiply(sum[i][j], fa[i], fb);
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
        if (r == i) {
#pragma unroll
          for (int j = 0; j < columns; ++j) F::stage(staging + j * 16, ld, sum[r][j]);
        }
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

// Multiplies what the loader copies to the ring, k.size elements deep, for the block's tile of the
// matrix that begins at `offset` in c. Steps: a TensorTile.
template <class Steps, class T, class Loader>
__device__ __forceinline__ void multiply_tile(const Gemm<T>& g, const detail::Origin& at,
                                              const KPart& k, int64_t offset, Loader& loader) {
  using namespace detail;
  constexpr Tile t = Steps::t;
  constexpr int warps_across = t.n / t.warp_n;
  const Shared<T> ring = gpu::shared_memory<T>();
  const int part = int(gpu::block().y), warp = int(gpu::thread().x) / 32;
  const int wm = warp / warps_across * t.warp_m, wn = warp % warps_across * t.warp_n;
  typename Steps::WarpSums sum = {};
  typename Steps::SumsOfRows row_sums;
  const bool sums_rows = g.row_sums && at.n == 0;

  for (int s = 0; s < stages - 1; ++s) loader.start(ring + s * Steps::stage);
  const int place_a = Steps::place_a(wm), place_b = Steps::a_size + Steps::place_b(wn);
  constexpr int last = (stages - 1) * Steps::stage;
  int now = 0, free = last;  // the stages to multiply and to load next
  for (int left = k.size; left > 0; left -= k_step<T>) {
    gpu::copy_wait<stages - 2>();
    gpu::sync_block();  // all have finished with the stage that is loaded next
    loader.start(ring + free);
    if (sums_rows) row_sums.add(ring + now);
    Steps::multiply_slices(ring + (now + place_a), ring + (now + place_b), sum);
    free = now;
    now = now == last ? 0 : now + Steps::stage;
  }
  gpu::copy_wait<0>();
  gpu::sync_block();

  if (sums_rows) row_sums.store(g.row_sums + int64_t(part) * g.m + at.m, g.m - at.m);
  Steps::store_tile(g, offset + part * g.split_stride, at.m + wm, at.n + wn, warp, sum);
}

// Grid: x tiles of c, y parts of k, z batch.
template <class T, bool a_by_rows, bool b_by_rows, int tile, Tier tier>
__global__ void __launch_bounds__(tiles[tile].threads(), 1) gemm_tensor(Gemm<T> g) {
  using Steps = detail::TensorTile<T, a_by_rows, b_by_rows, tile, tier>;
  constexpr Tile t = tiles[tile];
  const detail::Origin origin = detail::tile_origin(g.m, g.n, t);
  const auto at = g.batch.find(g.first + int64_t(gpu::block().z));
  const KPart k = k_part(g);
  typename Steps::Loader loader{
      {g.a + at.a, a_by_rows ? g.a_down : g.a_right, origin.m, g.m, k.begin, g.fast_a},
      {g.b + at.b, b_by_rows ? g.b_down : g.b_right, origin.n, g.n, k.begin, g.fast_b},
      k.size};
  multiply_tile<Steps>(g, origin, k, at.c, loader);
}

// The kernel for a tile and the layouts of the operands.
template <class T>
using TensorKernel = void (*)(Gemm<T>);
template <class T, Tier tier, bool a_by_rows, bool b_by_rows>
constexpr TensorKernel<T> tensor_kernels[] = {gemm_tensor<T, a_by_rows, b_by_rows, 0, tier>,
                                              gemm_tensor<T, a_by_rows, b_by_rows, 1, tier>,
                                              gemm_tensor<T, a_by_rows, b_by_rows, 2, tier>};
template <class T, Tier tier>
TensorKernel<T> tensor_kernel(int tile, bool a_by_rows, bool b_by_rows) {
  const auto& kernels = a_by_rows   ? b_by_rows ? tensor_kernels<T, tier, true, true>
                                                : tensor_kernels<T, tier, true, false>
                          : b_by_rows ? tensor_kernels<T, tier, false, true>
                                    : tensor_kernels<T, tier, false, false>;
  return kernels[tile];
}
// wmma's are compiled on their own, in gemm_wmma.cu. There are none for TF32, of which wmma would
// multiply half as much at once as mma.sync.
extern template TensorKernel<Half> tensor_kernel<Half, Tier::Wmma>(int, bool, bool);
extern template TensorKernel<BFloat16> tensor_kernel<BFloat16, Tier::Wmma>(int, bool, bool);

}  // namespace mixtape::kernels::cuda
