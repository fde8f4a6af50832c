// CUDA sort, top-k, argmax and scans under the emulator, compared with the CPU.

#include <fmt/format.h>

#include "core/format.h"
#include "tests/support/kernel_compare.h"
#ifdef MIXTAPE_EMULATED
#include "kernels/cuda/index/sort.cuh"
#endif

namespace mixtape::kernels {
namespace kernels_cuda_order_test {

// Ties, both zeros and, for floats, infinities and NaN.
Tensor to_sort(const Shape& shape, DType t) {
  const Tensor x(shape, t);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t v = i * 7919 % 1009 % 300;
    const double special[] = {nan, inf, -inf, 0.0, -0.0, -nan};
    x.set(i, t == boolean   ? double(v % 2)
             : t == u8      ? double(v % 256)
             : !is_float(t) ? double(v * 1000001 - 150000000)
             : v < 6        ? special[v]
                            : double(v - 150) * 0.37);
  }
  return x;
}

void expect_same_order(const Tensor& x, int64_t k, bool descending) {
  Shape shape = x.shape();
  shape[-1] = k;
  const Tensor got = output(shape, i64), want = output(shape, i64);
  const bool all = k == x.size(-1);
  launch([&](Launch& l) {
    all ? cuda::argsort(l, descending, x, got) : cuda::topk(l, descending, x, got);
  });
  launch([&](Launch& l) {
    all ? on_cpu(argsort)(l, descending, x, want) : on_cpu(topk)(l, descending, x, want);
  });
  ASSERT_EQ(to_vector(got), to_vector(want))
      << fmt::format("{} of {} {} {}", k, x.dtype(), x.shape(), descending);
}

TEST(CudaArgsort, ShortRows) {
  for (const DType t : all_dtypes)
    for (const int64_t n : {1, 2, 31, 33, 300})
      for (const bool descending : {false, true})
        expect_same_order(to_sort({5, n}, t), n, descending);
  expect_same_order(to_sort({2, 2048}, f32), 2048, false);
  expect_same_order(Tensor({0, 5}, f32), 5, false);
}
TEST(CudaArgsort, LongRowsByDigits) {
  for (const DType t : all_dtypes) expect_same_order(to_sort({2, 2049}, t), 2049, t == f16);
  expect_same_order(random({1, 9000}, f32, 3), 9000, true);
  expect_same_order(random({3, 4096}, bf16, 3), 4096, false);
}
#ifdef MIXTAPE_EMULATED
// Tiles of rows of more than 2^31 elements, and of masks with as many true ones.
TEST(CudaOffsets, PassThirtyTwoBits) {
  constexpr int64_t n = 5000, count = int64_t{1} << 20;
  std::vector<int64_t> counts(2 * n, count);
  launch([&](Launch& l) { cuda::launch_offsets(l, counts.data(), 2, n); });
  for (int64_t i = 0; i < 2 * n; ++i) ASSERT_EQ(counts[size_t(i)], i % n * count);
}
#endif
TEST(CudaTopK, ShortAndLongRows) {
  for (const DType t : {f32, bf16, i64})
    for (const int64_t n : {7, 300})
      for (const int64_t k : {0, 1, 5}) expect_same_order(to_sort({3, n}, t), k, true);
  expect_same_order(to_sort({3, 5000}, f32), 1, true);
  expect_same_order(to_sort({2, 9001}, f64), 40, false);
  expect_same_order(filled({1, 2050}, f32, nan), 500, false);
  expect_same_order(to_sort({2, 2500}, f16), 700, true);
}

void expect_same_winner(const Tensor& x, int dim) {
  Shape shape = x.shape();
  shape[dim] = 1;
  for (const Reduce op : {Reduce::Max, Reduce::Min}) {
    const Tensor got = output(shape, i64), want = output(shape, i64);
    launch([&](Launch& l) { cuda::arg_reduce(l, op, dim, x, got); });
    launch([&](Launch& l) { on_cpu(arg_reduce)(l, op, dim, x, want); });
    ASSERT_EQ(to_vector(got), to_vector(want))
        << fmt::format("{} {} along {}", x.dtype(), x.shape(), dim);
  }
}
TEST(CudaArgReduce, FirstWinner) {
  for (const DType t : all_dtypes)
    for (int dim = 0; dim < 3; ++dim) expect_same_winner(to_sort({5, 9, 40}, t), dim);
  const Tensor x = to_sort({40, 70}, f32);
  for (const int dim : {0, 1}) expect_same_winner(x.with_layout(transpose(x.layout(), 0, 1)), dim);
  expect_same_winner(to_sort({3, 1500}, f16), 1);
  expect_same_winner(filled({2, 33}, f32, -inf), 1);
}
TEST(CudaArgReduce, LongLinesInParts) {
  expect_same_winner(random({20000}, f32, 1), 0);
  expect_same_winner(to_sort({5000, 64}, bf16), 0);
  expect_same_winner(filled({20000}, i32, 3), 0);
}

void expect_same_scan(bool transposed, int dim, const Tensor& a, const Tensor& b, DType out) {
  const Shape shape = (a ? a : b).shape();
  for (const int which : {1, 2, 3}) {
    const Tensor got = output(shape, out), want = output(shape, out);
    const Tensor factor = which & 1 ? a : Tensor(), term = which & 2 ? b : Tensor();
    launch([&](Launch& l) { cuda::scan(l, transposed, dim, factor, term, got); });
    launch([&](Launch& l) { on_cpu(scan)(l, transposed, dim, factor, term, want); });
    expect_close(got, to_vector(want),
                 out == f64      ? 1e-13
                 : out == f32    ? 2e-7
                 : is_float(out) ? tolerance(out)
                                 : 0,
                 fmt::format("{} {} along {}, {}", out, shape, dim, which));
  }
}
TEST(CudaScan, EveryDimensionAndDtype) {
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : {Shape{5, 9, 70}, Shape{1025}, Shape{3, 1, 2}})
      for (int dim = 0; dim < shape.rank; ++dim)
        for (const bool transposed : {false, true})
          expect_same_scan(transposed, dim, random(shape, in, 1, 0.8, 1.1), random(shape, in, 2),
                           out);
  for (const DType t : {i64, i32, u8, boolean})
    expect_same_scan(false, 1, random({2, 70}, t, 3, 0, 3), random({2, 70}, t, 4, 0, 3), i64);
}
TEST(CudaScan, ManyLinesAndStrides) {
  const Tensor a = random({30, 2000}, f32, 1, 0.8, 1.1), b = random({2000, 30}, f32, 2);
  const Tensor turned = b.with_layout(transpose(b.layout(), 0, 1));
  for (const int dim : {0, 1}) expect_same_scan(dim == 1, dim, a, turned, f32);
}
TEST(CudaScan, LongLinesInParts) {
  for (const bool transposed : {false, true})
    expect_same_scan(transposed, 0, random({30000}, f64, 1, 0.9, 1.1), random({30000}, f64, 2),
                     f64);
}
TEST(CudaScan, IgnoresWhatMultipliesNothing) {
  for (const int64_t n : {3, 40, 30000}) {
    const Tensor a = filled({n}, f64, 1), b = filled({n}, f64, 1);
    a.set(0, nan);
    expect_same_scan(false, 0, a, b, f64);
    a.set(0, inf);
    a.set(n - 1, inf);
    expect_same_scan(false, 0, a, b, f64);
    expect_same_scan(true, 0, a, b, f64);
  }
}

