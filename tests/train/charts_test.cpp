// The files of a run folder after a fit, and their charts.
#include "train/charts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "core/warn.h"
#include "io/jsonl.h"
#include "tests/support/errors.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"
#include "train/callbacks.h"
#include "train/tensorboard.h"
#include "train/throughput.h"
#include "train/timeline.h"

namespace mixtape::train {
namespace charts_test {

using namespace test;

std::string names(const std::string& folder) {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    all.push_back(entry.path().filename().string());
  std::ranges::sort(all);
  std::string joint;
  for (const std::string& name : all) joint += (joint.empty() ? "" : " ") + name;
  return joint;
}

// "step 0", "step 1", "epoch 0", ...
std::string lines(const std::string& file) {
  std::string all;
  for (const auto& line : io::read_json_lines(file)) {
    const bool epoch = line[1].first == "epoch";
    all += fmt::format("{}{}{}", all.empty() ? "" : " ", epoch ? "e" : "",
                       std::get<int64_t>(line[epoch ? 1 : 0].second));
  }
  return all;
}

LearnerOptions recorded(const std::string& folder) {
  LearnerOptions o = quiet();
  o.folder = folder;
  return o;
}

TEST(RunFolder, HoldsTheRun) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = recorded(folder.path());
  o.classes = {"a", "b", "c"};
  Learner learner(loaders(48, 16), Net(), o);
  learner.to_fp16();
  learner.fit(2);
  EXPECT_EQ(
      names(folder.path()),
      "accuracy.svg best.ckpt confusion.svg last.ckpt loss.svg lr.svg metrics.jsonl scale.svg");
  EXPECT_EQ(lines(folder / "metrics.jsonl"), "0 1 2 e0 3 4 5 e1");

  const auto log = io::read_json_lines(folder / "metrics.jsonl");
  const StepRow& step = learner.history.steps[4];
  const io::JsonFields wanted = {{"step", int64_t{4}},
                                 {"loss", step.loss},
                                 {"lr", step.lr},
                                 {"scale", int64_t{65536}},
                                 {"skipped", false}};
  EXPECT_EQ(log[5], wanted);
  const EpochRow& epoch = learner.history.epochs[1];
  EXPECT_EQ(log[7][0], (io::JsonFields::value_type{"step", int64_t{6}}));
  EXPECT_EQ(log[7][3], (io::JsonFields::value_type{"valid_loss", epoch.valid_loss}));
  EXPECT_EQ(log[7][4], (io::JsonFields::value_type{"accuracy", epoch.metrics[0]}));

  learner.lr_find({.steps = 20});
  EXPECT_NE(slurp(folder / "lr_find.svg").find("falls at "), std::string::npos);
  EXPECT_EQ(lines(folder / "metrics.jsonl"), "0 1 2 e0 3 4 5 e1") << "lr_find is no part of it";
  learner.fit(1);
  EXPECT_EQ(lines(folder / "metrics.jsonl"), "0 1 2 e0 3 4 5 e1 6 7 8 e0");

