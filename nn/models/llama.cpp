#include "nn/models/llama.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/format.h"
#include "nn/init.h"

namespace mixtape::models {
using namespace internal;
namespace {

constexpr double llama_std = 0.02;

int64_t head_size_of(const LlamaConfig& c) {
  return c.head_size > 0 ? c.head_size : c.width / c.heads;
}

const LlamaConfig& checked(const LlamaConfig& c) {
  const Scope scope("Llama");
  check(c.context > 0 && c.layers > 0 && c.width > 0 && c.hidden > 0,
        "sizes must be positive: context {}, layers {}, width {}, hidden {}", c.context, c.layers,
        c.width, c.hidden);
  check(c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0,
        "{} heads do not divide into {} groups", c.heads, c.kv_heads);
  check(c.head_size > 0 || c.width % c.heads == 0, "a width of {} does not divide into {} heads",
        c.width, c.heads);
  check(head_size_of(c) % 2 == 0, "the size of a head must be even, got {}", head_size_of(c));
  constexpr int64_t most = 1 << 28;
  check(c.context <= most / std::max<int64_t>(head_size_of(c) / 2, 1),
        "a context of {} has more than {} angles of heads of {}", c.context, most, head_size_of(c));
  check(c.rope_base > 0 && c.rope_scaling.factor > 0,
        "rope_base and the factor of rope_scaling must be > 0, got {} and {}", c.rope_base,
        c.rope_scaling.factor);
  check(c.rope_scaling.original_context == 0 ||
            c.rope_scaling.low_freq_factor < c.rope_scaling.high_freq_factor,
        "low_freq_factor {} of rope_scaling must be less than high_freq_factor {}",
        c.rope_scaling.low_freq_factor, c.rope_scaling.high_freq_factor);
  return c;
}

nn::Linear projection(int64_t in, int64_t out, bool bias) {
  nn::Linear layer(in, out, {.bias = bias});
  nn::init::normal_(layer.weight, 0, llama_std);
  if (bias) nn::init::zeros_(layer.bias);
  return layer;
}

// The frequencies of a head, without scaling.
std::vector<double> rope_frequencies(const LlamaConfig& c) {
  const int64_t half = head_size_of(c) / 2;
  std::vector<double> all;
  for (int64_t i = 0; i < half; ++i)
    all.push_back(std::pow(c.rope_base, -double(i) / double(half)));
  return all;
}

// The share of a frequency that is not divided.
double kept_part(const RopeScaling& s, double frequency) {
  if (s.original_context == 0) return 0;
  const double turns = double(s.original_context) * frequency / (2 * std::numbers::pi);
  const double part = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return std::clamp(part, 0.0, 1.0);
}

}  // namespace

std::vector<double> rope_divisors(const LlamaConfig& c) {
  std::vector<double> divisors;
  for (const double frequency : rope_frequencies(checked(c))) {
    const double kept = kept_part(c.rope_scaling, frequency);
    divisors.push_back(1 / (kept + (1 - kept) / c.rope_scaling.factor));
  }
  return divisors;
}

Rotation rotation(const LlamaConfig& c, int64_t count) {
  std::vector<double> frequencies = rope_frequencies(checked(c));
  const std::vector<double> divisors = rope_divisors(c);
  for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= divisors[i];
  const NoGrad off;
  const Tensor of = from_data(frequencies);
  const Shape shape{count, of.size(0)};
  const Rotation all{empty(shape, f32), empty(shape, f32)};
  for (int64_t begin = 0, n; begin < count; begin += n) {  // in parts, since angles need f64
    n = std::min<int64_t>(count - begin, 4096);
    const Tensor angles = outer(arange(double(begin), double(begin + n), 1, f64), of);
    copy_(narrow(all.cosines, 0, begin, n), cast(cos(angles), f32));
    copy_(narrow(all.sines, 0, begin, n), cast(sin(angles), f32));
  }
  return all;
}

LlamaBlock::Attention::Attention(const LlamaConfig& c)
    : q_proj(projection(c.width, c.heads * head_size_of(c), c.attention_bias)),
      k_proj(projection(c.width, c.kv_heads * head_size_of(c), c.attention_bias)),
      v_proj(projection(c.width, c.kv_heads * head_size_of(c), c.attention_bias)),
      o_proj(projection(c.heads * head_size_of(c), c.width, c.attention_bias)),
      heads_(c.heads),
      kv_heads_(c.kv_heads) {}

Tensor LlamaBlock::Attention::forward(const Tensor& x, const Rotation& angles, KeyValues* past,
                                      const Tensor& residual, int64_t room) const {
  check(x.rank() == 3, "the input has shape {}, not [b, t, {}]", x.shape(), q_proj.weight.size(1));
  const int64_t b = x.size(0), t = x.size(1);
  const auto split = [&](const Tensor& y, int64_t heads) {
    return transpose(reshape(y, {b, t, heads, y.size(2) / heads}), 1, 2);
  };
  const auto rotated = [&](const Tensor& y) {
    return rotary_embedding(y, angles.cosines, angles.sines);
  };
  const Tensor q = rotated(split(q_proj(x), heads_)), k = rotated(split(k_proj(x), kv_heads_));
  const Tensor y = causal_attention(q, k, split(v_proj(x), kv_heads_), past, room);
  return o_proj(reshape(transpose(y, 1, 2), {b, t, heads_ * y.size(3)}), residual);
}

LlamaBlock::Mlp::Mlp(const LlamaConfig& c)
    : gate_proj(projection(c.width, c.hidden, c.mlp_bias)),
      up_proj(projection(c.width, c.hidden, c.mlp_bias)),
      down_proj(projection(c.hidden, c.width, c.mlp_bias)) {}

LlamaBlock::LlamaBlock(const LlamaConfig& c)
    : self_attn(checked(c)),
      mlp(c),
      input_layernorm(c.width, {.eps = c.eps}),
      post_attention_layernorm(c.width, {.eps = c.eps}) {}

Tensor LlamaBlock::forward(const Tensor& x, const Rotation& angles, KeyValues* past,
                           int64_t room) const {
  const Tensor in = input_layernorm(x, nn::dtype_of_operand(self_attn.q_proj, x));
  const Tensor y = self_attn(in, angles, past, x, room);
  return mlp(post_attention_layernorm(y, nn::dtype_of_operand(mlp.gate_proj, y)), y);
}

LlamaModel::LlamaModel(const LlamaConfig& c)
    : embed_tokens(c.vocabulary, checked(c).width),
      norm(c.width, {.eps = c.eps}),
      context_(c.context),
      checkpoint_(c.checkpoint) {
  nn::init::normal_(embed_tokens.weight, 0, llama_std);
  layers.reserve(static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i) layers.emplace_back(c);
  const Rotation all = rotation(c, c.context);
  cosines = all.cosines;
  sines = all.sines;
}

Tensor LlamaModel::forward(const Tensor& tokens, KeyValueCache* cache) const {
  const int64_t begin = first_position(tokens, cache, context_), t = tokens.size(1);
  const ScopedValue<&ThreadState::recording> records(grad_enabled() && !cache);
  const Rotation angles{narrow(cosines, 0, begin, t), narrow(sines, 0, begin, t)};
  const auto block = [blocks = layers.data(), angles](size_t i, const Tensor& x, KeyValues* past,
                                                      int64_t room) {
    return blocks[i](x, angles, past, room);
  };
  return norm(run_blocks(layers.size(), embed_tokens(tokens), cache, checkpoint_, block));
}

Llama::Llama(const LlamaConfig& c) : model(c), context_(c.context) {
  if (!c.tie_weights) lm_head.emplace(projection(c.width, c.vocabulary, false));
}

Tensor Llama::forward(const Tensor& tokens, KeyValueCache* cache) const {
  const ScopedValue<&ThreadState::recording> records(grad_enabled() && !cache);
  const Tensor x = model(tokens, cache);
  return lm_head ? (*lm_head)(x) : linear(x, model.embed_tokens.weight);
}
Tensor Llama::forward(const Tensor& tokens, const Tensor& targets) const {
  if (lm_head && lm_head->lora_A && lm_head->lora.dropout > 0 && lm_head->is_training())
    return next_token_loss((*lm_head)(model(tokens)), targets);
  return linear_cross_entropy(model(tokens), last_weight(), targets);
}

Tensor Llama::generate(const Tensor& tokens, int64_t count, const SampleOptions& o) const {
  const auto read = [this](const Tensor& t, KeyValueCache& cache) { return (*this)(t, &cache); };
  return models::generate(read, tokens, count, context_, o);
}

StateDict llama_weights(const StateDict& file, const LlamaConfig& c) {
  StateDict weights;
  for (const auto& [name, t] : file) {
    const bool tied = c.tie_weights && name == "lm_head.weight";
    if (!tied && !name.ends_with(".rotary_emb.inv_freq")) weights.emplace_back(name, t);
  }
  return weights;
}

Tensor LlamaBlock::Mlp::forward(const Tensor& x, const Tensor& residual) const {
  return down_proj(swiglu(gate_proj(x), up_proj(x)), residual);
}

}  // namespace mixtape::models
