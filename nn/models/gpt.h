#pragma once
// GPT-2 (Radford et al. 2019), by the names and layouts of its published weights.

#include <string>
#include <vector>

#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/models/language.h"
#include "nn/norm.h"

namespace mixtape::models {

struct GptConfig {
  int64_t vocabulary = 50257;
  int64_t context = 1024;  // how many tokens it sees at most
  int64_t layers = 12, heads = 12, width = 768;
  double dropout = 0.1;     // in training: of embeddings, attention weights, what blocks add
  bool bias = true;         // of the linear layers
  bool checkpoint = false;  // keep no activations inside blocks: backward computes them again
};
inline constexpr GptConfig gpt2{},                          // 124,439,808 parameters
    gpt2_medium{.layers = 24, .heads = 16, .width = 1024},  // 354,823,168
    gpt2_large{.layers = 36, .heads = 20, .width = 1280},   // 774,030,080
    gpt2_xl{.layers = 48, .heads = 25, .width = 1600};      // 1,557,611,200

// nn::Linear but for its weight, which lies as in GPT-2's files. (No convolution: it is their name
// for it.) Starts normal with a standard deviation of `std`.
struct Conv1D : nn::Module<Conv1D> {
  Tensor weight;  // [in, out]
  Tensor bias;    // [out], or none

  Conv1D(int64_t in, int64_t out, bool bias, double std);
  Tensor forward(const Tensor& x, const LinearOptions& options = {}) const {
    return linear(x, weight.t(), bias, options);
  }
  MIXTAPE_FIELDS(weight, bias)
};

// x + attn(ln_1(x)), then x + mlp(ln_2(x)), over [b, t, width]. Weights start normal with standard
// deviation 0.02, of both c_proj 0.02 / sqrt(2 layers), biases as zeros.
struct GptBlock : nn::Module<GptBlock> {
  struct Past {  // keys and values of tokens that were read, [b, heads, t, width / heads]
    Tensor k, v;
  };
  struct Attention : nn::Module<Attention> {  // each position sees those before it and itself
    Conv1D c_attn, c_proj;
    explicit Attention(const GptConfig& c);
    Tensor forward(const Tensor& x, Past* past = nullptr) const;
    MIXTAPE_FIELDS(c_attn, c_proj)

   private:
    int64_t heads_;
    double dropout_;
  };
  struct Mlp : nn::Module<Mlp> {
    Conv1D c_fc, c_proj;
    explicit Mlp(const GptConfig& c);
    Tensor forward(const Tensor& x) const {
      return c_proj(c_fc(x, LinearOptions{Activation::GeluTanh}));
    }
    MIXTAPE_FIELDS(c_fc, c_proj)
  };

  nn::LayerNorm ln_1;
  Attention attn;
  nn::LayerNorm ln_2;
  Mlp mlp;
  nn::Dropout dropout;

  explicit GptBlock(const GptConfig& c);
  // With a past, that of one position after it, which is added to it; or of all, if it is empty.
  Tensor forward(const Tensor& x, Past* past = nullptr) const {
    const Tensor y = x + dropout(attn(ln_1(x), past));
    return y + dropout(mlp(ln_2(y)));
  }
  MIXTAPE_FIELDS(ln_1, attn, ln_2, mlp, dropout)
};

// tokens i64 [b, t] -> logits [b, t, vocabulary] of the token after each. The last layer shares its
// weight with the first: both are wte.weight.
struct Gpt : nn::Module<Gpt> {
  nn::Embedding wte;  // of tokens
  nn::Embedding wpe;  // of positions
  nn::Dropout drop;
  std::vector<GptBlock> h;
  nn::LayerNorm ln_f;

  // What was read so far: nothing at first.
  struct Cache {
    std::vector<GptBlock::Past> blocks;
    int64_t tokens = 0;
  };

  explicit Gpt(const GptConfig& c = gpt2);
  // With a cache, tokens [b, 1] go on after those that were read, or [b, t] begin, and the result
  // has the logits after the last alone, [b, 1, vocabulary].
  Tensor forward(const Tensor& tokens, Cache* cache = nullptr) const;
  // tokens [b, t] and `count` more that the model goes on with, each after the last `context`
  // before it. Each token is read once, until there are more than `context`: then their positions
  // move, and all are read for each. Records nothing; call eval() first, so that nothing is
  // dropped.
  Tensor generate(Tensor tokens, int64_t count, const SampleOptions& o = {}) const;
  MIXTAPE_FIELDS(wte, wpe, drop, h, ln_f)

 private:
  int64_t context_;
  bool checkpoint_;
};

// What a file of GPT-2's weights in PyTorch holds, as Gpt::load_state_dict takes it: names without
// "transformer.", without lm_head.weight, which is wte.weight, and without the masks of attention.
StateDict gpt2_weights(const StateDict& file);

}  // namespace mixtape::models
