// LoRA: adapters start without effect, learn alone, merge, and travel under PEFT's names.

#include "nn/lora.h"

#include <gtest/gtest.h>

#include <cmath>

#include "amp/amp.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "optim/optim.h"
#include "tests/support/errors.h"

namespace mixtape::nn {
namespace lora_test {

using models::next_token_loss;
using test::error;

models::Llama small() {
  const Seed seed(1);
  return models::Llama({.vocabulary = 11,
                        .context = 16,
                        .layers = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .width = 8,
                        .hidden = 12});
}
const Tensor& text() {
  static const Tensor tokens = [] {
    const DefaultDevice here(Device::cpu());
    return from({1, 5, 3, 9, 9, 2, 7, 4, 0, 10, 6, 8}, {2, 6}, i64);
  }();
  return tokens;
}
// Adapters that change results.
void stir(ModuleBase& net) {
  const NoGrad off;
  const Seed seed(3);
  for (const auto& [name, t] : lora_state_dict(net)) init::normal_(t, 0, 0.5);
}

TEST(Lora, StartsWithoutEffectAndLearnsAlone) {
  models::Llama net = small();
  const Tensor tokens = text().to(DefaultDevice::current()), before = net(tokens);
  const int64_t all = net.num_parameters();
  const auto paths = add_lora(net, {.rank = 2, .alpha = 4, .targets = {"q_proj", "mlp.up_proj"}});
  EXPECT_EQ(paths, (std::vector<std::string>{
                       "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj",
                       "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"}));
  EXPECT_TRUE(equal(net(tokens), before));
  EXPECT_EQ(net.num_parameters(), all + 2 * 2 * (8 + 8) + 2 * 2 * (8 + 12));
  next_token_loss(net(tokens), tokens).backward();
  for (const auto& [name, p] : net.named_parameters()) {
    const bool adapter = name.ends_with(".lora_A") || name.ends_with(".lora_B");
    EXPECT_EQ(p.requires_grad(), adapter) << name;
    EXPECT_EQ(p.has_grad(), adapter) << name;
  }
}

// One layer against the formula; with an activation and a residual, which come after it.
TEST(Lora, AddsTheProductOfItsMatrices) {
  const Seed seed(2);
  Linear layer(6, 4, {.activation = Activation::Relu});
  add_lora(layer, {.rank = 3, .alpha = 6});
  stir(layer);
  const Tensor x = randn({5, 6}), residual = randn({5, 4});
  const Tensor weight = layer.weight + matmul(layer.lora_B, layer.lora_A) * 2;
  EXPECT_TRUE(allclose(layer.whole_weight(), weight));
  EXPECT_TRUE(
      allclose(layer(x, residual), relu(linear(x, weight, layer.bias) + residual), 1e-5, 1e-6));
  EXPECT_TRUE(allclose(layer(x), relu(linear(x, weight, layer.bias)), 1e-5, 1e-6));
}

TEST(Lora, MergesIntoWeights) {
  models::Llama net = small();
  const Tensor tokens = text().to(DefaultDevice::current());
  add_lora(net, {.rank = 2});
  const Tensor before = net(tokens);
  stir(net);
  const Tensor adapted = net(tokens), loss = net(tokens, tokens);
  EXPECT_FALSE(allclose(adapted, before, 1e-2, 1e-2));
  EXPECT_NEAR(loss.item(), next_token_loss(adapted, tokens).item(), 1e-5);  // also of lm_head
  merge_lora(net);
  EXPECT_TRUE(lora_state_dict(net).empty());
  EXPECT_TRUE(allclose(net(tokens), adapted, 1e-4, 1e-5));
  EXPECT_EQ(net.state_dict().size(), small().state_dict().size());
}

// The transposed layers of GPT-2, which PEFT calls fan_in_fan_out.
TEST(Lora, AdaptsTransposedWeights) {
  const Seed seed(5);
  models::Conv1D layer(6, 4, true, 0.5);
  add_lora(layer, {.rank = 3, .alpha = 6});
  stir(layer);
  EXPECT_EQ(layer.lora_A.shape(), (Shape{3, 6}));
  EXPECT_EQ(layer.lora_B.shape(), (Shape{4, 3}));
  const Tensor x = randn({5, 6}), residual = randn({5, 4});
  const Tensor weight = layer.weight.t() + matmul(layer.lora_B, layer.lora_A) * 2;
  const Tensor wanted = relu(linear(x, weight, layer.bias) + residual);
  EXPECT_TRUE(allclose(layer(x, LinearOptions{Activation::Relu, residual}), wanted, 1e-5, 1e-6));
  sum(layer(x)).backward();
  EXPECT_TRUE(layer.lora_A.has_grad() && layer.lora_B.has_grad());
  EXPECT_FALSE(layer.weight.has_grad());
  merge_lora(layer);
  EXPECT_FALSE(layer.lora_A);
  EXPECT_EQ(layer.weight.shape(), (Shape{6, 4}));
  EXPECT_TRUE(allclose(layer.weight.t(), weight, 1e-6, 1e-6));
}

TEST(Lora, AdaptsGpt2) {
  const auto make = [] {
    const Seed seed(6);
    return models::Gpt(
        {.vocabulary = 11, .context = 16, .layers = 2, .heads = 2, .width = 8, .dropout = 0});
  };
  models::Gpt net = make();
  const Tensor tokens = text().to(DefaultDevice::current()), before = net(tokens);
  const auto paths = add_lora(net, {.rank = 2, .targets = {"c_attn", "mlp.c_proj"}});
  EXPECT_EQ(paths.size(), 4u);
  EXPECT_EQ(paths[0], "h.0.attn.c_attn");
  EXPECT_EQ(lora_state_dict(net)[1].first, "base_model.model.h.0.attn.c_attn.lora_B.weight");
  EXPECT_TRUE(equal(net(tokens), before));
  stir(net);
  const Tensor adapted = net(tokens);
  EXPECT_FALSE(allclose(adapted, before, 1e-2, 1e-2));
  models::Gpt other = make();
  add_lora(other, {.rank = 2, .targets = {"c_attn", "mlp.c_proj"}}, lora_state_dict(net));
  EXPECT_TRUE(equal(other(tokens), adapted));
  EXPECT_EQ(lora_layers(net).size(), 4u);
  EXPECT_TRUE(lora_layers(net)[3].fan_in_fan_out);
  next_token_loss(net(tokens), tokens).backward();
  for (const auto& [name, p] : net.named_parameters())
    EXPECT_EQ(p.has_grad(), name.find("lora_") != name.npos) << name;
  merge_lora(net);
  EXPECT_TRUE(allclose(net(tokens), adapted, 1e-4, 1e-5));
  EXPECT_EQ(net.state_dict().size(), make().state_dict().size());
}

TEST(Lora, LearnsInEveryPrecision) {
  const Tensor tokens = text().to(DefaultDevice::current());
  const bool on_host = DefaultDevice::current().is_host();  // else launches are emulated
  const int steps = on_host ? 25 : 3;
  for (const DType low : {f32, f16, bf16})
    for (const bool narrow : {false, true}) {  // base weights in that dtype, too
      models::Llama net = small();
      if (narrow) net.to(low);
      const Seed seed(4);
      add_lora(net, {.rank = 4, .alpha = 8, .dropout = 0.05, .dtype = f32});
      optim::AdamW opt(net.parameters(), {.lr = 3e-2});
      amp::GradScaler scaler(low);
      double first = 0, last = 0;
      for (int step = 0; step < steps; ++step) {
        opt.zero_grad();
        Tensor loss;
        {
          const amp::Autocast on({.low = low});
          loss = net(tokens, tokens);
        }
        last = loss.item();
        if (step == 0) first = last;
        scaler.scale(loss).backward();
        scaler.step(opt);
        scaler.update();
      }
      EXPECT_LT(last, (on_host ? 0.9 : 1) * first) << low << narrow;
    }
}

// This preset leaves the sum of an adapter's product, in the operands' dtype, and an f32 residual.
TEST(Lora, AddsToAResidualUnderTensorCoresOnly) {
  models::Llama net = small();
  const Tensor tokens = text().to(DefaultDevice::current());
  add_lora(net, {.rank = 2});
  stir(net);
  const NoGrad off;
  const Tensor want = net(tokens);
  const amp::Autocast on({.low = bf16, .preset = amp::Preset::TensorCoresOnly});
  EXPECT_LT(norm(net(tokens) - want).item(), 0.05 * norm(want).item());
}

TEST(Lora, TravelsUnderPeftsNames) {
  models::Llama net = small(), other = small();
  const Tensor tokens = text().to(DefaultDevice::current());
  for (models::Llama* n : {&net, &other}) add_lora(*n, {.rank = 2, .targets = {"v_proj"}});
  stir(net);
  const StateDict adapters = lora_state_dict(net);
  EXPECT_EQ(adapters.size(), 4u);
  EXPECT_EQ(adapters[0].first, "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight");
  EXPECT_EQ(adapters[0].second.shape(), (Shape{2, 8}));
  EXPECT_EQ(adapters[1].first, "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight");
  EXPECT_EQ(adapters[1].second.shape(), (Shape{4, 2}));
  load_lora_state_dict(other, adapters);
  EXPECT_TRUE(equal(other(tokens), net(tokens)));
  EXPECT_TRUE(equal(net.clone()(tokens), net(tokens)));
  EXPECT_EQ(error([&] { load_lora_state_dict(other, {}); }),
            "load_lora_state_dict: 0 tensors for 4 of adapters");
  StateDict wrong = adapters;
  wrong[1].second = zeros({4, 3});
  EXPECT_EQ(error([&] { load_lora_state_dict(other, wrong); }),
            "load_lora_state_dict: base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight "
            "has shape [4, 3], not [4, 2]");
  wrong[1].first = "x";
  EXPECT_EQ(error([&] { load_lora_state_dict(other, wrong); }),
            "load_lora_state_dict: there is no "
            "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight");
}

// A second add_lora leaves the first's adapters; what is refused leaves the net.
TEST(Lora, AddsToOthers) {
  models::Llama net = small(), other = small();
  const Tensor tokens = text().to(DefaultDevice::current()), before = other(tokens);
  add_lora(net, {.rank = 2, .targets = {"v_proj"}});
  const LoraOptions more{.rank = 3, .targets = {"q_proj"}};
  add_lora(net, more);
  EXPECT_EQ(lora_state_dict(net).size(), 8u);
  for (const auto& [name, p] : net.named_parameters())
    EXPECT_EQ(p.requires_grad(), name.find("lora_") != name.npos) << name;
  stir(net);
  StateDict values;
  for (const auto& [name, t] : lora_state_dict(net))
    if (name.find("q_proj") != name.npos) values.emplace_back(name, t);
  StateDict wrong = values;
  wrong[3].second = zeros({8, 2});
  EXPECT_EQ(
      error([&] { add_lora(other, more, wrong); }),
      "add_lora: base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight has shape [8, "
      "2], not [8, 3]");
  EXPECT_TRUE(lora_state_dict(other).empty());
  for (const Tensor& p : other.parameters()) EXPECT_TRUE(p.requires_grad());
  EXPECT_TRUE(equal(other(tokens), before));
  add_lora(other, more, values);
  for (const auto& [name, t] : lora_state_dict(other)) EXPECT_TRUE(equal(t, values.at(name)));
}

struct TiedEnds : Module<TiedEnds> {
  Embedding first{5, 4};
  Linear last{4, 5, {.bias = false}};
  TiedEnds() { last.weight = first.weight; }
  Tensor forward(const Tensor& x) const { return last(first(x)); }
  MIXTAPE_FIELDS(first, last)
};
TEST(Lora, RefusesATiedWeight) {
  TiedEnds net;
  EXPECT_EQ(error([&] { add_lora(net); }),
            "add_lora: last.weight is first.weight, too: it cannot have an adapter");
}

// Recipes of 8 bits leave the first and the last weight alone, not the last adapter.
TEST(Lora, LeavesTheMarksOfEnds) {
  models::Llama net = small();
  add_lora(net, {.rank = 2});
  net(text().to(DefaultDevice::current()));
  EXPECT_TRUE(net.lm_head->weight.is_end());
  EXPECT_FALSE(net.lm_head->lora_B.is_end());
  EXPECT_TRUE(net.lm_head->whole_weight().is_end());
}

TEST(Lora, DropsInputsOfTheLastLayerInTheLoss) {
  models::Llama net = small();
  add_lora(net, {.rank = 2, .dropout = 1, .targets = {"lm_head"}});
  const Tensor tokens = text().to(DefaultDevice::current()), plain = small()(tokens, tokens);
  stir(net);
  EXPECT_NEAR(net(tokens, tokens).item(), plain.item(), 1e-5);
  net.eval();
  EXPECT_GT(std::abs(net(tokens, tokens).item() - plain.item()), 1e-3);
}

// Adapters in f32 beside weights in 16 bits, outside of regions.
TEST(Lora, MayBeWiderThanWeights) {
  models::Llama net = small();
  const Tensor tokens = text().to(DefaultDevice::current());
  add_lora(net, {.rank = 2, .dtype = f32});
  stir(net);
  const Tensor before = net(tokens);
  for (const DType low : {f16, bf16}) {
    models::Llama narrow = small();
    narrow.to(low);
    add_lora(narrow, {.rank = 2, .dtype = f32}, lora_state_dict(net));
    const Tensor y = narrow(tokens);
    EXPECT_EQ(y.dtype(), low);
    EXPECT_LT(norm(y.to(f32) - before).item(), 0.05 * norm(before).item()) << low;
  }
}

TEST(Lora, RefusesWhatDoesNotFit) {
  models::Llama net = small();
  EXPECT_EQ(error([&] { add_lora(net, {.rank = 0}); }), "add_lora: rank must be > 0, got 0");
  EXPECT_EQ(error([&] { add_lora(net, {.alpha = std::nan("")}); }),
            "add_lora: alpha must be finite, got nan");
  EXPECT_EQ(error([&] { add_lora(net, {.dropout = 2}); }),
            "add_lora: dropout must be from 0 to 1, got 2");
  EXPECT_EQ(error([&] { add_lora(net, {.targets = {"proj"}}); }),
            "add_lora: no Linear of Llama is among the targets");
  EXPECT_EQ(error([&] { add_lora(net, {.targets = {"embed_tokens"}}); }),
            "add_lora: model.embed_tokens is a Embedding, not a Linear");
  add_lora(net, {.targets = {"lm_head"}});
  EXPECT_EQ(error([&] { add_lora(net, {.targets = {"lm_head"}}); }),
            "add_lora: lm_head has an adapter already");
}

}  // namespace lora_test
}  // namespace mixtape::nn
