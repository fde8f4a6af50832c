// The ladder of matrix products: every rung is right, on the emulator and on nvcc's PTX.

#include <fmt/format.h>

#include "bench/lab/gemm/rung.h"
#include "core/runtime.h"
#include "kernels/cuda/gpu_hopper.cuh"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_lab_test {

// (The emulator's second device is of capability 9.0.)
#ifdef MIXTAPE_EMULATED
const Device device = Device::cuda(1);
#else
const Device device = Device::cpu();
#endif

void expect_rungs(int m, int n, int k, bool hopper) {
  const Tensor a = random({m, k}, bf16, 1), b = random({k, n}, bf16, 2);
  Tensor want({m, n}, f64);
  const auto wide = [](const Tensor& x) {
    Tensor y(x.shape(), f64);
    launch([&](Launch& l) { on_cpu(convert)(l, x, y); });
    return y;
  };
  launch([&](Launch& l) { on_cpu(gemm)(l, wide(a), wide(b), {}, want); });
  int number = -1;
  for (const lab::Rung& rung : lab::rungs()) {
    ++number;
    if (rung.hopper != hopper || (hopper && !gpu::has_groups(device.index))) continue;
    ASSERT_TRUE(m % rung.tile.m == 0 && n % rung.tile.n == 0 && k % rung.tile.k == 0) << number;
    const Tensor c = output({m, n}, f32);
    {
      const Launch l(device);
      rung.run(a.data<BFloat16>(), b.data<BFloat16>(), c.data<float>(), m, n, k, l.stream);
    }
    runtime::cuda().finish(device.index);
    expect_close(c, to_vector(want), 1e-6, fmt::format("rung {}, {}", number, rung.idea));
  }
}

TEST(CudaLab, EveryRungIsRight) { expect_rungs(128, 128, 96, false); }
TEST(CudaLab, EveryRungOnHopperIsRight) {
  expect_rungs(256, 256, 128, true);
  expect_rungs(512, 512, 320, true);  // more tiles than multiprocessors, and steps than slots
}

}  // namespace kernels_cuda_lab_test
}  // namespace mixtape::kernels
