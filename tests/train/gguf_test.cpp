// GGUF: the bytes of the format, read here by its description, and GPT as llama.cpp names it.

#include "train/gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "core/format.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "tests/support/data.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace mixtape::train {
namespace gguf_test {

using test::slurp;
using test::TempFolder;

constexpr models::GptConfig tiny{
    .vocabulary = 504, .context = 6, .layers = 2, .heads = 2, .width = 4};

// tokenizer_tiny.json as Llama 3 has it, in a folder.
std::string llama_tokenizer(const TempFolder& folder) {
  std::string text = slurp(test::data_file("tokenizer_tiny.json"));
  const std::string off = "\"ignore_merges\": false";
  text.replace(text.find(off), off.size(), "\"ignore_merges\": true");
  test::spit(folder / "tokenizer.json", text);
  return folder / "tokenizer.json";
}

// A file's metadata as text, and its tensors.
class GgufFile {
 public:
  explicit GgufFile(std::string bytes) : bytes_(std::move(bytes)) {
    EXPECT_EQ(take(4), "GGUF");
    EXPECT_EQ(number<uint32_t>(), 3u);
    const auto tensors = number<uint64_t>(), entries = number<uint64_t>();
    for (uint64_t i = 0; i < entries; ++i) {
      const std::string key = string();
      metadata[key] = value(number<uint32_t>());
    }
    for (uint64_t i = 0; i < tensors; ++i) {
      Place p;
      const std::string name = string();
      const auto rank = number<uint32_t>();
      for (uint32_t d = 0; d < rank; ++d) p.sizes.push_back(number<uint64_t>());
      p.type = number<uint32_t>();
      p.offset = number<uint64_t>();
      EXPECT_EQ(p.offset % 32, 0u) << name;
      places[name] = p;
    }
    data_ = (at_ + 31) / 32 * 32;
  }

  struct Place {
    std::vector<uint64_t> sizes;
    uint32_t type = 0;
    uint64_t offset = 0;
  };
  std::map<std::string, std::string> metadata;
  std::map<std::string, Place> places;

  float f32_at(const std::string& name, size_t i) const {
    float x = 0;
    std::memcpy(&x, &bytes_.at(data_ + places.at(name).offset + 4 * i), 4);
    return x;
  }
  size_t data_bytes() const { return bytes_.size() - data_; }

 private:
  std::string take(size_t n) {
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  template <class T>
  T number() {
    T x;
    std::memcpy(&x, take(sizeof x).data(), sizeof x);
    return x;
  }
  std::string string() { return take(number<uint64_t>()); }
  std::string value(uint32_t type) {
    switch (type) {
      case 4:
        return fmt::format("{}", number<uint32_t>());
      case 5:
        return fmt::format("{}", number<int32_t>());
      case 6:
        return fmt::format("{}", number<float>());
      case 8:
        return string();
      default: {
        EXPECT_EQ(type, 9u);
        const auto of = number<uint32_t>();
        std::string all;
        for (auto n = number<uint64_t>(); n > 0; --n) all += value(of) + "|";
        return all;
      }
    }
  }

  const std::string bytes_;
  size_t at_ = 0, data_ = 0;
};

TEST(Gguf, WritesTensorsAndMetadata) {
  const TempFolder folder;
  const Tensor grid = from({0, 1, 2, 3, 4, 5}, {2, 3});
  io::save_gguf(folder / "x.gguf",
                {{"grid", grid},
                 {"turned", grid.t()},
                 {"half", grid.to(f16)},
                 {"low", grid.to(bf16)},
                 {"whole", grid.to(i64)},
                 {"one", from({7}, {})}},
                {{"text", "größer"},
                 {"count", 3u},
                 {"rate", 0.5f},
                 {"names", std::vector<std::string>{"a", "", "b"}},
                 {"types", std::vector<int32_t>{1, -2}}});
  const GgufFile file(slurp(folder / "x.gguf"));
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"text", "größer"},
                                                               {"count", "3"},
                                                               {"rate", "0.5"},
                                                               {"names", "a||b|"},
                                                               {"types", "1|-2|"}}));
  EXPECT_EQ(file.places.at("grid").sizes, (std::vector<uint64_t>{3, 2}));
  EXPECT_EQ(file.places.at("one").sizes, std::vector<uint64_t>{1});
  EXPECT_EQ(file.places.at("half").type, 1u);
  EXPECT_EQ(file.places.at("low").type, 30u);
  EXPECT_EQ(file.places.at("whole").type, 27u);
  EXPECT_EQ(file.f32_at("grid", 4), 4);
  EXPECT_EQ(file.f32_at("turned", 1), 3);
  EXPECT_EQ(file.f32_at("one", 0), 7);
  EXPECT_EQ(file.data_bytes(), 32u * 7);

  EXPECT_ERROR(io::save_gguf(folder / "y", {{"a", grid.to(u8)}}, {}), "y: \"a\" is u8, which GGUF");
  EXPECT_ERROR(io::save_gguf(folder / "y", {{"a", zeros({1, 1, 1, 1, 1})}}, {}),
               "y: \"a\" has more than 4 dimensions");
  EXPECT_ERROR(io::save_gguf(folder / "y", {{"a", grid}, {"a", grid}}, {}),
               "duplicate or reserved");
  const std::string longest(63, 'a');
  EXPECT_ERROR(io::save_gguf(folder / "y", {{longest + 'a', grid}}, {}),
               "has 64 bytes, more than 63");
  EXPECT_ERROR(io::save_gguf(folder / "y", {}, {{"k", 1u}, {"k", 2u}}),
               "y: duplicate or reserved key \"k\"");
  for (const char* key : {"", "general.alignment"})
    EXPECT_ERROR(io::save_gguf(folder / "y", {}, {{key, 64u}}), "duplicate or reserved key");
  for (const io::GgufMetadata& bad :
       {io::GgufMetadata{{"\xff", 1u}}, {{"k", "\xff"}}, {{"k", std::vector<std::string>{"\xff"}}}})
    EXPECT_ERROR(io::save_gguf(folder / "y", {}, bad), "is not UTF-8");
  EXPECT_EQ(folder.count(), 1u);
  io::save_gguf(folder / "y", {{longest, grid}}, {});
}

