// The main job: one small convolutional network trained from the same seed in fp32, fp16 with a
// gradient scaler, and bf16, and a table that compares the three.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "io/jsonl.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "optim/schedule.h"
#include "train/data/digits.h"
#include "train/data/idx.h"
#include "train/data/loader.h"
#include "train/plot.h"
#include "train/progress.h"
#include "train/run_folder.h"

using namespace mixtape;

namespace {

struct Options {
  std::string data, out = "runs/demo";
  double valid_fraction = 0.2, lr = 3e-3;
  int64_t epochs = 5, batch_size = 64;
  uint64_t seed = 1;
  std::vector<std::string> modes = {"fp32", "fp16", "bf16"};
};

struct Net : nn::Module<Net> {
  nn::Conv2d conv1{1, 16, 3, {.padding = {1, 1}}}, conv2{16, 32, 3, {.padding = {1, 1}}};
  nn::Linear fc1, fc2{128, 10};

  Net(int64_t height, int64_t width) : fc1(32 * (height / 4) * (width / 4), 128) {}
  Tensor forward(const Tensor& x) const {
    Tensor h = max_pool2d(relu(conv1(x)), {2, 2});
    h = max_pool2d(relu(conv2(h)), {2, 2});
    return fc2(relu(fc1(flatten(h, 1))));
  }
  MIXTAPE_FIELDS(conv1, conv2, fc1, fc2)
};

struct Evaluation {
  double loss, accuracy;
};

struct Result {
  std::string mode;
  double train_loss = 0;
  Evaluation valid{};
  double ms_per_step = 0;
  int64_t peak_bytes = 0, skipped = 0;
  std::string scale = "-";
};

Evaluation evaluate(const Net& net, train::Loader& loader, DType low) {
  const NoGrad off;
  const amp::Autocast on({.low = low});
  double loss = 0, right = 0;
  for (const auto& [x, y] : loader) {
    const Tensor logits = net(x);
    loss += cross_entropy(logits, y, {.reduction = Reduction::Sum}).item();
    right += sum(eq(argmax(logits, 1), y)).item();
  }
  const double n = double(loader.examples());
  return {loss / n, right / n};
}

Result train_in(const std::string& mode, const train::Split& data, const Options& o,
                const train::RunFolder& folder, io::JsonLines& log, train::Plot& plot) {
  const DType low = parse_dtype(mode);
  const Seed seed(o.seed);  // the same start, order and numbers for every mode
  const train::PixelStats stats = pixel_stats(data.train);
  train::Loader batches(data.train, {.batch_size = o.batch_size,
                                     .shuffle = true,
                                     .drop_last = data.train.labels.numel() >= o.batch_size,
                                     .seed = o.seed,
                                     .mean = stats.mean,
                                     .std = stats.std});
  train::Loader valid(data.valid, {.batch_size = 256, .mean = stats.mean, .std = stats.std});

  Net net(data.train.pixels.size(1), data.train.pixels.size(2));
  optim::AdamW opt(net.parameters(), {.lr = o.lr});
  optim::OneCycle schedule(opt, {.max_lr = o.lr, .total_steps = o.epochs * batches.batches()});
  amp::GradScaler scaler(low);  // does nothing unless low is f16

  Result r{.mode = mode};
  reset_peak();
  const int64_t before = memory_stats().in_use;
  std::vector<double> step_ms;
  int64_t step = 0;
  for (int64_t epoch = 1; epoch <= o.epochs; ++epoch) {
    double epoch_loss = 0, last_loss = 0;
    {
      train::Progress bar(fmt::format("{} epoch {}/{}", mode, epoch, o.epochs), batches.batches(),
                          [&] { return fmt::format("loss {:.4f}", last_loss); });
      for (const auto& [x, y] : batches) {
        const auto start = std::chrono::steady_clock::now();
        opt.zero_grad();
        Tensor loss;
        {
          const amp::Autocast on({.low = low});  // forward pass and loss only
          loss = cross_entropy(net(x), y);
        }
        scaler.scale(loss).backward();
        const auto done = scaler.step(opt);
        schedule.step(done);  // a skipped step does not advance it
        r.skipped += !done;
        scaler.update();
        step_ms.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                .count());
        last_loss = loss.item();
        epoch_loss += last_loss;
        plot.add(mode, double(++step), last_loss);
        bar.step();
      }
    }
    r.train_loss = epoch_loss / double(batches.batches());
    r.peak_bytes = std::max(r.peak_bytes, memory_stats().peak - before);
    r.valid = evaluate(net, valid, low);
    log.write({{"mode", mode},
               {"epoch", epoch},
               {"step", step},
               {"train_loss", r.train_loss},
               {"valid_loss", r.valid.loss},
               {"accuracy", r.valid.accuracy},
               {"skipped", r.skipped},
               {"scale", scaler.scale_value()}});
  }
  std::ranges::nth_element(step_ms, step_ms.begin() + step_ms.size() / 2);
  r.ms_per_step = step_ms[step_ms.size() / 2];
  if (scaler.enabled()) r.scale = fmt::format("{:g}", scaler.scale_value());
  io::save(folder.path(mode + ".safetensors"), net.state_dict(),
           {{"mode", mode}, {"seed", std::to_string(o.seed)}});
  return r;
}

