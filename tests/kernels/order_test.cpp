// Sorting, selecting and scans, against the standard library's sort and loops in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_order_test {

// NaN is larger than all numbers, and both zeros are equal.
bool less(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; }

std::vector<int64_t> sorted(const Tensor& row, bool descending) {
  std::vector<int64_t> at(static_cast<size_t>(row.numel()));
  std::iota(at.begin(), at.end(), 0);
  std::stable_sort(at.begin(), at.end(), [&](int64_t a, int64_t b) {
    return descending ? less(row.at(b), row.at(a)) : less(row.at(a), row.at(b));
  });
  return at;
}

struct Kind {
  const char* name;
  double (*value)(int64_t i);
};
const Kind kinds[] = {
    {"random", [](int64_t i) { return static_cast<double>(i * 7919 % 1009) - 500; }},
    {"ties", [](int64_t i) { return static_cast<double>(i * 7919 % 1009 % 5) - 2; }},
    {"equal", [](int64_t) { return 1.0; }},
    {"ascending", [](int64_t i) { return static_cast<double>(i) * 0.25 - 10; }},
    {"descending", [](int64_t i) { return -static_cast<double>(i) * 0.25; }},
    {"edges",
     [](int64_t i) {
       const double v[] = {0.0, nan, -inf, inf, -0.0, 1e-7, -1e-7, 1, -1, -nan};
       return v[i * 7919 % 1009 % 10];
     }},
};

TEST(Argsort, IsStableForEveryDtype) {
  for (const DType t : {f64, f32, f16, bf16, i64, i32, u8, boolean})
    for (const Kind& kind : kinds) {
      if (!is_float(t) && &kind == std::end(kinds) - 1) continue;
      for (const int64_t n : {1, 2, 15, 16, 17, 31, 33, 63, 65, 127, 129, 700, 3000}) {
        const Tensor x({2, n}, t), y = output({2, n}, i64);
        for (int64_t i = 0; i < 2 * n; ++i) {
          const double v = kind.value(i), whole = std::trunc(v);
          x.set(i, is_float(t)    ? v
                   : t == boolean ? whole > 0
                   : t == u8      ? std::fmod(std::abs(whole), 256)
                                  : whole);
        }
        for (const bool descending : {false, true}) {
          launch([&](Launch& l) { argsort(l, descending, x, y); });
          for (const int64_t r : {0, 1}) {
            const Tensor row = x.with_layout(select(x.layout(), 0, r));
            const auto want = sorted(row, descending);
            for (int64_t i = 0; i < n; ++i)
              ASSERT_EQ(y.at(r * n + i), static_cast<double>(want[static_cast<size_t>(i)]))
                  << name(t) << " " << kind.name << " " << n << " place " << i;
          }
        }
      }
    }
}

TEST(Argsort, TakesTheExtremesOfIntegers) {
  const Tensor x({4}, i64), y({4}, i64);
  int64_t* const v = x.data<int64_t>();
  v[0] = std::numeric_limits<int64_t>::max();
  v[1] = -1;
  v[2] = std::numeric_limits<int64_t>::min();
  v[3] = 0;
  launch([&](Launch& l) { argsort(l, false, x.with_layout(Layout(Shape{1, 4})), y); });
  EXPECT_EQ(to_vector(y), (Values{2, 1, 3, 0}));
}

TEST(TopK, IsTheBeginningOfTheSortedRow) {
  for (const DType t : {f64, f32, f16, bf16, i64})
    for (const Kind& kind : kinds)
      for (const int64_t n : {1, 7, 64, 65, 300, 2000}) {
        if (!is_float(t) && &kind == std::end(kinds) - 1) continue;
        const Tensor x({3, n}, t), all({3, n}, i64);
        for (int64_t i = 0; i < 3 * n; ++i) x.set(i, kind.value(i));
        for (const bool largest : {false, true})
          for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{5}, n / 2, n - 1, n}) {
            if (k > n) continue;
            const Tensor y = output({3, k}, i64);
            launch([&](Launch& l) {
              topk(l, largest, x, y);
              argsort(l, largest, x, all);
            });
            for (int64_t r = 0; r < 3; ++r)
              for (int64_t i = 0; i < k; ++i)
                ASSERT_EQ(y.at(r * k + i), all.at(r * n + i))
                    << name(t) << " " << kind.name << " " << k << " of " << n;
          }
      }
}

