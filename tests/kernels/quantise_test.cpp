// Rounding to formats of 8 and 4 bits: the numbers of core/float8.h, by another rule.
#include "kernels/common/quantise.h"

#include "core/float8.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
namespace kernels_quantise_test {

Tensor rounded(Grid grid, const Tensor& x, double scale, DType out = f32) {
  const Tensor y = output(x.shape(), out);
  launch([&](Launch& l) { on_cpu(quantise)(l, grid, x, filled(x.shape(), f32, scale), y); });
  return y;
}

// All numbers of bf16, and those beside them: what f32 rounds is decided by such bits.
Tensor dense() {
  Tensor x({3 * 65536}, f32);
  for (uint32_t i = 0; i < 65536; ++i)
    for (uint32_t k = 0; k < 3; ++k)
      x.set(3 * i + k, std::bit_cast<float>((i << 16) + (k == 0 ? 0u : k == 1 ? 1u : 0xffffu)));
  return x;
}

template <class F8>
void expect_as(Grid grid) {
  const Tensor x = dense(), y = rounded(grid, x, 1);
  const double most = info_of(grid).largest;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double v = x.at(i);
    if (!std::isfinite(v))
      ASSERT_TRUE(std::isnan(y.at(i))) << v;
    else
      ASSERT_EQ(y.at(i), float(F8(float(std::clamp(v, -most, most))))) << v;
  }
}

TEST(Quantise, RoundsAsTheCodesOf8Bits) {
  expect_as<F8E4M3>(Grid::E4M3);
  expect_as<F8E5M2>(Grid::E5M2);
}

TEST(Quantise, RoundsToTheNearestOf4Bits) {
  const double numbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};  // of codes 0 to 7
  const Tensor x = dense(), y = rounded(Grid::E2M1, x, 1);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double a = std::abs(x.at(i));
    if (!std::isfinite(a)) continue;
    int code = 7;
    for (int c = 6; c >= 0; --c) {
      const double middle = (numbers[c] + numbers[c + 1]) / 2;
      if (a < middle || (a == middle && c % 2 == 0)) code = c;
    }
    ASSERT_EQ(std::abs(y.at(i)), numbers[code]) << x.at(i);
    if (code > 0) {
      ASSERT_EQ(std::signbit(y.at(i)), std::signbit(x.at(i)));
    }
  }
}

TEST(Quantise, ScalesArePowersOfTwo) {
  const auto scale = [](Grid grid, int margin, double most) {
    const Tensor s = output({1}, f32);
    launch([&](Launch& l) {
      on_cpu(quantise_scale)(l, grid, margin, filled({1}, f32, most), View{}, s);
    });
    return s.at(0);
  };
  EXPECT_EQ(scale(Grid::E4M3, 0, 448), 1);
  EXPECT_EQ(scale(Grid::E4M3, 0, 449), 2);
  EXPECT_EQ(scale(Grid::E4M3, 0, 1), 0x1p-8);
  EXPECT_EQ(scale(Grid::E4M3, 3, 1), 0x1p-5);
  EXPECT_EQ(scale(Grid::E5M2, 0, 57344), 1);
  EXPECT_EQ(scale(Grid::E4M3, 0, 0), 1);
  EXPECT_EQ(scale(Grid::E4M3, 0, 1e-36), 0x1p-126);
  EXPECT_TRUE(std::isnan(scale(Grid::E4M3, 0, inf)));
  EXPECT_TRUE(std::isnan(scale(Grid::E4M3, 0, nan)));
}

TEST(Quantise, TakesAllFloatsAndWritesBf16) {
  for (const DType in : {f32, f16, bf16}) {
    const Tensor x = random({100}, in, 1, -10, 10), wide = rounded(Grid::E4M3, x, 0.25);
    const Tensor half = rounded(Grid::E4M3, x, 0.25, bf16);
    for (int64_t i = 0; i < 100; ++i) {
      EXPECT_EQ(half.at(i), wide.at(i)) << "bf16 holds these numbers";
      EXPECT_NEAR(wide.at(i), x.at(i), 0.0625 * std::abs(x.at(i)) + 1e-3);
    }
  }
  const Tensor none = rounded(Grid::E2M1, filled({1}, f32, 3), 0);
  EXPECT_EQ(none.at(0), 0) << "a block of NVFP4 whose scale vanished";
}

// Each conversion rounds once, from the element itself.
TEST(Stored, NumbersOf8BitsConvertFromAndToAll) {
  const auto expect = [&]<class F8>(F8) {
    constexpr DType f8 = dtype_of<F8>();
    for (const DType t : all_dtypes) {
      const Tensor x = random({70}, t, 1, is_float(t) ? -300 : 0, t == boolean ? 2 : 120);
      const Tensor y({70}, f8), z({70}, t);
      launch([&](Launch& l) {
        on_cpu(convert)(l, x, y);
        on_cpu(convert)(l, y, z);
      });
      for (int64_t i = 0; i < 70; ++i) {
        const float want(F8(double(x.at(i))));
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(y.at(i)));
          continue;
        }
        EXPECT_EQ(y.at(i), want) << name(t);
        EXPECT_EQ(z.at(i), t == boolean ? want != 0 : is_float(t) ? want : std::trunc(want));
      }
    }
    const Tensor tie = filled({1}, f64, 1.0625 + 0x1p-40), y({1}, f8);
    launch([&](Launch& l) { on_cpu(convert)(l, tie, y); });
    EXPECT_EQ(y.at(0), float(F8(1.0625 + 0x1p-40)));
  };
  expect(F8E4M3());
  expect(F8E5M2());
  expect(F8E8M0());
}

}  // namespace kernels_quantise_test
}  // namespace mixtape::kernels
