// Llama against that of transformers: names, logits, gradients, losses and generated tokens, which
// llama_reference.json holds; in every precision; and what it keeps of tokens.
#include "nn/models/llama.h"

#include <gtest/gtest.h>

#include <cmath>

#include "amp/amp.h"
#include "optim/optim.h"
#include "tests/support/errors.h"
#include "tests/support/modules_reference.h"
#include "tests/support/travel.h"

namespace mixtape::models {
namespace llama_test {

using test::error;

LlamaConfig small(LlamaConfig c) {
  c.vocabulary = 11;
  c.context = 16;
  c.layers = 2;
  c.heads = 4;
  c.width = 8;
  c.hidden = 12;
  return c;
}
const std::map<std::string, LlamaConfig>& configs() {
  static const std::map<std::string, LlamaConfig> all = {
      {"Llama grouped", small({.kv_heads = 2,
                               .head_size = 4,
                               .rope_base = 500,
                               .rope_scaling = {.factor = 4, .original_context = 32}})},
      {"Llama stretched", small({.kv_heads = 1, .head_size = 6, .rope_scaling = {.factor = 2}})},
      {"Llama tied",
       small({.kv_heads = 4, .tie_weights = true, .attention_bias = true, .mlp_bias = true})}};
  return all;
}
const LlamaConfig& grouped() { return configs().at("Llama grouped"); }

struct LlamaReference : testing::TestWithParam<std::string> {
  const test::json& theirs() const { return test::reference("llama").at(GetParam()); }
  const LlamaConfig& config() const { return configs().at(GetParam()); }
  // With their weights, which are in f64.
  Llama loaded(LlamaConfig c) const {
    Llama net(c);
    net.to(f64);
    StateDict weights;
    for (const test::json& t : theirs().at("state"))
      weights.emplace_back(t.at("name"), test::tensor(t));
    weights.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", zeros({2}));
    if (c.tie_weights) weights.emplace_back("lm_head.weight", zeros({11, 8}));
    net.load_state_dict(llama_weights(weights, c));
    return net;
  }
  Tensor tokens() const { return test::tensor(theirs().at("inputs")[0], i64); }
};
TEST_P(LlamaReference, IsThatOfTransformers) {
  for (const bool checkpoint : {false, true}) {
    LlamaConfig c = config();
    c.checkpoint = checkpoint;
    test::compare(test::model(Llama(c)), theirs());
  }
}
TEST(LlamaReference, TravelsInPyTorchsFiles) {
  test::Models models;
  for (const auto& [name, config] : configs())
    models[name] = [config = config] { return test::model(Llama(config)); };
  test::expect_travels(models, "llama_reference", "torch, transformers");
}
TEST_P(LlamaReference, GivesTheLossOfTargets) {
  const Llama net = loaded(config());
  const Tensor targets = test::tensor(theirs().at("targets"), i64);
  const auto slopes = [&](const Tensor& loss) {
    EXPECT_NEAR(loss.item(), theirs().at("loss").get<double>(), 1e-10);
    return grad({loss}, net.parameters());
  };
  const auto got = slopes(net(tokens(), targets)),
             want = slopes(next_token_loss(net(tokens()), targets));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(allclose(got[i], want[i])) << i;
}
TEST_P(LlamaReference, GeneratesTheirTokens) {
  const Llama net = loaded(config());
  const Tensor theirs_all = test::tensor(theirs().at("generated"), i64);
  EXPECT_TRUE(equal(net.generate(tokens(), 9, {.temperature = 0}), theirs_all));
  // Likewise from a cache without reserved memory, in parts of one to three tokens.
  KeyValueCache cache;
  for (int64_t i = 0, n = 1; i < 13; i += n, n = n % 3 + 1) {
    const Tensor last = net(narrow(theirs_all, 1, i, n), &cache);
    EXPECT_FALSE(last.requires_grad());
    if (i + n >= 5 && i + n < 14) {
      EXPECT_TRUE(equal(argmax(last, -1), narrow(theirs_all, 1, i + n, 1))) << i;
    }
  }
  EXPECT_EQ(cache.blocks[0].k.size(1), config().kv_heads);
  EXPECT_GE(cache.blocks[0].k.size(2), cache.tokens);
}
INSTANTIATE_TEST_SUITE_P(Models, LlamaReference, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& [name, c] : configs()) names.push_back(name);
                           return names;
                         }()),
                         test::test_name);