// y_i = a_i y_(i-1) + b_i from its definition, along the middle of [outer, n, inner].
Values recurrence(const Tensor* a, const Tensor* b, bool transposed, int dim, const Shape& shape) {
  Values y(static_cast<size_t>(shape.size()));
  int64_t step = 1;
  for (int d = shape.rank - 1; d > dim; --d) step *= shape[d];
  const int64_t n = shape[dim];
  for (int64_t line = 0; line < shape.size() / n; ++line) {
    const int64_t first = line / step * step * n + line % step;
    double state = b ? 0 : 1;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t r = transposed ? n - 1 - i : i, at = first + r * step;
      if (a && transposed && i > 0) state *= a->at(at + step);
      if (a && !transposed && (i > 0 || !b)) state *= a->at(at);
      if (b) state += b->at(at);
      y[static_cast<size_t>(at)] = state;
    }
  }
  return y;
}

TEST(Scan, EveryKindDimensionAndDtype) {
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : {Shape{5, 9, 70}, Shape{1000}, Shape{9, 40}, Shape{3, 1, 2}})
      for (int dim = 0; dim < shape.rank; ++dim)
        for (const bool odd : {false, true})
          for (const bool transposed : {false, true}) {
            Tensor a = random(shape, in, 1, 0.8, 1.1), b = random(shape, in, 2);
            if (odd && shape.rank > 1) {
              Shape turned = shape;
              std::swap(turned[0], turned[-1]);
              for (Tensor* t : {&a, &b}) {
                const Tensor whole(turned, in);
                const Tensor view = whole.with_layout(transpose(whole.layout(), 0, -1));
                launch([&](Launch& l) { convert(l, *t, view); });
                *t = view;
              }
            }
            for (const int which : {1, 2, 3}) {
              const Tensor y = output(shape, out);
              const bool has_a = which & 1, has_b = which & 2;
              launch([&](Launch& l) {
                scan(l, transposed, dim, has_a ? a : Tensor(), has_b ? b : Tensor(), y);
              });
              expect_close(
                  y, recurrence(has_a ? &a : nullptr, has_b ? &b : nullptr, transposed, dim, shape),
                  out == f64   ? 1e-13
                  : out == f32 ? 2e-7
                  : out == f16 ? 1e-3
                               : 8e-3,
                  std::string(name(in)) + " " + shape.to_string() + " " + std::to_string(which));
            }
          }
}

TEST(Scan, IgnoresWhatMultipliesNothing) {
  // The state before the first element is 0 or 1; a NaN in its factor must not propagate.
  const Tensor a = from({nan, 2, 3}, {3}), b = from({1, 1, 1}, {3}), y({3}, f32);
  launch([&](Launch& l) { scan(l, false, 0, a, b, y); });
  EXPECT_EQ(to_vector(y), (Values{1, 3, 10}));
  launch([&](Launch& l) { scan(l, true, 0, a, b, y); });
  EXPECT_EQ(to_vector(y), (Values{9, 4, 1}));
  launch([&](Launch& l) { scan(l, true, 0, a, Tensor(), y); });
  EXPECT_EQ(to_vector(y), (Values{6, 3, 1}));
}

TEST(Scan, IntegersIn64Bits) {
  for (const DType t : {i64, i32, u8, boolean}) {
    const Tensor x = filled({2, 70}, t, t == boolean ? 1 : 3), sums({2, 70}, i64),
                 products({2, 70}, i64);
    launch([&](Launch& l) {
      scan(l, false, 1, Tensor(), x, sums);
      scan(l, false, 1, x, Tensor(), products);
    });
    uint64_t sum = 0, product = 1;
    for (int i = 0; i < 70; ++i) {
      sum += t == boolean ? 1 : 3;
      product *= t == boolean ? 1 : 3;
      ASSERT_EQ(sums.data<int64_t>()[70 + i], static_cast<int64_t>(sum));
      ASSERT_EQ(products.data<int64_t>()[70 + i], static_cast<int64_t>(product));
    }
  }
}

