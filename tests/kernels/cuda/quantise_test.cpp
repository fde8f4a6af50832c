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
        run(0, on_cpu(quantise_scale), on_cpu(quantise));
        run(1, cuda::quantise_scale, cuda::quantise);
        for (int k = 0; k < 3; ++k) EXPECT_EQ(scale[0].at(k), scale[1].at(k));
        for (int64_t i = 0; i < 3 * n; ++i) ASSERT_EQ(y[0].at(i), y[1].at(i)) << i;
      }
}

constexpr DType stored[] = {i8, i16, u16, u32, f8_e4m3, f8_e5m2, f8_e8m0};

// A tensor of numbers that are whole for integers, and of all signs but for bool.
Tensor numbers(DType t, int64_t n) {
  Tensor x({n}, f64);
  for (int64_t i = 0; i < n; ++i) {
    const double v = std::ldexp(1 + double(i % 37) / 37, int(i % 23) - 11) * (i % 2 ? -1 : 1);
    x.set(i, t == boolean ? double(i % 2)
             : t == u8    ? double(i % 256)
             : t == i8    ? double(i % 256) - 128
             : is_integer(t)
                 ? double(i) * (t == u16 || t == u32 ? 65 : 1) - (t == u16 || t == u32 ? 0 : n / 2)
                 : v);
  }
  Tensor y({n}, t);
  for (int64_t i = 0; i < n; ++i) y.set(i, x.at(i));
  return y;
}

TEST(CudaQuantise, StoredBytesAreThoseOfTheCpu) {
  for (const DType one : stored)
    for (const DType other :
         {f64, f32, f16, bf16, i64, i32, u8, boolean, i8, i16, u16, u32, f8_e4m3, f8_e5m2, f8_e8m0})
      for (const bool back : {false, true}) {
        const DType from = back ? one : other, to = back ? other : one;
        const Tensor x = numbers(from, 1000), all[2] = {Tensor({1000}, to), Tensor({1000}, to)};
        launch([&](Launch& l) {
          on_cpu(convert)(l, x, all[0]);
          cuda::convert(l, x, all[1]);
        });
        for (int64_t i = 0; i < 1000; ++i) {
          const double want = all[0].at(i), got = all[1].at(i);
          ASSERT_TRUE(want == got || (std::isnan(want) && std::isnan(got)))
              << name(from) << " to " << name(to) << " " << i << ": " << want << " " << got;
        }
      }
  const Tensor x = numbers(f8_e4m3, 1000), y({1000}, i32);
  launch([&](Launch& l) { cuda::convert(l, x, y); });
  for (int64_t i = 0; i < 1000; ++i)
    ASSERT_TRUE(std::isnan(x.at(i)) || y.at(i) == std::trunc(x.at(i))) << x.at(i);
}

}  // namespace kernels_cuda_quantise_test
}  // namespace mixtape::kernels
