// The CUDA calls of the kernels' host code.

#include "core/runtime.h"
#include "kernels/cuda/gpu_hopper.cuh"

#ifdef __CUDACC__
#include <cuda.h>

#include <vector>
#endif

namespace mixtape::gpu {

#ifdef __CUDACC__
void launch_failed(const Grid& grid, int code) {
  cudaGetLastError();  // clears the error, unless it is sticky
  const auto size = [](const Index3& i) {
    return std::to_string(i.x) + " x " + std::to_string(i.y) + " x " + std::to_string(i.z);
  };
  raise(std::string("CUDA: kernel ") + grid.name + " on " + size(grid.blocks) + " blocks of " +
        size(grid.threads) + " threads with " + std::to_string(grid.shared_bytes) +
        " bytes of shared memory: " + cudaGetErrorString(cudaError_t(code)));
}

namespace {

// The driver's function, which the runtime finds: programs do not link the driver.
auto tensor_map_encoder() {
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const auto code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                     cudaEnableDefault, &result);
  if (code != cudaSuccess || result != cudaDriverEntryPointSuccess)
    raise("CUDA: the driver has no cuTensorMapEncodeTiled, which CUDA 12.0 brought");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

TensorMap encode(const BoxedTensor& x) {
  static const auto encoder = tensor_map_encoder();
  const bool tf32 = x.element == BoxElement::Tf32;
  const cuuint32_t bytes = tf32 ? 4 : 2;
  cuuint64_t size[4], stride[3];
  for (int d = 0; d < 4; ++d) size[d] = cuuint64_t(x.size[d]);
  for (int d = 1; d < 4; ++d) stride[d - 1] = cuuint64_t(x.stride[d]) * bytes;
  const cuuint32_t box[4] = {box_row_bytes / bytes, cuuint32_t(x.rows), 1, 1},
                   dense[4] = {1, 1, 1, 1};
  TensorMap map;
  const CUresult code =
      encoder(reinterpret_cast<CUtensorMap*>(&map),
              tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 4,
              const_cast<void*>(x.data), size, stride, box, dense, CU_TENSOR_MAP_INTERLEAVE_NONE,
              CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    raise("CUDA: cuTensorMapEncodeTiled refuses a tensor of " + std::to_string(x.size[0]) + " x " +
          std::to_string(x.size[1]) + " x " + std::to_string(x.size[2]) + " x " +
          std::to_string(x.size[3]) + ", " + std::to_string(x.stride[1] * bytes) +
          " bytes between lines: error " + std::to_string(int(code)));
  return map;
}

}  // namespace

TensorMap make_tensor_map(const BoxedTensor& tensor) {
  struct Made {
    BoxedTensor tensor;
    TensorMap map;
  };
  static thread_local std::vector<Made> made(256);
  uint64_t hash = reinterpret_cast<uintptr_t>(tensor.data) >> 4;
  for (const int64_t n : {tensor.size[0], tensor.size[1], tensor.stride[1], int64_t(tensor.rows)})
    hash = (hash ^ uint64_t(n)) * 0x9e3779b97f4a7c15u;
  Made& place = made[hash >> 56];
  if (!(place.tensor == tensor)) place = {tensor, encode(tensor)};
  return place.map;
}
#endif

int multiprocessors(int device) { return runtime::cuda().properties(device).multiprocessors; }
bool has_groups(int device) {
  const runtime::Properties& p = runtime::cuda().properties(device);
  return p.major == 9 && p.minor == 0;
}

}  // namespace mixtape::gpu
