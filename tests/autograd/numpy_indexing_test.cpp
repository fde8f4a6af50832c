// x(...) and x[...]: what NumPy reads and writes for expressions drawn at random, gradients of both
// ways, views, and what is recorded or refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "amp/autocast.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/format.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace numpy_indexing_test {

using internal::Index;

Tensor ints(const Shape& shape, const Values& values) {
  // As often i32 as i64.
  return from(values, shape, values.size() % 2 ? i32 : i64);
}
Tensor mask(const Shape& shape, const Values& values) { return from(values, shape, boolean); }

struct Case {
  Shape shape;
  std::vector<Index> indices;
  Shape result;
  std::vector<int64_t> positions;  // of the result's elements in x
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
#include "tests/data/indexing_reference.inc"
  };
  return all;
}

internal::Indexed at(const Tensor& x, const std::vector<Index>& i) {
  switch (i.size()) {
    case 0:
      return x();
    case 1:
      return x[i[0]];
    case 2:
      return x(i[0], i[1]);
    case 3:
      return x(i[0], i[1], i[2]);
    case 4:
      return x(i[0], i[1], i[2], i[3]);
    default:
      return x(i[0], i[1], i[2], i[3], i[4]);
  }
}

// The numbers of x as they are, with the first and last dimension swapped in memory, and as every
// other element of a larger tensor, backwards.
std::vector<Tensor> layouts_of(const Tensor& x) {
  std::vector<Tensor> all{clone(x)};
  if (x.rank() == 0) return all;
  all.push_back(transpose(clone(transpose(x, 0, -1)), 0, -1));
  Shape wide = x.shape();
  for (int d = 0; d < x.rank(); ++d) wide[d] = 2 * x.size(d) + 1;
  const Tensor buffer = zeros(wide, x.dtype());
  internal::Layout backwards = buffer.layout();
  for (int d = 0; d < x.rank(); ++d) {
    backwards = slice(backwards, d, 1, wide[d], 2);
    backwards = flip(backwards, d);
  }
  all.push_back(buffer.with_layout(backwards));
  copy_(all.back(), x);
  return all;
}

std::string name_of(const Case& c) {
  std::string text = fmt::format("row {}: {} ->", &c - cases().data(), c.shape);
  for (const Index& i : c.indices) text += fmt::format(" {}", static_cast<int>(i.kind));
  return text;
}

Values at_positions(const Case& c) { return Values(c.positions.begin(), c.positions.end()); }
Tensor values_for(const Case& c) { return -numbers(c.result, f64) - 1; }

static_assert(!std::is_constructible_v<Slice, int>, "from 4 on, or up to 4?");

TEST(NumPyIndexing, Reads) {
  ASSERT_GE(cases().size(), 300u);
  for (const Case& c : cases())
    for (const Tensor& x : layouts_of(numbers(c.shape, f64))) {
      const Tensor y = at(x, c.indices);
      ASSERT_EQ(y.shape(), c.result) << name_of(c);
      ASSERT_EQ(to_vector(y), at_positions(c)) << name_of(c);
      const bool copies = std::ranges::any_of(
          c.indices, [](const Index& i) { return i.kind == Index::Kind::Tensor; });
      ASSERT_NE(y.storage() == x.storage(), copies) << name_of(c);
    }
}

TEST(NumPyIndexing, Writes) {
  for (const Case& c : cases()) {
    const Values before = to_vector(numbers(c.shape, f64)), v = to_vector(values_for(c));
    Values replaced = before, filled = before, added = before;
    for (size_t k = 0; k < v.size(); ++k) {
      const auto to = static_cast<size_t>(c.positions[k]);
      replaced[to] = v[k];
      filled[to] = 7;
      added[to] = before[to] + v[k];
    }
    for (const Tensor& x : layouts_of(numbers(c.shape, f64))) {
      at(x, c.indices) = values_for(c).to(f32);
      ASSERT_EQ(to_vector(x), replaced) << name_of(c);
    }
    for (const Tensor& x : layouts_of(numbers(c.shape, f64))) {
      at(x, c.indices) = 7;
      ASSERT_EQ(to_vector(x), filled) << name_of(c);
    }
    for (const Tensor& x : layouts_of(numbers(c.shape, f64))) {
      at(x, c.indices) += values_for(c);
      ASSERT_EQ(to_vector(x), added) << name_of(c);
    }
  }
}

