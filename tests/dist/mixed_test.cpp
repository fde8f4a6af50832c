// Parameters of several dtypes, whose gradients kernels take in runs of one type: norms, clipping
// and steps have the same bits divided or not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "amp/scaler.h"
#include "autograd/ops.h"
#include "dist/data_parallel.h"
#include "dist/shards.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/support/ranks.h"

namespace mixtape::dist {
namespace mixed_test {

Tensor numbers(int64_t n, DType dtype) { return nn::parameter(randn({n}).to(dtype)); }

// Several blocks of the norm each, of dtypes in turn.
struct Mixed : nn::Module<Mixed> {
  Tensor a = numbers(9000, f32), b = numbers(17000, f64), c = numbers(8200, f16),
         d = numbers(100, f32), e = numbers(9000, f64), f = numbers(20000, f16);
  Tensor loss(const Tensor& x) const {
    Tensor sum = zeros({});
    double factor = 1;
    for (const Tensor& p : {a, b, c, d, e, f})
      sum = sum + mixtape::sum(square(p)).to(f32) * (factor *= 0.7);
    return sum * x.mean();
  }
  MIXTAPE_FIELDS(a, b, c, d, e, f)
};

struct Run {
  int ranks = 1;
  bool divides = false, by_scaler = false;
  double norm_type = 2;
  bool whole = false;  // by a rule that reads whole parameters
};

std::unique_ptr<optim::Optimizer> optimizer_of(const Mixed& net, bool whole) {
  const optim::CommonOptions masters{.multi_precision = true};
  if (whole)
    return std::make_unique<optim::Adafactor>(net.parameters(), optim::AdafactorOptions{.lr = 0.1},
                                              masters);
  return std::make_unique<optim::SGD>(net.parameters(),
                                      optim::SGDOptions{.lr = 0.1, .momentum = 0.9}, masters);
}

// All digits of the norms and weights, which all ranks must have alike.
std::string train(const Run& run) {
  std::vector<std::string> of_ranks(size_t(run.ranks));
  expect_fine(run_ranks(run.ranks, [&](const World& world) {
    const Seed seed(5);
    Mixed net;
    const std::unique_ptr<optim::Optimizer> owned = optimizer_of(net, run.whole);
    optim::Optimizer& opt = *owned;
    std::optional<Shards> shards;
    if (run.divides) shards.emplace(opt, ShardsOptions{.bucket_mb = 0.05});
    DataParallel parallel(net, {.chunks = 4});
    amp::GradScaler scaler(f16, {.init_scale = 8});
    std::string& all = of_ranks[size_t(world.rank())];
    for (int i = 0; i < 2; ++i) {
      const Tensor x = rand({8});
      for (const auto& [cx, cy, weight] : parallel.chunks(own_part(parallel.part(), x, x))) {
        const Tensor loss = net.loss(cx) * weight;
        (run.by_scaler ? scaler.scale(loss) : loss).backward();
      }
      Tensor norm;
      if (run.by_scaler) {
        norm = scaler.step(opt, {.clip_norm = 0.5}).norm();
        scaler.update();
      } else {
        norm = optim::clip_grad_norm(net.parameters(), 0.5, {.norm_type = run.norm_type});
        opt.step();
      }
      EXPECT_EQ(norm.dtype(), run.by_scaler ? f32 : f64);
      all += fmt::format("{:a} ", norm.item());
      opt.zero_grad();
    }
    all += bytes_of(net.state_dict());
  }));
  for (const std::string& other : of_ranks) EXPECT_TRUE(other == of_ranks[0]);
  return of_ranks[0];
}

TEST(Mixed, DtypesHaveTheSameBitsDividedOrNot) {
  for (const bool by_scaler : {false, true})
    for (const double p : {1.0, 2.0}) {
      if (by_scaler && p == 1) continue;
      const std::string expected = train({1, false, by_scaler, p});
      for (const int ranks : {2, 4})
        EXPECT_TRUE(train({ranks, true, by_scaler, p}) == expected)
            << fmt::format("{} ranks, {}, by scaler: {}", ranks, p, by_scaler);
    }
}

TEST(Mixed, RulesOfWholeParametersHaveTheSameBitsDividedOrNot) {
  for (const bool by_scaler : {false, true}) {
    const std::string expected = train({1, false, by_scaler, 2, true});
    for (const int ranks : {2, 4})
      EXPECT_TRUE(train({ranks, true, by_scaler, 2, true}) == expected)
          << fmt::format("{} ranks, by scaler: {}", ranks, by_scaler);
  }
}

}  // namespace mixed_test
}  // namespace mixtape::dist