void print_table(const std::vector<Result>& results) {
  fmt::print("\n{:<5} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>8} {:>7}\n", "mode", "train loss",
             "valid loss", "accuracy", "ms/step", "speed-up", "peak MiB", "skipped", "scale");
  const auto fp32 = std::ranges::find(results, "fp32", &Result::mode);
  for (const Result& r : results)
    fmt::print(
        "{:<5} {:>10.4f} {:>10.4f} {:>8.2f} % {:>9.2f} {:>9} {:>9.1f} {:>8} {:>7}\n", r.mode,
        r.train_loss, r.valid.loss, 100 * r.valid.accuracy, r.ms_per_step,
        fp32 == results.end() ? "-" : fmt::format("{:.2f}x", fp32->ms_per_step / r.ms_per_step),
        double(r.peak_bytes) / (1 << 20), r.skipped, r.scale);
}

void run(const Options& o) {
  const train::Split data = o.data.empty() ? train::make_digits(o.seed, 8000, 2000)
                                           : train::load_mnist(o.data, o.valid_fraction);
  check(data.train.pixels.size(1) >= 4 && data.train.pixels.size(2) >= 4,
        "images of {} by {} are too small for the network", data.train.pixels.size(1),
        data.train.pixels.size(2));
  check(data.train.labels.numel() > 0 && data.valid.labels.numel() > 0,
        "{} training and {} validation images", data.train.labels.numel(),
        data.valid.labels.numel());
  const train::RunFolder folder(o.out);
  std::filesystem::remove(folder.path("metrics.jsonl"));
  io::JsonLines log(folder.path("metrics.jsonl"));
  train::Plot plot("Training loss", "step", "loss", true);
  fmt::print("{} training and {} validation images ({}), seed {}, {} epochs of batches of {}\n",
             data.train.labels.numel(), data.valid.labels.numel(),
             o.data.empty() ? "generated digits" : o.data, o.seed, o.epochs, o.batch_size);
  std::fflush(stdout);
  std::vector<Result> results;
  for (const std::string& mode : o.modes)
    results.push_back(train_in(mode, data, o, folder, log, plot));
  plot.save(folder.path("loss.svg"));
  fmt::print("\nwrote {}/: metrics.jsonl, loss.svg and the weights of each mode\n", folder.path());
  print_table(results);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Trains a small convolutional network on digits in fp32, fp16 and bf16, and compares them.",
      "demo");
  app.add_option("--data", o.data,
                 "folder with MNIST files in IDX format, plain or .gz (default: generated digits)");
  app.add_option("--valid-fraction", o.valid_fraction,
                 "part of a single pair of files that is kept for validation")
      ->check(CLI::Range(0.01, 0.9))
      ->capture_default_str();
  app.add_option("--epochs", o.epochs, "passes over the training images")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch-size", o.batch_size, "images per step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", o.lr, "highest learning rate of the one-cycle schedule")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of data, weights and order")->capture_default_str();
  app.add_option("--modes", o.modes, "which precisions to train in, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}))
      ->capture_default_str();
  app.add_option("--out", o.out, "folder for weights, metrics.jsonl and loss.svg")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "demo: {} (--help lists the options)\n", e.what());
    return 2;
  }
  try {
    run(o);
  } catch (const std::exception& e) {
    const std::string text =
        e.what();  // the first line is for people; the rest says where it was raised
    fmt::print(stderr, "demo: {}\n", text.substr(0, text.find('\n')));
    return 2;
  }
  return 0;
}
