// CUDA kernels that copy and convert, under the emulator, compared with the CPU.

#include <fmt/format.h>

#include "core/format.h"
#include "kernels/common/launch.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_move_test {

// The same elements transposed, at an odd offset, and with stride 2.
std::vector<Tensor> ways(const Tensor& x) {
  const auto strided = [&](const Shape& room, const Layout& layout) {
    const Tensor t = filled(room, x.dtype(), 1);
    const Tensor view = t.with_layout(layout);
    for (int64_t i = 0; i < x.numel(); ++i) view.set(i, x.at(i));
    return view;
  };
  const int64_t m = x.size(0), n = x.size(1);
  return {x, strided({n, m}, Layout({m, n}, {1, m})),
          strided({m * n + 1}, Layout({m, n}, {n, 1}, 1)),
          strided({m, 2 * n}, Layout({m, n}, {2 * n, 2}))};
}

TEST(CudaMove, ConvertsAsTheCpuDoes) {
  for (const DType from_type : all_dtypes)
    for (const DType to : all_dtypes)
      for (const Tensor& x : ways(random({7, 37}, from_type, 3, from_type == u8 ? 0 : -9, 9))) {
        const Tensor got = filled({7, 37}, to, 1), want = filled({7, 37}, to, 1);
        launch([&](Launch& l) { cuda::convert(l, x, got); });
        launch([&](Launch& l) { on_cpu(convert)(l, x, want); });
        expect_equal(got, want, fmt::format("{} to {}", name(from_type), name(to)));
      }
}
TEST(CudaMove, ConvertsOddValues) {
  const Tensor x =
      from({nan, inf, -inf, 65504, 65519.99, 65520, 1e-8, 5.96e-8, -0.0, 3e38, 1e300}, {11}, f64);
  for (const DType to : {f32, f16, bf16}) {
    const Tensor got = output({11}, to), want = output({11}, to);
    launch([&](Launch& l) { cuda::convert(l, x, got); });
    launch([&](Launch& l) { on_cpu(convert)(l, x, want); });
    expect_equal(got, want, std::string(name(to)));
  }
}
TEST(CudaMove, FillsAnyStrides) {
  for (const DType t : all_dtypes)
    for (const Tensor& y : ways(random({5, 9}, t, 1, 0, 1))) {
      launch([&](Launch& l) { cuda::fill(l, 1, y); });
      expect_equal(y, filled({5, 9}, t, 1), std::string(name(t)));
    }
}
TEST(CudaMove, Counts) {
  for (const DType t : all_dtypes) {
    const Tensor got = filled({1000}, t, 1), want = filled({1000}, t, 1);
    launch([&](Launch& l) { cuda::arange(l, -3, 0.75, got); });
    launch([&](Launch& l) { on_cpu(arange)(l, -3, 0.75, want); });
    expect_equal(got, want, std::string(name(t)));
  }
}
TEST(CudaMove, MeetsBothEnds) {
  for (const DType t : all_dtypes)
    for (const int64_t n : {0, 1, 2, 1000}) {
      const Tensor got = filled({n}, t, 1), want = filled({n}, t, 1);
      launch([&](Launch& l) { cuda::linspace(l, -3, 0.7, got); });
      launch([&](Launch& l) { on_cpu(linspace)(l, -3, 0.7, want); });
      expect_close(got, to_vector(want), is_float(t) ? 1e-15 : 0,
                   fmt::format("{} [{}]", name(t), n));
      if (n > 1 && t == f64) {
        EXPECT_EQ(got.at(0), -3);
        EXPECT_EQ(got.at(n - 1), 0.7);
      }
    }
}
TEST(CudaMove, Chooses) {
  for (const DType t : all_dtypes)
    for (const Tensor& condition : ways(random({7, 40}, boolean, 1, 0, 2)))
      for (const Tensor& a : ways(random({7, 40}, t, 2, 0, 9))) {
        const Tensor b = random({7, 40}, t, 3, 0, 9), got = filled({7, 40}, t, 1),
                     want = filled({7, 40}, t, 1);
        launch([&](Launch& l) { cuda::where(l, condition, a, b, got); });
        launch([&](Launch& l) { on_cpu(where)(l, condition, a, b, want); });
        expect_equal(got, want, std::string(name(t)));
      }
}
TEST(CudaMove, KeepsTriangles) {
  for (const DType t : all_dtypes)
    for (const Shape& shape : {Shape{3, 5, 7}, Shape{40, 33}, Shape{2, 0}, Shape{1, 1}})
      for (const bool upper : {false, true})
        for (const int64_t diagonal : {-100, -2, 0, 1, 100}) {
          const Tensor x = random(shape, t, 1, 1, 9), got = filled(shape, t, 1),
                       want = filled(shape, t, 1);
          launch([&](Launch& l) { cuda::triangle(l, upper, diagonal, x, got); });
          launch([&](Launch& l) { on_cpu(triangle)(l, upper, diagonal, x, want); });
          expect_equal(got, want, fmt::format("{} {} {}", name(t), shape, diagonal));
        }
}
TEST(CudaMove, AddsUp) {
  for (const DType t : {f64, f32, f16, bf16, i64, i32})
    for (const Tensor& x : ways(random({8, 33}, t, 5, -9, 9))) {
      const Tensor got = random({8, 33}, t, 6, -9, 9), want = random({8, 33}, t, 6, -9, 9);
      launch([&](Launch& l) { cuda::accumulate(l, x, got); });
      launch([&](Launch& l) { on_cpu(accumulate)(l, x, want); });
      expect_equal(got, want, std::string(name(t)));
    }
  const Tensor x = random({8, 33}, bf16, 7), got = random({8, 33}, f32, 8),
               want = random({8, 33}, f32, 8);
  launch([&](Launch& l) { cuda::accumulate(l, x, got); });
  launch([&](Launch& l) { on_cpu(accumulate)(l, x, want); });
  expect_equal(got, want, "bf16 to f32");
}
TEST(CudaMove, TakesEmpties) {
  const Tensor x({0, 4}, f32), y({0, 4}, f16);
  launch([&](Launch& l) {
    cuda::convert(l, x, y);
    cuda::fill(l, 1, y);
    cuda::accumulate(l, y, y);
  });
}

}  // namespace kernels_cuda_move_test
}  // namespace mixtape::kernels
