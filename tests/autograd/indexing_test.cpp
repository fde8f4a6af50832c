// Views, rearranging, indexing, order and reductions beyond op_rows: errors, dtypes, duplicates,
// sums of half gradients, and properties that hold for any shape.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace indexing_test {

Tensor i64s(std::initializer_list<double> values) {
  return from(values, {int64_t(values.size())}, i64);
}

TEST(Narrow, CountsANegativeStartFromTheEnd) {
  const Tensor x = numbers({2, 3});
  EXPECT_TRUE(equal(narrow(x, 1, -2, 2), slice(x, 1, 1)));
  EXPECT_TRUE(equal(narrow(x, 1, -3, 1), slice(x, 1, 0, 1)));
  EXPECT_ERROR(narrow(x, 1, -2, 3),
               "narrow: 3 elements from -2 on are out of range for dimension 1 of size 3");
  EXPECT_ERROR(narrow(x, 1, -4, 1),
               "narrow: 1 elements from -4 on are out of range for dimension 1 of size 3");
}

TEST(Scatter, PlacesANumber) {
  for (const DType dtype : {f32, f16, i64}) {
    const Tensor x = numbers({2, 3}, dtype), i = row({2, 0}, i64);
    EXPECT_TRUE(equal(scatter(x, 1, unsqueeze(i, 0), 7),
                      scatter(x, 1, unsqueeze(i, 0), full({1, 2}, 7, dtype))));
    EXPECT_TRUE(equal(index_put(x, {row({1}, i64), i}, 7, true),
                      index_put(x, {row({1}, i64), i}, full({}, 7, dtype), true)));
  }
  EXPECT_EQ(scatter(full({}, 1), 0, row({0}, i64), 3).item(), 3);
  const Tensor whole = numbers({3}, i64);
  EXPECT_ERROR(scatter(whole, 0, row({0}, i64), 0.5), "0.5");
  EXPECT_ERROR(index_put(whole, {row({0}, i64)}, 0.5), "0.5");
  EXPECT_TRUE(equal(argwhere(whole), nonzero(whole)));
}

TEST(Methods, AreTheFunctions) {
  const Tensor x = numbers({3, 4}), i = row({2, 0, 2}, i64), source = numbers({3, 4}) + 1;
  EXPECT_TRUE(equal(x.diagonal(1), diagonal(x, 1)));
  const Tensor sums = index_add(x, 0, i, source);
  EXPECT_TRUE(equal(x.index_add(0, i, source), sums));
  const Tensor y = clone(x), whole = numbers({4, 3}), columns = transpose(whole, 0, 1);
  EXPECT_TRUE(y.index_add_(0, i, source).is_same(y));
  EXPECT_TRUE(equal(y, sums));
  const Tensor before = clone(columns);
  columns.index_add_(1, row({1}, i64), ones({3, 1}));
  EXPECT_TRUE(equal(columns, index_add(before, 1, row({1}, i64), ones({3, 1})))) << "a view";
  EXPECT_EQ(whole.at(3), 4);
}

TEST(DiagEmbed, UndoesDiagonal) {
  const Tensor x = numbers({2, 3, 4});
  for (const int64_t offset : {-2, 0, 1})
    EXPECT_TRUE(equal(diagonal(diag_embed(x, offset, 1, -1), offset, 1, -1), x));
  EXPECT_EQ(sum(diag_embed(x, 3)).item(), sum(x).item());
  EXPECT_EQ(diag_embed(x, -2).shape(), (Shape{2, 3, 6, 6}));
  EXPECT_ERROR(diag_embed(x, 0, 1, -3), "diag_embed: dimensions 1 and -3 are the same");
  EXPECT_ERROR(diag_embed(full({}, 1)), "diag_embed: the input has shape [], not [..., n]");
}

// --- errors ---

TEST(ViewErrors, NameBothValues) {
  const Tensor x = numbers({2, 3});
  EXPECT_ERROR(
      view(transpose(x), {6}),
      "view: [3, 2] with strides [1, 3] cannot be viewed as [6] without a copy (use reshape)");
  EXPECT_ERROR(view(x, {4, -1}), "view: cannot reshape 6 elements to [4, -1]");
  EXPECT_ERROR(transpose(x, 0, 2), "transpose: dimension 2 is out of range for rank 2");
  EXPECT_ERROR(unsqueeze(x, 4), "unsqueeze: dimension 4 is out of range for rank 3");
  EXPECT_ERROR(squeeze(x, 2), "squeeze: dimension 2 is out of range for rank 2");
  EXPECT_ERROR(squeeze(x, {1, -1}), "squeeze: dimension -1 is named twice");
  EXPECT_ERROR(flatten(x, 1, 0),
               "flatten: the first dimension must not come after the last, got 1 and 0");
  EXPECT_ERROR(select(x, 1, 3), "select: index 3 is out of range for dimension 1 of size 3");
  EXPECT_ERROR(select(x, 0, -3), "select: index -3 is out of range for dimension 0 of size 2");
  EXPECT_ERROR(narrow(x, 1, 1, 3),
               "narrow: 3 elements from 1 on are out of range for dimension 1 of size 3");
  constexpr int64_t highest = std::numeric_limits<int64_t>::max();
  EXPECT_ERROR(narrow(x, 0, highest, highest),
               "narrow: 9223372036854775807 elements from 9223372036854775807 on are out of range "
               "for dimension 0 of size 2");
  EXPECT_ERROR(split(x, 0), "split: size must be > 0, got 0");
  EXPECT_ERROR(chunk(x, -1), "chunk: chunks must be > 0, got -1");
  EXPECT_ERROR(tensor_split(x, 0), "tensor_split: parts must be > 0, got 0");
  const Tensor none = zeros({0, 1}), endless = expand(zeros({1}), {highest});
  for (const auto& parts :
       {+[](const Tensor& t, int64_t n) { return tensor_split(t, n); },
        +[](const Tensor& t, int64_t n) { return chunk(t, n); },
        +[](const Tensor&, int64_t n) { return split(expand(zeros({1}), {n}), 1); },
        +[](const Tensor&, int64_t n) { return unbind(expand(zeros({1}), {n})); },
        +[](const Tensor&, int64_t n) {
          return split_heads(zeros({1, 1, 0}), 1, {.parts = n >> 32});
        }})
    EXPECT_ERROR(parts(none, highest), "at most 16777216 parts are possible, got ");
  EXPECT_EQ(split(endless, highest - 1)[1].size(0), 1);
  EXPECT_EQ(chunk(endless, 2)[0].size(0), int64_t{1} << 62);
  EXPECT_EQ(slice(endless, 0, 0, highest, 2).size(0), int64_t{1} << 62) << "rounded up";
  EXPECT_EQ(tensor_split(x, {1}).size(), 2u) << "an index, not the number of parts";
  EXPECT_EQ(tensor_split(x, 20)[19].size(0), 0);
  EXPECT_ERROR(block_diag({ones({1, 1, 1})}),
               "block_diag: a part has shape [1, 1, 1], not [m, n], [n] or []");
  EXPECT_ERROR(take(x, ones({1})), "take: indices must be integers, got f32");
  EXPECT_ERROR(take(x, full({}, double(x.numel()), i64)), "take: ");
  EXPECT_ERROR(split(x, {1, 1}, 1),
               "split: sizes must be >= 0 and add up to the 3 elements of dimension 1, got [1, 1]");
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{2, 2}, {4, -1}, {-1, 4}, {highest, highest}})
    EXPECT_ERROR(split(x, sizes, 1),
                 "split: sizes must be >= 0 and add up to the 3 elements of dimension 1, got [");
  EXPECT_ERROR(unfold(x, 1, 4, 1),
               "unfold: windows of 4 elements with step 1 do not fit dimension 1 of [2, 3]");
  EXPECT_ERROR(unfold(numbers({1, 1, 1, 1, 1, 1, 1, 1}), 0, 1, 1),
               "at most 8 dimensions are possible, got 9");
  EXPECT_ERROR(diagonal(x, 0, 1, 1), "diagonal: a diagonal needs two dimensions, got 1 twice");
  EXPECT_ERROR(diagonal(numbers({3})), "dimension 1 is out of range for rank 1");
}

