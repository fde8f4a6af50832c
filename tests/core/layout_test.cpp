// Views against a model that holds every position explicitly: after any chain of views, the layout
// must enumerate the model's positions.
#include "core/layout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/int_math.h"
#include "tests/support/errors.h"

namespace mixtape {
using namespace internal;
namespace core_layout_test {

using test::error;

// --- quotients that round up ---

constexpr int64_t most_whole = std::numeric_limits<int64_t>::max();
static_assert(ceil_div(0, 3) == 0 && ceil_div(6, 3) == 2 && ceil_div(int64_t{7}, 3) == 3);
static_assert(ceil_div(std::numeric_limits<int>::max(), 2) == 1 << 30);
static_assert(ceil_div(most_whole, most_whole) == 1 &&
              ceil_div(most_whole - 1, 2) == most_whole / 2);
static_assert(ceil_div(~size_t{}, ~size_t{} - 1) == 2);

// --- layouts ---

using Index = std::vector<int64_t>;

struct Model {
  Index shape;
  std::vector<int64_t> positions;  // row-major

  explicit Model(const Shape& s) : shape(s.begin(), s.end()), positions(size_t(s.size())) {
    std::iota(positions.begin(), positions.end(), 0);
  }
  // The array of `wider` in which element i is element source(i) of this one.
  Model view(const Index& wider, const std::function<Index(const Index&)>& source) const {
    Model out = *this;
    out.shape = wider;
    out.positions.clear();
    const int64_t count =
        std::accumulate(wider.begin(), wider.end(), int64_t{1}, std::multiplies<>());
    for (int64_t n = 0; n < count; ++n) {
      Index i(wider.size());
      int64_t rest = n;
      for (size_t d = wider.size(); d-- > 0; rest /= wider[d]) i[d] = rest % wider[d];
      int64_t flat = 0;
      const Index from = source(i);
      for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + from[d];
      out.positions.push_back(positions[size_t(flat)]);
    }
    return out;
  }
};

std::vector<int64_t> positions(const Layout& l) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < l.shape.size(); ++i) out.push_back(l.at(i));
  return out;
}

// From the whole range at once: by default rapidcheck starts with the smallest values only.
int draw(int from, int to) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(from, to + 1));
}

Shape draw_shape(int max_rank) {
  Shape s;
  for (int rank = draw(0, max_rank); s.rank < rank;) s.push_back(draw(0, 9) == 0 ? 0 : draw(1, 4));
  return s;
}
// Some factorisation of n, with ones among the factors.
Shape draw_factors(int64_t n) {
  Shape s;
  while (s.rank < 5) {
    int64_t factor = draw(1, 6);
    while (n % factor != 0) --factor;
    s.push_back(factor);
    n /= factor;
  }
  s.push_back(n);
  return s;
}

struct Pair {
  Layout layout;
  Model model;
};

Pair sliced(const Pair& p, int dim) {
  const int64_t size = p.layout.shape[dim], start = draw(-6, 6), stop = draw(-6, 6),
                step = draw(1, 3);
  Index taken;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t first = start < 0 ? std::max<int64_t>(start + size, 0) : start;
    const int64_t end = stop < 0 ? stop + size : stop;
    if (i >= first && i < end && (i - first) % step == 0) taken.push_back(i);
  }
  Index shape = p.model.shape;
  shape[size_t(dim)] = int64_t(taken.size());
  return {slice(p.layout, dim, start, stop, step), p.model.view(shape, [&](Index i) {
            i[size_t(dim)] = taken[size_t(i[size_t(dim)])];
            return i;
          })};
}

Pair permuted(const Pair& p) {
  std::vector<int> order(p.model.shape.size());
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[size_t(draw(0, int(i) - 1))]);
  Index shape;
  for (int d : order) shape.push_back(p.model.shape[size_t(d)]);
  return {permute(p.layout, order), p.model.view(shape, [&](const Index& i) {
            Index from(i.size());
            for (size_t d = 0; d < i.size(); ++d) from[size_t(order[d])] = i[d];
            return from;
          })};
}