// Positions of running extremes, and sums of exponentials.
void expect_same_composed(int dim, const Tensor& x) {
  const Tensor got = output(x.shape(), i64), want = output(x.shape(), i64);
  for (const Reduce op : {Reduce::Max, Reduce::Min}) {
    launch([&](Launch& l) { cuda::arg_scan(l, op, dim, x, got); });
    launch([&](Launch& l) { on_cpu(arg_scan)(l, op, dim, x, want); });
    ASSERT_EQ(to_vector(got), to_vector(want)) << fmt::format("{} along {}", x.shape(), dim);
  }
  if (!is_float(x.dtype())) return;
  const Tensor y = output(x.shape(), x.dtype()), expected = output(x.shape(), x.dtype());
  launch([&](Launch& l) { cuda::log_cumsum_exp(l, dim, x, y); });
  launch([&](Launch& l) { on_cpu(log_cumsum_exp)(l, dim, x, expected); });
  expect_close(y, to_vector(expected), x.dtype() == f64 ? 1e-13 : tolerance(x.dtype()),
               fmt::format("{} along {}", x.shape(), dim));
}
TEST(CudaScan, ExtremesAndExponentials) {
  for (const DType t : {f64, f32, f16, bf16, i64, i32, u8})
    for (const Shape& shape : {Shape{5, 9, 70}, Shape{1025}, Shape{3, 1, 2}, Shape{2, 30000}})
      for (int dim = 0; dim < shape.rank; ++dim)
        expect_same_composed(dim, random(shape, t, 1, 0, 20));
  for (const int64_t n : {40, 30000}) {
    const Tensor x = random({n}, f32, 2);
    for (const int64_t i : {0, 1, 2}) x.set(i, -inf);
    x.set(7, inf);
    x.set(n - 3, nan);
    expect_same_composed(0, x);
  }
}

}  // namespace kernels_cuda_order_test
}  // namespace mixtape::kernels
