// Reductions against sums in double over every set of dimensions, and random numbers against Philox
// itself.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_reduce_test {

struct Input {
  const char* name;
  Tensor x;
};
// Distinct small integers, so that every sum is exact in every dtype that can hold it.
Tensor numbered(const Shape& shape, DType t, int modulus) {
  Tensor x(shape, t);
  for (int64_t i = 0; i < x.numel(); ++i) x.set(i, static_cast<double>((i * 7919) % modulus));
  return x;
}
std::vector<Input> inputs(DType t, int modulus) {
  const Tensor image = numbered({3, 5, 6, 7}, t, modulus), plane = numbered({70, 130}, t, modulus);
  const Tensor row = numbered({1, 40}, t, modulus);
  return {{"vector", numbered({100}, t, modulus)},
          {"plane", plane},
          {"transposed", plane.with_layout(transpose(plane.layout(), 0, 1))},
          {"sliced", plane.with_layout(slice(slice(plane.layout(), 1, 3, 120, 2), 0, 1, 60))},
          {"rows", plane.with_layout(slice(plane.layout(), 1, 3, 120))},
          {"expanded", row.with_layout(expand(row.layout(), {30, 40}))},
          {"image", image},
          {"long rows", numbered({3, 9001}, t, modulus)},
          {"long columns", numbered({1030, 37}, t, modulus)},
          {"short rows", numbered({70, 2, 5, 3}, t, modulus)},
          {"one", numbered({1, 1}, t, modulus)}};
}

Shape reduced_shape(Shape s, int dims) {
  for (int d = 0; d < s.rank; ++d)
    if (dims >> d & 1) s[d] = 1;
  return s;
}
// The elements of each result.
std::vector<Values> groups(const Tensor& x, const Shape& to) {
  std::vector<Values> all(static_cast<size_t>(to.size()));
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t rest = i, place = 0, step = 1;
    for (int d = x.rank() - 1; d >= 0; --d) {
      if (to[d] != 1) {
        place += rest % to[d] * step;
        step *= to[d];
      }
      rest /= x.shape()[d];
    }
    all[static_cast<size_t>(place)].push_back(x.at(i));
  }
  return all;
}
Values folded(const std::vector<Values>& groups, Reduce op) {
  Values out;
  for (const Values& g : groups) {
    double sum = 0, high = -inf, low = inf;
    for (const double v : g) {
      sum += v;
      high = std::max(high, v);
      low = std::min(low, v);
    }
    out.push_back(op == Reduce::Sum    ? sum
                  : op == Reduce::Mean ? sum / static_cast<double>(g.size())
                  : op == Reduce::Max  ? high
                                       : low);
  }
  return out;
}

TEST(Reduce, EveryOpDtypeViewAndSetOfDimensions) {
  for (const Reduce op : {Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Min}) {
    for (const auto& dtypes : float_pairs) {
      const DType in = dtypes.first, out = dtypes.second;
      for (const Input& input : inputs(in, in == bf16 ? 200 : 1000)) {
        const char* const what = input.name;
        const Tensor& x = input.x;
        for (int dims = 0; dims < 1 << x.rank(); ++dims) {
          const Shape to = reduced_shape(x.shape(), dims);
          const Tensor y = output(to, out);
          launch([&](Launch& l) { reduce(l, op, x, y); });
          Values want = folded(groups(x, to), op);
          for (double& w : want) w = out == f16 && w > 65519 ? inf : w;
          expect_close(
              y, want,
              out == f64   ? 1e-14
              : out == f32 ? 1e-7
              : out == f16 ? 6e-4
                           : 5e-3,
              std::string(what) + " " + std::string(name(in)) + " dims " + std::to_string(dims));
        }
      }
    }
  }
}

