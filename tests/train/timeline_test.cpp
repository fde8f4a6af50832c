// The timeline of a step: ops within modules within phases.

#include "train/timeline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "core/allocator.h"
#include "nn/nn.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"
#include "train/learner.h"

namespace mixtape::train {
namespace timeline_test {

using Json = nlohmann::json;

struct Net : nn::Module<Net> {
  struct Block : nn::Module<Block> {
    nn::Linear in{4, 8};
    Tensor forward(const Tensor& x) const { return relu(in(x)); }
    MIXTAPE_FIELDS(in)
  } block;
  nn::Linear out{8, 2};
  Tensor forward(const Tensor& x) const { return out(block(x)); }
  MIXTAPE_FIELDS(block, out)
};

std::vector<Json> named(const Json& trace, const std::string& name) {
  std::vector<Json> found;
  for (const Json& e : trace["traceEvents"])
    if (e["name"] == name) found.push_back(e);
  return found;
}
bool within(const Json& inner, const Json& outer) {
  const auto end = [](const Json& e) { return e["ts"].get<double>() + e["dur"].get<double>(); };
  return inner["ts"] >= outer["ts"] && end(inner) <= end(outer) + 0.002;
}

// Ops in place need no new memory and gradients are added up in place, as without it.
TEST(Timeline, ChangesNoOp) {
  const Tensor w = ones({64, 64}).set_requires_grad();
  const auto peak = [&] {
    w.set_grad({});
    const Tensor h = ones({64, 64});
    const int64_t before = memory_stats().in_use;
    reset_peak();
    {
      const NoGrad off;
      (h += 1.0) *= h;
    }
    sum(relu(h * w) + w * 2.0).backward();
    return memory_stats().peak - before;
  };
  const int64_t alone = peak();
  const Timeline timeline;
  EXPECT_EQ(peak(), alone);
}

TEST(Timeline, ShowsOpsWithinTheirModules) {
  const Net net;
  Timeline timeline;
  {
    const Timeline::Span step(timeline, "step \"1\"");
    sum(net(ones({3, 4}))).backward();
  }
  const Json trace = Json::parse(timeline.json());
  const auto linear = named(trace, "linear");
  ASSERT_EQ(linear.size(), 2u);
  EXPECT_EQ(linear[0]["args"]["tensors"], "f32 [3, 4], f32 [8, 4], f32 [8] -> f32 [3, 8]");
  EXPECT_EQ(linear[0]["cat"], "forward");
  const auto block = named(trace, "block"), in = named(trace, "block.in"),
             out = named(trace, "out");
  ASSERT_EQ(block.size(), 2u);  // forward and backward
  ASSERT_EQ(in.size(), 2u);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_TRUE(within(linear[0], in[0]));
  EXPECT_TRUE(within(in[0], block[0]));
  EXPECT_TRUE(within(named(trace, "relu").at(0), block[0]));
  EXPECT_FALSE(within(linear[1], block[0]));
  EXPECT_TRUE(within(linear[1], out[0]));
  const auto backward = named(trace, "linear backward");
  ASSERT_EQ(backward.size(), 2u);
  EXPECT_TRUE(within(backward[1], in[1]));
  const auto step = named(trace, "step \"1\"");
  ASSERT_EQ(step.size(), 1u);
  for (const Json& e : trace["traceEvents"]) EXPECT_TRUE(within(e, step[0])) << e;
}

// An op that throws leaves no event, and the ones after it are right.
TEST(Timeline, OutlivesErrors) {
  Timeline timeline;
  EXPECT_ERROR(matmul(ones({2, 3}), ones({2, 3})), "matmul");
  EXPECT_EQ(matmul(ones({2, 3}), ones({3, 2})).numel(), 4);
  EXPECT_EQ(named(Json::parse(timeline.json()), "matmul").size(), 1u);
}

TEST(Profile, WritesSomeBatchesOfAFit) {
  const test::TempFolder folder;
  const std::string path = folder / "trace.json";
  Net net;
  const TensorDataset data(ones({8, 4}), zeros({8}, i64));
  LearnerOptions options = test::quiet();
  options.callbacks = {std::make_shared<Profile>(path, ProfileOptions{.first = 2, .steps = 3})};
  Learner learner({DataLoader(data, {.batch_size = 1}), {}}, net, options);
  learner.fit(1);
  const Json trace = Json::parse(test::slurp(path));
  for (const char* phase : {"data", "forward", "loss", "backward", "step"})
    EXPECT_EQ(named(trace, phase).size(), 3u) << phase;
  EXPECT_TRUE(within(named(trace, "block").at(0), named(trace, "forward").at(0)));
  EXPECT_ERROR(Profile(path, {.steps = 0}), "steps >= 1, got 3 and 0");
  EXPECT_ERROR(Profile(path + "/inside"), path + "/inside");
}

// Validation is none of the batches, and each fit counts its own.
TEST(Profile, CountsTrainingBatchesOfEachFit) {
  const test::TempFolder folder;
  const std::string path = folder / "trace.json";
  Net net;
  const TensorDataset data(ones({2, 4}), zeros({2}, i64));
  LearnerOptions options = test::quiet();
  options.callbacks = {std::make_shared<Profile>(path, ProfileOptions{.first = 1, .steps = 2})};
  const auto loader = [&] { return DataLoader(data, {.batch_size = 1}); };
  Learner learner({loader(), loader()}, net, options);
  for (int fit = 0; fit < 2; ++fit) {
    learner.fit(2);
    const Json trace = Json::parse(test::slurp(path));
    for (const char* phase : {"forward", "loss", "backward", "step"})
      EXPECT_EQ(named(trace, phase).size(), 2u) << phase;
    std::filesystem::remove(path);
  }
}

}  // namespace timeline_test
}  // namespace mixtape::train
