#pragma once
// The part of CUDA that kernels use, under names that nvcc maps to CUDA and g++ to the emulator, so
// that one source runs on both. A kernel is a __global__ function that is started only by launch()
// and accesses shared memory only through Shared<T>.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "core/error.h"
#include "core/int_math.h"
#include "kernels/common/launch.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "emulator/simt/simt.h"
#include "emulator/simt/tensor.h"
#endif

namespace mixtape::gpu {

constexpr int warp_size = 32;

// A lane's part of a tensor core operand: 16 lines of 32 bytes along k, in tiles of 8 lines by 16
// bytes. part[i] is word lane % 4 of line lane / 4 of tile (i % 2 down, i / 2 along).
struct Fragment {
  uint32_t part[4];
};

#ifdef __CUDACC__

using Index3 = dim3;
template <class T>
using Shared = T*;

__device__ inline uint3 thread() { return threadIdx; }
__device__ inline uint3 block() { return blockIdx; }
__device__ inline dim3 block_size() { return blockDim; }
__device__ inline dim3 grid_size() { return gridDim; }
__device__ inline int lane() { return int(threadIdx.x & 31); }

__device__ inline void sync_block() { __syncthreads(); }
__device__ inline void sync_warp() { __syncwarp(); }

// The value of another lane: lane `from`, or lane ^ mask. Structs are exchanged word by word.
template <class T, class F>
__device__ inline T for_each_word(T v, F exchange) {
  if constexpr (std::is_arithmetic_v<T>) {
    return exchange(v);
  } else {
    unsigned words[sizeof(T) / 4];
    memcpy(words, &v, sizeof v);
    for (unsigned& word : words) word = exchange(word);
    memcpy(&v, words, sizeof v);
    return v;
  }
}
template <class T>
__device__ inline T shuffle(T v, int from) {
  return for_each_word(v, [from](auto word) { return __shfl_sync(~0u, word, from); });
}
template <class T>
__device__ inline T shuffle_xor(T v, int mask) {
  return for_each_word(v, [mask](auto word) { return __shfl_xor_sync(~0u, word, mask); });
}

// True if v is true in any lane of the warp; the lanes with the same v, a bit each; the number of
// lower ones.
__device__ inline bool any_lane(bool v) { return __any_sync(~0u, v) != 0; }
__device__ inline int count_bits(uint32_t bits) { return __popc(bits); }
__device__ inline uint32_t same_lanes(int v) { return __match_any_sync(~0u, v); }
__device__ inline int same_before(int v) {
  return count_bits(same_lanes(v) & ((1u << lane()) - 1));
}

// The block's shared memory, whose size launch() sets, from a byte offset on: a multiple of 16. It
// is aligned to 1024 bytes.
template <class T>
__device__ inline Shared<T> shared_memory(size_t offset = 0) {
  extern __shared__ __align__(1024) unsigned char bytes_of_block[];
  return reinterpret_cast<T*>(bytes_of_block + offset);
}

// Copies 16 bytes from global to shared memory asynchronously; zeros beyond `valid`. Both pointers
// are aligned to 16.
template <class T>
__device__ inline void copy_async(Shared<T> to, const T* from, int valid = 16) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid)
               : "memory");
}
// The same of 16 bytes, or zeros. One instruction, where `valid` takes several.
template <class T>
__device__ inline void copy_async_or_zero(Shared<T> to, const T* from, bool copied) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile(
      "{ .reg .pred zero; setp.eq.u32 zero, %2, 0;"
      " cp.async.cg.shared.global [%0], [%1], 16, zero; }" ::"r"(address),
      "l"(from), "r"(unsigned(copied))
      : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of the groups committed by this thread are in flight.
template <int pending>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Loads four matrices of 8 rows of 16 bytes. `row` is row lane % 8 of matrix lane / 8, aligned
// to 16. part[i] is word lane % 4 of row lane / 4 of matrix i or, transposed, which needs elements
// of two bytes, of column lane / 4.
template <bool transposed, class T>
__device__ inline Fragment load_matrices(Shared<T> row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  Fragment f;
  uint32_t(&p)[4] = f.part;
  if constexpr (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(p[0]), "=r"(p[1]), "=r"(p[2]), "=r"(p[3])
                 : "r"(address)
                 : "memory");
  return f;
}
#define MIXTAPE_MMA(form)                                       \
  asm volatile("mma.sync.aligned." form                         \
               " {%0, %1, %2, %3}, "                            \
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"  \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
// d += a b^T for eight lines of b, in tiles b0 and b1.
template <class T>
__device__ inline void multiply_eight(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1) {
  if constexpr (std::is_same_v<T, Half>)
    MIXTAPE_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  else if constexpr (std::is_same_v<T, BFloat16>)
    MIXTAPE_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  else
    MIXTAPE_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef MIXTAPE_MMA
// sum += a b^T for lines of f16, bf16 or, as TF32, f32. sum[h][e] is element (lane / 4 + e / 2 * 8,
// 8 h + lane % 4 * 2 + e % 2).
template <class T>
__device__ inline void multiply(float (&sum)[2][4], const Fragment& a, const Fragment& b) {
#pragma unroll
  for (int h = 0; h < 2; ++h) multiply_eight<T>(sum[h], a.part, b.part[h], b.part[h + 2]);
}
// Rounds to 10 bits of fraction, to nearest, ties away from zero.
__device__ inline uint32_t rounded_to_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
// Two numbers rounded to f16 or bf16, `low` in the lower half of the word.
template <class T>
__device__ inline uint32_t round_pair(float low, float high) {
  uint32_t bits;
  if constexpr (std::is_same_v<T, Half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
// 2^x in one instruction, with 22 bits; 0 where the result is subnormal.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <class V, class T>
__device__ inline V load_as(const T* p) {  // one access of sizeof(V) bytes; p is aligned to that
  return *reinterpret_cast<const V*>(p);
}
template <class V, class T>
__device__ inline void store_as(T* p, const V& v) {
  *reinterpret_cast<V*>(p) = v;
}
// The same to global memory, where packs go: nvcc would store their 16-bit elements one by one. (It
// looks through any word that is not in an asm statement.)
template <class V, class T>
__device__ inline void store_global(T* p, const V& v) {
  if constexpr (sizeof(V) == 16 || sizeof(V) == 8) {
    unsigned w[sizeof(V) / 4];
    memcpy(w, &v, sizeof v);
    if constexpr (sizeof(V) == 16)
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
                   "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                   : "memory");
    else
      asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)), "r"(w[0]),
                   "r"(w[1])
                   : "memory");
  } else {
    store_as(p, v);
  }
}

__device__ inline void atomic_max(int* p, int v) { atomicMax(p, v); }
__device__ inline void atomic_add(int* p, int v) { atomicAdd(p, v); }

// A function Y(X...) as a parameter of device functions: here by its own type, to be inlined.
template <class F, class Y, class... X>
using Function = const F&;

#else

using simt::Index3;
using simt::Shared;

inline const Index3& thread() { return simt::thread_index(); }
inline Index3 block() { return simt::block_index(); }
inline const Index3& block_size() { return simt::block_size(); }
inline const Index3& grid_size() { return simt::grid_size(); }
inline int lane() { return int(thread().x & 31); }

inline void sync_block(SourceLocation where = SourceLocation::here()) { simt::sync_block(where); }
inline void sync_warp(SourceLocation where = SourceLocation::here()) { simt::sync_warp(where); }

template <class T>
T shuffle(T v, int from, SourceLocation where = SourceLocation::here()) {
  simt::exchange(&v, sizeof v, from & 31, where);
  return v;
}
template <class T>
T shuffle_xor(T v, int mask, SourceLocation where = SourceLocation::here()) {
  simt::exchange(&v, sizeof v, simt::lane() ^ mask, where);
  return v;
}
inline bool any_lane(bool v, SourceLocation where = SourceLocation::here()) {
  const simt::Gathered<bool> all(v, where);
  for (int l = 0; l < warp_size; ++l)
    if (all[l]) return true;
  return false;
}
inline int count_bits(uint32_t bits) { return std::popcount(bits); }
inline uint32_t same_lanes(int v, SourceLocation where = SourceLocation::here()) {
  const simt::Gathered<int> all(v, where);
  uint32_t same = 0;
  for (int l = 0; l < warp_size; ++l) same |= uint32_t(all[l] == v) << l;
  return same;
}
inline int same_before(int v, SourceLocation where = SourceLocation::here()) {
  return count_bits(same_lanes(v, where) & ((1u << simt::lane()) - 1));
}

template <class T>
Shared<T> shared_memory(size_t offset = 0) {
  return Shared<T>(static_cast<T*>(simt::shared_memory(offset, sizeof(T))));
}

template <class T>
void copy_async(Shared<T> to, const T* from, int valid = 16) {
  simt::cp_async(to.unchecked(), from, 16, size_t(valid));
}
template <class T>
void copy_async_or_zero(Shared<T> to, const T* from, bool copied) {
  copy_async(to, from, copied ? 16 : 0);
}
inline void copy_commit() { simt::cp_async_commit(); }
template <int pending>
void copy_wait() {
  simt::cp_async_wait(pending);
}

template <bool transposed, class T>
Fragment load_matrices(Shared<T> row, SourceLocation where = SourceLocation::here()) {
  Fragment f;
  simt::load_matrices(row.unchecked(), transposed, f.part, where);
  return f;
}
template <class T>
void multiply(float (&sum)[2][4], const Fragment& a, const Fragment& b,
              SourceLocation where = SourceLocation::here()) {
  simt::multiply<T>(sum, a.part, b.part, where);
}
inline uint32_t rounded_to_tf32(float x) { return simt::rounded_to_tf32(x); }
template <class T>
uint32_t round_pair(float low, float high) {
  return uint32_t(T(low).bits) | uint32_t(T(high).bits) << 16;
}
inline float exp2_fast(float x) { return std::exp2(x); }
template <class V, class T>
V load_as(const T* p) {
  simt::check_aligned(p, sizeof(V));
  V v;
  std::memcpy(static_cast<void*>(&v), p, sizeof v);
  return v;
}
template <class V, class T>
void store_as(T* p, const V& v) {
  simt::check_aligned(p, sizeof(V));
  std::memcpy(static_cast<void*>(p), &v, sizeof v);
}
template <class V, class T>
void store_global(T* p, const V& v) {
  store_as(p, v);
}
template <class V, class T>
V load_as(Shared<T> p) {
  simt::touch(p.unchecked(), sizeof(V), simt::Access::Read);
  return load_as<V>(p.unchecked());
}
template <class V, class T>
void store_as(Shared<T> p, const V& v) {
  simt::touch(p.unchecked(), sizeof(V), simt::Access::Write);
  store_as(p.unchecked(), v);
}

inline void atomic_add(int* p, int v) { __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline void atomic_max(int* p, int v) {
  int old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < v &&
         !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// (Type-erased: one instance serves a signature and compiles in a third of the time.)
template <class F, class Y, class... X>
using Function = simt::Function<Y, X...>;

#endif

// --- numbers: f16 and bf16 are storage, arithmetic is f32 or f64 ---
using mixtape::math_t;

// widen: to the type in which T is computed. round_to: to another type, rounding once.
template <class T>
MIXTAPE_HD inline math_t<T> widen(T x) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, Half>) return __half2float(__ushort_as_half(x.bits));
#endif
  return math_t<T>(x);
}
template <class To, class From>
MIXTAPE_HD inline To round_to(From x) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<To, Half> && std::is_same_v<From, float>) {
    Half h;
    h.bits = __half_as_ushort(__float2half_rn(x));
    return h;
  } else if constexpr (std::is_same_v<To, BFloat16> && std::is_same_v<From, float>) {
    BFloat16 b;
    b.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return b;
  }
#endif
  return static_cast<To>(x);
}