TEST(Reduce, IntegersSumIn64Bits) {
  for (const DType t : {i64, i32, u8, boolean}) {
    for (const Input& input : inputs(t, t == boolean ? 2 : 200)) {
      const char* const what = input.name;
      const Tensor& x = input.x;
      for (int dims = 0; dims < 1 << x.rank(); ++dims) {
        const Shape to = reduced_shape(x.shape(), dims);
        const Tensor sum = output(to, i64), high(to, t), low(to, t);
        launch([&](Launch& l) {
          reduce(l, Reduce::Sum, x, sum);
          reduce(l, Reduce::Max, x, high);
          reduce(l, Reduce::Min, x, low);
        });
        const auto g = groups(x, to);
        EXPECT_EQ(to_vector(sum), folded(g, Reduce::Sum)) << what;
        EXPECT_EQ(to_vector(high), folded(g, Reduce::Max)) << what;
        EXPECT_EQ(to_vector(low), folded(g, Reduce::Min)) << what;
      }
    }
  }
}

TEST(Reduce, AbsoluteValuesSquaresAndProducts) {
  const auto all = [](const std::vector<Values>& groups, double start, auto join) {
    Values out;
    for (const Values& g : groups) {
      double v = start;
      for (const double x : g) v = join(v, x);
      out.push_back(v);
    }
    return out;
  };
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : {Shape{3, 50, 7}, Shape{1, 9001}, Shape{700, 33}, Shape{131, 16}}) {
      const Tensor x = random(shape, in, 5, -2, 2), near_one = random(shape, in, 6, 0.99, 1.01);
      for (int dims = 0; dims < 1 << x.rank(); ++dims) {
        const Shape to = reduced_shape(shape, dims);
        const Tensor sum = output(to, out), length = output(to, out), top = output(to, out),
                     product = output(to, out);
        launch([&](Launch& l) {
          reduce(l, Reduce::SumAbs, x, sum);
          reduce(l, Reduce::Norm, x, length);
          reduce(l, Reduce::MaxAbs, x, top);
          reduce(l, Reduce::Prod, near_one, product);
        });
        const auto g = groups(x, to);
        const auto what = std::string(name(in)) + " " + std::to_string(dims);
        expect_close(sum, all(g, 0, [](double a, double b) { return a + std::abs(b); }),
                     tolerance(out), what);
        expect_close(length, all(g, 0, [](double a, double b) { return std::hypot(a, b); }),
                     tolerance(out), what);
        expect_close(top, all(g, 0, [](double a, double b) { return std::max(a, std::abs(b)); }), 0,
                     what);
        expect_close(product, all(groups(near_one, to), 1, std::multiplies<>()),
                     10 * tolerance(out), what);
      }
    }
}

// Terms and sums that f32 cannot hold, although it holds the result: along rows, along columns, and
// of results so short that they are copied.
TEST(Reduce, ResultsInRangeOfTermsThatAreNot) {
  struct Case {
    Reduce op;
    double even, odd, result;  // of as many even as odd elements
  };
  const Case cases[] = {{Reduce::Mean, 3e38, 3e38, 3e38},  {Reduce::Sum, 3e38, -3e38, 0},
                        {Reduce::Mean, 3e38, -1e38, 1e38}, {Reduce::Norm, 3e30, 4e30, -1},
                        {Reduce::Norm, 3e-23, 4e-23, -1},  {Reduce::Norm, 0, 0, 0},
                        {Reduce::Prod, 1e30, 1e-30, 1},    {Reduce::Norm, inf, 1, inf},
                        {Reduce::Mean, 3e38, inf, inf},    {Reduce::Mean, nan, 1, nan}};
  for (const Shape& shape : {Shape{1, 4}, {2, 9002}, {1030, 40}, {1030, 3}, {100, 4, 3}, {70, 4}})
    for (int dim = 0; dim < shape.rank; ++dim)
      for (const Case& c : cases) {
        if (shape[dim] % 2 != 0 || (c.op == Reduce::Prod && shape[dim] > 16)) continue;
        Tensor x(shape, f32);
        int64_t inner = 1;
        for (int d = dim + 1; d < shape.rank; ++d) inner *= shape[d];
        for (int64_t i = 0; i < x.numel(); ++i)
          x.set(i, i / inner % shape[dim] % 2 == 0 ? c.even : c.odd);
        const Shape to = reduced_shape(shape, 1 << dim);
        const Tensor y = output(to, f32);
        launch([&](Launch& l) { reduce(l, c.op, x, y); });
        const double pairs = static_cast<double>(shape[dim] / 2),
                     want = c.result < 0 ? std::hypot(c.even, c.odd) * std::sqrt(pairs) : c.result;
        const bool ordinary = std::isfinite(want) && want != 0;
        for (int64_t i = 0; i < y.numel(); ++i)
          expect_close(filled({}, f64, ordinary ? y.at(i) / want : y.at(i)), {ordinary ? 1 : want},
                       c.op == Reduce::Prod ? 1e-4 : 2e-7,  // the factors are rounded
                       std::to_string(int(c.op)) + " of " + std::to_string(c.even));
      }
}