// Each result gets a weight of its own.
TEST(NumPyIndexing, HasGradients) {
  for (const Case& c : cases()) {
    const Tensor x = numbers(c.shape, f64).set_requires_grad(), w = numbers(c.result, f64) + 2;
    sum(at(x, c.indices) * w).backward();
    Values want(size_t(x.numel()));
    for (size_t k = 0; k < c.positions.size(); ++k) want[size_t(c.positions[k])] += double(k) + 2;
    ASSERT_EQ(to_vector(x.grad()), want) << name_of(c);
  }
}

TEST(NumPyIndexing, WritesWithGradients) {
  for (const Case& c : cases()) {
    const Tensor x = numbers(c.shape, f64).set_requires_grad(),
                 v = values_for(c).set_requires_grad(), w = numbers(c.shape, f64) + 2;
    const Tensor y = x * 3.0;
    at(y, c.indices) = v;
    sum(y * w).backward();
    Values dx = to_vector(w * 3.0), dv(c.positions.size());
    std::vector<int64_t> winner(size_t(x.numel()), -1);
    for (size_t k = 0; k < dv.size(); ++k) winner[size_t(c.positions[k])] = int64_t(k);
    for (size_t i = 0; i < winner.size(); ++i)
      if (winner[i] >= 0) {
        dx[i] = 0;
        dv[size_t(winner[i])] = double(i) + 2;
      }
    ASSERT_EQ(to_vector(x.grad()), dx) << name_of(c);
    ASSERT_EQ(to_vector(v.grad()), dv) << name_of(c);
  }
}

// --- as people write it ---

TEST(Indexing, ReadsAsInPython) {
  const Tensor x = numbers({2, 3, 4}, f64);
  EXPECT_EQ(to_vector(x(Slice(1, 3), 0)), (Values{12, 13, 14, 15}));
  EXPECT_EQ(x(None, Ellipsis, -1).shape(), (Shape{1, 2, 3}));
  EXPECT_EQ(to_vector(x[1][2][3]), Values{23});
  EXPECT_EQ(x[0].shape(), (Shape{3, 4}));
  EXPECT_EQ(x(0, 1, 2).item(), 6);
  EXPECT_EQ(to_vector(x(0, 0, Slice(None, None, -1))), (Values{3, 2, 1, 0}));
  EXPECT_EQ(to_vector(x(0, 0, Slice(None, None, 2))), (Values{0, 2}));
  EXPECT_EQ(to_vector(x(1, 2, Slice(-2, None))), (Values{22, 23}));
  EXPECT_EQ(to_vector(x(x > 21.0)), (Values{22, 23}));
  EXPECT_EQ(to_vector(x(Ellipsis, ints({1}, {0}), Slice(), 1)), Values({1, 5, 9}));
  EXPECT_EQ(x().storage(), x.storage());
  size_t i = 1;
  EXPECT_EQ(x(i, int8_t(-1), 0u).item(), 20);
  EXPECT_EQ(to_vector(sum(x(0)(1)) + x(1, 0, 0)), Values{34});
  std::ostringstream out;
  out << x[0][0].to(Device::cpu());
  EXPECT_EQ(out.str() + fmt::format(" {:.1f}", x(0, 0, 1)), "[0. 1. 2. 3.]\nf64 [4] 1.0");
}

TEST(Indexing, WritesAsInPython) {
  Tensor x = zeros({2, 3});
  x(Slice(), 1) = 1;
  x[0] += 2;
  x(1, 0) = from({5}, {});
  x(1, Slice(None, None, -1)) *= from({1, 2, 3}, {3});
  EXPECT_EQ(to_vector(x), (Values{2, 3, 2, 15, 2, 0}));
  x(x > 2.0) = -1.0;
  EXPECT_EQ(to_vector(x), (Values{2, -1, 2, -1, 2, 0}));
  x(ints({3}, {0, 0, 1}), 2) -= from({1, 2, 3}, {3});  // the last of equal indices wins
  EXPECT_EQ(to_vector(x), (Values{2, -1, 0, -1, 2, -3}));
  x[1] = x[0];
  EXPECT_EQ(to_vector(x), (Values{2, -1, 0, 2, -1, 0}));
  x(Slice(), Slice(1, None)) = x(Slice(), Slice(None, -1));
  EXPECT_EQ(to_vector(x), (Values{2, 2, -1, 2, 2, -1}));
  x[0] = x[1] = 4.0;
  EXPECT_EQ(to_vector(x), Values(6, 4));
  x(1)[2] = ones({1, 1, 1}, i64);  // NumPy drops leading dimensions of 1
  EXPECT_EQ(x.at(5), 1);
  x(None, 0) /= 2;
  EXPECT_EQ(to_vector(x), (Values{2, 2, 2, 4, 4, 1}));

  // A variable is a tensor like any other: assigned to, it is another one.
  auto row = x[0];
  row = row * 0.0;
  EXPECT_EQ(row.at(0), 0);
  EXPECT_EQ(x.at(0), 2);
  auto last = x[1];
  last += 1;  // in place, as in Python
  EXPECT_EQ(x.at(5), 2);

  const Tensor whole = zeros({2}, i64);
  whole[0] = 3;
  EXPECT_EQ(whole.at(0), 3);
  EXPECT_ERROR(whole[1] = 0.5, "0.5 does not fit elements of i64");
  EXPECT_ERROR(whole(ints({1}, {1})) = 0.5, "index_put: 0.5 does not fit elements of i64");
  EXPECT_ERROR(whole[1] += from({0.5}, {}), "i64 elements would truncate f32 values");
}

