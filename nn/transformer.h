#pragma once
// Multi-head attention and the transformer encoder and decoder, as in PyTorch.

#include <array>
#include <concepts>
#include <optional>
#include <vector>

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/linear.h"
#include "nn/norm.h"

namespace mixtape::nn {

// Masks of keys that queries must not attend to. True in a bool mask hides a key, as in PyTorch's
// modules but unlike in scaled_dot_product_attention; a float mask is added to the scores.
struct AttentionMasks {
  Tensor attn_mask = {};         // [queries, keys], or [b heads, queries, keys]
  Tensor key_padding_mask = {};  // [b, keys], or [keys] for one sequence
  bool causal = false;           // query i attends to keys 0..i
};
enum class AttentionWeights { None, Averaged, PerHead };  // over the heads

struct AttentionOutput {
  Tensor output;
  Tensor weights;  // on request: [b, queries, keys] or [b, heads, queries, keys], before dropout
  std::array<Tensor*, 2> tensors() { return {&output, &weights}; }
};

struct MultiheadAttentionOptions {
  double dropout = 0;  // of the attention weights, in training
  bool bias = true;
  bool batch_first = false;                     // [b, t, size] instead of [t, b, size]
  std::optional<int64_t> kdim = {}, vdim = {};  // sizes of keys and values, by default `size`
};
// softmax(q kT / sqrt(size / heads)) v for each of `heads` parts of the projected inputs, followed
// by an output projection. in_proj_weight starts Xavier uniform, biases start as zeros.
struct MultiheadAttention : Module<MultiheadAttention> {
  // [3 size, size] for queries, keys and values; none if their sizes differ
  Tensor in_proj_weight;
  Tensor q_proj_weight;  // [size, size], if they differ
  Tensor k_proj_weight;  // [size, kdim], if they differ
  Tensor v_proj_weight;  // [size, vdim], if they differ
  Tensor in_proj_bias;   // [3 size], or none
  Linear out_proj;

  MultiheadAttention(int64_t size, int64_t heads, const MultiheadAttentionOptions& o = {});
  MultiheadAttention(int64_t size, int64_t heads, std::floating_point auto dropout,
                     bool with_bias = true)
      : MultiheadAttention(size, heads, MultiheadAttentionOptions{dropout, with_bias}) {}
  // query [t, b, size], key [s, b, kdim], value [s, b, vdim], or all without b for one sequence. A
  // residual of the output's shape is added to it.
  AttentionOutput forward(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionMasks& masks = {},
                          AttentionWeights weights = AttentionWeights::None,
                          const Tensor& residual = {}) const;
  MIXTAPE_FIELDS(in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias,
                 out_proj)

 private:
  // Projects inputs [t, b, size] to queries, keys and values [b, heads, t, size / heads].
  std::array<Tensor, 3> projected(const Tensor& query, const Tensor& key,
                                  const Tensor& value) const;
  Tensor joined(const Tensor& x) const;  // joins heads, back to [t, b, size]

  int64_t size_, heads_;
  MultiheadAttentionOptions options_;
};

struct TransformerEncoderLayerOptions {
  int64_t dim_feedforward = 2048;
  double dropout = 0.1;
  Tensor (*activation)(const Tensor&) = relu;
  double layer_norm_eps = 1e-5;
  bool batch_first = false;
  bool norm_first = false, bias = true;  // norm_first: inputs of both parts, not the sums
};
// x [t, b, size] or [t, size], plus self-attention, plus a network of two linear layers.
struct TransformerEncoderLayer : Module<TransformerEncoderLayer> {
  MultiheadAttention self_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2;

  TransformerEncoderLayer(int64_t size, int64_t heads,
                          const TransformerEncoderLayerOptions& o = {});
  TransformerEncoderLayer(int64_t size, int64_t heads, std::integral auto dim_feedforward,
                          double dropout = 0.1)
      : TransformerEncoderLayer(
            size, heads, TransformerEncoderLayerOptions{int64_t(dim_feedforward), dropout}) {}
  Tensor forward(const Tensor& x, const AttentionMasks& masks = {}) const;
  MIXTAPE_FIELDS(self_attn, linear1, linear2, norm1, norm2)

 private:
  TransformerEncoderLayerOptions options_;
};

void check_num_layers(const std::type_info& stack, int64_t num_layers);

// Copies of a layer, which start equal, as in PyTorch, and optionally a norm at the end.
template <class Derived, class Layer>
struct TransformerStack : Module<Derived> {
  std::vector<Layer> layers;
  std::optional<LayerNorm> norm;

  TransformerStack(const Layer& layer, int64_t num_layers, std::optional<LayerNorm> final_norm = {})
      : norm(std::move(final_norm)) {
    check_num_layers(typeid(Derived), num_layers);
    for (int64_t i = 0; i < num_layers; ++i) layers.push_back(layer.clone());
  }
  MIXTAPE_FIELDS(layers, norm)

 protected:
  template <class... Others>
  Tensor run(Tensor x, const Others&... others) const {
    for (const Layer& layer : layers) x = layer(x, others...);
    return norm ? (*norm)(x) : x;
  }
};

// A stack of TransformerEncoderLayer.
struct TransformerEncoder : TransformerStack<TransformerEncoder, TransformerEncoderLayer> {
  using TransformerStack::TransformerStack;
  Tensor forward(const Tensor& x, const AttentionMasks& masks = {}) const;
};

// Like the encoder layer, but with attention to memory [s, b, size], an encoder's output, before
// the network. `masks` apply to x (causal: no position attends to a later one), `memory_masks` to
// memory.
struct TransformerDecoderLayer : Module<TransformerDecoderLayer> {
  MultiheadAttention self_attn, multihead_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2, norm3;

  TransformerDecoderLayer(int64_t size, int64_t heads,
                          const TransformerEncoderLayerOptions& o = {});
  TransformerDecoderLayer(int64_t size, int64_t heads, std::integral auto dim_feedforward,
                          double dropout = 0.1)
      : TransformerDecoderLayer(
            size, heads, TransformerEncoderLayerOptions{int64_t(dim_feedforward), dropout}) {}
  Tensor forward(const Tensor& x, const Tensor& memory, const AttentionMasks& masks = {},
                 const AttentionMasks& memory_masks = {}) const;
  MIXTAPE_FIELDS(self_attn, multihead_attn, linear1, linear2, norm1, norm2, norm3)

 private:
  TransformerEncoderLayerOptions options_;
};

// A stack of TransformerDecoderLayer.
struct TransformerDecoder : TransformerStack<TransformerDecoder, TransformerDecoderLayer> {
  using TransformerStack::TransformerStack;
  Tensor forward(const Tensor& x, const Tensor& memory, const AttentionMasks& masks = {},
                 const AttentionMasks& memory_masks = {}) const;
};

}  // namespace mixtape::nn