// Overflow without undefined behaviour, which a sanitized build checks: within vectors, across
// their lanes, and between chunks, along rows and columns.
TEST(Reduce, SumsAndProductsOfIntegersWrapAroundIn64Bits) {
  for (const Shape& shape : {Shape{1, 41}, Shape{1, 9001}, Shape{1030, 37}, Shape{1030, 3}}) {
    Tensor x(shape, i64);
    for (int64_t i = 0; i < x.numel(); ++i)
      x.data<int64_t>()[i] = static_cast<int64_t>(uint64_t(i + 1) * 0x9e3779b97f4a7c15u | 1);
    for (const int dim : {0, 1}) {
      const Shape to = reduced_shape(shape, 1 << dim);
      const Tensor sum = output(to, i64), product = output(to, i64);
      launch([&](Launch& l) {
        reduce(l, Reduce::Sum, x, sum);
        reduce(l, Reduce::Prod, x, product);
      });
      const int64_t step = dim == 0 ? shape[1] : 1, next = dim == 0 ? 1 : shape[1];
      for (int64_t r = 0; r < to.size(); ++r) {
        uint64_t s = 0, p = 1;
        for (int64_t i = 0; i < shape[dim]; ++i) {
          const auto v = static_cast<uint64_t>(x.data<int64_t>()[r * next + i * step]);
          s += v, p *= v;
        }
        ASSERT_EQ(sum.data<int64_t>()[r], static_cast<int64_t>(s)) << r << " along " << dim;
        ASSERT_EQ(product.data<int64_t>()[r], static_cast<int64_t>(p)) << r << " along " << dim;
      }
    }
  }
  const Tensor none({1}, i64);
  launch([&](Launch& l) { reduce(l, Reduce::Prod, Tensor({0}, i32), none); });
  EXPECT_EQ(none.item(), 1);
}

// More elements than are copied at once, some of them NaN.
TEST(Reduce, ManyResultsOfFewElements) {
  for (const DType dtype : {f64, f32, bf16}) {
    const Tensor x = numbered({50011, 3}, dtype, 100);
    x.set(3 * 50010, nan);
    x.set(3 * 43700 + 1, -inf);
    Values high = folded(groups(x, {50011, 1}), Reduce::Max),
           sum = folded(groups(x, {50011, 1}), Reduce::Sum);
    high[50010] = nan;
    expect_same_for_any_threads([&] {
      const Tensor top = output({50011, 1}, dtype), total = output({50011, 1}, dtype);
      launch([&](Launch& l) {
        reduce(l, Reduce::Max, x, top);
        reduce(l, Reduce::Sum, x, total);
      });
      expect_close(top, high, 0, "max");
      expect_close(total, sum, dtype == bf16 ? 5e-3 : 0, "sum");
      return std::vector<Tensor>{top, total};
    });
  }
}

TEST(Reduce, OutputsMayHaveGaps) {
  const Tensor x = numbered({20, 30}, f32, 100), whole = output({20, 3}, f32);
  const Tensor y = whole.with_layout(slice(whole.layout(), 1, 1, 2));
  launch([&](Launch& l) { reduce(l, Reduce::Sum, x, y); });
  expect_close(y, folded(groups(x, {20, 1}), Reduce::Sum), 0, "gaps");
  EXPECT_TRUE(std::isnan(whole.at(0)) && std::isnan(whole.at(2)));
}

