// Throughput of a fit, and the operations of products.
#include "train/throughput.h"

#include <gtest/gtest.h>

#include <thread>

#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "nn/models/gpt.h"
#include "nn/rnn.h"
#include "tests/support/errors.h"
#include "tests/support/training.h"

namespace mixtape::train {
namespace throughput_test {

using namespace test;
using std::chrono::milliseconds;

template <class F>
double flops(const F& f) {
  FlopCounter counter;
  f();
  return counter.flops();
}

TEST(FlopCounter, CountsTwoForEachMultiplication) {
  const Tensor x = randn({5, 7, 6});
  EXPECT_EQ(flops([&] { nn::Linear(6, 4)(x); }), 2 * 5 * 7 * 6 * 4);
  EXPECT_EQ(flops([&] { matmul(x, randn({5, 6, 3})); }), 2 * 5 * 7 * 6 * 3);
  EXPECT_EQ(flops([&] { addmm(zeros({3}), x.select(0, 1), randn({6, 3})); }), 2 * 7 * 6 * 3);
  EXPECT_EQ(flops([&] { dot(x.flatten(), x.flatten()); }), 2 * 5 * 7 * 6);
  const Tensor image = randn({2, 4, 9, 8});
  EXPECT_EQ(flops([&] { conv2d(image, randn({6, 2, 3, 3}), {}, {.groups = 2}); }),
            2 * (2 * 7 * 6) * (6 * 2 * 3 * 3));
  EXPECT_EQ(flops([&] { conv_transpose2d(image, randn({4, 3, 2, 2})); }),
            2 * (2 * 9 * 8) * (4 * 3 * 2 * 2));
  const Tensor q = randn({2, 3, 5, 8}), k = randn({2, 3, 9, 8}), v = randn({2, 3, 9, 4});
  EXPECT_EQ(flops([&] { scaled_dot_product_attention(q, k, v); }), 2 * 2 * 3 * 5 * 9 * (8 + 4));
  EXPECT_EQ(
      flops([&] { linear_cross_entropy(randn({7, 6}), randn({9, 6}), arange(0, 7, 1, i64)); }),
      2 * 7 * 6 * 9);
  nn::LSTM lstm(6, 10);
  EXPECT_EQ(flops([&] { lstm(randn({3, 5, 6})); }), 2 * 3 * 5 * 40 * (6 + 10));
  EXPECT_EQ(flops([&] { relu(x + x); }), 0);
}

// Inner sizes differ, which linear() finds once it runs.
TEST(FlopCounter, CountsOnAfterAnOpThatThrew) {
  EXPECT_EQ(flops([] {
              EXPECT_THROW(linear(ones({2, 4}), ones({3, 5})), Error);
              linear(ones({2, 4}), ones({3, 4}));
            }),
            2 * 2 * 4 * 3);
}

TEST(FlopCounter, OfAGptAreThoseOfItsParameters) {
  const models::Gpt gpt(
      {.vocabulary = 40, .context = 8, .layers = 2, .heads = 2, .width = 16, .dropout = 0});
  const double tokens = 3 * 8, attention = 2 * 2 * 2 * 16 * 8;  // layers, products
  const double multiplying = double(gpt.wte.weight.numel()) + 2 * (12 * 16 * 16);
  EXPECT_EQ(flops([&] { gpt(randint(0, 40, {3, 8})); }), tokens * (2 * multiplying + attention));
}

TEST(Throughput, TellsWaitingFromTraining) {
  struct SlowStep : Callback {
    void on_loss_begin(Learner&) override { std::this_thread::sleep_for(milliseconds(20)); }
  };
  const auto fit = [](milliseconds data, bool slow_step) {
    const auto speed = std::make_shared<Throughput>();
    LearnerOptions o = quiet();
    o.callbacks = {speed};
    if (slow_step) o.callbacks.push_back(std::make_shared<SlowStep>());
    Loaders l;
    const auto slow = [=](const Tensor& x, std::span<RowContext>) {
      std::this_thread::sleep_for(data);
      return x;
    };
    l.train.emplace(clusters(48, 1), DataLoaderOptions{.batch_size = 16, .transform = slow});
    Learner(std::move(l), Net(), o).fit(1);
    return speed->rows();
  };
  for (const Throughput::Row& row : fit(milliseconds(20), false)) {
    EXPECT_GE(row.data_seconds, 0.02);
    EXPECT_GE(row.seconds, row.data_seconds);
  }
  for (const Throughput::Row& row : fit(milliseconds(0), true)) {
    EXPECT_GE(row.seconds, 0.02 + row.data_seconds);
    EXPECT_LE(row.examples, 16 / 0.02);
  }
}

TEST(Throughput, WritesRates) {
  const TempFolder folder;
  const std::string path = folder / "throughput.jsonl";
  const auto speed =
      std::make_shared<Throughput>(path, ThroughputOptions{.every = 2, .peak = 1e12});
  LearnerOptions o = quiet();
  o.callbacks = {speed};
  Learner learner(loaders(), Net(), o);
  learner.fit(2);
  const auto& rows = speed->rows();
  ASSERT_EQ(rows.size(), 6u);
  const double per_example = 3 * 2 * (6 * 16 + 16 * 3);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].step, int64_t(2 * i + 2));
    EXPECT_NEAR(rows[i].examples, 16 / rows[i].seconds, 1e-6 * rows[i].examples);
    EXPECT_NEAR(rows[i].flops, per_example * rows[i].examples, 1e-6 * rows[i].flops);
    EXPECT_EQ(rows[i].tokens, 0);
    EXPECT_EQ(rows[i].utilisation, rows[i].flops / 1e12);
  }
  const auto lines = io::read_json_lines(path);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[0].front(), (std::pair<std::string, io::JsonValue>("step", int64_t{2})));
  EXPECT_EQ(lines[5].back(),
            (std::pair<std::string, io::JsonValue>("utilisation", *rows[5].utilisation)));
}

TEST(Throughput, CountsTokens) {
  const auto speed = std::make_shared<Throughput>();
  LearnerOptions o = quiet();
  o.callbacks = {speed};
  nn::Sequential net(nn::Embedding(20, 4), nn::Flatten(), nn::Linear(20, 3));
  Loaders l;
  l.train.emplace(TensorDataset(randint(0, 20, {8, 5}, i64, Device::cpu()),
                                randint(0, 3, {8}, i64, Device::cpu())),
                  DataLoaderOptions{.batch_size = 8});
  Learner(std::move(l), std::move(net), o).fit(1);
  ASSERT_EQ(speed->rows().size(), 1u);
  EXPECT_NEAR(speed->rows()[0].tokens, 5 * speed->rows()[0].examples, 1e-3);
  EXPECT_FALSE(speed->rows()[0].utilisation);
}

TEST(Throughput, SaysWhatItCannotMeasure) {
  EXPECT_ERROR(Throughput("", {.every = 0}), "every must be >= 1, got 0");
  EXPECT_ERROR(Throughput("", {.peak = -1}), "peak must be >= 0, got -1");
}

}  // namespace throughput_test
}  // namespace mixtape::train
