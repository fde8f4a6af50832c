// Compares training in less memory with fp32: three networks, all modes, several seeds. Prints a
// table and optionally writes a page; exits with 1 if a mode differs by more than the noise.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>
#include <map>

#include "bench/models.h"
#include "core/check.h"
#include "examples/command_line.h"
#include "io/file.h"
#include "nn/models/models.h"
#include "optim/optimizers.h"
#include "train/data/idx.h"
#include "train/data/text.h"
#include "train/learner.h"

using namespace mixtape;
using namespace mixtape::examples;

namespace {

// After masters: weights of bf16 without them, and f32 weights with moments of 8 bits; then both,
// and both with moments of bf16. Last, products in 8 and 4 bits.
const std::vector<std::string> all_modes = {
    "fp32",  "fp16",        "bf16",  "masters",       "stochastic",
    "kahan", "i8",          "f8",    "stochastic-i8", "stochastic-bf16",
    "fp8",   "fp8-delayed", "mxfp8", "nvfp4"};

struct Options {
  std::string mnist, text, page;
  int64_t seeds = 3, steps = 400;
  std::vector<std::string> models, modes = all_modes;
  std::string device = "cpu";
};

// Logits [b, t, vocabulary] of an LSTM whose state is zero at the start of each window.
struct CharLstm : nn::Module<CharLstm> {
  models::LstmLanguageModel lm;
  explicit CharLstm(int64_t vocabulary)
      : lm(vocabulary, {.embedding = 64, .hidden = 128, .num_layers = 1, .dropout = 0}) {}
  Tensor forward(const Tensor& tokens) const { return lm(tokens).logits; }
  MIXTAPE_FIELDS(lm)
};

struct Run {
  double loss, accuracy;  // on the validation data
  int64_t skipped;
  double seconds;  // of the last epoch
};

void choose(train::Learner& learner, const std::string& mode) {
  if (mode == "fp16") learner.to_fp16();
  if (mode == "bf16") learner.to_bf16();
  if (mode == "masters") learner.to_fp16(train::MasterOptions{});
  if (mode.starts_with("stochastic") || mode == "kahan")
    learner.to_fp16(train::MasterOptions{.dtype = bf16});
  const std::map<std::string, amp::Recipe> recipes = {{"fp8", amp::Current{}},
                                                      {"fp8-delayed", amp::Delayed{}},
                                                      {"mxfp8", amp::Mx{}},
                                                      {"nvfp4", amp::NvFp4{}}};
  if (const auto r = recipes.find(mode); r != recipes.end())
    learner.to_fp16(train::AmpOptions{.amp_mode = bf16, .recipe = r->second});
}

optim::CommonOptions storage(const std::string& mode) {
  optim::CommonOptions common;
  if (mode.starts_with("stochastic")) common.rounding = optim::Rounding::Stochastic;
  if (mode == "kahan") common.rounding = optim::Rounding::Kahan;
  if (mode.ends_with("i8")) common.state = i8;
  if (mode == "f8") common.state = optim::f8;
  if (mode == "stochastic-bf16") common.state = bf16;
  return common;
}

// One training from a seed, with the same batches in every mode.
template <class Model>
Run train_one(const std::string& mode, const Options& o, Model model, train::Loaders data,
              train::LossFunction loss, double lr, int64_t epochs) {
  train::LearnerOptions options{.loss = std::move(loss),
                                .metrics = {train::accuracy},
                                .device = Device::parse(o.device),
                                .out = nullptr,
                                .progress = false};
  options.optimizer = [=, common = storage(mode)](auto params) {
    return optim::AdamW(params, {.lr = lr}, common);
  };
  train::Learner learner(std::move(data), model, options);
  choose(learner, mode);
  learner.fit_one_cycle(epochs, lr);
  const train::EpochRow& row = learner.history.epochs.back();
  Run run{row.valid_loss, row.metrics[0], 0, row.seconds};
  for (const auto& step : learner.history.steps) run.skipped += step.skipped;
  return run;
}

const train::Split<train::TensorDataset>& digits(const Options& o) {
  static const auto data = train::load_mnist(o.mnist, 0.2);
  return data;
}

Run cnn(const std::string& mode, uint64_t seed, const Options& o) {
  const auto& data = digits(o);
  static const auto stats = train::pixel_stats(data.train.x());
  const train::Transform normalize = train::transforms::normalize(stats.mean, stats.std);
  train::Loaders loaders;
  loaders.train.emplace(data.train, train::DataLoaderOptions{.batch_size = 64,
                                                             .shuffle = true,
                                                             .drop_last = true,
                                                             .seed = seed,
                                                             .transform = normalize});
  loaders.valid.emplace(data.valid,
                        train::DataLoaderOptions{.batch_size = 256, .transform = normalize});
  return train_one(mode, o, bench::Cnn(bench::demo_cnn), std::move(loaders), {}, 3e-3, 3);
}

const train::CharText& text(const Options& o) {
  static const auto text = train::CharText::load(o.text, {.context = 64});
  return text;
}

template <class Model>
Run characters(const std::string& mode, uint64_t seed, const Options& o, Model model, double lr) {
  constexpr int64_t batch = 16;
  train::Loaders loaders;
  auto order = train::shuffled(text(o).train().size(), seed);
  order.resize(std::min(order.size(), size_t(o.steps * batch)));
  loaders.train.emplace(train::Subset(text(o).train(), order),
                        train::DataLoaderOptions{.batch_size = batch, .drop_last = true});
  auto some = train::shuffled(text(o).valid().size(), 0);  // the same for all runs
  some.resize(std::min<size_t>(some.size(), 256));
  loaders.valid.emplace(train::Subset(text(o).valid(), some),
                        train::DataLoaderOptions{.batch_size = 64});
  return train_one(mode, o, std::move(model), std::move(loaders), models::next_token_loss, lr, 1);
}

Run lstm(const std::string& mode, uint64_t seed, const Options& o) {
  return characters(mode, seed, o, CharLstm(int64_t(text(o).vocabulary().size())), 1e-2);
}

Run gpt(const std::string& mode, uint64_t seed, const Options& o) {
  const models::GptConfig config{.vocabulary = int64_t(text(o).vocabulary().size()),
                                 .context = 64,
                                 .layers = 4,
                                 .heads = 4,
                                 .width = 128,
                                 .dropout = 0};
  return characters(mode, seed, o, models::Gpt(config), 3e-3);
}

struct Spread {
  double mean = 0, deviation = 0;
};
Spread spread(const std::vector<Run>& runs) {
  Spread s;
  for (const Run& r : runs) s.mean += r.loss / double(runs.size());
  for (const Run& r : runs) s.deviation += (r.loss - s.mean) * (r.loss - s.mean);
  s.deviation = runs.size() > 1 ? std::sqrt(s.deviation / double(runs.size() - 1)) : 0;
  return s;
}

using Network = Run (*)(const std::string& mode, uint64_t seed, const Options& o);

// Prints the rows of one network; false if a mode differs by more than the noise.
bool compare(const std::string& name, Network network, const Options& o, std::string& page) {
  bool good = true;
  std::optional<Spread> exact;
  for (const std::string& mode : o.modes) {
    std::vector<Run> runs;
    for (int64_t seed = 1; seed <= o.seeds; ++seed) {
      const Seed start{uint64_t(seed)};
      runs.push_back(network(mode, uint64_t(seed), o));
      fmt::print(stderr, "{} {} seed {}: loss {:.4f} in {:.0f} s\n", name, mode, seed,
                 runs.back().loss, runs.back().seconds);
    }
    const Spread s = spread(runs);
    if (mode == "fp32") exact = s;
    double accuracy = 0;
    int64_t skipped = 0;
    for (const Run& r : runs) {
      accuracy += 100 * r.accuracy / double(runs.size());
      skipped += r.skipped;
    }
    std::string verdict = "-";
    if (exact && mode != "fp32") {
      const double off = s.mean - exact->mean;
      const bool within = std::abs(off) <= std::max(exact->deviation, 0.01 * exact->mean);
      good = good && within;
      verdict = fmt::format("{:+.4f} ({:+.2f} %){}", off, 100 * off / exact->mean,
                            within ? "" : " BEYOND");
    }
    const std::string row =
        fmt::format("| {} | {} | {:.4f} ± {:.4f} | {:.2f} % | {} | {} |\n", name, mode, s.mean,
                    s.deviation, accuracy, verdict, skipped);
    fmt::print("{}", row);
    std::fflush(stdout);
    page += row;
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  const std::string modes = fmt::format("of {}", fmt::join(all_modes, ", "));
  CommandLine line("train_parity",
                   "Trains networks in fp32, fp16 and bf16, with f32 masters, and with less than "
                   "those, and compares the losses.");
  line.add("--mnist", o.mnist, "DIR", "folder with MNIST's IDX files, for cnn");
  line.add("--text", o.text, "FILE", "a text, for lstm and gpt");
  line.add("--seeds", o.seeds, "N", "trainings of each mode").check(count());
  line.add("--steps", o.steps, "N", "of a training on text").check(count());
  line.add("--models", o.models, "LIST", "of cnn, lstm, gpt; by default all that there is data for")
      .delimiter(',')
      .check(one_of({"cnn", "lstm", "gpt"}));
  line.add("--modes", o.modes, "LIST", modes.c_str()).delimiter(',').check(one_of(all_modes));
  line.add("--device", o.device, "NAME", "cpu, cuda, ...");
  line.add("--page", o.page, "FILE.md", "also write the table here");
  return line.run(argc, argv, [&] {
    usable(o.device);
    if (o.models.empty()) {
      if (!o.mnist.empty()) o.models.push_back("cnn");
      if (!o.text.empty()) o.models.insert(o.models.end(), {"lstm", "gpt"});
    }
    check(!o.models.empty(), "nothing to train (--help lists the options)");
    for (const std::string& name : o.models) name == "cnn" ? void(digits(o)) : void(text(o));
    return [&o] {
      std::string page =
          "| network | mode | validation loss | accuracy | off fp32 | skipped |\n"
          "|---|---|---|---|---|---|\n";
      fmt::print("{}", page);
      bool good = true;
      const std::map<std::string, Network> networks = {{"cnn", cnn}, {"lstm", lstm}, {"gpt", gpt}};
      for (const std::string& name : o.models) good &= compare(name, networks.at(name), o, page);
      if (!o.page.empty()) io::write_file(o.page, page);
      check(good, "a mode is beyond the noise");
    };
  });
}
