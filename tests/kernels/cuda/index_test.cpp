// CUDA gather, scatter and nonzero under the emulator, compared with the CPU.

#include <fmt/format.h>

#include "core/format.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_index_test {

Tensor numbered(const Shape& shape, DType t, int period) {
  const Tensor x(shape, t);
  for (int64_t i = 0; i < x.numel(); ++i)
    x.set(i, t == boolean ? double(i % 2) : double(i % period));
  return x;
}
// An index of numbers below n, many of which repeat.
Tensor names(const Shape& shape, int64_t n, int64_t step = 7919) {
  const Tensor index(shape, i64);
  for (int64_t i = 0; i < index.numel(); ++i) index.set(i, double(i * step % 1009 % n));
  return index;
}
// An index that is constant except along dim.
Tensor names_of_slices(int dim, const Shape& shape, int64_t n) {
  Shape strides = shape;
  for (int d = 0; d < shape.rank; ++d) strides[d] = d == dim;
  return names({shape[dim]}, n).with_layout(Layout(shape, strides));
}

struct Problem {
  int dim;
  Shape addressed, index;
};
const Problem problems[] = {
    {0, {7}, {5}},
    {0, {7}, {300}},
    {0, {20, 24}, {50, 24}},
    {0, {20, 24}, {33, 20}},
    {1, {6, 30, 8}, {5, 40, 8}},
    {2, {3, 4, 50}, {3, 4, 70}},
    {1, {40, 9}, {40, 1}},
    {0, {5, 33}, {0, 33}},
};

void expect_same_index_ops(const Problem& p, DType t, const Tensor& index, const Tensor& x,
                           const Tensor& source) {
  const std::string what = fmt::format("{} along {} of {}, index {} {}", t, p.dim, p.addressed,
                                       p.index, index.strides());
  const Tensor got = output(p.index, t), want = output(p.index, t);
  launch([&](Launch& l) { cuda::gather(l, p.dim, x, index, got); });
  launch([&](Launch& l) { on_cpu(gather)(l, p.dim, x, index, want); });
  ASSERT_EQ(to_vector(got), to_vector(want)) << what;
  const Tensor y = numbered(p.addressed, t, 50), expected = numbered(p.addressed, t, 50);
  launch([&](Launch& l) { cuda::scatter(l, p.dim, index, source, y); });
  launch([&](Launch& l) { on_cpu(scatter)(l, p.dim, index, source, expected); });
  ASSERT_EQ(to_vector(y), to_vector(expected)) << what;
  if (t == boolean) return;
  const DType sum_type = is_half(t) ? f32 : t;
  for (const Reduce op : {Reduce::Sum, Reduce::Max, Reduce::Min}) {
    const Tensor sums = numbered(p.addressed, sum_type, 50),
                 expected_sums = numbered(p.addressed, sum_type, 50);
    launch([&](Launch& l) { cuda::scatter_reduce(l, op, p.dim, index, source, sums); });
    launch([&](Launch& l) { on_cpu(scatter_reduce)(l, op, p.dim, index, source, expected_sums); });
    ASSERT_EQ(to_vector(sums), to_vector(expected_sums)) << what;
  }
}

TEST(CudaIndex, EveryDimensionAndDtype) {
  for (const Problem& p : problems)
    for (const DType t : all_dtypes)
      for (const Tensor& index : {names(p.index, p.addressed[p.dim]),
                                  names_of_slices(p.dim, p.index, p.addressed[p.dim])})
        expect_same_index_ops(p, t, index, numbered(p.addressed, t, 90), numbered(p.index, t, 70));
}
TEST(CudaIndex, AnyStrides) {
  const Problem p{0, {20, 24}, {50, 24}};
  const Tensor x = numbered({24, 20}, f32, 90), source = numbered({24, 50}, f32, 70),
               odd = numbered({20 * 24 + 1}, f32, 90), one = filled({1}, f32, 3);
  const Tensor turned_x = x.with_layout(transpose(x.layout(), 0, 1)),
               turned = source.with_layout(transpose(source.layout(), 0, 1));
  for (const Tensor& index : {names(p.index, 20), names_of_slices(0, p.index, 20)}) {
    expect_same_index_ops(p, f32, index, turned_x, turned);
    expect_same_index_ops(p, f32, index, odd.with_layout(Layout({20, 24}, {24, 1}, 1)),
                          one.with_layout(Layout(p.index, {0, 0})));
  }
}
// The gradient of an embedding: sums in the order of the tokens, bitwise equal.
TEST(CudaIndex, AddsRowsInOrder) {
  for (const int64_t tokens : {100, 3000})
    for (const int64_t dim : {8, 33}) {
      const Tensor x = random({tokens, dim}, f32, 1), y = filled({70, dim}, f32, 0.1),
                   want = filled({70, dim}, f32, 0.1);
      const Tensor index = names_of_slices(0, {tokens, dim}, 70);
      launch([&](Launch& l) { cuda::scatter_reduce(l, Reduce::Sum, 0, index, x, y); });
      launch([&](Launch& l) { on_cpu(scatter_reduce)(l, Reduce::Sum, 0, index, x, want); });
      ASSERT_EQ(to_vector(y), to_vector(want)) << tokens << " " << dim;
    }
  const Tensor x = random({5000}, f32, 1), y = filled({3}, f32, 0), want = filled({3}, f32, 0);
  launch([&](Launch& l) { cuda::scatter_reduce(l, Reduce::Sum, 0, names({5000}, 3), x, y); });
  launch([&](Launch& l) { on_cpu(scatter_reduce)(l, Reduce::Sum, 0, names({5000}, 3), x, want); });
  ASSERT_EQ(to_vector(y), to_vector(want));
  const Tensor one = filled({1}, f32, 0), all = filled({2500}, i64, 0);
  launch([&](Launch& l) {
    cuda::scatter_reduce(l, Reduce::Sum, 0, all, filled({2500}, f16, 1), one);
  });
  EXPECT_EQ(one.at(0), 2500);
}

