// The CUDA calls of the kernels' host code.

#include "core/runtime.h"
#include "kernels/cuda/gpu.cuh"

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
#endif

int multiprocessors(int device) { return runtime::cuda().properties(device).multiprocessors; }

}  // namespace mixtape::gpu
