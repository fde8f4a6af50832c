// Trains GPT-2 on files of tokens, or on random ones, and prints tokens per second, and the
// share of the device's peak (model FLOP utilisation, Chowdhery et al. 2022, appendix B). With a
// tokenizer it reads texts, and continues one. With --plan it says how much memory that would take.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "amp/plan.h"
#include "core/check.h"
#include "core/runtime.h"
#include "dist/data_parallel.h"
#include "dist/shards.h"
#include "examples/command_line.h"
#include "io/file.h"
#include "io/text.h"
#include "mixtape.h"
#include "train/data/loader.h"
#include "train/data/pretokenizer.h"
#include "train/data/text.h"
#include "train/data/tokenizer.h"
#include "train/data/tokens.h"
#include "train/gguf.h"
#include "train/interrupt.h"
#include "train/ranks.h"

using namespace mixtape;
using namespace mixtape::examples;

namespace {

struct Options {
  std::string model = "gpt2", data, valid, load, save, dtype = "bfloat16", state = "f32",
              device = "cpu";
  std::string tokenizer, prompt;
  int64_t layers = 0, heads = 0, width = 0, vocabulary = 0, context = 0;  // 0: the model's
  int64_t steps = 20, every = 1, batch_size = 8, accumulate = 1, warmup = 0, workers = 1,
          chunks = 0, sample = 100, top_k = 50;
  double lr = 6e-4, weight_decay = 0.1, clip = 1, dropout = 0, peak = 0, temperature = 0.8,
         plan = 0;
  bool checkpoint = false, shards = false;
  uint64_t seed = 1;
};

void define(CommandLine& line, Options& o) {
  line.add("--model", o.model, "NAME", "gpt2, gpt2-medium, gpt2-large or gpt2-xl")
      .check(one_of({"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}));
  line.add("--layers", o.layers, "N", "another number of blocks").check(count());
  line.add("--heads", o.heads, "N", "another number of heads").check(count());
  line.add("--width", o.width, "N", "another width").check(count());
  line.add("--vocabulary", o.vocabulary, "N", "another number of tokens").check(count());
  line.add("--context", o.context, "N", "tokens of a text, at most 1024").check(count());
  line.add("--dropout", o.dropout, "X", "fraction dropped in training").check(number(0., 0.9));
  line.flag("--checkpoint", o.checkpoint, "compute blocks again in backward, to save memory");
  line.add("--data", o.data, "FILE", "tokens of llm.c or nanoGPT, or a .txt; default: random ones")
      .check(not_empty());
  line.add("--valid", o.valid, "FILE", "tokens to validate with, at the end").check(not_empty());
  line.add("--steps", o.steps, "N", "optimizer steps; 0: only --load, then --valid or --prompt")
      .check(count(0));
  line.add("--every", o.every, "N", "steps between lines").check(count());
  line.add("--batch-size", o.batch_size, "N", "texts at once").check(count());
  line.add("--accumulate", o.accumulate, "N", "batches per step").check(count());
  line.add("--lr", o.lr, "X", "highest learning rate; a cosine lowers it to a tenth").check(rate());
  line.add("--warmup", o.warmup, "N", "steps until it is reached").check(count(0));
  line.add("--weight-decay", o.weight_decay, "X", "of matrices").check(number(0., 10.));
  line.add("--clip", o.clip, "X", "norm that gradients are limited to").check(rate());
  line.add("--dtype", o.dtype, "NAME", "float32, float16 or bfloat16").check(precision());
  line.add("--state", o.state, "NAME", "moments of AdamW: f32, bf16, i8 or f8")
      .check(one_of({"f32", "bf16", "i8", "f8"}));
  line.device(o.device);
  line.add("--workers", o.workers, "N", "threads that prepare batches").check(number(0L, 256L));
  line.add("--plan", o.plan, "GIB",
           "only say what a step takes on such a --device,\nand the largest batch in this much "
           "memory")
      .check(number(1e-3, 1e6));
  line.add("--peak", o.peak, "X", "TFLOP/s of the device in that dtype, if it is not known")
      .check(number(1e-3, 1e6));
  line.add("--load", o.load, "FILE", "initial weights, also GPT-2's").check(not_empty());
  line.add("--save", o.save, "FILE", "safetensors, .pt or .gguf to write").check(not_empty());
  line.add("--tokenizer", o.tokenizer, "FILE", "tokenizer.json, or GPT-2's vocab.json")
      .check(not_empty());
  line.add("--prompt", o.prompt, "TEXT", "text to continue at the end").check(not_empty());
  line.add("--sample", o.sample, "N", "tokens to continue it by").check(count());
  line.add("--temperature", o.temperature, "X", "0: always the likeliest; 1: by probability")
      .check(number(0., 100.));
  line.add("--top-k", o.top_k, "N", "sample from the k likeliest; 0: from all").check(count(0));
  line.add("--seed", o.seed, "N", "for weights, order, samples, random tokens").check(any_seed());
  line.share(o.chunks);
  line.flag("--shards", o.shards, "divide the optimizer's state among the processes");
}

models::GptConfig model_options(const Options& o) {
  models::GptConfig c = o.model == "gpt2"          ? models::gpt2
                        : o.model == "gpt2-medium" ? models::gpt2_medium
                        : o.model == "gpt2-large"  ? models::gpt2_large
                                                   : models::gpt2_xl;
  const auto replace = [](int64_t& size, int64_t by) { size = by > 0 ? by : size; };
  replace(c.layers, o.layers);
  replace(c.heads, o.heads);
  replace(c.width, o.width);
  replace(c.vocabulary, o.vocabulary);
  c.dropout = o.dropout;
  c.checkpoint = o.checkpoint;
  return c;
}

// Dense TFLOP/s of the tensor cores, by the vendor's data sheets; 0 if they are not known.
double known_peak(const Device& device, DType low) {
  if (device.is_host()) return 0;
  const std::string& name = runtime::of(device.type).properties(device.index).name;
  const auto is = [&](const char* part) { return name.find(part) != name.npos; };
  const double half = is("H100") || is("H200") ? 989 : is("A100") ? 312 : is("B200") ? 2250 : 0;
  return is_half(low) ? half : half / 2;  // f32 as TF32
}

// Batches to accumulate are one in as many more chunks, where there are chunks.
int64_t chunks_of(const Options& o) {
  const int64_t ranks = dist::World::current()->size();
  return o.chunks > 0 ? o.chunks : ranks > 1 ? ranks * o.accumulate : 1;
}

// The input of a run. The constructor finds all mistakes of the user.
struct Job {
  explicit Job(const Options& given)
      : o(given),
        device(usable(o.device)),
        low(examples::low(o.dtype)),
        config(model_options(o)),
        tokenizer(o.tokenizer.empty() ? std::optional<train::Tokenizer>()
                                      : train::Tokenizer::load(o.tokenizer)),
        context(o.context > 0 ? o.context : config.context),
        seed(o.seed),
        model(config),
        prompt(prompt_tokens()),
        text(windows(o.data)),
        valid(o.valid.empty() ? train::Windows() : windows(o.valid)) {
    check(o.steps > 0 || !o.prompt.empty() || !o.valid.empty(),
          "--steps 0 without --prompt or --valid does nothing");
    check(o.steps == 0 || o.warmup < o.steps, "--warmup {} leaves none of {} steps", o.warmup,
          o.steps);
    check_chunks(o.batch_size * o.accumulate, chunks_of(o));
    check(context <= config.context, "--context must be at most {}, got {}", config.context,
          context);
    if (!o.load.empty()) {
      const StateDict weights = io::load(o.load).tensors;
      of_file(o.load, [&] { return model.load_state_dict(models::gpt2_weights(weights)); });
    }
    if (!o.save.empty()) prepare_to_save(o.save, {o.data, o.valid});
  }

  Tensor prompt_tokens() const;
  Tensor tokens_of(const std::string& path) const;
  train::Windows windows(const std::string& path) const;
  void run();
  void save() const;
  void continue_prompt();
  bool learn();  // false if a signal ended it, on all ranks
  double loss_of_valid();

  const Options o;
  const Device device;
  const DType low;
  const models::GptConfig config;
  const std::optional<train::Tokenizer> tokenizer;
  const int64_t context;
  Seed seed;
  models::Gpt model;
  const Tensor prompt;  // i64 [1, t], or none
  const train::Windows text, valid;
};

Tensor Job::prompt_tokens() const {
  if (o.prompt.empty()) return {};
  check(tokenizer.has_value(), "--prompt needs --tokenizer");
  check(tokenizer->size() <= config.vocabulary, "{} has {} tokens, more than the model's {}",
        o.tokenizer, tokenizer->size(), config.vocabulary);
  return unsqueeze(tokenizer->encode(o.prompt), 0);
}

// A text's tokens, or those of a file of tokens; random ones if there is no file.
Tensor Job::tokens_of(const std::string& path) const {
  if (path.empty())
    return cast(uniform({16 * o.batch_size * context + 1}, 0, double(config.vocabulary)), i64);
  if (!io::has_extension(path, ".txt")) return train::read_tokens(path);
  check(tokenizer.has_value(), "{}: a text needs --tokenizer", path);
  return tokenizer->encode(io::as_text(io::read_file(path)));
}

train::Windows Job::windows(const std::string& path) const {
  const Tensor tokens = tokens_of(path);
  const int64_t most = tokens.numel() > 0 ? max(tokens).item<int64_t>() : 0;
  check(most < config.vocabulary, "{}: token {} is not among {}", path, most, config.vocabulary);
  train::Windows all(tokens, context, context, path.empty() ? "random tokens" : path);
  check(all.size() >= o.batch_size, "{}: {} tokens are less than a batch of {} x {}", all.name(),
        tokens.size(0), o.batch_size, context);
  return all;
}

// The floating-point operations of a token, forward and backward: six for each parameter that
// multiplies, and those of attention with half of the positions.
double flops_per_token(const Job& job) {
  const models::GptConfig& c = job.config;
  const int64_t positions = c.context * c.width;  // wpe, which is only added
  return 6 * double(job.model.num_parameters() - positions) +
         6 * double(c.layers * c.width * job.context);
}

// Prints a line with the time of the steps since the last line.
class Meter {
 public:
  explicit Meter(const Job& job)
      : job_(job),
        flops_(flops_per_token(job)),
        peak_(job.o.peak > 0 ? job.o.peak : known_peak(job.device, job.low)) {}

  // (Reading the loss waits for the device, so that the time is that of whole steps.)
  void print(int64_t step, const Tensor& loss, const Tensor& norm, double lr) {
    const double value = loss.item(), of_gradients = norm.item();
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    const int64_t batches = (step - last_step_) * job_.o.accumulate;
    const double speed = double(batches * job_.o.batch_size * job_.context) / seconds;
    fmt::print("step {}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} ms  {:.1f}k tokens/s", step,
               job_.o.steps, value, of_gradients, lr, 1e3 * seconds / double(step - last_step_),
               speed / 1e3);
    if (peak_ > 0) fmt::print("  {:.1f} % of {} TFLOP/s", speed * flops_ / peak_ / 1e10, peak_);
    fmt::print("\n");
    std::fflush(stdout);
    last_ = Clock::now();
    last_step_ = step;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Job& job_;
  const double flops_, peak_;
  Clock::time_point last_ = Clock::now();
  int64_t last_step_ = 0;
};

// Matrices decay; biases and the weights of norms do not.
optim::AdamW optimizer(const models::Gpt& model, const Options& o) {
  std::vector<Tensor> matrices, vectors;
  for (const Tensor& p : model.parameters()) (p.rank() >= 2 ? matrices : vectors).push_back(p);
  optim::CommonOptions common;
  if (is_half(low(o.dtype))) common.shadow = low(o.dtype);
  common.state = optim::StateFormat::parse(o.state);
  optim::AdamWOptions options{.lr = o.lr, .betas = {0.9, 0.95}, .weight_decay = o.weight_decay};
  optim::AdamW opt(matrices, options, common);
  options.weight_decay = 0;
  opt.add_group(vectors, options, common);
  return opt;
}

bool Job::learn() {
  optim::AdamW opt = optimizer(model, o);
  const int64_t warmup = std::max<int64_t>(o.warmup, 1),
                rest = std::max<int64_t>(o.steps - warmup, 1);
  optim::Sequential schedule(
      opt, {.parts = {optim::LinearWarmupOptions{.start_factor = 1.0 / double(o.warmup + 1),
                                                 .total_steps = warmup},
                      optim::CosineOptions{.total_steps = rest, .min_lr = o.lr / 10}},
            .milestones = {warmup}});
  amp::GradScaler scaler(low);
  train::DataLoader loader(text, {.batch_size = o.batch_size,
                                  .shuffle = true,
                                  .drop_last = true,
                                  .workers = int(o.workers),
                                  .seed = o.seed,
                                  .device = device});
  std::optional<dist::Shards> shards;
  if (o.shards) shards.emplace(opt);
  dist::DataParallel parallel(model, {.chunks = chunks_of(o)});
  const int64_t chunks = parallel.part().chunks, at_once = chunks > 1 ? o.accumulate : 1;
  Meter meter(*this);
  int64_t step = 0, batch = 0;
  bool interrupted = false;
  Tensor total;
  while (step < o.steps && !interrupted)
    for (const train::Batch& texts : loader.share(parallel.part(), at_once)) {
      if (texts.of_step < chunks) continue;
      for (const auto& [x, y, weight] : parallel.chunks(texts)) {
        Tensor loss;
        {
          const amp::Autocast on({.low = low});
          loss = model(x, y) * weight / double(o.accumulate / at_once);
        }
        // (One chunk does not wait for its loss.)
        parallel.send_along(
            {double(train::Interrupt::requested()), chunks > 1 ? loss.item() / double(chunks) : 0});
        scaler.scale(loss).backward();
        total = total ? total + loss.detach() : loss.detach();
      }
      interrupted = interrupted || parallel.sums()[0] > 0;
      if ((batch += at_once) % o.accumulate != 0) continue;
      if (chunks > 1) total = full({}, parallel.sums()[1], f64);
      scaler.unscale(opt);
      const Tensor norm = optim::clip_grad_norm(model.parameters(), o.clip);
      const double lr = opt.lr();
      schedule.step(scaler.step(opt));
      scaler.update();
      opt.zero_grad();
      if (++step % o.every == 0 || step == o.steps) meter.print(step, total, norm, lr);
      total = {};
      if (step == o.steps || interrupted) break;
    }
  return !interrupted;
}

// All ranks compute the whole of it.
double Job::loss_of_valid() {
  const NoGrad off;
  model.eval();
  Tensor sum = zeros({}, f64, device);
  train::DataLoader loader(valid,
                           {.batch_size = o.batch_size, .drop_last = true, .device = device});
  for (const auto& [x, y] : loader) {
    const amp::Autocast on({.low = low});
    sum += model(x, y);
  }
  return sum.item() / double(loader.batches());
}

void Job::save() const {
  if (io::has_extension(o.save, ".gguf"))
    train::save_gguf(o.save, model, config, {.dtype = low, .tokenizer = o.tokenizer});
  else
    io::save(o.save, model.state_dict());
}

void Job::continue_prompt() {
  const amp::Autocast on({.low = low});
  model.eval();
  const int64_t known = tokenizer->size();  // of the model's tokens, which may be padded
  const Tensor written = model.generate(
      prompt.to(device), o.sample,
      {.temperature = o.temperature, .top_k = std::min(o.top_k, known), .tokens = known});
  const std::string text = tokenizer->decode(flatten(written).to(Device::cpu()));
  fmt::print("{}\n", train::replace_invalid(text));  // the last token may end within a character
}

void Job::run() {
  const train::Interrupt interrupt;
  if (o.steps > 0)
    fmt::print("{} parameters, {} windows of {} tokens from {}, {}{}\n", model.num_parameters(),
               text.size(), context, text.name(), low, on_device(device));
  model.to(device);
  const bool whole = o.steps == 0 || learn();
  if (!o.save.empty()) {
    train::on_first_rank([&] { save(); });
    fmt::print("wrote {}\n", o.save);
  }
  if (!whole)
    throw Interrupted(o.save.empty() ? "nothing was saved"
                                     : o.save + " holds what was learned so far");
  if (valid.size() > 0) fmt::print("loss of {}: {:.4f}\n", o.valid, loss_of_valid());
  if (prompt && train::is_first_rank()) continue_prompt();
}

// The steps of Job::learn() on one rank, for random tokens.
amp::PlannedTraining planned(const Options& o, int64_t batch_size) {
  struct State {
    models::Gpt model;
    optim::AdamW opt;
    amp::GradScaler scaler;
  };
  models::Gpt model(model_options(o));
  optim::AdamW opt = optimizer(model, o);
  const auto all = std::make_shared<State>(
      State{std::move(model), std::move(opt), amp::GradScaler(low(o.dtype))});
  return {{{all, &all->opt}}, [all, o, batch_size] {
            const models::GptConfig config = model_options(o);
            for (int64_t i = 0; i < o.accumulate; ++i) {
              const auto tokens = [&] {
                return randint(0, config.vocabulary,
                               {batch_size, o.context > 0 ? o.context : config.context});
              };
              const Tensor x = tokens(), y = tokens();
              Tensor loss;
              {
                const amp::Autocast on({.low = low(o.dtype)});
                loss = all->model(x, y) / double(o.accumulate);
              }
              all->scaler.scale(loss).backward();
            }
            all->scaler.unscale(all->opt);
            optim::clip_grad_norm(all->model.parameters(), o.clip);
            all->scaler.step(all->opt);
            all->scaler.update();
            all->opt.zero_grad();
          }};
}

std::string plan(const Options& given) {
  std::vector<amp::PlannedMode> modes;
  for (const char* dtype : {"float32", "float16", "bfloat16"})
    for (const bool checkpoint : {false, true})
      for (const char* state : {"f32", "i8"}) {
        Options o = given;
        o.dtype = dtype;
        o.checkpoint = checkpoint;
        o.state = state;
        modes.push_back({fmt::format("{}{}{}", dtype, checkpoint ? ", checkpoint" : "",
                                     o.state == "f32" ? "" : ", i8 state"),
                         [o](int64_t batch_size) { return planned(o, batch_size); }});
      }
  const Device device = planned_device(given.device);
  return fmt::format(
      "{}, batches of {} texts, on {}\n{}", given.model, given.batch_size, device,
      amp::plan_text(modes, given.batch_size, int64_t(given.plan * (1 << 30)), {.device = device}));
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CommandLine line("gpt2", "Trains GPT-2 on files of tokens, says how fast, and continues texts.");
  define(line, o);
  return line.run(argc, argv, [&]() -> CommandLine::Work {
    check(o.plan == 0 || dist::World::current()->size() == 1, "--plan is for one process");
    if (o.plan > 0) return [text = plan(o)] { fmt::print("{}", text); };
    return [job = std::make_shared<Job>(o)] { job->run(); };
  });
}
