// Trainings that break on one rank: the errors of the others.

#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "dist/data_parallel.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/support/threads_engine.h"

namespace mixtape::dist {
namespace failures_test {

struct Net : nn::Module<Net> {
  nn::Linear in{4, 8}, out{8, 1};
  Tensor forward(const Tensor& x) const { return out(relu(in(x))); }
  MIXTAPE_FIELDS(in, out)
};

// Five steps on two ranks; `breaks` is called on rank 1 before its fourth, and returns whether it
// ends there.
std::vector<std::string> train(const std::function<bool(Net&)>& breaks, double timeout = 60) {
  testing::internal::CaptureStderr();
  const auto errors = run_ranks(
      2,
      [&](const World& world) {
        Net net;
        DataParallel parallel(net, {.bucket_mb = 1e-4});  // 26 numbers: a bucket each, or so
        optim::SGD opt(net.parameters(), {.lr = 0.1});
        for (int i = 0; i < 5; ++i) {
          if (i == 3 && world.rank() == 1 && breaks(net)) return;
          mean(net(ones({2, 4}))).backward();
          opt.step();
          opt.zero_grad();
        }
      },
      {}, timeout);
  testing::internal::GetCapturedStderr();
  return errors;
}

void expect_says(const std::string& error, const std::string& text) {
  EXPECT_NE(error.find(text), std::string::npos) << error;
}

TEST(Failures, ARankHasFewerSteps) {
  const auto errors = train([](Net&) { return true; });
  expect_says(errors[0], "rank 1 is in the end of its World, rank 0 in bucket 0 of step 3");
}

TEST(Failures, ARankHasMoreSteps) {
  const auto errors = train([](Net& net) {
    mean(net(ones({2, 4}))).backward();
    return false;
  });
  expect_says(errors[1], "rank 0 is in the end of its World, rank 1 in bucket 0 of step 5");
}

TEST(Failures, ARankDoesNotComeToItsStep) {
  const auto errors = train(
      [](Net&) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        return false;
      },
      0.3);
  expect_says(errors[0], "rank 0 of 2 waited 0.3 s in bucket 0 of step 3 (out.");
  expect_says(errors[0], ") for rank 1");
  EXPECT_NE(errors[1], "");
}

TEST(Failures, ARankThrowsInItsBackwardPass) {
  const auto errors = train([](Net& net) {
    register_hook(net.in.weight, [](const Tensor&) -> Tensor { throw Error("no"); });
    return false;
  });
  expect_says(errors[0], "another rank has ended all");
  expect_says(errors[1], "no");
}

}  // namespace failures_test
}  // namespace mixtape::dist
