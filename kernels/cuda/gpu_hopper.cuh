#pragma once
// Compute capability 9.0's additions to gpu.cuh: barriers that count bytes, copies of boxes of a
// tensor by the copy engine (TMA), products by groups of four warps (wgmma), clusters: neighbouring
// blocks that run together (Grid::cluster) and reach each other's shared memory. nvcc generates
// them for sm_90a alone; elsewhere bodies are empty, and a kernel that needs them must not be
// launched.

#include "kernels/cuda/gpu.cuh"

#ifndef __CUDACC__
#include "emulator/simt/hopper.h"
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MIXTAPE_ASM(...) asm volatile(__VA_ARGS__)
#else
#define MIXTAPE_ASM(...) static_cast<void>(0)
#endif

namespace mixtape::gpu {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
constexpr bool compiled_for_hopper = true;
#else
constexpr bool compiled_for_hopper = false;
#endif

// The width of a row of a box: 128 bytes. Chunk c (of 16 bytes) of row r is at chunk c ^ r % 8 in
// shared memory (128-byte swizzle), so boxes are aligned to 1024 bytes there.
constexpr int box_row_bytes = 128;

// Elements as the copy engine sees them: it rounds f32 to TF32 on the way to shared memory.
enum class BoxElement { Bits16, Tf32 };

// A tensor of four dimensions, the dense one first, that is copied in boxes. What lies beyond its
// sizes is read as zeros and not written.
struct BoxedTensor {
  const void* data = nullptr;  // aligned to 16 bytes
  BoxElement element = BoxElement::Bits16;
  int64_t size[4] = {1, 1, 1, 1};
  int64_t stride[4] = {1, 8, 8, 8};  // in elements; all but the first are multiples of 16 bytes
  int rows = 1;                      // a box is box_row_bytes wide and `rows` high, at most 256
  friend bool operator==(const BoxedTensor&, const BoxedTensor&) = default;
};
// The first element of a box. It may lie beyond the tensor, also below 0.
struct BoxAt {
  int x = 0, y = 0, z = 0, w = 0;
};

bool has_groups(int device);  // True if it runs what this file declares: capability 9.0.

#ifdef __CUDACC__

// A tensor for the copy engine: a parameter of kernels, or part of one, that is __grid_constant__.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};
// Throws Error if the driver refuses. (A thread remembers maps that it made.)
TensorMap make_tensor_map(const BoxedTensor& tensor);

// A barrier in shared memory. Its phase ends when all arrivals have come, and all bytes that they
// said to expect; the phases of a barrier have parity 0, 1, 0, ...
struct alignas(8) Barrier {
  uint64_t state;
};

#define MIXTAPE_SHARED(p) static_cast<unsigned>(__cvta_generic_to_shared(p))

__device__ inline void barrier_init(Shared<Barrier> b, int arrivals) {
  MIXTAPE_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(MIXTAPE_SHARED(b)),
              "r"(arrivals) : "memory");
}
// Shows new barriers to the copy engine. A block then needs a sync_block() as well.
__device__ inline void fence_barrier_init() {
  MIXTAPE_ASM("fence.mbarrier_init.release.cluster;" :: : "memory");
}
// Arrives, and makes this phase last until `bytes` more have been copied.
__device__ inline void barrier_expect(Shared<Barrier> b, int bytes) {
  MIXTAPE_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(MIXTAPE_SHARED(b)),
              "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive(Shared<Barrier> b) {
  MIXTAPE_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(MIXTAPE_SHARED(b)) : "memory");
}
// The same at the barrier at this place in a block of the cluster, by its rank. That block must not
// have ended. It hands slots back, and shows no stores to the other block: a release for the
// cluster would wait for all that this thread has in flight.
__device__ inline void barrier_arrive(Shared<Barrier> b, int rank) {
  MIXTAPE_ASM(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(MIXTAPE_SHARED(b)),
      "r"(rank) : "memory");
}
// Waits until the phase of this parity is over. (The phase before a new barrier's first has parity
// 1, and is over.)
__device__ inline void barrier_wait(Shared<Barrier> b, uint32_t parity) {
  uint32_t over = 1;
  do {
    MIXTAPE_ASM(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}" : "=r"(over) : "r"(MIXTAPE_SHARED(b)),
        "r"(parity) : "memory");
  } while (over == 0);
}