// Two tensors of one array of the program, without a common storage.
TEST(Views, OfForeignMemoryMayOverlapInPlace) {
  constexpr int64_t n = 1000;
  const auto changed = [](const auto& change) {
    std::vector<float> data(n + 1);
    for (size_t i = 0; i < data.size(); ++i) data[i] = float(i * i % 17);
    const DefaultDevice on_cpu(Device::cpu());
    change(from_blob(data.data(), {n}), from_blob(data.data() + 1, {n}));
    return data;
  };
  const std::vector<float> before = changed([](auto&&...) {});
  const auto sum = changed([](const Tensor& a, const Tensor& b) { add_(b, a); });
  const auto difference = changed([](const Tensor& a, const Tensor& b) { sub_(a, b); });
  const auto up = changed([](const Tensor& a, const Tensor& b) { copy_(b, a); });
  const auto down = changed([](const Tensor& a, const Tensor& b) { copy_(a, b); });
  for (size_t i = 0; i < size_t(n); ++i) {
    ASSERT_EQ(sum[i + 1], before[i + 1] + before[i]) << i;
    ASSERT_EQ(difference[i], before[i] - before[i + 1]) << i;
    ASSERT_EQ(up[i + 1], before[i]) << i;
    ASSERT_EQ(down[i], before[i + 1]) << i;
  }
}