TEST(Reduce, LongSumsStayExact) {
  const Tensor ones = filled({10'000'000}, f32, 1), total({1}, f32);
  launch([&](Launch& l) { reduce(l, Reduce::Sum, ones, total); });
  EXPECT_EQ(total.item(), 1e7);
  const Tensor tall = ones.with_layout(Layout({5'000'000, 2}, {2, 1})), columns({1, 2}, f32);
  launch([&](Launch& l) { reduce(l, Reduce::Sum, tall, columns); });
  EXPECT_EQ(to_vector(columns), (Values{5e6, 5e6}));
  const Tensor tenths = filled({1'000'000}, f32, 0.1);
  launch([&](Launch& l) { reduce(l, Reduce::Mean, tenths, total); });
  EXPECT_NEAR(total.item(), 0.1f, 1e-6 * 0.1);
}

TEST(Reduce, NanWins) {
  for (const int64_t at : {0, 5, 50, 99}) {
    Tensor x = numbered({100}, f32, 1000), y({1}, f32);
    x.set(at, nan);
    for (const Reduce op : {Reduce::Max, Reduce::Min, Reduce::Sum}) {
      launch([&](Launch& l) { reduce(l, op, x, y); });
      EXPECT_TRUE(std::isnan(y.item())) << at;
      const Tensor column = x.with_layout(Layout({50, 2}, {2, 1})), pair({1, 2}, f32);
      launch([&](Launch& l) { reduce(l, op, column, pair); });
      EXPECT_TRUE(std::isnan(pair.at(at % 2)) && !std::isnan(pair.at(1 - at % 2))) << at;
    }
  }
}

TEST(Reduce, Empty) {
  const Tensor x({0, 3}, f32), y = output({1, 3}, f32), none({0, 1}, f32),
                               whole = output({1, 1}, f32), some({1, 3}, boolean),
                               every({1, 3}, boolean);
  launch([&](Launch& l) {
    reduce(l, Reduce::Sum, x, y);
    reduce(l, Reduce::Sum, x, none);
    reduce(l, Reduce::Mean, x, whole);
    reduce(l, Reduce::Max, Tensor({0, 3}, boolean), some);
    reduce(l, Reduce::Min, Tensor({0, 3}, boolean), every);
  });
  EXPECT_EQ(to_vector(some), (Values{0, 0, 0}));
  EXPECT_EQ(to_vector(every), (Values{1, 1, 1}));
  EXPECT_EQ(to_vector(y), (Values{0, 0, 0}));
  EXPECT_TRUE(std::isnan(whole.item()));
}

TEST(Reduce, SameBitsForAnyThreads) {
  const Tensor x = random({9, 501, 130}, f32, 3), h = random({9, 501, 130}, bf16, 4);
  expect_same_for_any_threads([&] {
    std::vector<Tensor> all;
    for (const int dims : {1, 2, 3, 4, 5, 6, 7}) {
      all.emplace_back(reduced_shape(x.shape(), dims), f32);
      launch([&](Launch& l) { reduce(l, Reduce::Sum, dims % 2 ? x : h, all.back()); });
    }
    return all;
  });
}