  Learner another(loaders(48, 16), Net(), recorded(folder.path()));
  another.fit(1);
  EXPECT_EQ(lines(folder / "metrics.jsonl"), "0 1 2 e0");
}

// A program may change its folder within a fit.
TEST(RunFolder, StaysWhereItIs) {
  const TempFolder folder, other;
  const std::filesystem::path before = std::filesystem::current_path();
  struct Leave : Callback {
    std::string to;
    void on_epoch_end(Learner&) override { std::filesystem::current_path(to); }
  };
  const auto leave = std::make_shared<Leave>();
  leave->to = other.path();
  std::filesystem::current_path(folder.path());
  LearnerOptions o = recorded("run");
  const std::vector<std::shared_ptr<Callback>> writers = {
      leave,
      std::make_shared<CsvLogger>("log.csv"),
      std::make_shared<JsonlLogger>("log.jsonl"),
      std::make_shared<TensorBoard>("events"),
      std::make_shared<Throughput>("speed.jsonl"),
      std::make_shared<Profile>("profile.json", ProfileOptions{.first = 4, .steps = 1})};
  o.callbacks.insert(o.callbacks.end(), writers.begin(), writers.end());
  Learner learner(loaders(48, 16), Net(), o);
  learner.fit(2);
  learner.fit(1);
  std::filesystem::current_path(before);
  EXPECT_EQ(other.count(), 0u);
  EXPECT_EQ(names(folder.path()), "events log.csv log.jsonl profile.json run speed.jsonl");
}

// Removes the charts of an earlier run, but not newer or unrelated files.
TEST(RunFolder, HoldsNoChartsOfAnEarlierRun) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = recorded(folder.path());
  o.classes = {"a", "b", "c"};
  o.metrics.push_back(top_k(2));
  o.metrics[0].name = "top, 1";
  Learner first(loaders(48, 16), Net(), o);
  first.to_fp16();
  first.lr_find({.steps = 5});
  first.fit(1);
  spit(folder / "mine.svg", "");
  o = recorded(folder.path());
  o.metrics.clear();
  const auto fit = [&](bool find, const std::string& resume) {
    Learner learner(loaders(48, 16), Net(), o);
    if (find) learner.lr_find({.steps = 5});
    learner.fit(2, {.resume = resume});
    return names(folder.path());
  };
  EXPECT_EQ(fit(true, ""),
            "best.ckpt last.ckpt loss.svg lr.svg lr_find.svg metrics.jsonl mine.svg");
  EXPECT_EQ(fit(false, folder / "last.ckpt"),
            "best.ckpt last.ckpt loss.svg lr.svg lr_find.svg metrics.jsonl mine.svg");
  EXPECT_EQ(fit(false, ""), "best.ckpt last.ckpt loss.svg lr.svg metrics.jsonl mine.svg");
}

TEST(RunFolder, ContinuesAfterAnInterruption) {
  const Seed seed(1);
  const TempFolder folder;
  struct Interrupting : Callback {
    void on_step_begin(Learner& l) override {
      if (l.state.step == 4) std::raise(SIGINT);
    }
  };
  LearnerOptions o = recorded(folder.path());
  o.callbacks = {std::make_shared<Interrupting>(), std::make_shared<CsvLogger>(folder / "log.csv")};
  Learner(loaders(48, 16), Net(), o).fit(3);
  EXPECT_EQ(lines(folder / "metrics.jsonl"), "0 1 2 e0 3 4");
  const io::JsonFields first = io::read_json_lines(folder / "metrics.jsonl")[3];
  const std::string row = slurp(folder / "log.csv");
  EXPECT_TRUE(std::filesystem::exists(folder / "loss.svg"));

  io::JsonLines(folder / "metrics.jsonl").write({{"step", int64_t{5}}, {"loss", 9.0}});
  o.callbacks = {std::make_shared<CsvLogger>(folder / "log.csv")};
  Learner(loaders(48, 16), Net(), o).fit(3, {.resume = folder / "last.ckpt"});
  EXPECT_EQ(lines(folder / "metrics.jsonl"), "0 1 2 e0 3 4 5 e1 6 7 8 e2");
  EXPECT_EQ(io::read_json_lines(folder / "metrics.jsonl")[3], first) << "with its seconds";
  EXPECT_TRUE(slurp(folder / "log.csv").starts_with(row)) << slurp(folder / "log.csv");

  for (const std::string& other :  // of something else, and damaged
       {std::string("epoch,\n,\nno numbers,at all\n0,1,2,3,4"),
        row.substr(0, row.size() - 1) + "x"}) {
    spit(folder / "log.csv", other + "\n");
    spit(folder / "metrics.jsonl", "{\"epoch\":0,\"train_loss\":1,\"seconds\":5}\nno JSON\n");
    Learner last(loaders(48, 16), Net(), o);
    last.fit(3, {.resume = folder / "last.ckpt"});
    EXPECT_TRUE(std::isnan(last.history.epochs[0].seconds)) << other;
  }
}

// Class names of other scores end no fit.
TEST(RunFolder, LacksAConfusionThatCannotBeDrawn) {
  const Seed seed(1);
  const TempFolder folder;
  std::vector<std::string> warnings;
  const OnWarning listen([&](const std::string& text) { warnings.push_back(text); });
  LearnerOptions o = recorded(folder.path());
  Net net;
  const auto warns = [&](const std::string& why) {
    Learner learner(loaders(), net, o);
    EXPECT_EQ(learner.fit(2), FitResult::Finished);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_TRUE(warnings[0].starts_with("confusion.svg cannot be drawn: " + why)) << warnings[0];
    EXPECT_EQ(names(folder.path()).find("confusion"), std::string::npos);
    warnings.clear();
  };
  o.classes = {"a", "b"};
  warns("confusion_matrix: scores of 3 classes, not 2");
  o.classes = {"a", "b", "c"};
  o.metrics.clear();
  o.pass = [&](const Batch& b) { return StepOutput{mean(net(b.x))}; };
  warns("LearnerOptions::pass returned only a loss");
}