// Starts the copy of a box to shared memory, aligned to 1024 bytes; its bytes end on `b`. One
// thread calls it.
template <class T>
__device__ inline void load_box(Shared<T> to, const TensorMap& from, Shared<Barrier> b, BoxAt at) {
  MIXTAPE_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(MIXTAPE_SHARED(to)),
      "l"(&from), "r"(MIXTAPE_SHARED(b)), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w) : "memory");
}
// The same to these blocks of the cluster, a bit for each rank: to this place in each, and its
// bytes end on the barrier at that place in each. It is read once.
template <class T>
__device__ inline void load_box(Shared<T> to, const TensorMap& from, Shared<Barrier> b, BoxAt at,
                                unsigned blocks) {
  MIXTAPE_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(MIXTAPE_SHARED(to)),
      "l"(&from), "r"(MIXTAPE_SHARED(b)), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w),
      "h"(uint16_t(blocks)) : "memory");
}
// Starts the copy of a box from shared memory, whose writers have called fence_async() and met the
// calling thread at a barrier.
template <class T>
__device__ inline void store_box(const TensorMap& to, Shared<T> from, BoxAt at) {
  MIXTAPE_ASM(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &to),
      "r"(MIXTAPE_SHARED(from)), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w) : "memory");
}
// Groups the copies that this thread started by store_box(); waits until at most `pending` of its
// groups have yet to be written, or to be read from shared memory.
__device__ inline void store_commit() { MIXTAPE_ASM("cp.async.bulk.commit_group;" :: : "memory"); }
template <int pending>
__device__ inline void store_wait() {
  MIXTAPE_ASM("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}
template <int pending>
__device__ inline void store_wait_read() {
  MIXTAPE_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
// Orders this thread's accesses of shared memory before those of copy engine and tensor cores that
// are started after a later barrier.
__device__ inline void fence_async() {
  MIXTAPE_ASM("fence.proxy.async.shared::cta;" :: : "memory");
}

// An operand of multiply_group() in shared memory: rows of 128 swizzled bytes, as boxes have them.
// Not transposed, lines of the operand are rows along k; the next 16 elements (TF32: 8) of k are 32
// bytes on. Transposed, for elements of two bytes, each row is one step of k of 64 lines; more
// lines are `lead` bytes on, and the next 16 steps of k are 2048 bytes on.
using Operand = uint64_t;
template <class T>
__device__ inline Operand make_operand(Shared<T> first, bool transposed, int lead) {
  constexpr uint64_t eight_rows = 8 * box_row_bytes, swizzled = uint64_t(1) << 62;
  return (MIXTAPE_SHARED(first) & 0x3ffff) >> 4 | uint64_t(transposed ? lead >> 4 : 1) << 16 |
         (eight_rows >> 4) << 32 | swizzled;
}

// clang-format off
// The text of wgmma: "%0, ..., %(n / 2 - 1)" for its sums, and the sums as operands.
#define MIXTAPE_TEN(t)                                                                             \
  "%" t "0, %" t "1, %" t "2, %" t "3, %" t "4, %" t "5, %" t "6, %" t "7, %" t "8, %" t "9, "
#define MIXTAPE_SIXTY                                                                              \
  MIXTAPE_TEN("") MIXTAPE_TEN("1") MIXTAPE_TEN("2") MIXTAPE_TEN("3") MIXTAPE_TEN("4") MIXTAPE_TEN("5")
#define MIXTAPE_SUMS_32 MIXTAPE_TEN("") MIXTAPE_TEN("1") MIXTAPE_TEN("2") "%30, %31"
#define MIXTAPE_SUMS_64 MIXTAPE_SIXTY "%60, %61, %62, %63"
#define MIXTAPE_SUMS_128                                                                           \
  MIXTAPE_SIXTY MIXTAPE_TEN("6") MIXTAPE_TEN("7") MIXTAPE_TEN("8") MIXTAPE_TEN("9")                \
  MIXTAPE_TEN("10") MIXTAPE_TEN("11") "%120, %121, %122, %123, %124, %125, %126, %127"
#define MIXTAPE_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MIXTAPE_16(i) MIXTAPE_4(i), MIXTAPE_4(i + 4), MIXTAPE_4(i + 8), MIXTAPE_4(i + 12)
#define MIXTAPE_OPERANDS_32 MIXTAPE_16(0), MIXTAPE_16(16)
#define MIXTAPE_OPERANDS_64 MIXTAPE_OPERANDS_32, MIXTAPE_16(32), MIXTAPE_16(48)
#define MIXTAPE_OPERANDS_128 \
  MIXTAPE_OPERANDS_64, MIXTAPE_16(64), MIXTAPE_16(80), MIXTAPE_16(96), MIXTAPE_16(112)
// count = n / 2; a, b, add, ta, tb: the numbers of the operands behind the sums, as text.
#define MIXTAPE_WGMMA(count, shape, types, a_at, b_at, add_at, ta_at, tb_at)                \
  if constexpr (sizeof(T) == 2)                                                             \
    MIXTAPE_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %" add_at                                 \
                ", 0;\n"                                                                    \
                "wgmma.mma_async.sync.aligned." shape types " {" MIXTAPE_SUMS_##count       \
                "}, %" a_at ", %" b_at ", p, 1, 1, %" ta_at ", %" tb_at                     \
                ";\n}" : MIXTAPE_OPERANDS_##count : "l"(a),                                 \
                "l"(b), "r"(int(add)), "n"(int(ta)), "n"(int(tb)));                         \
  else                                                                                      \
    MIXTAPE_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %" add_at                                 \
                ", 0;\n"                                                                    \
                "wgmma.mma_async.sync.aligned." shape types " {" MIXTAPE_SUMS_##count       \
                "}, %" a_at ", %" b_at ", p, 1, 1;\n}" : MIXTAPE_OPERANDS_##count : "l"(a), \
                "l"(b), "r"(int(add)))
#define MIXTAPE_WGMMA_OF(k, types)                                             \
  if constexpr (n == 64) {                                                     \
    MIXTAPE_WGMMA(32, "m64n64" k, types, "32", "33", "34", "35", "36");        \
  } else if constexpr (n == 128) {                                             \
    MIXTAPE_WGMMA(64, "m64n128" k, types, "64", "65", "66", "67", "68");       \
  } else {                                                                     \
    MIXTAPE_WGMMA(128, "m64n256" k, types, "128", "129", "130", "131", "132"); \
  }
// clang-format on

// Starts d = a b^T (+ d if `add`) for 64 lines of a and n of b, 32 bytes deep along k: 16 steps of
// f16 or bf16, 8 of TF32. ta, tb: the operand is transposed. The 128 threads of four neighbouring
// warps, from a multiple of four on, call it together; thread t has of row 16 (t / 32) + t % 32 / 4
// + 8 (i / 2 % 2) column 8 (i / 4) + t % 4 * 2 + i % 2 as d[i]. d, and what a and b name, must not
// be touched until group_wait() has seen the product.
template <class T, int n, bool ta, bool tb>
__device__ __forceinline__ void multiply_group(float (&d)[n / 2], Operand a, Operand b, bool add) {
  static_assert(n == 64 || n == 128 || n == 256);
  static_assert(sizeof(T) == 2 || (!ta && !tb), "TF32 operands are along k");
  if constexpr (std::is_same_v<T, Half>) {
    MIXTAPE_WGMMA_OF("k16", ".f32.f16.f16")
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    MIXTAPE_WGMMA_OF("k16", ".f32.bf16.bf16")
  } else {
    MIXTAPE_WGMMA_OF("k8", ".f32.tf32.tf32")
  }
}
#undef MIXTAPE_WGMMA_OF
#undef MIXTAPE_WGMMA
#undef MIXTAPE_OPERANDS_128
#undef MIXTAPE_OPERANDS_64
#undef MIXTAPE_OPERANDS_32
#undef MIXTAPE_16
#undef MIXTAPE_4
#undef MIXTAPE_SUMS_128
#undef MIXTAPE_SUMS_64
#undef MIXTAPE_SUMS_32
#undef MIXTAPE_SIXTY
#undef MIXTAPE_TEN

// Before the first product: orders this thread's accesses of its sums before it.
__device__ inline void group_fence() { MIXTAPE_ASM("wgmma.fence.sync.aligned;" :: : "memory"); }
// Groups the products started since the last call; waits until at most `pending` groups run.
__device__ inline void group_commit() {
  MIXTAPE_ASM("wgmma.commit_group.sync.aligned;" :: : "memory");
}
template <int pending>
__device__ inline void group_wait() {
  MIXTAPE_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Stores four matrices of 8 rows of 16 bytes, the reverse of gpu::load_matrices<false>(): `row` is
// row lane % 8 of matrix lane / 8, part[i] word lane % 4 of row lane / 4 of matrix i.
template <class T>
__device__ inline void store_matrices(Shared<T> row, const uint32_t (&part)[4]) {
  MIXTAPE_ASM(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(MIXTAPE_SHARED(row)),
      "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3]) : "memory");
}

// A barrier of `count` threads, whole warps; id 1 to 15 (0 is sync_block's).
__device__ inline void sync_threads(int id, int count) {
  MIXTAPE_ASM("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}
// Changes the registers of each thread of the calling group of four warps to n, a multiple of 8.
// Raising waits until others of the block have given back enough.
template <int n>
__device__ inline void raise_registers() {
  MIXTAPE_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ inline void lower_registers() {
  MIXTAPE_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

// This block's rank in its cluster.
__device__ inline int cluster_rank() {
  int rank = 0;
  MIXTAPE_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// A barrier of all threads of the cluster that have not ended, in two steps. What a thread did
// before it arrives has happened for those that have waited.
__device__ inline void cluster_arrive() {
  MIXTAPE_ASM("barrier.cluster.arrive.release;" :: : "memory");
}
__device__ inline void cluster_wait() {
  MIXTAPE_ASM("barrier.cluster.wait.acquire;" :: : "memory");
}
#undef MIXTAPE_SHARED
#undef MIXTAPE_ASM

#else

using simt::Barrier;
using simt::TensorMap;

inline TensorMap make_tensor_map(const BoxedTensor& x) {
  const bool tf32 = x.element == BoxElement::Tf32;
  TensorMap map{x.data, tf32 ? 4 : 2, tf32, {}, {}, x.rows};
  std::copy(x.size, x.size + 4, map.size);
  std::copy(x.stride, x.stride + 4, map.stride);
  simt::check_map(map);
  return map;
}

inline void barrier_init(Shared<Barrier> b, int arrivals) {
  simt::barrier_init(b.unchecked(), arrivals);
}
inline void fence_barrier_init() { simt::fence_barrier_init(); }
inline void barrier_expect(Shared<Barrier> b, int bytes) {
  simt::barrier_expect(b.unchecked(), bytes);
}
inline void barrier_arrive(Shared<Barrier> b) { simt::barrier_arrive(b.unchecked()); }
inline void barrier_arrive(Shared<Barrier> b, int rank,
                           SourceLocation where = SourceLocation::here()) {
  simt::barrier_arrive(b.unchecked(), rank, where);
}
inline void barrier_wait(Shared<Barrier> b, uint32_t parity,
                         SourceLocation where = SourceLocation::here()) {
  simt::barrier_wait(b.unchecked(), parity, where);
}

template <class T>
void load_box(Shared<T> to, const TensorMap& from, Shared<Barrier> b, BoxAt at, unsigned blocks,
              SourceLocation where = SourceLocation::here()) {
  simt::load_box(to.unchecked(), from, b.unchecked(), {{at.x, at.y, at.z, at.w}}, blocks, where);
}
template <class T>
void load_box(Shared<T> to, const TensorMap& from, Shared<Barrier> b, BoxAt at,
              SourceLocation where = SourceLocation::here()) {
  load_box(to, from, b, at, 1u << simt::cluster_rank(), where);
}
template <class T>
void store_box(const TensorMap& to, Shared<T> from, BoxAt at,
               SourceLocation where = SourceLocation::here()) {
  simt::store_box(to, from.unchecked(), {{at.x, at.y, at.z, at.w}}, where);
}
inline void store_commit() { simt::store_commit(); }
template <int pending>
void store_wait() {
  simt::store_wait(pending);
}
template <int pending>
void store_wait_read() {
  simt::store_wait(pending);
}
inline void fence_async() { simt::fence_async(); }

using Operand = uint64_t;
template <class T>
Operand make_operand(Shared<T> first, bool transposed, int lead) {
  return simt::operand(first.unchecked(), transposed, lead);
}
template <class T, int n, bool ta, bool tb>
void multiply_group(float (&d)[n / 2], Operand a, Operand b, bool add,
                    SourceLocation where = SourceLocation::here()) {
  static_assert(n == 64 || n == 128 || n == 256);
  static_assert(sizeof(T) == 2 || (!ta && !tb), "TF32 operands are along k");
  constexpr auto type = std::is_same_v<T, Half>       ? simt::Product::Half
                        : std::is_same_v<T, BFloat16> ? simt::Product::BFloat16
                                                      : simt::Product::Tf32;
  simt::multiply_group({type, d, n, a, b, ta, tb, add}, where);
}
inline void group_fence() { simt::group_fence(); }
inline void group_commit() { simt::group_commit(); }
template <int pending>
void group_wait(SourceLocation where = SourceLocation::here()) {
  simt::group_wait(pending, where);
}

template <class T>
void store_matrices(Shared<T> row, const uint32_t (&part)[4],
                    SourceLocation where = SourceLocation::here()) {
  simt::store_matrices(row.unchecked(), part, where);
}
inline void sync_threads(int id, int count, SourceLocation where = SourceLocation::here()) {
  simt::sync_threads(id, count, where);
}
template <int n>
void raise_registers(SourceLocation where = SourceLocation::here()) {
  simt::set_registers(n, true, where);
}
template <int n>
void lower_registers(SourceLocation where = SourceLocation::here()) {
  simt::set_registers(n, false, where);
}

inline int cluster_rank() { return simt::cluster_rank(); }
inline void cluster_arrive(SourceLocation where = SourceLocation::here()) {
  simt::cluster_arrive(where);
}
inline void cluster_wait(SourceLocation where = SourceLocation::here()) {
  simt::cluster_wait(where);
}

#endif

}  // namespace mixtape::gpu