TEST(Joining, PadSequence) {
  const Tensor a = from({1, 2, 3, 4}, {2, 2}).set_requires_grad(), b = from({5, 6}, {1, 2});
  const Tensor y = pad_sequence({a, b, zeros({0, 2})}, true, -1);
  ASSERT_EQ(y.shape(), (Shape{3, 2, 2}));
  EXPECT_EQ(to_vector(y), (std::vector<double>{1, 2, 3, 4, 5, 6, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(to_vector(pad_sequence({a, b})), (std::vector<double>{1, 2, 5, 6, 3, 4, 0, 0}));
  EXPECT_EQ(pad_sequence({ones({2}, i64), ones({3}, i64)}).dtype(), i64);
  sum(y * 2).backward();
  EXPECT_EQ(to_vector(a.grad()), (std::vector<double>{2, 2, 2, 2}));
}

TEST(Joining, GrowsFromNothing) {
  const Tensor x = numbers({2, 3});
  Tensor all = zeros({0}, f32);
  for (int i = 0; i < 2; ++i) all = cat({all, x}, 1);
  EXPECT_EQ(to_vector(all), to_vector(cat({x, x}, 1)));
  EXPECT_EQ(cat({zeros({0}, f32), zeros({0}, f32)}).shape(), Shape{0});
}

TEST(JoiningErrors, NameBothValues) {
  const Tensor x = numbers({2, 3});
  EXPECT_ERROR(cat({}), "cat: nothing to join");
  EXPECT_ERROR(stack({}), "stack: nothing to join");
  EXPECT_ERROR(pad_sequence({}), "pad_sequence: nothing to join");
  EXPECT_ERROR(pad_sequence({ones({2}), ones({})}), "part 1 is not a sequence");
  EXPECT_ERROR(pad_sequence({ones({2, 3}), ones({1, 4})}),
               "parts must have the same shape, got [2, 3] and [2, 4]");
  EXPECT_ERROR(cat({x, numbers({2})}), "cat: parts must have the same rank, got 2 and 1");
  EXPECT_ERROR(cat({x, numbers({2, 4})}),
               "cat: shapes [2, 3] and [2, 4] differ outside dimension 0");
  const Tensor endless = expand(ones({1}), {int64_t(1) << 62});
  EXPECT_ERROR(cat({endless, endless, endless, endless}, 0),
               "makes dimension 0 too large to count");
  EXPECT_ERROR(stack({x, numbers({3})}),
               "stack: parts must have the same shape, got [2, 3] and [3]");
  EXPECT_ERROR(cat({x}, 2), "dimension 2 is out of range for rank 2");
}

// Also where no element moves.
TEST(Rearranging, GivesMemoryOfItsOwn) {
  const NoGrad off;
  const Tensor x = numbers({1, 3});
  const std::vector<double> before = to_vector(x);
  for (const Tensor& y :
       {flip(x, {}), roll(x, 0, 1), roll(x, 3, 1), repeat(x, {1, 1}), repeat(x, {2, 1}),
        repeat_interleave(x, 1, 0), tril(x, 3), triu(x), pad(x, {0, 0}), pad(x, {-1, 0}),
        pad(x, {0, 0}, PadMode::Circular), cat({x}), stack({x}), pad_sequence({x})}) {
    fill_(select(reshape(y, {-1, y.size(-1)}), 0, 0), 7);
    EXPECT_EQ(to_vector(x), before);
  }
  const Tensor rows = repeat(x, {2, 1});
  fill_(select(rows, 0, 0), 7);
  EXPECT_EQ(to_vector(select(rows, 0, 1)), before);
  const Tensor both = repeat(x, {2, 2});
  fill_(select(both, 0, 0), 7);
  EXPECT_EQ(to_vector(slice(select(both, 0, 1), 0, 0, 3)), before);
  EXPECT_TRUE(both.is_contiguous());
}

TEST(RepeatInterleave, TakesANumberForEachSlice) {
  const Tensor x = numbers({2, 3});
  const Tensor y = repeat_interleave(x, tensor({2, 0, 1}, i32), 1);
  EXPECT_EQ(y.shape(), (Shape{2, 3}));
  EXPECT_TRUE(equal(select(y, 1, 0), select(x, 1, 0)));
  EXPECT_TRUE(equal(select(y, 1, 1), select(x, 1, 0)));
  EXPECT_TRUE(equal(select(y, 1, 2), select(x, 1, 2)));
  EXPECT_TRUE(equal(repeat_interleave(x, full({}, 2, i64), -1), repeat_interleave(x, 2, 1)));
  EXPECT_TRUE(equal(repeat_interleave(x, 3), repeat_interleave(flatten(x), 3, 0)));
  EXPECT_EQ(repeat_interleave(x, zeros({2}, i64), 0).shape(), (Shape{0, 3}));
  EXPECT_EQ(repeat_interleave(zeros({0, 3}), zeros({0}, i64), 0).shape(), (Shape{0, 3}));
  EXPECT_EQ(repeat_interleave(full({}, 7), full({}, 2, i64)).shape(), Shape{2});
  const Tensor many = full({4}, 0x1p61, i64);  // 2^63 together
  EXPECT_ERROR(repeat_interleave(zeros({4, 2}), many, 0), "times add up to more than 2^63");
}

TEST(Rearranging, TurnsPlanes) {
  const Tensor x = numbers({2, 3});
  EXPECT_TRUE(equal(rot90(x), flip(x.t(), 0)));
  EXPECT_TRUE(equal(rot90(rot90(x, -1)), x));
  EXPECT_TRUE(equal(rot90(x, 3, {1, 0}), rot90(x)));
  EXPECT_ERROR(rot90(x, 1, {0}), "rot90: a plane has two dimensions, got 1 of them");
  EXPECT_ERROR(rot90(x, 1, {0, -2}), "rot90: dimensions 0 and -2 are the same");
}

TEST(Joining, OfDifferentRanks) {
  const auto [a, b] = unpack<2>(broadcast_tensors({numbers({3, 1}), numbers({2})}));
  EXPECT_EQ(a.shape(), (Shape{3, 2}));
  EXPECT_EQ(b.shape(), (Shape{3, 2}));
  EXPECT_ERROR(broadcast_tensors({ones({3}), ones({2})}), "broadcast_tensors: ");
  EXPECT_EQ(atleast_1d(ones({})).shape(), Shape{1});
  EXPECT_EQ(atleast_2d(numbers({3})).shape(), (Shape{1, 3}));
  EXPECT_EQ(atleast_3d(numbers({3})).shape(), (Shape{1, 3, 1}));
  EXPECT_EQ(atleast_3d(numbers({2, 3})).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(atleast_3d(ones({1, 2, 3, 4})).rank(), 4);
  EXPECT_EQ(column_stack({numbers({3}), ones({3, 2})}).shape(), (Shape{3, 3}));
  EXPECT_EQ(dstack({numbers({3}), numbers({3})}).shape(), (Shape{1, 3, 2}));
  EXPECT_ERROR(column_stack({}), "column_stack: cat: nothing to join");
}

TEST(UnravelIndex, FindsWhatArgmaxFound) {
  const Tensor x = from({3, 1, 2, 9, 7, 8}, {2, 3});
  const auto at = unravel_index(argmax(x), x.shape());
  EXPECT_EQ(at[0].item(), 1);
  EXPECT_EQ(at[1].item(), 0);
  EXPECT_TRUE(unravel_index(zeros({2}, i64), {}).empty());
  EXPECT_ERROR(unravel_index(row({6}, i64), {2, 3}), "position 6 is out of range for shape [2, 3]");
  EXPECT_ERROR(unravel_index(row({6}), {2, 3}), "positions must be integers, got f32");
}

TEST(RearrangingErrors, NameBothValues) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max(),
                    least = std::numeric_limits<int64_t>::min();
  const Tensor x = numbers({2, 3});
  EXPECT_ERROR(flip(x, {0, -2}), "flip: dimension -2 is named twice");
  EXPECT_ERROR(flip(x, {2}), "flip: dimension 2 is out of range for rank 2");
  EXPECT_ERROR(roll(x, 1, 5), "roll: dimension 5 is out of range for rank 2");
  EXPECT_ERROR(repeat(x, {2}), "repeat: 2 dimensions need as many repeats, got [2]");
  EXPECT_ERROR(repeat(x, {1, -1}), "repeat: cannot repeat dimension 1 of [2, 3] -1 times");
  EXPECT_ERROR(repeat(x, {1, most}),
               "cannot repeat dimension 1 of [2, 3] 9223372036854775807 times");
  EXPECT_ERROR(repeat_interleave(x, -2, 0),
               "repeat_interleave: cannot repeat dimension 0 of [2, 3] -2 times");
  EXPECT_ERROR(repeat_interleave(x, tensor({1, 2}, i64), 1),
               "repeat_interleave: times has shape [2], not [] or [3]");
  EXPECT_ERROR(repeat_interleave(x, tensor({1, -2}, i64), 0),
               "repeat_interleave: times must be >= 0, got -2");
  EXPECT_ERROR(repeat_interleave(x, tensor({1, 2}), 0), "times must be integers, got f32");
  EXPECT_ERROR(roll(x, {1, 2}, {0}), "roll: 2 shifts for 1 dimensions");
  EXPECT_ERROR(unflatten(x, 1, {2, -1}), "unflatten: ");
  EXPECT_ERROR(hardtanh(x, 1, 0), "hardtanh: low must be <= high, got 1 and 0");
  EXPECT_ERROR(tril(numbers({3})), "tril: the input has shape [3], not [..., m, n]");
  EXPECT_ERROR(triu(numbers({})), "triu: the input has shape [], not [..., m, n]");
  EXPECT_ERROR(pad(arange(3), {1, 1}, PadMode::Constant, 0.5), "0.5");
  EXPECT_ERROR(pad(x, {1}), "pad: sizes must be pairs for up to 2 dimensions, got 1 of them");
  EXPECT_ERROR(pad(x, {1, 1, 1, 1, 1, 1}),
               "pad: sizes must be pairs for up to 2 dimensions, got 6 of them");
  EXPECT_ERROR(pad(x, {-2, -2}), "pad: margins of -2 and -2 elements do not fit beside 3");
  EXPECT_ERROR(pad(x, {-4, 9}), "pad: margins of -4 and 9 elements do not fit beside 3");
  EXPECT_ERROR(pad(x, {least, least}), "elements do not fit beside 3");
  EXPECT_ERROR(pad(x, {most, 1}), "elements do not fit beside 3");
  EXPECT_ERROR(pad(x, {most / 8, 0}), "of f32 has too many bytes");
  EXPECT_ERROR(pad(x, {3, 0}, PadMode::Reflect),
               "pad: margins of 3 and 0 elements cannot come from 3");
  EXPECT_ERROR(pad(x, {0, 4}, PadMode::Circular),
               "pad: margins of 0 and 4 elements cannot come from 3");
  EXPECT_ERROR(pad(zeros({0}), {1, 1}, PadMode::Replicate),
               "pad: margins of 1 and 1 elements cannot come from 0");
}

TEST(Meshgrid, SpreadsAxesOverAGrid) {
  const Tensor a = numbers({2}), b = numbers({3});
  const auto ij = meshgrid({a, b}), xy = meshgrid({a, b}, "xy");
  EXPECT_EQ(ij[0].shape(), (Shape{2, 3}));
  EXPECT_EQ(xy[1].shape(), (Shape{3, 2}));
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(ij[0].at(i * 3 + j), a.at(i));
      EXPECT_EQ(ij[1].at(i * 3 + j), b.at(j));
      EXPECT_EQ(xy[0].at(j * 2 + i), a.at(i));
      EXPECT_EQ(xy[1].at(j * 2 + i), b.at(j));
    }
  EXPECT_EQ(ij[0].storage()->id(), a.storage()->id()) << "a view";
  EXPECT_EQ(meshgrid({a}, "xy")[0].shape(), Shape{2});
  EXPECT_EQ(meshgrid({select(a, 0, 0), b})[0].shape(), (Shape{1, 3}));
  EXPECT_TRUE(meshgrid({}).empty());
  EXPECT_ERROR(meshgrid({a}, "yx"), "meshgrid: indexing is \"yx\", not \"ij\" or \"xy\"");
  EXPECT_ERROR(meshgrid({numbers({2, 3})}), "meshgrid: an axis has shape [2, 3], not [n]");
}

TEST(IndexErrors, NameTheRangeAndTheSize) {
  const Tensor x = numbers({2, 3}), empty = zeros({0, 3});
  const Tensor bad = from({0, 3}, {1, 2}, i64), under = from({-1, 0}, {1, 2}, i64);
  EXPECT_ERROR(gather(x, 1, bad), "gather: index 3 is out of range for dimension 1 of size 3");
  EXPECT_ERROR(gather(x, 1, under), "gather: index -1 is out of range for dimension 1 of size 3");
  EXPECT_ERROR(scatter(x, 1, bad, x), "scatter: index 3 is out of range for dimension 1 of size 3");
  const Tensor rows = expand(from({0, 2}, {2, 1}, i64), {2, 3});  // looked at once, not thrice
  EXPECT_ERROR(scatter_add(x, 0, rows, x), "index 2 is out of range for dimension 0 of size 2");
  EXPECT_ERROR(gather(x, 1, expand(from({3}, {1, 1}, i64), {2, 2})), "gather: index 3 is out of");
  EXPECT_ERROR(scatter_add(x, -1, bad, x),
               "scatter_add: index 3 is out of range for dimension 1 of size 3");
  EXPECT_ERROR(index_select(x, 0, i64s({2, 0})),
               "index_select: index 2 is out of range for dimension 0 of size 2");
  EXPECT_ERROR(index_select(empty, 0, i64s({0})),
               "index_select: index 0 is out of range for dimension 0 of size 0");
  EXPECT_ERROR(index_add(x, 1, i64s({-1}), zeros({2, 1})),
               "index_add: index -1 is out of range for dimension 1 of size 3");
  EXPECT_ERROR(index(x, {i64s({-3, 1})}),
               "index: index -3 is out of range for dimension 0 of size 2");
  EXPECT_ERROR(index(empty, {i64s({0})}),
               "index: index 0 is out of range for dimension 0 of size 0");
  EXPECT_ERROR(index_put(x, {i64s({0}), i64s({3})}, zeros({})),
               "index_put: index 3 is out of range for dimension 1 of size 3");
}

TEST(IndexErrors, OfDtypesAndShapes) {
  const Tensor x = numbers({2, 3}), i = zeros({2, 2}, i64);
  EXPECT_ERROR(gather(x, 1, x), "gather: indices must be integers, got f32");
  EXPECT_ERROR(gather(x, 2, i), "gather: dimension 2 is out of range for rank 2");
  EXPECT_ERROR(gather(x, 1, zeros({3, 1}, i64)),
               "gather: the index must have the rank of [2, 3] and, outside dimension 1, no larger "
               "sizes, got [3, 1]");
  EXPECT_ERROR(gather(x, 1, i64s({0})),
               "gather: the index must have the rank of [2, 3] and, outside dimension 1, no larger "
               "sizes, got [1]");
  EXPECT_ERROR(scatter(x, 1, i, numbers({2, 1})),
               "scatter: the source must be at least as large as the index, [2, 2], got [2, 1]");
  EXPECT_ERROR(scatter(x, 1, i, numbers({2})),
               "the source must be at least as large as the index, [2, 2], got [2]");
  EXPECT_ERROR(scatter(x, 1, i, numbers({2, 2}, f64)), "inputs have different dtypes: f32 and f64");
  EXPECT_ERROR(scatter_add(x, 1, i, numbers({2, 2}, i64)), "inputs have different dtypes");
  EXPECT_ERROR(scatter_add(gt(x, 1), 1, i, gt(x, 1)),
               "scatter_add: elements must be numbers, got bool");
  EXPECT_ERROR(index_select(x, 0, i), "index_select: the index has shape [2, 2], not [k]");
  EXPECT_ERROR(index_select(x, 0, zeros({2})), "index_select: indices must be integers, got f32");
  EXPECT_ERROR(index_add(x, 1, i64s({0, 1}), x),
               "index_add: the source has shape [2, 3], not [2, 2]");
  EXPECT_ERROR(index(x, {}), "index: no indices");
  EXPECT_ERROR(index(x, {i64s({0}), Tensor()}), "index: index 1 is undefined");
  EXPECT_ERROR(index(x, {i64s({0}), i64s({0}), i64s({0})}),
               "index: too many indices: 3 for a tensor of shape [2, 3]");
  EXPECT_ERROR(index(x, {numbers({2})}),
               "index: an index must be of integers other than u8, or a bool mask, got f32");
  EXPECT_ERROR(index(x, {i64s({0, 1}), i64s({0, 1, 2})}), "shapes [2] and [3] do not broadcast");
  EXPECT_ERROR(index(x, {gt(numbers({3}), 0)}),
               "index: a mask of shape [3] does not fit dimensions 0 to 0 of [2, 3]");
  EXPECT_ERROR(index(x, {i64s({0}), gt(numbers({2}), 0)}),
               "index: a mask of shape [2] does not fit dimensions 1 to 1 of [2, 3]");
  EXPECT_ERROR(index(x, {gt(numbers({2, 3, 1}), 0)}),
               "index: too many indices: 3 for a tensor of shape [2, 3]");
  EXPECT_ERROR(index_put(x, {i64s({0, 1})}, numbers({2})), "[2] cannot expand to [2, 3]");
  EXPECT_ERROR(index_put(x, {i64s({0})}, numbers({3}, f64)),
               "inputs have different dtypes: f32 and f64");
  EXPECT_ERROR(embedding(numbers({3}), i), "embedding: the table has shape [3], not [rows, n]");
  EXPECT_ERROR(embedding(i, numbers({3, 2})),
               "embedding: the second argument is the index, of integers, and the first the table: "
               "got ");
  EXPECT_ERROR(embedding_bag(i, numbers({3, 2})),
               "embedding_bag: the second argument is the index");
  const Tensor line = i64s({0, 1}), square = i64s({0, 1}).reshape({1, 2});
  EXPECT_ERROR(embedding_bag(x, line, square), "offsets have shape [1, 2], not [bags]");
  EXPECT_ERROR(embedding_bag(x, line, square, {.include_last_offset = true}),
               "offsets have shape [1, 2], not [bags + 1]");
  EXPECT_ERROR(masked_select(x, i), "masked_select: the mask must be bool, got i64");
  EXPECT_ERROR(masked_select(x, gt(numbers({2}), 0)), "shapes [2, 3] and [2] do not broadcast");
}

TEST(OrderErrors, NameBothValues) {
  const Tensor x = numbers({2, 3});
  EXPECT_ERROR(topk(x, 4), "topk: k must be from 0 to 3, got 4");
  EXPECT_ERROR(topk(x, -1, 0), "topk: k must be from 0 to 2, got -1");
  EXPECT_ERROR(sort(x, 2), "sort: dimension 2 is out of range for rank 2");
  const int64_t many = int64_t{1} << 33;
  EXPECT_ERROR(argsort(expand(zeros({1}), {many})),
               "argsort: a row must have fewer than 2^32 elements, got 8589934592");
  EXPECT_ERROR(topk(expand(zeros({1}), {many}), 1),
               "topk: a row must have fewer than 2^32 elements");
  const Tensor index = expand(zeros({1}, i64), {int64_t{1} << 31}), no = zeros({1});
  EXPECT_ERROR(scatter(no, 0, index, expand(no, index.shape())),
               "scatter: indices of [2147483648] elements");
  EXPECT_ERROR(scatter_add(no, 0, index, expand(no, index.shape())),
               "scatter_add: indices of [2147483648] elements");
}

TEST(ReductionErrors, NameTheDtypeAndTheOrder) {
  const Tensor i = numbers({2, 3}, i64);
  EXPECT_ERROR(norm(i), "norm: elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_ERROR(norm(numbers({3}), nan), "norm: the order must be a number, got nan");
  EXPECT_ERROR(logsumexp(i),
               "logsumexp: elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_ERROR(prod(i, {0, -2}), "dimension -2 is named twice");
  EXPECT_ERROR(mean(i), "mean: the mean of i64 numbers (convert them to a float dtype)");
  EXPECT_ERROR(max(zeros({0, 3}), {0}),
               "max: no maximum or minimum of zero elements: shape [0, 3]");
  EXPECT_ERROR(argmin(zeros({2, 0}), 1),
               "argmin: no maximum or minimum of zero elements: shape [2, 0]");
  EXPECT_ERROR(sum(i, {2}), "sum: dimension 2 is out of range for rank 2");
  EXPECT_ERROR(argmax(i, 2), "argmax: dimension 2 is out of range for rank 2");
  EXPECT_ERROR(softmax(i),
               "softmax: elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_ERROR(log_softmax(i),
               "log_softmax: elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_ERROR(cumsum(i, 2), "dimension 2 is out of range for rank 2");
  EXPECT_ERROR(cumprod(numbers({}), 1), "dimension 1 is out of range for rank 0");
}

// --- dtypes ---

TEST(Moving, KeepsEveryDtype) {
  using X = const Tensor&;
  const Tensor i = from({1, 0, 2, 0, 0, 1}, {2, 3}, i64), mask = gt(i, 0);
  const std::vector<std::function<Tensor(X)>> all = {
      [](X x) { return view(x, {3, 2}); },
      [](X x) { return squeeze(unsqueeze(x, 1)); },
      [](X x) { return cat(split(x, {2, 1}, 1), 1); },
      [](X x) { return stack(unbind(x, 1)); },
      [](X x) { return unfold(x, 1, 2, 1); },
      [](X x) { return diagonal(x, 1); },
      [](X x) { return flip(x, {}); },
      [](X x) { return roll(x, 1, 1); },
      [](X x) { return repeat(x, {2, 1, 2}); },
      [](X x) { return repeat_interleave(x, 2, 0); },
      [](X x) { return tril(x, 1); },
      [](X x) { return triu(x); },
      [](X x) { return pad(x, {1, 0, -1, 2}, PadMode::Constant, 1); },
      [](X x) { return pad(x, {2, 1}, PadMode::Reflect); },
      [](X x) { return index_select(x, 1, i64s({2, 2, 0})); },
      [=](X x) { return gather(x, 1, i); },
      [=](X x) { return scatter(x, 1, i, flip(x, {1})); },
      [](X x) { return index(x, {i64s({-1, 0}), i64s({1, -1})}); },
      [=](X x) { return index(x, {mask}); },
      [](X x) { return index_put(x, {i64s({1})}, narrow(x, 0, 0, 1)); },
      [=](X x) { return masked_select(x, mask); },
      [](X x) { return sort(x, 1, true).values; },
      [](X x) { return topk(x, 2, 1, false).values; },
  };
  const Tensor x = from({1, 0, 0, 1, 1, 0}, {2, 3}, f64);
  for (size_t f = 0; f < all.size(); ++f)
    for (const DType t : {f32, f16, bf16, i64, i32, u8, boolean}) {
      const Tensor y = all[f](cast(x, t));
      EXPECT_EQ(y.dtype(), t) << f;
      EXPECT_EQ(to_vector(y), to_vector(all[f](x))) << f << " of " << name(t);
    }
}

TEST(Adding, TakesIntegers) {
  for (const DType t : {i64, i32, u8}) {
    const Tensor x = from({1, 2, 3}, {3}, t), i = i64s({2, 0, 2});
    EXPECT_EQ(to_vector(scatter_add(x, 0, i, x)), (Values{3, 2, 7}));
    EXPECT_EQ(to_vector(index_add(x, 0, i, x)), (Values{3, 2, 7}));
    EXPECT_EQ(to_vector(index_put(x, {i}, x, true)), (Values{3, 2, 7}));
  }
}

TEST(Reductions, DtypesOfResults) {
  for (const DType t : {i64, i32, u8, boolean}) {
    const Tensor x = from({1, 0, 1, 1}, {2, 2}, t);
    for (const Tensor& y : {prod(x), cumsum(x, 0), cumprod(x, 0)}) EXPECT_EQ(y.dtype(), i64);
    EXPECT_EQ(to_vector(cumsum(x, 0)), (Values{1, 0, 2, 1}));
    EXPECT_EQ(to_vector(prod(x, {1})), (Values{0, 1}));
    EXPECT_EQ(to_vector(any(x, {1})), (Values{1, 1}));
    EXPECT_EQ(to_vector(all(x, {1})), (Values{0, 1}));
    EXPECT_EQ(any(x).dtype(), boolean);
  }
  EXPECT_EQ(to_vector(any(from({0, -0.0, nan, 0}, {2, 2}, f16), {1})), (Values{0, 1}));
  EXPECT_EQ(any(zeros({0})).item(), 0);
  EXPECT_EQ(all(zeros({0})).item(), 1);
  EXPECT_EQ(norm(zeros({0})).item(), 0);
  EXPECT_EQ(norm(zeros({0}), inf).item(), 0);
  EXPECT_EQ(prod(zeros({0})).item(), 1);
  EXPECT_EQ(logsumexp(zeros({0})).item(), -inf);
  EXPECT_EQ(norm(full({10000}, 60000, f16), 2).item(), inf) << "6e6 is no f16";
  EXPECT_EQ(norm(full({2}, 300, f16), 2).item(), 424.25) << "but 90000 is no f16 either";
}

TEST(Reductions, NormTakesDimensionsInBracesAsAllDo) {
  const Tensor x = from({3, 4, 0, 5}, {2, 2});
  EXPECT_EQ(to_vector(norm(x, {1})), (Values{5, 5}));
  EXPECT_EQ(to_vector(norm(x, {0})), (Values{3, norm(from({4, 5}, {2})).item()}));
  EXPECT_EQ(norm(x, {-1}, true).shape(), (Shape{2, 1}));
  for (const Tensor& y : {norm(x, {}), norm(x, {0, 1})}) EXPECT_EQ(y.item(), norm(x).item());
  EXPECT_EQ(norm(x, 1).item(), 12);
  EXPECT_EQ(norm(x, 1.0, {1}).at(0), 7);
}

// --- views share ---

TEST(Views, ShareStorage) {
  const Tensor x = numbers({4, 1, 6});
  for (const Tensor& y : {view(x, {2, 12}), squeeze(x), squeeze(x, 1), unfold(x, 2, 3, 2),
                          diagonal(x, 1, 0, 2), split(x, {1, 5}, 2)[1], unbind(x)[3]})
    EXPECT_EQ(y.storage(), x.storage());
  EXPECT_TRUE(squeeze(x, 0).is_same(x));
  EXPECT_EQ(squeeze(x, 0).shape(), x.shape());
  EXPECT_EQ(unbind(zeros({0, 3})).size(), 0u);
}

// --- duplicates and sums ---

TEST(Scatter, GradientGoesToTheLastOfEquals) {
  const Tensor x = zeros({4}).set_requires_grad(), s = from({1, 2, 3}, {3}).set_requires_grad();
  const Tensor y = scatter(x, 0, i64s({2, 0, 2}), s);
  EXPECT_EQ(to_vector(y), (Values{2, 0, 3, 0}));
  y.backward({.gradient = from({10, 20, 30, 40}, {4})});
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 20, 0, 40}));
  EXPECT_EQ(to_vector(s.grad()), (Values{0, 10, 30}));
}

TEST(IndexPut, GradientGoesToTheLastOfEquals) {
  const Tensor x = zeros({2, 2}).set_requires_grad(), v = ones({}).set_requires_grad();
  const Tensor y = index_put(x, {i64s({0, 0, -2}), i64s({1, -1, 0})}, v);
  EXPECT_EQ(to_vector(y), (Values{1, 1, 0, 0}));
  sum(y).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0, 1, 1}));
  EXPECT_EQ(v.grad().item(), 2) << "of three values two are seen";
}

