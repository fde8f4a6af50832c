// CUDA convolutions under the emulator, compared with the CPU.

#include <fmt/format.h>

#include "core/format.h"
#include "tests/support/conv_cases.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_conv_test {

struct Results {
  Tensor y, plain, active, before, summed, dx, shifted, dw, db;
};
struct Operands {
  Tensor x, w, dy, bias, shift, residual;
  Window window;
  // more: columns of x that no window reads, as output padding adds them.
  Operands(const ConvCase& k, DType in, int64_t more = 0)
      : x(random({k.n, k.c, k.h, k.w + more}, in, 1)),
        w(random({k.o, k.c / k.window.groups, k.window.size[0], k.window.size[1]}, in, 2)),
        dy(random({k.n, k.o, k.window.count(k.h, 0), k.window.count(k.w, 1)}, in, 3)),
        bias(random({k.o}, wide(in), 4)),
        shift(random({k.c}, in, 5)),
        residual(random(dy.shape(), k.n % 2 == 0 ? in : f32, 6)),
        window(k.window) {}
  Epilogue gelu(const Tensor& before) const {
    return {.bias = bias, .activation = Activation::Gelu, .before = before};
  }
  Epilogue relu_of_sum() const {
    return {.bias = bias, .residual = residual, .activation = Activation::Relu};
  }
  Results results(DType out) const {
    return {
        output(dy.shape(), out), output(dy.shape(), out), output(dy.shape(), out),
        output(dy.shape(), out), output(dy.shape(), out), output(x.shape(), out),
        output(x.shape(), out),  output(w.shape(), out),  output(bias.shape(), wide(x.dtype()))};
  }
};
// The same elements, with channels last in memory.
Tensor last(const Tensor& x) {
  const Tensor y = Tensor(x.shape(), x.dtype()).with_layout(channels_last(x.shape()));
  launch([&](Launch& l) { on_cpu(convert)(l, x, y); });
  return y;
}
// images: whether the GPU has images with channels last.
void expect_the_cpus(const ConvCase& k, DType in, DType out, int64_t more = 0,
                     bool images = false) {
  Operands o(k, in, more);
  Results got = o.results(out);
  const Results want = o.results(out);
  if (images) {
    for (Tensor* t : {&o.x, &o.dy, &o.residual}) *t = last(*t);
    for (Tensor* t :
         {&got.y, &got.plain, &got.active, &got.before, &got.summed, &got.dx, &got.shifted})
      *t = last(*t);
  }
  launch([&](Launch& l) {
    cuda::conv2d(l, o.x, o.w, {.bias = o.bias}, o.window, got.y);
    cuda::conv2d(l, o.x, o.w, {}, o.window, got.plain);
    cuda::conv2d(l, o.x, o.w, o.gelu(got.before), o.window, got.active);
    cuda::conv2d(l, o.x, o.w, o.relu_of_sum(), o.window, got.summed);
    cuda::conv2d_input(l, o.dy, o.w, View{}, o.window, got.dx);
    cuda::conv2d_input(l, o.dy, o.w, o.shift, o.window, got.shifted);
    cuda::conv2d_weight(l, o.x, o.dy, o.window, got.dw, got.db);
  });
  o = Operands(k, in, more);
  launch([&](Launch& l) {
    on_cpu(conv2d)(l, o.x, o.w, {.bias = o.bias}, o.window, want.y);
    on_cpu(conv2d)(l, o.x, o.w, {}, o.window, want.plain);
    on_cpu(conv2d)(l, o.x, o.w, o.gelu(want.before), o.window, want.active);
    on_cpu(conv2d)(l, o.x, o.w, o.relu_of_sum(), o.window, want.summed);
    on_cpu(conv2d_input)(l, o.dy, o.w, View{}, o.window, want.dx);
    on_cpu(conv2d_input)(l, o.dy, o.w, o.shift, o.window, want.shifted);
    on_cpu(conv2d_weight)(l, o.x, o.dy, o.window, want.dw, want.db);
  });
  const std::string what = fmt::format("{} to {}, x {} w {}", name(in), name(out),
                                       o.x.shape().to_string(), o.w.shape().to_string());
  const double tol = Tf32::allowed() ? 2e-3 : tolerance(out);
  expect_close(got.y, to_vector(want.y), tol, "y " + what);
  expect_close(got.plain, to_vector(want.plain), tol, "y without bias " + what);
  expect_close(got.before, to_vector(want.before), tol, "before gelu " + what);
  expect_close(got.active, to_vector(want.active), tol, "gelu of y " + what);
  expect_close(got.summed, to_vector(want.summed), tol, "relu with residual " + what);
  expect_close(got.dx, to_vector(want.dx), tol, "dx " + what);
  expect_close(got.shifted, to_vector(want.shifted), tol, "dx with bias " + what);
  expect_close(got.dw, to_vector(want.dw), tol, "dw " + what);
  expect_close(got.db, to_vector(want.db), Tf32::allowed() ? tol : tolerance(wide(in)),
               "db " + what);
}

