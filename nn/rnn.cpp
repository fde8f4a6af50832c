#include "nn/rnn.h"

#include <cmath>
#include <limits>
#include <span>

#include "autograd/backward_state.h"
#include "core/check.h"
#include "core/format.h"
#include "nn/init.h"

namespace mixtape::nn {
using namespace internal;

struct RecurrentKind {
  // One direction of one layer, as in autograd/ops.h.
  Tensor (*op)(const Tensor& x, const RecurrentWeights& w, const LstmState& start,
               const RecurrentOptions& o);
  // The value of each gate in padding, which keeps the state from changing there.
  std::span<const double> padding_gates = {};
  bool carries_h = false;  // h is the state that the op carries in f32
};

namespace {

template <auto f>
Tensor without_cell(const Tensor& x, const RecurrentWeights& w, const LstmState& start,
                    const RecurrentOptions& o) {
  return f(x, w.weight_hh, w.bias_hh, start.h, o);
}
Tensor with_cell(const Tensor& x, const RecurrentWeights& w, const LstmState& start,
                 const RecurrentOptions& o) {
  return lstm(x, w.weight_hh, w.bias_hh, start.h, start.c, o);
}
constexpr double keep_cell[] = {-1e4, 1e4, 0, 0};  // i 0, f 1: the cell state stays
constexpr double keep_h[] = {0, 1e4, 0};           // z 1
constexpr double zero_state[] = {-std::numeric_limits<double>::infinity()};
constexpr RecurrentKind of_lstm{with_cell, keep_cell}, of_gru{without_cell<gru>, keep_h, true},
    of_tanh{without_cell<rnn_tanh>}, of_relu{without_cell<rnn_relu>, zero_state};
const RecurrentKind& of_rnn(Nonlinearity f) { return f == Nonlinearity::Tanh ? of_tanh : of_relu; }

// The input's share of the gates, for x [t, b, in].
Tensor gates_of(const Tensor& x, const RecurrentWeights& w) {
  if (!backward_state.by_example) return linear(x, w.weight_ih, w.bias_ih);
  return transpose(linear(transpose(x, 0, 1), w.weight_ih, w.bias_ih), 0, 1);
}

void check_state(const Tensor& t, const char* name, const Shape& wanted) {
  check(!t || t.shape() == wanted, "{} has shape {}, not {}", name, t ? t.shape() : wanted, wanted);
}
void check_complete(const LstmState& s) {
  check(bool(s.h) == bool(s.c), "a state of h and c lacks {}", s.h ? "c" : "h");
}

// One step of a cell. Returns h, in the op's dtype, and the state, which may be wider.
LstmState step(const Tensor& x, const RecurrentWeights& w, const LstmState& start,
               const RecurrentKind& kind) {
  check(x.rank() == 1 || x.rank() == 2, "the input has shape {}, not [b, {}] or [{}]", x.shape(),
        w.weight_ih.size(1), w.weight_ih.size(1));
  const Shape shape = internal::with_size(x.shape(), -1, w.weight_hh.size(1));
  check_state(start.h, "h", shape);
  check_state(start.c, "c", shape);
  const auto batched = [&](const Tensor& t) { return t && t.rank() == 1 ? unsqueeze(t, 0) : t; };
  const auto as_given = [&](const Tensor& t) { return x.rank() == 1 ? squeeze(t, 0) : t; };
  const Tensor gates = linear(batched(x), w.weight_ih, w.bias_ih);
  Tensor last;
  const Tensor y =
      kind.op(unsqueeze(gates, 0), w, {batched(start.h), batched(start.c)}, {.last_state = &last});
  return {as_given(select(y, 0, 0)), as_given(last)};
}

// Sequences [t, b, ...] of different lengths.
struct Lengths {
  Tensor last;      // i64 [b]: the last step of each
  Tensor column;    // i64 [b]: 0, 1, ...
  Tensor backward;  // i64 [t, b]: the steps of each from its end to its start, then padding
  Tensor padding;   // bool [t, b, 1]