// A chart that fails does not lose the epoch.
TEST(RunFolder, HoldsTheWeightsBeforeTheCharts) {
  const Seed seed(1);
  const TempFolder folder;
  std::filesystem::create_directories(folder / "loss.svg/kept");
  Learner learner(loaders(), Net(), recorded(folder.path()));
  EXPECT_ERROR(learner.fit(1), "loss.svg: not a regular file");
  Learner other(loaders(), Net(), quiet());
  for (const char* file : {"last.ckpt", "best.ckpt"}) {
    other.load(folder / file);
    EXPECT_EQ(other.history.epochs.size(), 1u) << file;
  }
}

TEST(RunFolder, IsWrittenEvenAfterAnException) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = recorded(folder.path());
  o.loss = [n = 0](const Tensor& out, const Tensor& y) mutable {
    return cross_entropy(out, y) * (n++ == 2 ? NAN : 1.0);
  };
  o.callbacks = {std::make_shared<TerminateOnNan>()};
  Learner learner(loaders(), Net(), o);
  EXPECT_ERROR(learner.fit(1), "the loss of step 2 is");
  EXPECT_EQ(lines(folder / "metrics.jsonl"), "0 1 2");
  EXPECT_TRUE(std::filesystem::exists(folder / "loss.svg"));
  std::filesystem::remove_all(folder.path());
  EXPECT_ERROR(learner.fit(1), "metrics.jsonl: cannot create a file beside it");
}

// Without validation data, they have no charts.
TEST(Charts, DrawTheHistoryOfTheLearner) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<Charts>(folder.path())};
  Learner learner({loaders().train, {}}, Net(), o);
  learner.fit(1);
  EXPECT_EQ(names(folder.path()), "loss.svg lr.svg") << "a scale of 1 says nothing";
}

RunLog run(const std::string& text, const TempFolder& folder) {
  spit(folder / "metrics.jsonl", text);
  return read_run(folder.path(), "a").at(0);
}

TEST(Charts, HaveACurvePerRun) {
  const TempFolder folder;
  const std::string log =
      "{\"step\":0,\"loss\":2.5,\"scale\":8,\"skipped\":true}\n"
      "{\"step\":1,\"loss\":null,\"scale\":4,\"skipped\":false}\n"
      "{\"step\":2,\"epoch\":0,\"train_loss\":2,\"valid_loss\":3,\"f1\":0.5,\"seconds\":7}\n";
  const RunLog a = run(log, folder);
  const auto alone = charts({a});
  const auto about = [](const std::vector<std::pair<std::string, io::Chart>>& charts) {
    std::string all;
    for (const auto& [file, chart] : charts) {
      all += file + ":";
      for (const io::Series& s : chart.series) all += fmt::format(" '{}' {}", s.name, s.x.size());
      all += "; ";
    }
    return all;
  };
  EXPECT_EQ(about(alone),
            "loss.svg: 'training' 2 'validation' 1; scale.svg: '' 2 'skipped steps' 1; "
            "f1.svg: '' 1; ");
  EXPECT_TRUE(alone[0].second.log_y);
  EXPECT_EQ(alone[1].second.series[1].y, std::vector<double>{8});
  RunLog b = a;
  b.name = "b";
  EXPECT_EQ(about(charts({a, b})),
            "loss.svg: 'a' 2 'b' 2; scale.svg: 'a' 2 'b' 2 'skipped steps' 2; "
            "valid_loss.svg: 'a' 1 'b' 1; f1.svg: 'a' 1 'b' 1; ");
  for (io::Series& q : b.quantities)  // as without a scaler
    if (q.name == "scale") q.y = {1, 1};
  b.skipped_x = b.skipped_y = {};
  EXPECT_EQ(about({charts({a, b})[1]}), "scale.svg: 'a' 2 'skipped steps' 1; ");
  b.quantities.back().name = "../a, b";
  EXPECT_EQ(charts({b}).back().first, ".._a__b.svg");
  EXPECT_ERROR(charts({a, a}), "two runs are named \"a\"");
  EXPECT_FALSE(charts({run("{\"step\":0,\"loss\":-1}\n", folder)}).at(0).second.log_y);
}

