#include "nn/rnn.h"

#include <cmath>

#include "core/check.h"
#include "core/format.h"
#include "nn/init.h"

namespace mixtape::nn {
namespace {

Tensor lstm_op(const Tensor& x, const RecurrentWeights& w, const LstmState& start, bool reverse) {
  return lstm(x, w.weight_hh, w.bias_hh, start.h, start.c, {.reverse = reverse});
}
Tensor gru_op(const Tensor& x, const RecurrentWeights& w, const LstmState& start, bool reverse) {
  return gru(x, w.weight_hh, w.bias_hh, start.h, {.reverse = reverse});
}
template <Nonlinearity f>
Tensor rnn_op(const Tensor& x, const RecurrentWeights& w, const LstmState& start, bool reverse) {
  return (f == Nonlinearity::Tanh ? rnn_tanh : rnn_relu)(x, w.weight_hh, w.bias_hh, start.h,
                                                         {.reverse = reverse});
}
auto* rnn_op_of(Nonlinearity f) {
  return f == Nonlinearity::Tanh ? rnn_op<Nonlinearity::Tanh> : rnn_op<Nonlinearity::Relu>;
}

void check_state(const Tensor& t, const char* name, const Shape& wanted) {
  check(!t || t.shape() == wanted, "{} has shape {}, not {}", name, t ? t.shape() : wanted, wanted);
}
void check_complete(const LstmState& s) {
  check(bool(s.h) == bool(s.c), "a state of h and c lacks {}", s.h ? "c" : "h");
}

// A cell is a sequence of one step: the op's result [1, b, hidden], of an LSTM [2, b, hidden].
template <class Op>
Tensor step(const Tensor& x, const RecurrentWeights& w, const LstmState& state, Op op) {
  check(x.rank() == 1 || x.rank() == 2, "the input has shape {}, not [b, {}] or [{}]", x.shape(),
        w.weight_ih.size(1), w.weight_ih.size(1));
  Shape shape = x.shape();
  shape[-1] = w.weight_hh.size(1);
  check_state(state.h, "h", shape);
  check_state(state.c, "c", shape);
  const auto batched = [&](const Tensor& t) { return t && t.rank() == 1 ? unsqueeze(t, 0) : t; };
  const Tensor gates = linear(batched(x), w.weight_ih, w.bias_ih);
  return op(unsqueeze(gates, 0), w, {batched(state.h), batched(state.c)}, false);
}
// Part k of that result, of the shape of the input.
Tensor part(const Tensor& y, int64_t k, const Tensor& x) {
  const Tensor t = select(y, 0, k);
  return x.rank() == 1 ? squeeze(t, 0) : t;
}

}  // namespace

RecurrentWeights::RecurrentWeights(int64_t in, int64_t hidden, int64_t gates, bool bias) {
  check(in > 0 && hidden > 0, "sizes must be positive: in {}, hidden {}", in, hidden);
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));
  const auto uniform = [&](const Shape& shape) {
    return parameter(init::uniform_(empty(shape), -bound, bound));
  };
  weight_ih = uniform({gates * hidden, in});
  weight_hh = uniform({gates * hidden, hidden});
  if (!bias) return;
  bias_ih = uniform({gates * hidden});
  bias_hh = uniform({gates * hidden});
}

RecurrentLayers::RecurrentLayers(int64_t in, int64_t hidden, int64_t gates,
                                 const RecurrentLayerOptions& o)
    : in_(in), hidden_(hidden), options_(o) {
  check(o.num_layers > 0, "{} layers", o.num_layers);
  check(0 <= o.dropout && o.dropout <= 1, "a dropout probability of {}", o.dropout);
  const int64_t directions = o.bidirectional ? 2 : 1;
  for (int64_t i = 0; i < o.num_layers * directions; ++i)
    weights.emplace_back(i < directions ? in : directions * hidden, hidden, gates, o.bias);
}