  Lengths(const Tensor& given, int64_t t, int64_t b, Device device) {
    check(is_integer(given.dtype()) && given.shape() == Shape{b},
          "lengths are {} {}, not integers {}", given.dtype(), given.shape(), Shape{b});
    const Tensor wide = given.to(i64);
    if (b > 0) {
      const Tensor here = wide.to(Device::cpu());  // one wait instead of two
      const double least = min(here).item(), most = max(here).item();
      check(least >= 1 && most <= static_cast<double>(t),
            "lengths must be from 1 to {}, got {} to {}", t, least, most);
    }
    const Tensor lengths = wide.to(device);
    const auto count = [&](int64_t n) { return arange(0, static_cast<double>(n), 1, i64, device); };
    const Tensor step = expand(unsqueeze(count(t), 1), {t, b});
    last = lengths - 1;
    column = count(b);
    backward = where(step < lengths, last - step, step);
    padding = unsqueeze(step >= lengths, 2);
  }
  Tensor reversed(const Tensor& x) const { return index(x, {backward, column}); }
  Tensor at_last(const Tensor& x) const { return index(x, {last, column}); }
  // The gates with those in padding replaced.
  Tensor pad_gates(const Tensor& gates, const RecurrentKind& kind) const {
    const int64_t n = int64_t(kind.padding_gates.size());
    if (n == 0) return gates;
    const Tensor fill = from(kind.padding_gates, {n, 1}, gates.dtype());
    const Shape by_gate = {gates.size(0), gates.size(1), n, gates.size(2) / n};
    return where(unsqueeze(padding, 3), fill.to(gates.device()), gates.reshape(by_gate))
        .reshape(gates.shape());
  }
};

}  // namespace

RecurrentWeights::RecurrentWeights(std::string_view layer, int64_t in, int64_t hidden,
                                   int64_t gates, bool bias) {
  const Scope scope(layer);
  check(in > 0 && hidden > 0, "sizes must be positive: in {}, hidden {}", in, hidden);
  const double bound = 1 / std::sqrt(static_cast<double>(hidden));
  // (All sizes at first, since their product may overflow: Shape checks it.)
  const auto uniform = [&](const Shape& shape) {
    return parameter(flatten(init::uniform_(empty(shape), -bound, bound), 0, 1));
  };
  weight_ih = uniform({gates, hidden, in});
  weight_hh = uniform({gates, hidden, hidden});
  if (!bias) return;
  bias_ih = uniform({gates, hidden});
  bias_hh = uniform({gates, hidden});
}

RecurrentLayers::RecurrentLayers(std::string_view layer, int64_t in, int64_t hidden, int64_t gates,
                                 const RecurrentLayerOptions& o)
    : in_(in), hidden_(hidden), options_(o) {
  const Scope scope(layer);
  check(0 < o.num_layers && o.num_layers <= 65536, "num_layers must be from 1 to 65536, got {}",
        o.num_layers);
  check(0 <= o.dropout && o.dropout <= 1, "dropout must be from 0 to 1, got {}", o.dropout);
  const int64_t directions = o.bidirectional ? 2 : 1;
  for (int64_t i = 0; i < o.num_layers * directions; ++i)
    weights.emplace_back(layer, i < directions ? in : directions * hidden, hidden, gates, o.bias);
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

LstmOutput RecurrentLayers::run(const Tensor& input, const LstmState& start, const Tensor& lengths,
                                const RecurrentKind& kind, bool training) const {
  const auto& o = options_;
  check(input.rank() == 2 || input.rank() == 3, "the input has shape {}, not [{}, {}] or [t, {}]",
        input.shape(), o.batch_first ? "b, t" : "t, b", in_, in_);
  check(input.size(-1) == in_, "the input has {} features, the layer takes {}", input.size(-1),
        in_);
  const bool batched = input.rank() == 3, swapped = batched && o.batch_first;
  Tensor x = !batched ? unsqueeze(input, 1) : swapped ? transpose(input, 0, 1) : input;
  const int64_t steps = x.size(0), count = static_cast<int64_t>(weights.size());
  const Shape state = batched ? Shape{count, x.size(1), hidden_} : Shape{count, hidden_};
  check_state(start.h, "h_0", state);
  check_state(start.c, "c_0", state);
  check(!lengths || batched, "lengths need a batch, got an input of shape {}", input.shape());
  std::optional<Lengths> sequences;
  if (lengths) {
    sequences.emplace(lengths, steps, x.size(1), x.device());
    x = masked_fill(x, sequences->padding, 0);  // NaN there times a gradient of 0 would be NaN
  }

  std::vector<Tensor> h_n, c_n;
  for (int64_t i = 0; i < count;) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction <= int64_t{o.bidirectional}; ++direction, ++i) {
      const RecurrentWeights& w = weights[static_cast<size_t>(i)];
      const auto own = [&](const Tensor& t) {  // of this direction, [b, hidden]
        return !t ? t : batched ? select(t, 0, i) : narrow(t, 0, i, 1);
      };
      const bool reverse = sequences && direction == 1;  // by an index, so that the op runs forward
      Tensor gates = gates_of(reverse ? sequences->reversed(x) : x, w);
      if (sequences) gates = sequences->pad_gates(gates, kind);
      Tensor last;
      Tensor y = kind.op(gates, w, {own(start.h), own(start.c)},
                         {.reverse = direction == 1 && !reverse, .last_state = &last});
      if (y.size(0) > steps) {
        c_n.push_back(last);
        y = narrow(y, 0, 0, steps);
      }
      h_n.push_back(kind.carries_h ? last
                    : sequences    ? sequences->at_last(y)
                                   : select(y, 0, direction ? 0 : steps - 1));
      outputs.push_back(reverse ? sequences->reversed(y) : y);
    }
    x = outputs.size() == 1 ? outputs[0] : cat(outputs, -1);
    if (training && o.dropout > 0 && i < count) x = dropout(x, o.dropout);
  }
  if (sequences) x = masked_fill(x, sequences->padding, 0);
  const auto joined = [&](const std::vector<Tensor>& states) {
    if (states.empty()) return Tensor();
    return batched ? stack(states) : cat(states);
  };
  return {!batched ? squeeze(x, 1) : swapped ? transpose(x, 0, 1) : x, joined(h_n), joined(c_n)};
}

RnnOutput RNN::forward(const Tensor& x, const Tensor& h_0, const Tensor& lengths) const {
  const LstmOutput y = run(x, {h_0, {}}, lengths, of_rnn(f_), is_training());
  return {y.output, y.h_n};
}
LstmOutput LSTM::forward(const Tensor& x, const LstmState& start, const Tensor& lengths) const {
  check_complete(start);
  return run(x, start, lengths, of_lstm, is_training());
}
RnnOutput GRU::forward(const Tensor& x, const Tensor& h_0, const Tensor& lengths) const {
  const LstmOutput y = run(x, {h_0, {}}, lengths, of_gru, is_training());
  return {y.output, y.h_n};
}

Tensor RNNCell::forward(const Tensor& x, const Tensor& h) const {
  return step(x, *this, {h, {}}, of_rnn(f_)).h;
}
LstmState LSTMCell::forward(const Tensor& x, const LstmState& state) const {
  check_complete(state);
  return step(x, *this, state, of_lstm);
}
Tensor GRUCell::forward(const Tensor& x, const Tensor& h) const {
  return step(x, *this, {h, {}}, of_gru).c;
}

}  // namespace mixtape::nn
