// Checkpoints: what a learner saves, and how a fit resumes from it.

#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>

#include "autograd/ops.h"
#include "core/random.h"
#include "optim/optimizers.h"
#include "optim/schedules.h"
#include "optim/state_reader.h"
#include "tests/support/child.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"
#include "train/callbacks.h"
#include "train/interrupt.h"

namespace mixtape::train {
namespace learner_state_test {

using namespace test;

// Saved after any batch and resumed in a new learner: bit-identical.
TEST(Checkpoints, ResumeBitForBit) {
  const TempFolder folder;
  int64_t accumulate = 1;
  const auto fresh = [&accumulate](Choose choose, int64_t stop_at, const std::string& file) {
    LearnerOptions o = quiet();
    const auto spy = std::make_shared<Spy>();
    if (stop_at > 0) {
      spy->at = "batch.";
      spy->ask = [=](Learner& l) {
        if (l.state.step != stop_at) return;
        l.save(file);
        l.stop();
      };
    }
    o.callbacks = {spy, std::make_shared<EarlyStopping>(), std::make_shared<EmaWeights>()};
    if (accumulate > 1) o.callbacks.push_back(std::make_shared<GradientAccumulation>(accumulate));
    auto learner = std::make_unique<Learner>(loaders(50, 16), Net(), o);
    choose(*learner);
    return learner;
  };
  const std::string file = folder / "cut.ckpt";
  const auto run = [&](Choose choose) {
    const Seed seed(1);
    const auto whole = fresh(choose, 0, file);
    whole->fit_one_cycle(3, 1e-2);
    const auto expected = bytes(*whole);
    for (int64_t cut = 1; cut <= 12; ++cut) {
      {
        const Seed same(1);
        fresh(choose, cut, file)->fit_one_cycle(3, 1e-2);
      }
      const Seed other(7);
      const auto resumed = fresh(choose, 0, file);
      resumed->fit_one_cycle(3, 1e-2, {.resume = file});
      EXPECT_EQ(differing(bytes(*resumed), expected), "")
          << "cut after batch " << cut << " of those that make a step: " << accumulate;
    }
  };
  for (const Choose choose : precisions) run(choose);
  accumulate = 3;  // a cut within a step: the gradients so far are part of the state
  for (const Choose choose : precisions) run(choose);
}

// A non-finite loss does not lower the scale, even if its step is after the checkpoint.
TEST(Checkpoints, ResumeAfterALossThatWasNotFinite) {
  const TempFolder folder;
  const auto fit = [&](Choose choose, int64_t stop_at, const std::string& resume) {
    const Seed seed(1);
    LearnerOptions o = quiet();
    const auto bad = std::make_shared<Spy>(), spy = std::make_shared<Spy>();
    bad->at = "loss";
    bad->ask = [](Learner& l) {
      if (l.state.step == 3) l.state.output = l.state.output * NAN;
    };
    spy->at = "batch.";
    spy->ask = [&](Learner& l) {
      if (l.state.step != stop_at) return;
      l.save(folder / "cut.ckpt");
      l.stop();
    };
    o.callbacks = {bad, spy, std::make_shared<GradientAccumulation>(3)};
    Learner learner(loaders(), Net(), o);
    choose(learner);
    learner.fit(2, {.resume = resume});
    return bytes(learner);
  };
  for (const Choose choose : precisions) {
    const Bytes whole = fit(choose, 0, "");
    for (const int64_t cut : {4, 5, 6}) {
      fit(choose, cut, "");
      EXPECT_EQ(differing(fit(choose, 0, folder / "cut.ckpt"), whole), "") << cut;
    }
  }
}

// Resuming from any other event would lose or repeat a batch or an epoch.
TEST(Checkpoints, CannotResumeWithinABatchOrAValidation) {
  const TempFolder folder;
  const std::string file = folder / "cut.ckpt";
  const auto fit = [&](const std::string& event, const std::string& resume) {
    const Seed seed(1);
    LearnerOptions o = quiet();
    const auto spy = std::make_shared<Spy>();
    spy->at = event;
    spy->ask = [&](Learner& l) {
      if (l.state.step < 4) return;
      l.save(file);
      l.stop();
    };
    o.callbacks = {spy};
    Learner learner(loaders(), Net(), o);
    learner.fit(3, {.resume = resume});
    return bytes(learner);
  };
  const Bytes whole = fit("", "");
  for (const char* event : {"epoch", "batch.", "epoch."}) {
    fit(event, "");
    EXPECT_EQ(differing(fit("", file), whole), "") << event;
  }
  for (const char* event : {"batch", "loss", "backward", "backward.", "step", "step.", "valid",
                            "vbatch", "vloss", "vbatch.", "valid."}) {
    fit(event, "");
    EXPECT_ERROR(fit("", file), "cut.ckpt: saved within a batch or a validation");
    Learner learner(loaders(), Net(), quiet());
    learner.load(file);  // only for its weights
    learner.fit(1);
  }
  for (const char* event : {"step.", "vloss"}) {  // saved when an exception has ended the fit
    LearnerOptions o = quiet();
    const auto spy = std::make_shared<Spy>();
    spy->at = event;
    spy->ask = [](Learner&) { fail("a flaw"); };
    o.callbacks = {spy};
    Learner learner(loaders(), Net(), o);
    EXPECT_ERROR(learner.fit(3), "a flaw");
    learner.save(file);
    EXPECT_ERROR(fit("", file), "cut.ckpt: saved within a batch or a validation");
    spy->at = "";
    learner.fit(3);
    learner.save(file);
    fit("", file);
  }
}

// A validation loader with different epochs continues with the next one.
TEST(Checkpoints, ResumeValidationsThatDiffer) {
  const TempFolder folder;
  const std::string file = folder / "cut.ckpt";
  const auto fit = [&](int64_t stop_at, const std::string& resume) {
    const Seed seed(1);
    LearnerOptions o = quiet();
    const auto spy = std::make_shared<Spy>();
    spy->at = "batch.";
    spy->ask = [&](Learner& l) {
      if (l.state.step != stop_at) return;
      l.save(file);
      l.stop();
    };
    o.callbacks = {spy};
    Learner learner(loaders(), Net(), o);
    learner.data.valid.emplace(
        clusters(48, 2), DataLoaderOptions{.batch_size = 8, .shuffle = true, .max_batches = 2});
    learner.fit(3, {.resume = resume});
    return bytes(learner);
  };
  const auto whole = fit(0, "");
  fit(8, "");  // after one validation
  EXPECT_EQ(differing(fit(0, file), whole), "");
}

// A fit begins with a whole epoch, wherever another was saved or left.
TEST(Checkpoints, ANewFitBeginsAnEpoch) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>();
  spy->at = "batch.";
  spy->ask = [](Learner& l) {
    if (l.state.step == 2) l.stop();
  };
  o.callbacks = {spy};
  Learner learner(loaders(), Net(), o);
  learner.fit(3);
  learner.save(folder / "cut.ckpt");
  learner.lr_find({.steps = 2});
  learner.fit_one_cycle(2);
  EXPECT_EQ(learner.state.step, 2 + 2 * 6);
  Learner other(loaders(), Net(), quiet());
  other.load(folder / "cut.ckpt");
  other.fit_one_cycle(2);
  EXPECT_EQ(other.state.step, 2 + 2 * 6);
}

// Earlier rows are saved with one column per current metric.
TEST(Checkpoints, HoldRowsOfOtherMetrics) {
  const Seed seed(1);
  const TempFolder folder;
  Loaders data = loaders();
  data.valid.reset();
  Learner learner(std::move(data), Net(), quiet());
  learner.fit(2);
  learner.metrics = {accuracy, top_k(2)};
  learner.data.valid = loaders().valid;
  learner.fit(1);
  learner.save(folder / "a.ckpt");
  const double valid = learner.history.epochs[2].valid_loss;
  const double top = learner.history.epochs[2].metrics[1];
  learner.load(folder / "a.ckpt");
  ASSERT_EQ(learner.history.epochs.size(), 3u);
  EXPECT_TRUE(std::isnan(learner.history.epochs[0].metrics[1]));
  EXPECT_EQ(learner.history.epochs[2].valid_loss, valid);
  EXPECT_EQ(learner.history.epochs[2].metrics[1], top);
  learner.metrics.clear();
  learner.lr_find({.steps = 3});
  EXPECT_EQ(learner.history.epochs[2].metrics[1], top);
  learner.save(folder / "b.ckpt");
  learner.load(folder / "b.ckpt");
  EXPECT_TRUE(learner.history.epochs[2].metrics.empty());
  EXPECT_EQ(learner.history.epochs[2].valid_loss, valid);
}

// The rate at the end of a fit on a plateau, which calls `ask` when an epoch begins.
double rate_on_a_plateau(const optim::PlateauOptions& plateau, int64_t epochs,
                         const std::string& resume, std::function<void(Learner&)> ask) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 1e-12}); };
  const auto spy = std::make_shared<Spy>();
  spy->at = "epoch";
  spy->ask = std::move(ask);
  o.callbacks = {std::make_shared<ReduceLrOnPlateau>(plateau), spy};
  Learner learner(loaders(), Net(), o);
  learner.fit(epochs, {.resume = resume});
  return learner.optimizer->lr();
}