TEST(NarrowGradients, AreSummedInF32) {
  // An f16 sum of ones stays at 2048; and 2051 is no f16, but the leaf is f32.
  const Tensor leaf = ones({3, 1}).set_requires_grad(), x = cast(leaf, f16), i = zeros({2051}, i64);
  const std::vector<std::function<Tensor()>> all = {
      [&] { return index_select(x, 0, i); },
      [&] { return gather(x, 0, unsqueeze(i, 1)); },
      [&] { return index(x, {i}); },
      [&] { return embedding(x, i); },
      [&] { return sort(expand(x, {3, 2051}), 0).values; },
      [&] { return unfold(expand(x, {3, 4096}), 1, 1366, 2); },
  };
  for (size_t f = 0; f < all.size(); ++f) {
    leaf.set_grad({});
    const Tensor y = all[f]();
    y.backward({.gradient = ones_like(y)});
    EXPECT_EQ(sum(leaf.grad()).item(), double(y.numel())) << f;
  }
  EXPECT_EQ(to_vector(scatter_add(zeros({2}, f16), 0, zeros({2052}, i64), ones({2052}, f16))),
            (Values{2052, 0}));
}

TEST(Autocast, TakesTheWidestOfWhatIsPutTogether) {
  const amp::Autocast on({.low = f16});
  const Tensor wide = ones({3}), narrow_one = ones({3}, f16), i = i64s({0, 1, 2});
  EXPECT_EQ(scatter(wide, 0, i, narrow_one).dtype(), f32);
  EXPECT_EQ(scatter_add(narrow_one, 0, i, wide).dtype(), f32);
  EXPECT_EQ(index_add(narrow_one, 0, i, narrow_one).dtype(), f16);
  EXPECT_EQ(index_put(wide, {i}, narrow_one, true).dtype(), f32);
  EXPECT_EQ(index_select(narrow_one, 0, i).dtype(), f16);
  EXPECT_EQ(sort(narrow_one).values.dtype(), f16);
}

