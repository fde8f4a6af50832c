// The CUDA calls of the kernels' host code.

#include "core/allocator.h"
#include "core/runtime.h"
#include "core/thread_state.h"
#include "kernels/cuda/gpu_hopper.cuh"

#ifdef __CUDACC__
#include <cuda.h>

#include <unordered_map>
#include <vector>
#else
#include "emulator/simt/runtime.h"
#endif

namespace mixtape::gpu {
namespace {

[[noreturn]] void launch_failed(const Grid& grid, const std::string& reason) {
  const auto size = [](const Index3& i) {
    return std::to_string(i.x) + " x " + std::to_string(i.y) + " x " + std::to_string(i.z);
  };
  raise(std::string("CUDA: kernel ") + grid.name + " on " + size(grid.blocks) + " blocks of " +
        size(grid.threads) + " threads with " + std::to_string(grid.shared_bytes) +
        " bytes of shared memory: " + reason);
}

// Calls `attempt`, which returns false for lack of memory, and once more when the caches are empty
// (but not during a capture, which has run before and may free nothing).
template <class Attempt>
bool with_room(Attempt attempt) {
  if (attempt()) return true;
  if (internal::captured_graph) return false;
  for (const Device device : runtime::devices()) empty_cache(device);
  return attempt();
}

}  // namespace

#ifdef __CUDACC__
namespace {

// A kernel may have more than 48 KB of shared memory once that is allowed for it on a device, which
// each thread does once.
cudaError_t allow_shared_memory(const void* kernel, size_t bytes) {
  static thread_local std::unordered_map<const void*, size_t> allowed[max_devices];
  int device = 0;
  if (const auto code = cudaGetDevice(&device); code != cudaSuccess) return code;
  size_t& already = allowed[device][kernel];
  if (bytes <= already) return cudaSuccess;
  const auto code =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  if (code == cudaSuccess) already = bytes;
  return code;
}

cudaError_t start(const Grid& grid, cudaStream_t stream, const void* kernel, void** args) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {grid.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = grid.cluster > 1;
  return cudaLaunchKernelExC(&config, kernel, args);
}

}  // namespace

void launch(const Grid& grid, void* stream, const void* kernel, void** args) {
  runtime::note_launch(grid.name);
  auto code = cudaSuccess;
  with_room([&] {
    code = grid.shared_bytes > 48 * 1024 ? allow_shared_memory(kernel, grid.shared_bytes)
                                         : cudaSuccess;
    if (code == cudaSuccess) code = start(grid, static_cast<cudaStream_t>(stream), kernel, args);
    if (code != cudaSuccess) cudaGetLastError();  // clears the error, unless it is sticky
    return code != cudaErrorMemoryAllocation;
  });
  if (code != cudaSuccess)
    launch_failed(grid, cudaGetErrorString(code) + runtime::last_launches(code));
}

namespace {

// The driver's function, which the runtime finds: programs do not link the driver.
auto tensor_map_encoder() {
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  const auto code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                     cudaEnableDefault, &result);
#else
  const auto code =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
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
#else
void load(const Grid& grid, const void* kernel) {
  runtime::note_launch(grid.name);
  if (!with_room([&] { return simt::FullDevice::can_load(kernel); }))
    launch_failed(grid, "out of memory");
}
#endif

int multiprocessors(int device) { return runtime::cuda().properties(device).multiprocessors; }
bool has_groups(int device) {
#if defined(__CUDACC__) && !defined(MIXTAPE_HOPPER)
  constexpr bool compiled = false;  // without code for 9.0a, the kernels are empty
#else
  constexpr bool compiled = true;
#endif
  const runtime::Properties& p = runtime::cuda().properties(device);
  return compiled && p.major == 9 && p.minor == 0;
}

}  // namespace mixtape::gpu
