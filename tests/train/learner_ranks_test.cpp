// Learner on several ranks: the same training, bit for bit, on any number of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/warn.h"
#include "dist/data_parallel.h"
#include "io/jsonl.h"
#include "tests/support/errors.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"
#include "train/callbacks.h"
#include "train/data/data.h"
#include "train/timeline.h"

namespace mixtape::train {
namespace learner_ranks_test {

using namespace test;
using dist::expect_fine, dist::run_ranks, dist::World;

struct Digits : nn::Module<Digits> {
  nn::Conv2d conv1{1, 4, 5, {.stride = {3, 3}}}, conv2{4, 8, 3, {.stride = {2, 2}}};
  nn::BatchNorm2d norm1{4}, norm2{8};
  nn::Dropout drop{0.2};
  nn::Linear out;
  explicit Digits(int64_t features) : out(features, 10) {}
  Tensor forward(const Tensor& x) const {
    return out(drop(flatten(relu(norm2(conv2(relu(norm1(conv1(x)))))), 1)));
  }
  MIXTAPE_FIELDS(conv1, norm1, conv2, norm2, drop, out)
};

const Split<TensorDataset>& digits() {
  static const auto all = make_digits(1, 90, 41);
  return all;
}

struct Job {
  Choose precision = precisions[0];
  int64_t chunks = 8, batch = 24, accumulate = 1, epochs = 2;
  std::string resume = {};
  bool averages = false, shards = false;
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  std::optional<OptimizerMaker> optimizer = {};
  // A rank's work, in place of a fit of one cycle.
  std::function<void(Learner&)> body = {};
};

void run(const Job& job, const std::string& folder) {
  const Seed seed(World::current() ? World::current()->rank() + 5 : 5);  // the first one decides
  Loaders data;
  const Transform scaled = transforms::normalize({33.0 / 255}, {78.0 / 255});
  data.train.emplace(
      digits().train,
      DataLoaderOptions{.batch_size = job.batch,
                        .shuffle = true,
                        .transform = transforms::compose({transforms::random_crop(2), scaled})});
  data.valid.emplace(digits().valid, DataLoaderOptions{.batch_size = 16, .transform = scaled});
  Digits net(8 * 3 * 3);
  LearnerOptions o = quiet();
  o.metrics = {accuracy, f1(10)};
  o.folder = folder;
  o.chunks = job.chunks;
  o.shards = job.shards;
  o.callbacks = job.callbacks;
  o.optimizer = job.optimizer;
  if (job.averages) {
    o.callbacks.push_back(std::make_shared<EmaWeights>(optim::EmaOptions{.decay = 0.9}));
    o.callbacks.push_back(std::make_shared<GradientClip>(0.5));
    o.callbacks.push_back(std::make_shared<TerminateOnNan>());
  }
  if (job.accumulate > 1)
    o.callbacks.push_back(std::make_shared<GradientAccumulation>(job.accumulate));
  Learner learner(std::move(data), net, o);
  job.precision(learner);
  if (job.body) return job.body(learner);
  learner.fit_one_cycle(job.epochs, 1e-2, {.resume = job.resume});
}

// Files of a run, metrics.jsonl without times.
std::string result(const std::string& folder) {
  std::string text;
  for (auto& line : io::read_json_lines(folder + "/metrics.jsonl")) {
    std::erase_if(line, [](const auto& field) { return field.first == "seconds"; });
    text += io::json_object(line) + '\n';
  }
  return text + slurp(folder + "/last.ckpt") + slurp(folder + "/best.ckpt");
}

std::string result(const Job& job, int ranks) {
  const TempFolder folder;
  expect_fine(run_ranks(ranks, [&](const World&) { run(job, folder.path()); }));
  return result(folder.path());
}

TEST(LearnerRanks, AnyNumberHasTheSameBits) {
  for (size_t p : {0, 1, 2, 3}) {
    Job job{.precision = precisions[p], .averages = p == 1};
    const TempFolder alone;
    run(job, alone.path());  // without a World
    const std::string expected = result(alone.path());
    for (const int ranks : {1, 2, 4, 8}) {
      if (p > 0 && ranks == 8) continue;
      EXPECT_TRUE(result(job, ranks) == expected) << ranks << " ranks, precision " << p;
    }
    job.shards = true;
    for (const int ranks : {1, 2, 4})
      EXPECT_TRUE(result(job, ranks) == expected) << ranks << " ranks' shards, precision " << p;
  }
}

// Validation shows the means of divided weights, in f32 and in bf16 with masters.
TEST(LearnerRanks, AScheduleFreeOptimizerMayBeDivided) {
  for (const size_t p : {0, 3}) {
    Job job{.precision = precisions[p], .optimizer = [](std::vector<Tensor> params) {
              return optim::ScheduleFreeAdamW(std::move(params), {.lr = 1e-2, .warmup_steps = 3});
            }};
    job.body = [](Learner& l) { l.fit(2); };
    const std::string expected = result(job, 1);
    job.shards = true;
    for (const int ranks : {2, 4})
      EXPECT_TRUE(result(job, ranks) == expected) << ranks << " ranks' shards, precision " << p;
  }
}

// Calls stop() in one step on one rank.
struct StopAt : Callback {
  int64_t step;
  int rank;
  StopAt(int64_t s, int r) : step(s), rank(r) {}
  void on_batch_end(Learner& l) override {
    const World* const world = World::current();
    if (l.state.training && l.state.step == step && (!world || world->rank() == rank)) l.stop();
  }
};

TEST(LearnerRanks, AStopOfOneEndsAllAfterTheSameStep) {
  for (const int ranks : {1, 2, 4}) {
    const TempFolder folder;
    std::mutex mutex;
    expect_fine(run_ranks(ranks, [&](const World& world) {
      const auto stop = std::make_shared<StopAt>(2, ranks - 1);
      run({.callbacks = {stop},
           .body =
               [&](Learner& l) {
                 EXPECT_EQ(l.fit(2), FitResult::Stopped);
                 const std::lock_guard lock(mutex);
                 EXPECT_EQ(l.state.step, 3) << "rank " << world.rank();
                 EXPECT_TRUE(l.is_stopping());
               }},
          folder.path());
    }));
  }
}

// Checkpoints have one history of scales, from whichever ranks and for whichever number of them.
TEST(LearnerRanks, ARecipeHasOneHistory) {
  Job job{.precision = [](Learner& l) {
    l.to_fp16({.amp_mode = bf16, .recipe = amp::Delayed{.history = 4}});
  }};
  const std::string expected = result(job, 1);
  EXPECT_NE(expected.find("recipe."), std::string::npos);
  for (const int ranks : {2, 4}) EXPECT_TRUE(result(job, ranks) == expected) << ranks;
  const TempFolder folder;
  const auto part = [&](int ranks, int64_t stop_at, bool resumes) {
    expect_fine(run_ranks(ranks, [&](const World&) {
      Job some = job;
      some.callbacks = {std::make_shared<StopAt>(stop_at, ranks - 1)};
      if (resumes) some.resume = folder / "last.ckpt";
      run(some, folder.path());
    }));
  };
  part(4, 1, false);
  part(2, 100, true);
  EXPECT_TRUE(result(folder.path()) == expected);
}

TEST(LearnerRanks, GoOnWithOthers) {
  Job whole{.precision = precisions[1]};
  const std::string expected = result(whole, 1);
  const TempFolder folder;
  const auto part = [&](int ranks, int64_t stop_at, bool resumes) {
    expect_fine(run_ranks(ranks, [&](const World&) {
      Job job = whole;
      job.callbacks = {std::make_shared<StopAt>(stop_at, ranks - 1)};
      if (resumes) job.resume = folder / "last.ckpt";
      run(job, folder.path());
    }));
  };
  part(4, 1, false);  // ends after step 2 of 8
  part(2, 4, true);   // in the second epoch
  part(1, 100, true);
  // Checkpoints hold callbacks by their type, and StopAt has no state.
  EXPECT_TRUE(result(folder.path()) == expected);
  // The job that wrote one may have divided the optimizer's state, and the one that reads it may.
  whole.shards = true;
  part(4, 1, false);
  part(2, 4, true);
  whole.shards = false;
  part(2, 6, true);
  part(1, 100, true);
  EXPECT_TRUE(result(folder.path()) == expected);
}

// Fits, changes of precision and of the optimizer, a search for a rate, loading.
TEST(LearnerRanks, DividedStateFollowsWhatALearnerDoes) {
  std::vector<std::string> bits;
  std::mutex mutex;
  for (const bool shards : {false, true})
    for (const bool masters : {false, true}) {
      const TempFolder folder;
      expect_fine(run_ranks(2, [&](const World& world) {
        run({.precision = precisions[masters ? 3 : 1],
             .shards = shards,
             .body =
                 [&](Learner& l) {
                   l.fit_one_cycle(1, 1e-2);
                   EXPECT_EQ(bool(l.optimizer->sharing()), shards);
                   l.save(folder / "one.ckpt");
                   l.lr_find({.steps = 5});
                   l.fit(1);
                   masters ? l.to_fp16(MasterOptions()) : l.to_bf16();
                   l.fit(1);
                   l.save(folder / "two.ckpt");
                   masters ? l.to_fp16(MasterOptions()) : l.to_fp16();
                   l.load(folder / "one.ckpt");
                   l.fit(1);
                   LearnerOptions o = quiet();
                   o.chunks = 4;
                   o.shards = shards;
                   l.compile(o);
                   l.fit(1);
                   l.save(folder / "end.ckpt");
                 }},
            folder.path());
        if (!world.is_first()) return;
        const std::lock_guard lock(mutex);
        bits.push_back(slurp(folder / "two.ckpt") + slurp(folder / "end.ckpt"));
      }));
    }
  ASSERT_EQ(bits.size(), 4u);
  EXPECT_TRUE(bits[0] == bits[2]);
  EXPECT_TRUE(bits[1] == bits[3]);
}

// A program may drop or replace the optimizer whose state is divided.
TEST(LearnerRanks, ADividedOptimizerMayGo) {
  const TempFolder folder;
  expect_fine(run_ranks(2, [&](const World&) {
    run({.shards = true,
         .body =
             [&](Learner& l) {
               l.fit(1);
               l.optimizer.reset();
               LearnerOptions o = quiet();
               o.chunks = 4;
               o.shards = true;
               l.compile(o);
               l.fit(1);
               l.optimizer = std::make_unique<optim::SGD>(l.model().parameters());
               l.fit(1);
               EXPECT_TRUE(bool(l.optimizer->sharing()));
             }},
        folder.path());
  }));
}

TEST(LearnerRanks, AccumulateInChunks) {
  const auto steps = [](int64_t chunks, int64_t ranks) {
    std::vector<StepRow> steps;
    std::mutex mutex;
    const TempFolder folder;
    expect_fine(run_ranks(int(ranks), [&](const World&) {
      run({.chunks = chunks,
           .batch = 8,
           .accumulate = 4,
           .body =
               [&](Learner& l) {
                 l.fit_one_cycle(2, 1e-2);
                 const std::lock_guard lock(mutex);
                 steps = l.history.steps;
                 EXPECT_EQ(l.state.step, 24);
               }},
          folder.path());
    }));
    return steps;
  };
  const auto two = steps(0, 2), one = steps(8, 1), alone = steps(0, 1);
  ASSERT_EQ(two.size(), 6u);
  ASSERT_EQ(one.size(), 6u);
  ASSERT_EQ(alone.size(), 6u);
  for (size_t i = 0; i < two.size(); ++i) {
    EXPECT_EQ(two[i].step, alone[i].step);
    EXPECT_EQ(two[i].lr, alone[i].lr);
    EXPECT_EQ(two[i].loss, one[i].loss);
  }
}

struct Events : Spy {
  int place;
  explicit Events(int order) : place(order) {}
  int order() const override { return place; }
};

TEST(LearnerRanks, ObserversRunOnTheFirst) {
  const TempFolder folder;
  expect_fine(run_ranks(2, [&](const World& world) {
    const auto acts = std::make_shared<Events>(0), looks = std::make_shared<Events>(100);
    run({.chunks = 2,
         .callbacks = {acts, looks},
         .body =
             [&](Learner& l) {
               EXPECT_EQ(l.parallel(), nullptr);
               l.fit(1);
               EXPECT_EQ(l.parallel(), nullptr);
             }},
        folder.path());
    EXPECT_EQ(looks->seen, world.is_first() ? acts->seen : "");
    EXPECT_EQ(acts->seen.find("train epoch batch loss backward backward. step step. batch."), 0u);
  }));
}

TEST(LearnerRanks, AProfileShowsTheExchangeWithinBackward) {
  for (const int ranks : {1, 2}) {
    const TempFolder folder;
    const std::string path = folder / "steps.json";
    expect_fine(run_ranks(ranks, [&](const World&) {
      run({.chunks = 4,
           .callbacks = {std::make_shared<Profile>(path, ProfileOptions{.first = 0, .steps = 2})},
           .body = [](Learner& l) { l.fit(1); }},
          folder.path());
    }));
    const auto trace = nlohmann::json::parse(slurp(path));
    std::map<std::string, std::vector<std::pair<double, double>>> spans;
    for (const auto& e : trace["traceEvents"])
      if (e["cat"] == "span")
        spans[e["name"]].emplace_back(e["ts"], e["ts"].get<double>() + e["dur"].get<double>());
    EXPECT_EQ(spans["step"].size(), 2u);
    EXPECT_EQ(spans["exchange"].size(), ranks == 1 ? 0u : 2u);
    for (const auto& [begin, end] : spans["exchange"])
      EXPECT_TRUE(
          std::ranges::any_of(spans["backward"], [begin = begin, end = end](const auto& backward) {
            return backward.first <= begin && end <= backward.second + 0.002;
          }));
  }
}

TEST(LearnerRanks, ACheckpointThatCannotBeWrittenIsAnErrorOnAll) {
  const TempFolder folder;
  const auto errors = run_ranks(2, [&](const World&) {
    run({.body =
             [&](Learner& l) {
               const std::string text = error([&] { l.save(folder / "none/a.ckpt"); });
               EXPECT_NE(text.find("none/a.ckpt: cannot"), std::string::npos) << text;
               EXPECT_EQ(error([&] { l.load(folder / "none.ckpt"); }).find(folder / "none.ckpt"),
                         0u);
             }},
        folder / "run");
  });
  expect_fine(errors);
}

// Skips a chunk, by its first label, or what follows its loss.
struct SkipChunk : Callback {
  bool early;
  explicit SkipChunk(bool e) : early(e) {}
  void on_batch_begin(Learner& l) override {
    if (early && l.state.training && l.state.y.at(0) < 3) l.skip();
  }
  void on_backward_begin(Learner& l) override {
    if (!early && l.state.y.at(0) < 3) l.skip();
  }
};

TEST(LearnerRanks, CallbacksMaySkipChunks) {
  for (const bool early : {true, false}) {
    const auto bits = [&](int ranks) {
      const TempFolder folder;
      expect_fine(run_ranks(ranks, [&](const World&) {
        run({.callbacks = {std::make_shared<SkipChunk>(early)}}, folder.path());
      }));
      // Batch norms count batches, of which only the chunks that ran know.
      const std::string all = result(folder.path());
      return early ? all.substr(0, all.rfind("\"epoch\":1")) : all;
    };
    const std::string one = bits(1);
    EXPECT_TRUE(bits(4) == one) << early;
    EXPECT_FALSE(result(Job{}, 1).starts_with(one));
  }
}

struct KeepGradients : Callback {
  int order() const override { return -20; }
  void on_backward_end(Learner& l) override { l.skip(); }
};

TEST(LearnerRanks, FindTheSameRate) {
  std::vector<double> rates;
  std::mutex mutex;
  for (const int ranks : {1, 4}) {
    const TempFolder folder;
    expect_fine(run_ranks(ranks, [&](const World&) {
      run({.body =
               [&](Learner& l) {
                 const double rate = l.lr_find({.steps = 20}).suggested;
                 const std::lock_guard lock(mutex);
                 rates.push_back(rate);
                 EXPECT_EQ(l.state.step, 0);
               }},
          folder.path());
    }));
  }
  ASSERT_EQ(rates.size(), 5u);
  for (const double rate : rates) EXPECT_EQ(rate, rates[0]);
}

// Sums of integers do not depend on chunks at all.
TEST(LearnerRanks, ValidateEveryExampleOnce) {
  const TempFolder folder;
  std::vector<double> whole;
  const auto scores = [&](Learner& l) {
    const Tensor counts = l.total([](const Tensor& output, const Tensor& target) {
      return confusion_matrix(output, target, 10);
    });
    EXPECT_EQ(sum(counts).item(), 41);
    const Scores s = l.validate();
    const Scores few = l.evaluate(digits().valid.x().to(f32), digits().valid.y(), 3);
    const Tensor p = l.predict(digits().valid.x().to(f32));
    return std::vector{s.metrics[0], s.metrics[1], few.metrics[0], sum(p.to(f64)).item()};
  };
  const Job alone{.chunks = 0, .body = [&](Learner& l) { whole = scores(l); }};
  run(alone, folder.path());
  expect_fine(run_ranks(4, [&](const World& world) {
    run({.body =
             [&](Learner& l) {
               l.fit(0);  // all take the weights of the first
               EXPECT_EQ(scores(l), whole) << "rank " << world.rank();
             }},
        folder.path());
  }));
}

TEST(LearnerRanks, ASignalToOneInterruptsAll) {
  const TempFolder folder;
  struct Raise : Callback {
    void on_batch_end(Learner& l) override {
      if (World::current()->rank() == 1 && l.state.training && l.state.step == 2)
        std::raise(SIGTERM);
    }
  };
  expect_fine(run_ranks(2, [&](const World&) {
    const Interrupt interrupt;
    run({.callbacks = {std::make_shared<Raise>()},
         .body =
             [&](Learner& l) {
               EXPECT_EQ(l.fit(2), FitResult::Interrupted);
               EXPECT_EQ(l.state.step, 3);
               EXPECT_EQ(Interrupt::last_signal(), SIGTERM);
             }},
        folder.path());
    World::current()->barrier();
  }));
  Interrupt::forget();
}

TEST(LearnerRanks, LeaveOutALastBatchWithAnExampleForEach) {
  expect_fine(run_ranks(2, [&](const World&) {
    const Seed seed(1);
    Learner learner(nn::Sequential(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Linear(8, 3)),
                    quiet());
    const TensorDataset data = clusters(18, 1);
    learner.fit(data.x(), data.y(), {.batch_size = 16});
    EXPECT_EQ(learner.history.steps.size(), 1u);
  }));
}

// The epochs stay, though a chart cannot be drawn.
TEST(LearnerRanks, WarnOfClassesThatTheScoresLack) {
  std::atomic<int> warnings = 0;
  const TempFolder folder;
  expect_fine(run_ranks(2, [&](const World&) {
    const OnWarning listen([&](const std::string& text) {
      warnings += text.starts_with(
          "confusion.svg cannot be drawn: confusion_matrix: scores of 3 "
          "classes, not 2");
    });
    LearnerOptions o = quiet();
    o.folder = folder.path();
    o.classes = {"a", "b"};
    Learner learner(loaders(48, 16), Net(), o);
    learner.fit(1);
    EXPECT_EQ(learner.history.epochs.size(), 1u);
  }));
  EXPECT_EQ(warnings, 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "confusion.svg"));
}

TEST(LearnerRanks, SayWhatIsWrong) {
  const TempFolder folder;
  const auto on_two = [&](const Job& of_all,
                          const std::function<void(Learner&, const World&)>& body) {
    return run_ranks(2, [&](const World& world) {
      Job job = of_all;
      job.body = [&](Learner& l) { body(l, world); };
      run(job, folder.path());
    });
  };
  const auto expect_all = [](const std::vector<std::string>& errors, const std::string& text) {
    for (const std::string& e : errors)
      EXPECT_NE(e.find(text), std::string::npos) << e << "\nwanted: " << text;
  };
  expect_all(on_two({}, [](Learner& l, const World&) { l.train_batch(l.data.train->batch(0)); }),
             "train_batch() trains one rank alone, and there are 2: fit(), or a loop with a "
             "dist::DataParallel");
  expect_all(on_two({.chunks = 3}, [](Learner& l, const World&) { l.fit(1); }),
             "3 chunks cannot be spread over 2 ranks");
  expect_all(on_two({.chunks = 64}, [](Learner& l, const World&) { l.fit(1); }),
             "batches of 24 examples have none for each of 64 chunks");
  expect_all(on_two({}, [](Learner& l, const World& world) { l.fit(1 + world.rank()); }),
             "rank 1 of 2 has other settings than rank 0: 2 epochs (rank 0: 1 epochs)");
  expect_all(on_two({.callbacks = {std::make_shared<KeepGradients>()}},
                    [](Learner& l, const World&) { l.fit(1); }),
             "a callback skipped a step but not its gradients, to which chunks cannot add");
  Digits net(72);
  EXPECT_ERROR(Learner({}, net, {.chunks = -1}), "chunks must be >= 0, got -1");
}

}  // namespace learner_ranks_test
}  // namespace mixtape::train
