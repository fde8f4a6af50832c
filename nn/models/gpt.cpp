#include "nn/models/gpt.h"

#include <cmath>

#include "core/check.h"
#include "core/format.h"
#include "nn/init.h"

namespace mixtape::models {
using namespace internal;
namespace {

constexpr double start_std = 0.02;

// Keeps the variance of the sum of all blocks independent of their number.
double residual_std(const GptConfig& c) {
  return start_std / std::sqrt(2.0 * static_cast<double>(c.layers));
}

const GptConfig& checked(const GptConfig& c) {
  const Scope scope("Gpt");
  check(c.context > 0 && c.layers > 0, "sizes must be positive: context {}, layers {}", c.context,
        c.layers);
  check(c.width > 0 && c.heads > 0 && c.width % c.heads == 0,
        "a width of {} does not divide into {} heads", c.width, c.heads);
  return c;
}

}  // namespace

Conv1D::Conv1D(int64_t in, int64_t out, bool bias, double std)
    : weight(nn::parameter(nn::init::normal_(empty({in, out}), 0, std))),
      bias(bias ? nn::parameter(zeros({out})) : Tensor()) {}

GptBlock::Attention::Attention(const GptConfig& c)
    : c_attn(c.width, 3 * c.width, c.bias, start_std),
      c_proj(c.width, c.width, c.bias, residual_std(c)),
      heads_(c.heads),
      dropout_(c.dropout) {}

Tensor GptBlock::Attention::forward(const Tensor& x, KeyValues* past, const Tensor& residual,
                                    int64_t room) const {
  check(x.rank() == 3, "the input has shape {}, not [b, t, {}]", x.shape(), c_proj.weight.size(0));
  const int64_t b = x.size(0), t = x.size(1), width = x.size(2);
  const std::vector<Tensor> parts = split_heads(c_attn(x), heads_);
  const Tensor y =
      causal_attention(parts[0], parts[1], parts[2], past, room, is_training() ? dropout_ : 0);
  return c_proj(reshape(transpose(y, 1, 2), {b, t, width}), LinearOptions{.residual = residual});
}

GptBlock::Mlp::Mlp(const GptConfig& c)
    : c_fc(c.width, 4 * c.width, c.bias, start_std),
      c_proj(4 * c.width, c.width, c.bias, residual_std(c)) {}

Tensor GptBlock::Mlp::forward(const Tensor& x, const Tensor& residual) const {
  return c_proj(c_fc(x, LinearOptions{Activation::GeluTanh}), LinearOptions{.residual = residual});
}

Tensor GptBlock::forward(const Tensor& x, KeyValues* past, int64_t room) const {
  // x + dropout(f()). If nothing is dropped, the last product in f adds x.
  const auto add = [&](const Tensor& in, const auto& f) {
    return dropout.drops() ? in + dropout(f(Tensor())) : f(in);
  };
  const Tensor y = add(x, [&](const Tensor& residual) {
    return attn(ln_1(x, nn::dtype_of_operand(attn.c_attn, x)), past, residual, room);
  });
  return add(y, [&](const Tensor& residual) {
    return mlp(ln_2(y, nn::dtype_of_operand(mlp.c_fc, y)), residual);
  });
}

GptBlock::GptBlock(const GptConfig& c)
    : ln_1(checked(c).width), attn(c), ln_2(c.width), mlp(c), dropout(c.dropout) {}

Gpt::Gpt(const GptConfig& c)
    : wte(c.vocabulary, checked(c).width),
      wpe(c.context, c.width),
      drop(c.dropout),
      ln_f(c.width),
      context_(c.context),
      checkpoint_(c.checkpoint) {
  nn::init::normal_(wte.weight, 0, start_std);
  nn::init::normal_(wpe.weight, 0, start_std);
  h.reserve(static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i) h.emplace_back(c);
}

Tensor Gpt::forward(const Tensor& tokens, KeyValueCache* cache) const {
  const ScopedValue<&ThreadState::recording> records(grad_enabled() && !cache);
  return linear(features(tokens, cache), wte.weight);
}
Tensor Gpt::forward(const Tensor& tokens, const Tensor& targets) const {
  return linear_cross_entropy(features(tokens, nullptr), wte.weight, targets);
}

Tensor Gpt::features(const Tensor& tokens, KeyValueCache* cache) const {
  const int64_t begin = first_position(tokens, cache, context_), end = begin + tokens.size(1);
  const Tensor positions = arange(double(begin), double(end), 1, i64, tokens.device());
  const auto block = [blocks = h.data()](size_t i, const Tensor& x, KeyValues* past, int64_t room) {
    return blocks[i](x, past, room);
  };
  return ln_f(run_blocks(h.size(), drop(wte(tokens) + wpe(positions)), cache, checkpoint_, block));
}

Tensor Gpt::generate(const Tensor& tokens, int64_t count, const SampleOptions& o) const {
  const auto read = [this](const Tensor& t, KeyValueCache& cache) { return (*this)(t, &cache); };
  return models::generate(read, tokens, count, context_, o);
}

StateDict gpt2_weights(const StateDict& file) {
  StateDict weights;
  for (const auto& [name, t] : file) {
    constexpr std::string_view prefix = "transformer.";
    const std::string own = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    if (own == "lm_head.weight" || own.ends_with(".attn.bias") || own.ends_with(".masked_bias"))
      continue;
    check(!weights.contains(own), "the file has {} with and without {}", own, prefix);
    weights.emplace_back(own, t);
  }
  return weights;
}

Tensor Conv1D::forward(const Tensor& x, const LinearOptions& options) const {
  if (!lora_A) return linear(x, weight.t(), bias, options);
  const Tensor added = nn::adapted(x, options.residual, lora_A, lora_B, lora, is_training());
  return linear(x, weight.t(), bias, {options.activation, added});
}

}  // namespace mixtape::models
