// Layers against PyTorch: names, shapes and, with the same weights, numbers.

#include "tests/support/modules_reference.h"

namespace mixtape {
namespace nn_reference_test {

using nn::Tensors;
using test::model;
using X = const Tensors&;

template <class M>
test::Model recurrent(M made) {  // from x, and the state if there is one
  return model(std::move(made), [](const M& m, X x) {
    auto [y, h_n] = m(x.at(0), x.size() > 1 ? x[1] : Tensor());
    return Tensors{y, h_n};
  });
}
test::Model lstm(nn::LSTM made) {
  return model(std::move(made), [](const nn::LSTM& m, X x) {
    auto [y, h_n, c_n] = m(x.at(0), x.size() > 1 ? nn::LstmState{x[1], x[2]} : nn::LstmState{});
    return Tensors{y, h_n, c_n};
  });
}
template <class M>
test::Model evaluated(M made) {
  made.eval();
  return model(std::move(made));
}

const test::Models& models() {
  using namespace nn;
  static const test::Models all = {
      {"Linear", [] { return model(Linear(3, 2)); }},
      {"Linear plain", [] { return model(Linear(3, 2, {.bias = false})); }},
      {"Conv2d",
       [] {
         return model(Conv2d(
             4, 2, {3, 2}, {.stride = {1, 2}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2}));
       }},
      {"BatchNorm1d", [] { return model(BatchNorm1d(2, {.eps = 1e-3, .momentum = 0.3})); }},
      {"BatchNorm2d", [] { return model(BatchNorm2d(2)); }},
      {"BatchNorm2d eval", [] { return evaluated(BatchNorm2d(2)); }},
      {"LayerNorm", [] { return model(LayerNorm({2, 3})); }},
      {"LayerNorm plain", [] { return model(LayerNorm(3, {.affine = false})); }},
      {"Embedding", [] { return model(Embedding(4, 2)); }},
      {"Embedding padding", [] { return model(Embedding(4, 2, {.padding_idx = -1})); }},
      {"Sequential",
       [] {
         return model(nn::Sequential(Linear(3, 4), GELU(), nn::Sequential(Linear(4, 2), Tanh())));
       }},
      {"RNN", [] { return recurrent(RNN(2, 3, {.num_layers = 2})); }},
      {"RNN relu",
       [] {
         return recurrent(
             RNN(2, 3, {.batch_first = true, .bidirectional = true}, Nonlinearity::Relu));
       }},
      {"LSTM", [] { return lstm(LSTM(2, 2, {.num_layers = 2, .bidirectional = true})); }},
      {"LSTM state", [] { return lstm(LSTM(2, 3, {.bias = false})); }},
      {"LSTM unbatched", [] { return lstm(LSTM(2, 2)); }},
      {"GRU",
       [] {
         return recurrent(GRU(2, 2, {.num_layers = 2, .batch_first = true, .bidirectional = true}));
       }},
      {"RNNCell",
       [] {
         return model(RNNCell(2, 3, {}, Nonlinearity::Relu),
                      [](const RNNCell& m, X x) { return Tensors{m(x.at(0), x.at(1))}; });
       }},
      {"LSTMCell",
       [] {
         return model(LSTMCell(2, 3), [](const LSTMCell& m, X x) {
           const auto [h, c] = m(x.at(0), LstmState{x.at(1), x.at(2)});
           return Tensors{h, c};
         });
       }},
      {"GRUCell", [] { return model(GRUCell(2, 3, {.bias = false})); }},
  };
  return all;
}

struct LayersReference : testing::TestWithParam<std::string> {};
TEST_P(LayersReference, IsPyTorchs) {
  test::compare(models().at(GetParam())(), test::reference("layers").at(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Layers, LayersReference, testing::ValuesIn(test::names(models())),
                         test::test_name);
TEST(LayersReference, HasEveryCase) { test::expect_complete(models(), "layers"); }

}  // namespace nn_reference_test
}  // namespace mixtape