TEST(ArgReduce, FirstWinnerAndNan) {
  for (const DType t : {f64, f32, f16, bf16, i64, i32, u8}) {
    for (const Input& input : inputs(t, 100)) {
      const char* const what = input.name;
      const Tensor& x = input.x;
      for (int dim = 0; dim < x.rank(); ++dim) {
        Shape to = x.shape();
        to[dim] = 1;
        const Tensor high(to, i64), low(to, i64);
        launch([&](Launch& l) {
          arg_reduce(l, Reduce::Max, dim, x, high);
          arg_reduce(l, Reduce::Min, dim, x, low);
        });
        const auto g = groups(x, to);
        for (size_t i = 0; i < g.size(); ++i) {
          EXPECT_EQ(high.at(static_cast<int64_t>(i)),
                    std::max_element(g[i].begin(), g[i].end()) - g[i].begin())
              << what;
          EXPECT_EQ(low.at(static_cast<int64_t>(i)),
                    std::min_element(g[i].begin(), g[i].end()) - g[i].begin())
              << what;
        }
      }
    }
  }
  const Tensor x = from({1, nan, 5, nan}, {4}), y({1}, i64);
  launch([&](Launch& l) { arg_reduce(l, Reduce::Max, 0, x, y); });
  EXPECT_EQ(y.item(), 1);
}

TEST(ArgReduce, LongLinesAndExtremes) {
  for (const DType t : {f64, f32, f16, bf16, i64, i32, u8, boolean})
    for (const int64_t at : {0, 1, 127, 128, 129, 500, 998}) {
      // The first of two equal winners, in different chunks of a line.
      Tensor x = filled({1000}, t, 1), high({1}, i64), low({1}, i64);
      x.set(at, 0);
      x.set(999, 0);
      launch([&](Launch& l) { arg_reduce(l, Reduce::Min, 0, x, low); });
      EXPECT_EQ(low.item(), static_cast<double>(at)) << name(t);
      if (is_float(t)) {
        x.set(at, nan);
        x.set(999, nan);
        launch([&](Launch& l) {
          arg_reduce(l, Reduce::Min, 0, x, low);
          arg_reduce(l, Reduce::Max, 0, x, high);
        });
        EXPECT_EQ(low.item(), static_cast<double>(at)) << name(t);
        EXPECT_EQ(high.item(), static_cast<double>(at)) << name(t);
      }
    }
  const auto winners = [](const Tensor& x) {
    const Tensor high({1}, i64), low({1}, i64);
    launch([&](Launch& l) {
      arg_reduce(l, Reduce::Max, 0, x, high);
      arg_reduce(l, Reduce::Min, 0, x, low);
    });
    return std::pair(high.item(), low.item());
  };
  EXPECT_EQ(winners(from({0.0, -0.0, 0.0}, {3})), std::pair(0.0, 0.0)) << "zeros are equal";
  EXPECT_EQ(winners(from({-inf, inf}, {2}, f16)), std::pair(1.0, 0.0));
  const Tensor extremes({3}, i64);
  extremes.data<int64_t>()[0] = 0;
  extremes.data<int64_t>()[1] = std::numeric_limits<int64_t>::max();
  extremes.data<int64_t>()[2] = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(winners(extremes), std::pair(1.0, 2.0)) << "the largest is no NaN";
}

// --- random ---

constexpr uint64_t seed = 0x123456789abcdef, offset = 0xfffffffe;  // the block number carries

uint32_t word(int64_t i, uint64_t from = offset) {
  return Philox::bits(seed, from + static_cast<uint64_t>(i / 4))[static_cast<size_t>(i % 4)];
}

TEST(Random, UniformsArePhilox) {
  for (const DType t : {f64, f32, f16, bf16}) {
    for (const int64_t n : {0, 1, 63, 64, 65, 40001}) {
      const Tensor y({n}, t), one({1}, t);
      launch([&](Launch& l) { random_uniform(l, Draw{seed, offset}, -2, 3, y); });
      for (int64_t i = 0; i < n; ++i) {
        // The first bits of the word: as many as the dtype holds, at most 24.
        const int kept = t == f16 ? 11 : t == bf16 ? 8 : 24;
        one.set(0, -2 + 5 * std::ldexp(static_cast<double>(word(i) >> (32 - kept)), -kept));
        ASSERT_EQ(y.at(i), one.item()) << i;
      }
    }
  }
}

