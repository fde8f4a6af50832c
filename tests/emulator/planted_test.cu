// The PTX interpreter: correct kernels give correct results, and each planted fault is reported. A
// fault makes its program fail, so each runs in its own process.

#include <sanitizer/asan_interface.h>

#include <cmath>
#include <type_traits>
#include <vector>

#include "emulator/ptx/ptx.h"
#include "kernels/cuda/gpu_wmma.cuh"
#include "tests/emulator/planted.h"

namespace {

extern __shared__ __align__(128) float shared[];

float* numbers(size_t count) {
  void* block = nullptr;
  EXPECT_EQ(cudaMalloc(&block, count * sizeof(float)), cudaSuccess);
  return static_cast<float*>(block);
}

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes = 0;
};
template <class... P>
cudaError_t run(const Grid& g, void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  void* list[] = {&arguments...};
  const auto* const function = reinterpret_cast<const void*>(kernel);
  const cudaError_t error =
      cudaLaunchKernel(function, g.blocks, g.threads, list, g.shared_bytes, stream());
  return error != cudaSuccess ? error : cudaStreamSynchronize(stream());
}

#define EXPECT_FAULT(call, text) \
  EXPECT_EXIT(((void)(call), std::exit(0)), testing::ExitedWithCode(97), text)

// --- what is right ---

__global__ void mirror(float* y) {
  shared[threadIdx.x] = float(threadIdx.x);
  __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
TEST(Ptx, WarpsMeetAtABarrier) {
  float* const y = numbers(192);
  EXPECT_EQ(run({2, 96, 384}, mirror, y), cudaSuccess);
  const std::vector<float> got = read(y, 192);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], float(95 - i % 96));
}

__global__ void first_of_half(float* y) {
  const unsigned half = threadIdx.x < 16 ? 0xffff : 0xffff0000;
  y[threadIdx.x] = __shfl_sync(half, float(threadIdx.x), 0, 16);
}
TEST(Ptx, HalvesOfAWarpShuffleApart) {
  float* const y = numbers(32);
  EXPECT_EQ(run({1, 32}, first_of_half, y), cudaSuccess);
  const std::vector<float> got = read(y, 32);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], i < 16 ? 0 : 16);
}

__global__ void largest_block(float* y) {
  atomicMax(reinterpret_cast<int*>(y) + threadIdx.x, int(blockIdx.x));
}
TEST(Ptx, BlocksMayMeetInAtomics) {
  EXPECT_EQ(run({3, 32}, largest_block, numbers(32)), cudaSuccess);
}

// --- memory ---

__global__ void write_at(float* y, int i) { y[i] = 1; }
__global__ void write_four(float* y) { *reinterpret_cast<float4*>(y + 1) = {1, 2, 3, 4}; }
__global__ void write_shared_at(float* y, int i) {
  shared[i] = 1;
  y[0] = shared[0];
}
__global__ void read_shared(float* y) { y[threadIdx.x] = shared[threadIdx.x]; }

TEST(Ptx, FindsStrayAccesses) {
  float* const y = numbers(64);
  float host = 0;
  EXPECT_FAULT(run({1, 1}, write_at, y, 64),
               "write_at.*: memory of device 0, at 256 of a block of 256");
  EXPECT_FAULT(run({1, 1}, write_at, nullptr, 0), "4 bytes at 0x0: neither a device's nor pinned");
  EXPECT_FAULT(run({1, 1}, write_at, &host, 0), "neither a device's nor pinned");
  EXPECT_FAULT(run({1, 1, 128}, write_shared_at, y, 32), "shared memory of 128 bytes, at 128: 4");
  EXPECT_FAULT(run({1, 1}, write_four, y), "misaligned: 16 bytes at");
}
TEST(Ptx, FindsAccessesToFreedAndPoisonedMemory) {
  float *const y = numbers(64), *const gone = numbers(64);
  EXPECT_EQ(cudaFree(gone), cudaSuccess);
  EXPECT_FAULT(run({1, 1}, write_at, gone, 0), "memory of device 0");
  EXPECT_FAULT(cudaFree(gone), "cudaFree of what cudaMalloc did not give");
  __asan_poison_memory_region(y + 32, 128);
  EXPECT_EQ(run({1, 1}, write_at, y, 31), cudaSuccess);
  EXPECT_FAULT(run({1, 1}, write_at, y, 32), "memory of device 0, at 128 of a block of 128");
  __asan_unpoison_memory_region(y, 256);
  EXPECT_EQ(run({1, 1}, write_at, y, 32), cudaSuccess);
}
TEST(Ptx, SharedMemoryIsNanUntilItIsWritten) {
  float* const y = numbers(32);
  EXPECT_EQ(run({1, 32, 128}, read_shared, y), cudaSuccess);
  for (const float v : read(y, 32)) EXPECT_TRUE(std::isnan(v));
}