TEST(Charts, HaveFilesOfTheirOwn) {
  RunLog run;
  run.quantities = {{"a b", {0, 1}, {0, 1}}, {"a_b", {0, 1}, {0, 1}}, {"a/b", {0, 1}, {0, 1}}};
  const auto all = charts({run});
  EXPECT_EQ(all[0].first, "a_b.svg");
  EXPECT_EQ(all[1].first, "a_b_.svg");
  EXPECT_EQ(all[2].first, "a_b__.svg");
}

TEST(Charts, HaveFilesOfTheirOwnInAnyScript) {
  RunLog run;
  run.quantities = {{"精度", {0, 1}, {0, 1}}, {"損失", {0, 1}, {0, 1}}};
  const auto all = charts({run});
  EXPECT_EQ(all[0].first, "精度.svg");
  EXPECT_EQ(all[1].first, "損失.svg");
}

TEST(Charts, ReadOneRunPerMode) {
  const TempFolder folder;
  spit(folder / "metrics.jsonl",
       "{\"mode\":\"fp32\",\"step\":1,\"loss\":1}\n{\"mode\":\"fp16\",\"step\":1,\"loss\":2}\n"
       "{\"mode\":\"fp32\",\"step\":2,\"loss\":3}\n{\"mode\":\"fp32\",\"st");
  const auto runs = read_run(folder.path(), "x"), unnamed = read_run(folder.path());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].name, "x/fp32");
  EXPECT_EQ(runs[0].quantities.at(0).y, (std::vector<double>{1, 3}));
  EXPECT_EQ(unnamed[1].name, "fp16");
}

TEST(Charts, SayWhatIsWrongWithALog) {
  const TempFolder folder;
  EXPECT_ERROR(read_run(folder / "none"), "none/metrics.jsonl: cannot open");
  EXPECT_ERROR(run("{\"step\":1}\n{\"epoch\":1}\n", folder),
               "metrics.jsonl: line 2 has no number \"step\"");
  EXPECT_ERROR(run("{\"step\":null}\n", folder), "line 1 has no number \"step\"");
  EXPECT_ERROR(run("{\"step\":1}\n[1]\n", folder), "metrics.jsonl: line 2: \"[1]\" is not a JSON");
  EXPECT_EQ(save_charts({run("{\"step\":1,\"../up\":1}\n", folder)}, RunFolder(folder.path())),
            std::vector<std::string>{folder / ".._up.svg"});
}

TEST(Charts, OfAConfusionMatrix) {
  const io::HeatMap map = confusion_chart(from({3, 1, 0, 4}, {2, 2}, i64));
  EXPECT_EQ(map.rows, (std::vector<std::string>{"0", "1"}));
  EXPECT_EQ(map.values, (std::vector<std::vector<double>>{{3, 1}, {0, 4}}));
  EXPECT_EQ(confusion_chart(zeros({1, 1}), {"cat"}).columns[0], "cat");
  EXPECT_ERROR(confusion_chart(zeros({2, 3})), "a confusion matrix must be square, got [2, 3]");
  EXPECT_ERROR(confusion_chart(zeros({2, 2}), {"cat"}), "1 names for 2 classes");
}

// ---- TensorBoard, read by an independent parser

struct Event {
  uint64_t step = 0;
  std::string version;
  bool starts = false;
  std::vector<std::pair<std::string, float>> values;
};

// Fields of a protobuf message: number and, for 64-bit, 32-bit and varint fields, bits.
struct Field {
  uint64_t number, bits;
  std::string text;
};
std::vector<Field> message(std::string_view s) {
  const auto varint = [&] {
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t byte = uint8_t(s.at(0));
      s.remove_prefix(1);
      x |= uint64_t(byte & 127) << shift;
      if (byte < 128) return x;
    }
  };
  std::vector<Field> all;
  while (!s.empty()) {
    const uint64_t key = varint();
    Field f{key >> 3, 0, {}};
    const uint64_t kind = key & 7, size = kind == 1 ? 8 : kind == 5 ? 4 : kind == 2 ? varint() : 0;
    if (kind == 0) f.bits = varint();
    f.text = s.substr(0, size);
    if (kind != 2 && size > 0) std::memcpy(&f.bits, f.text.data(), size);
    s.remove_prefix(size);
    all.push_back(f);
  }
  return all;
}

