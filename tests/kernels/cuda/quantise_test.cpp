// Rounding to formats of 8 and 4 bits on CUDA, beside the CPU's bits.
#include "kernels/common/quantise.h"

#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_quantise_test {

TEST(CudaQuantise, NumbersAndScalesAreThoseOfTheCpu) {
  for (const Grid grid : {Grid::E4M3, Grid::E5M2, Grid::E2M1})
    for (const DType out : {f32, bf16})
      for (const int64_t n : {0, 1, 37, 2100}) {
        const Tensor x = random({n, 3}, f32, 1, -500, 500), most = random({1, 3}, f32, 2, 0, 900),
                     whole = filled({1, 3}, f32, 900);
        Tensor y[2], scale[2];
        const auto run = [&](int k, auto quantise_scale, auto quantise) {
          scale[k] = output({1, 3}, f32);
          y[k] = output({n, 3}, out);
          launch([&](Launch& l) {
            quantise_scale(l, grid, 1, most, grid == Grid::E2M1 ? View(whole) : View(), scale[k]);
            const Tensor each = scale[k].with_layout(expand(scale[k].layout(), {n, 3}));
            quantise(l, grid, x, each, y[k]);
          });
        };
        run(0, cpu::quantise_scale, cpu::quantise);
        run(1, cuda::quantise_scale, cuda::quantise);
        for (int k = 0; k < 3; ++k) EXPECT_EQ(scale[0].at(k), scale[1].at(k));
        for (int64_t i = 0; i < 3 * n; ++i) ASSERT_EQ(y[0].at(i), y[1].at(i)) << i;
      }
}

}  // namespace kernels_cuda_quantise_test
}  // namespace mixtape::kernels
