// Trains one small convolutional network from the same seed in fp32, fp16 with a gradient scaler,
// and bf16, and prints a table that compares the three.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "core/check.h"
#include "dist/data_parallel.h"
#include "examples/command_line.h"
#include "io/file.h"
#include "io/jsonl.h"
#include "mixtape.h"
#include "train/charts.h"
#include "train/data/data.h"
#include "train/interrupt.h"
#include "train/progress.h"
#include "train/ranks.h"

using namespace mixtape;
using namespace mixtape::examples;

namespace {

// A mode's name in files and tables: "fp16" for float16, and so on. Empty if it is none.
std::string mode_name(const std::string& text) {
  if (text == "tf32") return text;
  if (!precision()(text).empty()) return {};
  const DType low = parse_dtype(text);
  return low == f16 ? "fp16" : low == bf16 ? "bf16" : "fp32";
}

struct Options {
  std::string data, out = "runs/demo";
  double valid_fraction = 0.2, lr = 3e-3;
  int64_t train_size = 8000, valid_size = 2000, epochs = 5, batch_size = 64, chunks = 0;
  uint64_t seed = 1;
  std::vector<std::string> modes = {"fp32", "fp16", "bf16"};
  std::string device = "cpu";
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

// Input and output of a run; the constructor finds all mistakes of the user before touching a file.
struct Job {
  explicit Job(const Options& o)
      : options(o), device(usable(o.device)), data(load(o)), folder(o.out) {
    check_chunks(std::min(o.batch_size, data.train.size()), o.chunks);
    if (train::is_first_rank()) log.emplace(emptied(folder) + "/metrics.jsonl");
  }

  const Options options;
  const Device device;
  const train::Split<train::TensorDataset> data;
  const train::RunFolder folder;
  std::optional<io::JsonLines> log;  // of the first rank

 private:
  static train::Split<train::TensorDataset> load(const Options& o) {
    for (const std::string& mode : o.modes)
      check(std::ranges::count(o.modes, mode) == 1, "--modes: {} is listed twice", mode);
    if (o.data.empty()) return train::make_digits(o.seed, o.train_size, o.valid_size);
    const auto data = train::load_mnist(o.data, o.valid_fraction);
    const Tensor& train = data.train.x();
    check(train.size(2) >= 4 && train.size(3) >= 4,
          "{}: images of {} x {} are too small for the network, which needs 4 x 4", o.data,
          train.size(2), train.size(3));
    return data;
  }
  // Ignores failures: a file that cannot be removed cannot be opened later, which is an error.
  static const std::string& emptied(const train::RunFolder& folder) {
    std::error_code ignored;
    for (const char* earlier : {"metrics.jsonl", "loss.svg", "fp32.safetensors", "tf32.safetensors",
                                "fp16.safetensors", "bf16.safetensors"})
      std::filesystem::remove(folder.path(earlier), ignored);
    return folder.path();
  }
};

struct Evaluation {
  double loss, accuracy;
};

constexpr size_t curve_points = 128;  // more would show the noise of single batches

struct Result {
  std::string mode;
  double train_loss = 0;
  Evaluation valid{};
  double ms_per_step = 0;
  int64_t peak_bytes = 0, skipped = 0;
  std::string scale = "-";
};

Evaluation evaluate(const Net& net, train::DataLoader& loader, DType low) {
  const NoGrad off;
  const amp::Autocast on({.low = low});
  double loss = 0, right = 0;
  for (const auto& [x, y] : loader) {
    const Tensor logits = net(x);
    loss += cross_entropy(logits, y, {.reduction = Reduction::Sum}).item();
    right += sum(eq(argmax(logits, 1), y)).item();
  }
  const double n = double(loader.examples());
  return {std::abs(loss) / n, right / n};
}

// A training in one mode. All modes have the same initial weights, order and random numbers.
class Training {
 public:
  Training(const std::string& mode, Job& job)
      : job_(job),
        result_{.mode = mode},
        low_(mode == "tf32" ? f32 : parse_dtype(mode)),
        tf32_(mode == "tf32"),
        device_(job.device),
        seed_(job.options.seed),
        normalize_(normalize(job)),
        batches_(job.data.train, {.batch_size = job.options.batch_size,
                                  .shuffle = true,
                                  .drop_last = job.data.train.size() >= job.options.batch_size,
                                  .seed = job.options.seed,
                                  .device = job.device,
                                  .transform = normalize_}),
        valid_(job.data.valid, {.batch_size = 256, .device = job.device, .transform = normalize_}),
        before_(memory_stats(job.device).in_use),
        net_(job.data.train.x().size(2), job.data.train.x().size(3)),
        opt_(net_.parameters(), {.lr = job.options.lr}),
        schedule_(opt_, {.max_lr = job.options.lr,
                         .total_steps = job.options.epochs * batches_.batches()}),
        scaler_(low_),
        parallel_(net_, {.chunks = job.options.chunks}),
        curve_{mode, {}, {}} {}