// --- order ---

TEST(Sort, PutsNanLastAndKeepsTheOrderOfEquals) {
  const Tensor x = from({3, nan, -0.0, 1, 0.0, nan, -inf, inf}, {8}).set_requires_grad();
  const Sorted up = sort(x), down = sort(x, 0, true);
  EXPECT_EQ(to_vector(up.indices), (Values{6, 2, 4, 3, 0, 7, 1, 5}));
  EXPECT_EQ(to_vector(down.indices), (Values{1, 5, 7, 0, 3, 2, 4, 6}));
  EXPECT_EQ(to_vector(topk(x, 3).indices), (Values{1, 5, 7}));
  EXPECT_EQ(to_vector(topk(x, 3, 0, false).indices), (Values{6, 2, 4}));
  EXPECT_FALSE(up.indices.requires_grad());
  down.values.backward({.gradient = numbers({8})});
  EXPECT_EQ(to_vector(x.grad()), (Values{3, 0, 5, 4, 6, 1, 7, 2}));
}

TEST(LogSumExp, OfNothingButMinusInfinity) {
  const Tensor x = full({2, 3}, -inf).set_requires_grad();
  const Tensor y = logsumexp(x, {1});
  EXPECT_EQ(to_vector(y), (Values{-inf, -inf}));
  y.backward({.gradient = ones({2})});
  EXPECT_EQ(to_vector(x.grad()), Values(6, 0));
}

