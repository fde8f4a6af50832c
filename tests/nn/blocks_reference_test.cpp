// Convolutions, norms, attention, blocks and packed sequences against PyTorch: names, shapes and,
// with the same weights, numbers.

#include "tests/support/modules_reference.h"

namespace mixtape {
namespace nn_blocks_reference_test {

using nn::Tensors;
using test::model;
using X = const Tensors&;

// The masks of modules_reference.py: true where a query must not attend.
Tensor later() { return from({0, 1, 1, 0, 0, 1, 0, 0, 0}, {3, 3}, boolean); }
Tensor padding() { return from({0, 0, 1, 0, 0, 0}, {2, 3}, boolean); }
Tensor per_head() {  // for two sequences and two heads
  const Tensor mask = full({4, 3, 3}, 0, boolean);
  mask.set(1 * 9 + 2, 1);
  mask.set(2 * 9 + 3, 1);
  return mask;
}
Tensor added() { return reshape(arange(0, 9, 1, f64), {3, 3}) / 8; }

// Self-attention of x.
test::Model attention(nn::MultiheadAttention made, const nn::AttentionMasks& masks = {}) {
  return model(std::move(made), [masks](const nn::MultiheadAttention& m, X x) {
    return Tensors{m(x.at(0), x.at(0), x.at(0), masks).output};
  });
}

Tensor lengths() { return from({2, 4, 1}, {3}, i64); }
// A recurrent layer over sequences of these lengths, from x and a state of one tensor or none.
template <class M>
test::Model recurrent(M made) {
  return model(std::move(made), [](const M& m, X x) {
    const auto [y, h_n] = m(x.at(0), x.size() > 1 ? x[1] : Tensor(), lengths());
    return Tensors{y, h_n};
  });
}

const test::Models& models() {
  using namespace nn;
  using enum AttentionWeights;
  static const test::Models all = {
      {"Conv1d",
       [] {
         return model(Conv1d(4, 2, 3, {.stride = 2, .padding = 2, .dilation = 2, .groups = 2}));
       }},
      {"ConvTranspose2d",
       [] {
         return model(ConvTranspose2d(4, 2, {2, 3},
                                      {.stride = 2,
                                       .padding = {1, 0},
                                       .output_padding = {1, 0},
                                       .dilation = {2, 1},
                                       .groups = 2}));
       }},
      {"ConvTranspose2d plain", [] { return model(ConvTranspose2d(2, 3, 2, {.bias = false})); }},
      {"RMSNorm", [] { return model(RMSNorm(4)); }},
      {"RMSNorm eps", [] { return model(RMSNorm(4, {.eps = 0.5})); }},
      {"GroupNorm", [] { return model(GroupNorm(2, 4, {.eps = 1e-2})); }},
      {"InstanceNorm2d", [] { return model(InstanceNorm2d(2)); }},
      {"InstanceNorm2d affine", [] { return model(InstanceNorm2d(2, {.affine = true})); }},
      {"MultiheadAttention", [] { return attention(MultiheadAttention(4, 2)); }},
      {"MultiheadAttention causal",
       [] {
         return attention(MultiheadAttention(4, 2, {.bias = false, .batch_first = true}),
                          {.causal = true});
       }},
      {"MultiheadAttention masks",
       [] {
         return attention(MultiheadAttention(4, 2),
                          {.attn_mask = per_head(), .key_padding_mask = padding()});
       }},
      {"MultiheadAttention float mask",
       [] {
         return attention(MultiheadAttention(4, 2),
                          {.attn_mask = added(), .key_padding_mask = padding()});
       }},
      {"MultiheadAttention cross",
       [] {
         return model(MultiheadAttention(4, 2), [](const MultiheadAttention& m, X x) {
           const auto [y, weights] = m(x.at(0), x.at(1), x.at(1), AttentionMasks{}, Averaged);
           return Tensors{y, weights};
         });
       }},
      {"MultiheadAttention weights",
       [] {
         return model(
             MultiheadAttention(4, 2, {.batch_first = true}), [](const MultiheadAttention& m, X x) {
               const auto [y, weights] = m(x.at(0), x.at(1), x.at(2),
                                           AttentionMasks{.key_padding_mask = padding()}, PerHead);
               return Tensors{y, weights};
             });
       }},
      {"MultiheadAttention unbatched",
       [] {
         return model(MultiheadAttention(4, 1), [](const MultiheadAttention& m, X x) {
           const auto [y, weights] = m(x.at(0), x.at(0), x.at(0), AttentionMasks{}, Averaged);
           return Tensors{y, weights};
         });
       }},
      {"TransformerEncoderLayer",
       [] { return model(TransformerEncoderLayer(4, 2, {.dim_feedforward = 3, .dropout = 0})); }},
      {"TransformerEncoderLayer first",
       [] {
         return model(TransformerEncoderLayer(4, 2,
                                              {.dim_feedforward = 3,
                                               .dropout = 0,
                                               .activation = gelu,
                                               .layer_norm_eps = 1e-2,
                                               .batch_first = true,
                                               .norm_first = true}),
                      [](const TransformerEncoderLayer& m, X x) {
                        return Tensors{m(x.at(0), AttentionMasks{.attn_mask = later(),
                                                                 .key_padding_mask = padding()})};
                      });
       }},
      {"TransformerEncoder",
       [] {
         return model(TransformerEncoder(
             TransformerEncoderLayer(4, 2,
                                     {.dim_feedforward = 3, .dropout = 0, .batch_first = true}),
             2, LayerNorm(4)));
       }},
      {"MultiheadAttention sizes",
       [] {
         return model(MultiheadAttention(4, 2, {.kdim = 3, .vdim = 2}),
                      [](const MultiheadAttention& m, X x) {
                        const auto [y, weights] =
                            m(x.at(0), x.at(1), x.at(2), AttentionMasks{}, Averaged);
                        return Tensors{y, weights};
                      });
       }},
      {"Conv1d unbatched", [] { return model(Conv1d(2, 2, 2)); }},
      {"Conv2d unbatched", [] { return model(Conv2d(2, 2, 2)); }},
      {"ConvTranspose2d unbatched", [] { return model(ConvTranspose2d(2, 2, 2)); }},
      {"LSTM lengths",
       [] {
         return model(LSTM(2, 2, {.num_layers = 2, .bidirectional = true}), [](const LSTM& m, X x) {
           const auto [y, h_n, c_n] = m(x.at(0), LstmState{x.at(1), x.at(2)}, lengths());
           return Tensors{y, h_n, c_n};
         });
       }},
      {"GRU lengths",
       [] { return recurrent(GRU(2, 2, {.batch_first = true, .bidirectional = true})); }},
      {"RNN lengths", [] { return recurrent(RNN(2, 2, {.num_layers = 2})); }},
      {"WeightNorm", [] { return model(WeightNorm(Linear(3, 2))); }},
      {"WeightNorm dim", [] { return model(WeightNorm(Conv2d(2, 3, 2, {.bias = false}), 1)); }},
      {"SpectralNorm", [] { return model(SpectralNorm(Linear(3, 2))); }},
      {"SpectralNorm eval",
       [] {
         SpectralNorm made(Conv2d(2, 3, 2));
         made.eval();
         return model(std::move(made));
       }},
      {"SpectralNorm transposed",
       [] { return model(SpectralNorm(ConvTranspose2d(2, 3, 2), {.n_power_iterations = 2})); }},
      {"TransformerDecoderLayer",
       [] {
         return model(TransformerDecoderLayer(4, 2, {.dim_feedforward = 3, .dropout = 0}),
                      [](const TransformerDecoderLayer& m, X x) {
                        return Tensors{m(x.at(0), x.at(1), AttentionMasks{.causal = true},
                                         AttentionMasks{.key_padding_mask = padding()})};
                      });
       }},
      {"TransformerEncoderLayer plain",
       [] {
         return model(
             TransformerEncoderLayer(4, 2, {.dim_feedforward = 3, .dropout = 0, .bias = false}));
       }},
      {"TransformerDecoderLayer plain",
       [] {
         return model(
             TransformerDecoderLayer(4, 2, {.dim_feedforward = 3, .dropout = 0, .bias = false}),
             [](const TransformerDecoderLayer& m, X x) { return Tensors{m(x.at(0), x.at(1))}; });
       }},
      {"TransformerDecoder first",
       [] {
         const TransformerDecoderLayer layer(4, 2,
                                             {.dim_feedforward = 3,
                                              .dropout = 0,
                                              .activation = gelu,
                                              .layer_norm_eps = 1e-2,
                                              .batch_first = true,
                                              .norm_first = true});
         return model(
             TransformerDecoder(layer, 2, LayerNorm(4)), [](const TransformerDecoder& m, X x) {
               return Tensors{m(x.at(0), x.at(1), AttentionMasks{.key_padding_mask = padding()})};
             });
       }},
  };
  return all;
}

struct BlocksReference : testing::TestWithParam<std::string> {};
TEST_P(BlocksReference, IsPyTorchs) {
  test::compare(models().at(GetParam())(), test::reference("blocks").at(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Blocks, BlocksReference, testing::ValuesIn(test::names(models())),
                         test::test_name);
TEST(BlocksReference, HasEveryCase) { test::expect_complete(models(), "blocks"); }

}  // namespace nn_blocks_reference_test
}  // namespace mixtape