Pair expanded(const Pair& p) {
  Shape wider;
  const int extra = draw(0, 1);
  for (int d = 0; d < extra; ++d) wider.push_back(draw(0, 3));
  for (int64_t size : p.layout.shape) wider.push_back(size == 1 ? draw(1, 3) : size);
  return {expand(p.layout, wider), p.model.view(Index(wider.begin(), wider.end()), [&](Index i) {
            i.erase(i.begin(), i.begin() + extra);
            for (size_t d = 0; d < i.size(); ++d)
              if (p.model.shape[d] == 1) i[d] = 0;
            return i;
          })};
}

Pair diagonal_of(const Pair& p, int a, int b) {
  const int64_t offset = draw(-5, 5), row = std::max<int64_t>(-offset, 0), column = row + offset;
  Index shape = p.model.shape;
  const int64_t size = std::min(shape[size_t(a)] - row, shape[size_t(b)] - column);
  shape.erase(shape.begin() + std::max(a, b));
  shape.erase(shape.begin() + std::min(a, b));
  shape.push_back(std::max<int64_t>(size, 0));
  return {diagonal(p.layout, offset, a - p.layout.rank(), b), p.model.view(shape, [&](Index i) {
            const int64_t at = i.back();
            i.pop_back();
            i.insert(i.begin() + std::min(a, b), at + (a < b ? row : column));
            i.insert(i.begin() + std::max(a, b), at + (a < b ? column : row));
            return i;
          })};
}

Pair unfolded(const Pair& p, int dim) {
  Index shape = p.model.shape;
  const int64_t n = shape[size_t(dim)], size = draw(1, int(n)), step = draw(1, 3);
  shape[size_t(dim)] = 0;
  for (int64_t first = 0; first + size <= n; first += step) ++shape[size_t(dim)];
  shape.push_back(size);
  return {unfold(p.layout, dim, size, step), p.model.view(shape, [&](Index i) {
            const int64_t at = i.back();
            i.pop_back();
            i[size_t(dim)] = i[size_t(dim)] * step + at;
            return i;
          })};
}

// One view that fits, drawn at random.
Pair viewed(const Pair& p) {
  const int rank = p.layout.rank();
  if (rank == 0)
    return {unsqueeze(p.layout, 0), p.model.view({1}, [](const Index&) { return Index(); })};
  const int dim = draw(0, rank - 1), other = draw(0, rank - 1);
  Index shape = p.model.shape;
  switch (draw(0, 8)) {
    case 0:
      return sliced(p, dim);
    case 1:
      return permuted(p);
    case 2:
      return rank < 5 ? expanded(p) : p;
    case 3:
      std::swap(shape[size_t(dim)], shape[size_t(other)]);
      return {transpose(p.layout, dim - rank, other), p.model.view(shape, [&](Index i) {
                std::swap(i[size_t(dim)], i[size_t(other)]);
                return i;
              })};
    case 4: {
      if (shape[size_t(dim)] == 0) return p;
      const int64_t size = shape[size_t(dim)], at = draw(int(-size), int(size) - 1);
      shape.erase(shape.begin() + dim);
      return {select(p.layout, dim, at), p.model.view(shape, [&](Index i) {
                i.insert(i.begin() + dim, at < 0 ? at + size : at);
                return i;
              })};
    }
    case 5:
      return {flip(p.layout, dim), p.model.view(shape, [&](Index i) {
                i[size_t(dim)] = shape[size_t(dim)] - 1 - i[size_t(dim)];
                return i;
              })};
    case 6:
      return dim == other ? p : diagonal_of(p, dim, other);
    case 7:
      return rank >= 6 || shape[size_t(dim)] == 0 ? p : unfolded(p, dim);
    default:
      if (rank >= 6) return p;
      shape.insert(shape.begin() + dim, 1);
      return {unsqueeze(p.layout, dim), p.model.view(shape, [&](Index i) {
                i.erase(i.begin() + dim);
                return i;
              })};
  }
}