// --- properties, for any shape ---

int64_t draw(int64_t from, int64_t to) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(from, to + 1));
}
// Distinct numbers in a tensor of up to four dimensions, some transposed.
Tensor draw_tensor(int least_rank = 1) {
  Shape s;
  for (int64_t rank = draw(least_rank, 4); s.rank < rank;)
    s.push_back(draw(0, 9) == 0 ? 0 : draw(1, 6));
  Tensor x = numbers(s, f64);
  if (s.rank > 1) {
    const int a = int(draw(0, s.rank - 1)), b = int(draw(0, s.rank - 1));
    x = transpose(clone(transpose(x, a, b)), a, b);
  }
  return x;
}
int draw_dim(const Tensor& x) { return int(draw(-x.rank(), x.rank() - 1)); }
bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && to_vector(a) == to_vector(b);
}

RC_GTEST_PROP(Rearranging, CroppingUndoesPadding, ()) {
  const Tensor x = draw_tensor();
  std::vector<int64_t> sizes, crop;
  for (int64_t n = 2 * draw(0, x.rank()); n > 0; --n) sizes.push_back(draw(0, 3));
  for (const int64_t s : sizes) crop.push_back(-s);
  RC_ASSERT(same(pad(pad(x, sizes, PadMode::Constant, -1), crop), x));
  const double added = double(pad(x, sizes).numel() - x.numel());
  RC_ASSERT(sum(pad(x, sizes, PadMode::Constant, -1)).item() == sum(x).item() - added);
}

