// Indexing kernels against loops over single elements, for every dtype, dimension and stride.

#include <gtest/gtest.h>

#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_index_test {

// Integers that every dtype holds.
Tensor numbered(const Shape& shape, DType t, int modulus) {
  Tensor x(shape, t);
  const int m = t == boolean ? 2 : modulus;
  for (int64_t i = 0; i < x.numel(); ++i) x.set(i, static_cast<double>(i * 7919 % 10007 % m));
  return x;
}
Tensor transposed(const Tensor& x, int a, int b) {
  return x.with_layout(transpose(x.layout(), a, b));
}

// The position that the index selects along dim for element i of its shape.
int64_t named(const Tensor& x, int dim, const Tensor& index, int64_t i) {
  int64_t flat = 0, step = 1;
  const int64_t at = static_cast<int64_t>(index.at(i));
  for (int d = x.rank() - 1; d >= 0; --d) {
    flat += (d == dim ? at : i % index.shape()[d]) * step;
    step *= x.shape()[d];
    i /= index.shape()[d];
  }
  return flat;
}

struct Problem {
  const char* name;
  Tensor (*make)(DType);  // the indexed tensor
  Shape index;
  int dim;
};
// The sizes cross the kernels' blocks of 64 and 4096 columns and 16384 steps.
const Problem problems[] = {
    {"line", [](DType t) { return numbered({50}, t, 100); }, {20000}, 0},
    {"last", [](DType t) { return numbered({70, 30}, t, 100); }, {70, 300}, 1},
    {"first", [](DType t) { return numbered({30, 130}, t, 100); }, {40, 130}, 0},
    {"wide", [](DType t) { return numbered({3, 4100}, t, 100); }, {5, 4100}, 0},
    {"middle", [](DType t) { return numbered({4, 9, 70}, t, 100); }, {4, 20, 70}, 1},
    {"corner", [](DType t) { return numbered({9, 5, 6}, t, 100); }, {3, 7, 2}, 1},
    {"one each", [](DType t) { return numbered({500, 9}, t, 100); }, {500, 1}, 1},
    {"transposed",
     [](DType t) { return transposed(numbered({8, 9, 10}, t, 100), 0, 2); },
     {10, 12, 8},
     1},
    {"one", [](DType t) { return numbered({1}, t, 100); }, {1}, 0},
    {"none", [](DType t) { return numbered({4, 5}, t, 100); }, {4, 0}, 1},
};

// The same index in several layouts: dense, transposed, and one index for each slice.
std::vector<Tensor> indices_of(const Problem& p, int64_t size) {
  const Tensor dense(p.index, i64);
  for (int64_t i = 0; i < dense.numel(); ++i)
    dense.set(i, static_cast<double>((i * i + i / 7) % size));
  std::vector<Tensor> all = {dense};
  if (p.index.rank > 1) {
    Shape turned = p.index;
    std::swap(turned[0], turned[-1]);
    const Tensor odd = transposed(Tensor(turned, i64), 0, -1);
    for (int64_t i = 0; i < odd.numel(); ++i) odd.set(i, dense.at(i));
    all.push_back(odd);
  }
  Shape strides = p.index;
  for (int d = 0; d < p.index.rank; ++d) strides[d] = d == p.dim;
  const Tensor each = numbered({std::max<int64_t>(1, p.index[p.dim])}, i64, int(size));
  all.push_back(each.with_layout(Layout(p.index, strides)));
  return all;
}

TEST(Index, GatherReadsWhatTheIndexNames) {
  for (const Problem& p : problems)
    for (const DType t : all_dtypes) {
      const Tensor x = p.make(t);
      for (const Tensor& index : indices_of(p, x.size(p.dim))) {
        const Tensor y = output(p.index, t);
        launch([&](Launch& l) { gather(l, p.dim, x, index, y); });
        for (int64_t i = 0; i < y.numel(); ++i)
          ASSERT_EQ(y.at(i), x.at(named(x, p.dim, index, i))) << p.name << " " << name(t);
      }
    }
}

TEST(Index, ScatterKeepsTheLastOfEquals) {
  for (const Problem& p : problems)
    for (const DType t : all_dtypes) {
      const Tensor x = p.make(t), source = numbered(p.index, t, 90);
      for (const Tensor& index : indices_of(p, x.size(p.dim))) {
        const Tensor y = p.make(t);
        Values want = to_vector(x);
        for (int64_t i = 0; i < source.numel(); ++i)
          want[static_cast<size_t>(named(x, p.dim, index, i))] = source.at(i);
        launch([&](Launch& l) { scatter(l, p.dim, index, source, y); });
        ASSERT_EQ(to_vector(y), want) << p.name << " " << name(t);
      }
    }
}