// Logits and gradients in a region are near those in f32, and steps lower the loss.
TEST(Llama, LearnsInEveryPrecision) {
  const Tensor text = [] {
    const Seed seed(1);
    return randint(0, 11, {2, 9});
  }();
  const Tensor x = narrow(text, 1, 0, 8), y = narrow(text, 1, 1, 8);
  const auto losses_in = [&](DType low, int steps) {
    const Seed seed(2);
    const Llama net(grouped());
    optim::AdamW opt(net.parameters(), {.lr = 3e-2});
    amp::GradScaler scaler(low);
    std::vector<double> losses;
    for (int step = 0; step < steps; ++step) {
      opt.zero_grad();
      Tensor loss;
      {
        const amp::Autocast on({.low = low});
        loss = net(x, y);
      }
      losses.push_back(loss.item());
      scaler.scale(loss).backward();
      scaler.step(opt);
      scaler.update();
    }
    return losses;
  };
  const double wide = losses_in(f32, 1)[0];
  for (const DType low : {f32, f16, bf16}) {
    const std::vector<double> losses = losses_in(low, 12);
    EXPECT_LT(losses.back(), 0.8 * losses.front()) << low;
    EXPECT_NEAR(losses.front(), wide, 0.02 * wide) << low;
  }
}

TEST(Llama, HasTheAnglesOfLongContexts) {
  const Rotation all = rotation(small({.kv_heads = 4}), 5000);
  for (const int64_t at : {0, 4095, 4096, 4999})
    EXPECT_EQ(narrow(all.sines, 0, at, 1).item(), float(std::sin(double(at)))) << at;
}

TEST(Llama, KeepsItsAnglesInF32) {
  Llama net(grouped());
  net.to(bf16);
  EXPECT_EQ(net.model.cosines.dtype(), f32);
  EXPECT_EQ(net(zeros({1, 3}, i64)).dtype(), bf16);
}

// A token adds its keys and values to memory that is there.
TEST(KeyValues, AppendWithoutCopies) {
  const Seed seed(3);
  KeyValues past;
  const Tensor k = randn({2, 2, 5, 4}), v = randn({2, 2, 5, 4});
  past.append(narrow(k, 2, 0, 2), narrow(v, 2, 0, 2), 4);
  const void* const first = past.k.raw();
  past.append(narrow(k, 2, 2, 2), narrow(v, 2, 2, 2), 4);
  EXPECT_EQ(past.k.raw(), first);
  EXPECT_EQ(past.k.size(2), 4);
  past.append(narrow(k, 2, 4, 1), narrow(v, 2, 4, 1), 4);
  EXPECT_EQ(past.k.size(2), 8);
  EXPECT_EQ(past.tokens, 5);
  EXPECT_TRUE(equal(narrow(past.k, 2, 0, 5), k));
  EXPECT_TRUE(equal(narrow(past.v, 2, 0, 5), v));
  EXPECT_EQ(error([&] { past.append(randn({2, 2, 1, 4}).set_requires_grad(), v); }),
            "keys and values are recorded: a cache needs NoGrad");
}