// The definition, bit by bit.
uint32_t masked(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= uint8_t(c);
    for (int i = 0; i < 8; ++i) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

template <class T>
T as(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::vector<Event> events(const std::string& folder) {
  std::string file;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("events.out.tfevents."));
    file += slurp(entry.path().string());
  }
  std::vector<Event> all;
  for (std::string_view s = file; !s.empty();) {
    const auto size = as<uint64_t>(s);
    EXPECT_EQ(as<uint32_t>(s.substr(8)), masked(s.substr(0, 8)));
    const std::string_view data = s.substr(12, size);
    EXPECT_EQ(as<uint32_t>(s.substr(12 + size)), masked(data));
    s.remove_prefix(16 + size);
    Event e;
    double time = 0;
    for (const Field& f : message(data)) {
      if (f.number == 1) time = std::bit_cast<double>(f.bits);
      if (f.number == 2) e.step = f.bits;
      if (f.number == 3) e.version = f.text;
      if (f.number == 7) e.starts = message(f.text).at(0).bits == 1;
      if (f.number != 5) continue;
      for (const Field& value : message(f.text)) {
        const auto parts = message(value.text);
        e.values.emplace_back(parts.at(0).text, as<float>(parts.at(1).text));
      }
    }
    EXPECT_GT(time, 1.6e9);
    all.push_back(e);
  }
  return all;
}

TEST(TensorBoard, HasEveryStepAndEpoch) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<TensorBoard>(folder.path())};
  Learner learner(loaders(48, 16), Net(), o);
  learner.fit(1);
  learner.lr_find({.steps = 5});
  learner.fit(1);
  const auto all = events(folder.path());
  ASSERT_EQ(all.size(), 2u + 2 * (3 + 1));
  EXPECT_EQ(all[0].version, "brain.Event:2");
  EXPECT_TRUE(all[1].starts);
  using Values = decltype(Event::values);
  const StepRow& step = learner.history.steps[3];
  const EpochRow& epoch = learner.history.epochs[1];
  EXPECT_EQ(all[6].step, 3u);
  EXPECT_EQ(all[6].values, (Values{{"loss", float(step.loss)}, {"lr", 0.01f}, {"scale", 1.f}}));
  EXPECT_EQ(all[9].step, 6u);
  EXPECT_EQ(all[9].values, (Values{{"train_loss", float(epoch.train_loss)},
                                   {"valid_loss", float(epoch.valid_loss)},
                                   {"accuracy", float(epoch.metrics[0])}}));
  EXPECT_ERROR(EventFile(folder.path()).write(0, {{"\xff", 1}}), "is not UTF-8");
}

TEST(TensorBoard, StepsBackWithACheckpoint) {
  const Seed seed(1);
  const TempFolder folder, other;
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<TensorBoard>(folder.path())};
  Learner learner(loaders(48, 16), Net(), o);
  learner.fit(1);
  learner.save(other / "a.ckpt");
  learner.fit(1);
  learner.load(other / "a.ckpt");
  learner.fit(1);
  EXPECT_EQ(folder.count(), 2u) << "the second file says all anew, from step 0 on";
}

TEST(TensorBoard, IsReadByTensorBoard) {
  const std::string program =
      "import sys\n"
      "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as A\n"
      "if len(sys.argv[1]) > 0:\n"
      "    a = A(sys.argv[1]); a.Reload()\n"
      "    e = a.Scalars(\"loss\")\n"
      "    assert [x.step for x in e] == [3, 300] and e[1].value == 0.25, e\n";
  if (!python(program)) GTEST_SKIP() << "needs Python with tensorboard";
  const TempFolder folder;
  EventFile(folder.path()).write(3, {{"loss", 1}});  // invalid from step 3 on, due to the next file
  EventFile file(folder.path(), 3);
  file.write(3, {{"loss", 0.5}, {"lr", 1e-3}});
  file.write(300, {{"loss", 0.25}});
  EXPECT_TRUE(python(program, folder.path()));
}

}  // namespace charts_test
}  // namespace mixtape::train
