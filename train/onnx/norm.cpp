// Softmax and normalisation. Statistics are f32, as in our kernels.

#include "autograd/ops.h"
#include "autograd/ops/attributes.h"
#include "core/check.h"
#include "core/format.h"
#include "train/onnx/builder.h"

namespace mixtape::train::onnx {
namespace {

Name softmax_of_lines(const OpCall& c) {  // along dimension 1
  return c.g.node(c.to, {c.in(0, c.dtype())}, {{"axis", int64_t{1}}});
}

// Input i in this dtype, or `value` [n] if it is absent.
Name or_filled(const OpCall& c, size_t i, double value, int64_t n, DType dtype) {
  return c.has(i) ? c.in(i, dtype) : c.g.constant(full({n}, value, dtype, Device::cpu()));
}

Name layer_norm(const OpCall& c) {
  const DType wide = accumulate_dtype(c.tensor(0).dtype());
  const Name w = or_filled(c, 1, 1, c.shape(0)[-1], wide);
  return c.g.node("LayerNormalization", {c.in(0, wide), w, c.in(2, wide)},
                  {{"axis", int64_t{-1}}, {"epsilon", c.argument<double>()}});
}

// A single op in ONNX from opset 23 on.
Name rms_norm(const OpCall& c) {
  const DType wide = accumulate_dtype(c.tensor(0).dtype());
  const Name x = c.in(0, wide);
  if (c.g.opset() >= 23) {
    const Name w = or_filled(c, 1, 1, c.shape(0)[-1], wide);
    const Attributes attributes{{"axis", int64_t{-1}}, {"epsilon", c.argument<double>()}};
    return c.g.node("RMSNormalization", {x, w}, attributes);
  }
  const Name square = c.g.node("Mul", {x, x});
  const Name mean = c.g.node("ReduceMean", {square, c.g.numbers({-1})}, {{"keepdims", int64_t{1}}});
  const Name moved = c.g.node("Add", {mean, c.g.number(c.argument<double>(), wide)});
  const Name y = c.g.node("Div", {x, c.g.node("Sqrt", {moved})});
  return c.has(1) ? c.g.node("Mul", {y, c.in(1, wide)}) : y;
}

// x [n, c, inner], whose groups of channels become the channels of an instance norm.
Name group_norm(const OpCall& c) {
  const DType wide = accumulate_dtype(c.tensor(0).dtype());
  const Shape& shape = c.shape(0);
  const int64_t groups = c.argument<int64_t>(), inner = shape[1] / groups * shape[2];
  const Shape apart{shape[0], groups, inner};
  const Name x = c.g.reshape(c.in(0, wide), shape, apart);
  const auto all = [&](double v) { return c.g.constant(full({groups}, v, wide, Device::cpu())); };
  const Name h =
      c.g.node("InstanceNormalization", {x, all(1), all(0)}, {{"epsilon", c.argument<double>()}});
  Name y = c.g.reshape(h, apart, shape);
  const auto by_channel = [&](size_t i) {
    return c.g.reshape(c.in(i, wide), {shape[1]}, {shape[1], 1});
  };
  if (c.has(1)) y = c.g.node("Mul", {y, by_channel(1)});
  return c.has(2) ? c.g.node("Add", {y, by_channel(2)}) : y;
}

// x [n, c, inner], or [n, c, ...] from which it was reshaped.
Name batch_norm(const OpCall& c) {
  const auto& params = c.argument<ops::BatchNormParams>();
  check(!params.training, "ONNX has batch norms only for evaluation: call eval()");
  const Shape& shape = c.shape(0);
  Origin x = c.g.before_reshape(c.in(0), shape);
  const bool by_channel = x.shape.rank > 2 && x.shape[0] == shape[0] && x.shape[1] == shape[1];
  if (!by_channel) x = {c.in(0), shape};
  const int64_t n = shape[1];
  const DType wide = accumulate_dtype(c.dtype());
  const Name y = c.g.node("BatchNormalization",
                          {c.g.cast(x.name, c.dtype()), or_filled(c, 1, 1, n, wide),
                           or_filled(c, 2, 0, n, wide), c.in(3, wide), c.in(4, wide)},
                          {{"epsilon", params.eps}});
  return c.g.reshape(y, x.shape, shape);
}

constexpr TranslationRow rows_of_norms[] = {
    {"batch_norm", batch_norm},
    {"group_norm", group_norm},
    {"instance_norm", group_norm},
    {"layer_norm", layer_norm},
    {"log_softmax", softmax_of_lines, "LogSoftmax"},
    {"rms_norm", rms_norm},
    {"softmax", softmax_of_lines, "Softmax"},
};

}  // namespace

std::span<const TranslationRow> norm_rows() { return rows_of_norms; }

}  // namespace mixtape::train::onnx
