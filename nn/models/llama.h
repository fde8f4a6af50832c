#pragma once
// Llama (Touvron et al. 2023), with the names and layouts of Hugging Face's files: rotated queries
// and keys, heads in groups that share keys and values, RMS norms, a gated network.

#include <optional>
#include <vector>

#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/models/language.h"
#include "nn/norm.h"

namespace mixtape::models {

// Stretches the angles of positions for longer contexts. A factor of 1 changes nothing.
struct RopeScaling {
  double factor = 1;  // divides the frequencies
  // 0: all frequencies are divided. Otherwise, as in Llama 3.1, those with a period of less than
  // original_context / high_freq_factor stay, and those between that and original_context /
  // low_freq_factor are interpolated.
  int64_t original_context = 0;
  double low_freq_factor = 1, high_freq_factor = 4;
};
struct LlamaConfig {
  int64_t vocabulary = 32000;
  int64_t context = 2048;  // the most tokens in a sequence
  int64_t layers = 32, heads = 32, kv_heads = 32, width = 4096;
  int64_t hidden = 11008;  // of the network in a block
  int64_t head_size = 0;   // 0: width / heads
  double eps = 1e-5;       // of the norms
  double rope_base = 1e4;
  RopeScaling rope_scaling = {};
  bool tie_weights = false;  // the last layer has the embedding's weight
  bool attention_bias = false, mlp_bias = false;
  bool checkpoint = false;  // recompute activations inside blocks in backward
};

// The numbers by which rope_scaling divides the head_size / 2 frequencies of a head.
std::vector<double> rope_divisors(const LlamaConfig& c);
// The angles of `count` positions, given by cosines and sines, f32 [count, head_size / 2].
struct Rotation {
  Tensor cosines, sines;
};
Rotation rotation(const LlamaConfig& c, int64_t count);

// x + self_attn(input_layernorm(x)), then x + mlp(post_attention_layernorm(x)), over [b, t, width].
// Weights start normal with standard deviation 0.02, biases as zeros.
struct LlamaBlock : nn::Module<LlamaBlock> {
  struct Attention : nn::Module<Attention> {  // causal
    nn::Linear q_proj, k_proj, v_proj, o_proj;
    explicit Attention(const LlamaConfig& c);
    Tensor forward(const Tensor& x, const Rotation& angles, KeyValues* past = nullptr,
                   const Tensor& residual = {}, int64_t room = 0) const;
    MIXTAPE_FIELDS(q_proj, k_proj, v_proj, o_proj)

   private:
    int64_t heads_, kv_heads_;
  };
  struct Mlp : nn::Module<Mlp> {
    nn::Linear gate_proj, up_proj, down_proj;
    explicit Mlp(const LlamaConfig& c);
    Tensor forward(const Tensor& x, const Tensor& residual = {}) const;
    MIXTAPE_FIELDS(gate_proj, up_proj, down_proj)
  };

  Attention self_attn;
  Mlp mlp;
  nn::RMSNorm input_layernorm, post_attention_layernorm;

  explicit LlamaBlock(const LlamaConfig& c);
  // With the angles of x's positions. A past is as in GptBlock.
  Tensor forward(const Tensor& x, const Rotation& angles, KeyValues* past = nullptr,
                 int64_t room = 0) const;
  MIXTAPE_FIELDS(self_attn, mlp, input_layernorm, post_attention_layernorm)
};

// tokens i64 [b, t] -> [b, t, width], the input of the last layer.
struct LlamaModel : nn::Module<LlamaModel> {
  nn::Embedding embed_tokens;
  std::vector<LlamaBlock> layers;
  nn::RMSNorm norm;
  nn::KeepsF32<nn::UnsavedBuffer> cosines, sines;  // [context, head_size / 2]

  explicit LlamaModel(const LlamaConfig& c);
  // With a cache, returns only the last token's, [b, 1, width].
  Tensor forward(const Tensor& tokens, KeyValueCache* cache = nullptr) const;
  MIXTAPE_FIELDS(embed_tokens, layers, norm, cosines, sines)

 private:
  int64_t context_;
  bool checkpoint_;
};

// tokens i64 [b, t] -> logits [b, t, vocabulary] of each next token.
struct Llama : nn::Module<Llama> {
  LlamaModel model;
  std::optional<nn::Linear> lm_head;  // none: embed_tokens.weight

  explicit Llama(const LlamaConfig& c);
  // A cache is as in Gpt.
  Tensor forward(const Tensor& tokens, KeyValueCache* cache = nullptr) const;
  // The mean cross-entropy in nats of the next tokens, targets i64 [b, t] (-100: ignored), without
  // the logits of all of them: see linear_cross_entropy.
  Tensor forward(const Tensor& tokens, const Tensor& targets) const;
  // As Gpt::generate.
  Tensor generate(const Tensor& tokens, int64_t count, const SampleOptions& o = {}) const;
  MIXTAPE_FIELDS(model, lm_head)

 private:
  Tensor last_weight() const {
    return lm_head ? lm_head->whole_weight() : model.embed_tokens.weight;
  }

  int64_t context_;
};

// Converts the weights of a Hugging Face file for Llama::load_state_dict: removes the rotation
// frequencies that old files contain and, if weights are tied, lm_head.weight.
StateDict llama_weights(const StateDict& file, const LlamaConfig& c);

}  // namespace mixtape::models
