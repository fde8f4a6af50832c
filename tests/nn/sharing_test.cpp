// Frozen parameters, and parameters that two modules share, in training and in files.
#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/support/temp_folder.h"

namespace mixtape {
namespace nn_sharing_test {

using Values = std::vector<double>;

struct TwoLayers : nn::Module<TwoLayers> {
  nn::Linear body{3, 4}, head{4, 2};
  Tensor forward(const Tensor& x) const { return head(relu(body(x))); }
  MIXTAPE_FIELDS(body, head)
};

// One step of an optimizer that also changes parameters whose gradient is zero.
void step(optim::AdamW& opt, const Tensor& loss) {
  opt.zero_grad();
  loss.backward();
  opt.step();
}

TEST(Freezing, LeavesParametersAsTheyAre) {
  TwoLayers net;
  optim::AdamW opt(net.parameters(), {.lr = 0.1, .weight_decay = 0.5});
  const Tensor x = randn({5, 3});
  step(opt, sum(net(x)));  // they have gradients and optimizer state by now
  sum(net(x)).backward();
  net.body.requires_grad_(false);
  EXPECT_FALSE(net.body.weight.grad()) << "else the optimizer would still apply it";
  const Values body = to_vector(net.body.weight), bias = to_vector(net.body.bias),
               head = to_vector(net.head.weight);
  opt.step();
  EXPECT_EQ(to_vector(net.body.weight), body);
  const Tensor loss = sum(net(x));
  step(opt, loss);
  EXPECT_FALSE(net.body.weight.grad() || net.body.bias.grad());
  EXPECT_EQ(to_vector(net.body.weight), body);
  EXPECT_EQ(to_vector(net.body.bias), bias);
  EXPECT_NE(to_vector(net.head.weight), head);
  EXPECT_EQ(net.parameters().size(), 4u) << "frozen parameters are still parameters";
  EXPECT_EQ(net.state_dict().size(), 4u);
  const TwoLayers copy = net.clone();
  EXPECT_TRUE(copy.head.weight.requires_grad() && !copy.body.weight.requires_grad());

  net.body.requires_grad_();
  step(opt, sum(net(x)));
  EXPECT_NE(to_vector(net.body.weight), body);
}

TEST(Freezing, MayComeBeforeTheOptimizer) {
  TwoLayers net;
  net.body.requires_grad_(false);
  optim::AdamW opt(net.parameters(), {.lr = 0.1, .weight_decay = 0.5}, {.shadow = bf16});
  const Tensor x = randn({5, 3});
  const Values body = to_vector(net.body.weight), head = to_vector(net.head.weight);
  step(opt, sum(net(x)));
  EXPECT_EQ(to_vector(net.body.weight), body);
  EXPECT_NE(to_vector(net.head.weight), head);
  net.body.requires_grad_();
  step(opt, sum(net(x)));
  EXPECT_NE(to_vector(net.body.weight), body);
}

TEST(Freezing, RecordsNothingBelowTheFirstTrainedLayer) {
  TwoLayers net;
  net.body.requires_grad_(false);
  const Tensor x = randn({5, 3});
  EXPECT_FALSE(net.body(x).requires_grad());
  net.head.requires_grad_(false);
  EXPECT_FALSE(net(x).requires_grad());
}

struct LanguageModel : nn::Module<LanguageModel> {
  nn::Embedding tok{5, 3};
  nn::Linear head{3, 5, {.bias = false}};
  LanguageModel() { head.weight = tok.weight; }
  Tensor forward(const Tensor& index) const { return head(tok(index)); }
  MIXTAPE_FIELDS(tok, head)
};

TEST(Tying, GradientsAddUpAndAreAppliedOnce) {
  LanguageModel net;
  const Tensor index = from({1, 4}, {2}, i64);
  sum(net(index)).backward();
  const Tensor total = net.tok.weight.grad();

  const Tensor table = net.tok.weight.detach().clone().set_requires_grad(),
               head = net.head.weight.detach().clone().set_requires_grad();
  sum(linear(embedding(table, index), head)).backward();
  for (int64_t i = 0; i < 15; ++i)
    EXPECT_NEAR(total.at(i), table.grad().at(i) + head.grad().at(i), 1e-6) << i;

  const Values before = to_vector(net.tok.weight);
  optim::SGD opt(net.parameters(), {.lr = 0.5});
  opt.step();
  for (int64_t i = 0; i < 15; ++i)
    EXPECT_NEAR(net.head.weight.at(i), before[size_t(i)] - 0.5 * total.at(i), 1e-6) << i;
  EXPECT_TRUE(net.head.weight.is_same(net.tok.weight));
}

TEST(Tying, SurvivesCloneMovesAndFiles) {
  LanguageModel net;
  const StateDict state = net.state_dict();
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].first, "tok.weight");
  EXPECT_EQ(state[1].first, "head.weight");
  EXPECT_EQ(net.parameters().size(), 1u);
  EXPECT_EQ(net.num_parameters(), 15);

  LanguageModel copy = net.clone();
  EXPECT_TRUE(copy.head.weight.is_same(copy.tok.weight));
  EXPECT_FALSE(copy.head.weight.is_same(net.head.weight));
  const LanguageModel moved = std::move(copy);
  EXPECT_TRUE(moved.head.weight.is_same(moved.tok.weight));

  const test::TempFolder folder;
  const std::string path = folder / "tied.safetensors";
  io::save(path, net.state_dict());
  LanguageModel loaded;
  loaded.load_state_dict(io::load(path).tensors);
  EXPECT_TRUE(loaded.head.weight.is_same(loaded.tok.weight));
  EXPECT_EQ(to_vector(loaded.tok.weight), to_vector(net.tok.weight));
  loaded.requires_grad_(false);
  EXPECT_FALSE(loaded.head.weight.requires_grad());
}

}  // namespace nn_sharing_test
}  // namespace mixtape
