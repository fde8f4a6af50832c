// DataParallel: the same training on any number of ranks.

#include "dist/data_parallel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <mutex>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "dist/exchange.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/support/threads_engine.h"

namespace mixtape::dist {
namespace data_parallel_test {
using namespace internal;

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Batch {
  Tensor x, y;
  std::vector<Tensor> more = {};
  int64_t of_step = 0;
};

struct Net : nn::Module<Net> {
  nn::Linear in{6, 16}, out{16, 4}, unused{3, 3};
  nn::BatchNorm1d norm{16};
  nn::Dropout dropout{0.25};
  Tensor forward(const Tensor& x) const { return out(dropout(relu(norm(in(x))))); }
  MIXTAPE_FIELDS(in, norm, dropout, out, unused)
};

void expect_fine(const std::vector<std::string>& errors) {
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
}

std::string bytes_of(const StateDict& dict) {
  std::string all;
  for (const auto& [name, t] : dict) {
    const Tensor c = t.contiguous();
    all.append(static_cast<const char*>(c.raw()), size_t(c.numel()) * size_of(c.dtype()));
  }
  return all;
}

// The rows of a step's batch of n that a rank has.
Batch own_part(const Part& part, const Tensor& x, const Tensor& y) {
  const int64_t n = x.size(0), first = part.begin(n), own = part.end(n) - first;
  return {narrow(x, 0, first, own), narrow(y, 0, first, own), {}, n};
}

struct Job {
  DType low = f32;
  DataParallelOptions options = {.chunks = 8};
  int steps = 6;
  bool unscale = false;
  ThreadsOptions threads = {};
  double bad_step = -1, bad_chunk = -1;  // where the loss is infinite
};

// Trains on every rank; returns a hash of all state, which is the same on all.
size_t train(int ranks, const Job& run) {
  size_t result = 0;
  std::mutex mutex;
  expect_fine(run_ranks(
      ranks,
      [&](const World& world) {
        // Others begin elsewhere: rank 0 decides.
        const Seed seed(world.rank() + 1);
        Net net;
        DataParallel parallel(net, run.options);
        optim::AdamW opt(net.parameters(), {.lr = 0.01});
        amp::GradScaler scaler(run.low, {.init_scale = 1024, .growth_interval = 2});
        RandomGenerator data(7);
        for (int i = 0; i < run.steps; ++i) {
          Batch whole;
          {
            const Seed of_data(data);
            whole = {randn({i == 3 ? 21 : 64, 6}), randint(0, 4, {i == 3 ? 21 : 64})};
            data.set_offset(data.offset() + 1000);
          }
          opt.zero_grad();
          int64_t c = parallel.part().first_chunk();
          for (const auto& [x, y, weight] :
               parallel.chunks(own_part(parallel.part(), whole.x, whole.y))) {
            Tensor loss;
            {
              const amp::Autocast on({.low = run.low});
              loss = cross_entropy(net(x), y);
            }
            if (i == run.bad_step && c == run.bad_chunk) loss = loss * infinity;
            ++c;
            scaler.scale(loss * weight).backward();
          }
          if (run.unscale) scaler.unscale(opt);
          scaler.step(opt, {.clip_norm = 0.5});
          scaler.update();
        }
        StateDict all = net.state_dict();
        all.add("opt.", opt.state_dict());
        all.add("scaler.", scaler.state_dict());
        all.push_back({"next", rand({4})});
        const size_t hash = std::hash<std::string>()(bytes_of(all));
        const std::lock_guard lock(mutex);
        if (result == 0) result = hash;
        EXPECT_EQ(result, hash) << "rank " << world.rank();
      },
      run.threads));
  return result;
}

TEST(DataParallel, TheSameBitsOnAnyNumberOfRanks) {
  for (const DType low : {f32, bf16, f16}) {
    const size_t one = train(1, {low});
    for (const int ranks : {2, 4, 8}) EXPECT_EQ(one, train(ranks, {low})) << ranks;
  }
}

TEST(DataParallel, NeitherOrderNorDelayNorBucketsChangeBits) {
  const size_t one = train(1, {});
  for (const double mb : {1e-6, 0.001, 100.0})
    EXPECT_EQ(one, train(4, {.options = {.chunks = 8, .bucket_mb = mb},
                             .threads = {.delay = 1e-4, .shuffles = true}}));
}

TEST(DataParallel, OneScaleWhereALossIsInfiniteOnOneRank) {
  for (const bool unscale : {false, true})
    for (const double chunk : {0, 3, 7}) {
      const Job run{.low = f16, .unscale = unscale, .bad_step = 2, .bad_chunk = chunk};
      const size_t one = train(1, run);
      for (const int ranks : {2, 8}) EXPECT_EQ(one, train(ranks, run)) << chunk;
    }
}

}  // namespace data_parallel_test
}  // namespace mixtape::dist