// Calls property(view) for twenty chains of views.
template <class F>
void for_views(F property) {
  for (int n = 0; n < 20; ++n) {
    const Shape shape = draw_shape(4);
    Pair p{Layout(shape), Model(shape)};
    for (int views = draw(0, 4); views > 0; --views) p = viewed(p);
    property(p);
  }
}

RC_GTEST_PROP(LayoutProperty, ViewsEnumerateWhatTheModelDoes, ()) {
  for_views([](const Pair& p) {
    RC_ASSERT(Index(p.layout.shape.begin(), p.layout.shape.end()) == p.model.shape);
    RC_ASSERT(positions(p.layout) == p.model.positions);
  });
}

RC_GTEST_PROP(LayoutProperty, ContiguousMeansConsecutive, ()) {
  for_views([](const Pair& p) {
    bool consecutive = true;
    for (size_t i = 1; i < p.model.positions.size(); ++i)
      consecutive &= p.model.positions[i] == p.model.positions[i - 1] + 1;
    RC_ASSERT(p.layout.is_contiguous() == consecutive);
  });
}

// A reshape is a view exactly if constant strides explain the positions.
RC_GTEST_PROP(LayoutProperty, ReshapeIsAViewWheneverOneExists, ()) {
  for_views([](const Pair& p) {
    const int64_t count = p.layout.shape.size();
    const Shape shape = count == 0 ? Shape{2, 0, 3} : draw_factors(count);
    const std::optional<Layout> actual = reshape(p.layout, shape);

    Layout wanted(shape);  // with the only strides that can be right
    if (count > 0) wanted.offset = p.model.positions[0];
    int64_t block = 1;
    for (int d = shape.rank - 1; d >= 0 && count > 0; block *= shape[d--])
      if (shape[d] > 1) wanted.strides[d] = p.model.positions[size_t(block)] - p.model.positions[0];
    const bool exists = positions(wanted) == p.model.positions;
    RC_ASSERT(actual.has_value() == exists);
    if (exists) {
      RC_ASSERT(actual->shape == shape);
      RC_ASSERT(positions(*actual) == p.model.positions);
    }
  });
}

RC_GTEST_PROP(LayoutProperty, CollapseKeepsTheOrderOfSeveralLayouts, ()) {
  for_views([](const Pair& p) {
    Layout dense(p.layout.shape), a = p.layout, b = dense;
    Layout* const both[] = {&a, &b};
    collapse(both);
    RC_ASSERT(positions(a) == positions(p.layout));
    RC_ASSERT(positions(b) == positions(dense));
    RC_ASSERT(a.shape == b.shape);
    RC_ASSERT(a.rank() >= 1);
    for (int d = 0; d + 1 < a.rank(); ++d) {
      const bool a_merges = a.strides[d] == a.shape[d + 1] * a.strides[d + 1];
      const bool b_merges = b.strides[d] == b.shape[d + 1] * b.strides[d + 1];
      RC_ASSERT(!(a_merges && b_merges));
      RC_ASSERT(a.shape[d] != 1);
    }
  });
}

RC_GTEST_PROP(LayoutProperty, BroadcastIsWhatBothExpandTo, ()) {
  const Shape a = draw_shape(4), b = draw_shape(4);
  bool fits = true;
  for (int d = 1; d <= std::min(a.rank, b.rank); ++d)
    fits &= a[-d] == b[-d] || a[-d] == 1 || b[-d] == 1;
  if (!fits) {
    RC_ASSERT_THROWS_AS(broadcast(a, b), Error);
    return;
  }
  const Shape both = broadcast(a, b);
  RC_ASSERT(both == broadcast(b, a));
  RC_ASSERT(both.rank == std::max(a.rank, b.rank));
  RC_ASSERT(expand(Layout(a), both).shape == both);
  RC_ASSERT(expand(Layout(b), both).shape == both);
}