RC_GTEST_PROP(Rearranging, MarginsFromWithinAreThoseOfTheExtendedArray, ()) {
  const Tensor x = numbers({draw(1, 6)}, f64);
  const int64_t n = x.numel(), left = draw(-n, n - 1), right = draw(std::max(-n, -n - left), n - 1);
  const int64_t period = n + std::min<int64_t>(left, 0) + std::min<int64_t>(right, 0);
  const auto at = [&](PadMode mode, int64_t i) {
    if (mode == PadMode::Replicate) return double(std::clamp<int64_t>(i, 0, n - 1));
    if (mode == PadMode::Circular) return double(i < 0 ? i + period : i >= n ? i - period : i);
    return double(i < 0 ? -i : i >= n ? 2 * n - 2 - i : i);
  };
  for (const PadMode mode : {PadMode::Reflect, PadMode::Replicate, PadMode::Circular}) {
    if (mode == PadMode::Circular && std::max(left, right) > period) continue;
    Values want;
    for (int64_t i = -left; i < n + right; ++i) want.push_back(at(mode, i));
    RC_ASSERT(to_vector(pad(x, {left, right}, mode)) == want);
  }
}

RC_GTEST_PROP(Rearranging, FlipAndRollAreUndone, ()) {
  const Tensor x = draw_tensor();
  const int d = draw_dim(x);
  const int64_t shift = draw(-9, 9);
  RC_ASSERT(same(flip(flip(x, {d}), {d}), x));
  RC_ASSERT(same(roll(roll(x, shift, d), -shift, d), x));
  RC_ASSERT(same(flip(roll(flip(x, {d}), shift, d), {d}), roll(x, -shift, d)));
}