TEST(Checkpoints, ResumeOnAPlateau) {
  const TempFolder folder;
  const auto fit = [&](const std::string& resume) {
    return rate_on_a_plateau({.patience = 2, .eps = 0}, 4, resume, [&](Learner& l) {
      if (l.state.epoch == 2) l.save(folder / "two.ckpt");
    });
  };
  const double whole = fit("");
  EXPECT_DOUBLE_EQ(whole, 1e-13);  // three epochs of four did not improve
  EXPECT_EQ(fit(folder / "two.ckpt"), whole);
}

TEST(Checkpoints, OfAPlateauLeaveRatesThatAreSetLater) {
  const TempFolder folder;
  const auto fit = [&](const std::string& resume) {
    return rate_on_a_plateau({}, 3, resume, [&](Learner& l) {
      if (l.state.epoch != 1) return;
      if (resume.empty()) l.save(folder / "one.ckpt");
      l.optimizer->set_lr(5e-12);
    });
  };
  EXPECT_EQ(fit(""), 5e-12);
  EXPECT_EQ(fit(folder / "one.ckpt"), 5e-12);
}

// For example, a callback that returns to a better epoch.
TEST(Checkpoints, RestoreThePlateauWithinAFit) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 1e-12}); };
  const auto spy = std::make_shared<Spy>();
  spy->at = "epoch";
  Bytes saved;
  spy->ask = [&](Learner& l) {
    if (l.state.epoch == 1) l.save(folder / "one.ckpt"), saved = bytes(l);
    if (l.state.epoch != 3) return;
    l.load(folder / "one.ckpt");
    const std::string bad = "callback.ReduceLrOnPlateau.0.bad_steps";
    EXPECT_EQ(bytes(l).at(bad), saved.at(bad));
  };
  o.callbacks = {
      std::make_shared<ReduceLrOnPlateau>(optim::PlateauOptions{.patience = 5, .eps = 0}), spy};
  Learner(loaders(), Net(), o).fit(4);
  EXPECT_FALSE(saved.empty());
}

