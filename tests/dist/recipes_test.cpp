// Recipes of 8 and 4 bits over ranks: the same bits on any number of them.

#include <gtest/gtest.h>

#include <mutex>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "dist/data_parallel.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/support/ranks.h"

namespace mixtape::dist {
namespace recipes_test {

// Some chunks go through `rare`.
struct Net : nn::Module<Net> {
  nn::Linear first{6, 32}, middle{32, 32}, rare{32, 32}, last{32, 4};
  Tensor forward(const Tensor& x) const {
    const Tensor h = relu(middle(relu(first(x))));
    return last(x.at(0) > 1 ? relu(rare(h)) : h);
  }
  MIXTAPE_FIELDS(first, middle, rare, last)
};

struct Job {
  amp::Recipe (*recipe)() = [] { return amp::Recipe(amp::Delayed{.history = 3}); };
  DType low = bf16;
  int64_t chunks = 4;
  int from = 0, steps = 7;
  int skipped = -1;  // the step in which the first chunk is left out
  StateDict start = {};
};

struct Result {
  StateDict all;
  std::string bytes;
};

// Chunks have numbers of other sizes, and so do steps.
std::pair<Tensor, Tensor> data(int step, int64_t chunks) {
  const Seed of_step(10 + step);
  const Tensor sizes = exp(randn({chunks, 1, 1}) * 4),
               x = reshape(randn({chunks, 8, 6}) * sizes, {8 * chunks, 6});
  return {x, randint(0, 4, {8 * chunks})};
}

Result train(int ranks, const Job& job) {
  Result result;
  std::mutex mutex;
  expect_fine(run_ranks(ranks, [&](const World& world) {
    const Seed seed(world.rank() + 1);
    Net net;
    optim::AdamW opt(net.parameters(), {.lr = 0.02});
    amp::Recipe recipe = job.recipe();
    if (!job.start.empty()) {
      net.load_state_dict(job.start.under("net."));
      opt.load_state_dict(job.start.under("opt."));
      recipe.load_state_dict(job.start.under("recipe."));
    }
    DataParallel parallel(net, {.chunks = job.chunks});
    std::string outputs;
    for (int i = job.from; i < job.steps; ++i) {
      const auto [x, y] = data(i, job.chunks);
      int64_t c = parallel.part().first_chunk();
      for (const auto& [cx, cy, weight] : parallel.chunks(own_part(parallel.part(), x, y))) {
        if (i == job.skipped && c++ == 0) {
          parallel.skip_chunk();
          continue;
        }
        Tensor loss;
        {
          const amp::Autocast on({.low = job.low, .recipe = recipe, .ends = true});
          loss = cross_entropy(net(cx), cy);
        }
        (loss * weight).backward();
      }
      opt.step();
      opt.zero_grad();
      const NoGrad evaluation;
      const amp::Autocast on({.low = job.low, .recipe = recipe, .ends = true});
      outputs += bytes_of({{"", net(x)}});
    }
    StateDict all;
    all.add("net.", net.state_dict());
    all.add("opt.", opt.state_dict());
    all.add("recipe.", recipe.state_dict());
    const std::string bytes = bytes_of(all) + outputs;
    const std::lock_guard lock(mutex);
    if (result.bytes.empty()) {
      for (auto& [name, t] : all) result.all.emplace_back(name, t.clone());
      result.bytes = bytes;
    }
    EXPECT_TRUE(result.bytes == bytes) << "rank " << world.rank();
  }));
  return result;
}

void expect_same(const Job& job) {
  const Result one = train(1, job);
  for (const int ranks : {2, 4})
    EXPECT_TRUE(train(ranks, job).bytes == one.bytes) << ranks << " ranks";
}

TEST(RecipesOverRanks, DelayedHasOneHistory) {
  expect_same({});
  expect_same({.low = f32});
  expect_same({.skipped = 2});
  Job one_a_rank{.chunks = 2};
  EXPECT_TRUE(train(2, one_a_rank).bytes == train(1, one_a_rank).bytes);
  // It says something: `rare` has seen fewer steps, and scales are not those of each call.
  const StateDict all = train(2, {}).all.under("recipe.");
  EXPECT_LT(all.at("rare.linear.steps").at(0), 7);
  EXPECT_EQ(all.at("middle.linear.steps").at(0), 7);
  const Job current{.recipe = [] { return amp::Recipe(amp::Current()); }};
  EXPECT_FALSE(bytes_of(train(1, current).all.under("net.")) ==
               bytes_of(train(1, {}).all.under("net.")));
}

TEST(RecipesOverRanks, ACheckpointGoesOnWithOtherRanks) {
  const Result whole = train(1, {});
  const Result four = train(4, {.steps = 3});
  const Result two = train(2, {.from = 3, .steps = 5, .start = four.all});
  EXPECT_TRUE(bytes_of(train(1, {.from = 5, .start = two.all}).all) == bytes_of(whole.all));
}

// Their scales are of one call, and so of a chunk.
TEST(RecipesOverRanks, OthersDependOnChunksAlone) {
  expect_same({.recipe = [] { return amp::Recipe(amp::Current()); }});
  expect_same({.recipe = [] { return amp::Recipe(amp::Mx()); }});
  expect_same({.recipe = [] { return amp::Recipe(amp::NvFp4()); }});
}

TEST(RecipesOverRanks, NeedARegionOnEachRankOnce) {
  const auto errors = run_ranks(2, [&](const World& world) {
    Net net;
    const amp::Recipe recipe(amp::Delayed{.history = 3});
    DataParallel parallel(net);
    if (!world.is_first()) return parallel.skip_chunk();
    const amp::Autocast on({.recipe = recipe, .ends = true});
    sum(net(ones({2, 6}))).backward();
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_NE(errors[1].find("other processes train under a recipe with a history, which has opened "
                           "no region here"),
            std::string::npos)
      << errors[1];
}

}  // namespace recipes_test
}  // namespace mixtape::dist
