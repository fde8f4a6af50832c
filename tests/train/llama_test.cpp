// Llama and adapters from folders of Hugging Face: configurations, weights, and what is wrong with
// them.

#include "train/llama.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/format.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "nn/init.h"
#include "nn/models/gpt.h"
#include "tests/support/data.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"
#include "train/config_reader.h"
#include "train/gguf.h"
#include "train/lora.h"

namespace mixtape::train {
TEST(ConfigReader, KnowsThePathsOfListsOfObjects) {
  const std::string name = "c";
  ConfigReader c(name);
  io::parse_json(R"({"a": [{"b": -1}, {"b": -2, "c": [[3], [4]]}, 5], "d": -2.5})", name, 0, c);
  EXPECT_EQ(c.list<double>("a.b"), (std::vector<double>{-1, -2}));
  EXPECT_EQ(c.list<int64_t>("a.b"), (std::vector<int64_t>{-1, -2}));
  EXPECT_EQ(c.list<int64_t>("a.c"), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(c.value<int64_t>("a"), 5);
  EXPECT_EQ(c.value<double>("d"), -2.5);
}

namespace llama_folder_test {

using test::slurp;
using test::TempFolder;

std::string config_with(std::string_view from, std::string_view to) {
  std::string text = slurp(test::data_file("llama_config.json"));
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(LlamaConfig, IsThatOfTransformers) {
  const LlamaFile file =
      parse_llama_config(config_with("\"eos_token_id\": null", "\"eos_token_id\": [3, 4]"), "c");
  const models::LlamaConfig& c = file.config;
  EXPECT_EQ((std::vector{c.vocabulary, c.context, c.layers, c.heads, c.kv_heads, c.width, c.hidden,
                         c.head_size}),
            (std::vector<int64_t>{11, 16, 2, 4, 2, 8, 12, 4}));
  EXPECT_EQ(c.eps, 1e-5);
  EXPECT_EQ(c.rope_base, 500);
  EXPECT_EQ(c.rope_scaling.factor, 4);
  EXPECT_EQ(c.rope_scaling.original_context, 32);
  EXPECT_FALSE(c.tie_weights || c.attention_bias || c.mlp_bias);
  EXPECT_EQ(file.begin_of_text, std::vector<int64_t>{1});
  EXPECT_EQ(file.end_of_text, (std::vector<int64_t>{3, 4}));
}

// As files had it before transformers 5.
TEST(LlamaConfig, ReadsOldFiles) {
  const std::string sizes = R"("vocab_size": 11, "num_hidden_layers": 2, "num_attention_heads": 4,
    "hidden_size": 8, "intermediate_size": 12, "tie_word_embeddings": true, "eos_token_id": 2)";
  const LlamaFile plain = parse_llama_config("{" + sizes + ", \"rope_scaling\": null}", "c");
  EXPECT_EQ(plain.config.kv_heads, 4);
  EXPECT_EQ(plain.config.eps, 1e-6);
  EXPECT_EQ(plain.config.rope_base, 1e4);
  EXPECT_TRUE(plain.config.tie_weights);
  EXPECT_EQ(plain.end_of_text, std::vector<int64_t>{2});
  const auto scaled = [&](const std::string& scaling) {
    return parse_llama_config(
               "{" + sizes + ", \"rope_theta\": 500000.0, \"rope_scaling\": {" + scaling + "}}",
               "c")
        .config;
  };
  EXPECT_EQ(scaled(R"("type": "linear", "factor": 2)").rope_scaling.factor, 2);
  const auto llama3 = scaled(R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
    "high_freq_factor": 4, "original_max_position_embeddings": 8192)");
  EXPECT_EQ(llama3.rope_base, 5e5);
  EXPECT_EQ(llama3.rope_scaling.original_context, 8192);
  EXPECT_ERROR(scaled(R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
    "high_freq_factor": 4, "original_max_position_embeddings": 8192)"),
               "c: low_freq_factor 4 must be less than high_freq_factor 4");
  const LlamaFile newer = parse_llama_config(
      "{" + sizes +
          R"(, "rope_theta": 7, "rope_parameters": {"rope_type": "linear", "factor": 2}})",
      "c");
  EXPECT_EQ(newer.config.rope_scaling.factor, 2);
  EXPECT_EQ(newer.config.rope_base, 7);
  EXPECT_ERROR(scaled(R"("type": "yarn", "factor": 2)"),
               "c: rope_type is \"yarn\", not default, linear or llama3");
}

TEST(LlamaConfig, SaysWhatIsWrong) {
  const auto refusal = [](const char* from, const char* to) {
    return test::error([&] { parse_llama_config(config_with(from, to), "c"); });
  };
  EXPECT_EQ(refusal("\"llama\"", "\"qwen2\""), "c: model_type is \"qwen2\", not llama");
  EXPECT_EQ(refusal("\"silu\"", "\"gelu\""), "c: hidden_act is \"gelu\", not silu");
  EXPECT_EQ(refusal("\"vocab_size\": 11", "\"size\": 11"), "c: has no vocab_size");
  EXPECT_EQ(refusal("\"vocab_size\": 11", "\"vocab_size\": \"x\""),
            "c: vocab_size has the wrong type: \"x\"");
  EXPECT_EQ(refusal("\"vocab_size\": 11", "\"vocab_size\": [1, 2]"),
            "c: has 2 values of vocab_size");
  EXPECT_EQ(refusal("\"vocab_size\": 11", "\"vocab_size\": -1"),
            "c: vocab_size must be from 1 to 16777216, got -1");
  EXPECT_ERROR(parse_llama_config("[1]", "c"), "c: is not an object");
  EXPECT_ERROR(parse_llama_config("1", "c"), "c: is not an object");
  EXPECT_ERROR(parse_llama_config(R"({"a": [[[[[[[[1]]]]]]]]})", "c"), "c: nests deeper than 8");
}

TEST(LoadLlama, ReadsAFolder) {
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  test::spit(folder / "config.json", slurp(test::data_file("llama_config.json")));
  const models::LlamaConfig c =
      parse_llama_config(slurp(test::data_file("llama_config.json")), "c").config;
  const models::Llama net(c);
  io::save(folder / "model.safetensors", net);
  const Tensor tokens = from({1, 2, 3}, {1, 3}, i64);
  EXPECT_TRUE(equal(load_llama(folder.path()).net(tokens), net(tokens)));
  const models::Llama other(c);
  io::save_sharded(folder / "model.safetensors", other.state_dict(), {.max_bytes = 2000});
  EXPECT_TRUE(equal(load_llama(folder.path()).net(tokens), other(tokens)));

  test::spit(folder / "config.json", config_with("\"hidden_size\": 8", "\"hidden_size\": 1048576"));
  EXPECT_ERROR(load_llama(folder.path()),
               "model.embed_tokens.weight has shape [11, 8], but by config.json [11, 1048576]");
  test::spit(folder / "config.json", config_with("layers\": 2", "layers\": 1000000"));
  EXPECT_ERROR(load_llama(folder.path()), "has no model.layers.999999.self_attn.q_proj.weight");
}

TEST(LoadLlama, IsThatOfTransformers) {
  if (!test::python("import transformers, torch"))
    GTEST_SKIP() << "needs Python with transformers (MIXTAPE_PYTHON names the interpreter)";
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  ASSERT_TRUE(test::python(R"(
import sys, torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(1)
model = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                                     tie_word_embeddings=True, initializer_range=0.3))
model.save_pretrained(sys.argv[1])
tokens = torch.randint(50, (2, 20))
save_file({"tokens": tokens, "logits": model(tokens).logits.detach()}, sys.argv[1] + "/expected.safetensors"))",
                           folder.path()));
  const LoadedLlama loaded = load_llama(folder.path());
  const StateDict expected = io::load(folder / "expected.safetensors").tensors;
  EXPECT_TRUE(loaded.config.tie_weights);
  EXPECT_TRUE(allclose(loaded.net(expected.at("tokens")), expected.at("logits"), 1e-4, 1e-4));
}

