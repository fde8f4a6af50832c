// The CUDA kernels over rows, under the emulator, beside those of the CPU: rows of a part of a
// warp, of a warp, of a block, and too long for its registers.

#include "core/format.h"
#include "kernels/launch.h"
#include "tests/support/kernel_compare.h"
#include "tests/support/kernel_devices.h"

namespace mixtape::kernels {
namespace {

const Shape row_shapes[] = {{3, 1},   {70, 7},   {9, 31},   {40, 33},  {9, 64},
                            {3, 257}, {2, 1000}, {2, 1025}, {1, 9001}, {0, 5}};

struct Result {
  Shape shape;
  DType dtype;
  double tol;
};
// Both kernels write such results, which are to be the same: run(kernel, launch, results).
template <class Kernel, class Run>
void expect_same(const std::string& what, const std::vector<Result>& results, Kernel on_cuda,
                 Kernel on_cpu, const Run& run) {
  std::vector<Tensor> got, want;
  for (const Result& r : results)
    got.push_back(output(r.shape, r.dtype)), want.push_back(output(r.shape, r.dtype));
  on_device([&](Launch& l) { run(on_cuda, l, got); });
  launch([&](Launch& l) { run(on_cpu, l, want); });
  for (size_t i = 0; i < results.size(); ++i)
    expect_close(got[i], to_vector(want[i]), results[i].tol, fmt::format("{}, result {}", what, i));
}

// The same elements where no pack is aligned.
Tensor misplaced(const Tensor& x) {
  const Tensor room({x.numel() + 1}, x.dtype());
  const Tensor view = room.with_layout(Layout(x.shape(), Layout(x.shape()).strides, 1));
  for (int64_t i = 0; i < x.numel(); ++i) view.set(i, x.at(i));
  return view;
}

TEST(CudaSoftmax, RowsOfAnyLength) {
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : row_shapes)
      for (const bool log : {false, true}) {
        const std::string what = fmt::format("{} to {} {} log {}", in, out, shape, log);
        const Tensor x = random(shape, in, 1, -5, 5), dy = random(shape, out, 2);
        const Tensor y = output(shape, out);
        expect_same(what, {{shape, out, tolerance(out)}}, cuda::softmax, cpu::softmax,
                    [&](auto kernel, Launch& l, const auto& to) { kernel(l, log, x, to[0]); });
        launch([&](Launch& l) { cpu::softmax(l, log, x, y); });
        for (const DType dx : {in, out})
          expect_same(what + " gradient", {{shape, dx, 2 * tolerance(dx)}}, cuda::softmax_grad,
                      cpu::softmax_grad, [&](auto kernel, Launch& l, const auto& to) {
                        kernel(l, log, y, dy, to[0]);
                      });
        expect_same(what + " logsumexp", {{{shape[0]}, out, tolerance(out)}}, cuda::logsumexp,
                    cpu::logsumexp,
                    [&](auto kernel, Launch& l, const auto& to) { kernel(l, x, to[0]); });
      }
}
TEST(CudaSoftmax, LongRowsAndOddPlaces) {
  for (const DType t : {f64, f32, bf16})
    for (const Shape& shape : {Shape{2, 17001}, Shape{3, 40}, Shape{5, 2053}}) {
      const Tensor x = misplaced(random(shape, t, 1, -5, 5)), dy = random(shape, t, 2);
      const std::string what = fmt::format("{} {}", t, shape);
      expect_same(what, {{shape, t, tolerance(t)}}, cuda::softmax, cpu::softmax,
                  [&](auto kernel, Launch& l, const auto& to) { kernel(l, true, x, to[0]); });
      expect_same(what, {{shape, t, 4 * tolerance(t)}}, cuda::softmax_grad, cpu::softmax_grad,
                  [&](auto kernel, Launch& l, const auto& to) { kernel(l, false, x, dy, to[0]); });
    }
}
TEST(CudaSoftmax, InfinitiesAndNan) {
  const Tensor x = from({-inf, -inf, -inf, inf, 1, inf, nan, 1, 2, 3e38, -inf, 3e38, -inf, 5, -inf},
                        {5, 3}, f32);
  expect_same("softmax", {{{5, 3}, f32, 1e-6}}, cuda::softmax, cpu::softmax,
              [&](auto kernel, Launch& l, const auto& to) { kernel(l, false, x, to[0]); });
  expect_same("logsumexp", {{{5}, f32, 1e-6}, {{2}, f32, 0}}, cuda::logsumexp, cpu::logsumexp,
              [&](auto kernel, Launch& l, const auto& to) {
                kernel(l, x, to[0]);
                kernel(l, Tensor({2, 0}, f32), to[1]);
              });
  // A lane that sees only -inf beside others that do not, in a row of a block.
  const Tensor wide = filled({1, 3000}, f32, -inf);
  wide.set(1700, 2);
  wide.set(5, 1);
  expect_same("mostly -inf", {{{1, 3000}, f32, 1e-6}}, cuda::softmax, cpu::softmax,
              [&](auto kernel, Launch& l, const auto& to) { kernel(l, false, wide, to[0]); });
}

void compare_masked(DType in, DType out, const Shape& shape, bool masks, bool biases, bool causal) {
  const int64_t q = shape[2], k = shape[3];
  const Tensor x = random(shape, in, 1, -5, 5), mask = random({q, k}, u8, 2, 0, 2),
               bias = random({shape[0], k, q}, out, 3), allowed({q, k}, boolean);
  for (int64_t i = 0; i < q * k; ++i) allowed.set(i, mask.at(i));
  // The mask is one for all images and heads; the bias is transposed, and one for all heads.
  const View seen = allowed.with_layout(Layout(shape, {0, 0, k, 1})),
             added = bias.with_layout(Layout(shape, {q * k, 0, 1, q}));
  expect_same(
      fmt::format("{} to {} {} mask {} bias {} causal {}", in, out, shape, masks, biases, causal),
      {{shape, out, tolerance(out)}}, cuda::masked_softmax, cpu::masked_softmax,
      [&](auto kernel, Launch& l, const auto& to) {
        kernel(l, x, masks ? seen : View{}, biases ? added : View{}, causal, 0.7, to[0]);
      });
}
TEST(CudaMaskedSoftmax, MasksAndBiases) {
  for (const auto& [out, in] : float_pairs)
    for (const Shape& shape : {Shape{2, 3, 5, 5}, {2, 1, 9, 40}, {1, 2, 3, 1111}})
      for (int which = 0; which < 8; ++which)
        compare_masked(in, out, shape, which & 1, which & 2, which & 4);
  compare_masked(f32, bf16, {1, 1, 2, 17000}, true, true, false);
}
TEST(CudaMaskedSoftmax, NothingAllowedAndInPlace) {
  const Values x = {1, 2, 3, nan, 1, 2, 0, 1, 2};
  const Tensor got = from(x, {3, 3}, f32), want = from(x, {3, 3}, f32),
               mask = from({0, 0, 0, 1, 1, 1, 1, 0, 1}, {3, 3}, boolean);
  on_device([&](Launch& l) { cuda::masked_softmax(l, got, mask, View{}, false, 1, got); });
  launch([&](Launch& l) { cpu::masked_softmax(l, want, mask, View{}, false, 1, want); });
  expect_close(got, to_vector(want), 1e-6, "in place");
}

}  // namespace
}  // namespace mixtape::kernels
