// SyncBatchNorm: ranks together normalise as one rank with the whole batch does.

#include "dist/sync_batch_norm.h"

#include <gtest/gtest.h>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "dist/data_parallel.h"
#include "dist/exchange.h"
#include "nn/nn.h"
#include "tests/support/threads_engine.h"
#include "tests/support/values.h"

namespace mixtape::dist {
namespace sync_batch_norm_test {

struct Net : nn::Module<Net> {
  nn::Conv2d conv{2, 3, 3};
  nn::BatchNorm2d norm{3};
  Tensor forward(const Tensor& x) const { return norm(conv(x)); }
  MIXTAPE_FIELDS(conv, norm)
};
Net net() {
  const Seed seed(1);
  return Net();
}
Tensor data(const Shape& shape) {
  const Seed seed(2);
  return randn(shape) + 0.5;
}

TEST(SyncBatchNorm, IsThatOfTheWholeBatch) {
  for (const DType low : {f32, bf16}) {
    const double by = low == f32 ? 2e-5 : 0.06;
    Net whole = net();
    Tensor y;
    {
      const amp::Autocast on({.low = low});
      y = whole(data({9, 2, 5, 5}));
    }
    mean(square(cast(y, f32) - data({9, 3, 3, 3}))).backward();
    const std::vector<std::string> errors = run_ranks(3, [&](const World& world) {
      Net part = net();
      DataParallel parallel(part);
      const SyncBatchNorm sync;
      const int64_t first = 3 * world.rank();
      Tensor own;
      {
        const amp::Autocast on({.low = low});
        own = part(narrow(data({9, 2, 5, 5}), 0, first, 3));
      }
      EXPECT_EQ(own.dtype(), y.dtype());
      expect_near(own, narrow(y.detach(), 0, first, 3), by);
      mean(square(cast(own, f32) - narrow(data({9, 3, 3, 3}), 0, first, 3))).backward();
      for (size_t i = 0; i < part.parameters().size(); ++i)
        expect_near(part.parameters()[i].grad(), whole.parameters()[i].grad(), by);
      expect_near(part.norm.running_mean, whole.norm.running_mean, by);
      expect_near(part.norm.running_var, whole.norm.running_var, by);
    });
    EXPECT_EQ(errors, std::vector<std::string>(3));
  }
}

TEST(SyncBatchNorm, PartsMayHaveOtherSizes) {
  const Tensor x = data({9, 2, 5, 5}), target = data({9, 3, 3, 3});
  Net whole = net();
  (sum(square(whole(x) - target)) / 9).backward();
  const std::vector<std::string> errors = run_ranks(3, [&](const World& world) {
    Net part = net();
    DataParallel parallel(part, {.scale = Scale::Sum});
    const SyncBatchNorm sync;
    const int64_t begin[] = {0, 2, 5, 9}, first = begin[world.rank()],
                  count = begin[world.rank() + 1] - first;
    const Tensor y = part(narrow(x, 0, first, count));
    (sum(square(y - narrow(target, 0, first, count))) / 9).backward();
    for (size_t i = 0; i < part.parameters().size(); ++i)
      expect_near(part.parameters()[i].grad(), whole.parameters()[i].grad(), 1e-4);
    expect_near(part.norm.running_mean, whole.norm.running_mean, 1e-5);
    expect_near(part.norm.running_var, whole.norm.running_var, 1e-5);
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

// Three messages between two ranks each: a greeting, with the number of values, and two rounds.
TEST(SyncBatchNorm, ExchangesTwoSumsEachWay) {
  const auto errors = run_ranks(2, [](const World& world) {
    nn::BatchNorm2d norm(3);
    const SyncBatchNorm sync;
    const Exchange& exchange = *world.exchange();
    const uint64_t before = exchange.messages_sent();
    const Tensor y = norm(data({4, 3, 5, 5}).set_requires_grad());
    EXPECT_EQ(exchange.messages_sent() - before, 2 * 3);
    mean(square(y)).backward();
    EXPECT_EQ(exchange.messages_sent() - before, 4 * 3);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(SyncBatchNorm, NeedsSeveralValuesPerChannel) {
  const auto errors = run_ranks(2, [](const World&) {
    const nn::BatchNorm2d norm(3);
    const SyncBatchNorm sync;
    norm(data({2, 0, 5, 5}));
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find(
                  "batch_norm: training needs more than one value per channel: shape [2, 0, 5, 5]"),
              error.npos)
        << error;
}

TEST(SyncBatchNorm, OfOneRankIsBatchNorm) {
  Net one = net(), other = net();
  const SyncBatchNorm sync;
  const Tensor x = data({4, 2, 5, 5});
  EXPECT_EQ(to_vector(one(x)), to_vector(other(x)));
}

}  // namespace sync_batch_norm_test
}  // namespace mixtape::dist