void stir(nn::ModuleBase& net) {
  const NoGrad off;
  for (const auto& [name, t] : nn::lora_state_dict(net)) nn::init::normal_(t, 0, 0.3);
}

TEST(LoraFolder, IsReadAgain) {
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  const models::LlamaConfig c =
      parse_llama_config(slurp(test::data_file("llama_config.json")), "c").config;
  const Seed seed(1);
  models::Llama net(c), other = net.clone(), all = net.clone();
  const Tensor tokens = from({1, 2, 3}, {1, 3}, i64);
  const nn::LoraOptions options{
      .rank = 2, .alpha = 3, .dropout = 0.25, .targets = {"q_proj", "down_proj"}};
  EXPECT_ERROR(save_lora(folder / "a", net, options), "there are no adapters to save");
  nn::add_lora(net, options);
  stir(net);
  const std::string own =
      "model.layers.0.self_attn.q_proj has an adapter of rank 2 and alpha 3, but the options say ";
  EXPECT_ERROR(save_lora(folder / "a", net, {.rank = 4, .alpha = 6}), own + "4 and 6");
  EXPECT_ERROR(save_lora(folder / "a", net, {.rank = 2, .alpha = 4}), own + "2 and 4");
  save_lora(folder / "a", net, options);
  const nn::LoraOptions read = load_lora(folder / "a", other);
  EXPECT_EQ(read.rank, 2);
  EXPECT_EQ(read.alpha, 3);
  EXPECT_EQ(read.dropout, 0.25);
  EXPECT_EQ(read.targets, (std::vector<std::string>{
                              "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj",
                              "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"}));
  net.eval();
  other.eval();
  EXPECT_TRUE(equal(net(tokens), other(tokens)));
  EXPECT_ERROR(save_gguf(folder / "x", net, c),
               "model.layers.0.self_attn.q_proj.lora_A is of an adapter: merge_lora() before");

  nn::add_lora(all, {});
  save_lora(folder / "all", all, {});
  models::Llama more(c);
  // (PEFT reads "all-linear" as all but the last layer.)
  EXPECT_EQ(load_lora(folder / "all", more).targets.size(), 15u);
  models::Llama low(c);
  low.to(bf16);
  EXPECT_EQ(load_lora(folder / "a", low).dtype, f32);
  EXPECT_EQ(nn::lora_state_dict(low)[0].second.dtype(), f32);
  const std::string config = slurp(folder / "a/adapter_config.json");
  EXPECT_NE(config.find("\"fan_in_fan_out\": false"), config.npos);
  models::Gpt gpt(
      {.vocabulary = 9, .context = 4, .layers = 1, .heads = 1, .width = 4, .dropout = 0}),
      second = gpt.clone();
  nn::add_lora(gpt, {.rank = 2, .targets = {"c_attn", "c_fc"}});
  stir(gpt);
  save_lora(folder / "gpt", gpt, {.rank = 2});
  EXPECT_NE(slurp(folder / "gpt/adapter_config.json").find("\"fan_in_fan_out\": true"),
            std::string::npos);
  EXPECT_EQ(io::load(folder / "gpt/adapter_model.safetensors").tensors[0].first,
            "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight");
  EXPECT_EQ(load_lora(folder / "gpt", second).targets,
            (std::vector<std::string>{"h.0.attn.c_attn", "h.0.mlp.c_fc"}));
  EXPECT_TRUE(equal(gpt(tokens), second(tokens)));
  const auto refusal = [&](std::string_view from, std::string_view to) {
    std::string text = config;
    test::spit(folder / "a/adapter_config.json", text.replace(text.find(from), from.size(), to));
    return test::error([&] { load_lora(folder / "a", more); });
  };
  EXPECT_TRUE(refusal("LORA", "IA3").ends_with("peft_type is \"IA3\", not LORA"));
  EXPECT_TRUE(refusal("\"none\"", "\"all\"").ends_with("bias is \"all\", not none"));
  EXPECT_TRUE(refusal("\"r\"", "\"use_dora\": true, \"r\"")
                  .ends_with("use_dora and use_rslora must be false"));
  EXPECT_TRUE(refusal("\"r\"", "\"alpha_pattern\": {\"q_proj\": 4}, \"r\"")
                  .ends_with("alpha_pattern must be empty: all adapters have one rank and alpha"));
  EXPECT_TRUE(refusal("\"r\"", "\"rank_pattern\": {\"q.v_proj\": 4}, \"r\"")
                  .ends_with("rank_pattern must be empty: all adapters have one rank and alpha"));
  EXPECT_NE(refusal("\"r\"", "\"init_lora_weights\": \"pissa_niter_4\", \"r\"")
                .find("pissa_niter_4 changes the network's own weights"),
            std::string::npos);
  models::Llama fresh(c);
  test::spit(folder / "a/adapter_config.json", config);
  std::string text = config;
  test::spit(folder / "a/adapter_config.json", text.replace(text.find("\"r\": 2"), 6, "\"r\": 3"));
  const std::string weights = folder / "a/adapter_model.safetensors";
  EXPECT_ERROR(load_lora(folder / "a", fresh),
               weights +
                   ": was saved with r \"2\", but "
                   "adapter_config.json says 3: they are not of one save");
  io::save(weights, io::load(weights).tensors, {{"format", "pt"}});  // as PEFT does
  EXPECT_ERROR(load_lora(folder / "a", fresh), "has shape [2, 8], not [3, 8]");
  EXPECT_TRUE(nn::lora_state_dict(fresh).empty());
  EXPECT_TRUE(fresh.lm_head->weight.requires_grad());
}

