// Trains a GPT on a text, character by character, and samples from it.

#include <fmt/ranges.h>

#include "core/check.h"
#include "examples/command_line.h"
#include "io/crc.h"
#include "io/file.h"
#include "mixtape.h"
#include "train/callbacks.h"
#include "train/data/text.h"
#include "train/learner.h"
#include "train/ranks.h"

using namespace mixtape;
using namespace mixtape::examples;

namespace {

struct Options {
  std::string text, load, save, out, prompt, dtype = "float32", device = "cpu";
  int64_t layers = 4, heads = 4, width = 128, context = 64;
  int64_t steps = 2000, every = 500, batch_size = 16, workers = 0, sample = 300, top_k = 0,
          chunks = 0;
  double lr = 3e-3, dropout = 0, temperature = 0.8;
  bool resume = false, shards = false;
  uint64_t seed = 1;
};

void define(CommandLine& line, Options& o) {
  line.add("--text", o.text, "FILE", "the text to learn, in UTF-8; its last tenth validates")
      .required();
  line.add("--layers", o.layers, "N", "blocks of the model").check(count());
  line.add("--heads", o.heads, "N", "attention heads per block").check(count());
  line.add("--width", o.width, "N", "size of the hidden vector per character").check(count());
  line.add("--context", o.context, "N", "characters that the model sees").check(count());
  line.add("--dropout", o.dropout, "X", "fraction dropped in training").check(number(0., 0.9));
  line.add("--steps", o.steps, "N", "optimizer steps; 0: only --load and sample").check(count(0));
  line.add("--every", o.every, "N", "steps between validations").check(count());
  line.add("--batch-size", o.batch_size, "N", "windows of the text per step").check(count());
  line.add("--lr", o.lr, "X", "highest learning rate of the one-cycle schedule").check(rate());
  line.add("--dtype", o.dtype, "NAME", "float32, float16 or bfloat16").check(precision());
  line.device(o.device);
  line.add("--workers", o.workers, "N", "threads that prepare batches").check(number(0L, 256L));
  line.add("--seed", o.seed, "N", "for weights, order and samples").check(any_seed());
  line.add("--sample", o.sample, "N", "characters to write at the end").check(count(0));
  line.add("--prompt", o.prompt, "TEXT", "text to continue (default: the last character)")
      .check(not_empty());
  line.add("--temperature", o.temperature, "X", "0: always the likeliest; 1: by probability")
      .check(number(0., 100.));
  line.add("--top-k", o.top_k, "N", "sample from the k likeliest; 0: from all").check(count(0));
  line.add("--load", o.load, "FILE", "initial weights").check(not_empty());
  line.add("--save", o.save, "FILE", "safetensors file to write").check(not_empty());
  line.add("--out", o.out, "DIR", "folder for metrics.jsonl, charts and last.ckpt")
      .check(not_empty());
  line.flag("--resume", o.resume, "continue from last.ckpt, with the same other options");
  line.share(o.chunks);
  line.flag("--shards", o.shards, "divide the optimizer's state among the processes");
}

// The input of a run. The constructor finds all mistakes of the user.
struct Job {
  Job(const Options& given, io::Metadata options)
      : o(given),
        settings(std::move(options)),
        device(usable(o.device)),
        from(checkpoint(o.out, o.resume, settings)),
        text(train::CharText::load(o.text, {.context = o.context, .stride = 1})),
        prompt(o.prompt.empty() ? slice(text.valid().tokens(), 0, -1, INT64_MAX)
                                : text.encode(o.prompt)),
        seed(o.seed),
        model({.vocabulary = int64_t(text.vocabulary().size()),
               .context = o.context,
               .layers = o.layers,
               .heads = o.heads,
               .width = o.width,
               .dropout = o.dropout}) {
    o.every = std::min(o.every, std::max<int64_t>(o.steps, 1));
    check(o.steps % o.every == 0, "--steps {} is not a multiple of --every {}", o.steps, o.every);
    const int64_t windows = text.train().size();
    check(o.steps == 0 || windows / std::min(o.batch_size, windows) >= o.every,
          "the text has {} windows, too few for {} steps of {} between validations", windows,
          o.every, o.batch_size);
    check(o.top_k <= int64_t(text.vocabulary().size()),
          "--top-k must be at most {1}, the number of characters, got {0}", o.top_k,
          text.vocabulary().size());
    check(o.save.empty() || o.steps > 0, "--save {} with --steps 0: nothing is learned", o.save);
    check_chunks(std::min(o.batch_size, windows), o.chunks);
    check(!io::has_extension(o.save, ".gguf"), "--save {}: gpt2 writes .gguf, not char_gpt",
          o.save);
    if (!o.load.empty()) load();
    if (!o.save.empty()) prepare_to_save(o.save, {o.text});
    settings["--text"] = fmt::format("of {} characters, with the checksum {:08x}", length(),
                                     io::crc32c(io::read_file(o.text)));
    checkpoint(o.out, o.resume, settings);
    if (!o.out.empty()) const train::RunFolder folder(o.out);
  }