void RecurrentLayers::list_weights(Fields& fields) {
  const size_t directions = options_.bidirectional ? 2 : 1;
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string end =
        "_l" + std::to_string(i / directions) + (i % directions ? "_reverse" : "");
    fields.add("weight_ih" + end, weights[i].weight_ih);
    fields.add("weight_hh" + end, weights[i].weight_hh);
    fields.add("bias_ih" + end, weights[i].bias_ih);
    fields.add("bias_hh" + end, weights[i].bias_hh);
  }
}

LstmOutput RecurrentLayers::run(const Tensor& input, const LstmState& start, Op op,
                                bool training) const {
  const auto& o = options_;
  check(input.rank() == 2 || input.rank() == 3, "the input has shape {}, not {} or [t, {}]",
        input.shape(), o.batch_first ? "[b, t, in]" : "[t, b, in]", in_);
  check(input.size(-1) == in_, "the input has {} features, the layer takes {}", input.size(-1),
        in_);
  const bool batched = input.rank() == 3, swapped = batched && o.batch_first;
  Tensor x = !batched ? unsqueeze(input, 1) : swapped ? transpose(input, 0, 1) : input;
  const int64_t steps = x.size(0), count = static_cast<int64_t>(weights.size());
  const Shape state = batched ? Shape{count, x.size(1), hidden_} : Shape{count, hidden_};
  check_state(start.h, "h_0", state);
  check_state(start.c, "c_0", state);

  std::vector<Tensor> h_n, c_n;
  for (int64_t i = 0; i < count;) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction <= int64_t{o.bidirectional}; ++direction, ++i) {
      const RecurrentWeights& w = weights[static_cast<size_t>(i)];
      const auto own = [&](const Tensor& t) {  // of this direction, [b, hidden]
        return !t ? t : batched ? select(t, 0, i) : narrow(t, 0, i, 1);
      };
      const Tensor y =
          op(linear(x, w.weight_ih, w.bias_ih), w, {own(start.h), own(start.c)}, direction == 1);
      h_n.push_back(select(y, 0, direction ? 0 : steps - 1));
      if (y.size(0) > steps) c_n.push_back(select(y, 0, steps));
      outputs.push_back(y.size(0) > steps ? narrow(y, 0, 0, steps) : y);
    }
    x = outputs.size() == 1 ? outputs[0] : cat(outputs, -1);
    if (training && o.dropout > 0 && i < count) x = dropout(x, o.dropout);
  }
  const auto joined = [&](const std::vector<Tensor>& states) {
    if (states.empty()) return Tensor();
    return batched ? stack(states) : cat(states);
  };
  return {!batched ? squeeze(x, 1) : swapped ? transpose(x, 0, 1) : x, joined(h_n), joined(c_n)};
}

RnnOutput RNN::forward(const Tensor& x, const Tensor& h_0) const {
  const LstmOutput y = run(x, {h_0, {}}, rnn_op_of(f_), is_training());
  return {y.output, y.h_n};
}
LstmOutput LSTM::forward(const Tensor& x, const LstmState& start) const {
  check_complete(start);
  return run(x, start, lstm_op, is_training());
}
RnnOutput GRU::forward(const Tensor& x, const Tensor& h_0) const {
  const LstmOutput y = run(x, {h_0, {}}, gru_op, is_training());
  return {y.output, y.h_n};
}

Tensor RNNCell::forward(const Tensor& x, const Tensor& h) const {
  return part(step(x, *this, {h, {}}, rnn_op_of(f_)), 0, x);
}
LstmState LSTMCell::forward(const Tensor& x, const LstmState& state) const {
  check_complete(state);
  const Tensor y = step(x, *this, state, lstm_op);
  return {part(y, 0, x), part(y, 1, x)};
}
Tensor GRUCell::forward(const Tensor& x, const Tensor& h) const {
  return part(step(x, *this, {h, {}}, gru_op), 0, x);
}

}  // namespace mixtape::nn
