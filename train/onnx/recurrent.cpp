// Recurrent layers. Our ops get the input's share of the gates from a linear layer; ONNX's contain
// that layer, which is found in the graph. They compute in f32, in which our cells keep their
// state.

#include "autograd/ops.h"
#include "autograd/ops/attributes.h"
#include "core/format.h"
#include "train/onnx/builder.h"

namespace mixtape::train::onnx {
namespace {

// The rows of a weight or bias [gates n, ...] in ONNX's order of gates, with a leading 1.
Name in_order(const OpCall& c, const Name& w, const Sizes& order, const Shape& shape) {
  Name all = w;
  if (order.size() > 1) {
    const auto gates = c.g.nodes("Split", {w}, order.size(),
                                 {{"axis", int64_t{0}}, {"num_outputs", int64_t(order.size())}});
    std::vector<Name> parts;
    for (const int64_t gate : order) parts.push_back(gates[size_t(gate)]);
    all = c.g.node("Concat", parts, {{"axis", int64_t{0}}});
  }
  return c.g.reshape(all, shape, internal::joined({1}, shape));
}

// The x [t, b, in], W [gates n, in] and optional bias from which the gates [t, b, gates n] were
// made.
struct InputLayer {
  Name x, weight, bias;
  int64_t size;

  InputLayer(const OpCall& c) {
    const Shape& gates = c.shape(0);
    const Origin sums = c.g.before_reshape(c.in(0), gates);
    const io::OnnxNode* const gemm = c.g.made_by(sums.name);
    const Shape rows{gates[0] * gates[1], gates[2]};
    if (gemm && gemm->op == "Gemm" && sums.shape == rows) {
      const Origin in = c.g.before_reshape(gemm->inputs[0], {});
      if (in.shape.rank == 3 && in.shape[0] == gates[0] && in.shape[1] == gates[1] &&
          std::get<int64_t>(gemm->attributes[0].second) == 1) {
        x = in.name, weight = gemm->inputs[1], size = in.shape[2];
        if (gemm->inputs.size() > 2) bias = gemm->inputs[2];
        return;
      }
    }
    // If no layer is found, the gates themselves, times the identity.
    x = c.in(0), size = gates[2];
    weight = c.g.constant(eye(size, c.tensor(0).dtype(), Device::cpu()));
  }
};

// The state at the start, with a leading 1; "" if it is absent.
Name start_of(const OpCall& c, size_t i, DType wide) {
  if (!c.has(i)) return {};
  const Shape& s = c.shape(i);
  return c.g.reshape(c.in(i, wide), s, {1, s[0], s[1]});
}

// One op over all steps; `order` gives the place of each of ONNX's gates in ours.
Name recurrent(const OpCall& c, const Sizes& order, Attributes attributes) {
  const auto& params = c.argument<ops::RecurrentParams>();
  const DType wide = accumulate_dtype(c.dtype());
  const InputLayer in(c);
  const int64_t t = c.shape(0)[0], b = c.shape(0)[1], n = c.shape(1)[1], all = c.shape(0)[2];
  const auto bias = [&](const Name& given) {
    return given.empty() ? c.g.constant(zeros({all}, wide, Device::cpu())) : c.g.cast(given, wide);
  };
  const Name both =
      c.g.node("Concat",
               {in_order(c, bias(in.bias), order, {all}), in_order(c, bias(c.in(2)), order, {all})},
               {{"axis", int64_t{1}}});
  attributes.emplace_back("hidden_size", n);
  if (params.reverse) attributes.emplace_back("direction", std::string("reverse"));
  const bool has_cell = c.op() == "lstm";
  const auto y = c.g.nodes(
      c.to,
      {c.g.cast(in.x, wide), in_order(c, c.g.cast(in.weight, wide), order, {all, in.size}),
       in_order(c, c.in(1, wide), order, {all, n}), both, Name(), start_of(c, 3, wide),
       has_cell ? start_of(c, 4, wide) : Name()},
      has_cell ? 3 : 2, std::move(attributes));
  const Name steps = c.g.cast(c.g.reshape(y[0], {t, 1, b, n}, {t, b, n}), c.dtype());
  if (params.state)
    c.names.bind(params.state, c.g.reshape(y.back(), {1, b, n}, params.state.shape()));
  if (!has_cell) return steps;
  return c.g.node("Concat", {steps, c.g.cast(y.back(), c.dtype())}, {{"axis", int64_t{0}}});
}

Name lstm(const OpCall& c) { return recurrent(c, {0, 3, 1, 2}, {}); }  // i, o, f, g
Name gru(const OpCall& c) {                                            // z, r, n
  return recurrent(c, {1, 0, 2}, {{"linear_before_reset", int64_t{1}}});
}
Name rnn_tanh(const OpCall& c) { return recurrent(c, {0}, {}); }
Name rnn_relu(const OpCall& c) {
  return recurrent(c, {0}, {{"activations", std::vector<std::string>{"Relu"}}});
}

constexpr TranslationRow rows_of_cells[] = {
    {"gru", gru, "GRU"},
    {"lstm", lstm, "LSTM"},
    {"rnn_relu", rnn_relu, "RNN"},
    {"rnn_tanh", rnn_tanh, "RNN"},
};

}  // namespace

std::span<const TranslationRow> recurrent_rows() { return rows_of_cells; }

}  // namespace mixtape::train::onnx
