#pragma once
// Matrix products on tensor cores: f16, bf16 or TF32 operands, f32 sums. A block copies slices of a
// and b through a ring of stages in shared memory (cp.async), with zeros beyond edges. Each of its
// warps multiplies 64 x 64 or 32 x 32 of a tile of c in 16 x 16 fragments, by the instructions of a
// tier. Rows that do not begin at multiples of 16 bytes are copied by elements.

#include <utility>

#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/gpu_wmma.cuh"

namespace mixtape::kernels::cuda {

namespace detail {

constexpr int staging_padding = 8;  // of the epilogue's rows, in floats: no bank conflicts
// The depth of a fragment along k.
template <class T>
constexpr int k_fragment = sizeof(T) == 4 ? 8 : 16;

// A slice in shared memory without gaps. In each of its lines, chunks of 16 bytes change places by
// a bit pattern of the line (XOR), so that those which a warp loads or stores at once lie in
// different banks.
template <class T, int lines_, int length_>
struct ExchangedSlice {
  static constexpr int lines = lines_, length = length_, stride = length, elements = lines * stride;
  static constexpr int chunk = 16 / int(sizeof(T)), chunks = length / chunk;
  // Lines that are a multiple of it apart have the same pattern.
  static constexpr int period = sizeof(T) == 4 && chunks > 4 ? 4 : 8;

  static __device__ __forceinline__ int place(int line, int element) {
    const int pattern = chunks == 4      ? line / 2 % 4   // two lines are as long as all banks
                        : sizeof(T) == 2 ? line % 8       // ldmatrix loads eight lines at once,
                                         : line % 4 * 2;  // floats of four lines come by pairs
    return line * stride + (element ^ pattern * chunk);
  }
};
// A slice whose lines are a constant distance apart, as wmma needs it: padded, so that only copies
// have bank conflicts.
template <class T, int lines_, int length_>
struct PaddedSlice {
  static constexpr int chunk = 16 / int(sizeof(T)), chunks = length_ / chunk;
  static constexpr int lines = lines_, length = length_, stride = length + chunk,
                       elements = lines * stride;
  static constexpr int period = 1;

  static __device__ __forceinline__ int place(int line, int element) {
    return line * stride + element;
  }
};

// A thread's share of the copies of one operand's slices: `count` chunks of 16 bytes, `apart` lines
// from each other, and zeros beyond edges. Whatever can be computed once is, so that a step costs
// few instructions.
template <class T, class Slice, int threads, bool along_k>
class SliceCopy {
  static constexpr int chunk = Slice::chunk, chunks = Slice::chunks, bk = k_step<T>;
  static constexpr int count = Slice::lines * chunks / threads, apart = threads / chunks;
  static_assert(Slice::lines * chunks % threads == 0 && threads % chunks == 0);
  static_assert(apart % Slice::period == 0);

