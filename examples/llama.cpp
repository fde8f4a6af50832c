// Continues a text with a Llama from a folder of Hugging Face, prints the speed, and saves a model
// for llama.cpp.

#include <chrono>
#include <cstdio>

#include "core/check.h"
#include "examples/command_line.h"
#include "mixtape.h"
#include "train/data/pretokenizer.h"
#include "train/data/tokenizer.h"
#include "train/gguf.h"
#include "train/llama.h"

using namespace mixtape;
using namespace mixtape::examples;

namespace {

struct Options {
  std::string model, prompt, save, dtype = "bfloat16", device = "cpu";
  int64_t sample = 100, top_k = 50;
  double temperature = 0.8, top_p = 1;
  uint64_t seed = 1;
};

void define(CommandLine& line, Options& o) {
  line.add("--model", o.model, "DIR", "config.json, tokenizer.json and model.safetensors")
      .required()
      .check(not_empty());
  line.add("--prompt", o.prompt, "TEXT", "text to continue").check(not_empty());
  line.add("--sample", o.sample, "N", "tokens to continue it by, at most").check(count());
  line.add("--temperature", o.temperature, "X", "0: always the likeliest; 1: by probability")
      .check(number(0., 100.));
  line.add("--top-k", o.top_k, "N", "sample from the k likeliest; 0: from all").check(count(0));
  line.add("--top-p", o.top_p, "X", "and from those that reach this probability together")
      .check(number(1e-3, 1.));
  line.add("--dtype", o.dtype, "NAME", "float32, float16 or bfloat16").check(precision());
  line.device(o.device);
  line.add("--seed", o.seed, "N", "for samples").check(any_seed());
  line.add("--save", o.save, "FILE", ".gguf to write in that dtype").check(not_empty());
}

const Options& checked(const Options& o) {
  check(!o.prompt.empty() || !o.save.empty(), "without --prompt or --save there is nothing to do");
  return o;
}

// The input of a run. The constructor finds all mistakes of the user.
struct Job {
  explicit Job(const Options& given)
      : o(checked(given)),
        device(usable(o.device)),
        low(examples::low(o.dtype)),
        seed(o.seed),
        file(o.model + "/tokenizer.json"),
        tokenizer(train::Tokenizer::load(file)),
        llama(train::load_llama(o.model)),
        text(cat({from_data(llama.begin_of_text).to(i64), tokenizer.encode(o.prompt)})) {
    if (!o.save.empty()) prepare_to_save(o.save, {file});
  }
  void run();
  void save() const;
  void continue_text();

  const Options o;
  const Device device;
  const DType low;
  Seed seed;
  const std::string file;
  const train::Tokenizer tokenizer;
  train::LoadedLlama llama;
  const Tensor text;  // i64 [t]
};

void Job::save() const {
  const auto spelled = [&](const std::vector<int64_t>& tokens) {
    return tokens.empty() ? "" : tokenizer.decode(from_data(tokens.data(), {1}));
  };
  train::save_gguf(o.save, llama.net, llama.config,
                   {.dtype = low,
                    .tokenizer = file,
                    .end_of_text = spelled(llama.end_of_text),
                    .begin_of_text = spelled(llama.begin_of_text)});
  fmt::print("wrote {}\n", o.save);
}

// The weights are kept in the dtype in which they are multiplied.
void Job::continue_text() {
  llama.net.to(low);
  llama.net.to(device);
  llama.net.eval();
  const int64_t known = std::min(tokenizer.size(), llama.config.vocabulary);
  const auto begin = std::chrono::steady_clock::now();
  const Tensor written = llama.net.generate(unsqueeze(text, 0).to(device), o.sample,
                                            {.temperature = o.temperature,
                                             .top_k = std::min(o.top_k, known),
                                             .top_p = o.top_p,
                                             .tokens = known,
                                             .stop = llama.end_of_text});
  const Tensor tokens = flatten(written).to(Device::cpu());  // waits for the device
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const auto first = static_cast<int64_t>(llama.begin_of_text.size());
  fmt::print("{}\n", train::replace_invalid(tokenizer.decode(slice(tokens, 0, first))));
  const int64_t made = tokens.numel() - text.numel();
  fmt::print(stderr, "{} tokens, {:.1f} per second, {}{}\n", made, double(made) / took.count(), low,
             on_device(device));
}

void Job::run() {
  if (!o.save.empty()) save();
  if (!o.prompt.empty()) continue_text();
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CommandLine line("llama", "Continues a text with a Llama, and writes it for llama.cpp.");
  define(line, o);
  return line.run(argc, argv, [&] { return [job = std::make_shared<Job>(o)] { job->run(); }; });
}
