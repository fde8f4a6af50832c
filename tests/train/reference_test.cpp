// Training runs against an independent implementation: an MLP and a CNN, with the same initial
// values and batch, 20 steps in f64, f32 and bf16. MIXTAPE_REFERENCE names the file of expected
// values, which defines models, values and steps; without it the tests skip.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "nn/nn.h"
#include "optim/optimizers.h"
#include "tests/support/reference.h"

namespace mixtape {
namespace reference_test {

using test::json;

// --- initial values that every implementation can reproduce bit for bit ---

uint32_t hash(uint32_t id, uint32_t i) {
  uint32_t x = i + id * 0x9E3779B9u;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}
// 24 random bits, uniform in [-1, 1): exact in f32.
float hash_uniform(uint32_t id, uint32_t i) {
  return static_cast<float>(hash(id, i) >> 8) * 0x1p-23f - 1.0f;
}
Tensor filled(uint32_t id, const Shape& shape, float scale) {
  Tensor t(shape, f32);
  float* const data = t.data<float>();
  for (int64_t i = 0; i < t.numel(); ++i)
    data[i] = scale * hash_uniform(id, static_cast<uint32_t>(i));
  return t;
}
Tensor labels(int64_t rows) {
  Tensor t({rows}, i64);
  for (int64_t i = 0; i < rows; ++i)
    t.data<int64_t>()[i] = hash(2000, static_cast<uint32_t>(i)) % 10;
  return t;
}

// --- the two models ---

// The other implementation rounds biases to the dtype of the products; our layers do not. With
// rounding, the losses of the first steps agree to 3e-4.
Tensor dense(const nn::Linear& f, const Tensor& x, DType bias) {
  return linear(x, f.weight, f.bias.to(bias));
}
Tensor convolved(const nn::Conv2d& f, const Tensor& x, DType bias) {
  return conv2d(x, f.weight, f.bias.to(bias));
}

struct Mlp : nn::Module<Mlp> {
  nn::Linear fc1{784, 512}, fc2{512, 512}, fc3{512, 10};
  Tensor forward(const Tensor& x, DType bias) const {
    return dense(fc3, relu(dense(fc2, relu(dense(fc1, x, bias)), bias)), bias);
  }
  MIXTAPE_FIELDS(fc1, fc2, fc3)

  static constexpr const char* name = "mlp";
  static Shape input() { return {128, 784}; }
  optim::SGD optimizer() const { return optim::SGD(parameters(), {.lr = 0.05, .momentum = 0.9}); }
};
struct Cnn : nn::Module<Cnn> {
  nn::Conv2d conv1{1, 32, 3}, conv2{32, 64, 3};
  nn::Linear fc1{1600, 128}, fc2{128, 10};
  Tensor forward(const Tensor& x, DType bias) const {
    Tensor h = max_pool2d(relu(convolved(conv1, x, bias)), {2, 2});
    h = max_pool2d(relu(convolved(conv2, h, bias)), {2, 2});
    return dense(fc2, relu(dense(fc1, flatten(h, 1), bias)), bias);
  }
  MIXTAPE_FIELDS(conv1, conv2, fc1, fc2)

  static constexpr const char* name = "cnn";
  static Shape input() { return {64, 1, 28, 28}; }
  optim::Adam optimizer() const { return optim::Adam(parameters(), {.lr = 1e-3}); }
};

// Relative tolerances against the f64 values (absolute for logits), or twice the deviation of the
// other implementation in the same mode if that is larger. After the first step, gradients are less
// precise: one ReLU whose input is close to zero changes them by 1e-3 in f32.
struct Mode {
  const char* name;
  DType parameters, products;
  double logit, first_loss, loss, first_gradient, gradient, parameter;
};
constexpr Mode modes[] = {
    {"fp64", f64, f64, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9},
    {"fp32", f32, f32, 1e-6, 1e-6, 3e-5, 2e-6, 5e-3, 3e-4},
    {"bf16_autocast", f32, bf16, 2e-3, 1e-3, 1e-3, 1e-2, 1e-1, 1e-2},
};

double l2(const Tensor& t) { return std::sqrt(sum(square(t.detach().to(f64))).item()); }

const json& reference() {
  static const json file = [] {
    const char* const path = std::getenv("MIXTAPE_REFERENCE");
    return path ? test::read_json(path) : json();
  }();
  return file;
}

class Reference : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    if (reference().is_null())
      GTEST_SKIP() << "MIXTAPE_REFERENCE does not name a file of reference losses to compare with";
  }

