// Sorting and selecting, against the standard library's sort.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
namespace {

// NaN is larger than all, and both zeros are equal.
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

TEST(Order, SameForAnyThreads) {
  const Tensor x = random({300, 200}, f32, 1);
  expect_same_for_any_threads([&] {
    const Tensor order({300, 200}, i64), best({300, 7}, i64);
    launch([&](Launch& l) {
      argsort(l, false, x, order);
      topk(l, true, x, best);
    });
    return std::vector<Tensor>{order, best};
  });
}

}  // namespace
}  // namespace mixtape::kernels