 public:
  // Slices of a matrix whose dense lines are ld apart, from line0 of `end` on, or from element
  // line0 of all lines, and k0 on. fast: lines begin at multiples of 16 bytes.
  __device__ __forceinline__ SliceCopy(const T* matrix, int64_t ld, int64_t line0, int64_t end,
                                       int64_t k0, bool fast)
      : to_next_chunk_(apart * ld), fast_(fast) {
    const int id = int(gpu::thread().x), line = id / chunks, element = id % chunks * chunk;
    to_ = Slice::place(line, element);
    const int64_t left = end - line0 - (along_k ? line : element);
    inside_ = left < Slice::elements ? int(left) : Slice::elements;
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
  __device__ __forceinline__ int place(int c) const { return to_ + c * apart * Slice::stride; }
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

// Sums of an operand over k, slice by slice: of rows of a, or of columns of b. A thread reads 16
// bytes at a time and adds to `count` sums; `groups` of threads share a row, and their sums are
// added in order at the end.
template <class T, class Slice, bool along_k, int threads>
struct OperandSums {
  static constexpr int chunk = Slice::chunk, chunks = Slice::chunks;
  static constexpr int loads = Slice::lines * chunks / threads, count = along_k ? loads : chunk,
                       rows = along_k ? Slice::lines : Slice::length;
  static constexpr int groups = along_k ? chunks : threads / chunks;
  static_assert(Slice::lines * chunks % threads == 0 && threads % chunks == 0 && threads >= rows);

  static __device__ __forceinline__ void add(Shared<T> slice, float* sum) {
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const int at = i * threads + int(gpu::thread().x);
      const auto pack =
          gpu::load_as<gpu::Pack<T, chunk>>(slice + Slice::place(at / chunks, at % chunks * chunk));
#pragma unroll
      for (int e = 0; e < chunk; ++e) sum[along_k ? i : e] += gpu::widen(pack.v[e]);
    }
  }
  // Stores the sums of the first `size` rows. All threads of the block call it, between barriers.
  static __device__ __forceinline__ void store(const float* sum, float* out, int64_t size) {
    const Shared<float> all = gpu::shared_memory<float>();
    const int id = int(gpu::thread().x);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const int group = along_k ? id % chunks : id / chunks;
      all[group * rows + (along_k ? (i * threads + id) / chunks : id % chunks * chunk + i)] =
          sum[i];
    }
    gpu::sync_block();
    if (id < rows && id < size) {
      float total = 0;
      for (int group = 0; group < groups; ++group) total += float(all[group * rows + id]);
      out[id] = total;
    }
    gpu::sync_block();
  }
};

// Loads fragments of one operand, 16 lines of 32 bytes along k, from its slices. Pairs of b's tiles
// along k come to neighbouring registers, as mma takes them.
template <class T, class Slice, bool along_k, bool is_b>
class MmaLoader {
 public:
  using Fragment = gpu::Fragment;

  // From line `first` on: the place where this lane begins.
  __device__ __forceinline__ explicit MmaLoader(int first) {
    const int lane = gpu::lane(), by_8 = lane / 8 % 2 * 8, by_16 = lane / 16 * 8;
    const int line = is_b ? by_16 : by_8, k = is_b ? by_8 : by_16;
    if constexpr (along_k)
      place_ = Slice::place(first + lane % 8 + line, k * 2 / int(sizeof(T)));
    else if constexpr (sizeof(T) == 2)
      place_ = Slice::place(lane % 8 + k, first + line);
    else
      place_ = Slice::place(lane % 4, first + lane / 4);
  }
  // Fragment i of lines, from k on.
  __device__ __forceinline__ gpu::Fragment load(Shared<T> slice, int i, int k) const {
    gpu::Fragment f;
    if constexpr (along_k || sizeof(T) == 2) {
      f = gpu::load_matrices<!along_k>(slice + (along_k ? at(k, i * 16) : at(i * 16, k)));
      if constexpr (is_b) std::swap(f.part[1], f.part[2]);
    } else {
#pragma unroll
      for (int p = 0; p < 4; ++p)
        f.part[p] = std::bit_cast<uint32_t>(float(slice[at(i * 16 + p % 2 * 8, k + p / 2 * 4)]));
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (uint32_t& part : f.part) part = gpu::rounded_to_tf32(std::bit_cast<float>(part));
    }
    return f;
  }

 private:
  // The place so far along the lines, and so many lines on, from where this lane begins. (The bits
  // of `along` are 0 there, but for the pattern's: what would be added is exchanged, too.)
  __device__ __forceinline__ int at(int along, int lines) const {
    return (place_ ^ along) + lines * Slice::stride;
  }
  int place_;
};

template <class T, class Slice, bool along_k, bool is_b>
class WmmaLoader {
 public:
  using Fragment = gpu::Matrix<is_b ? gpu::Use::B : gpu::Use::A, T, along_k != is_b>;

  __device__ __forceinline__ explicit WmmaLoader(int first) : first_(first) {}
  __device__ __forceinline__ Fragment load(Shared<T> slice, int i, int k) const {
    const int line = first_ + i * 16;
    Fragment f;
    gpu::load_matrix(f, slice + (along_k ? Slice::place(line, k) : Slice::place(k, line)),
                     Slice::stride);
    return f;
  }

 private:
  int first_;
};

// A tier: how slices lie in shared memory, and by which instructions fragments are loaded,
// multiplied and put in rows of shared memory that are `ld` apart.
template <Tier tier, class T>
struct Instructions {  // of Tier::Mma
  static constexpr int stages = 4;
  template <int lines, int length>
  using Slice = ExchangedSlice<T, lines, length>;
  template <class Slice, bool along_k, bool is_b>
  using FragmentLoader = MmaLoader<T, Slice, along_k, is_b>;
  using Sum = float[2][4];