  // Compares with the f64 value at a JSON pointer such as /loss_per_step/3.
  void compare(double ours, const std::string& path, double tolerance,
               bool absolute = false) const {
    const json::json_pointer where(path);
    const double exact = expected_->at("fp64").at(where).get<double>();
    const double theirs = expected_->at(GetParam().name).at(where).get<double>();
    const double allowed =
        std::max(tolerance * (absolute ? 1 : std::abs(exact)), 2 * std::abs(theirs - exact));
    EXPECT_NEAR(ours, exact, allowed) << path;
  }

  template <class Net>
  void compare_run();

 private:
  template <class Net>
  void start(Net& net) const;

  const json* expected_ = nullptr;
};

// Parameters are numbered in order; weight and bias of a layer are scaled by 1 / sqrt(fan in).
template <class Net>
void Reference::start(Net& net) const {
  const json& listed = expected_->at("parameters");
  const StateDict ours = net.named_parameters();
  ASSERT_EQ(ours.size(), listed.size());
  const NoGrad off;
  float scale = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const auto& [name, t] = ours[i];
    EXPECT_EQ(name, listed[i].at("name").get<std::string>());
    EXPECT_EQ(t.shape(), test::shape_of(listed[i]));
    if (t.rank() > 1) scale = 1.0f / std::sqrt(static_cast<float>(nn::init::fan(t).in));
    copy_(t, filled(static_cast<uint32_t>(i + 1), t.shape(), scale));
    EXPECT_NEAR(l2(t), listed[i].at("init_l2").get<double>(), 1e-8 * l2(t));
  }
}

template <class Net>
void Reference::compare_run() {
  const Mode& mode = GetParam();
  expected_ = &reference().at(Net::name);
  Net net;
  ASSERT_NO_FATAL_FAILURE(start(net));
  net.to(mode.parameters);
  const Tensor x = filled(1000, Net::input(), 1).to(mode.parameters), y = labels(x.size(0));
  const auto forward = [&] {
    const amp::Autocast on({.low = bf16, .enabled = mode.products == bf16});
    return net(x, mode.products);
  };

  auto optimizer = net.optimizer();
  const int steps = reference().at("steps").get<int>();
  for (int step = 0; step < steps; ++step) {
    const bool first = step == 0;
    optimizer.zero_grad();
    const Tensor logits = forward();
    EXPECT_EQ(logits.dtype(), mode.products);
    const Tensor loss = cross_entropy(logits.to(mode.parameters), y);
    loss.backward();

    compare(loss.item(), fmt::format("/loss_per_step/{}", step),
            first ? mode.first_loss : mode.loss);
    double total = 0;
    for (const auto& [name, p] : net.named_parameters()) {
      ASSERT_EQ(p.grad().dtype(), mode.parameters);
      const double g = l2(p.grad());
      if (first) compare(g, "/grad_l2_step1/" + name, mode.first_gradient);
      total += g * g;
    }
    compare(std::sqrt(total), fmt::format("/grad_l2_total_per_step/{}", step),
            first ? mode.first_gradient : mode.gradient);
    if (first) {
      for (int i = 0; i < 10; ++i)
        compare(logits.at(i), fmt::format("/logits_first10_step1/{}", i), mode.logit, true);
      compare(l2(logits), "/logits_l2_step1", mode.logit);
    }
    optimizer.step();
  }
  compare(cross_entropy(forward().to(mode.parameters), y).item(), "/loss_after_20_steps",
          mode.loss);
  for (const auto& [name, p] : net.named_parameters())
    compare(l2(p), "/param_l2_after_20_steps/" + name, mode.parameter);
}

TEST_P(Reference, Mlp) { compare_run<Mlp>(); }
TEST_P(Reference, Cnn) { compare_run<Cnn>(); }
INSTANTIATE_TEST_SUITE_P(In, Reference, testing::ValuesIn(modes),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ReferenceHash, GivesTheNumbersOfTheDefinition) {
  EXPECT_EQ(hash(1, 0), 33350994u);
  EXPECT_EQ(hash(1, 1), 2672842292u);
  EXPECT_EQ(hash(2, 0), 83415710u);
  EXPECT_EQ(hash(1000, 12345), 1762006055u);
  EXPECT_FLOAT_EQ(hash_uniform(1, 0), -0.984469771f);
  EXPECT_FLOAT_EQ(hash_uniform(1, 1), 0.244639158f);
}

}  // namespace reference_test
}  // namespace mixtape