const ConvCase more_cases[] = {
    {3, 5, 4, 8, 7, window({1, 1})},  // planes of whole vectors: no copy
    {1, 16, 4, 4, 4, window({1, 1}, {1, 1}, {0, 0}, {1, 1}, 2)},
    {2, 3, 3, 3, 4, window({1, 1})},
    {2, 4, 5, 4, 6, window({1, 1}, {2, 2}, {1, 0})},
    {3, 6, 9, 7, 12, window({3, 3}, {1, 2}, {1, 1}, {1, 1}, 6)},  // depthwise, two of each
    {2, 3, 33, 31, 3, window({4, 5}, {1, 1}, {3, 2}, {2, 1}, 3)},
    {5, 2, 40, 33, 2, window({3, 3}, {1, 1}, {1, 1}, {1, 1}, 2)},  // sums in parts
    {1, 40, 3, 3, 65, window({3, 3}, {1, 1}, {1, 1})},
    {2, 3, 20, 13, 4, window({3, 3}, {2, 1}, {1, 1})},
};

TEST(CudaConv2d, ForwardAndGradientsAreTheCpus) {
  for (const auto& [in, out] : float_pairs) {
    for (const ConvCase& k : conv_cases) expect_the_cpus(k, in, out);
    for (const ConvCase& k : more_cases) expect_the_cpus(k, in, out);
  }
}
TEST(CudaConv2d, TakesImagesWithChannelsLast) {
  const ConvCase of_images[] = {
      {2, 8, 6, 7, 16, window({3, 3}, {1, 1}, {1, 1})},
      {1, 40, 9, 5, 72, window({3, 3}, {2, 2}, {1, 1})},  // a step of k has two taps
      {3, 64, 8, 8, 24, window({1, 1}, {2, 2})},
      {2, 16, 23, 21, 8, window({5, 4}, {3, 2}, {2, 1}, {2, 3})},
      {2, 32, 12, 11, 130, window({3, 3}, {1, 1}, {1, 1}, {2, 2})},
      {9, 8, 20, 20, 8, window({3, 3}, {1, 1}, {0, 0})},  // the weight's gradient in parts
  };
  const auto run = [](const ConvCase& k, DType in, DType out) {
    if (k.window.groups == 1 && k.n * k.c * k.o > 0) expect_the_cpus(k, in, out, 0, true);
  };
  for (const ConvCase& k : of_images) {
    run(k, f16, f16);
    run(k, bf16, f32);
  }
  for (const ConvCase& k : conv_cases) run(k, f16, f32);
  for (const ConvCase& k : more_cases) run(k, bf16, bf16);
  const Tf32 rounded;
  for (const ConvCase& k : of_images) run(k, f32, f32);
  for (const ConvCase& k : conv_cases)
    if (k.c * k.h * k.w < 1000) run(k, f32, f32);
}
// Planes of whole vectors on both sides, but not the same ones.
TEST(CudaConv2d, OutputPaddingIsNotReadAsColumns) {
  for (const auto& [in, out] : float_pairs)
    for (const int64_t groups : {1, 2})
      for (const int64_t n : {1, 3})
        expect_the_cpus({n, 4, 8, 2, 6, window({1, 1}, {1, 1}, {0, 0}, {1, 3}, groups)}, in, out,
                        2);
}
// More than one slice of columns, which is half a megabyte on the emulator.
TEST(CudaConv2d, GoesThroughImagesInSlices) {
  const ConvCase k{20, 6, 16, 17, 4, window({3, 3}, {1, 1}, {1, 1})};
  expect_the_cpus(k, f32, f32);
  expect_the_cpus({30, 8, 16, 17, 4, window({3, 3}, {1, 1}, {1, 1}, {1, 1}, 2)}, bf16, bf16);
}
TEST(CudaConv2d, WeightGradientOfNothingIsZero) {
  const Tensor x({0, 2, 5, 5}, f32), dy({0, 3, 3, 3}, f32), dw = output({3, 2, 3, 3}, f32),
                                                            db = output({3}, f32);
  launch([&](Launch& l) { cuda::conv2d_weight(l, x, dy, window({3, 3}), dw, db); });
  expect_close(dw, Values(54, 0), 0, "dw");
  expect_close(db, Values(3, 0), 0, "db");
}

}  // namespace kernels_cuda_conv_test
}  // namespace mixtape::kernels