  static __device__ __forceinline__ void multiply(Sum& sum, const gpu::Fragment& a,
                                                  const gpu::Fragment& b) {
    gpu::multiply<T>(sum, a, b);
  }
  static __device__ __forceinline__ void put(Shared<float> to, int ld, const Sum& sum) {
#pragma unroll
    for (int e = 0; e < 8; e += 2) {
      const auto& of_half = sum[e / 4];
      const int down = gpu::lane() / 4 + e % 4 / 2 * 8, right = e / 4 * 8 + gpu::lane() % 4 * 2;
      gpu::store_as(to + (down * ld + right),
                    gpu::Pack<float, 2>{{of_half[e % 4], of_half[e % 4 + 1]}});
    }
  }
};
template <class T>
struct Instructions<Tier::Wmma, T> {
  static constexpr int stages = 3;  // padded, more would not fit in 99 KB (devices 8.6, 8.9)
  template <int lines, int length>
  using Slice = PaddedSlice<T, lines, length>;
  template <class Slice, bool along_k, bool is_b>
  using FragmentLoader = WmmaLoader<T, Slice, along_k, is_b>;
  using Sum = gpu::MatrixSum<T>;

  template <class A, class B>
  static __device__ __forceinline__ void multiply(Sum& sum, const A& a, const B& b) {
    gpu::multiply(sum, a, b);
  }
  static __device__ __forceinline__ void put(Shared<float> to, int ld, const Sum& sum) {
    gpu::store_matrix(to, ld, sum);
  }
};

// The constants and steps of one kernel. a_by_rows, b_by_rows: the operand is row-major, else
// column-major. epilogue: of any kind, else a factor alone, as in wmma's kernels, which are there
// to be compared.
template <class T, bool a_by_rows, bool b_by_rows, int tile, Tier tier,
          bool epilogue = tier != Tier::Wmma>
struct TensorTile {
  using I = Instructions<tier, T>;
  static constexpr Tile t = tiles[tile];
  static constexpr int threads = t.threads(), bk = k_step<T>;
  static constexpr int stages = I::stages;
  using SliceA = typename I::template Slice<a_by_rows ? t.m : bk, a_by_rows ? bk : t.m>;
  using SliceB = typename I::template Slice<b_by_rows ? bk : t.n, b_by_rows ? t.n : bk>;
  static constexpr int stage = SliceA::elements + SliceB::elements;
  // Dynamic shared memory of a block: the ring, whose space the epilogue's staging tiles reuse.
  static constexpr int staging_stride = t.warp_n + staging_padding;
  static constexpr size_t shared_bytes =
      std::max(size_t(stages) * stage * sizeof(T),
               size_t(threads / 32) * 16 * staging_stride * sizeof(float));
  // Fragments of a warp's tile of c, and the sums that a lane holds of them.
  static constexpr int rows = t.warp_m / 16, columns = t.warp_n / 16;
  using WarpSums = typename I::Sum[rows][columns];

  // Copies slices of a and b, by A and B, to stages of the ring, one step after the other.
  template <class A, class B>
  struct LoaderOf {
    A a;
    B b;
    int k_left;

    __device__ __forceinline__ void start(Shared<T> to) {
      if (k_left > 0) {
        a.start(to, k_left);
        b.start(to + SliceA::elements, k_left);
        k_left -= bk;
      }
      gpu::copy_commit();
    }
  };

  using CopyA = SliceCopy<T, SliceA, threads, a_by_rows>;
  using CopyB = SliceCopy<T, SliceB, threads, !b_by_rows>;
  using Loader = LoaderOf<CopyA, CopyB>;
  using SumsOfA = OperandSums<T, SliceA, a_by_rows, threads>;
  using SumsOfB = OperandSums<T, SliceB, !b_by_rows, threads>;

