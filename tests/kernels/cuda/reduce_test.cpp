// CUDA reductions and random numbers under the emulator, compared with the CPU.

#include <fmt/format.h>

#include "core/format.h"
#include "kernels/common/launch.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_reduce_test {

void expect_same_reduction(Reduce op, const Tensor& x, const Shape& to, DType out, double tol) {
  const Tensor got = filled(to, out, 99), want = filled(to, out, 98);
  launch([&](Launch& l) { cuda::reduce(l, op, x, got); });
  launch([&](Launch& l) { on_cpu(reduce)(l, op, x, want); });
  expect_close(got, to_vector(want), tol,
               fmt::format("{} of {} {} to {}", int(op), x.dtype(), x.shape(), to));
}

TEST(CudaReduce, AnyDimensions) {
  const Shape shape{5, 6, 70};
  for (const auto& [in, out] : float_pairs)
    for (const Reduce op : {Reduce::Sum, Reduce::Mean, Reduce::Max, Reduce::Min, Reduce::Prod,
                            Reduce::SumAbs, Reduce::Norm, Reduce::MaxAbs})
      for (int which = 0; which < 8; ++which) {
        Shape to = shape;
        for (int d = 0; d < 3; ++d)
          if (which >> d & 1) to[d] = 1;
        const bool exact = op == Reduce::Max || op == Reduce::Min || op == Reduce::MaxAbs;
        expect_same_reduction(op, random(shape, in, 3), to, out, exact ? 0 : tolerance(out));
      }
}
TEST(CudaReduce, StridedInputs) {
  const Tensor x = random({64, 40}, f32, 4);
  const Tensor t = x.with_layout(Layout({40, 64}, {1, 40})),
               e = x.with_layout(Layout({9, 64, 40}, {0, 40, 1}));
  for (const Shape& to : {Shape{40, 1}, {1, 64}, {1, 1}})
    expect_same_reduction(Reduce::Sum, t, to, f32, 1e-5);
  for (const Shape& to : {Shape{1, 64, 40}, {9, 1, 40}, {1, 1, 1}})
    expect_same_reduction(Reduce::Sum, e, to, f32, 1e-5);
}
TEST(CudaReduce, LongSumsInParts) {
  expect_same_reduction(Reduce::Sum, random({30000}, f32, 5), {1}, f32, 1e-5);
  expect_same_reduction(Reduce::Max, random({3, 20000}, bf16, 6), {3, 1}, bf16, 0);
  expect_same_reduction(Reduce::Sum, random({5000, 40}, f16, 7), {1, 40}, f32, 1e-5);
  expect_same_reduction(Reduce::Mean, random({1, 50000}, f64, 8), {1, 1}, f64, 1e-12);
}
TEST(CudaReduce, TermsBeyondTheRangeOfF32) {
  for (const Shape& shape : {Shape{2, 40}, {3, 3000}, {4000, 40}})
    for (const int dim : {0, 1}) {
      Shape to = shape;
      to[dim] = 1;
      expect_same_reduction(Reduce::Mean, filled(shape, f32, 3e38), to, f32, 2e-7);
      for (const double size : {3e30, 3e-23}) {
        const Tensor length(to, f32);
        launch([&](Launch& l) { cuda::reduce(l, Reduce::Norm, filled(shape, f32, size), length); });
        for (const double y : to_vector(length))
          EXPECT_NEAR(y / (size * std::sqrt(double(shape[dim]))), 1, 2e-7);
      }
    }
  const Tensor x = filled({1, 4}, f32, 1e30);
  x.set(2, 1e-30);
  x.set(3, 1e-30);
  expect_same_reduction(Reduce::Prod, x, {1, 1}, f32, 2e-7);
}
TEST(CudaReduce, Integers) {
  for (const DType t : {i64, i32, u8}) {
    expect_same_reduction(Reduce::Sum, random({7, 300}, t, 9, 0, 200), {7, 1}, i64, 0);
    expect_same_reduction(Reduce::Max, random({7, 300}, t, 9, 0, 200), {1, 300}, t, 0);
    expect_same_reduction(Reduce::Min, random({7, 300}, t, 9, 0, 200), {7, 1}, t, 0);
    expect_same_reduction(Reduce::Prod, random({7, 30}, t, 9, 0, 200), {7, 1}, i64, 0);
  }
}
TEST(CudaReduce, NanWinsAndEmptySumsAreZero) {
  const Tensor x = from({1, nan, 3, -inf, inf, 2}, {2, 3}, f32);
  expect_same_reduction(Reduce::Max, x, {2, 1}, f32, 0);
  expect_same_reduction(Reduce::Min, x, {1, 3}, f32, 0);
  expect_same_reduction(Reduce::Sum, Tensor({4, 0}, f32), {4, 1}, f32, 0);
}

// --- random numbers: bits, integers and uniforms are equal on every device, normals nearly ---

template <class F, class G, class... A>
void expect_same_numbers(const F& on_cuda, const G& on_cpu, DType t, double tol, A... args) {
  for (const int64_t n : {1, 4, 7, 1001}) {
    const Tensor got = filled({n}, t, 0), want = filled({n}, t, 1);
    launch([&](Launch& l) { on_cuda(l, Draw{5, uint64_t{1} << 40}, args..., got); });
    launch([&](Launch& l) { on_cpu(l, Draw{5, uint64_t{1} << 40}, args..., want); });
    expect_close(got, to_vector(want), tol, std::string(name(t)));
  }
}
TEST(CudaRandom, GivesTheNumbersOfTheCpu) {
  for (const DType t : {f64, f32, f16, bf16}) {
    for (const auto& [low, high] : {std::pair(-2.0, 3.0), {100.0, 100.0625}, {0.1, 0.1001}})
      expect_same_numbers(cuda::random_uniform, on_cpu(random_uniform), t, 0, low, high);
    expect_same_numbers(cuda::random_normal, on_cpu(random_normal), t,
                        is_half(t) ? tolerance(t) : 1e-6, 1.0, 2.0);
  }
  expect_same_numbers(cuda::random_integer, on_cpu(random_integer), i64, 0, int64_t{-9},
                      int64_t{1} << 45);
}
TEST(CudaRandom, DropsTheElementsThatTheCpuDrops) {
  for (const auto& [in, out] : float_pairs) {
    const Tensor x = random({33, 31}, in, 2), got = output({33, 31}, out),
                 want = output({33, 31}, out);
    launch([&](Launch& l) { cuda::dropout(l, Draw{9, 77}, 0.3, x, got); });
    launch([&](Launch& l) { on_cpu(dropout)(l, Draw{9, 77}, 0.3, x, want); });
    expect_close(got, to_vector(want), 0, std::string(name(in)));
  }
}

}  // namespace kernels_cuda_reduce_test
}  // namespace mixtape::kernels