  void run();
  int64_t length() const { return text.train().tokens().size(0) + text.valid().tokens().size(0); }
  std::string characters() const { return fmt::format("{}", fmt::join(text.vocabulary(), "")); }
  void load();
  void train();

  Options o;
  io::Metadata settings;  // for checkpoints
  const Device device;
  const std::string from;  // the checkpoint to continue from, or ""
  const train::CharText text;
  const Tensor prompt;
  Seed seed;
  models::Gpt model;
};

// Checks that the weights were trained on the same characters, if the file lists them.
void Job::load() {
  const io::SafeTensors file = io::load(o.load);
  const auto known = file.metadata.find("characters");
  check(known == file.metadata.end() || known->second == characters(),
        "{}: was trained on other characters than those of {}", o.load, o.text);
  of_file(o.load, [&] { return model.load_state_dict(file.tensors); });
}

void Job::train() {
  const int64_t n = text.train().size();
  train::Loaders data;
  data.train.emplace(text.train(), train::DataLoaderOptions{.batch_size = std::min(o.batch_size, n),
                                                            .shuffle = true,
                                                            .drop_last = true,
                                                            .max_batches = o.every,
                                                            .workers = int(o.workers),
                                                            .seed = o.seed,
                                                            .device = device});
  // Non-overlapping windows count each character once.
  data.valid.emplace(train::Windows(text.valid().tokens(), o.context, o.context, o.text),
                     train::DataLoaderOptions{.batch_size = 64, .device = device});
  train::LearnerOptions options{
      .loss = models::next_token_loss,
      .optimizer = [](auto params) { return optim::AdamW(params, {.betas = {0.9, 0.99}}); },
      .callbacks = {std::make_shared<train::GradientClip>(1.0)},
      .folder = o.out,
      .device = device,
      .chunks = o.chunks,
      .shards = o.shards,
      .settings = settings};
  train::Learner learner(std::move(data), model, options);
  learner.to(low(o.dtype)).fit_one_cycle(o.steps / o.every, o.lr, {.resume = from});
  if (!o.save.empty()) {
    train::on_first_rank(
        [&] { io::save(o.save, model.state_dict(), {{"characters", characters()}}); });
    fmt::print("wrote {}\n", o.save);
  }
  if (learner.is_stopping())
    throw Interrupted(!o.out.empty()    ? o.out + " holds what was learned: --resume continues"
                      : !o.save.empty() ? o.save + " holds what was learned so far"
                                        : "nothing was saved");
}

void Job::run() {
  fmt::print("{} characters, {} different; {} parameters; {}{}\n", length(),
             text.vocabulary().size(), model.num_parameters(), low(o.dtype), on_device(device));
  if (o.steps > 0) train();
  if (o.sample == 0 || !train::is_first_rank()) return;
  const amp::Autocast on({.low = low(o.dtype)});
  model.to(device);
  model.eval();
  const Tensor written = model.generate(unsqueeze(prompt, 0).to(device), o.sample,
                                        {.temperature = o.temperature, .top_k = o.top_k});
  fmt::print("{}\n", text.decode(flatten(written).to(Device::cpu())));
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CommandLine line("char_gpt",
                   "Trains a small GPT on a text, character by character, and samples from it.");
  define(line, o);
  return line.run(argc, argv, [&] {
    check(!o.resume || o.load.empty(), "--resume and --load exclude each other");
    return [job = std::make_shared<Job>(o, line.settings())] { job->run(); };
  });
}