// Saved after a fit that was stopped early.
TEST(Checkpoints, OfAStoppedFitKnowThePlateau) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 1e-12}); };
  const auto spy = std::make_shared<Spy>();
  o.callbacks = {
      std::make_shared<ReduceLrOnPlateau>(optim::PlateauOptions{.patience = 2, .eps = 0}), spy};
  Learner first(loaders(), Net(), o);
  spy->at = "epoch.";
  spy->ask = [](Learner& l) {
    if (l.state.epoch == 2) l.stop();
  };
  first.fit(4);
  first.save(folder / "two.ckpt");
  Learner second(loaders(), Net(), o);
  spy->at.clear();
  second.fit(4, {.resume = folder / "two.ckpt"});
  EXPECT_DOUBLE_EQ(second.optimizer->lr(), 1e-13);
}

TEST(Checkpoints, RefuseWhatDoesNotFitAndChangeNothing) {
  SavedLearner saved;
  Learner& learner = saved.learner;
  const std::string& file = saved.file;
  const auto before = bytes(learner);
  const double seconds = learner.history.epochs[0].seconds;

  io::SafeTensors content = io::load(file);
  const auto with = [&](const io::Metadata& metadata, StateDict tensors) {
    io::save(file, tensors, metadata);
    return file;
  };
  const StateDict good = content.tensors;
  EXPECT_ERROR(learner.load(with({}, good)), "a.ckpt: not a checkpoint of a training");
  content.metadata.erase("crc32c");
  auto metadata = content.metadata;
  metadata["version"] = "2";
  EXPECT_ERROR(learner.load(with(metadata, good)),
               "a.ckpt: checkpoint version 2 is not supported, only 1");
  StateDict part;
  for (const auto& t : good)
    if (!t.first.starts_with("optimizer.group")) part.push_back(t);
  EXPECT_ERROR(learner.load(with(content.metadata, part)), "a.ckpt: ");
  part = good;
  for (auto& [name, tensor] : part)
    if (name == "model.up.weight") tensor = zeros({2, 2});
  EXPECT_ERROR(learner.load(with(content.metadata, part)), "up.weight");
  part = good;
  for (auto& [name, tensor] : part)
    if (name == "history.steps") tensor = zeros({6, 4}, f64);
  EXPECT_ERROR(learner.load(with(content.metadata, part)),
               "the history has 4 numbers per step, not 5");
  EXPECT_EQ(differing(bytes(learner), before), "");
  EXPECT_EQ(learner.history.epochs[0].seconds, seconds);
  learner.load(with(content.metadata, good));
  EXPECT_EQ(differing(bytes(learner), before), "");
}