// With and without room, and after an Error, a cache gives the logits of all tokens, or refuses.
TEST(KeyValues, RefuseWhatIsNotTheNext) {
  const Seed seed(4);
  Llama net(grouped());
  const Tensor tokens = randint(0, 11, {2, 6}), two = narrow(tokens, 1, 2, 2);
  for (const int64_t room : {0, 16}) {
    KeyValueCache cache{.room = room};
    net(narrow(tokens, 1, 0, 2), &cache);
    EXPECT_ERROR(net(narrow(two, 0, 0, 1), &cache), "the next tokens [1, 2, 2, 4]");
    const Tensor broken = net.model.layers[1].mlp.up_proj.weight;  // one block appends before it
    net.model.layers[1].mlp.up_proj.weight = zeros({3, 3});
    EXPECT_ERROR(net(two, &cache), "3");
    net.model.layers[1].mlp.up_proj.weight = broken;
    LlamaConfig deeper = grouped();
    deeper.layers = 3;
    EXPECT_ERROR(Llama(deeper)(two, &cache), "the cache has 2 layers, the model 3");
    EXPECT_ERROR(Llama(configs().at("Llama tied"))(two, &cache),
                 "the cache has keys and values [2, 2, ");
    const Tensor next = net(two, &cache);
    EXPECT_TRUE(allclose(next, narrow(net(narrow(tokens, 1, 0, 4)), 1, 3, 1), 1e-4, 1e-5));
  }
}

TEST(Generate, EndsAtAStop) {
  const Tensor script = from({3, 4, 5, 6, 4, 4, 4, 9}, {2, 4}, i64);
  const auto read = [&](const Tensor& t, KeyValueCache& cache) {
    cache.tokens += t.size(1);
    return one_hot(narrow(script, 1, cache.tokens - 1, 1), 10);
  };
  const auto length = [&](std::vector<int64_t> stop) {
    return generate(read, zeros({2, 1}, i64), 4, 8, {.temperature = 0, .stop = std::move(stop)})
        .size(1);
  };
  EXPECT_EQ(length({}), 5);
  EXPECT_EQ(length({4}), 3);
  EXPECT_EQ(length({6, 9}), 5);
  EXPECT_EQ(length({3, 4}), 2);
}

TEST(Llama, SaysWhatDoesNotFit) {
  const auto refusal = [](auto change) {
    LlamaConfig c = grouped();
    change(c);
    return error([&] { Llama net(c); });
  };
  EXPECT_EQ(refusal([](LlamaConfig& c) { c.layers = 0; }),
            "Llama: sizes must be positive: context 16, layers 0, width 8, hidden 12");
  EXPECT_EQ(refusal([](LlamaConfig& c) { c.kv_heads = 3; }),
            "Llama: 4 heads do not divide into 3 groups");
  EXPECT_EQ(refusal([](LlamaConfig& c) { c.width = 9, c.head_size = 0; }),
            "Llama: a width of 9 does not divide into 4 heads");
  EXPECT_EQ(refusal([](LlamaConfig& c) { c.head_size = 3; }),
            "Llama: the size of a head must be even, got 3");
  EXPECT_EQ(refusal([](LlamaConfig& c) { c.rope_scaling.factor = 0; }),
            "Llama: rope_base and the factor of rope_scaling must be > 0, got 500 and 0");
  EXPECT_EQ(refusal([](LlamaConfig& c) { c.context = 1 << 28; }),
            "Llama: a context of 268435456 has more than 268435456 angles of heads of 4");
  EXPECT_EQ(refusal([](LlamaConfig& c) { c.rope_scaling.low_freq_factor = 4; }),
            "Llama: low_freq_factor 4 of rope_scaling must be less than high_freq_factor 4");
  const Llama net(grouped());
  EXPECT_EQ(error([&] { net(zeros({1, 17}, i64)); }),
            "model: tokens of shape [1, 17] after 0, not [b, t] with at most 16 in all");
  EXPECT_EQ(error([&] {
              const LlamaBlock block(grouped());
              block(randn({3, 8}), rotation(grouped(), 3));
            }),
            "self_attn: the input has shape [3, 8], not [b, t, 8]");
}

}  // namespace llama_test
}  // namespace mixtape::models
