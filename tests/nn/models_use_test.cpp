// The models of nn/models at work: they learn in every precision, read files from Python, and
// GPT generates.
#include <gtest/gtest.h>

#include "amp/amp.h"
#include "io/safetensors.h"
#include "nn/models/models.h"
#include "optim/optim.h"
#include "tests/support/errors.h"
#include "tests/support/modules_reference.h"

namespace mixtape::models {
namespace models_use_test {

using test::error;

GptConfig tiny(double dropout = 0, bool checkpoint = false) {
  return {.vocabulary = 10,
          .context = 6,
          .layers = 2,
          .heads = 2,
          .width = 4,
          .dropout = dropout,
          .checkpoint = checkpoint};
}

// --- training ---

// The loss of each step on one batch.
template <class Net, class Loss>
std::vector<double> train(Net net, int steps, DType low, double lr, const Loss& loss_of) {
  optim::AdamW opt(net.parameters(), {.lr = lr});
  amp::GradScaler scaler(low);
  std::vector<double> losses;
  int skipped = 0;
  for (int step = 0; step < steps; ++step) {
    opt.zero_grad();
    Tensor loss;
    {
      const amp::Autocast on({.low = low});
      loss = loss_of(net);
    }
    losses.push_back(loss.item());
    scaler.scale(loss).backward();
    skipped += !scaler.step(opt);
    scaler.update();
  }
  EXPECT_LE(skipped, low == f16 ? 2 : 0);  // while the scale is too large
  return losses;
}

struct Precisions : testing::TestWithParam<DType> {
  const Seed seed{1};