// n elements for one access; n * sizeof(T) is a power of two, at most 16.
template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T v[n];
};

// This thread's index in a grid of one dimension, and the number of its threads.
__device__ inline int64_t global_thread() {
  return int64_t(block().x) * block_size().x + thread().x;
}
__device__ inline int64_t all_threads() { return int64_t(grid_size().x) * block_size().x; }

// A launch configuration. The name is for errors.
struct Grid {
  const char* name;
  Index3 blocks, threads;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // neighbours along x that run together (gpu_hopper.cuh); divide the blocks
};

// The first launch of a kernel loads its code, for which the caches of device memory are emptied if
// there is no room. Throws Error.
#ifdef __CUDACC__
void launch(const Grid& grid, void* stream, const void* kernel, void** args);

template <class... P>
void launch(const Grid& grid, void* stream, void (*kernel)(P...), std::type_identity_t<P>... args) {
  void* pointers[] = {&args..., nullptr};
  launch(grid, stream, reinterpret_cast<const void*>(kernel), pointers);
}
#else
void load(const Grid& grid, const void* kernel);

template <class... P>
void launch(const Grid& grid, void* stream, void (*kernel)(P...), std::type_identity_t<P>... args) {
  load(grid, reinterpret_cast<const void*>(kernel));
  const auto call = [=] { kernel(args...); };
  simt::launch({grid.name, grid.blocks, grid.threads, grid.shared_bytes,
                reinterpret_cast<const void*>(kernel), grid.cluster},
               stream, call);
}
#endif

int multiprocessors(int device);
// The blocks for `count` iterations of a grid-stride loop: at most as many as the device runs at
// once.
inline Index3 blocks_for(int64_t count, int threads, int device) {
  const int64_t most = int64_t(multiprocessors(device)) * (2048 / threads),
                needed = kernels::ceil_div(count, threads);
  return {unsigned(needed < 1 ? 1 : needed < most ? needed : most), 1, 1};
}
// The number of parts, at most `most`, into which the work of each of `blocks` is cut to fill the
// device.
inline int parts_for(const kernels::Launch& launch, int64_t blocks, int64_t most) {
  const int64_t needed =
      int64_t(multiprocessors(launch.device.index)) * 8 / std::max<int64_t>(1, blocks);
  return int(std::clamp<int64_t>(std::min(needed, most), 1, 1024));
}
// Launches a kernel that runs in a grid-stride loop, unless count is 0.
template <class... P>
void launch_over(const kernels::Launch& launch, const char* name, int64_t count,
                 void (*kernel)(P...), std::type_identity_t<P>... args) {
  if (count > 0)
    gpu::launch({name, blocks_for(count, 256, launch.device.index), {256, 1, 1}}, launch.stream,
                kernel, args...);
}

}  // namespace mixtape::gpu
