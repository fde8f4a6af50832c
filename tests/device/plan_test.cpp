// Plans for a GPU, made without one, against steps on it.
#include "amp/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/planned.h"

namespace mixtape::amp {
namespace device_plan_test {

const Device device = Device::cuda(), shapes = Device::meta(DeviceType::cuda);

// Attention there keeps no scores, and f32 images with channels last make copies.
struct PlanOnDevice : testing::TestWithParam<const char*> {};
TEST_P(PlanOnDevice, PeakIsTheMeasuredOne) {
  const auto models = test::planned_models();
  const auto model = std::ranges::find(models, GetParam(), &test::NamedPlannedModel::name);
  for (const test::PlannedPrecision& precision : test::planned_precisions()) {
    const TrainingMaker make = test::planned_training(*model, precision);
    EXPECT_EQ(plan(make, 2, {.device = shapes}).peak(), test::measured(make, 2, device))
        << precision.name;
  }
}
INSTANTIATE_TEST_SUITE_P(Models, PlanOnDevice,
                         testing::Values("simple", "UNet", "LstmClassifier", "Gpt",
                                         "Gpt_with_checkpoints", "Llama"),
                         [](const auto& m) { return std::string(m.param); });

TEST(DevicePlan, IsNotThatOfTheCpu) {
  const auto models = test::planned_models();
  const auto gpt = std::ranges::find(models, "Gpt", &test::NamedPlannedModel::name);
  const TrainingMaker make = test::planned_training(*gpt, test::planned_precisions()[2]);
  EXPECT_LT(plan(make, 8, {.device = shapes}).activations, plan(make, 8).activations);
}

}  // namespace device_plan_test
}  // namespace mixtape::amp
