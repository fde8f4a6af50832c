// IDX files, synthetic digits, progress bars and run folders.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "core/check.h"
#include "core/format.h"
#include "core/random.h"
#include "io/svg.h"
#include "tests/support/damage.h"
#include "tests/support/deflate.h"
#include "tests/support/temp_folder.h"
#include "train/charts.h"
#include "train/data/digits.h"
#include "train/data/idx.h"
#include "train/data/loader.h"
#include "train/progress.h"
#include "train/run_folder.h"

namespace mixtape::train {
namespace data_test {

using test::slurp;
using test::spit;
using test::TempFolder;

// ---- IDX

std::string idx(std::vector<uint32_t> sizes, const std::string& data, char type = 8) {
  std::string file{'\0', '\0', type, char(sizes.size())};
  for (const uint32_t s : sizes)
    for (const int shift : {24, 16, 8, 0}) file += char(s >> shift);
  return file + data;
}

Tensor parse(const std::string& file) { return parse_idx(std::as_bytes(std::span(file)), "f"); }

TEST(Idx, ReadsRanksOneToFour) {
  EXPECT_EQ(to_vector(parse(idx({3}, "\x01\x02\xff"))), (std::vector<double>{1, 2, 255}));
  const Tensor t = parse(idx({1, 2, 1, 3}, "abcdef"));
  EXPECT_EQ(t.shape(), Shape({1, 2, 1, 3}));
  EXPECT_EQ(t.dtype(), u8);
  EXPECT_EQ(t.at(5), 'f');
  EXPECT_EQ(parse(idx({0, 28, 28}, "")).numel(), 0);
}

TEST(Idx, RefusesHostileFiles) {
  EXPECT_ERROR(parse(""), "f: has 0 bytes, too few for an IDX file");
  EXPECT_ERROR(parse(std::string("\0\0\x08", 3)), "f: has 3 bytes, too few");
  EXPECT_ERROR(parse("\x1f\x8b\x08 packed"),
               "f: not an IDX file: starts with bytes 1f 8b, not 00 00");
  EXPECT_ERROR(parse(idx({1}, "aaaa", 0x0d)), "f: element type 0x0d is not supported");
  EXPECT_ERROR(parse(idx({}, "")), "f: rank must be from 1 to 4, got 0");
  EXPECT_ERROR(parse(idx({1, 1, 1, 1, 1}, "a")), "f: rank must be from 1 to 4, got 5");
  EXPECT_ERROR(parse(idx({2, 3}, "").substr(0, 9)), "f: the header takes 12 bytes, the file has 9");
  EXPECT_ERROR(parse(idx({2, 3}, "abcde")),
               "f: shape [2, 3] needs a file of 18 bytes, this one has 17");
  EXPECT_ERROR(parse(idx({2, 3}, "abcdefg")),
               "f: shape [2, 3] needs a file of 18 bytes, this one has 19");
  EXPECT_ERROR(parse(idx({0xffffffff, 0xffff}, "a")),
               "needs a file of 281470681677837 bytes, this one has 13");
  EXPECT_ERROR(parse(idx({0xffffffff, 0xffffffff, 9, 9}, "a")), "overflows");
  EXPECT_ERROR(parse(idx({0xffffffff, 0xffffffff, 0xffffffff, 0}, "")), "overflows");
  EXPECT_ERROR(read_idx("/no/such/file"), "/no/such/file: cannot open: No such file");
}

TEST(Idx, SurvivesDamage) {
  const std::string valid = idx({2, 3, 4}, std::string(24, 'x'));
  const auto parse = [](std::span<const std::byte> file) { parse_idx(file, "f"); };
  test::survive_damage(valid, "", parse);
  test::refuse_truncation(valid, parse);
}

#ifdef MIXTAPE_ZLIB
TEST(Idx, ReadsGzip) {
  const TempFolder folder;
  const auto pack = [&](const std::string& name, const std::string& bytes) {
    spit(folder / name, test::gzip(bytes));
    return folder / name;
  };
  EXPECT_EQ(to_vector(read_idx(pack("ok.gz", idx({2}, "\x07\x09")))), (std::vector<double>{7, 9}));
  EXPECT_ERROR(read_idx(pack("lies.gz", idx({4000, 28, 28}, "ab"))),
               "lies.gz: shape [4000, 28, 28] needs a file of 3136016 bytes, this one has 18");

  // Zeros pack to a thousandth.
  constexpr uint32_t count = 20'000'000;
  const std::string bomb = pack("bomb.gz", idx({count}, std::string(count, '\0')));
  EXPECT_ERROR(read_idx(bomb),
               "bomb.gz: unpacks to more than the 16777216 bytes allowed (raise max_memory)");
  EXPECT_EQ(read_idx(bomb, 50'000'000).numel(), count);
}
#endif

// ---- MNIST

// n images of 2 x 3 whose pixels and labels encode their number.
void write_pair(const TempFolder& folder, const std::string& prefix, uint32_t n) {
  std::string pixels, labels;
  for (uint32_t i = 0; i < n; ++i) {
    pixels += std::string(6, char(i));
    labels += char(i % 10);
  }
  spit(folder / (prefix + "-images-idx3-ubyte"), idx({n, 2, 3}, pixels));
  spit(folder / (prefix + "-labels-idx1-ubyte"), idx({n}, labels));
}

TEST(Mnist, BothPairsAreTrainAndValid) {
  const TempFolder folder;
  write_pair(folder, "train", 20);
  write_pair(folder, "t10k", 5);
  const Split<TensorDataset> split = load_mnist(folder.path(), 0.5);
  EXPECT_EQ(split.train.x().shape(), Shape({20, 1, 2, 3}));
  EXPECT_EQ(split.valid.x().shape(), Shape({5, 1, 2, 3}));
  EXPECT_EQ(split.train.y().dtype(), i64);
  EXPECT_EQ(split.train.y().at(13), 3);
}

TEST(Mnist, OnePairIsSplitAtTheEnd) {
  for (const char* prefix : {"train", "t10k"}) {
    const TempFolder folder;
    write_pair(folder, prefix, 20);
    const Split<TensorDataset> split = load_mnist(folder.path(), 0.25);
    EXPECT_EQ(split.train.x().shape(), Shape({15, 1, 2, 3}));
    EXPECT_EQ(split.valid.x().shape(), Shape({5, 1, 2, 3}));
    EXPECT_EQ(split.valid.x().at(0), 15);
    EXPECT_EQ(to_vector(split.valid.y()), (std::vector<double>{5, 6, 7, 8, 9}));
    for (const double fraction : {0.0, 1.0, -0.5, double(NAN)})
      EXPECT_ERROR(load_mnist(folder.path(), fraction),
                   "valid_fraction must be between 0 and 1, got ");
    EXPECT_ERROR(load_mnist(folder.path(), 0.001), "20 examples cannot be split with 0.001");
  }
}

TEST(Mnist, SaysWhatIsWrong) {
  const TempFolder folder;
  EXPECT_ERROR(load_mnist(folder / "gone"),
               "gone: no such folder: looked for train-images-idx3-ubyte");
  EXPECT_ERROR(load_mnist(folder.path()),
               "no data in this folder: looked for train-images-idx3-ubyte");
  write_pair(folder, "train", 4);
  spit(folder / "train-labels-idx1-ubyte", idx({3}, "\x01\x02\x03"));
  EXPECT_ERROR(load_mnist(folder.path()),
               "train-images-idx3-ubyte: 4 images need as many labels, got 3");
  spit(folder / "train-labels-idx1-ubyte", idx({4}, "\x01\x02\x0a\x03"));
  EXPECT_ERROR(load_mnist(folder.path()), "train-labels-idx1-ubyte: label 2 is 10, not a digit");
  spit(folder / "train-labels-idx1-ubyte", idx({2, 2}, "\x01\x02\x03\x04"));
  EXPECT_ERROR(load_mnist(folder.path()), "labels must have rank 1, got shape [2, 2]");
  spit(folder / "train-images-idx3-ubyte", idx({4, 6}, std::string(24, 'x')));
  EXPECT_ERROR(load_mnist(folder.path()), "images must have rank 3, got shape [4, 6]");
  std::filesystem::remove(folder / "train-labels-idx1-ubyte");
  EXPECT_ERROR(load_mnist(folder.path()),
               "has train-images-idx3-ubyte but neither train-labels-idx1-ubyte nor "
               "train-labels-idx1-ubyte.gz");
}

TEST(Mnist, BothPairsMustFit) {
  const TempFolder folder;
  write_pair(folder, "train", 4);
  write_pair(folder, "t10k", 0);
  EXPECT_ERROR(load_mnist(folder.path()), ": 4 training and 0 validation images");
  spit(folder / "t10k-images-idx3-ubyte", idx({1, 3, 3}, std::string(9, 'x')));
  spit(folder / "t10k-labels-idx1-ubyte", idx({1}, "\x01"));
  EXPECT_ERROR(load_mnist(folder.path()), "training images of 2 x 3, validation images of 3 x 3");
}

TEST(Mnist, ReadsTheRealOne) {
  const char* folder = std::getenv("MIXTAPE_MNIST");
  if (!folder) GTEST_SKIP() << "set MIXTAPE_MNIST to a folder with the files of MNIST";
  const Split<TensorDataset> split = load_mnist(folder, 0.2);
  const int64_t train = split.train.y().numel(), valid = split.valid.y().numel();
  const bool both = train == 60000;  // else the 10,000 of the test pair
  EXPECT_EQ(train, both ? 60000 : 8000);
  EXPECT_EQ(valid, both ? 10000 : 2000);
  EXPECT_EQ(split.train.x().shape(), Shape({train, 1, 28, 28}));
  EXPECT_EQ(split.train.y().at(0), both ? 5 : 7);
  DataLoader loader(split.valid,
                    {.batch_size = 256, .workers = 2, .transform = transforms::to_float()});
  std::vector<double> labels;
  for (const auto& [x, y] : loader) {
    const std::vector<double> pixels = to_vector(x);
    EXPECT_EQ(*std::max_element(pixels.begin(), pixels.end()), 1);
    for (const double label : to_vector(y)) labels.push_back(label);
  }
  EXPECT_EQ(labels, to_vector(split.valid.y()));
}

// ---- digits

std::string_view pixels_of(const TensorDataset& images, int64_t first, int64_t count) {
  return {static_cast<const char*>(images.x().raw()) + first * 784, size_t(count) * 784};
}

TEST(Digits, DependOnSeedSetAndIndexOnly) {
  const Split<TensorDataset> a = make_digits(5, 200, 50), longer = make_digits(5, 300, 20),
                             other = make_digits(6, 200, 50);
  EXPECT_EQ(pixels_of(a.train, 0, 200), pixels_of(longer.train, 0, 200));
  EXPECT_EQ(pixels_of(a.valid, 0, 20), pixels_of(longer.valid, 0, 20));
  EXPECT_NE(pixels_of(a.train, 0, 1), pixels_of(other.train, 0, 1));
  EXPECT_NE(pixels_of(a.train, 0, 1), pixels_of(a.valid, 0, 1));

  Split<TensorDataset> elsewhere;
  {
    const Seed ignored(99);  // nor on the thread or its generator
    std::thread([&] { elsewhere = make_digits(5, 200, 50); }).join();
  }
  EXPECT_EQ(pixels_of(a.train, 0, 200), pixels_of(elsewhere.train, 0, 200));
}

TEST(Digits, ClassesAreBalanced) {
  const Split<TensorDataset> split = make_digits(1, 1005, 100);
  EXPECT_EQ(split.train.x().shape(), Shape({1005, 1, 28, 28}));
  EXPECT_EQ(split.train.y().dtype(), i64);
  std::vector<int> count(10);
  for (const double label : to_vector(split.train.y())) ++count.at(size_t(label));
  EXPECT_EQ(*std::min_element(count.begin(), count.end()), 100);
  EXPECT_EQ(*std::max_element(count.begin(), count.end()), 101);
  EXPECT_EQ(make_digits(1, 0, 0).train.x().numel(), 0);
  EXPECT_ERROR(make_digits(1, -1, 0), "the number of images must be >= 0, got -1");
}

TEST(Digits, ShowInkOnPaper) {
  const Split<TensorDataset> split = make_digits(2, 500, 0);
  for (int64_t i = 0; i < 500; ++i) {
    const auto image = pixels_of(split.train, i, 1);
    const auto bright =
        std::count_if(image.begin(), image.end(), [](char c) { return uint8_t(c) > 90; });
    EXPECT_GT(bright, 8) << i;
    EXPECT_LT(bright, 392) << i;
  }
}

// Fraction of `valid` nearest to its own class mean: a simple linear classifier.
double nearest_mean_accuracy(const Split<TensorDataset>& split) {
  std::vector<std::vector<double>> means(10, std::vector<double>(784));
  const int64_t n = split.train.y().numel();
  for (int64_t i = 0; i < n; ++i)
    for (size_t p = 0; p < 784; ++p)
      means[size_t(split.train.y().at(i))][p] +=
          uint8_t(pixels_of(split.train, i, 1)[p]) * 10.0 / double(n);
  int right = 0;
  for (int64_t i = 0; i < split.valid.y().numel(); ++i) {
    const auto image = pixels_of(split.valid, i, 1);
    std::vector<double> distance(10);
    for (size_t c = 0; c < 10; ++c)
      for (size_t p = 0; p < 784; ++p) distance[c] += std::pow(uint8_t(image[p]) - means[c][p], 2);
    right += std::min_element(distance.begin(), distance.end()) - distance.begin() ==
             split.valid.y().at(i);
  }
  return right / double(split.valid.y().numel());
}

TEST(Digits, AreNeitherNoiseNorTrivial) {
  const double accuracy = nearest_mean_accuracy(make_digits(3, 2000, 500));
  EXPECT_GT(accuracy, 0.3);
  EXPECT_LT(accuracy, 0.9);
}

// ---- progress

TEST(Progress, LineFillsTheWidth) {
  ProgressState s{"epoch 1", 250, 1000, 2, "loss 0.31"};
  EXPECT_EQ(progress_line(s, 0), "epoch 1 250/1000  125/s  eta 0:06  loss 0.31");
  const std::string line = progress_line(s, 80);
  EXPECT_EQ(line.substr(0, 20), "epoch 1 [========>  ");
  EXPECT_EQ(line.size(), 80u);
  EXPECT_LE(progress_line(s, 30).size(), 30u);
  EXPECT_EQ(progress_line(s, 7), "epoch 1");
  s.done = 1000;
  EXPECT_EQ(progress_line(s, 0), "epoch 1 1000/1000  500/s  in 0:02  loss 0.31");
  EXPECT_EQ(progress_line(s, 80).find('>'), std::string::npos);
}

TEST(Progress, WhatWasDoneBeforeTookNoTime) {
  const ProgressState s{"epoch 2", 300, 400, 2, "", 200};
  EXPECT_EQ(progress_line(s, 0), "epoch 2 300/400  50/s  eta 0:02");
}

TEST(Progress, LineHandlesOddStates) {
  EXPECT_EQ(progress_line({"", 0, 0, 0, ""}, 80), "0");
  EXPECT_EQ(progress_line({"x", 5, 0, 10, ""}, 80), "x 5  0.5/s  in 0:10");
  EXPECT_EQ(progress_line({"x", 7, 5, 1, ""}, 0), "x 7/5  7.0/s  in 0:01");
  EXPECT_EQ(progress_line({"x", 1, 4000, 2, ""}, 0), "x 1/4000  0.5/s  eta 2:13:18");
  EXPECT_EQ(progress_line({"x", 25'000, 50'000, 1, ""}, 0), "x 25000/50000  25.0k/s  eta 0:01");
}

TEST(Progress, IsOnePlainLineWithoutATerminal) {
  const TempFolder folder;
  std::FILE* out = std::fopen((folder / "out").c_str(), "w");
  int calls = 0;
  {
    Progress bar("train", 50, [&] { return ++calls, std::string("loss 1.5"); }, out);
    for (int i = 0; i < 50; ++i) bar.step();
    bar.finish();
    bar.finish();
  }
  std::fclose(out);
  const std::string text = slurp(folder / "out");
  EXPECT_EQ(text.substr(0, 12), "train 50/50 ");
  EXPECT_EQ(text.substr(text.size() - 11), "  loss 1.5\n");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.find_first_of("\r\x1b"), std::string::npos);
  EXPECT_EQ(calls, 1);
}

TEST(Progress, SaysNothingWhenAnErrorPasses) {
  const TempFolder folder;
  std::FILE* out = std::fopen((folder / "out").c_str(), "w");
  try {
    Progress bar("train", 50, {}, out);
    bar.step();
    fail("stop");
  } catch (const Error&) {
  }
  std::fclose(out);
  EXPECT_EQ(slurp(folder / "out"), "");
}

// The terminal output of a bar with 1000 quick steps, and the number of calls of its suffix.
std::pair<std::string, int> shown_on_terminal() {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) return {};
  std::FILE* out = std::fopen(::ptsname(master), "w");
  if (!out) return {};
  int calls = 0;
  {
    Progress bar("train", 1000, [&] { return ++calls, std::string(); }, out);
    for (int i = 0; i < 1000; ++i) bar.step();
  }
  std::string text;  // the terminal returns it in parts; the bar ends its line
  char part[4096];
  while (!text.ends_with('\n')) {
    const ssize_t n = ::read(master, part, sizeof part);
    if (n <= 0) break;
    text.append(part, size_t(n));
  }
  std::fclose(out);
  ::close(master);
  return {text, calls};
}

