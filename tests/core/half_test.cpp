// f16 and bf16: exhaustive over their bit patterns and over all ties of rounding.
#include "core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace mixtape {
namespace core_half_test {

template <class T>
struct Format;
template <>
struct Format<Half> {
  static constexpr int precision = 11, lowest_exponent = -14, highest = 15;
};
template <>
struct Format<BFloat16> {
  static constexpr int precision = 8, lowest_exponent = -126, highest = 127;
};

// The correctly rounded T, computed in double from the definition of the format.
template <class T>
double rounded(double x) {
  using F = Format<T>;
  if (!std::isfinite(x) || x == 0) return x;
  const int exponent = std::max(std::ilogb(x), F::lowest_exponent);
  const int ulp = exponent - (F::precision - 1);
  const double result = std::ldexp(std::nearbyint(std::ldexp(x, -ulp)), ulp);
  const double largest = std::ldexp(2 - std::ldexp(1.0, 1 - F::precision), F::highest);
  return std::abs(result) > largest ? std::copysign(INFINITY, x) : result;
}

template <class T, class From>
void expect_rounds(From x) {
  const double expected = rounded<T>(static_cast<double>(x)), actual = static_cast<float>(T(x));
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << x;
  } else {
    ASSERT_EQ(actual, expected) << std::hexfloat << x;
    ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << std::hexfloat << x;
  }
}

template <class T>
class Narrow : public testing::Test {};
using Types = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(Narrow, Types);

TYPED_TEST(Narrow, EveryPatternSurvivesFloatAndDouble) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto x = TypeParam::from_bits(static_cast<uint16_t>(bits));
    const float f = x;
    if (std::isnan(f)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(f)))) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(double(f))))) << bits;
      ASSERT_EQ(TypeParam(f).bits >> 15, bits >> 15) << "sign of a NaN";
    } else {
      ASSERT_EQ(TypeParam(f).bits, bits);
      ASSERT_EQ(TypeParam(double(f)).bits, bits);
    }
  }
}

// Between neighbours lies one point where rounding goes from the lower to the upper: there, and one
// step of the wider type to either side, in float and in double (where rounding twice would fail).
TYPED_TEST(Narrow, EveryTieAndBothItsSides) {
  for (uint32_t bits = 0;
       static_cast<float>(TypeParam::from_bits(static_cast<uint16_t>(bits))) < INFINITY; ++bits) {
    const float low = TypeParam::from_bits(static_cast<uint16_t>(bits));
    const float high = TypeParam::from_bits(static_cast<uint16_t>(bits + 1));
    const double top = std::ldexp(1.0, Format<TypeParam>::highest + 1);  // where infinity would be
    const double tie = (double(low) + (std::isinf(high) ? top : double(high))) / 2;
    for (double sign : {1.0, -1.0}) {
      for (double x : {std::nextafter(tie, 0.0), tie, std::nextafter(tie, INFINITY)})
        expect_rounds<TypeParam>(sign * x);
      const float t = static_cast<float>(sign * tie);
      for (float x : {std::nextafter(t, 0.0f), t, std::nextafter(t, float(sign) * INFINITY)})
        expect_rounds<TypeParam>(x);
    }
  }
}

TYPED_TEST(Narrow, RandomFloatsAndDoubles) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1'000'000; ++i) {
    expect_rounds<TypeParam>(std::bit_cast<float>(static_cast<uint32_t>(random())));
    expect_rounds<TypeParam>(std::bit_cast<double>(random()));
    // Random bits seldom fall in a narrow range of exponents: these do.
    expect_rounds<TypeParam>(std::ldexp(double(random() >> 11) * 0x1p-53, int(random() % 60) - 30));
  }
}

TYPED_TEST(Narrow, ExtremesOfTheWiderTypes) {
  using L = std::numeric_limits<double>;
  for (double sign : {1.0, -1.0}) {
    for (double x :
         {0.0, L::infinity(), L::max(), L::min(), L::denorm_min(), 0x1p-149, 0x1.fffffep127})
      expect_rounds<TypeParam>(sign * x);
    for (float x : {0.0f, INFINITY, 0x1p-149f, 0x1.fffffep127f})
      expect_rounds<TypeParam>(float(sign) * x);
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(L::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(L::signaling_NaN()))));
}

TEST(Half, OverflowsHalfwayBeyondTheLargest) {
  EXPECT_EQ(float(Half(65519.996f)), 65504.0f);
  EXPECT_EQ(float(Half(65520.0f)), INFINITY);
  EXPECT_EQ(float(Half(std::nextafter(65520.0, 0.0))), 65504.0f);
  EXPECT_EQ(float(Half(-65520.0)), -INFINITY);
}

TEST(Half, RoundsDoublesOnce) {
  const double above_tie = 1.0 + 0x1p-11 + 0x1p-40;  // to float first, this would become the tie
  EXPECT_EQ(Half(static_cast<float>(above_tie)).bits, 0x3c00);
  EXPECT_EQ(Half(above_tie).bits, 0x3c01);
}
TEST(BFloat16, RoundsDoublesOnce) {
  const double above_tie = 1.0 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(BFloat16(static_cast<float>(above_tie)).bits, 0x3f80);
  EXPECT_EQ(BFloat16(above_tie).bits, 0x3f81);
}

static_assert(Half(1.0f).bits == 0x3c00 && Half(-2.0).bits == 0xc000 && Half(0x1p-24).bits == 1);
static_assert(BFloat16(1.0f).bits == 0x3f80 && float(BFloat16::from_bits(0x4049)) == 3.140625f);

#if defined(__FLT16_MAX__) && !defined(__clang__)
#ifdef __aarch64__
using CompilersHalf = __fp16;  // g++ 12 knows _Float16 in C alone there
#else
using CompilersHalf = _Float16;
#endif
TEST(Half, AgreesWithTheCompilersOwn) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 331) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    ASSERT_EQ(Half(x).bits, std::bit_cast<uint16_t>(static_cast<CompilersHalf>(x))) << x;
  }
}
#endif

}  // namespace core_half_test
}  // namespace mixtape
