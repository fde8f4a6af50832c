// A GPT under the names of llama.cpp, whose weights of linear layers are [out, in].

#include "train/gguf.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "io/gguf.h"
#include "io/text.h"
#include "train/data/tokenizer_file.h"

namespace mixtape::train {
namespace {

// The names of llama.cpp for what ours contain.
constexpr std::pair<std::string_view, std::string_view> gguf_names[] = {
    {"wte.", "token_embd."},       {"wpe.", "position_embd."},
    {"ln_f.", "output_norm."},     {"h.", "blk."},
    {"ln_1.", "attn_norm."},       {"ln_2.", "ffn_norm."},
    {"attn.c_attn.", "attn_qkv."}, {"attn.c_proj.", "attn_output."},
    {"mlp.c_fc.", "ffn_up."},      {"mlp.c_proj.", "ffn_down."}};

std::string gguf_name(std::string name) {
  for (const auto& [ours, theirs] : gguf_names) {
    const size_t at = name.find(ours);
    if (at != name.npos && (at == 0 || name[at - 1] == '.')) name.replace(at, ours.size(), theirs);
  }
  return name;
}

// The name of llama.cpp for the pretokenizer, which also says whether merges are ignored.
std::string pretokenizer_name(const TokenizerFile& file, const std::string& path) {
  const Pretokenizer& p = file.pretokenizer;
  const bool is_llama = !p.as_gpt2 && p.digits == 3;
  check(!p.prefix_space && file.ignore_merges == is_llama,
        "{}: llama.cpp has no such tokenizer with add_prefix_space {} and ignore_merges {}", path,
        p.prefix_space, file.ignore_merges);
  return is_llama ? "llama-bpe" : p.as_gpt2 ? "gpt-2" : "qwen2";
}

// The tokenizer's part, for a model of so many tokens; those that the tokenizer lacks are unused.
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
  const auto end = std::ranges::find(file.added, options.end_of_text, &AddedToken::text);
  if (end == file.added.end())
    fail("{}: has no added token {}: set .end_of_text", path, io::quote(options.end_of_text));
  metadata.emplace_back("tokenizer.ggml.model", "gpt2");
  metadata.emplace_back("tokenizer.ggml.pre", pretokenizer_name(file, path));
  metadata.emplace_back("tokenizer.ggml.tokens", std::move(texts));
  metadata.emplace_back("tokenizer.ggml.token_type", std::move(types));
  metadata.emplace_back("tokenizer.ggml.merges", std::move(merges));
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"})
    metadata.emplace_back(key, uint32_t(end->id));
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

}  // namespace

void save_gguf(const std::string& path, const models::Gpt& net, const models::GptConfig& config,
               const GgufOptions& options) {
  const DType dtype = options.dtype;
  check(dtype == f32 || is_half(dtype), "the dtype must be f32, f16 or bf16, got {}", dtype);
  check_size(net, config);
  constexpr uint32_t all_f32 = 0, mostly_f16 = 1, mostly_bf16 = 32;
  const auto number = [](int64_t x) { return static_cast<uint32_t>(x); };
  io::GgufMetadata metadata = {{"general.architecture", "gpt2"},
                               {"general.name", options.name},
                               {"general.file_type", dtype == f32   ? all_f32
                                                     : dtype == f16 ? mostly_f16
                                                                    : mostly_bf16},
                               {"gpt2.vocab_size", number(config.vocabulary)},
                               {"gpt2.block_count", number(config.layers)},
                               {"gpt2.context_length", number(config.context)},
                               {"gpt2.embedding_length", number(config.width)},
                               {"gpt2.feed_forward_length", number(4 * config.width)},
                               {"gpt2.attention.head_count", number(config.heads)},
                               {"gpt2.attention.layer_norm_epsilon", 1e-5f}};
  if (options.tokenizer.empty())
    metadata.emplace_back("tokenizer.ggml.model", "none");
  else
    add_tokenizer(options, config.vocabulary, metadata);
  const NoGrad off;
  StateDict tensors;
  for (const auto& [name, t] : net.state_dict()) {
    const bool turned = name.find(".c_") != name.npos && t.rank() == 2;  // models::Conv1D
    const bool narrow = t.rank() == 2 && !name.starts_with("wpe.");
    const Tensor weight = (turned ? t.t() : t).detach();
    tensors.emplace_back(gguf_name(name), weight.to(narrow ? dtype : f32));
    if (turned && !config.bias)
      tensors.emplace_back(gguf_name(name.substr(0, name.rfind('.')) + ".bias"),
                           zeros({weight.size(0)}));
  }
  io::save_gguf(path, tensors, metadata);
}

}  // namespace mixtape::train