TEST(Layout, CollapsesDenseArraysToOneDimension) {
  Layout l(Shape{2, 1, 3, 4});
  Layout* const one[] = {&l};
  collapse(one);
  EXPECT_EQ(l.shape, Shape{24});
  EXPECT_EQ(l.strides, Shape{1});
  Layout scalar{Shape()};
  Layout* const other[] = {&scalar};
  collapse(other);
  EXPECT_EQ(scalar.shape, Shape{1});
}

TEST(Shape, HasAFrontAndABack) {
  const Shape s = {2, 3, 5};
  EXPECT_EQ(s.front(), 2);
  EXPECT_EQ(s.back(), 5);
  EXPECT_EQ(error([] { Shape().back(); }), error([] { Shape()[-1]; }));
  EXPECT_EQ(error([] { Shape().front(); }), error([] { Shape()[0]; }));
}

TEST(Layout, InfersOneSize) {
  EXPECT_EQ(infer({2, -1, 3}, 24), (Shape{2, 4, 3}));
  EXPECT_EQ(infer({-1}, 0), Shape{0});
  EXPECT_EQ(infer({}, 1), Shape());
  EXPECT_EQ(error([] { infer({5, -1}, 24); }), "cannot reshape 24 elements to [5, -1]");
  EXPECT_EQ(error([] { infer({4, 5}, 24); }), "cannot reshape 24 elements to [4, 5]");
  EXPECT_EQ(error([] { infer({-1, 0}, 0); }), "cannot reshape 0 elements to [-1, 0]");
  EXPECT_EQ(error([] { infer({-1, -1}, 4); }), "only one size may be -1, got [-1, -1]");
  EXPECT_EQ(error([] { infer({-2, 3}, 6); }), "sizes cannot be negative: [-2, 3]");
}

TEST(Layout, ErrorsNameBothValues) {
  const Layout l(Shape{2, 3});
  const int twice[] = {0, -2}, three[] = {0, 1, 2};
  EXPECT_EQ(error([&] { transpose(l, 0, 2); }), "dimension 2 is out of range for rank 2");
  EXPECT_EQ(error([&] { (void)l.shape[2]; }), "dimension 2 is out of range for rank 2");
  EXPECT_EQ(error([&] { (void)Shape{}[-1]; }), "dimension -1 is out of range for rank 0");
  EXPECT_EQ(error([&] { unsqueeze(l, -4); }), "dimension -4 is out of range for rank 3");
  EXPECT_EQ(error([&] { permute(l, twice); }), "the order [0, -2] names dimension 0 twice");
  EXPECT_EQ(error([&] { permute(l, three); }), "the order must name all 2 dimensions, got 3");
  EXPECT_EQ(error([&] { slice(l, 0, 0, 2, 0); }), "step must not be 0");
  EXPECT_EQ(error([&] { select(l, -1, 3); }), "index 3 is out of range for dimension 1 of [2, 3]");
  EXPECT_EQ(error([&] { expand(l, {4, 3}); }), "[2, 3] cannot expand to [4, 3]");
  EXPECT_EQ(error([&] { expand(l, {3}); }), "[2, 3] cannot expand to [3]");
  EXPECT_EQ(error([&] { flip(l, 2); }), "dimension 2 is out of range for rank 2");
  EXPECT_EQ(error([&] { unfold(l, 1, 4, 1); }),
            "windows of 4 elements with step 1 do not fit dimension 1 of [2, 3]");
  EXPECT_EQ(error([&] { unfold(l, 1, 0, 1); }),
            "windows of 0 elements with step 1 do not fit dimension 1 of [2, 3]");
  const Layout long_one = expand(Layout(Shape{1}), {(int64_t(1) << 33) - 1});
  EXPECT_EQ(error([&] { unfold(long_one, 0, int64_t(1) << 32, 1); }),
            "[4294967296, 4294967296] has too many elements");
  EXPECT_EQ(error([&] { unfold(l, 0, 1, 0); }),
            "windows of 1 elements with step 0 do not fit dimension 0 of [2, 3]");
  EXPECT_EQ(error([&] { diagonal(l, 0, 1, -1); }), "a diagonal needs two dimensions, got 1 twice");
  EXPECT_EQ(error([&] { reshape(l, {4}); }), "cannot reshape [2, 3] to [4]: 6 and 4 elements");
  EXPECT_EQ(error([&] { broadcast({2, 3}, {2}); }), "shapes [2, 3] and [2] do not broadcast");
  EXPECT_EQ(error([&] { Layout(Shape{2, -3}); }), "sizes cannot be negative: [2, -3]");
  EXPECT_EQ(error([&] { Layout(Shape{int64_t{1} << 40, int64_t{1} << 40}); }),
            "[1099511627776, 1099511627776] has too many elements");
  EXPECT_EQ(error([&] { expand(Layout(Shape{1, 1}), {int64_t{1} << 40, int64_t{1} << 40}); }),
            "[1099511627776, 1099511627776] has too many elements");
  EXPECT_EQ(error([&] { Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}; }),
            "at most 8 dimensions are possible, got 9");
  Layout other(Shape{3, 2}), mine = l;
  EXPECT_EQ(error([&] {
              Layout* const both[] = {&mine, &other};
              collapse(both);
            }),
            "collapse needs layouts of one shape: [2, 3] and [3, 2]");
}