TEST(Indexing, RecordsWritesToWhatNothingElseSees) {
  const Tensor w = from({2, 3}, {2}).set_requires_grad();
  const Tensor steps = zeros({3, 2});
  for (int i = 0; i < 3; ++i) steps[i] = w * double(i + 1);
  const void* const memory = steps.raw();
  steps(Slice(1, None), 0) *= w[1];
  steps[0][1] += 1;
  EXPECT_EQ(steps.raw(), memory) << "written in place";
  EXPECT_EQ(to_vector(steps), (Values{2, 4, 12, 6, 18, 9}));
  sum(steps).backward();  // w0 + (w1 + 1) + 2 w0 w1 + 2 w1 + 3 w0 w1 + 3 w1
  EXPECT_EQ(to_vector(w.grad()), (Values{16, 16}));

  EXPECT_ERROR(w[0] = 1.0,
               "index_put: a leaf that requires a gradient cannot change in place: make a new "
               "tensor by where, "
               "index_put, cat or stack, or NoGrad");
  const Tensor y = w * 1.0, view = y[0];
  EXPECT_ERROR(y[1] = 1.0, "storage that a view or an op that saved it");
  EXPECT_ERROR(y(ints({1}, {1})) = 1.0, "storage that a view or an op that saved it");
  {
    const NoGrad off;
    w[0] = 7.0;
    EXPECT_EQ(w.at(0), 7);
  }
  const Tensor z = w * 1.0, used = z * z;
  z[0] = 0.0;
  EXPECT_ERROR(sum(used).backward(), "a tensor that mul saved for backward was modified");
}

// Where nothing is recorded, gradients of views still go to the whole.
TEST(Indexing, IsDifferentiatedTwice) {
  const auto f = [](const std::vector<Tensor>& x) {
    const Tensor y = x[0] * x[0];
    y(Slice(None, None, -2), ints({2}, {0, 2})) = x[1] * x[1];
    y[1] *= x[1](0, 1);
    return y(Ellipsis, Slice(1, None)) * y(mask({3}, {0, 1, 1}), None, Slice(0, 2));
  };
  const Tensor a = sin(numbers({3, 3}, f64)).set_requires_grad(),
               b = cos(numbers({2, 2}, f64)).set_requires_grad();
  EXPECT_EQ(gradcheck([&](const std::vector<Tensor>& x) { return sum(square(f(x))); }, {a, b},
                      {.second_order = true}),
            "");
}

TEST(Indexing, KeepsTheDtypeUnderAutocast) {
  const amp::Autocast on({.low = bf16});
  const Tensor x = zeros({2, 2}), w = ones({2, 2}).set_requires_grad();
  x[0] = matmul(w, w)[1];
  x(ints({1}, {1})) = matmul(w, w)(Slice(0, 1));
  EXPECT_EQ(x.dtype(), f32);
  EXPECT_EQ(to_vector(x), Values(4, 2));
  sum(x).backward();
  EXPECT_EQ(sum(w.grad()).item(), 16);
}

