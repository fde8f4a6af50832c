#pragma once
// GPT-2 (Radford et al. 2019), with the names and layouts of its published weights.

#include <string>
#include <vector>

#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/models/language.h"
#include "nn/norm.h"

namespace mixtape::models {

struct GptConfig {
  int64_t vocabulary = 50257;
  int64_t context = 1024;  // the most tokens in a sequence
  int64_t layers = 12, heads = 12, width = 768;
  double dropout = 0.1;     // in training: of embeddings, attention weights and block outputs
  bool bias = true;         // of the linear layers
  bool checkpoint = false;  // recompute activations inside blocks in backward
};
inline constexpr GptConfig gpt2{},                          // 124,439,808 parameters
    gpt2_medium{.layers = 24, .heads = 16, .width = 1024},  // 354,823,168
    gpt2_large{.layers = 36, .heads = 20, .width = 1280},   // 774,030,080
    gpt2_xl{.layers = 48, .heads = 25, .width = 1600};      // 1,557,611,200

// nn::Linear with a transposed weight, as in GPT-2's files, which call it Conv1D although it is no
// convolution. Starts normal with standard deviation `std`.
struct Conv1D : nn::Module<Conv1D> {
  Tensor weight;  // [in, out]
  Tensor bias;    // [out], or none
  Tensor lora_A;  // [rank, in], or none: without an adapter
  Tensor lora_B;  // [out, rank], or none
  nn::LoraScale lora;

  Conv1D(int64_t in, int64_t out, bool bias, double std);
  Tensor forward(const Tensor& x, const LinearOptions& options = {}) const;
  MIXTAPE_FIELDS(weight, bias, lora_A, lora_B)
};

// x + attn(ln_1(x)), then x + mlp(ln_2(x)), over [b, t, width]. Weights start normal with standard
// deviation 0.02 (0.02 / sqrt(2 layers) for both c_proj), biases as zeros.
struct GptBlock : nn::Module<GptBlock> {
  struct Attention : nn::Module<Attention> {  // causal
    Conv1D c_attn, c_proj;
    explicit Attention(const GptConfig& c);
    Tensor forward(const Tensor& x, KeyValues* past = nullptr, const Tensor& residual = {},
                   int64_t room = 0) const;
    MIXTAPE_FIELDS(c_attn, c_proj)

   private:
    int64_t heads_;
    double dropout_;
  };
  struct Mlp : nn::Module<Mlp> {
    Conv1D c_fc, c_proj;
    explicit Mlp(const GptConfig& c);
    Tensor forward(const Tensor& x, const Tensor& residual = {}) const;
    MIXTAPE_FIELDS(c_fc, c_proj)
  };

  nn::LayerNorm ln_1;
  Attention attn;
  nn::LayerNorm ln_2;
  Mlp mlp;
  nn::Dropout dropout;

  explicit GptBlock(const GptConfig& c);
  // With a past, x continues it, and x's keys and values are appended, with memory for at least
  // `room` tokens. Recording must then be off.
  Tensor forward(const Tensor& x, KeyValues* past = nullptr, int64_t room = 0) const;
  MIXTAPE_FIELDS(ln_1, attn, ln_2, mlp, dropout)
};

// tokens i64 [b, t] -> logits [b, t, vocabulary] of each next token. The last layer shares its
// weight with the first: both are wte.weight.
struct Gpt : nn::Module<Gpt> {
  nn::Embedding wte;  // of tokens
  nn::Embedding wpe;  // of positions
  nn::Dropout drop;
  std::vector<GptBlock> h;
  nn::LayerNorm ln_f;

  explicit Gpt(const GptConfig& c = gpt2);
  // With a cache, tokens continue those read into it, nothing is recorded, and the result has only
  // the logits after the last token, [b, 1, vocabulary].
  Tensor forward(const Tensor& tokens, KeyValueCache* cache = nullptr) const;
  // The mean cross-entropy in nats of the next tokens, targets i64 [b, t] (-100: ignored), without
  // the logits of all of them: see linear_cross_entropy.
  Tensor forward(const Tensor& tokens, const Tensor& targets) const;
  // Appends `count` sampled tokens to tokens [b, t], each predicted from the last `context` tokens.
  // Reads each token once; beyond `context` tokens, positions shift and all are read again for each
  // new token. Records nothing. Call eval() first to disable dropout.
  Tensor generate(const Tensor& tokens, int64_t count, const SampleOptions& o = {}) const;
  MIXTAPE_FIELDS(wte, wpe, drop, h, ln_f)

 private:
  Tensor features(const Tensor& tokens, KeyValueCache* cache) const;  // the input of the last layer

  int64_t context_;
  bool checkpoint_;
};

// Converts a file of GPT-2's PyTorch weights for Gpt::load_state_dict: removes the prefix
// "transformer." from names, lm_head.weight (which is wte.weight), and attention masks.
StateDict gpt2_weights(const StateDict& file);

}  // namespace mixtape::models