  template <class MakeNet, class Loss>
  void expect_learning(double lr, const MakeNet& make, const Loss& loss_of) {
    const auto losses_in = [&](DType low, int steps) {
      const Seed same(2);
      return train(make(), steps, low, lr, loss_of);
    };
    const std::vector<double> losses = losses_in(GetParam(), 10);
    const double wide = losses_in(f32, 1)[0];
    EXPECT_LT(losses.back(), 0.8 * losses.front());
    EXPECT_NEAR(losses.front(), wide, 0.02 * wide);
  }
  template <class MakeNet>
  void expect_images_learned(int64_t size, double lr, const MakeNet& make) {
    const Tensor x = randn({6, 3, size, size}), y = from({0, 1, 2, 0, 1, 2}, {6}, i64);
    expect_learning(lr, make, [&](const auto& net) { return cross_entropy(net(x), y); });
  }
};
TEST_P(Precisions, SimpleCnn) {
  expect_images_learned(8, 3e-2, [] { return simple_cnn({3, 8, 8, 3}, {.batch_norm = true}); });
}
TEST_P(Precisions, ResNet) {
  expect_images_learned(16, 1e-2, [] {
    return ResNet(ResidualBlock::Bottleneck, {1, 1, 1, 1}, {.num_classes = 3, .width = 2});
  });
}
TEST_P(Precisions, CifarResNet) {
  expect_images_learned(8, 3e-2,
                        [] { return CifarResNet({.depth = 8, .num_classes = 3, .width = 2}); });
}
TEST_P(Precisions, LstmClassifier) {
  const Tensor tokens = randint(0, 10, {4, 5}), classes = from({0, 1, 2, 0}, {4}, i64);
  expect_learning(
      3e-2, [] { return LstmClassifier(10, 3, {.embedding = 4, .hidden = 8}); },
      [&](const auto& net) { return cross_entropy(net(tokens), classes); });
}
TEST_P(Precisions, LstmLanguageModel) {
  const Tensor text = randint(0, 10, {2, 7});
  const LstmLanguageModelOptions options{
      .embedding = 8, .hidden = 8, .dropout = 0, .tie_weights = true};
  expect_learning(
      1e-1, [&] { return LstmLanguageModel(10, options); },
      [&](const auto& net) {
        return next_token_loss(net(narrow(text, 1, 0, 6)).logits, narrow(text, 1, 1, 6));
      });
}
TEST_P(Precisions, Gpt) {
  const Tensor text = randint(0, 10, {2, 7});
  for (const bool checkpoint : {false, true})
    expect_learning(
        1e-1, [&] { return Gpt(tiny(0, checkpoint)); },
        [&](const auto& net) {
          return next_token_loss(net(narrow(text, 1, 0, 6)), narrow(text, 1, 1, 6));
        });
}
INSTANTIATE_TEST_SUITE_P(Models, Precisions, testing::Values(f32, f16, bf16),
                         [](const auto& info) { return std::string(name(info.param)); });

// Checkpointed blocks give the same gradients, bit for bit.
TEST(Gpt, ChecksPointsWithoutAChange) {
  const Tensor text = randint(0, 10, {2, 7});
  const auto gradients = [&](bool checkpoint) {
    const Seed seed(3);
    Gpt net(tiny(0.3, checkpoint));
    int calls = 0;
    net.h[1].attn.register_forward_pre_hook([&](const nn::ModuleBase&, nn::Tensors&) { ++calls; });
    const Seed dropping(4);
    next_token_loss(net(narrow(text, 1, 0, 6)), narrow(text, 1, 1, 6)).backward();
    EXPECT_EQ(calls, checkpoint ? 2 : 1);
    std::vector<Tensor> result;
    for (const Tensor& p : net.parameters()) result.push_back(p.grad());
    return result;
  };
  const auto kept = gradients(false), again = gradients(true);
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_TRUE(equal(kept[i], again[i])) << i;
    EXPECT_TRUE(kept[i].is_contiguous()) << i;
  }
}

TEST(NextTokenLoss, IsTheMeanOverTokens) {
  const Tensor logits = randn({2, 3, 5}), targets = from({0, 1, 2, 3, -100, 4}, {2, 3}, i64);
  const Tensor all = log_softmax(logits);
  double sum = 0;
  for (const auto& [row, token] : {std::pair{0, 0}, {1, 1}, {2, 2}, {3, 3}, {5, 4}})
    sum -= all.at(row * 5 + token);
  EXPECT_NEAR(next_token_loss(logits, targets).item(), sum / 5, 1e-5);
  EXPECT_EQ(error([&] { next_token_loss(logits, flatten(targets)); }),
            "next_token_loss: logits of shape [2, 3, 5] and targets of [6], not [b, t, vocabulary] "
            "and [b, t]");
}

// --- files ---

TEST(Gpt, LoadsFilesOfHuggingFace) {
  const auto file = io::load(test::data_file("gpt2_tiny.safetensors")).tensors;
  const auto c = test::reference("models").at("Gpt");
  const Tensor tokens = test::tensor(c.at("inputs")[0], i64);
  const auto expect_reference = [&](const Gpt& net) {
    const Tensor got = net(tokens), want = test::tensor(c.at("outputs")[0], f32);
    for (int64_t i = 0; i < want.numel(); ++i)
      ASSERT_NEAR(got.at(i), want.at(i), 1e-4 * (1 + std::abs(want.at(i)))) << i;
  };
  {
    Gpt net(tiny());
    net.load_state_dict(gpt2_weights(file));
    expect_reference(net);
  }
  {  // unchanged: masks are not parameters
    Gpt net(tiny());
    EXPECT_NE(error([&] { net.load_state_dict(file); }).find("unexpected: h.0.attn.bias, h.1"),
              std::string::npos);
    EXPECT_EQ(net.load_state_dict(file, {.strict = false}).unexpected.size(), 2u);
    expect_reference(net);
  }
  {  // of the whole model: names with a prefix
    StateDict whole{{{"lm_head.weight", file.at("wte.weight")}}};
    whole.add("transformer.", file);
    whole.emplace_back("transformer.h.0.attn.masked_bias", zeros({}));
    Gpt net(tiny());
    net.load_state_dict(gpt2_weights(whole));
    expect_reference(net);
    whole.emplace_back("wte.weight", zeros({10, 4}));
    EXPECT_EQ(error([&] { gpt2_weights(whole); }),
              "the file has wte.weight with and without transformer.");
  }
}

// --- generating ---

TEST(Sample, DrawsBySoftmax) {
  const Seed seed(5);
  const Tensor logits = expand(log(from({0.1, 0.2, 0.3, 0.4}, {4})), {4000, 4});
  const auto shares = [&](const SampleOptions& o) {
    const Tensor tokens = sample(logits, o);
    EXPECT_EQ(tokens.shape(), (Shape{4000}));
    EXPECT_EQ(tokens.dtype(), i64);
    return to_vector(mean(one_hot(tokens, 4), {0}));
  };
  const auto expect_shares = [&](const SampleOptions& o, const std::vector<double>& wanted) {
    const auto got = shares(o);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], wanted[i], 0.035) << i;
  };
  expect_shares({}, {0.1, 0.2, 0.3, 0.4});
  expect_shares({.temperature = 0.5}, {1 / 30.0, 4 / 30.0, 9 / 30.0, 16 / 30.0});
  expect_shares({.top_k = 2}, {0, 0, 3 / 7.0, 4 / 7.0});
  EXPECT_EQ(shares({.top_k = 2})[1], 0);
  EXPECT_EQ(shares({.top_k = 1})[3], 1);
  for (const double cold : {0.0, 1e-40, 1e-300})
    EXPECT_EQ(shares({.temperature = cold})[3], 1) << cold;
  expect_shares({.top_p = 0.75}, {0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9});
  EXPECT_EQ(shares({.top_p = 0.75})[0], 0);
  expect_shares({.top_p = 0.65}, {0, 0, 3 / 7.0, 4 / 7.0});
  EXPECT_EQ(shares({.top_p = 1e-6})[3], 1);
  EXPECT_EQ(shares({.top_k = 2, .top_p = 0.5})[3], 1) << "0.4 of the 0.7 that two tokens have";
  expect_shares({.temperature = 0.5, .top_p = 0.8}, {0, 0, 9 / 25.0, 16 / 25.0});
  expect_shares({.tokens = 3}, {1 / 6.0, 2 / 6.0, 3 / 6.0, 0});
  EXPECT_EQ(shares({.temperature = 0, .tokens = 3})[2], 1);
  EXPECT_EQ(error([&] { sample(logits, {.tokens = 5}); }),
            "sample: tokens must be from 0 to 4, got 5");
  EXPECT_EQ(error([&] { sample(logits, {.temperature = -1}); }),
            "sample: temperature must be >= 0, got -1");
  EXPECT_EQ(error([&] { sample(logits, {.top_k = 5}); }),
            "sample: top_k must be from 0 to 4, got 5");
  EXPECT_EQ(error([&] { sample(logits, {.top_p = 0}); }),
            "sample: top_p must be above 0 and at most 1, got 0");
}

