// Reads the values that Llama needs from a config.json.

#include "train/llama.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/check.h"
#include "core/format.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "train/config_reader.h"

namespace mixtape::train {
namespace {

models::RopeScaling rope_scaling(const ConfigReader& file, const std::string& in,
                                 const std::string& name) {
  const auto type = file.value<std::string>(
      in + "rope_type", file.value<std::string>(in + "type", std::string("default")));
  if (type == "default") return {};
  models::RopeScaling s{.factor = file.value<double>(in + "factor")};
  if (type == "linear") return s;
  check(type == "llama3", "{}: rope_type is {}, not default, linear or llama3", name,
        io::quote(type));
  s.original_context = file.size(in + "original_max_position_embeddings");
  s.low_freq_factor = file.value<double>(in + "low_freq_factor");
  s.high_freq_factor = file.value<double>(in + "high_freq_factor");
  check(s.low_freq_factor < s.high_freq_factor,
        "{}: low_freq_factor {} must be less than high_freq_factor {}", name, s.low_freq_factor,
        s.high_freq_factor);
  return s;
}

// Throws Error unless the weights have the config's sizes, before a model of these sizes is made.
void check_weights(const StateDict& weights, const models::LlamaConfig& c,
                   const std::string& name) {
  const auto expect = [&](const std::string& tensor, const Shape& shape) {
    check(weights.contains(tensor), "{}: has no {}", name, tensor);
    const Tensor t = weights.at(tensor);
    check(t.shape() == shape, "{}: {} has shape {}, but by config.json {}", name, tensor, t.shape(),
          shape);
  };
  const int64_t head = c.head_size > 0 ? c.head_size : c.width / c.heads;
  const std::string last = fmt::format("model.layers.{}.", c.layers - 1);
  expect("model.embed_tokens.weight", {c.vocabulary, c.width});
  expect(last + "self_attn.q_proj.weight", {c.heads * head, c.width});
  expect(last + "self_attn.k_proj.weight", {c.kv_heads * head, c.width});
  expect(last + "mlp.gate_proj.weight", {c.hidden, c.width});
}

}  // namespace

LlamaFile parse_llama_config(std::string_view json, const std::string& name) {
  ConfigReader file(name);
  io::parse_json(json, name, 0, file);
  file.expect("model_type", "llama");
  file.expect("hidden_act", "silu");
  const std::string rope =
      file.has_within("rope_parameters") ? "rope_parameters." : "rope_scaling.";
  models::LlamaConfig c;
  c.vocabulary = file.size("vocab_size");
  c.context = file.size("max_position_embeddings", 2048);
  c.layers = file.size("num_hidden_layers");
  c.heads = file.size("num_attention_heads");
  c.kv_heads = file.size("num_key_value_heads", c.heads);
  c.width = file.size("hidden_size");
  c.hidden = file.size("intermediate_size");
  c.head_size = file.size("head_dim", 0);
  c.eps = file.value<double>("rms_norm_eps", 1e-6);
  c.rope_base = file.value<double>(rope + "rope_theta", file.value<double>("rope_theta", 1e4));
  c.rope_scaling = rope_scaling(file, rope, name);
  c.tie_weights = file.value<bool>("tie_word_embeddings", false);
  c.attention_bias = file.value<bool>("attention_bias", false);
  c.mlp_bias = file.value<bool>("mlp_bias", false);
  return {c, file.list<int64_t>("bos_token_id"), file.list<int64_t>("eos_token_id")};
}

LoadedLlama load_llama(const std::string& folder) {
  const std::filesystem::path in(folder);
  const std::string config = (in / "config.json").string(),
                    index = (in / "model.safetensors.index.json").string();
  const LlamaFile file = parse_llama_config(io::as_text(io::read_file(config)), config);
  const bool sharded = std::filesystem::exists(index);
  const std::string path = sharded ? index : (in / "model.safetensors").string();
  const StateDict weights = models::llama_weights(io::load(path).tensors, file.config);
  check_weights(weights, file.config, path);
  LoadedLlama loaded{file, models::Llama(file.config)};
  loaded.net.load_state_dict(weights);
  return loaded;
}

}  // namespace mixtape::train
