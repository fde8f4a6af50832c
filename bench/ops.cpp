// Common ops at the sizes of networks, compared with libtorch's; with --full also every row of the
// tests' catalogue, with as many elements as its shapes allow.

#include <algorithm>

#include "bench/case.h"
#include "mixtape.h"
#include "tests/support/op_cases.h"
#ifdef MIXTAPE_TORCH
#include "bench/peers/torch.h"
#endif

namespace mixtape::bench {
namespace {

using In = const std::vector<Tensor>&;

void add_common() {
  const int64_t large = pick(4 << 20, 64), rows = pick(768, 3), n = pick(512, 8);
  const int64_t images = pick(64, 1), b = pick(48, 2), t = pick(64, 4);
  const CaseInput x{{large}}, tokens{{rows, pick(512, 8)}}, square{{n, n}};
  const auto normalised = [](int64_t rows, int64_t width) {
    return std::vector<CaseInput>{{{rows, width}}, {{width}}, {{width}}};
  };
  const auto norm = [](In x) { return layer_norm(x[0], x[1].shape(), x[1], x[2]); };
  const auto pool = [](In x) { return max_pool2d(x[0], {2, 2}); };
  const auto overlapping = [](In x) {
    return max_pool2d(x[0], {3, 3}, {.stride = {2, 2}, .padding = {1, 1}});
  };
  const int64_t stem = pick(112, 6);  // of a ResNet
  const auto soft = [](In x) { return softmax(x[0], -1); };
  const auto activation = [](In x) { return gelu(x[0]); };
  const int64_t wide = pick(4096, 4), width = pick(1024, 8), channels = pick(128, 6);
  for (const Case& c : std::vector<Case>{
           {"ops/add/4M", "add", {x, x}, [](In x) { return x[0] + x[1]; }},
           {"ops/mul/4M", "mul", {x, x}, [](In x) { return x[0] * x[1]; }},
           {"ops/exp/4M", "exp", {x}, [](In x) { return exp(x[0]); }},
           {"ops/tanh/4M", "tanh", {x}, [](In x) { return tanh(x[0]); }},
           {"ops/relu/64x32x26x26",
            "relu",
            {{{images, 32, 26, 26}}},
            [](In x) { return relu(x[0]); }},
           {"ops/gelu/768x512", "gelu", {tokens}, activation},
           {"ops/gelu/4M", "gelu", {x}, activation},
           {"ops/sum/4M", "sum", {x}, [](In x) { return sum(x[0]); }},
           {"ops/sum_rows/4096x1024",
            "sum_rows",
            {{{wide, width}}},
            [](In x) { return sum(x[0], {1}); }},
           {"ops/softmax/48x64x64", "softmax", {{{b, t, t}}}, soft},
           {"ops/softmax/4096x1024", "softmax", {{{wide, width}}}, soft},
           {"ops/layer_norm/768x128", "layer_norm", normalised(rows, channels), norm},
           {"ops/layer_norm/4096x1024", "layer_norm", normalised(wide, width), norm},
           {"ops/cross_entropy/768x65",
            "cross_entropy",
            {{{rows, 65}}, {{rows}, 65}},
            [](In x) { return cross_entropy(x[0], x[1]); }},
           {"ops/embedding/768of65x128",
            "embedding",
            {{{65, channels}}, {{rows}, 65}},
            [](In x) { return embedding(x[0], x[1]); }},
           {"ops/max_pool2d/64x32x26x26", "max_pool2d", {{{images, 32, 26, 26}}}, pool, {2, 2, 0}},
           {"ops/max_pool2d/64x64x11x11", "max_pool2d", {{{images, 64, 11, 11}}}, pool, {2, 2, 0}},
           {"ops/max_pool2d/4x64x112x112_3x3",
            "max_pool2d",
            {{{pick(4, 1), 64, stem, stem}}},
            overlapping,
            {3, 2, 1}},
           {"ops/matmul/512",
            "matmul",
            {square, square},
            [](In x) { return matmul(x[0], x[1]); },
            {},
            2.0 * double(n * n * n)},
           {"ops/linear/768x128x512",
            "linear",
            {{{rows, channels}}, {{n, channels}}, {{n}}},
            [](In x) { return linear(x[0], x[1], x[2]); },
            {},
            2.0 * double(rows * channels * n)}})
    add(c);
}

// Ops on images between convolutions.
void add_images() {
  const int64_t batch = pick(8, 1), channels = pick(64, 4), side = pick(56, 4),
                pixels = pick(128, 3);
  const CaseInput images{{batch, channels, side, side}};
  const CaseInput half{{batch, channels, side / 2, side / 2}}, last{{batch, channels, 7, 7}};
  for (const Case& c : std::vector<Case>{
           {"images/pad", "pad", {images}, [](In x) { return pad(x[0], {1, 1, 1, 1}); }, {1}},
           {"images/pixel_shuffle",
            "pixel_shuffle",
            {images},
            [](In x) { return pixel_shuffle(x[0], 2); },
            {2}},
           {"images/pixel_unshuffle",
            "pixel_unshuffle",
            {images},
            [](In x) { return pixel_unshuffle(x[0], 2); },
            {2}},
           {"images/nearest",
            "nearest",
            {half},
            [=](In x) {
              return interpolate(x[0], {side / 2 * 2, side / 2 * 2},
                                 {.mode = Interpolation::Nearest});
            },
            {side / 2 * 2}},
           {"images/cross_entropy",
            "cross_entropy",
            {{{pick(4, 1), 21, pixels, pixels}}, {{pick(4, 1), pixels, pixels}, 21}},
            [](In x) { return cross_entropy(x[0], x[1]); }},
           {"images/cat", "cat", {images, images}, [](In x) { return cat({x[0], x[1]}, 1); }},
           {"images/sum", "sum_images", {images}, [](In x) { return sum(x[0], {2, 3}); }},
           {"images/mean", "mean_images", {images}, [](In x) { return mean(x[0], {2, 3}); }},
           {"images/mean_7x7", "mean_images", {last}, [](In x) { return mean(x[0], {2, 3}); }},
           {"images/prelu", "prelu", {images, {{channels}}}, [](In x) {
              return prelu(x[0], x[1]);
            }}})
    add(c);
}

// Shapes scaled by k: with `all`, every size except 1, which preserves equal sizes and multiples;
// else only leading sizes equal to the first input's, for rows with fixed sizes.
std::vector<Shape> scaled(const tests::OpCase& c, int64_t k, bool all) {
  std::vector<Shape> shapes = tests::shapes(c);
  const int64_t leading = shapes[0].rank > 0 ? shapes[0][0] : 0;
  for (Shape& s : shapes)
    for (int d = 0; d < s.rank; ++d)
      if (all ? s[d] != 1 : d == 0 && s[d] == leading && leading != 1) s[d] *= k;
  return shapes;
}

// The largest shapes that the row accepts with at most `most` elements per input and result; at
// least its own.
std::vector<Shape> large_shapes(const tests::OpCase& c, int64_t most) {
  const NoGrad off;
  // Scaling all sizes would scale the windows, too: such rows grow only in the batch.
  const bool windows =
      c.op.find("conv") != std::string::npos || c.op.find("pool") != std::string::npos;
  const auto fits = [&](const std::vector<Shape>& shapes) {
    if (std::ranges::any_of(shapes, [&](const Shape& s) { return s.size() > most; })) return false;
    try {
      return c.run(tests::make_inputs(c, f32, false, shapes)).numel() <= most;
    } catch (const Error&) {
      return false;
    }
  };
  for (const bool all : {true, false}) {
    if (all && windows) continue;
    int64_t k = 1;
    while (k < most && fits(scaled(c, 2 * k, all))) k *= 2;
    if (k > 1) return scaled(c, k, all);
  }
  return tests::shapes(c);
}

// True if the row records an op. (A cast to the dtype of x returns x.)
bool recorded(const tests::OpCase& c) {
  const Tensor y = c.run(tests::make_inputs(c, f32, true));
  return y.requires_grad() && !y.is_leaf();
}

void add_row(const tests::OpCase& c) {
  const auto shapes = settings().smoke ? tests::shapes(c) : large_shapes(c, 1 << 18);
  for (const bool back : {false, true}) {
    if (back && !(c.differentiable && recorded(c))) continue;
    std::vector<Variant> variants;
    for (const DType dtype : {f32, f16, bf16}) {
      if (dtype != f32 && !c.half) continue;
      const auto inputs = [=] { return tests::make_inputs(c, dtype, back, shapes); };
      variants.push_back(
          {dtype, "", 0,
           [=] {
             const auto x = inputs();
             return moved_bytes(x, c.run(x), back);
           },
           [=] { return back ? backward(c.run, inputs()) : forward(c.run, inputs()); }});
    }
    compare("rows/" + c.name() + (back ? "/backward" : "/forward"), variants);
  }
}

void declare() {
#ifdef MIXTAPE_TORCH
  on_threads(peers::set_threads);
#endif
  add_common();
  if (!settings().full && !settings().smoke) return;
  add_images();
  for (const tests::OpCase& c : tests::op_cases())
    if (!c.composite) add_row(c);  // (composite rows are timed as gradients of others)
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) { return mixtape::bench::run(argc, argv, mixtape::bench::declare); }