// --- races ---

__global__ void mirror_at_once(float* y) {
  shared[threadIdx.x] = float(threadIdx.x);
  y[threadIdx.x] = static_cast<volatile float*>(shared)[blockDim.x - 1 - threadIdx.x];
}
__global__ void mirror_in_place(float* y) {
  shared[threadIdx.x] = float(threadIdx.x);
  __syncthreads();
  const float v = shared[blockDim.x - 1 - threadIdx.x];
  shared[threadIdx.x] = v;
  y[threadIdx.x] = v;
}
__global__ void number_blocks(float* y) { y[threadIdx.x] = float(blockIdx.x + 1); }
__global__ void number_warps(float* y) { y[threadIdx.x % 32] = float(threadIdx.x + 1); }

TEST(Ptx, FindsRaces) {
  float* const y = numbers(64);
  EXPECT_FAULT(run({1, 64, 256}, mirror_at_once, y), "shared memory that is read by block 0, warp");
  EXPECT_FAULT(run({1, 64, 256}, mirror_in_place, y),
               "shared memory that was written by block 0, warp 0");
  EXPECT_FAULT(run({2, 32}, number_blocks, y), "memory that was written by block 0, warp 0");
  EXPECT_FAULT(run({1, 64}, number_warps, y), "memory that was written by block 0, warp");
}

// --- lanes that do not meet ---

__global__ void two_barriers(float* y, int n) {
  if (int(threadIdx.x) < n) {
    y[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x + 1] = 3;
  } else {
    y[threadIdx.x] = 2;
    __syncthreads();
    y[threadIdx.x] += 5;
  }
}
__global__ void two_shuffles(float* y) {
  const auto i = float(threadIdx.x);
  y[threadIdx.x] = threadIdx.x < 16 ? __shfl_sync(~0u, i, 3) : __shfl_down_sync(~0u, 2 * i, 1);
}
__global__ void shuffle_of_others(float* y) {
  y[threadIdx.x] = __shfl_sync(0xffff, float(threadIdx.x), 3);
}
__global__ void load_matrices(float* y) {
  const auto from = unsigned(__cvta_generic_to_shared(shared + 4 * threadIdx.x));
  unsigned a = 0, b = 0, c = 0, d = 0;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(from));
  y[threadIdx.x] = float(a + b + c + d);
}

TEST(Ptx, FindsLanesThatNeverMeet) {
  float* const y = numbers(64);
  EXPECT_FAULT(run({1, 32}, two_barriers, y, 16), "waits for lanes that never come");
  EXPECT_FAULT(run({1, 32}, two_shuffles, y), "waits for lanes that never come");
  EXPECT_FAULT(run({1, 32}, shuffle_of_others, y), "is not among the lanes it names");
  EXPECT_EQ(run({1, 32, 512}, load_matrices, y), cudaSuccess);
  EXPECT_FAULT(run({1, 16, 512}, load_matrices, y), "needs all lanes of a warp");
}

// --- wmma ---

enum WmmaBug { Right, Misaligned, UnalignedLines, ApartLanes };