TEST(Sample, NeverDrawsWhatIsRuledOut) {
  const Seed seed(10710051);  // its second 24 bits are 0
  const Tensor only = from({-INFINITY, 0, -INFINITY}, {3});
  EXPECT_EQ(sample(only).item<int64_t>(), 1);
}

TEST(Sample, RefusesNan) {
  const Tensor logits = from({0, 1, NAN, 3}, {2, 2});
  for (const SampleOptions& o : {SampleOptions{}, {.temperature = 0}, {.top_k = 1}, {.top_p = 0.5}})
    EXPECT_ERROR(sample(logits, o), "sample: logits must not be NaN");
  EXPECT_EQ(sample(narrow(logits, 0, 0, 1)).numel(), 1);
  EXPECT_EQ(sample(from({1, NAN}, {2}), {.tokens = 1}).item<int64_t>(), 0) << "padding is not read";
  Gpt net(tiny(0));
  nn::init::constant_(net.parameters()[0], NAN);
  EXPECT_ERROR(net.generate(zeros({1, 3}, i64), 2, {.temperature = 0}), "logits must not be NaN");
}

TEST(Gpt, Generates) {
  const Seed seed(6);
  Gpt net(tiny(0.1));
  for (const Tensor& p : net.parameters()) nn::init::normal_(p);  // so that logits differ clearly
  net.eval();
  const Tensor prompt = randint(0, 10, {2, 3});
  const Tensor text = net.generate(prompt, 7, {.temperature = 0});
  EXPECT_EQ(text.shape(), (Shape{2, 10}));
  EXPECT_TRUE(equal(narrow(text, 1, 0, 3), prompt));
  for (int64_t t = 3; t < 10; ++t) {  // each from the six before it
    const int64_t begin = std::max<int64_t>(t - 6, 0);
    const Tensor logits = net(narrow(text, 1, begin, t - begin));
    EXPECT_TRUE(equal(select(text, 1, t), argmax(select(logits, 1, -1), -1))) << t;
    KeyValueCache cache;  // likewise, token by token after the first two
    Tensor last = net(narrow(text, 1, begin, 2), &cache);
    for (int64_t i = begin + 2; i < t; ++i) last = net(narrow(text, 1, i, 1), &cache);
    EXPECT_EQ(last.shape(), (Shape{2, 1, 10}));
    EXPECT_EQ(cache.tokens, t - begin);
    EXPECT_LT(max(abs(select(last, 1, 0) - select(logits, 1, -1))).item(), 1e-4);
    KeyValueCache two;  // in two parts, without memory reserved for the second
    net(narrow(text, 1, begin, 1), &two);
    const Tensor rest = net(narrow(text, 1, begin + 1, t - begin - 1), &two);
    EXPECT_LT(max(abs(select(rest, 1, 0) - select(logits, 1, -1))).item(), 1e-4);
  }
  const auto drawn = [&](uint64_t s) {
    const Seed again(s);
    return net.generate(prompt, 5, {.temperature = 2, .top_k = 8});
  };
  EXPECT_EQ(net.generate(randint(0, 10, {1, 9}), 2).shape(), (Shape{1, 11}));
  KeyValueCache cache;
  EXPECT_FALSE(net(prompt, &cache).requires_grad());
  EXPECT_EQ(error([&] {
              KeyValues past;
              net.h[0](randn({1, 2, 4}), &past);
            }),
            "attn: keys and values are recorded: a cache needs NoGrad");
  EXPECT_EQ(error([&] { net(zeros({2, 4}, i64), &cache); }),
            "Gpt: tokens of shape [2, 4] after 3, not [b, t] with at most 6 in all");
  EXPECT_TRUE(equal(drawn(7), drawn(7)));
  EXPECT_FALSE(equal(drawn(7), drawn(8)));
}

