// World: messages between ranks, and errors when something is wrong.

#include "dist/world.h"

#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "core/graph.h"
#include "dist/exchange.h"
#include "tests/support/errors.h"
#include "tests/support/ranks.h"

namespace mixtape::dist {
namespace world_test {

TEST(World, OfOneNeedsNothing) {
  EXPECT_EQ(World::current(), nullptr);
  const World world;
  EXPECT_EQ(World::current(), &world);
  EXPECT_EQ(world.size(), 1);
  EXPECT_TRUE(world.is_first());
  EXPECT_EQ(world.engine(), "none");
  world.barrier();
  const Tensor x = from({1, 2}, {2});
  world.broadcast({x});
  EXPECT_EQ(to_vector(world.sum(x)), (std::vector<double>{1, 2}));
  EXPECT_EQ(world.gather(x).size(), 1u);
  EXPECT_EQ(world.gather(std::string("a")), std::vector<std::string>{"a"});
}

TEST(World, RanksSumGatherAndBroadcast) {
  for (const int size : {1, 2, 3, 8})
    expect_fine(run_ranks(size, [&](const World& world) {
      const double rank = world.rank();
      const Tensor x = from({rank, 10 * rank, -1}, {3});
      const double all = size * (size - 1) / 2.0;
      EXPECT_EQ(to_vector(world.sum(x)), (std::vector<double>{all, 10 * all, -1.0 * size}));
      EXPECT_EQ(world.sum(rank), all);
      const std::vector<int64_t> large{(int64_t{1} << 58) + 1};  // not in f64
      EXPECT_EQ(to_vector<int64_t>(world.sum(from_data(large)))[0], large[0] * size);
      const std::vector<Tensor> each = world.gather(x);
      ASSERT_EQ(each.size(), size_t(size));
      for (int r = 0; r < size; ++r) EXPECT_EQ(each[size_t(r)].at(1), 10 * r);
      const std::string text(size_t(world.rank()), 'x');
      for (int r = 0; r < size; ++r) EXPECT_EQ(world.gather(text)[size_t(r)].size(), size_t(r));
      const Tensor h = from({rank, 2}, {2}, f16), columns = from({1, 2, 3, 4}, {2, 2}) * (rank + 1);
      world.broadcast({h, columns.t()}, size - 1);
      EXPECT_EQ(h.at(0), size - 1);
      EXPECT_EQ(columns.at(1), 2 * size);
      // The last one's, whatever the others have.
      StateDict own{{"h", full({2, int64_t(rank)}, rank, f16)}};
      if (world.rank() == size - 1) own.emplace_back("more", from({rank}, {}, f64));
      const StateDict last = world.of_rank(size - 1, own);
      ASSERT_EQ(last.size(), 2u);
      EXPECT_EQ(last.at("h").shape(), Shape({2, size - 1}));
      EXPECT_EQ(to_vector(last.at("h")), std::vector<double>(2 * size_t(size - 1), size - 1));
      EXPECT_EQ(last.at("more").item(), size - 1);
      world.barrier();
    }));
}

TEST(World, ExchangesNothingDuringACapture) {
  const Device device = DefaultDevice::current();
  if (device.is_host()) GTEST_SKIP() << "the CPU has no graphs";
  expect_fine(run_ranks(2, [&](const World& world) {
    Graph graph(device);
    const Capture capture(graph);
    EXPECT_ERROR(world.barrier(), "impossible during a capture: ranks exchange in each step");
  }));
}

TEST(World, SumsAddInOneTreeAndRoundOnce) {
  // In f16, each of the small ones would be lost beside 1.
  expect_fine(run_ranks(4, [](const World& world) {
    const Tensor x = from({world.rank() == 0 ? 1.0 : 0x1p-11}, {1}, f16);
    EXPECT_EQ(world.sum(x).item(), 1 + 0x1p-9);
  }));
}

TEST(World, RanksThatRunApartSayWhere) {
  const auto errors = run_ranks(2, [](const World& world) {
    if (world.is_first())
      world.barrier();
    else
      world.sum(ones({3}));
  });
  EXPECT_NE(
      errors[0].find(
          "ranks are out of step: rank 1 is in a sum of 3 numbers of f32, rank 0 in a barrier"),
      std::string::npos)
      << errors[0];
  EXPECT_NE(errors[1], "");
}

TEST(World, TensorsOfOtherSizesOrDtypesAreApart) {
  using Call = void (*)(const World&);
  const auto says = [](Call call, const std::string& text) {
    const auto errors = run_ranks(2, call);
    EXPECT_NE(errors[0].find(text), std::string::npos) << errors[0];
  };
  says([](const World& w) { w.sum(ones({2 + w.rank()})); },
       "rank 1 is in a sum of 3 numbers of f32, rank 0 in a sum of 2 numbers of f32");
  says([](const World& w) { w.sum(ones({2}, w.is_first() ? f16 : bf16)); },
       "rank 1 is in a sum of 2 numbers of bf16, rank 0 in a sum of 2 numbers of f16");
  says([](const World& w) { w.gather(ones({2 + w.rank()}, i64)); },
       "rank 1 is in a gather of 3 numbers of i64, rank 0 in a gather of 2 numbers of i64");
  says([](const World& w) { w.broadcast({ones({2 + w.rank()})}); },
       "rank 1 is in a broadcast of 12 numbers of u8, rank 0 in a broadcast of 8 numbers of u8");
}

TEST(World, NamesTheFirstItemThatDiffers) {
  const auto difference = [](const std::string& first, const std::string& second) {
    const auto errors = run_ranks(2, [&](const World& world) {
      world.check_alike(world.is_first() ? first : second, "has other fruit");
    });
    EXPECT_EQ(errors[0], errors[1]);  // on all ranks
    return errors[0].substr(0, errors[0].find('\n'));
  };
  EXPECT_EQ(difference("figs; ", "figs; "), "");
  EXPECT_EQ(difference("one fig; ", "two figs; "),
            "rank 1 of 2 has other fruit than rank 0: two figs (rank 0: one fig)");
  EXPECT_EQ(difference("figs; one pear; ", "figs; one plum; "),
            "rank 1 of 2 has other fruit than rank 0: one plum (rank 0: one pear)");
  EXPECT_EQ(difference("figs; pears; ", "figs; "),
            "rank 1 of 2 has other fruit than rank 0: nothing more (rank 0: pears)");
}

TEST(World, AnEarlyEndIsAnError) {
  testing::internal::CaptureStderr();
  const auto errors = run_ranks(2, [](const World& world) {
    if (world.is_first()) world.barrier();
  });
  testing::internal::GetCapturedStderr();
  EXPECT_NE(errors[0].find("rank 1 is in the end of its World"), std::string::npos) << errors[0];
}

TEST(World, AMissingRankIsNamed) {
  const auto errors = run_ranks(
      3, [](const World& world) { world.barrier(); }, {.stuck = 2, .stuck_from = 12}, 0.5);
  EXPECT_NE(errors[0].find("rank 0 of 3 waited 0.5 s in a barrier for rank 2"), std::string::npos)
      << errors[0];
}

TEST(World, WhatItRefuses) {
  EXPECT_ERROR(World({.timeout = 0}), "the time limit must be > 0 seconds, got 0");
  const World world;
  EXPECT_ERROR(World(), "this thread has a World");
  EXPECT_THROW(world.broadcast({ones({1})}, 1), Error);
  EXPECT_ERROR(world.of_rank(1, {}), "of_rank: rank 1 of 1 does not exist");
  EXPECT_EQ(world.of_rank(0, {{"a", ones({1})}}).size(), 1u);
  EXPECT_ERROR(world.sum(zeros({1}, boolean)), "of floats or integers, got bool");
  EXPECT_EQ(world.part(8).chunks, 8);
  expect_fine(run_ranks(3, [](const World& world) {
    EXPECT_EQ(world.part(12).own_chunks(), 4);
    EXPECT_THROW(world.part(4), Error);
    EXPECT_THROW(world.part(9), Error);
  }));
}

}  // namespace world_test
}  // namespace mixtape::dist
