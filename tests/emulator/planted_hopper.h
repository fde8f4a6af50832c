#pragma once
// Running kernels for compute capability 9.0 on the interpreter of PTX. A fault makes its program
// fail, so each runs in its own process.

#include <cuda.h>

#include <cstdlib>
#include <type_traits>
#include <vector>

#include "core/half.h"
#include "kernels/cuda/gpu_hopper.cuh"
#include "tests/emulator/planted.h"

namespace {

using namespace mixtape;
using namespace mixtape::gpu;

extern __shared__ __align__(1024) char bytes[];

const bool races = std::getenv("MIXTAPE_PTX_RACES") != nullptr;

template <class T>
T* on_device(const std::vector<T>& from) {
  void* block = nullptr;
  EXPECT_EQ(cudaMalloc(&block, from.size() * sizeof(T)), cudaSuccess);
  EXPECT_EQ(
      cudaMemcpyAsync(block, from.data(), from.size() * sizeof(T), cudaMemcpyDefault, stream()),
      cudaSuccess);
  return static_cast<T*>(block);
}
// Blocks of this many threads, in clusters if `cluster` is more than 1.
struct Shape {
  unsigned threads, blocks = 1, cluster = 1;
};
template <class... P>
cudaError_t start(Shape shape, size_t shared, void (*kernel)(P...),
                  std::type_identity_t<P>... arguments) {
  void* list[] = {&arguments...};
  const auto* const function = reinterpret_cast<const void*>(kernel);
  EXPECT_EQ(
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)),
      cudaSuccess);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream();
  config.attrs = &cluster;
  config.numAttrs = shape.cluster > 1;
  return cudaLaunchKernelExC(&config, function, list);
}
template <class... P>
cudaError_t run(Shape shape, size_t shared, void (*kernel)(P...),
                std::type_identity_t<P>... arguments) {
  const cudaError_t error = start(shape, shared, kernel, arguments...);
  return error != cudaSuccess ? error : cudaStreamSynchronize(stream());
}
template <class... P>
cudaError_t run(unsigned threads, size_t shared, void (*kernel)(P...),
                std::type_identity_t<P>... arguments) {
  return run(Shape{threads}, shared, kernel, arguments...);
}

#define EXPECT_FAULT(call, text) \
  EXPECT_EXIT(((void)(call), std::exit(0)), testing::ExitedWithCode(97), text)

// --- tensor maps ---

struct Asked {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  void* address = nullptr;
  cuuint64_t size[2] = {64, 64}, stride = 128;
  cuuint32_t box[2] = {64, 64};
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};
TensorMap map_of(const Asked& a) {
  void* function = nullptr;
  EXPECT_EQ(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, 0, nullptr),
      cudaSuccess);
  const cuuint32_t steps[4] = {1, 1, 1, 1}, box[4] = {a.box[0], a.box[1], 1, 1};
  const cuuint64_t size[4] = {a.size[0], a.size[1], 1, 1}, strides[3] = {a.stride, 16, 16};
  CUtensorMap made;  // (a result that is not used may be misaligned)
  reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &made, a.type, 4, a.address, size, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      a.swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TensorMap map{};
  std::memcpy(&map, &made, sizeof map);
  return map;
}

}  // namespace
