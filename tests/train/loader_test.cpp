// DataLoader: every example once per epoch, in an order and with contents that depend only on the
// seed and the epoch, not on workers or where a loop begins or ends.

#include "train/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <thread>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/random.h"
#include "tests/support/child.h"
#include "tests/support/errors.h"

namespace mixtape::train {
namespace loader_test {

// All pixels of image i are i, and so is its label.
TensorDataset numbered(int64_t n, int64_t height = 2, int64_t width = 3) {
  const Tensor pixels({n, 1, height, width}, u8), labels({n}, i64);
  for (int64_t i = 0; i < n * height * width; ++i)
    pixels.data<uint8_t>()[i] = uint8_t(i / (height * width));
  for (int64_t i = 0; i < n; ++i) labels.data<int64_t>()[i] = i;
  return {pixels, labels, "numbers"};
}

// The labels of one epoch, in order. Checks that images match their labels.
std::vector<int64_t> epoch(DataLoader& loader) {
  std::vector<int64_t> seen;
  for (const auto& [x, y] : loader) {
    const int64_t pixels = x.size(2) * x.size(3);
    for (int64_t k = 0; k < y.numel(); ++k) {
      seen.push_back(int64_t(y.at(k)));
      for (int64_t p = 0; p < pixels; ++p) EXPECT_EQ(x.at(k * pixels + p), y.at(k));
    }
  }
  return seen;
}

// All bytes of a loop's batches in order; at most `most` batches.
std::string bytes(DataLoader& loader, int64_t most = std::numeric_limits<int64_t>::max()) {
  std::string all;
  for (const auto& batch : loader) {
    for (const Tensor& t : {batch.x, batch.y}) {
      all += t.shape().to_string();
      all.append(static_cast<const char*>(t.raw()), t.nbytes());
    }
    if (--most == 0) break;
  }
  return all;
}

// Throws for some examples, draws from the thread's generator, and is slow.
class Odd final : public Dataset {
 public:
  explicit Odd(int64_t n, int64_t bad = -1) : n_(n), bad_(bad) {}
  std::string name() const override { return "odd"; }
  int64_t size() const override { return n_; }
  Example get(int64_t i) const override {
    check(i != bad_, "bad luck");
    if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    return {randn({3}), full({}, double(i), i64)};
  }