// A learner whose fit gets a signal in a step, once or twice.
Learner interrupted(int signal, int64_t step, LearnerOptions o = quiet(), int times = 1) {
  const auto spy = std::make_shared<Spy>();
  spy->at = "backward";
  spy->ask = [=](Learner& l) {
    for (int i = 0; i < times && l.state.step == step; ++i) std::raise(signal);
  };
  o.callbacks.insert(o.callbacks.begin(), spy);
  return Learner(loaders(), Net(), o);
}

TEST(Checkpoints, AreWrittenByTheCallbackAndOnInterruption) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Seed seed(1);
    const TempFolder folder;
    LearnerOptions o = quiet();
    o.callbacks = {
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.folder = folder.path()})};
    Learner learner = interrupted(signal, 8, o);
    EXPECT_EQ(learner.fit(3), FitResult::Interrupted);
    EXPECT_EQ(Interrupt::last_signal(), signal);
    EXPECT_EQ(learner.state.step, 9);  // the step was finished, the fit was not
    EXPECT_EQ(learner.history.epochs.size(), 1u);
    Learner other(loaders(), Net(), quiet());
    EXPECT_EQ(other.fit(3, {.resume = folder / "last.ckpt"}), FitResult::Finished);
    EXPECT_EQ(other.state.step, 18);
    EXPECT_EQ(other.history.epochs.size(), 3u);
    EXPECT_TRUE(std::filesystem::exists(folder / "best.ckpt"));
    EXPECT_FALSE(Interrupt::requested());
  }
}

TEST(Interrupts, AreOverWithTheOutermost) {
  {
    const Interrupt outer;
    struct sigaction now;
    sigaction(SIGINT, nullptr, &now);
    EXPECT_TRUE(now.sa_flags & int(SA_RESTART)) << "a write that is waiting would fail";
    {
      const Interrupt inner;
      std::raise(SIGINT);
      EXPECT_TRUE(Interrupt::requested());
    }
    EXPECT_TRUE(Interrupt::requested());
  }
  EXPECT_FALSE(Interrupt::requested());
}

TEST(Interrupts, AFitSaysHowItEnded) {
  const Seed seed(1);
  Learner learner(loaders(), Net(), quiet());
  EXPECT_EQ(learner.fit(1), FitResult::Finished);
  EXPECT_EQ(learner.fit_one_cycle(1), FitResult::Finished);
  EXPECT_EQ(learner.fit(0, 1e-3), FitResult::Finished);
  EXPECT_EQ(learner.fit_one_cycle(0), FitResult::Finished);
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>();
  spy->at = "backward";
  spy->ask = [](Learner& l) { l.stop(); };
  o.callbacks = {spy};
  EXPECT_EQ(Learner(loaders(), Net(), o).fit(2), FitResult::Stopped);
}