TEST(Gguf, NamesAGptAsLlamaCppDoes) {
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  const models::Gpt net(tiny);
  save_gguf(folder / "f32.gguf", net, tiny, {.dtype = f32});
  save_gguf(folder / "f16.gguf", net, tiny,
            {.tokenizer = llama_tokenizer(folder), .end_of_text = "<|end|>", .name = "small"});
  const GgufFile file(slurp(folder / "f32.gguf")), half(slurp(folder / "f16.gguf"));
  EXPECT_EQ(file.metadata.at("general.architecture"), "gpt2");
  EXPECT_EQ(file.metadata.at("general.file_type"), "0");
  EXPECT_EQ(file.metadata.at("gpt2.block_count"), "2");
  EXPECT_EQ(file.metadata.at("gpt2.feed_forward_length"), "16");
  EXPECT_EQ(file.metadata.at("tokenizer.ggml.model"), "none");
  EXPECT_EQ(file.metadata.at("gpt2.vocab_size"), "504");
  EXPECT_EQ(file.places.size(), net.state_dict().size());
  const auto& up = file.places.at("blk.1.ffn_up.weight");
  EXPECT_EQ(up.sizes, (std::vector<uint64_t>{4, 16}));             // inputs vary first
  const Tensor ours = net.state_dict().at("h.1.mlp.c_fc.weight");  // [4, 16]
  EXPECT_EQ(file.f32_at("blk.1.ffn_up.weight", 1), float(ours.at(16)));
  EXPECT_EQ(file.f32_at("token_embd.weight", 5), float(net.state_dict().at("wte.weight").at(5)));
  for (const char* name : {"position_embd.weight", "output_norm.bias", "blk.0.attn_norm.weight"})
    EXPECT_EQ(half.places.at(name).type, 0u) << name;
  for (const char* name : {"token_embd.weight", "blk.0.attn_qkv.weight", "blk.0.ffn_down.weight"})
    EXPECT_EQ(half.places.at(name).type, 1u) << name;

  EXPECT_EQ(half.metadata.at("general.name"), "small");
  EXPECT_EQ(half.metadata.at("tokenizer.ggml.pre"), "llama-bpe");
  const std::string& tokens = half.metadata.at("tokenizer.ggml.tokens");
  EXPECT_TRUE(tokens.ends_with("|<|end|>|<|pad|>|[PAD502]|[PAD503]|"));
  EXPECT_TRUE(half.metadata.at("tokenizer.ggml.token_type").ends_with("|1|3|4|5|5|"));
  EXPECT_EQ(half.metadata.at("tokenizer.ggml.eos_token_id"), "500");
}

TEST(Gguf, WritesZerosForBiasesThatAreMissing) {
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  models::GptConfig plain = tiny;
  plain.bias = false;
  save_gguf(folder / "x.gguf", models::Gpt(plain), plain, {.dtype = f32});
  const GgufFile file(slurp(folder / "x.gguf"));
  EXPECT_EQ(file.places.size(), models::Gpt(tiny).state_dict().size());
  EXPECT_EQ(file.places.at("blk.1.attn_qkv.bias").sizes, std::vector<uint64_t>{12});
  EXPECT_EQ(file.f32_at("blk.1.attn_qkv.bias", 11), 0);
}