  Result run(io::Chart& chart) {
    for (int64_t epoch = 1; epoch <= job_.options.epochs; ++epoch) run_epoch(epoch);
    chart.series.push_back(curve_);
    std::ranges::nth_element(step_ms_, step_ms_.begin() + step_ms_.size() / 2);
    result_.ms_per_step = step_ms_[step_ms_.size() / 2];
    if (scaler_.enabled()) result_.scale = fmt::format("{:g}", scaler_.scale_value());
    train::on_first_rank([&] {
      io::save(job_.folder.path(result_.mode + ".safetensors"), net_.state_dict(),
               {{"mode", result_.mode}, {"seed", std::to_string(job_.options.seed)}});
    });
    return result_;
  }

 private:
  static train::Transform normalize(const Job& job) {
    const train::PixelStats stats = train::pixel_stats(job.data.train.x());
    return train::transforms::normalize(stats.mean, stats.std);
  }

  double step(const train::Batch& batch) {
    const auto start = std::chrono::steady_clock::now();
    opt_.zero_grad();
    Tensor loss;
    const int64_t chunks = parallel_.part().chunks;
    for (const auto& [x, y, weight] : parallel_.chunks(batch)) {
      {
        const amp::Autocast on({.low = low_});  // forward pass and loss only
        loss = cross_entropy(net_(x), y) * weight;
      }
      // (One chunk does not wait for its loss.)
      parallel_.send_along(
          {double(train::Interrupt::requested()), chunks > 1 ? loss.item() / double(chunks) : 0});
      scaler_.scale(loss).backward();
    }
    const auto done = scaler_.step(opt_);
    schedule_.step(done);  // does not advance after a skipped step
    result_.skipped += !done;
    scaler_.update();
    // (Drops the sign of a NaN.)
    const double value = std::abs(chunks > 1 ? parallel_.sums()[1] : loss.item());
    step_ms_.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
    return value;
  }

  void run_epoch(int64_t epoch) {
    const Options& o = job_.options;
    double sum = 0, last = 0;
    reset_peak(job_.device);
    {
      std::optional<train::Progress> bar;
      if (train::is_first_rank())
        bar.emplace(fmt::format("{} epoch {}/{}", result_.mode, epoch, o.epochs),
                    batches_.batches(), [&] { return fmt::format("loss {:.4f}", last); });
      for (const train::Batch& batch : batches_.share(parallel_.part())) {
        last = step(batch);
        sum += last;
        curve_.x.push_back(double(++step_));
        curve_.y.push_back(last);
        if (bar) bar->step();
        if (parallel_.sums()[0] > 0) throw Interrupted(o.out + " holds what was finished");
      }
    }
    result_.train_loss = sum / double(batches_.batches());
    result_.peak_bytes =
        std::max(result_.peak_bytes, memory_stats(job_.device).peak_total - before_);
    result_.valid = evaluate(net_, valid_, low_);
    if (!job_.log) return;
    job_.log->write({{"mode", result_.mode},
                     {"epoch", epoch},
                     {"step", step_},
                     {"train_loss", result_.train_loss},
                     {"valid_loss", result_.valid.loss},
                     {"accuracy", result_.valid.accuracy},
                     {"skipped", result_.skipped},
                     {"scale", scaler_.scale_value()}});
  }