TEST(Interrupts, EndALoopOverFitsByTheirSignal) {
  const Seed seed(1);
  for (const int signal : {SIGINT, SIGTERM}) {
    const int status = test::status_of_child([=] {
      Learner learner = interrupted(signal, 2);
      for (const double lr : {1e-3, 5e-4, 1e-4}) learner.fit(1, lr);
      return true;
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_EQ(test::status_of_child([=] {
                Learner learner = interrupted(signal, 2);
                if (learner.fit(1) != FitResult::Interrupted) return false;
                Interrupt::forget();
                return learner.fit(1) == FitResult::Finished;
              }),
              0);
  }
}

TEST(Interrupts, ASecondSignalEndsTheProgram) {
  const Seed seed(1);
  for (const int signal : {SIGINT, SIGTERM}) {
    const int status = test::status_of_child([=] {
      interrupted(signal, 2, quiet(), 2).fit(1);
      return true;
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
  }
}

TEST(Interrupts, LeaveIgnoredSignalsAlone) {
  const Seed seed(1);
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto before = std::signal(signal, SIG_IGN);
    EXPECT_EQ(interrupted(signal, 2).fit(1), FitResult::Finished);
    EXPECT_EQ(std::signal(signal, before), SIG_IGN);
  }
}

TEST(Interrupts, OfTheProgramEndEveryFitAtOnce) {
  const Seed seed(1);
  Learner learner(loaders(), Net(), quiet());
  const Interrupt mine;
  std::raise(SIGTERM);
  EXPECT_EQ(learner.fit(1), FitResult::Interrupted);
  EXPECT_EQ(learner.state.step, 0);
  EXPECT_TRUE(learner.is_stopping());
  Interrupt::forget();
}

// A checkpoint contains the state of all callbacks after the epoch, whichever saves first.
TEST(Checkpoints, HoldWhatAllCallbacksLearnt) {
  const Seed seed(1);
  const TempFolder first, second;
  LearnerOptions o = quiet();
  for (const TempFolder* folder : {&first, &second})
    o.callbacks.push_back(
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.folder = folder->path()}));
  Learner learner(loaders(), Net(), o);
  learner.fit(1);
  EXPECT_TRUE(slurp(first / "last.ckpt") == slurp(second / "last.ckpt"));
}

// A callback's state is found again among other callbacks and in another order.
TEST(Checkpoints, KnowCallbacksByTheirType) {
  const Seed seed(1);
  const TempFolder folder;
  const std::string file = folder / "a.ckpt";
  LearnerOptions o = quiet();
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 0}); };  // nothing improves
  const auto stopping = [](int64_t patience) {
    return std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = patience});
  };
  o.callbacks = {stopping(9), std::make_shared<ModelCheckpoint>(
                                  ModelCheckpointOptions{.folder = folder.path()})};
  Learner learner(loaders(), Net(), o);
  learner.add(std::make_shared<Spy>());
  std::dynamic_pointer_cast<Spy>(learner.callbacks()[1])->at = "epoch";
  std::dynamic_pointer_cast<Spy>(learner.callbacks()[1])->ask = [&](Learner& l) {
    if (l.state.epoch == 2) l.save(file);
  };
  learner.fit(4);

  o.callbacks = {stopping(3)};
  Learner other(loaders(), Net(), o);
  other.to_fp32();  // adds one more callback
  other.fit(4, {.resume = file});
  EXPECT_EQ(other.history.epochs.size(), 4u);  // waited 1 of 3 epochs, and 2 more
  EXPECT_TRUE(other.is_stopping());
}