TEST(Gguf, RefusesWhatLlamaCppLacks) {
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  const models::Gpt net(tiny);
  const std::string tokenizer = llama_tokenizer(folder);
  models::GptConfig small = tiny;
  small.vocabulary = 100;
  EXPECT_ERROR(save_gguf(folder / "y", models::Gpt(small), small, {.tokenizer = tokenizer}),
               "is not among the model's 100");
  EXPECT_ERROR(save_gguf(folder / "y", net, small),
               "the config has 100 tokens, context 6, width 4 and 2 layers, but the model 504, 6, "
               "4 and 2");
  EXPECT_ERROR(save_gguf(folder / "y", net, tiny, {.tokenizer = tokenizer}),
               "has no added token \"<|endoftext|>\": set .end_of_text");
  EXPECT_ERROR(
      save_gguf(folder / "y", net, tiny,
                {.tokenizer = test::data_file("tokenizer_tiny.json"), .end_of_text = "<|end|>"}),
      "no such tokenizer with add_prefix_space false and ignore_merges false");
  EXPECT_ERROR(save_gguf(folder / "y", net, tiny, {.dtype = f64}),
               "the dtype must be f32, f16 or bf16, got f64");
}

constexpr models::LlamaConfig tiny_llama{.vocabulary = 504,
                                         .context = 6,
                                         .layers = 1,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .width = 8,
                                         .hidden = 6,
                                         .head_size = 4,
                                         .rope_base = 500,
                                         .rope_scaling = {.factor = 8, .original_context = 256}};

TEST(Gguf, NamesALlamaAsLlamaCppDoes) {
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  const models::Llama net(tiny_llama);
  save_gguf(folder / "x.gguf", net, tiny_llama, {.dtype = f32});
  const GgufFile file(slurp(folder / "x.gguf"));
  for (const auto& [key, text] :
       std::map<std::string, std::string>{{"general.architecture", "llama"},
                                          {"general.name", "llama"},
                                          {"llama.vocab_size", "504"},
                                          {"llama.block_count", "1"},
                                          {"llama.context_length", "6"},
                                          {"llama.embedding_length", "8"},
                                          {"llama.feed_forward_length", "6"},
                                          {"llama.attention.head_count", "4"},
                                          {"llama.attention.head_count_kv", "2"},
                                          {"llama.attention.key_length", "4"},
                                          {"llama.rope.dimension_count", "4"},
                                          {"llama.rope.freq_base", "500"},
                                          {"llama.attention.layer_norm_rms_epsilon", "1e-05"}})
    EXPECT_EQ(file.metadata.at(key), text) << key;
  EXPECT_EQ(file.places.size(), net.state_dict().size() + 1);
  EXPECT_EQ(file.f32_at("rope_freqs.weight", 0), 1);
  EXPECT_EQ(file.f32_at("rope_freqs.weight", 1), float(models::rope_divisors(tiny_llama)[1]));
  // Rows 0 and 2 of each head rotate together, and 1 and 3.
  for (const auto& [ours, theirs] :
       {std::pair("q_proj", "blk.0.attn_q.weight"), std::pair("k_proj", "blk.0.attn_k.weight")}) {
    const Tensor weight =
        net.state_dict().at(std::string("model.layers.0.self_attn.") + ours + ".weight");
    for (int64_t row = 0; row < weight.size(0); ++row) {
      const int64_t from = row / 4 * 4 + std::array{0, 2, 1, 3}[size_t(row % 4)];
      EXPECT_EQ(file.f32_at(theirs, size_t(row) * 8 + 5), float(weight.at(from * 8 + 5))) << row;
    }
  }
  EXPECT_EQ(file.f32_at("blk.0.attn_v.weight", 11),
            float(net.model.layers[0].self_attn.v_proj.weight.at(11)));

  models::LlamaConfig other = tiny_llama;
  other.rope_scaling = {.factor = 2};
  other.tie_weights = true;
  save_gguf(folder / "y.gguf", models::Llama(other), other, {.name = "mine"});
  const GgufFile linear(slurp(folder / "y.gguf"));
  EXPECT_EQ(linear.metadata.at("llama.rope.scaling.type"), "linear");
  EXPECT_EQ(linear.metadata.at("llama.rope.scaling.factor"), "2");
  EXPECT_EQ(linear.metadata.at("general.name"), "mine");
  EXPECT_FALSE(linear.places.contains("output.weight"));
  EXPECT_FALSE(linear.places.contains("rope_freqs.weight"));
  EXPECT_ERROR(save_gguf(folder / "z.gguf", net, other),
               "the config has 504 tokens, width 8, 1 layers of 6 hidden, but the model 504, 8, 1 "
               "of 6, or the last layer's weight is tied in one of them");
}