  Job& job_;
  Result result_;
  const DType low_;
  const Tf32 tf32_;
  const DefaultDevice device_;
  const Seed seed_;
  const train::Transform normalize_;
  train::DataLoader batches_, valid_;
  const int64_t before_;  // bytes in use without network and optimizer
  Net net_;
  optim::AdamW opt_;
  optim::OneCycle schedule_;
  amp::GradScaler scaler_;  // enabled for f16 only
  dist::DataParallel parallel_;
  io::Series curve_;
  std::vector<double> step_ms_;
  int64_t step_ = 0;
};

// Prints 79 columns for ordinary values.
void print_table(const std::vector<Result>& results) {
  fmt::print("\n{:<4}{:>12}{:>12}{:>10}{:>8}{:>9}{:>9}{:>8}{:>7}\n", "mode", "train loss",
             "valid loss", "accuracy", "ms/step", "speed-up", "peak MiB", "skipped", "scale");
  const auto fp32 = std::ranges::find(results, "fp32", &Result::mode);
  for (const Result& r : results)
    fmt::print(
        "{:<4}{:>12.4f}{:>12.4f}{:>8.2f} %{:>8.{}f}{:>9}{:>9.1f}{:>8}{:>7}\n", r.mode, r.train_loss,
        r.valid.loss, 100 * r.valid.accuracy, r.ms_per_step, r.ms_per_step < 1e4 ? 2 : 0,
        fp32 == results.end() ? "-" : fmt::format("{:.2f}x", fp32->ms_per_step / r.ms_per_step),
        double(r.peak_bytes) / (1 << 20), r.skipped, r.scale);
}

void run(Job& job) {
  const Options& o = job.options;
  const int64_t n = job.data.train.size();
  fmt::print("{} training and {} validation images ({}), {} epoch{}, batches of {}, seed {}{}\n", n,
             job.data.valid.size(), o.data.empty() ? "generated digits" : o.data, o.epochs,
             o.epochs == 1 ? "" : "s", std::min(n, o.batch_size), o.seed, on_device(job.device));
  std::fflush(stdout);
  io::Chart chart{.title = "Training loss", .x_label = "step", .y_label = "loss", .log_y = true};
  std::vector<Result> results;
  for (const std::string& mode : o.modes) results.push_back(Training(mode, job).run(chart));
  train::thin(chart, curve_points);
  train::on_first_rank([&] { io::write_file(job.folder.path("loss.svg"), io::to_svg(chart)); });
  fmt::print("\nwrote {}/: metrics.jsonl, loss.svg and the weights of each mode\n", o.out);
  print_table(results);
}

void define(CommandLine& line, Options& o) {
  const Option data = line.add("--data", o.data, "DIR",
                               "folder with MNIST files in IDX format, plain or .gz\n"
                               "(default: digits are drawn)")
                          .check(not_empty());
  line.add("--valid-fraction", o.valid_fraction, "X",
           "validation part at the end of a single pair of files")
      .check(number(0.01, 0.9));
  line.add("--train-size", o.train_size, "N", "digits to draw for training")
      .check(count())
      .excludes(data);
  line.add("--valid-size", o.valid_size, "N", "digits to draw for validation")
      .check(count())
      .excludes(data);
  line.add("--epochs", o.epochs, "N", "passes over the training images").check(count());
  line.add("--batch-size", o.batch_size, "N", "images per step").check(count());
  line.add("--lr", o.lr, "X", "highest learning rate of the one-cycle schedule").check(rate());
  line.add("--seed", o.seed, "N", "of digits, weights and order").check(any_seed());
  line.add("--modes", o.modes, "LIST", "precisions to train in, separated by commas")
      .delimiter(',')
      .check([](const std::string& text) {
        return mode_name(text).empty() ? fmt::format("\"{}\" is not fp32, tf32, fp16 or bf16", text)
                                       : std::string();
      });
  line.device(o.device);
  line.add("--out", o.out, "DIR",
           "folder for weights, metrics.jsonl and loss.svg;\nreplaces those of an earlier run")
      .check(not_empty());
  line.share(o.chunks);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CommandLine line(
      "demo",
      "Trains a small convolutional network on digits in fp32, fp16 and bf16, and compares them.");
  define(line, o);
  return line.run(argc, argv, [&] {
    check(!line.given("--valid-fraction") || !o.data.empty(), "--valid-fraction needs --data");
    for (std::string& mode : o.modes) mode = mode_name(mode);
    return [job = std::make_shared<Job>(o)] {
      const train::Interrupt interrupt;
      run(*job);
    };
  });
}