TEST(Checkpoints, KeepSettings) {
  const TempFolder folder;
  const std::string file = folder / "last.ckpt";
  const auto fit = [&](const io::Metadata& settings, const std::string& resume) {
    const Seed seed(1);
    LearnerOptions o = quiet();
    o.folder = folder.path();
    o.settings = settings;
    Learner(loaders(48, 16), Net(), o).fit(1, {.resume = resume});
  };
  fit({{"rate", "0.1"}, {"data", "a"}}, "");
  EXPECT_EQ(io::load(file).metadata.at("rate"), "0.1");
  fit({{"rate", "0.1"}, {"another", "1"}}, file);  // which the checkpoint does not know
  const std::string wrong = file + ": saved with rate 0.1, not 0.2";
  fit({{"rate", "0.1"}}, "");
  EXPECT_ERROR(fit({{"rate", "0.2"}}, file), wrong);
  EXPECT_ERROR(check_settings(file, {{"rate", "0.2"}}), wrong);
  EXPECT_ERROR(check_settings(folder / "none", {}), "none: cannot open");
  io::save(folder / "weights", Net().state_dict());
  EXPECT_ERROR(check_settings(folder / "weights", {}), "not a checkpoint of a training");
  Learner other(loaders(48, 16), Net(), quiet());
  other.load(file);  // a new fit may have others
}

// Refuses at once what would end a fit at its first checkpoint, or no fit could resume from.
TEST(Checkpoints, RefuseSettingsThatTheyCannotKeep) {
  const auto refused = [](const io::Metadata& settings, const std::string& why) {
    LearnerOptions o = quiet();
    o.settings = settings;
    EXPECT_ERROR(Learner(loaders(), Net(), o), why);
  };
  for (const std::string name : {"format", "version", "crc32c"})
    refused({{name, "7"}}, "the name of a setting is taken by checkpoints: \"" + name + "\"");
  refused({{"author", "J\xf6rg"}}, "a setting must be UTF-8, got \"author\": ");
  refused({{"J\xf6rg", "author"}}, "a setting must be UTF-8, got ");
}

// A training removes temporary files of a killed one in the same folder.
TEST(Checkpoints, TidyUpAfterAKill) {
  const Seed seed(1);
  const TempFolder folder;
  spit(folder / "last.ckpt.1.mixtape-tmp", "half");
  spit(folder / "best.ckpt.1.mixtape-tmp", "half");
  spit(folder / "mine.tmp", "whole");
  LearnerOptions o = quiet();
  o.callbacks = {
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.folder = folder.path()})};
  Learner(loaders(), Net(), o).fit(1);
  EXPECT_EQ(folder.count(), 3u);
  EXPECT_TRUE(std::filesystem::exists(folder / "mine.tmp"));
}

TEST(Checkpoints, MakeTheirFolderAgain) {
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.callbacks = {
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.folder = folder / "runs"})};
  Learner learner(loaders(), Net(), o);
  std::filesystem::remove(folder / "runs");
  learner.fit(1);
  EXPECT_TRUE(std::filesystem::exists(folder / "runs/last.ckpt"));
}

TEST(Checkpoints, SayWhatDoesNotFit) {
  const Seed seed(1);
  const TempFolder folder;
  const std::string scheduled = folder / "scheduled.ckpt", plain = folder / "plain.ckpt";
  const auto save = [](const std::string& file, bool schedule) {
    Learner learner(loaders(), Net(), quiet());
    schedule ? learner.fit_one_cycle(2, 1e-2) : learner.fit(2);
    learner.save(file);
  };
  save(scheduled, true);
  save(plain, false);
  LearnerOptions o = quiet();
  Learner learner(loaders(), Net(), o);
  EXPECT_ERROR(learner.fit(2, {.resume = scheduled}),
               "scheduled.ckpt: saved in a fit with a schedule, but this one has none");
  EXPECT_ERROR(learner.fit_one_cycle(2, 1e-2, {.resume = plain}),
               "plain.ckpt: saved in a fit without a schedule, but this one has one");
  EXPECT_ERROR(learner.fit_one_cycle(1, 1e-2, {.resume = scheduled}), "a fit of 2 epochs, not 1");
  const auto cosine = [](optim::Optimizer& opt, int64_t steps) {
    return std::make_unique<optim::Cosine>(opt, optim::CosineOptions{.total_steps = steps});
  };
  EXPECT_ERROR(learner.fit(2, {.schedule = cosine, .resume = scheduled}),
               "scheduled.ckpt: schedule: the state must be of cosine, got that of one_cycle");
  learner.add(std::make_shared<EarlyStopping>());
  StateDict odd = learner.state_dict();
  for (auto& [name, tensor] : odd)
    if (name == "callback.EarlyStopping.0.waited") tensor = from({-1}, {}, f64);
  EXPECT_ERROR(learner.load_state_dict(odd), "the state of the callback EarlyStopping: waited");
  odd = learner.state_dict();
  for (auto& [name, tensor] : odd)
    if (name == "history.epochs") tensor = full({1, 5}, NAN, f64, Device::cpu());
  EXPECT_ERROR(learner.load_state_dict(odd), "the history has step or epoch nan");
}