TEST(Gguf, RefusesHeadsOfAnotherLlama) {
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  models::LlamaConfig other = tiny_llama;
  other.heads = 2;
  EXPECT_ERROR(save_gguf(folder / "z", models::Llama(tiny_llama), other),
               "the config has 2 and 2 heads of 4, but the model's queries and keys 16 and 8 "
               "features");
}

TEST(Gguf, LeavesOutTokensThatAreNotNamed) {
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  const models::Llama net(tiny_llama);
  const std::string tokenizer = llama_tokenizer(folder);
  save_gguf(folder / "x", net, tiny_llama,
            {.tokenizer = tokenizer, .end_of_text = "", .begin_of_text = "<|end|>"});
  const GgufFile begins(slurp(folder / "x"));
  EXPECT_TRUE(begins.metadata.contains("tokenizer.ggml.bos_token_id"));
  EXPECT_FALSE(begins.metadata.contains("tokenizer.ggml.eos_token_id"));
  save_gguf(folder / "y", net, tiny_llama, {.tokenizer = tokenizer, .end_of_text = ""});
  EXPECT_FALSE(GgufFile(slurp(folder / "y")).metadata.contains("tokenizer.ggml.bos_token_id"));
}

TEST(Gguf, LlamaIsReadByItsPackage) {
  if (!test::python("import gguf"))
    GTEST_SKIP() << "needs Python with gguf (MIXTAPE_PYTHON names the interpreter)";
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  const models::Llama net(tiny_llama);
  io::save(folder / "x.safetensors", net);
  save_gguf(folder / "x.gguf", net, tiny_llama,
            {.dtype = f32,
             .tokenizer = llama_tokenizer(folder),
             .end_of_text = "<|end|>",
             .begin_of_text = "<|pad|>"});
  // The rule of convert_hf_to_gguf.py for the rows of q_proj and k_proj.
  EXPECT_TRUE(test::python(R"(
import sys, gguf, json, numpy
file = gguf.GGUFReader(sys.argv[1] + "/x.gguf")
raw = open(sys.argv[1] + "/x.safetensors", "rb").read()
size = int.from_bytes(raw[:8], "little")
ours = {}
for name, t in json.loads(raw[8:8 + size]).items():
    if name != "__metadata__":
        begin, end = t["data_offsets"]
        ours[name] = numpy.frombuffer(raw[8 + size + begin:8 + size + end], "f4").reshape(t["shape"])
def permute(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
theirs = {t.name: t.data for t in file.tensors}
for name, w in ours.items():
    if "q_proj" in name or "k_proj" in name:
        w = permute(w, 4 if "q_proj" in name else 2)
    assert (theirs.pop(names.get_name(name, try_suffixes=(".weight",))) == w).all(), name
assert list(theirs) == ["rope_freqs.weight"]
assert file.fields["llama.attention.head_count_kv"].contents() == 2
assert file.fields["tokenizer.ggml.bos_token_id"].contents() == 501)",
                           folder.path()));
}

TEST(Gguf, IsReadByItsPackage) {
  if (!test::python("import gguf"))
    GTEST_SKIP() << "needs Python with gguf (MIXTAPE_PYTHON names the interpreter)";
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  save_gguf(folder / "x.gguf", models::Gpt(tiny), tiny,
            {.dtype = bf16, .tokenizer = llama_tokenizer(folder), .end_of_text = "<|end|>"});
  EXPECT_TRUE(test::python(R"(
import sys, gguf
file = gguf.GGUFReader(sys.argv[1] + "/x.gguf")
known = {gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.GPT2]}
for t in file.tensors:
    name = t.name.rpartition(".")[0]
    assert name in known or "blk.{bid}." + name.split(".")[-1] in known, name
    assert t.tensor_type.name == ("BF16" if len(t.shape) == 2 and not name.startswith("position") else "F32"), name
assert file.fields["gpt2.attention.head_count"].contents() == 2
assert file.fields["tokenizer.ggml.tokens"].contents()[500] == "<|end|>"
assert len(file.fields["tokenizer.ggml.merges"].contents()) == 244)",
                           folder.path()));
}

}  // namespace gguf_test
}  // namespace mixtape::train