TEST(IndexingErrors, NameBothValues) {
  const Tensor x = numbers({2, 3}, f64);
  EXPECT_ERROR(x(0, 3), "index: index 3 is out of range for dimension 1 of size 3");
  EXPECT_ERROR(x(None, -3), "index: index -3 is out of range for dimension 0 of size 2");
  EXPECT_ERROR(x(0, 0, 0), "index: too many indices: 3 for a tensor of shape [2, 3]");
  EXPECT_ERROR(x(Ellipsis, 0, Ellipsis), "index: only one index may be Ellipsis, got 2");
  EXPECT_ERROR(x(Slice(0, 2, 0)), "step must not be 0");
  EXPECT_ERROR(x(0, Tensor()), "index: index 1 is undefined");
  EXPECT_ERROR(x(0, ints({1}, {-4})), "index: index -4 is out of range for dimension 1 of size 3");
  EXPECT_ERROR(x(Slice(), mask({2}, {1, 1})),
               "index: a mask of shape [2] does not fit dimensions 1 to 1 of [2, 3]");
  EXPECT_ERROR(x(ones({2}, u8)),
               "index: an index must be of integers other than u8, or a bool mask, got u8");
  EXPECT_ERROR(x(ones({2})),
               "index: an index must be of integers other than u8, or a bool mask, got f32");
  EXPECT_ERROR(x[0] = zeros({2}), "index_put: copy_: expand: [2] cannot expand to [3]");
  EXPECT_ERROR(x(ints({1}, {0})) = zeros({2, 3}),
               "index_put: expand: [2, 3] cannot expand to [1, 3]");
  EXPECT_ERROR(expand(x, {2, 2, 3})(0) = expand(x[0], {2, 3}) * 0.0, "no error");
  EXPECT_ERROR(expand(x[0], {4, 3})(Slice(), 0) = 1.0, "share memory (clone() it first)");
  EXPECT_ERROR(expand(x[0], {4, 3})(ints({1}, {0})) = 1.0, "share memory (clone() it first)");
}

// --- indices and targets of every integer dtype ---

TEST(Indices, MayBeAnyIntegers) {
  const Tensor x = numbers({4, 3}, f32), source = -numbers({2, 3}, f32);
  const Tensor rows = from({3, 1}, {2}, i64), each = from({0, 2, 1, 3, 3, 0}, {2, 3}, i64);
  const Tensor logits = sin(x), classes = from({2, 0, 1, 1}, {4}, i64);
  for (const DType t : {i32, u8, i8, i16, u16, u32}) {
    const Tensor i = rows.to(t), e = each.to(t), c = classes.to(t);
    const auto same = [](const Tensor& a, const Tensor& b) { EXPECT_TRUE(equal(a, b)); };
    same(index_select(x, 0, i), index_select(x, 0, rows));
    same(gather(x, 0, e), gather(x, 0, each));
    same(scatter(x, 0, e, source), scatter(x, 0, each, source));
    same(scatter_add(x, 0, e, source), scatter_add(x, 0, each, source));
    same(index_add(x, 0, i, source), index_add(x, 0, rows, source));
    same(embedding(x, e), embedding(x, each));
    same(embedding(x, e, {.padding_idx = 3}), embedding(x, each, {.padding_idx = 3}));
    same(embedding_bag(x, e), embedding_bag(x, each));
    same(embedding_bag(x, i, from({0, 1}, {2}, t)), embedding_bag(x, rows, from({0, 1}, {2}, i64)));
    same(one_hot(e, 4), one_hot(each, 4));
    same(bincount(i), bincount(rows));
    same(cross_entropy(logits, c), cross_entropy(logits, classes));
    same(cross_entropy(logits, c, {.ignore_index = 1}),
         cross_entropy(logits, classes, {.ignore_index = 1}));
    same(nll_loss(log_softmax(logits), c), nll_loss(log_softmax(logits), classes));
  }
  for (const DType t : {i32, i8, i16, u16, u32}) {
    const Tensor i = rows.to(t);
    EXPECT_TRUE(equal(index(x, {i}), index(x, {rows})));
    EXPECT_TRUE(equal(index_put(x, {i}, source), index_put(x, {rows}, source)));
    EXPECT_TRUE(equal(x(i, Slice(1, 3)), x(rows, Slice(1, 3))));
  }
  const Tensor i = rows.to(i32);
  const Tensor table = x.detach().set_requires_grad();
  sum(embedding(table, i) * source).backward();
  EXPECT_EQ(to_vector(table.grad()), (Values{0, 0, 0, -3, -4, -5, 0, 0, 0, 0, -1, -2}));
}

}  // namespace numpy_indexing_test
}  // namespace mixtape