// A schedule of another length would go on at another rate, or end within the fit.
TEST(Checkpoints, ResumeAScheduleOfTheSameLength) {
  const Seed seed(1);
  const TempFolder folder;
  const std::string file = folder / "a.ckpt";
  const auto fit = [&](int64_t batch, int64_t accumulate, const std::string& from) {
    LearnerOptions o = quiet();
    const auto spy = std::make_shared<Spy>();
    spy->at = "epoch";  // the second, whose batches may be others without a schedule
    spy->ask = [&](Learner& l) {
      if (from.empty() && l.state.epoch == 1) l.save(file);
    };
    o.callbacks = {spy, std::make_shared<GradientAccumulation>(accumulate)};
    Learner learner(loaders(96, batch), Net(), o);
    learner.fit_one_cycle(2, 1e-3, {.resume = from});
    return learner.schedule->steps();
  };
  EXPECT_EQ(fit(16, 1, ""), 12);
  EXPECT_EQ(fit(16, 1, file), 12);
  EXPECT_ERROR(fit(32, 1, file),
               "a.ckpt: saved in a fit whose schedule has 12 steps, not 6: resume with the same");
  EXPECT_ERROR(fit(8, 1, file), "12 steps, not 24");
  EXPECT_ERROR(fit(16, 2, file), "12 steps, not 6");
}

// Batches of another size or number have other examples at the same position.
TEST(Checkpoints, ResumeWithinAnEpochWithTheSameBatches) {
  const Seed seed(1);
  const TempFolder folder;
  const std::string file = folder / "a.ckpt";
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>();
  spy->at = "batch.";
  spy->ask = [&](Learner& l) {
    if (l.state.step == 2) l.save(file);
  };
  o.callbacks = {spy};
  Learner(loaders(96, 16), Net(), o).fit(1);
  const auto resume = [&](int64_t examples, int64_t batch) {
    Learner learner(loaders(examples, batch), Net(), quiet());
    learner.fit(1, {.resume = file});
    return learner.state.step;
  };
  EXPECT_ERROR(resume(96, 32), "a.ckpt: saved in a fit of 6 batches of 16 an epoch, not 3 of 32");
  EXPECT_ERROR(resume(64, 16), "not 4 of 16: resume with the same data");
  EXPECT_ERROR(resume(96, 17), "not 6 of 17");
  EXPECT_EQ(resume(96, 16), 6);
  Learner(loaders(96, 32), Net(), quiet()).load(file);  // for a new fit
}

// The checkpoint was saved in f32.
TEST(Checkpoints, LetANewPrecisionBegin) {
  const SavedLearner saved;
  Learner scaled(loaders(), Net(), quiet());
  scaled.to_fp16({.init_scale = 4, .growth_interval = 2}).fit(1);
  EXPECT_GT(scaled.scaler.scale_value(), 4);
  scaled.load(saved.file);
  EXPECT_EQ(scaled.scaler.scale_value(), 4);
  EXPECT_EQ(scaled.scaler.growth_tracker(), 0);
}

// The checkpoint was saved without this callback.
TEST(Checkpoints, LetANewCallbackBegin) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 0}); };  // nothing improves
  Learner learner(loaders(), Net(), o);
  learner.fit(1);
  learner.save(folder / "plain.ckpt");
  const auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 9});
  learner.add(stopping);
  const auto waited = [&] { return optim::StateReader(stopping->state_dict()).count("waited"); };
  learner.fit(3);
  EXPECT_EQ(waited(), 2);
  learner.load(folder / "plain.ckpt");
  EXPECT_EQ(waited(), 0);
}

}  // namespace learner_state_test
}  // namespace mixtape::train
