#pragma once
// Recurrent layers over sequences (RNN, LSTM, GRU) and single steps (RNNCell, LSTMCell, GRUCell).
// All weights and biases start uniform within 1 / sqrt(hidden).

#include <array>
#include <concepts>
#include <vector>

#include "autograd/ops.h"
#include "nn/module.h"

namespace mixtape::nn {

// The weights of one direction of a layer, or of a cell. Gates: LSTM i, f, g, o; GRU r, z, n; RNN
// one.
struct RecurrentWeights {
  Tensor weight_ih;         // [gates hidden, in]
  Tensor weight_hh;         // [gates hidden, hidden]
  Tensor bias_ih, bias_hh;  // [gates hidden], or none

  // Errors name `layer`.
  RecurrentWeights(std::string_view layer, int64_t in, int64_t hidden, int64_t gates, bool bias);
};

struct RecurrentLayerOptions {  // LSTM(3, 4, {.num_layers = 2}), or LSTM(3, 4, 2)
  int64_t num_layers = 1;
  bool bias = true;
  bool batch_first = false;  // [b, t, ...] instead of [t, b, ...]; states stay [layers, b, hidden]
  double dropout = 0;        // in training, between layers
  bool bidirectional = false;
};
struct RecurrentCellOptions {
  bool bias = true;
};
enum class Nonlinearity { Tanh, Relu };

// The result of a layer: output [t, b, hidden], or [t, b, 2 hidden] if bidirectional, and last
// states [layers, b, hidden] or [2 layers, b, hidden]. There is no b if the input has none.
struct RnnOutput {
  Tensor output, h_n;
  std::array<Tensor*, 2> tensors() { return {&output, &h_n}; }
};
struct LstmOutput {
  Tensor output, h_n, c_n;
  std::array<Tensor*, 3> tensors() { return {&output, &h_n, &c_n}; }
};
// An LSTM's hidden and cell state; absent tensors stand for zeros.
struct LstmState {
  Tensor h, c;
  std::array<Tensor*, 2> tensors() { return {&h, &c}; }
};

struct RecurrentKind;

// The base of the three layers: weights by layer and direction, and the loop over them.
class RecurrentLayers {
 public:
  // Layer 0, its reverse direction if there is one, layer 1, ...
  std::vector<RecurrentWeights> weights;

 protected:
  RecurrentLayers(std::string_view layer, int64_t in, int64_t hidden, int64_t gates,
                  const RecurrentLayerOptions& o);
  // weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ...
  void list_weights(Fields& fields);
  // Sets c_n if the op's result ends with it.
  LstmOutput run(const Tensor& x, const LstmState& start, const Tensor& lengths,
                 const RecurrentKind& kind, bool training) const;

 private:
  int64_t in_, hidden_;
  RecurrentLayerOptions options_;
};

// h = tanh(W x + b + V h + c), or relu. x is [t, b, in], or [t, in] for one sequence; h_0 is
// [layers, b, hidden], or none for zeros. Returns {output, h_n}. Parameters are called weight_ih_l0
// [hidden, in], weight_hh_l0 [hidden, hidden], bias_ih_l0 and bias_hh_l0 [hidden],
// weight_ih_l0_reverse. With lengths, i64 [b] from 1 to t, sequence i ends after lengths[i] steps,
// as if packed in PyTorch: its last state is taken there, the reverse direction starts there, and
// later outputs are 0. Under Autocast an LSTM's c_n and a GRU's h_n are f32, and so are the states
// of their cells.
struct RNN : Module<RNN>, RecurrentLayers {
  RNN(int64_t in, int64_t hidden, const RecurrentLayerOptions& o = {},
      Nonlinearity f = Nonlinearity::Tanh)
      : RecurrentLayers("RNN", in, hidden, 1, o), f_(f) {}
  RNN(int64_t in, int64_t hidden, std::integral auto num_layers,
      Nonlinearity f = Nonlinearity::Tanh)
      : RNN(in, hidden, RecurrentLayerOptions{num_layers}, f) {}
  RnnOutput forward(const Tensor& x, const Tensor& h_0 = {}, const Tensor& lengths = {}) const;
  void list_fields(Fields& fields) override { list_weights(fields); }

 private:
  Nonlinearity f_;
};

// As RNN, with gates i, f, g, o: 4 hidden rows. Takes {h_0, c_0}, returns {output, h_n, c_n}.
struct LSTM : Module<LSTM>, RecurrentLayers {
  LSTM(int64_t in, int64_t hidden, const RecurrentLayerOptions& o = {})
      : RecurrentLayers("LSTM", in, hidden, 4, o) {}
  LSTM(int64_t in, int64_t hidden, std::integral auto num_layers, bool bias = true,
       bool batch_first = false, double dropout = 0, bool bidirectional = false)
      : LSTM(in, hidden, {num_layers, bias, batch_first, dropout, bidirectional}) {}
  LstmOutput forward(const Tensor& x, const LstmState& start = {},
                     const Tensor& lengths = {}) const;
  void list_fields(Fields& fields) override { list_weights(fields); }
};

// As RNN, with gates r, z, n: weights have 3 hidden rows.
struct GRU : Module<GRU>, RecurrentLayers {
  GRU(int64_t in, int64_t hidden, const RecurrentLayerOptions& o = {})
      : RecurrentLayers("GRU", in, hidden, 3, o) {}
  GRU(int64_t in, int64_t hidden, std::integral auto num_layers, bool bias = true,
      bool batch_first = false, double dropout = 0, bool bidirectional = false)
      : GRU(in, hidden, {num_layers, bias, batch_first, dropout, bidirectional}) {}
  RnnOutput forward(const Tensor& x, const Tensor& h_0 = {}, const Tensor& lengths = {}) const;
  void list_fields(Fields& fields) override { list_weights(fields); }
};

// One step of an RNN: x [b, in] or [in], h [b, hidden] or [hidden] (none: zeros) -> the next h.
struct RNNCell : Module<RNNCell>, RecurrentWeights {
  RNNCell(int64_t in, int64_t hidden, const RecurrentCellOptions& o = {},
          Nonlinearity f = Nonlinearity::Tanh)
      : RecurrentWeights("RNNCell", in, hidden, 1, o.bias), f_(f) {}
  Tensor forward(const Tensor& x, const Tensor& h = {}) const;
  MIXTAPE_FIELDS(weight_ih, weight_hh, bias_ih, bias_hh)

 private:
  Nonlinearity f_;
};

// One step of an LSTM: takes a state {h, c} (none: zeros) and returns the next one.
struct LSTMCell : Module<LSTMCell>, RecurrentWeights {
  LSTMCell(int64_t in, int64_t hidden, const RecurrentCellOptions& o = {})
      : RecurrentWeights("LSTMCell", in, hidden, 4, o.bias) {}
  LstmState forward(const Tensor& x, const LstmState& state = {}) const;
  MIXTAPE_FIELDS(weight_ih, weight_hh, bias_ih, bias_hh)
};

// One step of a GRU.
struct GRUCell : Module<GRUCell>, RecurrentWeights {
  GRUCell(int64_t in, int64_t hidden, const RecurrentCellOptions& o = {})
      : RecurrentWeights("GRUCell", in, hidden, 3, o.bias) {}
  Tensor forward(const Tensor& x, const Tensor& h = {}) const;
  MIXTAPE_FIELDS(weight_ih, weight_hh, bias_ih, bias_hh)
};

}  // namespace mixtape::nn