TEST(Progress, RedrawsInPlaceOnATerminal) {
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  const auto [colored, calls] = shown_on_terminal();
  if (colored.empty()) GTEST_SKIP() << "no pseudo-terminal here";
  EXPECT_EQ(colored[0], '\r');
  EXPECT_NE(colored.find("\x1b[32m"), std::string::npos);
  EXPECT_NE(colored.find("1000/1000"), std::string::npos);
  EXPECT_LT(calls, 20);  // 1000 steps take far less than two seconds

  ::setenv("NO_COLOR", "1", 1);
  const std::string plain = shown_on_terminal().first;
  EXPECT_EQ(plain.find("\x1b[32m"), std::string::npos);
  EXPECT_NE(plain.find("\x1b[K"), std::string::npos);

  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(shown_on_terminal().first.find('\x1b'), std::string::npos);
}

// ---- plot and run folder

TEST(Plot, AveragesLongCurves) {
  io::Chart chart{.series = {{"train", {}, {}}, {"short", {}, {}}, {"valid", {999, 1999}, {5, 6}}}};
  for (int i = 0; i < 5000; ++i) {
    io::Series& all = chart.series[0];
    all.x.push_back(i), all.y.push_back(2 * i);
    if (i < 320) chart.series[1].x.push_back(i), chart.series[1].y.push_back(i);
  }
  chart.series.push_back({"marks", {1, 2, 3}, {1, 2, 3}, true});
  thin(chart, 1024);
  const io::Series& s = chart.series[0];
  EXPECT_EQ(s.x.size(), 625u);  // of 8 each
  EXPECT_DOUBLE_EQ(s.x[0], 3.5);
  EXPECT_DOUBLE_EQ(s.y[100], 2 * 803.5);
  EXPECT_DOUBLE_EQ(s.x.back(), 4995.5);
  EXPECT_EQ(chart.series[1].x.size(), 40u) << "as smooth as the longer one";
  EXPECT_EQ(chart.series[2].x, (std::vector<double>{999, 1999})) << "in stretches of their own";
  EXPECT_EQ(chart.series[3].x.size(), 3u) << "marks stay";

  chart.series = {{"few", {0, 1, 1e6}, {1, NAN, 3}}};
  thin(chart, 3);
  EXPECT_EQ(chart.series[0].x, (std::vector<double>{0, 1, 1e6}));
  thin(chart, 2);
  EXPECT_EQ(chart.series[0].x, (std::vector<double>{0.5, 1e6}));
  EXPECT_TRUE(std::isnan(chart.series[0].y[0])) << "a gap stays one";
}

TEST(RunFolder, MakesFoldersAndRemovesNothing) {
  const TempFolder folder;
  const RunFolder run(folder / "a/b");
  EXPECT_EQ(run.path("log.jsonl"), folder / "a/b/log.jsonl");
  spit(run.path("checkpoints/3.safetensors"), "x");
  const RunFolder again(folder / "a/b");
  EXPECT_EQ(slurp(again.path("checkpoints/3.safetensors")), "x");
}

TEST(RunFolder, SaysWhyItCannot) {
  const TempFolder folder;
  spit(folder / "file", "x");
  EXPECT_ERROR(RunFolder(folder / "file"), "file: ");
  EXPECT_ERROR(RunFolder(folder / "file/inside"),
               "file/inside: cannot make this folder: Not a directory");
  EXPECT_ERROR(RunFolder(""), "a run folder needs a name");
  const RunFolder run(folder / "run");
  for (const char* name : {"", "/etc/passwd", "../x", "a/../../x"})
    EXPECT_ERROR(run.path(name), "is not a name inside");
}

}  // namespace data_test
}  // namespace mixtape::train