// A process may be killed when it has replaced one of the two files.
TEST(LoraFolder, IsOfOneSave) {
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  const auto saved = [&](const char* name, double alpha) {
    nn::Linear net(4, 3);
    nn::add_lora(net, {.rank = 2, .alpha = alpha});
    save_lora(folder / name, net, {.rank = 2, .alpha = alpha});
  };
  saved("old", 0.1);
  saved("new", 16);
  const auto file = [&](const char* name) { return folder / name + "/adapter_model.safetensors"; };
  EXPECT_EQ(io::load(file("new")).metadata,
            (io::Metadata{{"format", "pt"}, {"lora_alpha", "16"}, {"r", "2"}}));
  std::filesystem::rename(file("new"), file("old"));
  nn::Linear net(4, 3);
  EXPECT_ERROR(load_lora(folder / "old", net),
               "was saved with lora_alpha \"16\", but adapter_config.json says 0.1");
  EXPECT_FALSE(net.lora_A);
  saved("old", 0.1);
  EXPECT_EQ(load_lora(folder / "old", net).alpha, 0.1);
  test::spit(folder / "file", "x");
  EXPECT_ERROR(saved("file", 1), "file: ");
  EXPECT_ERROR(saved("file/in", 1), "file/in: cannot make this folder: Not a directory");
}