TEST(Index, ScatterAddSumsInOrder) {
  for (const Problem& p : problems)
    for (const DType t : all_dtypes) {
      if (t == boolean) continue;
      const DType sums = is_half(t) ? f32 : t;
      const Tensor x = p.make(sums);
      Tensor source = numbered(p.index, t, 90);
      for (const Tensor& index : indices_of(p, x.size(p.dim))) {
        const Tensor y = p.make(sums);
        Values want = to_vector(x);
        for (int64_t i = 0; i < source.numel(); ++i) {
          double& sum = want[static_cast<size_t>(named(x, p.dim, index, i))];
          sum += source.at(i);
          if (t == u8) sum = std::fmod(sum, 256);
        }
        launch([&](Launch& l) { scatter_reduce(l, Reduce::Sum, p.dim, index, source, y); });
        ASSERT_EQ(to_vector(y), want) << p.name << " " << name(t);
      }
    }
  // In f16, 2048 + 1 would stay 2048.
  const Tensor y = filled({2}, f32, 0);
  launch([&](Launch& l) {
    scatter_reduce(l, Reduce::Sum, 0, filled({2052}, i64, 1), filled({2052}, f16, 1), y);
  });
  EXPECT_EQ(to_vector(y), (Values{0, 2052}));
}

TEST(Index, ScatterReduceTakesExtremes) {
  for (const Problem& p : problems)
    for (const DType t : all_dtypes) {
      if (t == boolean) continue;
      const DType to = is_half(t) ? f32 : t;
      const Tensor x = p.make(to), source = numbered(p.index, t, 90);
      for (const Tensor& index : indices_of(p, x.size(p.dim)))
        for (const bool largest : {false, true}) {
          const Tensor y = p.make(to);
          Values want = to_vector(x);
          for (int64_t i = 0; i < source.numel(); ++i) {
            double& at = want[static_cast<size_t>(named(x, p.dim, index, i))];
            at = largest ? std::max(at, source.at(i)) : std::min(at, source.at(i));
          }
          launch([&](Launch& l) {
            scatter_reduce(l, largest ? Reduce::Max : Reduce::Min, p.dim, index, source, y);
          });
          ASSERT_EQ(to_vector(y), want) << p.name << " " << name(t);
        }
    }
  const Tensor y = filled({2}, f32, 1);
  launch([&](Launch& l) {
    scatter_reduce(l, Reduce::Max, 0, filled({3}, i64, 1), from({2, NAN, 3}, {3}), y);
  });
  EXPECT_EQ(y.at(0), 1);
  EXPECT_TRUE(std::isnan(y.at(1)));
}

// In f32, 2^24 + 1 would stay 2^24, and ten million times 0.1 would be 1087937.
TEST(Index, ScatterAddCountsBeyondF32) {
  const Tensor one = filled({1}, f32, 0x1p24), rows = filled({3, 2}, f32, 0x1p24);
  launch([&](Launch& l) {
    scatter_reduce(l, Reduce::Sum, 0, filled({4096}, i64, 0), filled({4096}, f32, 1), one);
    scatter_reduce(l, Reduce::Sum, 0, filled({70000, 2}, i64, 2), filled({70000, 2}, f16, 1), rows);
  });
  EXPECT_EQ(to_vector(one), (Values{0x1p24 + 4096}));
  EXPECT_EQ(to_vector(rows),
            (Values{0x1p24, 0x1p24, 0x1p24, 0x1p24, 0x1p24 + 70000, 0x1p24 + 70000}));
}

TEST(Index, SourcesMayHaveAnyStrides) {
  const Tensor wide = numbered({40, 90}, f32, 100), x = transposed(wide, 0, 1), one({1}, f32);
  one.set(0, 3);
  for (const int dim : {0, 1}) {
    const Tensor index = indices_of({"", nullptr, {90, 40}, dim}, 7)[0];
    const Shape shape = dim == 0 ? Shape{7, 40} : Shape{90, 7};
    const Tensor y = filled(shape, f32, 0), last = filled(shape, f32, -1);
    launch([&](Launch& l) {
      scatter_reduce(l, Reduce::Sum, dim, index, one.with_layout(Layout({90, 40}, {0, 0})), y);
      scatter(l, dim, index, x, last);
    });
    Values counts(static_cast<size_t>(y.numel())), want(counts.size(), -1);
    for (int64_t i = 0; i < index.numel(); ++i) {
      counts[static_cast<size_t>(named(y, dim, index, i))] += 3;
      want[static_cast<size_t>(named(y, dim, index, i))] = x.at(i);
    }
    EXPECT_EQ(to_vector(y), counts);
    EXPECT_EQ(to_vector(last), want);
  }
}

