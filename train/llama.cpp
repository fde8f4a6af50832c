// Takes from the events of a config.json what Llama needs, by the path of keys.

#include "train/llama.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <optional>

#include "core/check.h"
#include "core/format.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/text.h"

namespace mixtape::train {
namespace {

using io::JsonScalar;

// All values by their paths, such as "rope_scaling.factor"; those of a list have one path.
class ConfigReader final : public io::JsonEvents {
 public:
  explicit ConfigReader(const std::string& name) : name_(name) {}

  void open(char bracket) override {
    check(bracket == '{' || !path_.empty(), "{}: is no object", name_);
    check(path_.size() < 8, "{}: nests deeper than 8", name_);
    path_.push_back(path_.empty() ? "" : bracket == '{' ? key_ + "." : key_);
  }
  void close() override { path_.pop_back(); }
  void key(std::string& name) override { key_ = path_.back() + name; }
  void scalar(JsonScalar& value) override {
    check(!path_.empty(), "{}: is no object", name_);
    if (!std::holds_alternative<std::nullptr_t>(value)) all_[key_].push_back(std::move(value));
  }

  // The value of a key; if there is none, `otherwise`, without which it must be there.
  template <class T>
  T value(const std::string& key, std::optional<T> otherwise = {}) const {
    const auto found = all_.find(key);
    if (found == all_.end()) {
      check(otherwise.has_value(), "{}: has no {}", name_, key);
      return *otherwise;
    }
    check(found->second.size() == 1, "{}: has {} values of {}", name_, found->second.size(), key);
    return as<T>(key, found->second[0]);
  }
  int64_t size(const std::string& key, std::optional<int64_t> otherwise = {}) const {
    constexpr int64_t most = 1 << 24;
    const auto n = value<int64_t>(key, otherwise);
    check((0 < n && n <= most) || n == otherwise, "{}: {} must be from 1 to {}, got {}", name_, key,
          most, n);
    return n;
  }
  void expect(const std::string& key, const std::string& wanted) const {
    const auto found = value<std::string>(key, wanted);
    check(found == wanted, "{}: {} is {}, not {}", name_, key, io::quote(found), wanted);
  }
  std::vector<int64_t> list(const std::string& key) const {
    std::vector<int64_t> numbers;
    if (const auto found = all_.find(key); found != all_.end())
      for (const JsonScalar& x : found->second) numbers.push_back(as<int64_t>(key, x));
    return numbers;
  }
  bool has(const std::string& key) const { return all_.contains(key); }

 private:
  template <class T>
  T as(const std::string& key, const JsonScalar& x) const {
    if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
      if (const auto* whole = std::get_if<uint64_t>(&x); whole && *whole < uint64_t{1} << 53)
        return static_cast<T>(*whole);
    }
    if (const auto* same = std::get_if<T>(&x)) return *same;
    fail("{}: {} has the wrong type: {}", name_, key, io::quote(io::json_text(x)));
  }

  const std::string& name_;
  std::vector<std::string> path_;
  std::string key_;
  std::map<std::string, std::vector<JsonScalar>> all_;
};

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
  return s;
}

// The weights have the config's sizes: found before a model of these sizes is made.
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
      file.has("rope_parameters.rope_theta") ? "rope_parameters." : "rope_scaling.";
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
  return {c, file.list("bos_token_id"), file.list("eos_token_id")};
}

LoadedLlama load_llama(const std::string& folder) {
  const std::filesystem::path in(folder);
  const std::string config = (in / "config.json").string(),
                    index = (in / "model.safetensors.index.json").string();
  const std::vector<std::byte> text = io::read_file(config);
  const LlamaFile file =
      parse_llama_config({reinterpret_cast<const char*>(text.data()), text.size()}, config);
  const bool sharded = std::filesystem::exists(index);
  const std::string path = sharded ? index : (in / "model.safetensors").string();
  const StateDict weights = models::llama_weights(io::load(path).tensors, file.config);
  check_weights(weights, file.config, path);
  LoadedLlama loaded{file, models::Llama(file.config)};
  loaded.net.load_state_dict(weights);
  return loaded;
}

}  // namespace mixtape::train