TEST(LoraFolder, IsThatOfPeft) {
  if (!test::python("import transformers, torch, peft"))
    GTEST_SKIP()
        << "needs Python with transformers and peft (MIXTAPE_PYTHON names the interpreter)";
  const DefaultDevice here(Device::cpu());
  const TempFolder folder;
  ASSERT_TRUE(test::python(R"(
import sys
from transformers import LlamaConfig, LlamaForCausalLM
LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                             num_attention_heads=4, max_position_embeddings=64, initializer_range=0.3)
                 ).save_pretrained(sys.argv[1]))",
                           folder.path()));
  LoadedLlama ours = load_llama(folder.path());
  const nn::LoraOptions options{.rank = 4, .alpha = 6, .targets = {"q_proj", "down_proj"}};
  nn::add_lora(ours.net, options);
  const Seed seed(2);
  stir(ours.net);
  save_lora(folder / "ours", ours.net, options);
  ASSERT_TRUE(test::python(R"(
import sys, torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import LlamaForCausalLM
model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(sys.argv[1]), sys.argv[1] + "/ours")
tokens = torch.randint(50, (2, 20))
save_file({"tokens": tokens, "logits": model(tokens).logits.detach()}, sys.argv[1] + "/expected.safetensors")
model.save_pretrained(sys.argv[1] + "/theirs"))",
                           folder.path()));
  const StateDict expected = io::load(folder / "expected.safetensors").tensors;
  LoadedLlama theirs = load_llama(folder.path());
  load_lora(folder / "theirs", theirs.net);
  for (const LoadedLlama* loaded : {&ours, &theirs})
    EXPECT_TRUE(allclose(loaded->net(expected.at("tokens")), expected.at("logits"), 1e-4, 1e-4));
}

}  // namespace llama_folder_test
}  // namespace mixtape::train