TEST(Layout, SurvivesExtremeArguments) {
  constexpr int64_t lowest = std::numeric_limits<int64_t>::min(),
                    highest = std::numeric_limits<int64_t>::max();
  const Layout all = slice(Layout(Shape{5}), 0, lowest, highest);
  EXPECT_EQ(all, Layout(Shape{5}));
  EXPECT_EQ(positions(slice(Layout(Shape{5}), 0, 1, highest, highest)), std::vector<int64_t>{1});
  EXPECT_EQ(slice(Layout(Shape{5}), 0, highest, highest).shape, Shape{0});
  EXPECT_EQ(unfold(Layout(Shape{5}), 0, 2, highest).shape, (Shape{1, 2}));
  EXPECT_EQ(diagonal(Layout(Shape{2, 3}), lowest, 0, 1).shape, Shape{0});
  EXPECT_EQ(diagonal(Layout(Shape{2, 3}), highest, 0, 1).shape, Shape{0});
  // Single elements may have any stride.
  for (const int64_t far : {highest, lowest}) {
    const Layout one({1, 1}, {far, far});
    EXPECT_EQ(positions(diagonal(one, 0, 0, 1)), std::vector<int64_t>{0});
    EXPECT_EQ(positions(flip(one, 0)), std::vector<int64_t>{0});
    EXPECT_EQ(positions(unfold(one, 0, 1, 1)), std::vector<int64_t>{0});
    EXPECT_EQ(positions(unsqueeze(one, 1)), std::vector<int64_t>{0});
    EXPECT_EQ(positions(slice(one, 0, 0, 1, highest)), std::vector<int64_t>{0});
    EXPECT_EQ(positions(*reshape(one, {1})), std::vector<int64_t>{0});
    EXPECT_EQ(slice(Layout({0, 3}, {far, far}), 1, 1, 3, 2).shape, (Shape{0, 1}));
    EXPECT_EQ(flip(Layout({0, 3}, {far, far}), 1).shape, (Shape{0, 3}));
  }
  EXPECT_EQ(error([] { extent(Layout({5}, {int64_t(1) << 62})); }),
            "positions of [5] with strides [4611686018427387904] from 0 overflow");
  EXPECT_EQ(error([] { extent(Layout({2, 2}, {highest, highest})); }),
            "positions of [2, 2] with strides [9223372036854775807, 9223372036854775807] from 0 "
            "overflow");
  EXPECT_EQ(error([] { extent(Layout({}, {}, highest)); }),
            "positions of [] with strides [] from 9223372036854775807 overflow");
  EXPECT_EQ(extent(Layout({0, 3}, {lowest, lowest})), std::pair(int64_t{0}, int64_t{0}));
}

}  // namespace core_layout_test
}  // namespace mixtape
