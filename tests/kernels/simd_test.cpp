// Functions of Vec against the standard library in double, lane by lane, and the thread pool.

#include "kernels/cpu/simd/simd_special.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/float_mode.h"
#include "kernels/common/elementwise.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/loops/parallel.h"

namespace mixtape::kernels::cpu {
namespace kernels_simd_test {

constexpr int vec_width = Vec<float>::width;  // 16, or fewer

// The distance of y from the exact value, in units of the last place of a float.
double ulps(float y, double exact) {
  const float nearest = static_cast<float>(exact);
  if (std::isnan(exact) || std::isinf(nearest) || std::isinf(y) || std::isnan(y)) {
    const bool overflows =
        std::isinf(nearest) && std::abs(y) >= 0x1.fffffep127f && (y > 0) == (nearest > 0);
    return y == nearest || overflows || (std::isnan(y) && std::isnan(exact)) ? 0 : 1e9;
  }
  int exponent;
  std::frexp(nearest, &exponent);
  return std::abs(y - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

// Tests bit patterns over the whole range, including infinities, NaN, subnormals and huge numbers.
template <class F, class G>
void expect_accurate(const char* name, double bound, F lanes, G exact) {
  double worst = 0;
  float at = 0;
  const auto see = [&](const float(&x)[16]) {
    float y[16];
    for (int i = 0; i < 16; i += vec_width) store(y + i, lanes(load(x + i)));
    for (int i = 0; i < 16; ++i) {
      const double d = ulps(y[i], exact(static_cast<double>(x[i])));
      if (d > worst) worst = d, at = x[i];
    }
  };
  const float inf = std::numeric_limits<float>::infinity();
  see({0, -0.0f, inf, -inf, std::nanf(""), 1, -1, 0x1p-149f, -0x1p-149f, 0x1p-126f, 0x1.fffffep127f,
       -0x1.fffffep127f, 88.72f, 88.73f, -87.4f, -103.9f});
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 16 * 1021) {
    float x[16];
    for (uint64_t i = 0; i < 16; ++i)
      x[i] = std::bit_cast<float>(static_cast<uint32_t>(bits + i * 1021));
    see(x);
  }
  for (int i = 0; i < 400000; i += 16) {  // and densely at common sizes
    float x[16];
    for (int k = 0; k < 16; ++k) x[k] = static_cast<float>(i + k - 200000) * 1.1e-4f;
    see(x);
  }
  EXPECT_LE(worst, bound) << name << " at " << at;
}

TEST(Simd, FunctionsAreAccurate) {
#define MATCHES(f, bound) \
  expect_accurate(#f, bound, [](Vec<float> x) { return f(x); }, [](double x) { return std::f(x); })
  MATCHES(exp, 1.5);
  MATCHES(exp2, 1.5);
  MATCHES(expm1, 2.5);
  MATCHES(log, 1.5);
  MATCHES(log2, 1.5);
  MATCHES(log10, 1.5);
  MATCHES(log1p, 2.5);
  MATCHES(sinh, 2.5);
  MATCHES(cosh, 2);
  MATCHES(tanh, 3.5);
  MATCHES(asinh, 3.5);
  MATCHES(acosh, 3.5);
  MATCHES(atanh, 3.5);
  MATCHES(erf, 3.5);
  MATCHES(erfc, 1.5);
  MATCHES(lgamma, 1.5);
  MATCHES(sin, 2.5);
  MATCHES(cos, 2.5);
  MATCHES(tan, 3.5);
  MATCHES(asin, 2.5);
  MATCHES(acos, 2.5);
  MATCHES(atan, 2);
  MATCHES(sqrt, 0.5);
  MATCHES(abs, 0);
  MATCHES(floor, 0);
  MATCHES(ceil, 0);
  MATCHES(trunc, 0);
#undef MATCHES
  expect_accurate(
      "round", 0, [](Vec<float> x) { return round(x); },
      [](double x) { return std::nearbyint(x); });
}

TEST(Simd, ResultsOfDoubleFormulasAreRoundedOnce) {
#define ROUNDS(f)  \
  expect_accurate( \
      #f, 0.51, [](Vec<float> x) { return f(x); }, [](double x) { return special::f(x); })
  ROUNDS(digamma);
  ROUNDS(trigamma);
  ROUNDS(erfinv);
#undef ROUNDS
  expect_accurate(
      "bessel_i0", 0.51, [](Vec<float> x) { return bessel_i0(x); }, special::bessel_i<0, double>);
  expect_accurate(
      "bessel_i1", 0.51, [](Vec<float> x) { return bessel_i1(x); }, special::bessel_i<1, double>);
}

TEST(Special, BesselFunctions) {
  const struct {
    double x, i0, i1;
  } exact[] = {{1e-200, 1, 5e-201},
               {0.5, 1.06348337074132352, 0.257894305390896316},
               {-3, 4.88079258586502409, -3.9533702174026094},
               {19.75, 34140102.0601014443, 33264251.9789477331},
               {20.5, 70922869.8343170066, 69170831.6791843729},
               {345.625, 2.72141701479805344e+148, 2.71747720834402632e+148},
               {713.5, 1.1051012081178279e+308, 1.10432651367959529e+308}};
  for (const auto& [x, i0, i1] : exact) {
    EXPECT_NEAR(special::bessel_i<0>(x), i0, 8e-16 * i0) << x;
    EXPECT_NEAR(special::bessel_i<1>(x), i1, 8e-16 * std::abs(i1)) << x;
  }
  const double inf = std::numeric_limits<double>::infinity();
  for (const double x : {715.0, 1e300, inf}) {
    EXPECT_EQ(special::bessel_i<0>(-x), inf) << x;
    EXPECT_EQ(special::bessel_i<1>(-x), -inf) << x;
  }
  EXPECT_TRUE(std::isnan(special::bessel_i<0>(std::nan(""))));
  EXPECT_TRUE(std::isnan(special::bessel_i<1>(std::nan(""))));
}

// Exact values, of 18 digits. (Near a zero of digamma, and where x - trunc(x) loses bits, the error
// is that of numbers around 1.)
TEST(Special, GammaFunctions) {
  const struct {
    double x, digamma, trigamma;
  } exact[] = {{0.001, -1000.57557193181028, 1000001.64253319583},
               {0.5, -1.96351002602142348, 4.93480220054467931},
               {1, -0.577215664901532861, 1.64493406684822644},
               {1.4616321449683622, -9.24126552172942748e-17, 0.967672245447621255},
               {2.5, 0.703156640645243187, 0.490357756100234865},
               {8, 2.01564147795561, 0.133137014694031425},
               {1e5, 11.5129204649618951, 0.0000100000500001666667},
               {1e300, 690.775527898213705, 9.99999999999999947e-301},
               {-0.5, 0.0364899739785765206, 8.93480220054467931},
               {-1e-10, 9999999999.42278397, 9.99999999999999927e+19},
               {-2.25, 4.15858356465797227, 19.3794105118691374},
               {-1000.375, 8.20992022255520923, 11.5619616801200756}};
  for (const auto& [x, first, second] : exact) {
    EXPECT_NEAR(special::digamma(x), first, 4e-15 * std::max(1.0, std::abs(first))) << x;
    EXPECT_NEAR(special::trigamma(x), second, 4e-15 * second) << x;
  }
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(special::digamma(0.0), -inf);
  EXPECT_EQ(special::digamma(-0.0), inf);
  EXPECT_EQ(special::digamma(inf), inf);
  EXPECT_EQ(special::trigamma(-3.0), inf);
  for (const double x : {-1.0, -7.0, -1e18, -inf, std::nan("")})
    EXPECT_TRUE(std::isnan(special::digamma(x))) << x;
  for (const double x : {0.0, -0.0, -1.0, -7.0, inf, -inf}) EXPECT_EQ(math::lgamma(x), inf) << x;
}

TEST(Special, ErfinvIsTheInverseOfErf) {
  const struct {
    double x, y;
  } exact[] = {{1e-300, 8.86226925452758036e-301}, {1e-10, 8.86226925452758046e-11},
               {0.1, 0.088855990494257692},        {0.84, 0.993535628347304187},
               {0.86, 1.04354184363975884},        {0.99, 1.82138636771844946},
               {1 - 0x1p-30, 4.32802827580094646}, {1 - 0x1p-53, 5.86358474875516793}};
  for (const auto& [x, y] : exact) {
    EXPECT_NEAR(special::erfinv(x), y, 1e-15 * y) << x;
    EXPECT_EQ(special::erfinv(-x), -special::erfinv(x)) << x;
  }
  EXPECT_EQ(special::erfinv(1.0), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::signbit(special::erfinv(-0.0)));
  for (const double x : {1.0000001, -2.0, std::nan("")})
    EXPECT_TRUE(std::isnan(special::erfinv(x))) << x;
}

// Its exponent is a square, whose rounding error would multiply that of the result by its size.
TEST(Simd, NormalIsAccurateHoweverSmall) {
  double worst[2] = {};
  for (float x = -13; x < 16; x += 1.1e-4f) {  // (the density is subnormal beyond)
    const double d = x;
    const auto at = normal(Vec<float>(x));
    worst[0] = std::max(worst[0],
                        ulps(at.cumulative[vec_width - 1], 0.5 * std::erfc(-d * std::sqrt(0.5))));
    worst[1] = std::max(
        worst[1], ulps(at.density[vec_width - 1], 0.3989422804014327 * std::exp(-0.5 * d * d)));
  }
  EXPECT_LE(worst[0], 6);
  EXPECT_LE(worst[1], 4);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(normal(Vec<float>(-inf)).cumulative[3], 0);
  EXPECT_EQ(normal(Vec<float>(inf)).cumulative[3], 1);
  EXPECT_EQ(normal(Vec<float>(inf)).density[3], 0);
  EXPECT_TRUE(std::isnan(normal(Vec<float>(std::nanf(""))).cumulative[3]));
  EXPECT_TRUE(std::isnan(normal(Vec<float>(std::nanf(""))).density[3]));
}

// Those of vectors leave out what cannot be; scalar.h's formulas say what is right.
TEST(Simd, SharesAndBendsAreThoseOfTheFormulas) {
  const auto bits = [](Vec<float> x, int i) { return std::bit_cast<uint32_t>(x[i]); };
  for (uint64_t pattern = 0; pattern < uint64_t{1} << 32; pattern += 1021) {
    const Vec<float> x = std::bit_cast<float>(static_cast<uint32_t>(pattern));
    const Shares<Vec<float>> s = shares(x), want = kernels::shares<Vec<float>>(x);
    ASSERT_EQ(bits(s.share, 3), bits(want.share, 3)) << x[0];
    ASSERT_EQ(bits(s.rest, 3), bits(want.rest, 3)) << x[0];
    const Bend<Vec<float>> b = bend(x), bent = kernels::bend<Vec<float>>(x);
    ASSERT_TRUE(b.value[3] == bent.value[3] || std::isnan(x[0])) << x[0];
    ASSERT_TRUE(b.slope[3] == bent.slope[3] || std::isnan(x[0])) << x[0];
  }
  EXPECT_TRUE(std::isnan(bend(Vec<float>(std::nanf(""))).value[3]));
  EXPECT_TRUE(std::isnan(bend(Vec<float>(std::nanf(""))).slope[3]));
}

TEST(Simd, WholePowersHaveWholeLogarithms) {
  for (int k = -149; k < 128; ++k)
    EXPECT_EQ(log2(Vec<float>(std::ldexp(1.0f, k)))[0], static_cast<float>(k));
  float ten = 1;  // the powers of ten that float holds exactly
  for (int k = 0; k <= 10; ++k, ten *= 10)
    EXPECT_EQ(log10(Vec<float>(ten))[0], static_cast<float>(k));
  for (int k = -149; k < 128; ++k)
    EXPECT_EQ(exp2(Vec<float>(static_cast<float>(k)))[0], std::ldexp(1.0f, k));
}

// Calls see(a, b) for pairs of special values, pairs of bit patterns, and pairs of common size.
template <class F>
void for_pairs(F see) {
  const float inf = std::numeric_limits<float>::infinity();
  const float special[] = {0,          -0.0f,     inf,      -inf,   std::nanf(""), 1,
                           -1,         2,         3,        -3,     0.5f,          0x1p-149f,
                           -0x1p-149f, 0x1p-126f, 0x1p127f, 3e-20f, 1.000001f,     -1234.5f};
  for (const float a : special)
    for (const float b : special) see(a, b);
  uint32_t bits = 1;
  const auto next = [&] { return bits = bits * 1664525u + 1013904223u; };
  for (int i = 0; i < 200000; ++i) {
    const float a = std::bit_cast<float>(next());
    see(a, std::bit_cast<float>(next()));
  }
  const auto moderate = [&] { return static_cast<float>(next()) * 0x1p-29f - 4.0f; };
  for (int i = 0; i < 200000; ++i) {
    const float a = moderate();
    see(a, moderate());
    see(std::abs(a) * 1000, a);
  }
}

TEST(Simd, FunctionsOfTwoAreAccurate) {
  double worst_angle = 0, worst_power = 0, worst_length = 0;
  for_pairs([&](float a, float b) {
    const Vec<float> x = a, y = b;
    const double da = a, db = b;
    const float angle = atan2(x, y)[3];
    worst_angle = std::max(worst_angle, ulps(angle, std::atan2(da, db)));
    EXPECT_TRUE(std::isnan(angle) || std::signbit(angle) == std::signbit(std::atan2(da, db)))
        << a << ' ' << b;
    // (A signaling NaN to the power of 0 is NaN in float, and 1 once it is a double.)
    for (const float exponent : {b, std::isnan(a) ? b : std::nearbyint(b)}) {
      const float power = pow(x, Vec<float>(exponent))[1];
      const double exact = std::pow(da, double(exponent));
      worst_power = std::max(worst_power, ulps(power, exact));
      EXPECT_TRUE(std::isnan(power) || std::signbit(power) == std::signbit(exact))
          << a << ' ' << exponent;
    }
    const float rest = fmod(x, y)[2], want = std::fmod(a, b);
    EXPECT_TRUE(std::isnan(want) ? std::isnan(rest)
                                 : std::bit_cast<uint32_t>(rest) == std::bit_cast<uint32_t>(want))
        << a << " % " << b << ": " << rest;
    worst_length = std::max(worst_length, ulps(hypot(x, y)[3], std::hypot(da, db)));
  });
  EXPECT_LE(worst_length, 0.501);
  EXPECT_LE(worst_angle, 2.5);
  EXPECT_LE(worst_power, 0.501);
}

TEST(Simd, RunsAreCopiedAndNothingElse) {
  std::vector<uint16_t> from(700), to(700);
  std::iota(from.begin(), from.end(), uint16_t(1));
  for (int64_t n = 0; n < 200; n += n < 70 ? 1 : 13)
    for (int at = 0; at < 40; ++at) {
      std::fill(to.begin(), to.end(), uint16_t(0));
      copy_run(from.data() + 7, n, to.data() + at);
      for (int64_t i = 0; i < 300; ++i)
        ASSERT_EQ(to[size_t(i)], i >= at && i < at + n ? i - at + 8 : 0) << n << " to " << at;
    }
}

TEST(Simd, CirclesAreExactlyReduced) {
  for (int i = 0; i < 1 << 20; i += vec_width) {
    float v[vec_width], c[vec_width], s[vec_width];
    for (int k = 0; k < vec_width; ++k) v[k] = static_cast<float>(i + k) * 0x1p-20f;
    const Circle circle{load(v)};
    store(c, circle.cosine);
    store(s, circle.sine);
    for (int k = 0; k < vec_width; ++k) {
      ASSERT_NEAR(c[k], std::cos(2 * M_PI * static_cast<double>(v[k])), 1.5e-7) << v[k];
      ASSERT_NEAR(s[k], std::sin(2 * M_PI * static_cast<double>(v[k])), 1.5e-7) << v[k];
    }
  }
}

// Tests numbers of all sizes, and edges, against long double.
template <class F, class G>
void expect_accurate_doubles(const char* name, F lanes, G exact) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto see = [&](double x) {
    const double y = lanes(Vec<double>(Vec<double>::Vector{} + x))[1];
    const auto want = static_cast<double>(exact(static_cast<long double>(x)));
    if (std::isnan(want) || std::isinf(want) || want == 0) {
      EXPECT_TRUE(std::isnan(want) ? std::isnan(y) : y == want) << name << " at " << x << ": " << y;
    } else {
      const double ulp = std::nextafter(std::abs(want), inf) - std::abs(want);
      EXPECT_LE(std::abs(y - want), 3 * ulp) << name << " at " << x;
    }
  };
  for (const double x : {0.0, inf, -inf, std::nan(""), 1.0, -1.0, 0x1p-1074, -0x1p-1074, 0x1p-1022,
                         0x1.fffffffffffffp1023, -0x1.fffffffffffffp1023, 709.7, 709.79, -708.4,
                         -745.1, -745.2, -750.0})
    see(x);
  for (double size = 0x1p-1060; size < 0x1p1020; size *= 1.37) {
    see(size);
    see(-size);
  }
  for (double x = -50; x < 50; x += 0.00137) see(x);
  EXPECT_EQ(std::signbit(lanes(Vec<double>(-Vec<double>::Vector{}))[0]),
            std::signbit(static_cast<double>(exact(-0.0L))))
      << name;
}
TEST(Simd, DoubleFunctionsAreAccurate) {
#define MATCHES(f)         \
  expect_accurate_doubles( \
      #f, [](Vec<double> x) { return f(x); }, [](long double x) { return std::f(x); })
  MATCHES(exp);
  MATCHES(expm1);
  MATCHES(log);
  MATCHES(log1p);
  MATCHES(tanh);
#undef MATCHES
}

TEST(Simd, OtherDoubleFunctionsAreTheLibrarys) {
  for (double x = -3; x < 3; x += 0.37) {
    const Vec<double> v = x, positive = std::abs(x), fraction = x / 3;
    EXPECT_EQ(exp2(v)[0], std::exp2(x));
    EXPECT_EQ(log2(positive)[0], std::log2(std::abs(x)));
    EXPECT_EQ(log10(positive)[1], std::log10(std::abs(x)));
    EXPECT_EQ(sinh(v)[0], std::sinh(x));
    EXPECT_EQ(cosh(v)[1], std::cosh(x));
    EXPECT_EQ(erf(v)[0], std::erf(x));
    EXPECT_EQ(erfc(v)[0], std::erfc(x));
    EXPECT_EQ(sin(v)[0], std::sin(x));
    EXPECT_EQ(cos(v)[1], std::cos(x));
    EXPECT_EQ(tan(v)[0], std::tan(x));
    EXPECT_EQ(asin(fraction)[1], std::asin(x / 3));
    EXPECT_EQ(acos(fraction)[0], std::acos(x / 3));
    EXPECT_EQ(atan(v)[1], std::atan(x));
    EXPECT_EQ(atan2(v, fraction)[0], std::atan2(x, x / 3));
    EXPECT_EQ(sqrt(positive)[0], std::sqrt(std::abs(x)));
    EXPECT_EQ(floor(v)[0], std::floor(x));
    EXPECT_EQ(ceil(v)[1], std::ceil(x));
    EXPECT_EQ(trunc(v)[0], std::trunc(x));
    EXPECT_EQ(round(v)[0], std::nearbyint(x));
    EXPECT_EQ(pow(positive, Vec<double>(1.7))[0], std::pow(std::abs(x), 1.7));
    EXPECT_EQ(fmod(v, Vec<double>(0.7))[0], std::fmod(x, 0.7));
  }
}

template <class F>
[[gnu::noinline]] float first_lane(F f, float x) {
  float y[vec_width];
  store(y, f(Vec<float>(x)));
  return y[0];
}

TEST(Simd, SignsOfZeroAreKept) {
#define KEEPS(f)                                                                           \
  EXPECT_EQ(std::bit_cast<uint32_t>(first_lane([](Vec<float> x) { return f(x); }, -0.0f)), \
            0x80000000u)                                                                   \
      << #f
  KEEPS(Vec<float>);
  KEEPS(expm1);
  KEEPS(log1p);
  KEEPS(sinh);
  KEEPS(tanh);
  KEEPS([](Vec<float> v) { return bend(v).value; });
  KEEPS(erf);
  KEEPS(sin);
  KEEPS(tan);
  KEEPS(asin);
  KEEPS(atan);
  KEEPS(sqrt);
  KEEPS(floor);
  KEEPS(ceil);
  KEEPS(trunc);
  KEEPS(round);
#undef KEEPS
  EXPECT_TRUE(std::signbit(first_lane([](Vec<float> x) { return round(x); }, -0.3f)));
  EXPECT_TRUE(std::signbit(first_lane([](Vec<float> x) { return ceil(x); }, -0.3f)));
  EXPECT_TRUE(std::signbit(first_lane([](Vec<float> x) { return trunc(x); }, -0.3f)));
}

template <class S>
void expect_all_patterns_load() {
  for (uint32_t bits = 0; bits < 65536; bits += vec_width) {
    S x[vec_width], back[vec_width];
    for (uint32_t i = 0; i < vec_width; ++i) x[i] = S::from_bits(static_cast<uint16_t>(bits + i));
    const Vec<float> v = load(x);
    const Vec<double> d = load<S, double>(x);
    store(back, v);
    for (int i = 0; i < vec_width; ++i) {
      const float want = x[i];
      if (std::isnan(want)) {  // the processor may quiet it
        EXPECT_TRUE(std::isnan(v[i]) && std::isnan(float(back[i]))) << x[i].bits;
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(v[i]), std::bit_cast<uint32_t>(want)) << x[i].bits;
        EXPECT_EQ(back[i].bits, x[i].bits);
        if (i < d.width) {
          EXPECT_EQ(d[i], static_cast<double>(want));
        }
      }
    }
  }
}
template <class S>
void expect_stores_round_as_scalars() {
  const auto see = [](const float(&x)[16]) {
    S y[16];
    for (int i = 0; i < 16; i += vec_width) store(y + i, load(x + i));
    for (int i = 0; i < 16; ++i) {
      const bool same = std::isnan(x[i]) ? std::isnan(float(y[i])) : y[i].bits == S(x[i]).bits;
      EXPECT_TRUE(same) << x[i];
    }
  };
  float x[16];
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 16 * 1021) {
    for (uint64_t i = 0; i < 16; ++i)
      x[i] = std::bit_cast<float>(static_cast<uint32_t>(bits + i * 1021));
    see(x);
  }
  for (uint32_t bits = 0; bits < 65535; ++bits) {  // ties between neighbours, and just beside them
    const float a = S::from_bits(static_cast<uint16_t>(bits)),
                b = S::from_bits(static_cast<uint16_t>(bits + 1));
    const float tie = static_cast<float>((static_cast<double>(a) + static_cast<double>(b)) / 2);
    for (int i = 0; i < 16; ++i) x[i] = i % 3 == 0 ? tie : std::nextafter(tie, i % 3 == 1 ? a : b);
    see(x);
  }
}

TEST(Simd, NarrowTypesConvertAsScalarsDo) {
  expect_all_patterns_load<Half>();
  expect_all_patterns_load<BFloat16>();
  expect_stores_round_as_scalars<Half>();
  expect_stores_round_as_scalars<BFloat16>();
}

// (A double just beside a tie would be that tie as a float.)
template <class S>
void expect_doubles_round_as_scalars() {
  const auto see = [](double x) {
    S y[Vec<double>::width];
    store(y, Vec<double>(x));
    const bool same = std::isnan(x) ? std::isnan(float(y[0])) : y[0].bits == S(x).bits;
    EXPECT_TRUE(same) << x;
  };
  for (uint32_t bits = 0; bits < 65535; ++bits) {
    const double a = float(S::from_bits(static_cast<uint16_t>(bits))),
                 b = float(S::from_bits(static_cast<uint16_t>(bits + 1))), tie = (a + b) / 2;
    for (const double x : {a, tie, std::nextafter(tie, a), std::nextafter(tie, b)}) see(x);
  }
  uint64_t bits = 1;
  for (int i = 0; i < 200000; ++i)
    see(std::bit_cast<double>(bits = bits * 6364136223846793005u + 1442695040888963407u));
  for (const double x : {5e-324, -1e-300, 1e-46, 3.5e38, -1e300}) see(x);
  see(std::bit_cast<double>(uint64_t{0x7ff0000000000001}));  // NaN, by its last bit
}
TEST(Simd, DoubleRoundsOnceToNarrowTypes) {
  expect_doubles_round_as_scalars<Half>();
  expect_doubles_round_as_scalars<BFloat16>();
}

template <class S>
void check_parts() {
  constexpr int width = Vec<math_t<S>>::width;
  S x[width];
  for (int i = 0; i < width; ++i) x[i] = S(float(i + 1));
  for (int n = 1; n < width; ++n) {
    const auto v = load_first(x, n, S(-1.0f));
    S y[width];
    std::fill_n(y, width, S(9.0f));
    store_first(y, v, n);
    for (int i = 0; i < width; ++i) {
      EXPECT_EQ(v[i], i < n ? i + 1 : -1) << n;
      EXPECT_EQ(float(y[i]), float(i < n ? i + 1 : 9)) << n;
    }
  }
}

TEST(Simd, PartsOfAVector) {
  check_parts<float>();
  check_parts<double>();
  check_parts<Half>();
  check_parts<BFloat16>();
}

TEST(Simd, FoldsOverLanes) {
  float x[vec_width], sum = 0;
  for (int i = 0; i < vec_width; ++i) sum += x[i] = static_cast<float>((i * 7) % vec_width) - 3;
  EXPECT_EQ(hsum(load(x)), sum);
  EXPECT_EQ(hmax(load(x)), vec_width - 4);
  EXPECT_EQ(hmin(load(x)), -3);
  x[vec_width - 3] = std::nanf("");
  EXPECT_TRUE(std::isnan(hmax(load(x))) && std::isnan(hmin(load(x))));
  EXPECT_EQ(hsum(Vec<double>(0.5)), 0.5 * Vec<double>::width);
  int64_t n[Vec<int64_t>::width] = {5};
  n[1] = -9;
  EXPECT_EQ(hmax(load(n)), 5);
  EXPECT_EQ(hmin(load(n)), -9);
}

TEST(Simd, MasksSelect) {
  float x[vec_width], y[vec_width];
  bool m[vec_width];
  for (int i = 0; i < vec_width; ++i) x[i] = static_cast<float>(i - vec_width / 2);
  const Mask<float> negative = load(x) < 0.0f;
  store(y, select(negative, Vec<float>(-1.0f), load(x)));
  store(m, negative);
  for (int i = 0; i < vec_width; ++i) {
    EXPECT_EQ(y[i], x[i] < 0 ? -1.0f : x[i]);
    EXPECT_EQ(m[i], x[i] < 0);
    EXPECT_EQ(negative[i], x[i] < 0);
  }
  EXPECT_TRUE(any(negative));
  EXPECT_FALSE(any(negative & !negative));
  EXPECT_TRUE(any(negative | !negative));
}

#if defined(__x86_64__)
// Bits of MXCSR: flush to zero, denormals are zero, and the two of the rounding mode.
constexpr uint64_t float_modes[] = {0, 0x8000, 0x40, 0x8040, 0x2000, 0x4000, 0x6000, 0xe040};
uint64_t float_mode() { return __builtin_ia32_stmxcsr(); }
void set_float_mode(uint64_t mode) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
// Bits of FPCR: flush to zero, the same for f16, and the two of the rounding mode.
constexpr uint64_t float_modes[] = {0, 0x1000000, 0x80000, 0x400000, 0x800000, 0xc00000, 0x1c80000};
uint64_t float_mode() {
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void set_float_mode(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#endif
#if defined(__x86_64__) || defined(__aarch64__)
TEST(FloatMode, IsTheUsualOneWhileOneLives) {
  const uint64_t all = std::end(float_modes)[-1], outer = float_mode() & ~all;
  for (const uint64_t bits : float_modes) {
    set_float_mode(outer | bits);
    uint64_t inside;
    {
      const internal::FloatMode mode;
      inside = float_mode() & all;
    }
    const uint64_t after = float_mode() & all;
    set_float_mode(outer);
    EXPECT_EQ(inside, 0u) << bits;
    EXPECT_EQ(after, bits);
  }
}
#endif

TEST(Parallel, EveryChunkOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    const ThreadLimit limit(threads);
    EXPECT_EQ(num_threads(), threads);
    for (const int64_t count : {0, 1, 2, 3, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      parallel_for(count, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
      for (const auto& n : seen) EXPECT_EQ(n, 1);
    }
  }
}

TEST(Parallel, RangesHaveFixedGrains) {
  const ThreadLimit limit(3);
  std::vector<std::atomic<int64_t>> end_of(100);
  parallel_ranges(100, 30,
                  [&](int64_t begin, int64_t end) { end_of[static_cast<size_t>(begin)] = end; });
  EXPECT_EQ(end_of[0], 30);
  EXPECT_EQ(end_of[30], 60);
  EXPECT_EQ(end_of[60], 90);
  EXPECT_EQ(end_of[90], 100);
}

TEST(Parallel, ExceptionsReachTheCaller) {
  const ThreadLimit limit(3);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(parallel_for(100,
                              [](int64_t i) {
                                if (i == 37) throw std::runtime_error("37");
                              }),
                 std::runtime_error);
    std::atomic<int> n = 0;  // and the pool still works
    parallel_for(100, [&](int64_t) { ++n; });
    EXPECT_EQ(n, 100);
  }
}

TEST(Parallel, NestedRegionsRun) {
  const ThreadLimit limit(3);
  std::atomic<int> n = 0;
  parallel_for(8, [&](int64_t) { parallel_for(8, [&](int64_t) { ++n; }); });
  EXPECT_EQ(n, 64);
}

TEST(Parallel, SeveralCallersAtOnce) {
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      const ThreadLimit limit(2);
      for (int round = 0; round < 300; ++round) parallel_for(7, [&](int64_t i) { sum += i; });
    });
  }
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(sum, 4 * 300 * 21);
}

TEST(Parallel, LimitsNestAndAreChecked) {
  const int before = num_threads();
  {
    const ThreadLimit two(2);
    {
      const ThreadLimit one(1);
      EXPECT_EQ(num_threads(), 1);
    }
    EXPECT_EQ(num_threads(), 2);
  }
  EXPECT_EQ(num_threads(), before);
  EXPECT_THROW(ThreadLimit(0), Error);
}

TEST(ParallelDeathTest, BadNumberInTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto report = [](const char* value) {
    ::setenv("MIXTAPE_NUM_THREADS", value, 1);
    try {
      std::fprintf(stderr, "%d threads", num_threads());
    } catch (const Error& e) {
      std::fprintf(stderr, "%s", e.what());
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(report("many"), testing::ExitedWithCode(0),
              "MIXTAPE_NUM_THREADS must be a number from 1 to 1024, got 'many'");
  EXPECT_EXIT(report("0"), testing::ExitedWithCode(0), "got '0'");
  EXPECT_EXIT(report("3x"), testing::ExitedWithCode(0), "got '3x'");
  EXPECT_EXIT(report("3"), testing::ExitedWithCode(0), "3 threads");
}

}  // namespace kernels_simd_test
}  // namespace mixtape::kernels::cpu