  // Multiplies slices for the warp's tile at (wm, wn) of the block's.
  class Multiplier {
   public:
    __device__ __forceinline__ Multiplier(int wm, int wn) : a_(wm), b_(wn) {}
    // sum += a stage's slice of a times that of b.
    __device__ __forceinline__ void add(Shared<T> from, WarpSums& sum) const {
#pragma unroll(sizeof(T) == 4 ? 1 : 2)  // (TF32 fragments of two steps do not fit in registers)
      for (int k = 0; k < bk; k += k_fragment<T>) {
        typename decltype(a_)::Fragment fa[rows];
#pragma unroll
        for (int i = 0; i < rows; ++i) fa[i] = a_.load(from, i, k);
#pragma unroll
        for (int j = 0; j < columns; ++j) {  // one at a time: sums take half of the registers
          const auto fb = b_.load(from + SliceA::elements, j, k);
#pragma unroll
          for (int i = 0; i < rows; ++i) I::multiply(sum[i][j], fa[i], fb);
        }
      }
    }

   private:
    typename I::template FragmentLoader<SliceA, a_by_rows, false> a_;
    typename I::template FragmentLoader<SliceB, !b_by_rows, true> b_;
  };

  // Stores a warp's tile of c, whose first element is (m0, n0): 16 rows at a time go through shared
  // memory, so that neighbours are written together.
  static __device__ __forceinline__ void store_tile(const Gemm<T>& g, int64_t offset, int64_t m0,
                                                    int64_t n0, int warp, const WarpSums& sum) {
    constexpr int ld = staging_stride, vecs = t.warp_n / 4, in_flight = 4;
    const Shared<float> staging = gpu::shared_memory<float>(size_t(warp) * 16 * ld * sizeof(float));
    const bool plain = !g.bias.data && !g.residual.data && !g.before &&
                       g.activation == Activation::None && g.fast_c && m0 + t.warp_m <= g.m &&
                       n0 + t.warp_n <= g.n;
    const int64_t begin = offset + m0 * g.ldc + n0;
#pragma unroll 1  // one copy of the code below for all rows
    for (int i = 0; i < rows; ++i) {
#pragma unroll
      for (int r = 0; r < rows; ++r)  // (registers cannot be indexed)
        if (r == i) {
#pragma unroll
          for (int j = 0; j < columns; ++j) I::put(staging + j * 16, ld, sum[r][j]);
        }
      gpu::sync_warp();  // a lane reads what others stored
      if (plain) {       // with far fewer instructions
        const int64_t at = begin + int64_t(i) * 16 * g.ldc;
        if (g.wide)
          store_rows(static_cast<float*>(g.c) + at, g.ldc, g.alpha, staging);
        else
          store_rows(static_cast<T*>(g.c) + at, g.ldc, g.alpha, staging);
        gpu::sync_warp();
        continue;
      }
#pragma unroll 1
      for (int first = gpu::lane(); first < 16 * vecs; first += in_flight * 32) {
        Vec4<float> q[in_flight];
#pragma unroll
        for (int x = 0; x < in_flight; ++x) {
          const int number = first + x * 32, r = number / vecs, e = number % vecs * 4;
          const auto four = gpu::load_as<gpu::Pack<float, 4>>(staging + (r * ld + e));
          q[x] = {m0 + i * 16 + r, n0 + e, {four.v[0], four.v[1], four.v[2], four.v[3]}};
        }
        finish<epilogue>(g, offset, q);
      }
      gpu::sync_warp();
    }
  }