// --- gradients ---

// All of a model of characters, in regions and as a narrow model, against those in f64.
TEST(Gpt, GradientsInHalfPrecisionAreNearTheExactOnes) {
  const Seed seed(3);
  const bool on_host = DefaultDevice::current().is_host();  // else launches are emulated
  const Gpt net({.vocabulary = 65,
                 .context = on_host ? 64 : 8,
                 .layers = on_host ? 3 : 1,
                 .heads = 4,
                 .width = on_host ? 64 : 16,
                 .dropout = 0});
  const Tensor tokens = randint(0, 65, {4, on_host ? 64 : 8}),
               targets = randint(0, 65, tokens.shape());
  const auto gradients = [&](bool fused, std::optional<DType> region, DType weights) {
    Gpt copy = net.clone();
    copy.to(weights);
    std::optional<amp::Autocast> on;
    if (region) on.emplace(*region);
    const Tensor loss = fused ? copy(tokens, targets)
                              : cross_entropy(flatten(copy(tokens), 0, 1), flatten(targets));
    return grad({loss * 1024}, copy.parameters());
  };
  for (const bool fused : {false, true}) {
    const std::vector<Tensor> exact = gradients(fused, {}, f64);
    const auto expect_near = [&](const std::vector<Tensor>& found, double bound) {
      for (size_t i = 0; i < exact.size(); ++i)
        EXPECT_LT(norm(found[i].to(f64) - exact[i]).item(), bound * norm(exact[i]).item())
            << net.named_parameters()[i].first;
    };
    expect_near(gradients(fused, f16, f32), 0.01);
    expect_near(gradients(fused, bf16, f32), 0.03);
    expect_near(gradients(fused, {}, f16), 0.01);
    expect_near(gradients(fused, {}, bf16), 0.03);
  }
}

}  // namespace models_use_test
}  // namespace mixtape::models