 private:
  int64_t n_, bad_;
};

const Transform random_transform = transforms::compose(
    {transforms::random_crop(1), transforms::random_flip(), transforms::normalize(0.5, 0.25),
     transforms::each(
         [](const Tensor& x, RandomGenerator& random) { return add(x, random.uniform()); })});

// ---- order

TEST(DataLoader, GivesExamplesInOrderAndALastBatchThatIsSmaller) {
  DataLoader loader(numbered(10), {.batch_size = 4});
  EXPECT_EQ(loader.examples(), 10);
  EXPECT_EQ(loader.batches(), 3);
  EXPECT_EQ(loader.batch_size(), 4);
  EXPECT_EQ(epoch(loader), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  const Batch last = loader.batch(2);
  EXPECT_EQ(last.x.shape(), Shape({2, 1, 2, 3}));
  EXPECT_EQ(last.x.dtype(), u8);
  EXPECT_EQ(last.y.shape(), Shape({2}));
  EXPECT_EQ(last.y.dtype(), i64);
}

TEST(DataLoader, SaysThatItWasMovedFrom) {
  DataLoader loader(numbered(10), {.batch_size = 4});
  const DataLoader other = std::move(loader);
  EXPECT_EQ(other.batches(), 3);
  EXPECT_ERROR(loader.batches(), "this loader was moved from");
  EXPECT_ERROR(loader.batch(0), "this loader was moved from");
  AnyDataset gone{TensorDataset(zeros({2}), zeros({2}))};
  const AnyDataset kept = std::move(gone);
  EXPECT_EQ(kept->size(), 2);
  EXPECT_ERROR(DataLoader(gone), "no data set");
  EXPECT_ERROR(epoch(loader), "this loader was moved from");
}

TEST(DataLoader, DropsALastBatchThatIsSmaller) {
  DataLoader dropping(numbered(10), {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(dropping.batches(), 2);
  EXPECT_EQ(epoch(dropping).size(), 8u);
  DataLoader exact(numbered(8), {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(epoch(exact).size(), 8u);
  DataLoader none(numbered(3), {.batch_size = 4, .drop_last = true, .workers = 1});
  EXPECT_EQ(none.batches(), 0);
  EXPECT_TRUE(epoch(none).empty());
}

TEST(DataLoader, LimitsAnEpochAndShufflesTheNext) {
  DataLoader loader(numbered(100), {.batch_size = 4, .shuffle = true, .max_batches = 3});
  EXPECT_EQ(loader.batches(), 3);
  const auto first = epoch(loader), second = epoch(loader);
  EXPECT_EQ(first.size(), 12u);
  EXPECT_EQ(second.size(), 12u);
  EXPECT_NE(first, second);
  EXPECT_EQ(DataLoader(numbered(5), {.batch_size = 4, .max_batches = 3}).batches(), 2);
}

TEST(DataLoader, AcceptsBatchesOfAnySize) {
  DataLoader loader(numbered(5), {.batch_size = std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(loader.batches(), 1);
  EXPECT_EQ(epoch(loader).size(), 5u);
  DataLoader empty(numbered(0), {.shuffle = true});
  EXPECT_EQ(empty.batches(), 0);
  EXPECT_TRUE(epoch(empty).empty());
}

TEST(DataLoader, ShufflesDifferentlyInEachEpochAndTheSameForOneSeed) {
  const DataLoaderOptions options{.batch_size = 32, .shuffle = true, .seed = 7};
  DataLoader one(numbered(200), options), two(numbered(200), options);
  const auto first = epoch(one), second = epoch(one);
  EXPECT_EQ(epoch(two), first);
  EXPECT_EQ(epoch(two), second);
  EXPECT_NE(first, second);
  for (const auto& order : {first, second}) {
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), 200u);
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  }
  DataLoader other(numbered(200), {.batch_size = 32, .shuffle = true, .seed = 8});
  EXPECT_NE(epoch(other), first);
}

// The order neither uses nor changes the thread's random numbers.
TEST(DataLoader, LeavesTheGeneratorAlone) {
  const Seed seed(3);
  const uint64_t before = generator().offset();
  DataLoader loader(numbered(50), {.shuffle = true, .transform = random_transform});
  bytes(loader);
  EXPECT_EQ(generator().offset(), before);
}

// Each image takes each of the 50 positions about equally often.
TEST(DataLoader, ShufflesUniformly) {
  std::vector<int> at_front(50);
  constexpr int epochs = 5000;
  for (uint64_t i = 0; i < epochs; ++i) ++at_front[size_t(shuffled(50, 1, i)[0])];
  double chi2 = 0;
  for (const int n : at_front) chi2 += (n - epochs / 50.0) * (n - epochs / 50.0) / (epochs / 50.0);
  EXPECT_LT(chi2, 85.4);  // exceeded once in a thousand (49 degrees of freedom)
}

// Examples may have more tensors, and no target.
TEST(DataLoader, BatchesMoreThanTwoTensors) {
  struct Odd final : Dataset {
    std::string name() const override { return "odd"; }
    int64_t size() const override { return 6; }
    Example get(int64_t i) const override {
      const Tensor x = full({2}, double(i));
      if (i == 5) return {x, x, {x}};
      return {x, {}, {full({}, double(i), i64), x * 2}};
    }
  };
  const Tensor ids = arange(0, 5, 1, i64);
  const TensorDataset tensors(reshape(arange(0, 10, 1, f32), {5, 2}), {}, {ids, ids.to(f32)});
  for (const AnyDataset& data : {AnyDataset(Odd()), AnyDataset(tensors.rows(0, 5))}) {
    DataLoader loader(data, {.batch_size = 2, .max_batches = 2, .workers = 1});
    int64_t first = 0;
    for (const Batch& batch : loader) {
      EXPECT_FALSE(batch.y);
      ASSERT_EQ(batch.more.size(), 2u);
      EXPECT_EQ(to_vector(batch.more[0]), (std::vector<double>{double(first), double(first + 1)}));
      EXPECT_EQ(batch.more[1].size(0), 2);
      first += 2;
    }
  }
  const auto get = [](std::initializer_list<int64_t> which) {
    return Odd().gather(std::vector<int64_t>(which));
  };
  EXPECT_ERROR(get({0, 5}), "example 5: it has a target, but the first in the batch has none");
  EXPECT_ERROR(get({5, 0}), "example 0: it has no target, but the first in the batch has one");
  EXPECT_ERROR(TensorDataset(ones({3}), {}, {ones({2})}),
               "tensors: inputs of shape [3] need as many more[0], got [2]");
}

TEST(DataLoader, ASamplerChoosesTheExamplesOfAnEpoch) {
  const Sampler sampler = [](uint64_t epoch) {
    return std::vector<int64_t>{4, 4, int64_t(epoch), 0, 9};
  };
  DataLoader loader(numbered(10), {.batch_size = 2, .sampler = sampler, .workers = 1});
  EXPECT_EQ(loader.examples(), 10);
  EXPECT_EQ(loader.batches(), 3);
  EXPECT_EQ(epoch(loader), (std::vector<int64_t>{4, 4, 0, 0, 9}));
  EXPECT_EQ(epoch(loader), (std::vector<int64_t>{4, 4, 1, 0, 9}));
  EXPECT_EQ(to_vector(loader.batch(1).y), (std::vector<double>{2, 0}));
}

// A repeated example is transformed differently each time.
TEST(DataLoader, ARepeatedExampleDrawsAnewAtEachPosition) {
  const Sampler sampler = [](uint64_t) { return std::vector<int64_t>{3, 3}; };
  DataLoader loader(numbered(10), {.sampler = sampler, .transform = random_transform});
  const Tensor x = loader.batch(0).x;
  EXPECT_NE(to_vector(select(x, 0, 0)), to_vector(select(x, 0, 1)));
}

TEST(DataLoader, RefusesASamplerThatDoesNotFit) {
  const auto loader = [](std::vector<int64_t> first, std::vector<int64_t> second) {
    return DataLoader(numbered(10), {.sampler = [=](uint64_t e) { return e ? second : first; }});
  };
  DataLoader negative = loader({-1}, {0}), beyond = loader({10}, {0}), other = loader({1}, {1, 2});
  EXPECT_ERROR(DataLoader(numbered(4), {.shuffle = true, .sampler = weighted({1, 1, 1, 1}, 4)}),
               "shuffle has no effect with a sampler: set only one");
  EXPECT_ERROR(epoch(negative), "numbers: the sampler returned example -1, out of range for 10");
  EXPECT_ERROR(epoch(beyond), "numbers: the sampler returned example 10, out of range for 10");
  EXPECT_EQ(epoch(other), (std::vector<int64_t>{1}));
  EXPECT_ERROR(epoch(other),
               "numbers: the sampler returned 2 examples for epoch 1, but 1 for epoch 0");
}

TEST(Weighted, DrawsInProportion) {
  const std::vector<double> weights{0, 1, 0, 3, 0.5, 0};
  const Sampler sampler = weighted(weights, 9000, 2);
  EXPECT_EQ(sampler(0), sampler(0));
  EXPECT_NE(sampler(0), sampler(1));
  EXPECT_NE(sampler(0), weighted(weights, 9000, 3)(0));
  std::vector<double> drawn(weights.size());
  for (const int64_t i : sampler(0)) ++drawn[size_t(i)];
  for (size_t i = 0; i < weights.size(); ++i) {
    const double share = weights[i] / 4.5, expected = 9000 * share;
    EXPECT_NEAR(drawn[i], expected, 4 * std::sqrt(expected * (1 - share))) << i;
  }
}

TEST(Weighted, RefusesWhatMakesNoSense) {
  EXPECT_ERROR(weighted({1, -2}, 3), "weight 1 must be finite and >= 0, got -2");
  EXPECT_ERROR(weighted({std::nan("")}, 3), "weight 0 must be finite and >= 0, got nan");
  EXPECT_ERROR(weighted({0, 0}, 3), "the 2 weights must have a positive finite sum, got 0");
  EXPECT_ERROR(weighted({}, 3), "the 0 weights must have a positive finite sum, got 0");
  EXPECT_ERROR(weighted({1}, 0), "n must be > 0, got 0");
}

// ---- workers

TEST(DataLoader, GivesTheSameBytesForAnyNumberOfWorkers) {
  const auto epochs = [](AnyDataset data, int workers, int prefetch, const Transform& transform) {
    DataLoader loader(std::move(data), {.batch_size = 8,
                                        .shuffle = true,
                                        .workers = workers,
                                        .prefetch = prefetch,
                                        .seed = 5,
                                        .transform = transform});
    const std::string first = bytes(loader), second = bytes(loader);
    EXPECT_NE(first, second);
    return first + second;
  };
  const std::string images = epochs(numbered(100, 5, 7), 0, 1, random_transform);
  const std::string drawn = epochs(Odd(100), 0, 1, {});
  for (const int workers : {1, 2, 3})
    for (const int prefetch : {1, 4}) {
      EXPECT_EQ(epochs(numbered(100, 5, 7), workers, prefetch, random_transform), images)
          << workers << " workers, " << prefetch << " ahead";
      EXPECT_EQ(epochs(Odd(100), workers, prefetch, {}), drawn)
          << workers << " workers, " << prefetch << " ahead";
    }
}

// An autocast region of the loop does not affect workers.
TEST(DataLoader, GivesTheSameBytesInAnyRegion) {
  const Transform doubled = [](const Tensor& x, std::span<RowContext>) {
    return matmul(x, eye(4));
  };
  const amp::Autocast on({.low = f16});
  for (const int workers : {0, 1}) {
    DataLoader loader(TensorDataset(full({8, 4}, 0.1), zeros({8})),
                      {.workers = workers, .transform = doubled});
    for (const auto& [x, y] : loader) {
      EXPECT_EQ(x.dtype(), f32) << workers << " workers";
      EXPECT_EQ(x.at(0), double(0.1f));
    }
  }
}

// An example's transform does not depend on its batch.
TEST(DataLoader, TransformsAnExampleTheSameInAnyBatch) {
  const auto epoch = [](int64_t batch_size) {
    DataLoader loader(numbered(30, 5, 7),
                      {.batch_size = batch_size, .seed = 5, .transform = random_transform});
    std::vector<double> all;
    for (const auto& [x, y] : loader) {
      const auto values = to_vector(x);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  EXPECT_EQ(epoch(30), epoch(7));
}

TEST(DataLoader, DrawsAnewForEachExampleAndEpoch) {
  const auto draw = transforms::each(
      [](const Tensor&, RandomGenerator& random) { return full({}, random.uniform(), f64); });
  DataLoader loader(numbered(100), {.batch_size = 10, .workers = 2, .transform = draw});
  std::set<double> drawn;
  for (int i = 0; i < 2; ++i)
    for (const auto& [x, y] : loader)
      for (const double v : to_vector(x)) drawn.insert(v);
  EXPECT_EQ(drawn.size(), 200u);
}

TEST(DataLoader, PrefetchesUpToItsLimit) {
  std::atomic<int> made = 0;
  const auto count = transforms::compose({[&](const Tensor& x, std::span<RowContext>) {
    ++made;
    return x;
  }});
  DataLoader loader(numbered(100),
                    {.batch_size = 1, .workers = 2, .prefetch = 3, .transform = count});
  auto it = loader.begin();
  for (int i = 0; i < 1000 && made < 7; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(made, 7);  // the delivered one and six ahead
  EXPECT_EQ((*it).y.at(0), 0);
}

TEST(DataLoader, RefusesEpochsThatItCannotStore) {
  DataLoader loader(Odd(4)), other(Odd(4));
  const uint64_t limit = uint64_t(1) << 53;
  loader.set_epoch(limit - 1);
  other.load_state_dict(loader.state_dict());
  EXPECT_EQ(other.epoch(), limit - 1);
  EXPECT_ERROR(loader.set_epoch(limit), "epoch must be < 2^53, got 9007199254740992");
  EXPECT_EQ(loader.epoch(), limit - 1);
}

TEST(DataLoader, AllowsLoopsToBeLeftEarly) {
  for (const int workers : {0, 1, 3}) {
    const DataLoaderOptions options{.batch_size = 4, .shuffle = true, .workers = workers};
    DataLoader loader(Odd(60), options), whole(Odd(60), options);
    for (int i = 0; i < 3; ++i) bytes(loader, 1 + i);  // each loop is the next epoch
    EXPECT_EQ(loader.epoch(), 2u);
    EXPECT_EQ(loader.position(), 3);
    whole.set_epoch(3);
    EXPECT_EQ(bytes(loader), bytes(whole));
    EXPECT_EQ(loader.epoch(), 4u);
    EXPECT_EQ(loader.position(), 0);

    std::optional<DataLoader> short_lived(std::in_place, Odd(60), options);
    bytes(*short_lived, 2);
    DataLoader moved = std::move(*short_lived);
    short_lived.reset();
    EXPECT_EQ(moved.epoch(), 0u);
    bytes(moved, 1);
  }
}

TEST(DataLoader, RefusesToContinueAnEndedLoop) {
  DataLoader loader(numbered(8), {.batch_size = 4});
  auto first = loader.begin();
  auto second = loader.begin();
  EXPECT_ERROR(++first, "this loop over numbers has ended: another one over the same loader began");
  EXPECT_TRUE(++second != loader.end());
  EXPECT_TRUE(++second == loader.end());
  EXPECT_ERROR(++second, "this loop over numbers has ended");
}

TEST(DataLoader, BringsErrorsOutOfTheLoop) {
  for (const int workers : {0, 2}) {
    DataLoader loader(Odd(40, 22), {.batch_size = 4, .workers = workers});
    int got = 0;
    const std::string message = test::error([&] {
      for ([[maybe_unused]] const auto& batch : loader) ++got;
    });
    EXPECT_EQ(message, "odd: epoch 0, batch 5: example 22: bad luck") << workers;
    EXPECT_EQ(got, 5);
    EXPECT_EQ(loader.epoch(), 0u);
    EXPECT_ERROR(bytes(loader), "odd: epoch 1, batch 5: example 22: bad luck");

    const auto picky = transforms::each([](const Tensor& x, RandomGenerator&) {
      if (x.at(0) == 9) throw std::runtime_error("nine");
      return x;
    });
    DataLoader transformed(numbered(20), {.batch_size = 4, .workers = workers, .transform = picky});
    EXPECT_ERROR(bytes(transformed), "numbers: epoch 0, batch 2: example 9: nine");
  }
}

TEST(DataLoader, MakesItsBatchesItselfWhereNoThreadCanStart) {
  DataLoader plain(numbered(40), {.batch_size = 4, .shuffle = true});
  DataLoader refused(numbered(40), {.batch_size = 4, .shuffle = true, .workers = 3});
  const std::string wanted = bytes(plain);
  const test::NoNewThreads none;
  EXPECT_EQ(bytes(refused), wanted);
}

// A forked child has none of the workers, and ends without them.
TEST(DataLoader, GoesOnInAForkedChild) {
  DataLoader loader(numbered(40), {.batch_size = 4, .workers = 2});
  int batches = 0, status = -1;
  pid_t child = -1;
  std::fflush(nullptr);
  for ([[maybe_unused]] const auto& batch : loader) {
    ++batches;
    if (batches == 3 && (child = fork()) == 0) alarm(20);
    if (batches == 5 && child != 0)
      status = test::status_of_child([&] {
        loader.set_epoch(7);  // ends the loop that was forked
        int again = 0;
        for ([[maybe_unused]] const auto& other : loader) ++again;
        return again == 10;
      });
  }
  if (child == 0) std::exit(batches == 10 ? EXIT_SUCCESS : EXIT_FAILURE);
  EXPECT_EQ(batches, 10);
  EXPECT_EQ(status, 0);
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// ---- resuming

TEST(DataLoader, ResumesInTheMiddleOfAnEpoch) {
  for (const int workers : {0, 2}) {
    const DataLoaderOptions options{.batch_size = 4,
                                    .shuffle = true,
                                    .workers = workers,
                                    .seed = 9,
                                    .transform = random_transform};
    DataLoader whole(numbered(50), options), half(numbered(50), options);
    bytes(whole);
    const std::string second = bytes(whole), third = bytes(whole);
    bytes(half);
    const std::string begun = bytes(half, 5);
    const StateDict state = half.state_dict();

    DataLoader resumed(numbered(50), options);
    resumed.load_state_dict(state);
    EXPECT_EQ(resumed.epoch(), 1u);
    EXPECT_EQ(resumed.position(), 5);
    EXPECT_EQ(begun + bytes(resumed), second);
    EXPECT_EQ(bytes(resumed), third);

    half.skip(half.position());  // the rest of an interrupted epoch
    EXPECT_EQ(begun + bytes(half), second);
  }
}

TEST(DataLoader, ResumesAfterTheLastBatch) {
  DataLoader loader(numbered(8), {.batch_size = 4}), resumed(numbered(8), {.batch_size = 4});
  StateDict last;
  for ([[maybe_unused]] const auto& batch : loader) last = loader.state_dict();
  resumed.load_state_dict(last);
  EXPECT_TRUE(epoch(resumed).empty());
  EXPECT_EQ(resumed.epoch(), 1u);
  EXPECT_EQ(epoch(resumed).size(), 8u);
}

TEST(DataLoader, RefusesAStateThatDoesNotFit) {
  DataLoader loader(numbered(8), {.batch_size = 4});
  EXPECT_ERROR(loader.skip(3), "cannot skip 3 of 2 batches");
  EXPECT_ERROR(loader.skip(-1), "cannot skip -1 of 2 batches");
  const auto state = [](double epoch, double batch) {
    return StateDict{{"epoch", from({epoch}, {}, i64)}, {"batch", from({batch}, {}, i64)}};
  };
  EXPECT_ERROR(loader.load_state_dict(state(-1, 0)),
               "epoch must be a whole number from 0 to 9007199254740992, got -1");
  EXPECT_ERROR(loader.load_state_dict(state(0, 3)),
               "batch must be a whole number from 0 to 2, got 3");
  EXPECT_ERROR(loader.load_state_dict({{"epoch", from({1}, {}, i64)}}), "batch");
  EXPECT_EQ(loader.epoch(), 0u);
}

// Ranks' parts of each batch, one after the other, are what one rank with as many chunks has.
TEST(DataLoader, RanksShareEachBatch) {
  DataLoader whole(
      numbered(50),
      {.batch_size = 16, .shuffle = true, .transform = random_transform, .part = {0, 1, 8}});
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<DataLoader> loaders;
    for (int r = 0; r < ranks; ++r)
      loaders.emplace_back(numbered(50), DataLoaderOptions{.batch_size = 16,
                                                           .shuffle = true,
                                                           .workers = r % 2,
                                                           .transform = random_transform,
                                                           .part = {r, ranks, 8}});
    for (int64_t i = 0; i < whole.batches(); ++i) {
      const Batch all = whole.batch(i);
      std::vector<Tensor> x, y;
      for (const DataLoader& loader : loaders) {
        const Batch part = loader.batch(i);
        EXPECT_EQ(part.of_step, all.of_step);
        if (!part.x) continue;
        x.push_back(part.x);
        y.push_back(part.y);
      }
      EXPECT_EQ(to_vector(cat(x)), to_vector(all.x));
      EXPECT_EQ(to_vector(cat(y)), to_vector(all.y));
    }
    // The last batch has 2 examples for 8 chunks: 6 chunks have none.
    EXPECT_EQ(bool(loaders.front().batch(3).x), ranks <= 2);
    EXPECT_EQ(loaders.back().batch(3).of_step, 2);
    for (DataLoader& loader : loaders)
      EXPECT_EQ(std::ranges::distance(loader), 4) << "equally many steps";
  }
}

// Several batches at once are those of a larger size; positions count the small ones.
TEST(DataLoader, SharesSeveralBatchesAtOnce) {
  const DataLoaderOptions small{.batch_size = 4, .shuffle = true, .drop_last = true};
  DataLoaderOptions large = small;
  large.batch_size = 12;
  for (const int workers : {0, 2}) {
    DataLoaderOptions o = small;
    o.workers = workers;
    DataLoader loader(numbered(34), o), whole(numbered(34), large);
    std::vector<int64_t> positions, sizes;
    int64_t i = 0;
    for (const Batch& batch : loader.share({1, 2, 2}, 3)) {
      positions.push_back(loader.position());
      sizes.push_back(batch.of_step);
      if (i < 2) {
        EXPECT_EQ(to_vector(batch.y), to_vector(narrow(whole.batch(i).y, 0, 6, 6)));
      }
      ++i;
    }
    EXPECT_EQ(positions, (std::vector<int64_t>{3, 6, 8}));
    EXPECT_EQ(sizes, (std::vector<int64_t>{12, 12, 8}));
    // Goes on from any position.
    loader.set_epoch(0);
    loader.skip(4);
    EXPECT_EQ(std::ranges::distance(loader.share({0, 1, 1}, 3)), 2);
    EXPECT_EQ(loader.epoch(), 1u);
    EXPECT_EQ(std::ranges::distance(loader), 8);
  }
}

TEST(DataLoader, RefusesWhatMakesNoSense) {
  const TensorDataset good = numbered(4);
  DataLoader shared(good);
  EXPECT_ERROR(shared.share({}, 0), "batches must be > 0, got 0");
  EXPECT_ERROR(shared.share({2, 2, 2}), "part must be of a rank below the number of ranks");
  for (const dist::Part& part : {dist::Part{0, 2, 3}, dist::Part{2, 2, 2}, dist::Part{0, 1, 0}})
    EXPECT_ERROR(DataLoader(good, {.part = part}),
                 "part must be of a rank below the number of ranks");
  EXPECT_EQ(DataLoader(std::make_shared<TensorDataset>(good)).examples(), 4);
  struct Negative : Dataset {
    std::string name() const override { return "odd"; }
    int64_t size() const override { return -1; }
    Example get(int64_t) const override { return {}; }
  };
  EXPECT_ERROR(DataLoader(Negative()), "odd: size() must be >= 0, got -1");
  EXPECT_ERROR(DataLoader(good, {.batch_size = 0}), "batch_size must be > 0, got 0");
  EXPECT_ERROR(DataLoader(good, {.max_batches = -1}), "max_batches must be >= 0, got -1");
  EXPECT_ERROR(DataLoader(good, {.shuffle = true, .sampler = weighted({1}, 2)}),
               "shuffle has no effect with a sampler");
  EXPECT_ERROR(DataLoader(good, {.workers = -1}), "workers must be from 0 to 256, got -1");
  EXPECT_ERROR(DataLoader(good, {.workers = 257}), "workers must be from 0 to 256, got 257");
  EXPECT_ERROR(DataLoader(good, {.prefetch = 0}), "prefetch must be from 1 to 1024, got 0");
  EXPECT_ERROR(DataLoader(good, {.device = Device::cuda(15)}), "cuda:15");
  EXPECT_ERROR(DataLoader(std::shared_ptr<const Dataset>()), "no data set");
  EXPECT_ERROR(DataLoader(good, {.batch_size = 3}).batch(2),
               "batch 2 is out of range for 2 batches");
  EXPECT_ERROR(DataLoader(good).batch(-1), "batch -1 is out of range for 1 batches");
  const auto shrink = [](const Tensor& x, std::span<RowContext>) { return slice(x, 0, 0, 1); };
  EXPECT_ERROR(DataLoader(good, {.transform = shrink}).batch(0),
               "numbers: epoch 0, batch 0: 4 examples became a tensor of shape [1, 1, 2, 3]");
}

}  // namespace loader_test
}  // namespace mixtape::train
