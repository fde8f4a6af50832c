#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>
#define K __global__ void
extern __shared__ __align__(128) unsigned char sh[];
K good(float* y) {
  float* s = (float*)sh;
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
}
K no_barrier(float* y) {
  volatile float* s = (float*)sh;
  s[threadIdx.x] = threadIdx.x;
  y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
}
K war(float* y) {
  float* s = (float*)sh;
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  float v = s[63 - threadIdx.x];
  s[threadIdx.x] = v;
  y[threadIdx.x] = v;
}
K divergent(float* y) {
  if (threadIdx.x < 16) {
    y[0] = 1;
    __syncthreads();
  } else
    y[threadIdx.x] = 2;
  y[64 + threadIdx.x] = threadIdx.x;
}
K divergent2(float* y, int n) {
  if ((int)threadIdx.x < n) {
    y[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x + 1] = 3;
  } else {
    y[threadIdx.x] = 2;
    __syncthreads();
    y[threadIdx.x] += 5;
  }
}
K outside(float* y) { y[1 << 20] = 1; }
K misaligned(float* y) { *(float4*)(y + 1) = make_float4(1, 2, 3, 4); }
K blocks_race(float* y) { y[threadIdx.x] = blockIdx.x + threadIdx.x + 1; }
K blocks_atomic(int* y) { atomicMax(y + threadIdx.x, (int)blockIdx.x); }
K warps_race(float* y) { y[threadIdx.x & 31] = threadIdx.x + 1; }
K shuffle_mask(float* y) {
  float v = threadIdx.x;
  if (threadIdx.x < 16) v = __shfl_sync(~0u, v, 3);
  y[threadIdx.x] = v;
}
K no_wait(float* y, const float* x) {
  unsigned a = __cvta_generic_to_shared(sh + 16 * threadIdx.x);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(a), "l"(x + 4 * threadIdx.x)
               : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  __syncthreads();
  y[threadIdx.x] = ((float*)sh)[threadIdx.x];
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}
K uninit(float* y) { y[threadIdx.x] = ((float*)sh)[threadIdx.x]; }
K shared_outside(float* y) {
  ((float*)sh)[threadIdx.x * 100] = 1;
  __syncthreads();
  y[0] = ((float*)sh)[0];
}
K __launch_bounds__(32) bounded(float* y) { y[threadIdx.x] = 1; }
K host(float* y, const float* x) { y[threadIdx.x] = x[threadIdx.x]; }
K null_ptr(float* y) { *(float*)nullptr = y[0]; }
int fails = 0;
float *y, *x;
cudaStream_t s;
template <class F>
void t(const char* name, bool bad, F f) {
  fprintf(stderr, "--- %s\n", name);
  cudaError_t e = f();
  cudaError_t e2 = cudaStreamSynchronize(s);
  bool got = e != cudaSuccess || e2 != cudaSuccess;
  cudaGetLastError();
  if (got != bad) {
    ++fails;
    printf("WRONG %s: %s\n", name, bad ? "not noticed" : "false alarm");
  }
}
template <class... A>
cudaError_t go(const void* k, int blocks, int threads, size_t sh, A... a) {
  void* p[] = {&a...};
  return cudaLaunchKernel(k, dim3(blocks), dim3(threads), p, sh, s);
}
int main() {
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  cudaMalloc((void**)&y, 4096);
  cudaMalloc((void**)&x, 4096);
  float h[64] = {};
  cudaMemcpyAsync(x, h, 256, cudaMemcpyDefault, s);
  t("good", false, [&] { return go((void*)good, 2, 64, 256, y); });
  t("no_barrier", true, [&] { return go((void*)no_barrier, 2, 64, 256, y); });
  t("war", true, [&] { return go((void*)war, 1, 64, 256, y); });
  t("divergent", true, [&] { return go((void*)divergent, 1, 64, 256, y); });
  t("divergent2", true, [&] { return go((void*)divergent2, 1, 64, 256, y, 16); });
  t("outside", true, [&] { return go((void*)outside, 1, 1, 0, y); });
  t("misaligned", true, [&] { return go((void*)misaligned, 1, 1, 0, y); });
  t("blocks_race", true, [&] { return go((void*)blocks_race, 2, 32, 0, y); });
  t("blocks_atomic", false, [&] { return go((void*)blocks_atomic, 2, 32, 0, y); });
  t("warps_race", true, [&] { return go((void*)warps_race, 1, 64, 0, y); });
  t("shuffle_mask", true, [&] { return go((void*)shuffle_mask, 1, 32, 0, y); });
  t("shared_outside", true, [&] { return go((void*)shared_outside, 1, 32, 128, y); });
  t("bounded", true, [&] { return go((void*)bounded, 1, 64, 0, y); });
  t("host memory", true, [&] { return go((void*)host, 1, 32, 0, y, (const float*)h); });
  t("null", true, [&] { return go((void*)null_ptr, 1, 1, 0, y); });
  t("shared without attribute", true, [&] { return go((void*)uninit, 1, 32, 50000, y); });
  t("no threads", true, [&] { return go((void*)uninit, 1, 0, 0, y); });
  t("grid", true, [&] {
    void* p[] = {&y};
    return cudaLaunchKernel((void*)uninit, dim3(1, 70000), dim3(1), p, 128, s);
  });
  t("copy outside", true, [&] { return cudaMemcpyAsync(y, h, 8192, cudaMemcpyDefault, s); });
  // poison
  go((void*)uninit, 1, 32, 128, y);
  float r[64];
  cudaMemcpyAsync(r, y, 128, cudaMemcpyDefault, s);
  cudaStreamSynchronize(s);
  if (r[5] == r[5]) ++fails, puts("WRONG uninit");
  go((void*)no_wait, 1, 32, 512, y, (const float*)x);
  cudaMemcpyAsync(r, y, 128, cudaMemcpyDefault, s);
  cudaStreamSynchronize(s);
  if (r[5] == r[5]) ++fails, puts("WRONG no_wait");
  cudaFree(x);
  t("freed", true, [&] { return go((void*)host, 1, 32, 0, y, (const float*)x); });
  t("freed twice", true, [&] { return cudaFree(x); });
  printf("%d wrong\n", fails);
  fflush(stdout);
}
