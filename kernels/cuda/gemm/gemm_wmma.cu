// The kernels of gemm_tensor.cuh that multiply by wmma.

#include "kernels/cuda/gemm/gemm_tensor.cuh"

namespace mixtape::kernels::cuda {

template TensorKernel<Half> tensor_kernel<Half, Tier::Wmma>(int, bool, bool);
template TensorKernel<BFloat16> tensor_kernel<BFloat16, Tier::Wmma>(int, bool, bool);

}  // namespace mixtape::kernels::cuda