 private:
  // Multiplies, rounds and stores 16 rows that are inside of c and aligned.
  template <class O>
  static __device__ __forceinline__ void store_rows(O* c, int64_t ldc, float alpha,
                                                    Shared<float> staging) {
    constexpr int vecs = t.warp_n / 4, at_once = 32 / vecs;  // rows
    const int row = gpu::lane() / vecs, column = gpu::lane() % vecs * 4;
    O* to = c + row * ldc + column;
#pragma unroll
    for (int r = 0; r < 16; r += at_once, to += at_once * ldc) {
      const auto four =
          gpu::load_as<gpu::Pack<float, 4>>(staging + ((r + row) * staging_stride + column));
      gpu::Pack<O, 4> pack;
#pragma unroll
      for (int e = 0; e < 4; ++e) pack.v[e] = gpu::round_to<O>(four.v[e] * alpha);
      gpu::store_global(to, pack);
    }
  }
};

}  // namespace detail

// Computes the tile of c at `origin`, or its part of k, in a matrix at `offset`: all of a kernel
// but for its copies. loader.start(stage) starts copies of the next slices of a and b, if there
// are any, and commits them in any case.
template <class Steps, class T, class Loader>
__device__ __forceinline__ void multiply_tile(const Gemm<T>& g, const Origin& origin,
                                              const KPart& k, int64_t offset, Loader& loader) {
  constexpr Tile t = Steps::t;
  constexpr int stages = Steps::stages;
  const Shared<T> ring = gpu::shared_memory<T>();
  for (int s = 0; s < stages - 1; ++s) loader.start(ring + s * Steps::stage);

  constexpr int warps_across = t.n / t.warp_n;
  const int warp = int(gpu::thread().x) / 32;
  const int wm = warp / warps_across * t.warp_m, wn = warp % warps_across * t.warp_n;
  typename Steps::WarpSums sum = {};
  float k_sums[std::max(Steps::SumsOfA::count, Steps::SumsOfB::count)] = {};
  const bool sums_a = g.row_sums && origin.n == 0, sums_b = g.column_sums && origin.m == 0;
  const typename Steps::Multiplier multiplier(wm, wn);
  constexpr int last = (stages - 1) * Steps::stage;
  int now = 0, free = last;  // the stages to multiply and to load next
  for (int left = k.size; left > 0; left -= k_step<T>) {
    gpu::copy_wait<stages - 2>();
    gpu::sync_block();  // all have finished with the stage that is loaded next
    loader.start(ring + free);
    if (sums_a)
      Steps::SumsOfA::add(ring + now, k_sums);
    else if (sums_b)
      Steps::SumsOfB::add(ring + now + Steps::SliceA::elements, k_sums);
    multiplier.add(ring + now, sum);
    free = now;
    now = now == last ? 0 : now + Steps::stage;
  }
  gpu::copy_wait<0>();
  gpu::sync_block();

  const int64_t part = int64_t(gpu::block().y);
  if (sums_a)
    Steps::SumsOfA::store(k_sums, g.row_sums + part * g.m + origin.m, g.m - origin.m);
  else if (sums_b)
    Steps::SumsOfB::store(k_sums, g.column_sums + part * g.n + origin.n, g.n - origin.n);
  Steps::store_tile(g, offset + part * g.split_stride, origin.m + wm, origin.n + wn, warp, sum);
}

// Grid: x tiles of c, y parts of k, z batch.
template <class T, bool a_by_rows, bool b_by_rows, int tile, Tier tier>
__global__ void __launch_bounds__(tiles[tile].threads(), 1) gemm_tensor(Gemm<T> g) {
  using Steps = detail::TensorTile<T, a_by_rows, b_by_rows, tile, tier>;
  constexpr Tile t = tiles[tile];
  const Origin origin = tile_origin(g, t);
  const auto at = g.batch.find(g.first + int64_t(gpu::block().z));
  const KPart k = k_part(g);
  typename Steps::Loader loader{
      {g.a + at.a, a_by_rows ? g.a_down : g.a_right, origin.m, g.m, k.begin, g.fast_a},
      {g.b + at.b, b_by_rows ? g.b_down : g.b_right, origin.n, g.n, k.begin, g.fast_b},
      k.size};
  multiply_tile<Steps>(g, origin, k, at.c, loader);
}

// The kernel for a tile and the layouts of the operands, and its dynamic shared memory.
template <class T>
struct TensorKernel {
  void (*run)(Gemm<T>);
  size_t shared_bytes;
};
template <class T, bool a_by_rows, bool b_by_rows, int tile, Tier tier>
constexpr TensorKernel<T> one_tensor_kernel{
    gemm_tensor<T, a_by_rows, b_by_rows, tile, tier>,
    detail::TensorTile<T, a_by_rows, b_by_rows, tile, tier>::shared_bytes};
template <class T, Tier tier, bool a_by_rows, bool b_by_rows>
constexpr TensorKernel<T> tensor_kernels[] = {one_tensor_kernel<T, a_by_rows, b_by_rows, 0, tier>,
                                              one_tensor_kernel<T, a_by_rows, b_by_rows, 1, tier>,
                                              one_tensor_kernel<T, a_by_rows, b_by_rows, 2, tier>};
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
