// Writes GPT and Llama under the names of llama.cpp, in which weights of linear layers are [out,
// in].

#include "train/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <span>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "io/gguf.h"
#include "io/text.h"
#include "train/data/tokenizer_file.h"

namespace mixtape::train {
namespace {

// Parts of our names, and llama.cpp's names for them.
using GgufNames = std::span<const std::pair<std::string_view, std::string_view>>;
constexpr std::pair<std::string_view, std::string_view> gpt_names[] = {
    {"wte.", "token_embd."},       {"wpe.", "position_embd."},
    {"ln_f.", "output_norm."},     {"h.", "blk."},
    {"ln_1.", "attn_norm."},       {"ln_2.", "ffn_norm."},
    {"attn.c_attn.", "attn_qkv."}, {"attn.c_proj.", "attn_output."},
    {"mlp.c_fc.", "ffn_up."},      {"mlp.c_proj.", "ffn_down."}};
constexpr std::pair<std::string_view, std::string_view> llama_names[] = {
    {"model.embed_tokens.", "token_embd."},
    {"model.norm.", "output_norm."},
    {"lm_head.", "output."},
    {"model.layers.", "blk."},
    {"input_layernorm.", "attn_norm."},
    {"post_attention_layernorm.", "ffn_norm."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.o_proj.", "attn_output."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."}};

std::string gguf_name(std::string name, GgufNames names) {
  for (const auto& [ours, theirs] : names) {
    const size_t at = name.find(ours);
    if (at != name.npos && (at == 0 || name[at - 1] == '.')) name.replace(at, ours.size(), theirs);
  }
  return name;
}

// llama.cpp's name for the pretokenizer, which also says if merges are ignored.
std::string pretokenizer_name(const TokenizerFile& file, const std::string& path) {
  const Pretokenizer& p = file.pretokenizer;
  const bool is_llama = !p.as_gpt2 && p.digits == 3;
  check(!p.prefix_space && file.ignore_merges == is_llama,
        "{}: llama.cpp has no such tokenizer with add_prefix_space {} and ignore_merges {}", path,
        p.prefix_space, file.ignore_merges);
  return is_llama ? "llama-bpe" : p.as_gpt2 ? "gpt-2" : "qwen2";
}

// Adds the tokenizer for a model of so many tokens; tokens that the tokenizer lacks are unused.
void add_tokenizer(const GgufOptions& options, int64_t tokens, io::GgufMetadata& metadata) {
  enum Type { Normal = 1, Control = 3, UserDefined = 4, Unused = 5 };
  const std::string& path = options.tokenizer;
  const TokenizerFile file = load_tokenizer_file(path);
  std::vector<std::string> texts(static_cast<size_t>(tokens));
  for (size_t i = 0; i < texts.size(); ++i) texts[i] = fmt::format("[PAD{}]", i);
  std::vector<int32_t> types(texts.size(), Unused);
  const auto set = [&](int64_t id, const std::string& text, Type type) {
    check(0 <= id && id < tokens, "{}: token {} is not among the model's {}", path, id, tokens);
    texts[size_t(id)] = text;
    types[size_t(id)] = type;
  };
  for (const auto& [letters, id] : file.vocabulary) set(id, letters, Normal);
  for (const AddedToken& t : file.added) set(t.id, t.text, t.special ? Control : UserDefined);
  std::vector<std::string> merges;
  for (const auto& [left, right] : file.merges) merges.push_back(left + " " + right);
  const auto added = [&](const std::string& text, const char* option) {
    const auto found = std::ranges::find(file.added, text, &AddedToken::text);
    if (found == file.added.end())
      fail("{}: has no added token {}: set .{}", path, io::quote(text), option);
    return static_cast<uint32_t>(found->id);
  };
  const bool has_own = !options.begin_of_text.empty();
  const std::string& begin = has_own ? options.begin_of_text : options.end_of_text;
  metadata.emplace_back("tokenizer.ggml.model", "gpt2");
  metadata.emplace_back("tokenizer.ggml.pre", pretokenizer_name(file, path));
  metadata.emplace_back("tokenizer.ggml.tokens", std::move(texts));
  metadata.emplace_back("tokenizer.ggml.token_type", std::move(types));
  metadata.emplace_back("tokenizer.ggml.merges", std::move(merges));
  if (!begin.empty())
    metadata.emplace_back("tokenizer.ggml.bos_token_id",
                          added(begin, has_own ? "begin_of_text" : "end_of_text"));
  if (!options.end_of_text.empty())
    metadata.emplace_back("tokenizer.ggml.eos_token_id", added(options.end_of_text, "end_of_text"));
}

void check_size(const models::Gpt& net, const models::GptConfig& c) {
  check(net.wte.weight.shape() == Shape({c.vocabulary, c.width}) &&
            net.wpe.weight.shape() == Shape({c.context, c.width}) &&
            net.h.size() == size_t(c.layers),
        "the config has {} tokens, context {}, width {} and {} layers, but the model {}, {}, {} "
        "and {}",
        c.vocabulary, c.context, c.width, c.layers, net.wte.weight.size(0), net.wpe.weight.size(0),
        net.wte.weight.size(1), net.h.size());
}

// The metadata of every architecture, and its own `sizes` and `numbers`.
io::GgufMetadata metadata_of(const std::string& architecture, const GgufOptions& options,
                             int64_t tokens,
                             std::initializer_list<std::pair<const char*, int64_t>> sizes,
                             std::initializer_list<std::pair<const char*, double>> numbers) {
  const DType dtype = options.dtype;
  check(dtype == f32 || is_half(dtype), "the dtype must be f32, f16 or bf16, got {}", dtype);
  constexpr uint32_t all_f32 = 0, mostly_f16 = 1, mostly_bf16 = 32;
  io::GgufMetadata metadata = {{"general.architecture", architecture},
                               {"general.name", options.name.empty() ? architecture : options.name},
                               {"general.file_type", dtype == f32   ? all_f32
                                                     : dtype == f16 ? mostly_f16
                                                                    : mostly_bf16},
                               {architecture + ".vocab_size", uint32_t(tokens)}};
  for (const auto& [key, size] : sizes)
    metadata.emplace_back(architecture + key, static_cast<uint32_t>(size));
  for (const auto& [key, x] : numbers)
    metadata.emplace_back(architecture + key, static_cast<float>(x));
  if (options.tokenizer.empty())
    metadata.emplace_back("tokenizer.ggml.model", "none");
  else
    add_tokenizer(options, tokens, metadata);
  return metadata;
}

// Reorders a head's rows, so that two rows that rotate together are neighbours.
Tensor paired_rows(const Tensor& weight, int64_t heads) {
  const Tensor halves = reshape(weight, {heads, 2, weight.size(0) / heads / 2, -1});
  return reshape(transpose(halves, 1, 2), weight.shape());
}

void check_size(const models::Llama& net, const models::LlamaConfig& c) {
  const auto& layers = net.model.layers;
  check(
      layers.size() == size_t(c.layers) &&
          net.model.embed_tokens.weight.shape() == Shape({c.vocabulary, c.width}) &&
          layers[0].mlp.gate_proj.weight.size(0) == c.hidden && bool(net.lm_head) != c.tie_weights,
      "the config has {} tokens, width {}, {} layers of {} hidden, but the model {}, {}, {} of "
      "{}, or the last layer's weight is tied in one of them",
      c.vocabulary, c.width, c.layers, c.hidden, net.model.embed_tokens.weight.size(0),
      net.model.embed_tokens.weight.size(1), layers.size(), layers[0].mlp.gate_proj.weight.size(0));
  const int64_t head = c.head_size > 0 ? c.head_size : c.width / c.heads,
                q = layers[0].self_attn.q_proj.weight.size(0),
                k = layers[0].self_attn.k_proj.weight.size(0);
  check(q == c.heads * head && k == c.kv_heads * head,
        "the config has {} and {} heads of {}, but the model's queries and keys {} and {} features",
        c.heads, c.kv_heads, head, q, k);
}

}  // namespace

void save_gguf(const std::string& path, const models::Gpt& net, const models::GptConfig& config,
               const GgufOptions& options) {
  check_size(net, config);
  const io::GgufMetadata metadata = metadata_of("gpt2", options, config.vocabulary,
                                                {{".block_count", config.layers},
                                                 {".context_length", config.context},
                                                 {".embedding_length", config.width},
                                                 {".feed_forward_length", 4 * config.width},
                                                 {".attention.head_count", config.heads}},
                                                {{".attention.layer_norm_epsilon", 1e-5}});
  const NoGrad off;
  StateDict tensors;
  for (const auto& [name, t] : net.state_dict()) {
    const bool turned = name.find(".c_") != name.npos && t.rank() == 2;  // models::Conv1D
    const bool narrow = t.rank() == 2 && !name.starts_with("wpe.");
    const Tensor weight = (turned ? t.t() : t).detach();
    tensors.emplace_back(gguf_name(name, gpt_names), weight.to(narrow ? options.dtype : f32));
    if (turned && !config.bias)
      tensors.emplace_back(gguf_name(name.substr(0, name.rfind('.')) + ".bias", gpt_names),
                           zeros({weight.size(0)}));
  }
  io::save_gguf(path, tensors, metadata);
}

void save_gguf(const std::string& path, const models::Llama& net, const models::LlamaConfig& c,
               const GgufOptions& options) {
  check_size(net, c);
  for (const auto& [name, t] : net.state_dict())
    check(!name.ends_with(".lora_A"), "{} is of an adapter: merge_lora() before", name);
  const int64_t head_size = net.model.layers[0].self_attn.q_proj.weight.size(0) / c.heads;
  io::GgufMetadata metadata =
      metadata_of("llama", options, c.vocabulary,
                  {{".block_count", c.layers},
                   {".context_length", c.context},
                   {".embedding_length", c.width},
                   {".feed_forward_length", c.hidden},
                   {".attention.head_count", c.heads},
                   {".attention.head_count_kv", c.kv_heads},
                   {".attention.key_length", head_size},
                   {".attention.value_length", head_size},
                   {".rope.dimension_count", head_size}},
                  {{".attention.layer_norm_rms_epsilon", c.eps}, {".rope.freq_base", c.rope_base}});
  const NoGrad off;
  StateDict tensors;
  if (c.rope_scaling.original_context > 0) {
    const std::vector<double> divisors = models::rope_divisors(c);
    tensors.emplace_back("rope_freqs.weight", from_data(divisors).to(f32));
  } else if (c.rope_scaling.factor != 1) {
    metadata.emplace_back("llama.rope.scaling.type", "linear");
    metadata.emplace_back("llama.rope.scaling.factor", float(c.rope_scaling.factor));
  }
  for (const auto& [name, t] : net.state_dict()) {
    const bool is_q = name.find(".q_proj.") != name.npos, is_k = name.find(".k_proj.") != name.npos;
    const Tensor weight = t.detach().to(t.rank() == 2 ? options.dtype : f32);
    tensors.emplace_back(gguf_name(name, llama_names),
                         is_q || is_k ? paired_rows(weight, is_q ? c.heads : c.kv_heads) : weight);
  }
  io::save_gguf(path, tensors, metadata);
}

}  // namespace mixtape::train