TEST(CudaIndex, CountsBeyondF32) {
  const Tensor one = filled({1}, f32, 0x1p24), rows = filled({3, 4}, f32, 0x1p24);
  launch([&](Launch& l) {
    cuda::scatter_reduce(l, Reduce::Sum, 0, filled({4096}, i64, 0), filled({4096}, f32, 1), one);
    cuda::scatter_reduce(l, Reduce::Sum, 0, filled({4096, 4}, i64, 2), filled({4096, 4}, bf16, 1),
                         rows);
  });
  EXPECT_EQ(one.at(0), 0x1p24 + 4096);
  EXPECT_EQ(rows.at(0), 0x1p24);
  EXPECT_EQ(rows.at(11), 0x1p24 + 4096);
}

// The host learns of such an index only after the kernels ran (core/readback.h).
TEST(CudaIndex, OneOutOfRangeTouchesNoOtherMemory) {
  for (const int64_t n : {4, 100, 3000}) {  // by lines, bitonic sort, radix sort
    const Tensor index = names({n}, 5), x = random({5}, f32, 1), source = random({n}, f32, 2);
    index.set(1, 0x1p52);
    index.set(2, -0x1p52);
    const Tensor picked = filled({n}, f32, 0), put = x.detach(), sums = filled({5}, f32, 0);
    launch([&](Launch& l) { cuda::gather(l, 0, x, index, picked); });
    EXPECT_EQ(picked.at(0), x.at(0));
    EXPECT_EQ(picked.at(3), x.at(int64_t(index.at(3))));
    launch([&](Launch& l) { cuda::scatter(l, 0, index, source, put); });
    launch([&](Launch& l) { cuda::scatter_reduce(l, Reduce::Sum, 0, index, source, sums); });
    double total = 0, wanted = 0;
    for (const double v : to_vector(sums)) total += v;
    for (const double v : to_vector(source)) wanted += v;
    EXPECT_NEAR(total, wanted, 1e-2);
  }
}

TEST(CudaBounds, SmallestAndLargest) {
  for (const Shape& shape : {Shape{1}, Shape{33, 70}, Shape{9000}}) {
    const Tensor x = random(shape, i64, 5, -1e6, 1e6), got({2}, i64), want({2}, i64);
    launch([&](Launch& l) { cuda::bounds(l, x, got); });
    launch([&](Launch& l) { on_cpu(bounds)(l, x, want); });
    EXPECT_EQ(to_vector(got), to_vector(want)) << shape.to_string();
  }
}

TEST(CudaNonzero, PlacesInRowMajorOrder) {
  for (const Shape& shape : {Shape{}, {0}, {1}, {2048}, {2049}, {100, 0}, {100, 101}, {7, 30, 50}})
    for (const int every : {1, 3, 5000}) {
      const Tensor mask(shape, boolean);
      for (int64_t i = 0; i < mask.numel(); ++i) mask.set(i, i % every == 0);
      const int64_t count = (mask.numel() + every - 1) / every;
      const Tensor got = output({count, shape.rank}, i64), want = output({count, shape.rank}, i64);
      launch([&](Launch& l) { cuda::nonzero(l, mask, got); });
      launch([&](Launch& l) { on_cpu(nonzero)(l, mask, want); });
      ASSERT_EQ(to_vector(got), to_vector(want)) << shape.to_string() << " " << every;
    }
}

}  // namespace kernels_cuda_index_test
}  // namespace mixtape::kernels
