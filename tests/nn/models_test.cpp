// The models of nn/models: numbers, names and parameter counts of the published ones. Small ones
// run on any device, full ones on the CPU.
#include "nn/models/models.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "amp/amp.h"
#include "autograd/gradcheck.h"
#include "nn/models/by_name.h"
#include "nn/summary.h"
#include "optim/optim.h"
#include "tests/support/errors.h"
#include "tests/support/modules_reference.h"
#include "tests/support/moments.h"
#include "tests/support/travel.h"

namespace mixtape::models {
namespace models_test {

using nn::Tensors;
using test::error;
using test::expect_normal;
using test::model;

using X = const Tensors&;

constexpr GptConfig tiny{.vocabulary = 10, .context = 6, .layers = 2, .heads = 2, .width = 4};

GptConfig without_dropout(GptConfig c) {
  c.dropout = 0;
  return c;
}

// --- numbers ---

test::Model language_model(LstmLanguageModel made) {
  return model(std::move(made), [](const LstmLanguageModel& m, X x) {
    const auto [logits, state] = m(x.at(0));
    return Tensors{logits, state.h, state.c};
  });
}

const test::Models& cases() {
  static const test::Models all = {
      {"simple_cnn", [] { return model(simple_cnn({3, 4, 3, 2})); }},
      {"simple_cnn norm",
       [] {
         return model(simple_cnn(
             {2, 3, 4, 2}, {.kernel_sizes = {5, 3, 1}, .strides = {1, 2, 1}, .batch_norm = true}));
       }},
      {"ResNet Basic",
       [] {
         return model(ResNet(ResidualBlock::Basic, {2, 1, 1, 1},
                             {.num_classes = 3, .in_channels = 1, .width = 1}));
       }},
      {"ResNet Bottleneck",
       [] {
         return model(ResNet(ResidualBlock::Bottleneck, {1, 2, 1, 1},
                             {.num_classes = 3, .in_channels = 1, .width = 1}));
       }},
      {"CifarResNet Pad",
       [] { return model(CifarResNet({.depth = 8, .num_classes = 3, .width = 2})); }},
      {"CifarResNet Project",
       [] {
         return model(CifarResNet(
             {.depth = 8, .num_classes = 3, .shortcut = Shortcut::Project, .width = 2}));
       }},
      {"LstmClassifier",
       [] { return model(LstmClassifier(10, 3, {.embedding = 2, .hidden = 3})); }},
      {"LstmClassifier both",
       [] {
         return model(LstmClassifier(
             10, 2, {.embedding = 2, .hidden = 2, .num_layers = 2, .bidirectional = true}));
       }},
      {"LstmLanguageModel",
       [] {
         return language_model(LstmLanguageModel(10, {.embedding = 2, .hidden = 3, .dropout = 0}));
       }},
      {"LstmLanguageModel tied",
       [] {
         return language_model(LstmLanguageModel(
             10,
             {.embedding = 3, .hidden = 3, .num_layers = 1, .dropout = 0, .tie_weights = true}));
       }},
      {"Gpt", [] { return model(Gpt(without_dropout(tiny))); }},
  };
  return all;
}

struct ModelsReference : testing::TestWithParam<std::string> {};
TEST_P(ModelsReference, IsPyTorchs) {
  test::compare(cases().at(GetParam())(), test::reference("models").at(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Models, ModelsReference, testing::ValuesIn(test::names(cases())),
                         test::test_name);
TEST(ModelsReference, HasEveryCase) { test::expect_complete(cases(), "models"); }

TEST(ModelsReference, TravelsInPyTorchsFiles) { test::expect_travels(cases(), "models_reference"); }

// --- names and counts ---

// "name [shape]" of every tensor, one per line.
std::string listing(const nn::ModuleBase& net) {
  std::string text;
  for (const auto& [name, t] : net.state_dict()) text += fmt::format("{} {}\n", name, t.shape());
  return text;
}
std::string file(const std::string& name) {
  std::ifstream in(test::data_file(name));
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Models, HaveThePublishedNamesAndNumbersOfParameters) {
  const DefaultDevice here(Device::cpu());
  const ResNet eighteen = resnet18();
  EXPECT_EQ(listing(eighteen), file("resnet18_names.txt"));
  EXPECT_EQ(eighteen.num_parameters(), 11'689'512);
  EXPECT_EQ(resnet34().num_parameters(), 21'797'672);
  EXPECT_EQ(resnet50().num_parameters(), 25'557'032);
  EXPECT_EQ(resnet50({.num_classes = 10}).num_parameters(), 25'557'032 - 990 * 2049);
  EXPECT_EQ(CifarResNet().num_parameters(), 269'722);
  EXPECT_EQ(CifarResNet({.shortcut = Shortcut::Project}).num_parameters(), 272'474);
  EXPECT_EQ(CifarResNet({.depth = 56}).num_parameters(), 853'018);
  const Gpt small;
  EXPECT_EQ(listing(small), file("gpt2_names.txt"));
  EXPECT_EQ(small.num_parameters(), 124'439'808);
}

// Large models by a small one with the same layers: parameter counts are polynomials.
TEST(Gpt, ConfigurationsHaveThePublishedSizes) {
  const auto parameters = [](const GptConfig& c) {
    const int64_t n = c.width;
    return (c.vocabulary + c.context) * n + c.layers * (12 * n * n + 13 * n) + 2 * n;
  };
  EXPECT_EQ(Gpt(tiny).num_parameters(), parameters(tiny));
  EXPECT_EQ(parameters(gpt2), 124'439'808);
  EXPECT_EQ(parameters(gpt2_medium), 354'823'168);
  EXPECT_EQ(parameters(gpt2_large), 774'030'080);
  EXPECT_EQ(parameters(gpt2_xl), 1'557'611'200);
  for (const GptConfig& c : {gpt2, gpt2_medium, gpt2_large, gpt2_xl})
    EXPECT_EQ(c.width / c.heads, 64);
}

TEST(Models, AreMadeByName) {
  EXPECT_EQ(model_names().size(), 24u);
  EXPECT_EQ(get("resnet50", {.classes = 10}).module()->num_parameters(), 25'557'032 - 990 * 2049);
  EXPECT_EQ(get("resnet18").module()->num_parameters(), 11'689'512);
  EXPECT_EQ(get("resnet34").module()->num_parameters(), 21'797'672);
  EXPECT_EQ(get("resnet20").module()->num_parameters(), CifarResNet().num_parameters());
  EXPECT_EQ(get("resnet18").module()->state_dict()[0].first, "conv1.weight");
  EXPECT_EQ(get("simple", {.classes = 7, .in_channels = 1})(zeros({2, 1, 9, 9})).shape(),
            Shape({2, 7}));
  EXPECT_EQ(error([] { get("vgg"); }),
            "\"vgg\" is not a model: simple, resnet20, resnet32, resnet44, resnet56, resnet110, "
            "resnet18, resnet34, resnet50, resnet101, resnet152, resnet18_v2, resnet34_v2, "
            "resnet50_v2, resnet101_v2, resnet152_v2, vgg11, vgg13, vgg16, vgg19, vgg11_bn, "
            "vgg13_bn, vgg16_bn, vgg19_bn");
  EXPECT_EQ(get("resnet18_v2", {.classes = 3}).module()->state_dict()[0].first, "conv1.weight");
  EXPECT_EQ(error([] { get("resnet18", {.classes = -1}); }), "classes must be >= 0, got -1");
  EXPECT_EQ(error([] { get("resnet18", {.in_channels = 0}); }), "in_channels must be > 0, got 0");
}

TEST(Models, Summarise) {
  const auto last_line = [](const std::string& text) {
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  };
  nn::Sequential cnn = simple_cnn({3, 16, 16, 2});
  EXPECT_EQ(last_line(nn::summary(cnn, zeros({1, 3, 8, 8}))),
            "3,058 parameters, 3,058 trainable, 11.9 KiB with buffers\n");
  EXPECT_EQ(last_line(nn::summary(cnn)), last_line(nn::summary(cnn, zeros({1, 3, 8, 8}))));
  EXPECT_EQ(nn::summary(cnn).find("[1, "), std::string::npos);
  ResNet resnet(ResidualBlock::Basic, {1, 1, 1, 1}, {.num_classes = 3, .width = 2});
  const std::string table = nn::summary(resnet, zeros({1, 3, 32, 32}));
  EXPECT_NE(table.find("layer2.0.downsample.0  Conv2d"), table.npos) << table;
  EXPECT_NE(table.find("[1, 16, 1, 1]"), table.npos) << table;
  Gpt gpt(tiny);
  EXPECT_NE(nn::summary(gpt, zeros({2, 3}, i64)).find("h.1.mlp.c_fc     Conv1D     [2, 3, 16]"),
            std::string::npos);
  LstmLanguageModel lstm(10, {.embedding = 4, .hidden = 4, .tie_weights = true});
  EXPECT_NE(nn::summary(lstm, zeros({2, 3}, i64)).find("[2, 3, 10]"), std::string::npos);
}

// --- initial values ---

TEST(SimpleCnn, StartsAndEndsAsFastais) {
  const Seed seed(1);
  nn::Sequential net = simple_cnn({64, 64, 2});
  const auto& first = net[0].get<nn::Sequential>()[0].get<nn::Conv2d>();
  expect_normal(first.weight, std::sqrt(2.0 / (64 * 9)));
  EXPECT_EQ(test::moments(first.bias).high, 0);
  EXPECT_GE(min(net(randn({4, 64, 9, 9}))).item(), 0);
  EXPECT_EQ(net[2].get<nn::Sequential>().size(), 2u);

  EXPECT_EQ(error([] { simple_cnn({3}); }),
            "simple_cnn: channels must have the images' and the classes', got 1 numbers");
  EXPECT_EQ(error([] { simple_cnn({3, 4, 2}, {.kernel_sizes = {3}}); }),
            "simple_cnn: there must be as many kernel sizes as convolutions, 2, got 1");
  EXPECT_EQ(error([] { simple_cnn({3, 4, 2}, {.strides = {1, 2, 3}}); }),
            "simple_cnn: there must be as many strides as convolutions, 2, got 3");
}

TEST(ResNet, StartsAsTorchvisions) {
  const Seed seed(2);
  ResNet net(ResidualBlock::Bottleneck, {1, 1, 1, 1}, {.num_classes = 10, .width = 16});
  const auto& block = net.layer2[0].get<Bottleneck>();
  expect_normal(net.conv1.weight, std::sqrt(2.0 / (16 * 49)));
  expect_normal(block.conv2.weight, std::sqrt(2.0 / (32 * 9)));
  expect_normal(block.conv3.weight, std::sqrt(2.0 / 128));
  test::expect_uniform(net.fc.weight, 1 / std::sqrt(512.0));
  EXPECT_EQ(test::moments(block.bn3.weight).low, 1);

  // A block that adds nothing returns relu of its shortcut.
  for (const ResidualBlock kind : {ResidualBlock::Basic, ResidualBlock::Bottleneck}) {
    ResNet zero(kind, {2, 1, 1, 1}, {.num_classes = 10, .zero_init_residual = true, .width = 4});
    const Tensor x = relu(randn({2, kind == ResidualBlock::Basic ? 4 : 16, 4, 4}));
    EXPECT_TRUE(equal(zero.layer1[1](x), x));
    EXPECT_FALSE(equal(ResNet(kind, {2, 1, 1, 1}, {.width = 4}).layer1[1](x), x));
  }
  EXPECT_EQ(error([] { ResNet(ResidualBlock::Basic, {1, 0, 1, 1}, {.width = 4}); }),
            "blocks must be > 0, got 0");
  EXPECT_EQ(error([] { CifarResNet({.depth = 18}); }), "depth must be 6 n + 2, got 18");
}

TEST(Lstm, StartsAsPyTorchsExample) {
  const Seed seed(3);
  const LstmLanguageModel net(100, {.embedding = 50, .hidden = 60});
  test::expect_uniform(net.encoder.weight, 0.1);
  test::expect_uniform(net.decoder.weight, 0.1);
  EXPECT_EQ(test::moments(net.decoder.bias).high, 0);
  EXPECT_EQ(error([] { LstmLanguageModel(9, {.embedding = 2, .hidden = 3, .tie_weights = true}); }),
            "LstmLanguageModel: tied weights of embeddings of size 2 and hidden states of 3");
}

TEST(Lstm, GoesOnFromAState) {
  const Seed seed(4);
  LstmLanguageModel net(10, {.embedding = 3, .hidden = 4});
  const Tensor tokens = randint(0, 10, {2, 5});
  EXPECT_FALSE(equal(net(tokens).logits, net(tokens).logits));  // with dropout
  net.eval();
  const auto first = net(narrow(tokens, 1, 0, 3));
  const auto rest = net(narrow(tokens, 1, 3, 2), first.state);
  EXPECT_LT(max(abs(cat({first.logits, rest.logits}, 1) - net(tokens).logits)).item(), 1e-6);
  EXPECT_GT(max(abs(rest.logits - net(narrow(tokens, 1, 3, 2)).logits)).item(), 1e-4);
}

TEST(Gpt, GivesTheLossOfTargets) {
  const Gpt gpt(without_dropout(tiny));
  const Tensor tokens = cast(uniform({3, 6}, 0, 10), i64),
               targets = cast(uniform({3, 6}, 0, 10), i64);
  targets.set(4, -100);
  const auto slopes = [&](const Tensor& loss) {
    std::vector<Tensor> all = grad({loss}, gpt.parameters());
    all.push_back(loss.detach());
    return all;
  };
  const auto got = slopes(gpt(tokens, targets)),
             want = slopes(next_token_loss(gpt(tokens), targets));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(allclose(got[i], want[i], 1e-5, 1e-6)) << i;
}

TEST(GptBlock, StartsAsGpt2) {
  const Seed seed(8);
  GptConfig c{.layers = 8, .heads = 4, .width = 64};
  const GptBlock block(c);
  EXPECT_EQ(block.attn.c_attn.weight.shape(), (Shape{64, 192}));
  expect_normal(block.attn.c_attn.weight, 0.02);
  expect_normal(block.mlp.c_fc.weight, 0.02);
  expect_normal(block.attn.c_proj.weight, 0.005);
  expect_normal(block.mlp.c_proj.weight, 0.005);
  EXPECT_EQ(test::moments(block.mlp.c_fc.bias).high, 0);
  c.bias = false;
  EXPECT_EQ(GptBlock(c).state_dict().size(), 8u);
  const Gpt net({.vocabulary = 100, .context = 90, .layers = 1, .heads = 4, .width = 64});
  expect_normal(net.wte.weight, 0.02);
  expect_normal(net.wpe.weight, 0.02);

  EXPECT_EQ(error([] { Gpt({.heads = 4, .width = 6}); }),
            "Gpt: a width of 6 does not divide into 4 heads");
  EXPECT_EQ(error([] { Gpt({.context = 8, .layers = 0}); }),
            "Gpt: sizes must be positive: context 8, layers 0");
  EXPECT_EQ(error([&] { block(zeros({3, 64})); }),
            "attn: the input has shape [3, 64], not [b, t, 64]");
  const Gpt small(tiny);
  EXPECT_EQ(error([&] { small(zeros({1, 7}, i64)); }),
            "Gpt: tokens of shape [1, 7] after 0, not [b, t] with at most 6 in all");
  EXPECT_EQ(error([&] { small(zeros({3}, i64)); }),
            "Gpt: tokens of shape [3] after 0, not [b, t] with at most 6 in all");
}

// Heads are joined and split by views alone, and gradients of weights have the weights' layout.
TEST(Gpt, StepCopiesNoTensor) {
  const Gpt net(without_dropout(tiny));
  const Tensor tokens = zeros({2, 6}, i64);
  const amp::Report report;
  next_token_loss(net(tokens), tokens).backward();
  for (const auto& row : report.rows())
    EXPECT_FALSE(row.op == "clone" || row.op == "reshape") << row.op << " " << row.backward;
}

// Products add what a block adds up, unless dropout comes between, and the sums stay in f32.
TEST(GptBlock, AddsInItsProducts) {
  const Seed seed(9);
  const GptBlock block({.layers = 1, .heads = 2, .width = 8, .dropout = 0});
  const Tensor x = randn({2, 4, 8});
  const auto by_passes = [&] {
    const Tensor y = x + block.attn(block.ln_1(x));
    return y + block.mlp(block.ln_2(y));
  };
  const auto compare = [&](double tolerance) {
    const Tensor want = by_passes();
    const amp::Report report;
    const Tensor got = block(x);
    EXPECT_EQ(got.dtype(), f32);
    EXPECT_LE(max(abs(got - want)).item(), tolerance);
    for (const auto& row : report.rows()) EXPECT_NE(row.op, "add");
  };
  compare(1e-6);
  const amp::Autocast on({.low = bf16});
  compare(1e-3);
}

// The norms of a block write what the products behind them read, as a cast would.
TEST(GptBlock, ItsNormsRound) {
  const Seed seed(9);
  const GptBlock block({.layers = 1, .heads = 2, .width = 8, .dropout = 0});
  const Tensor x = randn({2, 4, 8});
  const auto norms = [&](const amp::Overrides& overrides) {
    const amp::Autocast on({.low = bf16, .overrides = overrides});
    const Tensor y = block.attn(block.ln_1(x), nullptr, x);
    const Tensor want = block.mlp(block.ln_2(y), y);
    const amp::Report report;
    const Tensor got = block(x);
    if (overrides.empty()) {
      EXPECT_TRUE(equal(got, want));
    }
    std::vector<std::string> dtypes;
    for (const auto& row : report.rows()) {
      if (row.op == "cast" && overrides.empty()) {
        EXPECT_EQ(row.by, "linear") << "of weights";
      }
      for (int64_t i = 0; row.op == "layer_norm" && i < row.calls; ++i)
        dtypes.emplace_back(name(row.outputs[0]));
    }
    std::ranges::sort(dtypes);
    return fmt::format("{}", fmt::join(dtypes, " "));
  };
  EXPECT_EQ(norms({}), "bf16 bf16");
  EXPECT_EQ(norms({{"attn.c_attn", Precision::Full}}), "bf16 f32");
  EXPECT_EQ(norms({{"linear", Precision::Full}}), "f32 f32");
  EXPECT_EQ(norms({{"layer_norm", Precision::Native}}), "bf16 bf16");
}

TEST(GptBlock, LooksOnlyBackAndDropsOnlyInTraining) {
  const Seed seed(9);
  GptBlock block({.layers = 1, .heads = 2, .width = 8, .dropout = 0.5});
  const Tensor x = randn({2, 4, 8}), other = randn({2, 1, 8});
  EXPECT_FALSE(equal(block(x), block(x)));
  block.eval();
  const Tensor a = block(x), b = block(cat({narrow(x, 1, 0, 3), other}, 1));
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t i = 0; i < 8; ++i) ASSERT_NEAR(select(a, 1, t).at(i), select(b, 1, t).at(i), 1e-6);
  EXPECT_GT(max(abs(select(a, 1, 3) - select(b, 1, 3))).item(), 1e-3);
  block.to(f64);
  std::vector<Tensor> leaves = block.parameters();
  leaves.push_back(nn::parameter(randn({1, 3, 8}, f64)));
  EXPECT_EQ(gradcheck([&](const std::vector<Tensor>& in) { return block(in.back()); }, leaves), "");
}

}  // namespace models_test
}  // namespace mixtape::models