TEST(Scan, ExtremesAreTheLastOfEqualsAndNanWins) {
  const Tensor x = from({3, 1, 3, -inf, 4, 4, nan, 9, nan, inf}, {10}), index({10}, i64);
  launch([&](Launch& l) { arg_scan(l, Reduce::Max, 0, x, index); });
  EXPECT_EQ(to_vector(index), (Values{0, 0, 2, 2, 4, 5, 6, 6, 8, 8}));
  launch([&](Launch& l) { arg_scan(l, Reduce::Min, 0, x, index); });
  EXPECT_EQ(to_vector(index), (Values{0, 1, 1, 3, 3, 3, 6, 6, 8, 8}));
  const Tensor many({5, 10}, f32), each({5, 10}, i64);  // four lines side by side, and one
  for (int64_t i = 0; i < 50; ++i) many.set(i, x.at(i % 10));
  launch([&](Launch& l) { arg_scan(l, Reduce::Min, 1, many, each); });
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(each.at(i), index.at(i % 10)) << i;
  const Tensor large({3}, i64);  // differ by less than f64 can tell
  large.data<int64_t>()[0] = (int64_t{1} << 62) + 1;
  large.data<int64_t>()[1] = int64_t{1} << 62;
  large.data<int64_t>()[2] = (int64_t{1} << 62) + 2;
  const Tensor at({3}, i64);
  launch([&](Launch& l) { arg_scan(l, Reduce::Max, 0, large, at); });
  EXPECT_EQ(to_vector(at), (Values{0, 0, 2}));
}

TEST(Scan, ExtremesOfEveryDimensionAndDtype) {
  for (const DType t : {f64, f32, f16, bf16, i64, i32, u8})
    for (const Shape& shape : {Shape{5, 9, 70}, Shape{1000}, Shape{3, 1, 2}})
      for (int dim = 0; dim < shape.rank; ++dim) {
        const Tensor x = random(shape, t, 1, 0, 20), index(shape, i64);
        launch([&](Launch& l) { arg_scan(l, Reduce::Min, dim, x, index); });
        int64_t step = 1;
        for (int d = shape.rank - 1; d > dim; --d) step *= shape[d];
        for (int64_t i = 0; i < x.numel(); ++i) {
          const int64_t along = i / step % shape[dim], first = i - along * step;
          const double least = x.at(first + int64_t(index.at(i)) * step);
          for (int64_t k = 0; k <= along; ++k)
            ASSERT_TRUE(x.at(first + k * step) > least ||
                        (x.at(first + k * step) == least && double(k) <= index.at(i)));
        }
      }
}

TEST(Scan, SumsOfExponentialsStayInRange) {
  const Tensor x = from({-inf, -inf, 1000, 1000, -1e30, 1001, inf, 0, nan, 1}, {10}, f64),
               y({10}, f64);
  launch([&](Launch& l) { log_cumsum_exp(l, 0, x, y); });
  const double two = 1000 + std::log(2);
  expect_close(y,
               {-inf, -inf, 1000, two, two, 1000 + std::log(2 + std::exp(1)), inf, inf, nan, nan},
               1e-15, "logcumsumexp");
  const Tensor many = filled({100000}, f32, -3), sums({100000}, f32);
  launch([&](Launch& l) { log_cumsum_exp(l, 0, many, sums); });
  EXPECT_NEAR(sums.at(99999), std::log(1e5) - 3, 1e-6);
}

TEST(Order, SameForAnyThreads) {
  const Tensor x = random({300, 200}, f32, 1);
  expect_same_for_any_threads([&] {
    const Tensor order({300, 200}, i64), best({300, 7}, i64), sums({300, 200}, f32),
        down({300, 200}, f32);
    launch([&](Launch& l) {
      argsort(l, false, x, order);
      topk(l, true, x, best);
      scan(l, false, 1, x, x, sums);
      scan(l, true, 0, Tensor(), x, down);
    });
    return std::vector<Tensor>{order, best, sums, down};
  });
}

}  // namespace kernels_order_test
}  // namespace mixtape::kernels