TEST(Index, SameBitsForAnyThreads) {
  const Tensor x = random({300, 200}, f32, 1), index({300, 200}, i64), flat({60000}, i64);
  for (int64_t i = 0; i < index.numel(); ++i) {
    index.set(i, static_cast<double>(i * 37 % 11));
    flat.set(i, static_cast<double>(i * 37 % 101));
  }
  expect_same_for_any_threads([&] {
    std::vector<Tensor> all;
    for (const int dim : {0, 1}) {
      all.push_back(filled({300, 300}, f32, 0.1));
      launch([&](Launch& l) { scatter_reduce(l, Reduce::Sum, dim, index, x, all.back()); });
      all.push_back(filled({300, 300}, f32, 0.1));
      launch([&](Launch& l) { scatter(l, dim, index, x, all.back()); });
      all.push_back(output({300, 200}, f32));
      launch([&](Launch& l) { gather(l, dim, x, index, all.back()); });
    }
    all.push_back(filled({101}, f32, 0));
    launch([&](Launch& l) {
      scatter_reduce(l, Reduce::Sum, 0, flat, x.with_layout(Layout(Shape{60000})), all.back());
    });
    return all;
  });
}

TEST(Bounds, SmallestAndLargest) {
  const Tensor y({2}, i64), x = from({4, -7, 9, 0, 3, 2}, {2, 3}, i64);
  const auto bounds_of = [&](const Tensor& t) {
    launch([&](Launch& l) { bounds(l, t, y); });
    return to_vector(y);
  };
  EXPECT_EQ(bounds_of(x), (Values{-7, 9}));
  EXPECT_EQ(bounds_of(x.with_layout(slice(x.layout(), 1, 0, 3, 2))), (Values{0, 9}));
  EXPECT_EQ(bounds_of(x.with_layout(Layout({5, 2}, {0, 3}))), (Values{0, 4}));
  for (const int64_t n : {16384, 16385, 50000})
    for (const int64_t at : {int64_t{0}, int64_t{16383}, n - 1}) {
      const Tensor many = filled({n}, i64, 5);
      many.set(at, -3);
      many.set(n - 1 - at, 8);
      EXPECT_EQ(bounds_of(many), (Values{-3, 8})) << n << " " << at;
    }
}

TEST(Nonzero, PlacesInRowMajorOrder) {
  for (const Shape& shape : {Shape{}, {0}, {1}, {4096}, {4097}, {100, 0}, {100, 101}, {7, 30, 50}})
    for (const int every : {1, 3, 5000}) {
      const Tensor mask(shape, boolean);
      Values want;
      for (int64_t i = 0; i < mask.numel(); ++i) {
        mask.set(i, i % every == 0);
        if (i % every != 0) continue;
        Values place;
        int64_t rest = i;
        for (int d = shape.rank - 1; d >= 0; --d) {
          place.insert(place.begin(), static_cast<double>(rest % shape[d]));
          rest /= shape[d];
        }
        want.insert(want.end(), place.begin(), place.end());
      }
      const int64_t count = (mask.numel() + every - 1) / every;
      const Tensor y = output({count, shape.rank}, i64);
      launch([&](Launch& l) { nonzero(l, mask, y); });
      ASSERT_EQ(to_vector(y), want) << shape.to_string();
    }
}

TEST(Triangle, KeepsOneSideOfADiagonal) {
  for (const DType t : all_dtypes)
    for (const Shape& shape : {Shape{3, 4, 6}, {6, 4}, {1, 1}, {0, 3}, {3, 0}, {200, 100}})
      for (const int64_t diagonal :
           {int64_t{0}, int64_t{2}, int64_t{-2}, int64_t{50}, int64_t{-50},
            std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
        const Tensor x = filled(shape, t, 1), upper = output(shape, t), lower = output(shape, t);
        launch([&](Launch& l) {
          triangle(l, true, diagonal, x, upper);
          triangle(l, false, diagonal, x, lower);
        });
        for (int64_t i = 0; i < x.numel(); ++i) {
          const int64_t c = i % shape[-1], r = i / shape[-1] % shape[-2];
          ASSERT_EQ(upper.at(i), c - r >= diagonal) << name(t) << " " << i << " " << diagonal;
          ASSERT_EQ(lower.at(i), c - r <= diagonal) << name(t) << " " << i << " " << diagonal;
        }
      }
}

}  // namespace kernels_index_test
}  // namespace mixtape::kernels