TEST(Random, NormalsAreBoxMuller) {
  for (const DType t : {f64, f32, f16, bf16}) {
    const Tensor y({40001}, t);
    launch([&](Launch& l) { random_normal(l, Draw{seed, offset}, 1, 2, y); });
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < y.numel(); ++i) {
      const int64_t pair = i & ~int64_t{1};
      const double r =
          std::sqrt(-2 * std::log(1 - static_cast<double>(Philox::uniform(word(pair)))));
      const double angle = 2 * M_PI * static_cast<double>(Philox::uniform(word(pair + 1)));
      const double want = 1 + 2 * r * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
      ASSERT_NEAR(y.at(i), want,
                  (t == f64   ? 1e-13
                   : t == f32 ? 1e-6
                   : t == f16 ? 1e-3
                              : 8e-3) *
                      std::max(2.0, std::abs(want)))
          << i;
      sum += y.at(i);
      squares += (y.at(i) - 1) * (y.at(i) - 1);
    }
    EXPECT_NEAR(sum / 40001, 1, 0.05);
    EXPECT_NEAR(squares / 40001, 4, 0.15);
  }
}

__extension__ typedef unsigned __int128 Wide;

TEST(Random, IntegersByMultiplyShift) {
  const std::pair<int64_t, int64_t> ranges[] = {
      {0, 10},      {-5, 6},         {7, 8},           {0, 0xffff},
      {0, 0x10000}, {0, 0xffffffff}, {-1, 0xffffffff}, {-(int64_t{1} << 62), int64_t{1} << 62}};
  for (const auto& range : ranges) {
    const int64_t low = range.first, high = range.second;
    const Tensor y({1001}, i64);
    launch([&](Launch& l) { random_integer(l, Draw{seed, offset}, low, high, y); });
    for (int64_t i = 0; i < 1001; ++i) {
      const auto width =
          static_cast<Wide>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
      // Ranges from 2^16 on take two words each: all second words follow all first words.
      const uint64_t second = width >> 16 ? word(i, offset + 251) : 0;
      const uint64_t bits = static_cast<uint64_t>(word(i)) << 32 | second;
      ASSERT_EQ(y.data<int64_t>()[i], low + static_cast<int64_t>(width * bits >> 64));
      ASSERT_TRUE(y.data<int64_t>()[i] >= low && y.data<int64_t>()[i] < high);
    }
  }
}

TEST(Random, DropoutKeepsWhereUniformIsAtLeastP) {
  for (const auto& dtypes : float_pairs) {
    const DType in = dtypes.first, out = dtypes.second;
    for (const double p : {0.0, 0.25, 0.3, 1.0}) {
      const Tensor x = filled({20003}, in, 3), y = output({20003}, out);
      launch([&](Launch& l) { dropout(l, Draw{seed, offset}, p, x, y); });
      int64_t kept = 0;
      for (int64_t i = 0; i < y.numel(); ++i) {
        const bool keep = static_cast<double>(Philox::uniform(word(i))) >= p;
        kept += keep;
        ASSERT_NEAR(y.at(i), keep ? 3 / (1 - p) : 0, tolerance(out) * 8) << i;
      }
      EXPECT_NEAR(static_cast<double>(kept) / 20003, 1 - p, 0.02);
    }
  }
  const Tensor bad = filled({1000}, f32, nan);
  launch([&](Launch& l) { dropout(l, Draw{seed, offset}, 1, bad, bad); });
  EXPECT_EQ(to_vector(bad), Values(1000, 0));
}

TEST(Random, SameBitsForAnyThreads) {
  const Tensor x = filled({100000}, bf16, 1);
  expect_same_for_any_threads([&] {
    const Tensor u({100000}, f32), n({100000}, f16), i({100000}, i64), d({100000}, bf16);
    launch([&](Launch& l) {
      random_uniform(l, Draw{seed, offset}, 0, 1, u);
      random_normal(l, Draw{seed, offset}, 0, 1, n);
      random_integer(l, Draw{seed, offset}, 0, 1000, i);
      dropout(l, Draw{seed, offset}, 0.5, x, d);
    });
    return std::vector{u, n, i, d};
  });
}

}  // namespace kernels_reduce_test
}  // namespace mixtape::kernels