RC_GTEST_PROP(Rearranging, PiecesJoinToTheWhole, ()) {
  const Tensor x = draw_tensor();
  const int d = draw_dim(x);
  std::vector<int64_t> sizes;
  for (int64_t left = x.size(d); left > 0; left -= sizes.back()) sizes.push_back(draw(0, left));
  if (!sizes.empty()) RC_ASSERT(same(cat(split(x, sizes, d), d), x));
  if (x.size(d) > 0) RC_ASSERT(same(stack(unbind(x, d), d), x));
}

RC_GTEST_PROP(Rearranging, RepeatsAreCopies, ()) {
  const Tensor x = draw_tensor();
  const int d = draw_dim(x);
  const int64_t times = draw(1, 3), n = x.size(d);
  Shape shape;
  for (int i = 0; i < x.rank(); ++i) shape.push_back(1);
  shape[d] = times;
  const Tensor tiled = repeat(x, shape), stretched = repeat_interleave(x, times, d);
  for (int64_t t = 0; t < times; ++t) {
    RC_ASSERT(same(narrow(tiled, d, t * n, n), x));
    RC_ASSERT(same(slice(stretched, d, t, times * n, times), x));
  }
}

RC_GTEST_PROP(Rearranging, TrianglesMakeTheWhole, ()) {
  const Tensor x = draw_tensor(2);
  const int64_t diagonal = draw(-7, 7);
  RC_ASSERT(same(tril(x, diagonal) + triu(x, diagonal + 1), x));
}

RC_GTEST_PROP(Windows, AddUpToHowManyShareAnElement, ()) {
  Tensor x = draw_tensor();
  const int d = draw_dim(x);
  if (x.size(d) == 0) return;
  const int64_t n = x.size(d), size = draw(1, n), step = draw(1, 4);
  x = x.detach().set_requires_grad();
  sum(unfold(x, d, size, step) * unfold(x, d, size, step).detach()).backward();
  Values counts(size_t(n), 0);
  for (int64_t first = 0; first + size <= n; first += step)
    for (int64_t i = 0; i < size; ++i) ++counts[size_t(first + i)];
  Shape lines;
  for (int i = 0; i < x.rank(); ++i) lines.push_back(1);
  lines[d] = n;
  RC_ASSERT(same(x.grad(), x.detach() * reshape(from(counts, {n}, f64), lines)));
}

RC_GTEST_PROP(Indexing, PuttingAndTakingAgree, ()) {
  const Tensor x = draw_tensor();
  const int d = draw_dim(x);
  const Tensor order = randperm(x.size(d));
  const Tensor picked = index_select(x, d, order);
  RC_ASSERT(same(index_select(picked, d, argsort(order)), x));
  RC_ASSERT(same(index_add(zeros_like(x), d, order, picked), x));
  const Tensor each = argsort(rand(x.shape()), d);
  RC_ASSERT(same(scatter(zeros_like(x), d, each, gather(x, d, each)), x));
  RC_ASSERT(same(scatter_add(zeros_like(x), d, each, gather(x, d, each)), x));
}

RC_GTEST_PROP(Indexing, MasksAndTheirPlacesAgree, ()) {
  const Tensor x = draw_tensor(), mask = gt(rand(x.shape()), 0.5);
  const Tensor places = nonzero(mask);
  std::vector<Tensor> each = unbind(places, 1);
  const Tensor picked = masked_select(x, mask);
  RC_ASSERT(picked.numel() == sum(mask).item<int64_t>());
  RC_ASSERT(same(index(x, {mask}), picked));
  RC_ASSERT(same(index(x, each), picked));
  RC_ASSERT(same(index_put(zeros_like(x), each, picked), x * cast(mask, f64)));
  RC_ASSERT(same(index_put(x, {mask}, -picked, true), x * (1 - cast(mask, f64))));
}

RC_GTEST_PROP(Order, SortedIsAnOrderedPermutation, ()) {
  const Tensor whole = draw_tensor(), x = cast(cast(whole / 3, i64), f64);  // with ties
  const int d = draw_dim(x);
  const bool descending = draw(0, 1);
  const Sorted s = sort(x, d, descending);
  RC_ASSERT(same(gather(x, d, s.indices), s.values));
  const int64_t n = x.size(d);
  if (n == 0) return;
  const Tensor low = narrow(s.values, d, 0, n - 1), high = narrow(s.values, d, 1, n - 1),
               first = narrow(s.indices, d, 0, n - 1), second = narrow(s.indices, d, 1, n - 1);
  RC_ASSERT(all(descending ? ge(low, high) : le(low, high)).item() == 1);
  RC_ASSERT(all(logical_or(ne(low, high), lt(first, second))).item() == 1);
  RC_ASSERT(same(sum(s.indices, {d}), full_like(sum(s.indices, {d}), double(n * (n - 1) / 2))));
  const int64_t k = draw(0, n);
  RC_ASSERT(same(topk(x, k, d, descending).indices, narrow(s.indices, d, 0, k)));
}

RC_GTEST_PROP(Scans, DifferencesUndoRunningSums, ()) {
  const Tensor x = draw_tensor();
  const int d = draw_dim(x);
  const int64_t n = x.size(d);
  if (n == 0) return;
  const Tensor y = cumsum(x, d);
  RC_ASSERT(same(narrow(y, d, n - 1, 1), sum(x, {d}, true)));
  RC_ASSERT(same(narrow(y, d, 1, n - 1) - narrow(y, d, 0, n - 1), narrow(x, d, 1, n - 1)));
  const Tensor odd = 1 + 2 * (x - 2 * cast(cast(x / 2, i64), f64));  // 1 or 3: products are exact
  RC_ASSERT(same(narrow(cumprod(odd, d), d, n - 1, 1), prod(odd, {d}, true)));
}

}  // namespace indexing_test
}  // namespace mixtape