// A product with the identity matrix: a from shared, b from global memory, to shared memory.
template <class T, bool a_by_rows, bool b_by_rows>
__global__ void wmma_identity(float* y, const T* x, int bug) {
  using namespace mixtape::gpu;
  constexpr int depth = matrix_depth<T>;
  T* const room = shared_memory<T>();
  const int lda = a_by_rows ? depth : 16, ldb = b_by_rows ? 16 : depth;
  for (int i = int(threadIdx.x); i < 16 * depth; i += 32)
    room[i] = T(float(a_by_rows ? i % depth == i / depth : i % 16 == i / 16));
  __syncwarp();
  Matrix<Use::A, T, a_by_rows> a;
  Matrix<Use::B, T, b_by_rows> b;
  load_matrix(a,
              room + (bug == Misaligned   ? 8
                      : bug == ApartLanes ? threadIdx.x % 2 * 16
                                          : 0),
              bug == UnalignedLines ? 2 : lda);
  load_global_matrix(b, x, ldb);
  MatrixSum<T> sum = {};
  multiply(sum, a, b);
  float* const out = shared_memory<float>(1024);
  store_matrix(out, 16, sum);
  __syncwarp();
  for (int i = int(threadIdx.x); i < 256; i += 32) y[i] = out[i];
}
template <class T, bool a_by_rows, bool b_by_rows>
void expect_wmma_identity() {
  constexpr int depth = mixtape::gpu::matrix_depth<T>;
  float *const y = numbers(256), *const x = numbers(256);
  std::vector<T> from(16 * depth);
  for (int i = 0; i < 16 * depth; ++i) from[size_t(i)] = T(float(i));
  EXPECT_EQ(cudaMemcpyAsync(x, from.data(), from.size() * sizeof(T), cudaMemcpyDefault, stream()),
            cudaSuccess);
  EXPECT_EQ(run({1, 32, 2048}, wmma_identity<T, a_by_rows, b_by_rows>, y,
                reinterpret_cast<const T*>(x), Right),
            cudaSuccess);
  const std::vector<float> got = read(y, 256);
  for (int i = 0; i < 256; ++i) {
    const int r = i / 16, c = i % 16;
    const float want = r < depth ? float(b_by_rows ? i : c * depth + r) : 0;
    ASSERT_EQ(got[size_t(i)], want) << i;
  }
}
template <class T>
void expect_wmma_identities() {
  expect_wmma_identity<T, true, true>();
  expect_wmma_identity<T, true, false>();
  expect_wmma_identity<T, false, true>();
  expect_wmma_identity<T, false, false>();
}
TEST(Ptx, WmmaMultiplies) {
  expect_wmma_identities<mixtape::Half>();
  expect_wmma_identities<mixtape::BFloat16>();
  expect_wmma_identities<float>();
}
TEST(Ptx, FindsMisusesOfWmma) {
  float* const y = numbers(256);
  const auto* const x = reinterpret_cast<const mixtape::BFloat16*>(numbers(256));
  const auto planted = [&](WmmaBug bug) {
    (void)run({1, 32, 2048}, wmma_identity<mixtape::BFloat16, true, true>, y, x, bug);
  };
  EXPECT_FAULT(planted(Misaligned), "misaligned: 32 bytes");
  EXPECT_FAULT(planted(UnalignedLines), "misaligned: 16 bytes");
  EXPECT_FAULT(planted(ApartLanes), "names another matrix than the lanes before it");
  EXPECT_FAULT(run({1, 16, 2048}, wmma_identity<mixtape::BFloat16, true, true>, y, x, Right),
               "needs all lanes of a warp");
}

// --- copies without a wait ---

template <bool waits>
__global__ void copy(float* y, const float* x) {
  const auto to = unsigned(__cvta_generic_to_shared(shared + 4 * threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(x + 4 * threadIdx.x)
               : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  y[threadIdx.x] = shared[4 * threadIdx.x];
  if (waits) asm volatile("cp.async.wait_group 0;" ::: "memory");
}
TEST(Ptx, CopiesArriveWhenTheyAreWaitedFor) {
  float *const y = numbers(32), *const x = numbers(128);
  const std::vector<float> ones(128, 1.0f);
  EXPECT_EQ(cudaMemcpyAsync(x, ones.data(), 512, cudaMemcpyDefault, stream()), cudaSuccess);
  EXPECT_EQ(run({1, 32, 512}, copy<true>, y, x), cudaSuccess);
  for (const float v : read(y, 32)) EXPECT_TRUE(std::isnan(v));
  EXPECT_FAULT(run({1, 32, 512}, copy<false>, y, x), "exits while a cp.async is under way");
}

// --- what a launch or a copy may ask for ---

__global__ void __launch_bounds__(32) narrow(float* y) { y[threadIdx.x] = 1; }

TEST(Ptx, RefusesWhatIsBeyondLimits) {
  float* const y = numbers(64);
  const std::vector<float> x(128);
  EXPECT_FAULT(run({1, 64}, narrow, y), "64 threads of 32");
  EXPECT_FAULT(run({1, 0}, narrow, y), "0 threads of 32");
  EXPECT_FAULT(run({{1, 70000}, 1}, narrow, y), "a grid of 1 x 70000 x 1");
  EXPECT_FAULT(run({1, 32, 50000}, read_shared, y), "more shared memory than was asked for");
  EXPECT_FAULT(cudaMemcpyAsync(y, x.data(), 512, cudaMemcpyDefault, stream()),
               "a copy of 512 bytes: memory of device 0, at 0 of a block of 256");
}

TEST(Ptx, RefusesConversionsThatItWouldNotRound) {
  int32_t how = 0;
  for (const char* name : {"cvt.rn.f16.f32", "cvt.rn.bf16.f32", "cvt.rz.f32.f64", "cvt.f32.f16"})
    EXPECT_TRUE(mixtape::ptx::convert_op(name, how)) << name;
  for (const char* name : {"cvt.rz.f16.f32", "cvt.rn.sat.f16.f32", "cvt.rp.bf16.f32",
                           "cvt.rn.bf16.f64", "cvt.rni.f16.f16"})
    EXPECT_FALSE(mixtape::ptx::convert_op(name, how)) << name;
}

}  // namespace
