// fastai's first example: threes and sevens from a folder, three convolutions, fp16, one cycle.

#include "core/check.h"
#include "examples/command_line.h"
#include "mixtape.h"
#include "train/data/folder.h"
#include "train/learner.h"

using namespace mixtape;
using namespace mixtape::examples;

namespace {

struct Options {
  std::string data, out, dtype = "float16", device = "cpu";
  int64_t epochs = 1, batch_size = 2;
  double lr = 8e-3;
  bool resume = false;
  uint64_t seed = 1;
};

struct Job {
  Job(const Options& given, io::Metadata options)
      : o(given),
        settings(std::move(options)),
        device(usable(o.device)),
        from(checkpoint(o.out, o.resume, settings)),
        images(train::from_folder(o.data, {.valid_fraction = 0.14})) {
    check(images.train.classes().size() == 2, "{}: needs 2 classes, got {}", o.data,
          images.train.classes().size());
    stats = train::pixel_stats(images.train);  // reads images, to find broken ones
    settings["--data"] = described(images.train.size(), images.valid.size(), stats);
    checkpoint(o.out, o.resume, settings);
    if (!o.out.empty()) const train::RunFolder folder(o.out);
  }
  void run() const;

  const Options o;
  io::Metadata settings;  // for checkpoints
  const Device device;
  const std::string from;  // the checkpoint to continue from, or ""
  const train::Split<train::ImageFolder> images;
  train::PixelStats stats;
};

void Job::run() const {
  const Seed seed(o.seed);
  const train::Transform transform = train::transforms::normalize(stats.mean, stats.std);
  train::Loaders data;
  data.train.emplace(images.train, train::DataLoaderOptions{.batch_size = o.batch_size,
                                                            .shuffle = true,
                                                            .seed = o.seed,
                                                            .device = device,
                                                            .transform = transform});
  data.valid.emplace(
      images.valid,
      train::DataLoaderOptions{.batch_size = 256, .device = device, .transform = transform});
  train::Learner learner(
      std::move(data), models::simple_cnn({3, 16, 16, 2}),
      {.optimizer = [](auto params) { return optim::AdamW(params, {.betas = {0.9, 0.99}}); },
       .metrics = {train::accuracy},
       .folder = o.out,
       .device = device,
       .settings = settings});
  learner.to(low(o.dtype)).fit_one_cycle(o.epochs, o.lr, {.resume = from});
  if (learner.is_stopping())
    throw Interrupted(o.out.empty() ? "nothing was saved"
                                    : o.out + " holds what was learned: --resume continues");
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CommandLine line("one_cycle", "Tells two classes of images apart, after one epoch in fp16.");
  line.add("--data", o.data, "DIR", "PNG images, a folder for each class").required();
  line.add("--dtype", o.dtype, "NAME", "float32, float16 or bfloat16").check(precision());
  line.device(o.device);
  line.add("--epochs", o.epochs, "N", "passes over the training images").check(count());
  line.add("--batch-size", o.batch_size, "N", "images per step").check(count());
  line.add("--lr", o.lr, "X", "highest learning rate").check(rate());
  line.add("--seed", o.seed, "N", "of weights and order").check(any_seed());
  line.add("--out", o.out, "DIR", "folder for metrics.jsonl, charts and last.ckpt")
      .check(not_empty());
  line.flag("--resume", o.resume, "continue from last.ckpt, with the same other options");
  return line.run(argc, argv, [&] {
    return [job = std::make_shared<const Job>(o, line.settings())] { job->run(); };
  });
}
