// Products and ops made of them: linear layers, convolutions, attention. Our kernels add a bias to
// sums in f32; ONNX adds it in the dtype of the product.

#include "autograd/ops.h"
#include "autograd/ops/attributes.h"
#include "core/check.h"
#include "core/format.h"
#include "train/onnx/builder.h"

namespace mixtape::train::onnx {
using namespace internal;
namespace {

Name activated(const OpCall& c, const Name& x, Activation activation) {
  if (activation == Activation::None) return x;
  if (activation == Activation::Relu) return c.g.node("Relu", {x});
  return gelu(c.g, x, activation == Activation::GeluTanh);
}

// Adds the residual, input `i`, in the result's dtype, which may be wider than the product's, and
// applies the activation.
Name finished(const OpCall& c, Name y, size_t i, Activation activation) {
  y = c.g.cast(y, c.dtype());
  if (c.has(i)) y = c.g.node("Add", {y, c.in(i, c.dtype())});
  return activated(c, y, activation);
}

// W^T for Gemm, which reads W itself, transposed or not.
struct Weight {
  Name name;
  int64_t transposed = 1;
  static inline const io::OnnxAttribute turned = Sizes{1, 0};

  Weight(GraphBuilder& g, const Name& w) : name(w) {
    const io::OnnxNode* const maker = g.made_by(w);
    if (!maker || maker->op != "Transpose" || maker->attributes[0].second != turned) return;
    name = maker->inputs[0];
    transposed = 0;
  }
};

Name linear(const OpCall& c) {
  const DType in = c.tensor(0).dtype();
  const Weight w(c.g, c.in(1));
  const Name y = c.g.node("Gemm", {c.in(0), w.name, c.in(2, in)}, {{"transB", w.transposed}});
  return finished(c, y, 3, c.argument<Activation>());
}

// A product. If its result is wider than its operands, sums are not rounded to the operands' dtype.
Name product(const OpCall& c, const Name& a, const Name& b, double alpha) {
  const Name y = c.g.node("MatMul", {c.g.cast(a, c.dtype()), c.g.cast(b, c.dtype())});
  return alpha == 1 ? y : c.g.node("Mul", {y, c.g.number(alpha, c.dtype())});
}
Name matmul(const OpCall& c) {
  return product(c, c.in(0), c.in(1), c.argument<MatmulOptions>().alpha);
}
Name addmm(const OpCall& c) {
  const DType in = c.tensor(1).dtype();
  const double alpha = c.argument<double>();
  if (c.tensor(1).rank() == 2)
    return c.g.node("Gemm", {c.in(1), c.in(2), c.in(0, in)}, {{"alpha", alpha}});
  const Name y = product(c, c.in(1), c.in(2), alpha);
  return c.has(0) ? c.g.node("Add", {y, c.in(0, c.dtype())}) : y;
}
Name det(const OpCall& c) { return c.g.node("Det", {c.in(0, f32)}); }  // as runtimes have it
Name dot(const OpCall& c) { return product(c, c.in(0), c.in(1), 1); }

// The attributes of both kinds of convolutions, of images or volumes.
Attributes window_attributes(const ops::ConvGeometry& g) {
  const auto [size, stride, padding, dilation, groups] = g.window;
  Sizes sizes, strides, dilations, pads;
  if (g.of_volumes()) {
    sizes = {g.weight[2]};
    strides = {g.depth.stride}, pads = {g.depth.padding}, dilations = {g.depth.dilation};
  }
  for (int d = 0; d < 2; ++d) {
    sizes.push_back(size[d]);
    strides.push_back(stride[d]), pads.push_back(padding[d]), dilations.push_back(dilation[d]);
  }
  pads.insert(pads.end(), pads.begin(), pads.end());
  return {{"kernel_shape", sizes},
          {"strides", strides},
          {"pads", pads},
          {"dilations", dilations},
          {"group", groups}};
}

Name conv2d(const OpCall& c) {
  const auto& g = c.argument<ops::ConvGeometry>();
  const DType in = c.tensor(0).dtype();
  const Name y = c.g.node("Conv", {c.in(0), c.in(1), c.in(2, in)}, window_attributes(g));
  return finished(c, y, 3, g.activation);
}

Name conv_transpose2d(const OpCall& c) {
  const auto& g = c.argument<ops::ConvGeometry>();
  const DType in = c.tensor(0).dtype();
  Attributes attributes = window_attributes(g);
  Sizes more;
  const auto add = [&](int d, int64_t size, int64_t stride, int64_t padding, int64_t dilation) {
    const int64_t whole = (g.output[d] - 1) * stride + dilation * (size - 1) + 1;
    more.push_back(g.input[d] - (whole - 2 * padding));
    check(more.back() == 0 || more.back() < stride,
          "ONNX has no output padding of {} beside a stride of {}", more.back(), stride);
  };
  const kernels::Window& w = g.window;
  if (g.of_volumes()) add(2, g.weight[2], g.depth.stride, g.depth.padding, g.depth.dilation);
  for (int d = 0; d < 2; ++d)
    add(g.input.rank - 2 + d, w.size[d], w.stride[d], w.padding[d], w.dilation[d]);
  attributes.emplace_back("output_padding", more);
  return c.g.node("ConvTranspose", {c.in(0), c.in(1), c.in(2, in)}, attributes);
}

// Keys or values. MatMul broadcasts their leading dimensions to those of the queries, but neither
// positions nor features.
Name keys(const OpCall& c, size_t i) {
  const Shape &from = c.g.before_expand(c.in(i), c.shape(i)).shape, &to = c.shape(i);
  const bool leading = from.rank == to.rank && from[-1] == to[-1] && from[-2] == to[-2];
  return leading ? c.broadcast_input(i) : c.in(i);
}

// softmax(scale q kT + bias) v, with scores in f32. A query that may attend to no key gets zeros.
Name attention(const OpCall& c) {
  const auto& params = c.argument<ops::AttentionParams>();
  check(params.drop.p == 0, "ONNX has no attention with dropout: call eval()");
  const DType wide = accumulate_dtype(c.tensor(0).dtype());
  const int rank = c.tensor(1).rank();
  Sizes order;
  for (int d = 0; d < rank; ++d) order.push_back(d);
  std::swap(order[size_t(rank) - 1], order[size_t(rank) - 2]);
  const Name k = c.g.transpose(c.g.cast(keys(c, 1), wide), order);
  Name s = c.g.node("MatMul", {c.in(0, wide), k});
  s = c.g.node("Mul", {s, c.g.number(params.scale, wide)});
  const Name none = c.g.number(-INFINITY, wide), zero = c.g.number(0, wide);
  Name seen;  // true where a query may attend to a key
  if (params.causal)
    seen = c.g.constant(tril(ones({c.shape(0)[-2], c.shape(1)[-2]}, boolean, Device::cpu())));
  else if (c.has(3))
    seen = c.broadcast_input(3);
  if (!seen.empty()) s = c.g.node("Where", {seen, s, none}, {}, wide);
  if (c.has(4)) {
    s = c.g.node("Add", {s, c.g.cast(c.broadcast_input(4), wide)});
    seen = c.g.node("Not", {c.g.node("Equal", {s, none}, {}, boolean)});
  }
  Name p = c.g.node("Softmax", {s}, {{"axis", int64_t{-1}}});
  if (!seen.empty() && !params.causal) p = c.g.node("Where", {seen, p, zero}, {}, wide);
  return c.g.node("MatMul", {c.g.cast(p, c.dtype()), c.g.cast(keys(c, 2), c.dtype())});
}

// The halves of each head, turned by the angles of its position.
Name rotary_embedding(const OpCall& c) {
  const DType wide = accumulate_dtype(c.dtype());
  const auto both =
      c.g.nodes("Split", {c.in(0, wide)}, 2, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{2}}});
  const Name cosine = c.in(1, wide), sine = c.in(2, wide);
  const auto mul = [&](const Name& a, const Name& b) { return c.g.node("Mul", {a, b}); };
  const bool back = c.argument<bool>();
  const Name first = c.g.node(back ? "Add" : "Sub", {mul(both[0], cosine), mul(both[1], sine)});
  const Name second = c.g.node(back ? "Sub" : "Add", {mul(both[1], cosine), mul(both[0], sine)});
  return c.g.node("Concat", {first, second}, {{"axis", int64_t{-1}}});
}

constexpr TranslationRow rows_of_products[] = {
    {"addmm", addmm},
    {"conv2d", conv2d},
    {"conv_transpose2d", conv_transpose2d},
    {"det", det},
    {"dot", dot},
    {"linear", linear},
    {"matmul", matmul},
    {"rotary_embedding", rotary_embedding},
    {"scaled_dot_product_attention", attention},
};

}  // namespace

std::span<const TranslationRow> product_rows() { return rows_of_products; }

}  // namespace mixtape::train::onnx
