// A training that is repeatedly killed with SIGKILL at random times and resumed ends with the same
// checkpoint, bit for bit, as an uninterrupted one. Also tests damaged checkpoints.

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "io/jsonl.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"
#include "train/callbacks.h"

extern char** environ;

namespace mixtape::train {
namespace resume_test {

using namespace test;
using Clock = std::chrono::steady_clock;

constexpr int precisions = 4;  // f32, Autocast with a scaler, the whole model in f16, fp8

// The child's work: trains in the folder, from the last checkpoint if there is one.
void train(const std::string& folder, int precision) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.folder = folder;
  o.callbacks = {std::make_shared<ModelCheckpoint>(
                     ModelCheckpointOptions{.folder = folder, .every_steps = precision + 1}),
                 std::make_shared<EarlyStopping>()};
  Learner learner(loaders(100, 8), Net(), o);
  if (precision == 1) learner.to_fp16({.growth_interval = 5});
  if (precision == 2) learner.to_fp16(MasterOptions{.max_noskip = 5});
  if (precision == 3) {
    learner.to_fp16({.amp_mode = bf16, .recipe = amp::Delayed{.history = 7}});
    learner.autocast->ends = true;
  }
  const std::string last = folder + "/last.ckpt";
  learner.fit_one_cycle(3, 1e-2, {.resume = std::filesystem::exists(last) ? last : ""});
}

// Runs in a child process.
TEST(Killed, DISABLED_Child) {
  train(std::getenv("MIXTAPE_CHILD_FOLDER"), std::atoi(std::getenv("MIXTAPE_CHILD_PRECISION")));
}

class Child {
 public:
  Child(const std::string& folder, int precision) {
    ::setenv("MIXTAPE_CHILD_FOLDER", folder.c_str(), 1);
    ::setenv("MIXTAPE_CHILD_PRECISION", std::to_string(precision).c_str(), 1);
    std::string program = std::filesystem::read_symlink("/proc/self/exe").string(),
                filter = "--gtest_filter=Killed.DISABLED_Child",
                also = "--gtest_also_run_disabled_tests", brief = "--gtest_brief=1";
    char* const arguments[] = {program.data(), filter.data(), also.data(), brief.data(), nullptr};
    const int error = ::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ);
    if (error != 0) throw std::runtime_error("cannot start a child");
  }
  void kill() { ::kill(pid_, SIGKILL); }
  bool succeeds() {  // waits for the child
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = 0;
};

// metrics.jsonl without times.
std::vector<io::JsonFields> log_of(const std::string& folder) {
  auto lines = io::read_json_lines(folder + "/metrics.jsonl");
  for (auto& line : lines)
    std::erase_if(line, [](const auto& field) { return field.first == "seconds"; });
  return lines;
}

TEST(Killed, EndsAsIfNothingHadHappened) {
  RandomGenerator random(5);
  int gone_on = 0;
  for (int precision = 0; precision < precisions; ++precision) {
    const TempFolder whole, broken;
    const auto start = Clock::now();
    ASSERT_TRUE(Child(whole.path(), precision).succeeds());
    const auto duration = Clock::now() - start;

    for (int kills = 0; kills < 8; ++kills) {
      gone_on += std::filesystem::exists(broken / "last.ckpt");
      Child child(broken.path(), precision);
      std::this_thread::sleep_for(duration * double(random.below(1000)) / 1000);
      child.kill();
      if (child.succeeds()) break;  // the child was faster
    }
    ASSERT_TRUE(Child(broken.path(), precision).succeeds());
    EXPECT_TRUE(slurp(broken / "last.ckpt") == slurp(whole / "last.ckpt")) << precision;
    EXPECT_TRUE(slurp(broken / "best.ckpt") == slurp(whole / "best.ckpt")) << precision;
    EXPECT_TRUE(log_of(broken.path()) == log_of(whole.path())) << precision;
  }
  EXPECT_GE(gone_on, 1) << "no child got as far as a checkpoint";
}

TEST(Checkpoints, AreRefusedWhenDamaged) {
  SavedLearner saved;
  Learner& learner = saved.learner;
  const TempFolder& folder = saved.folder;
  const std::string& file = saved.file;
  const std::string good = slurp(file);
  const auto error = [&](const std::string& bytes) {
    spit(file, bytes);
    const std::string text = test::error([&] { learner.load(file); });
    spit(file, good);
    return text;
  };
  const auto state = [&] {
    learner.save(folder / "now.ckpt");
    return slurp(folder / "now.ckpt");
  };
  learner.fit(1);
  const std::string before = state();
  for (const size_t size : {size_t{0}, size_t{4}, size_t{100}, good.size() / 2, good.size() - 1})
    EXPECT_TRUE(error(good.substr(0, size)).starts_with(file + ": ")) << size;
  RandomGenerator random(3);
  for (int i = 0; i < 200; ++i) {
    std::string bad = good;
    bad[size_t(random.below(int64_t(bad.size())))] ^= char(1 << random.below(8));
    EXPECT_TRUE(error(bad).starts_with(file + ": ")) << "flip " << i << ": " << error(bad);
  }
  std::string bad = good;
  bad.back() ^= 1;
  EXPECT_TRUE(error(bad).starts_with(file + ": damaged: the checksum of its tensors is "));
  bad = good;
  bad.replace(bad.find("crc32c"), 6, "crc32d");
  EXPECT_EQ(error(bad), file + ": no checksum, and 3 metadata, not 2");
  EXPECT_TRUE(state() == before);
  EXPECT_ERROR(learner.fit(1, {.resume = folder / "none.ckpt"}), "none.ckpt: cannot open");
  learner.load(file);
  EXPECT_EQ(learner.history.epochs.size(), 1u);
}

}  // namespace resume_test
}  // namespace mixtape::train
