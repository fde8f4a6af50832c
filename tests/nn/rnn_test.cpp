// Recurrent layers: names, initial values, and equality of a layer with its cells for all options.
#include <gtest/gtest.h>

#include <cmath>

#include "amp/autocast.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/stream.h"
#include "nn/nn.h"
#include "tests/support/errors.h"
#include "tests/support/moments.h"
#include "tests/support/values.h"

namespace mixtape {
namespace nn_rnn_test {

using test::error;
using test::expect_uniform;
using Names = std::vector<std::string>;

// A cell with the weights of a layer (direction) of a network.
template <class Cell>
Cell cell_of(Cell cell, const nn::RecurrentWeights& w) {
  cell.weight_ih = w.weight_ih;
  cell.weight_hh = w.weight_hh;
  cell.bias_ih = w.bias_ih;
  cell.bias_hh = w.bias_hh;
  return cell;
}

const Tensor& hidden(const Tensor& h) { return h; }
const Tensor& hidden(const nn::LstmState& s) { return s.h; }

TEST(Recurrent, NamesAndShapesArePyTorchs) {
  const nn::LSTM net(3, 5, {.num_layers = 2, .bidirectional = true});
  EXPECT_EQ(
      names(net.state_dict()),
      (Names{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_ih_l0_reverse",
             "weight_hh_l0_reverse", "bias_ih_l0_reverse", "bias_hh_l0_reverse", "weight_ih_l1",
             "weight_hh_l1", "bias_ih_l1", "bias_hh_l1", "weight_ih_l1_reverse",
             "weight_hh_l1_reverse", "bias_ih_l1_reverse", "bias_hh_l1_reverse"}));
  EXPECT_EQ(net.weights[0].weight_ih.shape(), (Shape{20, 3}));
  EXPECT_EQ(net.weights[2].weight_ih.shape(), (Shape{20, 10}));
  EXPECT_EQ(net.weights[3].weight_hh.shape(), (Shape{20, 5}));
  EXPECT_EQ(net.weights[3].bias_hh.shape(), (Shape{20}));
  EXPECT_EQ(names(nn::GRU(3, 5, {.bias = false}).state_dict()),
            (Names{"weight_ih_l0", "weight_hh_l0"}));
  EXPECT_EQ(nn::GRU(3, 5).weights[0].weight_ih.shape(), (Shape{15, 3}));
  EXPECT_EQ(nn::RNN(3, 5).weights[0].weight_ih.shape(), (Shape{5, 3}));
  EXPECT_EQ(names(nn::LSTMCell(3, 5).state_dict()),
            (Names{"weight_ih", "weight_hh", "bias_ih", "bias_hh"}));
}

TEST(Recurrent, StartsUniformByTheHiddenSize) {
  const Seed seed(1);
  const nn::LSTM lstm(30, 100, {.num_layers = 2});
  for (const Tensor& t : lstm.parameters()) {
    EXPECT_TRUE(t.requires_grad());
    expect_uniform(t, 0.1);
  }
  for (const Tensor& t : nn::GRUCell(30, 100).parameters()) expect_uniform(t, 0.1);
}

// The results of a layer of each kind, from its cell.
TEST(Recurrent, ALayerIsItsCells) {
  const Seed seed(2);
  const Tensor x = randn({4, 2, 3}, f64);
  nn::LSTM lstm(3, 5);
  lstm.to(f64);
  const nn::LSTMCell lstm_cell = cell_of(nn::LSTMCell(3, 5), lstm.weights[0]);
  const auto [y, h_n, c_n] = lstm(x);
  nn::LstmState state;
  for (int64_t t = 0; t < 4; ++t) {
    state = lstm_cell(select(x, 0, t), state);
    expect_near(select(y, 0, t), state.h, 1e-12);
  }
  expect_near(select(h_n, 0, 0), state.h, 1e-12);
  expect_near(select(c_n, 0, 0), state.c, 1e-12);

  const auto compare = [&](auto layer, const auto& new_cell) {
    layer.to(f64);
    const auto cell = cell_of(new_cell(), layer.weights[0]);
    const nn::RnnOutput out = layer(x);
    Tensor h;
    for (int64_t t = 0; t < 4; ++t) {
      h = cell(select(x, 0, t), h);
      expect_near(select(out.output, 0, t), h, 1e-12);
    }
    expect_near(select(out.h_n, 0, 0), h, 1e-12);
  };
  using enum nn::Nonlinearity;
  compare(nn::GRU(3, 5), [] { return nn::GRUCell(3, 5); });
  compare(nn::RNN(3, 5), [] { return nn::RNNCell(3, 5); });
  compare(nn::RNN(3, 5, {}, Relu), [] { return nn::RNNCell(3, 5, {}, Relu); });
}

TEST(Recurrent, LayersFollowOneAnother) {
  const Seed seed(3);
  const Tensor x = randn({4, 2, 3}, f64), h_0 = randn({4, 2, 5}, f64), c_0 = randn({4, 2, 5}, f64);
  nn::LSTM net(3, 5, {.num_layers = 2, .bidirectional = true});
  net.to(f64);
  const auto [y, h_n, c_n] = net(x, nn::LstmState{h_0, c_0});
  EXPECT_EQ(y.shape(), (Shape{4, 2, 10}));
  EXPECT_EQ(h_n.shape(), (Shape{4, 2, 5}));

  Tensor input = x;
  for (int64_t layer = 0; layer < 2; ++layer) {
    std::vector<Tensor> both;
    for (int64_t direction = 0; direction < 2; ++direction) {
      const int64_t i = layer * 2 + direction;
      const nn::LSTMCell cell = cell_of(nn::LSTMCell(3, 5), net.weights[size_t(i)]);
      nn::LstmState s{select(h_0, 0, i), select(c_0, 0, i)};
      std::vector<Tensor> out(4);
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t t = direction ? 3 - k : k;
        s = cell(select(input, 0, t), s);
        out[size_t(t)] = s.h;
      }
      expect_near(select(h_n, 0, i), s.h, 1e-12);
      expect_near(select(c_n, 0, i), s.c, 1e-12);
      both.push_back(stack(out));
    }
    input = cat(both, -1);
  }
  expect_near(y, input, 1e-12);
}

// blocks_reference_test compares with PyTorch's packed sequences.
TEST(Recurrent, LengthsLeaveNothingOfWhatIsBeyond) {
  const Seed seed(4);
  const Tensor lengths = from({3, 1}, {2}, i64);
  const auto check_layer = [&](auto net, const auto& start, DType dtype) {
    net.to(dtype);
    const Tensor x = randn({4, 2, 3}, dtype);
    const auto run = [&] {  // results and gradients
      auto y = net(x, start, lengths);
      std::vector<Tensor> all;
      for (const Tensor* t : y.tensors()) all.push_back(*t);
      Tensor loss = zeros({});
      for (const Tensor& t : all) loss = loss + sum(t.to(f32));
      for (const Tensor& g : grad({loss}, net.parameters())) all.push_back(g);
      return all;
    };
    const std::vector<Tensor> before = run();
    EXPECT_EQ(sum(abs(narrow(select(before[0], 1, 1), 0, 1, 3))).item(), 0);
    x.set(3 * 6, NAN);  // the first sequence's last step
    x.set(1 * 6 + 3, 3e4);
    const std::vector<Tensor> after = run();
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_EQ(to_vector(before[i]), to_vector(after[i])) << name(dtype) << ' ' << i;
  };
  for (const DType dtype : {f32, f16, bf16}) {
    check_layer(nn::LSTM(3, 5, {.bidirectional = true}), nn::LstmState(), dtype);
    check_layer(nn::GRU(3, 5, {.num_layers = 2, .bidirectional = true}), Tensor(), dtype);
    check_layer(nn::RNN(3, 5), Tensor(), dtype);
  }
}

// A growing relu state would reach infinity in the padding, and infinity times a gradient of zero
// would be NaN.
TEST(Recurrent, ReluStopsAtAnEnd) {
  for (const bool bidirectional : {false, true}) {
    nn::RNN net(1, 1, {.bidirectional = bidirectional}, nn::Nonlinearity::Relu);
    for (const auto& [name, p] : net.named_parameters()) {
      const NoGrad off;
      fill_(p, name.starts_with("bias") ? 0 : name.starts_with("weight_hh") ? 1e20 : 1);
    }
    const auto [y, last] =
        net(ones({4, 2, 1}) * from({0, 1}, {1, 2, 1}), Tensor(), from({4, 1}, {2}, i64));
    const int64_t ways = last.size(0);
    EXPECT_EQ(to_vector(sum(last, {0})), (std::vector<double>{0, double(ways)}));
    EXPECT_EQ(sum(abs(narrow(y, 0, 1, 3))).item(), 0);
    for (const Tensor& g : grad({sum(y)}, net.parameters()))
      EXPECT_TRUE(all(isfinite(g)).item()) << "one of " << ways;
  }
}

TEST(Recurrent, LengthsMayBeAnyIntegers) {
  const Seed seed(4);
  const nn::GRU gru(3, 5);
  const Tensor x = randn({4, 2, 3}), lengths = from({3, 1}, {2}, i64);
  for (const DType t : {i32, u8, i8, i16, u16, u32})
    EXPECT_TRUE(equal(gru(x, Tensor(), lengths.to(t)).output, gru(x, Tensor(), lengths).output));
}

TEST(Recurrent, LengthsMustFit) {
  const nn::GRU gru(3, 5);
  EXPECT_EQ(gru(zeros({4, 0, 3}), Tensor(), zeros({0}, i64)).output.shape(), (Shape{4, 0, 5}));
  const Tensor x = randn({4, 2, 3});
  EXPECT_EQ(error([&] { gru(x, Tensor(), from({4, 5}, {2}, i64)); }),
            "GRU: lengths must be from 1 to 4, got 4 to 5");
  EXPECT_EQ(error([&] { gru(x, Tensor(), from({0, 1}, {2}, i64)); }),
            "GRU: lengths must be from 1 to 4, got 0 to 1");
  EXPECT_EQ(error([&] { gru(x, Tensor(), from({1, 1}, {2})); }),
            "GRU: lengths are f32 [2], not integers [2]");
  EXPECT_EQ(error([&] { gru(x, Tensor(), from({1}, {1}, i64)); }),
            "GRU: lengths are i64 [1], not integers [2]");
  EXPECT_EQ(error([&] { gru(select(x, 1, 0), Tensor(), from({1}, {1}, i64)); }),
            "GRU: lengths need a batch, got an input of shape [4, 3]");
}

TEST(Recurrent, LengthsWaitOnceForTheirDevice) {
  const nn::GRU gru(3, 5);
  const Tensor x = ones({4, 2, 3}), lengths = from({4, 1}, {2}, i64);
  const auto waits = [&](const Tensor& lengths) {
    const int64_t before = synchronizations();
    gru(x, Tensor(), lengths);
    return synchronizations() - before;
  };
  waits(lengths);
  EXPECT_EQ(waits(lengths), x.device().is_host() ? 0 : 1);
  EXPECT_EQ(waits(lengths.to(Device::cpu())), 0);
}

TEST(Recurrent, BatchFirstAndNoBatch) {
  const Seed seed(4);
  nn::GRU net(3, 5, {.num_layers = 2}), first(3, 5, {.num_layers = 2, .batch_first = true});
  first.load_state_dict(net.state_dict());
  const Tensor x = randn({4, 2, 3}), h_0 = randn({2, 2, 5});
  const nn::RnnOutput a = net(x, h_0), b = first(transpose(x, 0, 1), h_0);
  expect_near(a.output, transpose(b.output, 0, 1), 1e-12);
  expect_near(a.h_n, b.h_n, 1e-12);
  for (const nn::GRU* layer : {&net, &first}) {  // batch_first means nothing for one sequence
    const nn::RnnOutput one = (*layer)(select(x, 1, 0), select(h_0, 1, 0));
    EXPECT_EQ(one.h_n.shape(), (Shape{2, 5}));
    for (int64_t i = 0; i < one.output.numel(); ++i)
      ASSERT_NEAR(one.output.at(i), select(a.output, 1, 0).at(i), 1e-6);
    for (int64_t i = 0; i < one.h_n.numel(); ++i)
      ASSERT_NEAR(one.h_n.at(i), select(a.h_n, 1, 0).at(i), 1e-6);
  }
  nn::LSTM lstm(3, 5);
  EXPECT_EQ(lstm(select(x, 1, 0)).c_n.shape(), (Shape{1, 5}));
  const nn::LSTMCell cell(3, 5);
  const nn::LstmState s = cell(randn({3}), nn::LstmState{randn({5}), randn({5})});
  EXPECT_EQ(s.h.shape(), Shape{5});
  EXPECT_EQ(s.c.shape(), Shape{5});
}

TEST(Recurrent, DropoutActsBetweenLayersInTraining) {
  nn::LSTM net(3, 5, {.num_layers = 2, .dropout = 0.5}), one(3, 5, {.dropout = 0.5});
  const Tensor x = randn({4, 2, 3});
  EXPECT_NE(to_vector(net(x).output), to_vector(net(x).output));
  EXPECT_EQ(to_vector(one(x).output), to_vector(one(x).output)) << "nothing after the last layer";
  net.eval();
  EXPECT_EQ(to_vector(net(x).output), to_vector(net(x).output));
  nn::LSTM all(3, 5, {.num_layers = 2, .dropout = 1});
  const auto before = to_vector(all(x).output), zeros_in = to_vector(all(x * 2.0).output);
  EXPECT_EQ(before, zeros_in) << "the second layer sees zeros";
}

TEST(Recurrent, Gradients) {
  const Seed seed(5);
  const auto check_gradients = [](auto net, const auto& run) {
    net.to(f64);
    std::vector<Tensor> leaves = net.parameters();
    leaves.push_back(nn::parameter(randn({3, 2, 2}, f64)));
    EXPECT_EQ(gradcheck([&](const std::vector<Tensor>& in) { return run(net, in.back()); }, leaves),
              "");
  };
  check_gradients(nn::LSTM(2, 3, {.num_layers = 2, .bidirectional = true}),
                  [](const nn::LSTM& net, const Tensor& x) {
                    const auto [y, h, c] = net(x);
                    return sum(square(y)) + sum(h * 3.0) + sum(square(c));
                  });
  check_gradients(nn::GRU(2, 3, {.bias = false, .batch_first = true}),
                  [](const nn::GRU& net, const Tensor& x) {
                    const auto [y, h] = net(x);
                    return sum(square(y)) + sum(square(h));
                  });
  check_gradients(nn::LSTMCell(2, 3), [](const nn::LSTMCell& net, const Tensor& x) {
    nn::LstmState s;
    for (int64_t t = 0; t < 3; ++t) s = net(select(x, 0, t), s);
    return sum(square(s.h)) + sum(s.c);
  });
}

TEST(Recurrent, CloneAndConversionReachTheWeights) {
  nn::GRU net(3, 5, {.num_layers = 2});
  const nn::GRU copy = net.clone();
  EXPECT_NE(copy.weights[1].weight_hh.storage(), net.weights[1].weight_hh.storage());
  const Tensor x = randn({4, 2, 3});
  EXPECT_EQ(to_vector(copy(x).output), to_vector(net(x).output));
  net.to(bf16);
  EXPECT_EQ(net.weights[1].weight_hh.dtype(), bf16);
  EXPECT_EQ(net(x.to(bf16)).output.dtype(), bf16);
}

TEST(Recurrent, ErrorsNameBothSizes) {
  const nn::LSTM lstm(3, 5, {.num_layers = 2});
  const nn::GRU gru(3, 5, {.batch_first = true});
  const Tensor x = randn({4, 2, 3});
  EXPECT_EQ(error([&] { lstm(randn({4, 2, 2})); }),
            "LSTM: the input has 2 features, the layer takes 3");
  EXPECT_EQ(error([&] { lstm(randn({3})); }),
            "LSTM: the input has shape [3], not [t, b, 3] or [t, 3]");
  EXPECT_EQ(error([&] { gru(randn({3})); }),
            "GRU: the input has shape [3], not [b, t, 3] or [t, 3]");
  EXPECT_EQ(error([&] { lstm(x, nn::LstmState{zeros({2, 3, 5}), zeros({2, 2, 5})}); }),
            "LSTM: h_0 has shape [2, 3, 5], not [2, 2, 5]");
  EXPECT_EQ(error([&] { lstm(x, nn::LstmState{zeros({2, 2, 5}), zeros({1, 2, 5})}); }),
            "LSTM: c_0 has shape [1, 2, 5], not [2, 2, 5]");
  EXPECT_EQ(error([&] { lstm(x, nn::LstmState{zeros({2, 2, 5}), {}}); }),
            "LSTM: a state of h and c lacks c");
  EXPECT_EQ(error([&] { gru(x, zeros({1, 2, 5})); }),
            "GRU: h_0 has shape [1, 2, 5], not [1, 4, 5]");
  EXPECT_EQ(error([&] { lstm(zeros({0, 2, 3})); }), "LSTM: lstm: the sequence has no steps");
  EXPECT_EQ(error([] { nn::LSTM(3, 0); }), "LSTM: sizes must be positive: in 3, hidden 0");
  EXPECT_EQ(error([] { nn::LSTM(3, int64_t{1} << 62); }),
            "LSTM: [4, 4611686018427387904, 3] has too many elements");
  EXPECT_EQ(error([] { nn::LSTM(3, 5, {.num_layers = 0}); }),
            "LSTM: num_layers must be from 1 to 65536, got 0");
  EXPECT_EQ(error([] { nn::LSTM(3, 5, {.dropout = 2}); }),
            "LSTM: dropout must be from 0 to 1, got 2");

  const nn::LSTMCell cell(3, 5);
  EXPECT_EQ(error([&] { cell(randn({2, 2})); }),
            "LSTMCell: linear: the input has 2 features, the weight [20, 3] takes 3");
  EXPECT_EQ(error([&] { cell(x); }), "LSTMCell: the input has shape [4, 2, 3], not [b, 3] or [3]");
  EXPECT_EQ(error([&] { cell(randn({2, 3}), nn::LstmState{zeros({1, 5}), zeros({2, 5})}); }),
            "LSTMCell: h has shape [1, 5], not [2, 5]");
  EXPECT_EQ(error([&] { cell(randn({2, 3}), nn::LstmState{zeros({2, 5}), zeros({2, 4})}); }),
            "LSTMCell: c has shape [2, 4], not [2, 5]");
  EXPECT_EQ(error([&] { cell(randn({2, 3}), nn::LstmState{{}, zeros({2, 5})}); }),
            "LSTMCell: a state of h and c lacks h");
}

TEST(Recurrent, OpsCheckTheirShapes) {
  const Tensor x = zeros({4, 2, 20}), w = zeros({20, 5}), h = zeros({2, 5});
  EXPECT_EQ(error([&] { lstm(x, zeros({20, 4}), {}, h, h); }),
            "lstm: the weight has shape [20, 4], not [4n, n]");
  EXPECT_EQ(error([&] { gru(x, w, {}, h); }), "gru: the weight has shape [20, 5], not [3n, n]");
  EXPECT_EQ(error([&] { lstm(zeros({4, 2, 15}), w, {}, h, h); }),
            "lstm: the gates have shape [4, 2, 15], not [t, b, 20]");
  EXPECT_EQ(error([&] { lstm(x, w, zeros({5}), h, h); }), "lstm: the bias has shape [5], not [20]");
  EXPECT_EQ(error([&] { lstm(x, w, {}, zeros({3, 5}), h); }),
            "lstm: h0 has shape [3, 5], not [2, 5]");
  EXPECT_EQ(error([&] { lstm(x, w, {}, h, zeros({3, 5})); }),
            "lstm: c0 has shape [3, 5], not [2, 5]");
}

TEST(Recurrent, HalfPrecisionCarriesAWideState) {
  // c grows by about 0.001 a step, which f16 would lose from c = 2 on: i, g near 1, f at 1.
  const Tensor gates = from({7, 30, 0.001, 30}, {1, 1, 4}, f16), w = zeros({4, 1}, f16);
  const Tensor x = expand(gates, {4000, 1, 4});
  const Tensor y = lstm(x, w, {}, {}, full({1, 1}, 2, f16));
  EXPECT_NEAR(y.at(4000), 2 + 4000 * 0.001, 0.05);
}

// The gradients of each gate of one step, at points where the gate itself rounds to 0 or 1.
TEST(Recurrent, SlopesOfGatesThatAreRoundedToOne) {
  const auto gates = [](DType dtype, int64_t n, double x) {
    return full({1, 1, n}, x, f64).to(dtype).detach().set_requires_grad();
  };
  const auto compare = [&](const char* name, int64_t n, const auto& step) {
    for (const DType dtype : {f16, bf16})
      for (const double x : {-16, -9, -7, 0, 5, 7, 9, 18}) {
        Tensor g[2];
        for (const DType t : {dtype, f64}) {
          const Tensor in = gates(t, n, x), y = step(in, t);
          y.backward({.gradient = ones(y.shape(), t)});
          g[t == f64] = in.grad();
        }
        for (int64_t i = 0; i < n; ++i) {
          const double want = g[1].at(i), ulp = dtype == f16 ? 0x1p-10 : 0x1p-7;
          EXPECT_NEAR(g[0].at(i), want, ulp * std::abs(want) + (dtype == f16 ? 0x1p-23 : 0))
              << name << ", gate " << i << " at " << x << " in " << dtype;
        }
      }
  };
  compare("lstm", 4, [](const Tensor& x, DType t) {
    return select(lstm(x, zeros({4, 1}, t), {}, zeros({1, 1}, t), full({1, 1}, 0.5, t)), 0, 1);
  });
  compare("lstm's h", 4, [](const Tensor& x, DType t) {
    return select(lstm(x, zeros({4, 1}, t), {}, zeros({1, 1}, t), full({1, 1}, 0.5, t)), 0, 0);
  });
  compare("gru", 3, [](const Tensor& x, DType t) {
    return gru(x, ones({3, 1}, t), {}, full({1, 1}, 0.5, t));
  });
  compare("rnn_tanh", 1,
          [](const Tensor& x, DType t) { return rnn_tanh(x, zeros({1, 1}, t), {}, {}); });
}

// The relative distance of two lists of gradients, the largest of any.
double distance(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = std::max(most, norm(a[i].to(f64) - b[i]).item() / norm(b[i]).item());
  return most;
}

// Long sequences lay out the weight for all their products; halves of this one are too short.
TEST(Recurrent, LongSequencesHaveTheBitsOfShortOnes) {
  for (const DType t : {f64, f32, bf16, f16}) {
    const Seed seed(1);
    const auto expect_equal = [&](const Tensor& got, const Tensor& want) {
      EXPECT_EQ(max(abs(got - want)).item(), 0) << name(t);
    };
    const Tensor x = randn({14, 3, 80}).to(t).set_requires_grad(), h0 = randn({3, 20}).to(t),
                 c0 = randn({3, 20}).to(t == f64 ? f64 : f32), w = (0.2 * randn({80, 20})).to(t);
    const Tensor y = lstm(x, w, {}, h0, c0);
    Tensor c;
    const Tensor first = lstm(narrow(x, 0, 0, 7), w, {}, h0, c0, {.last_state = &c});
    const Tensor second = lstm(narrow(x, 0, 7, 7), w, {}, select(first, 0, 6), c);
    expect_equal(narrow(y, 0, 0, 7), narrow(first, 0, 0, 7));
    expect_equal(narrow(y, 0, 7, 8), second);

    // The gradient of h0 takes one more product.
    const Tensor start = h0.clone().set_requires_grad(), dy = randn({15, 3, 20}).to(t);
    const std::vector<Tensor> both =
        grad({lstm(x, w, {}, start, c0)}, {x, start}, {.gradients = {dy}});
    expect_equal(grad({y}, {x}, {.gradients = {dy}})[0], both[0]);
    EXPECT_GT(sum(abs(both[1])).item(), 0);
  }
}

// Weights that remember for hundreds of steps (Tallec and Ollivier 2018): f near 1, i near 0.
TEST(Recurrent, LongMemoriesLearnInHalfPrecision) {
  const Seed seed(8);
  const bool on_host = DefaultDevice::current().is_host();  // else launches are emulated
  const int64_t steps = on_host ? 784 : 20, n = on_host ? 64 : 8;
  nn::LSTM net(1, n);
  const Tensor span = log(nn::init::uniform_(empty({n}), 1, double(steps - 1)));
  const NoGrad off;
  for (Tensor* b : {&net.weights[0].bias_ih, &net.weights[0].bias_hh}) fill_(*b, 0);
  copy_(narrow(net.weights[0].bias_hh, 0, 0, n), -span);
  copy_(narrow(net.weights[0].bias_hh, 0, n, n), span);
  const Tensor x = rand({steps, 4, 1}), target = randn({4, n});
  const EnableGrad on;
  const auto gradients = [&](std::optional<DType> low) {
    nn::LSTM copy = net.clone();
    if (!low) copy.to(f64);
    std::optional<amp::Autocast> region;
    if (low) region.emplace(amp::AutocastOptions{.low = *low});
    const Tensor in = low ? x : x.to(f64), want = low ? target : target.to(f64);
    const auto [y, h, c] = copy(in);
    const Tensor loss = mean(square(h.to(want.dtype()) - want)) + mean(c.to(want.dtype())) * 0.1;
    std::vector<Tensor> result = grad({loss * 1024}, copy.parameters());
    for (Tensor& g : result) g = g.to(f64) * (1.0 / 1024);
    return result;
  };
  const std::vector<Tensor> exact = gradients({});
  EXPECT_LT(distance(gradients(f16), exact), 0.01);
  EXPECT_LT(distance(gradients(bf16), exact), 0.03);
}

// An encoder's output that a decoder joins to its input at each of 1000 steps.
TEST(Recurrent, DecodersAddUpGradientsOfTheirEncoder) {
  const Seed seed(9);
  const int64_t count = DefaultDevice::current().is_host() ? 1000 : 10;
  const nn::Linear encoder(4, 8);
  const nn::LSTMCell decoder(12, 8);
  const Tensor x = rand({2, 4}), in = rand({count, 2, 4});
  const auto gradient = [&](std::optional<DType> low) {
    nn::Linear first = encoder.clone();
    nn::LSTMCell cell = decoder.clone();
    const DType t = low ? f32 : f64;
    first.to(t), cell.to(t);
    std::optional<amp::Autocast> region;
    if (low) region.emplace(amp::AutocastOptions{.low = *low});
    const Tensor context = first(x.to(t)), steps = in.to(t);
    nn::LstmState state;
    Tensor loss = zeros({}, t);
    for (int64_t i = 0; i < count; ++i) {
      state = cell(cat({context, select(steps, 0, i)}, 1), state);
      loss = loss + mean(state.h.to(t));
    }
    return grad({loss}, first.parameters());
  };
  const std::vector<Tensor> exact = gradient({});
  EXPECT_LT(distance(gradient(f16), exact), 0.01);
  EXPECT_LT(distance(gradient(bf16), exact), 0.03);
}

// A state that a region's weights grow by 0.005 in each of 1000 steps, which bf16 would lose soon.
TEST(Recurrent, StepsGoOnFromAWideState) {
  const NoGrad off;
  const int n = DefaultDevice::current().is_host() ? 1000 : 20;
  const Tensor x = zeros({n, 1, 1}), step = zeros({1, 1});
  const auto set_bias = [](const Tensor& bias, std::initializer_list<double> gates) {
    copy_(bias, from(gates, {int64_t(gates.size())}));
  };
  for (const DType low : {f16, bf16}) {
    amp::Autocast region({.low = low});
    nn::LSTM layer(1, 1);
    for (const Tensor& p : layer.parameters()) fill_(p, 0);
    set_bias(layer.weights[0].bias_hh, {30, 30, 0.005, 0});
    nn::LSTMCell cell = cell_of(nn::LSTMCell(1, 1), layer.weights[0]);
    const nn::LstmOutput whole = layer(x);
    EXPECT_EQ(whole.c_n.dtype(), f32);
    EXPECT_EQ(whole.h_n.dtype(), low);
    EXPECT_NEAR(whole.c_n.item(), 0.005 * n, 0.002 * 0.005 * n);
    nn::LstmState by_cell, by_layer{zeros({1, 1, 1}), zeros({1, 1, 1})};
    for (int i = 0; i < n; ++i) {
      by_cell = cell(step, by_cell);
      const nn::LstmOutput next = layer(narrow(x, 0, 0, 1), by_layer);
      by_layer = {next.h_n, next.c_n};
    }
    EXPECT_EQ(by_cell.c.item(), whole.c_n.item());
    EXPECT_EQ(by_layer.c.item(), whole.c_n.item());

    nn::GRU gated(1, 1);
    for (const Tensor& p : gated.parameters()) fill_(p, 0);
    set_bias(gated.weights[0].bias_hh, {0, 7.5, 0});
    set_bias(gated.weights[0].bias_ih, {0, 0, 1});
    nn::GRUCell gated_cell = cell_of(nn::GRUCell(1, 1), gated.weights[0]);
    const nn::RnnOutput all = gated(x);
    EXPECT_EQ(all.h_n.dtype(), f32);
    EXPECT_NEAR(all.h_n.item(), std::tanh(1) * (1 - std::pow(1 - 1 / (1 + std::exp(7.5)), n)),
                0.002);
    EXPECT_EQ(gated(x, Tensor(), from({double(n)}, {1}, i64)).h_n.item(), all.h_n.item());
    EXPECT_EQ(gated(cat({x, x}, 0), Tensor(), from({double(n)}, {1}, i64)).h_n.item(),
              all.h_n.item());
    Tensor h, h_n = zeros({1, 1, 1});
    for (int i = 0; i < n; ++i) {
      h = gated_cell(step, h);
      h_n = gated(narrow(x, 0, 0, 1), h_n).h_n;
    }
    EXPECT_EQ(h.item(), all.h_n.item());
    EXPECT_EQ(h_n.item(), all.h_n.item());
  }
}

// A graph without a backward pass goes with its results; a layer's wide state kept it alive.
TEST(Recurrent, GraphsAreFreedWithTheirResults) {
  const nn::LSTM lstm(2, 3);
  const nn::GRU gru(2, 3);
  const nn::LSTMCell lstm_cell(2, 3);
  const nn::GRUCell gru_cell(2, 3);
  const Tensor x = rand({4, 2, 2});
  const auto expect_nothing_left = [](const auto& run) {
    const int64_t before = memory_stats().in_use;
    {
      const amp::Autocast on({.low = bf16});
      EXPECT_TRUE(run().requires_grad());
    }
    EXPECT_EQ(memory_stats().in_use, before);
  };
  expect_nothing_left([&] { return lstm(x).c_n; });
  expect_nothing_left([&] { return gru(x).h_n; });
  expect_nothing_left([&] { return lstm_cell(select(x, 0, 0), lstm_cell(select(x, 0, 1))).c; });
  expect_nothing_left([&] { return gru_cell(select(x, 0, 0), gru_cell(select(x, 0, 1))); });
}

// Gradients that reach the state of each step add up from call to call in f32.
TEST(Recurrent, GradientsGoBackThroughAWideState) {
  const Seed seed(10);
  const int64_t steps = DefaultDevice::current().is_host() ? 300 : 10;
  const Tensor x = rand({steps, 2, 3});
  const auto compare = [&](auto layer, const auto& new_cell) {
    const auto gradients = [&](std::optional<DType> low, bool by_cells) {
      auto net = layer.clone();
      const DType t = low ? f32 : f64;
      net.to(t);
      const auto cell = cell_of(new_cell(), net.weights[0]);
      std::optional<amp::Autocast> region;
      if (low) region.emplace(amp::AutocastOptions{.low = *low});
      const Tensor in = x.to(t);
      Tensor loss = zeros({}, t);
      if (by_cells) {
        std::decay_t<decltype(cell(in))> state;
        for (int64_t i = 0; i < steps; ++i) {
          state = cell(select(in, 0, i), state);
          loss = loss + mean(hidden(state).to(t));
        }
      } else {
        loss = sum(mean(net(in).output.to(t), {1, 2}));
      }
      return grad({loss}, net.parameters());
    };
    const std::vector<Tensor> exact = gradients({}, false);
    EXPECT_LT(distance(gradients({}, true), exact), 1e-12);
    EXPECT_LT(distance(gradients(f16, true), exact), 0.01);
    EXPECT_LT(distance(gradients(bf16, true), exact), 0.03);
    EXPECT_LT(distance(gradients(bf16, false), exact), 0.03);
  };
  compare(nn::LSTM(3, 8), [] { return nn::LSTMCell(3, 8); });
  compare(nn::GRU(3, 8), [] { return nn::GRUCell(3, 8); });
}

}  // namespace nn_rnn_test
}  // namespace mixtape
