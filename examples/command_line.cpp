#include "examples/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "core/check.h"
#include "core/format.h"
#include "core/runtime.h"
#include "dist/world.h"
#include "io/file.h"
#include "kernels/common/instruction_set.h"
#include "kernels/cpu/loops/parallel.h"
#include "train/interrupt.h"
#include "train/learner.h"
#include "train/ranks.h"

namespace mixtape::examples {
namespace {

constexpr const char* unwritten = "cannot write to the standard output";

const dist::World* ranks() {  // null if there is one
  const dist::World* const world = dist::World::current();
  return world && world->size() > 1 ? world : nullptr;
}

bool trains(DType t) { return t == f32 || t == f16 || t == bf16; }

}  // namespace

void prepare_to_save(const std::string& file, const std::vector<std::string>& read) {
  for (const std::string& other : read) {
    std::error_code absent;
    check(!std::filesystem::equivalent(file, other, absent),
          "--save {} would overwrite {}, which is read", file, other);
  }
  if (train::is_first_rank()) io::AtomicFile probe(file);
}

Check one_of(std::vector<std::string> names) {
  return [names = std::move(names)](const std::string& text) -> std::string {
    if (std::ranges::count(names, text)) return {};
    const auto last = names.end() - 1;
    return fmt::format("\"{}\" is not {} or {}", text, fmt::join(names.begin(), last, ", "), *last);
  };
}

Check not_empty() {
  return [](const std::string& text) {
    return text.empty() ? std::string("must not be empty") : std::string();
  };
}

Check precision() {
  return [](const std::string& text) -> std::string {
    try {
      if (trains(parse_dtype(text))) return {};
    } catch (const Error&) {
    }
    return fmt::format("\"{}\" is not float32, float16 or bfloat16", text);
  };
}

DType low(const std::string& name) { return parse_dtype(name); }

Device usable(const std::string& name) {
  const Device device =
      name == "cuda" && ranks() ? Device::cuda(ranks()->local_rank()) : Device::parse(name);
  device.require();
  check(!device.is_meta(), "--device {}: tensors there have no values", device);
  kernels::cpu::num_threads();  // throws if MIXTAPE_NUM_THREADS is invalid
  kernels::instruction_set();   // and MIXTAPE_ISA
  return device;
}

std::string described(int64_t train, int64_t valid, const train::PixelStats& stats) {
  return fmt::format(
      "of {} training and {} validation images with mean {::.5f} and deviation {::.5f}", train,
      valid, stats.mean, stats.std);
}

void check_chunks(int64_t batch, int64_t chunks) {
  const int64_t parts = dist::World::current()->part(chunks).chunks;
  check(batch >= parts, "batches of {} cannot be cut into {} chunks", batch, parts);
}

std::string checkpoint(const std::string& folder, bool resume, const io::Metadata& settings) {
  const std::string path = folder + "/last.ckpt", log = folder + "/metrics.jsonl";
  check(!resume || !folder.empty(), "--resume needs --out, the folder of the run to continue");
  for (const std::string& file : {path, log}) {
    std::error_code absent;
    const bool is_empty = std::filesystem::file_size(file, absent) == 0;
    check(resume || folder.empty() || is_empty || absent,
          "{} is of an earlier run: --resume continues it, another --out keeps it", file);
  }
  if (!resume) return {};
  check(std::filesystem::exists(path), "--resume: there is no {}", path);
  train::check_settings(path, settings);
  return path;
}

Device planned_device(const std::string& name) {
  const Device device = Device::parse(name);
  return device.is_meta() ? device : Device::meta(device.type);
}

std::string on_device(const Device& device) {
  if (device.is_host()) return {};
  return fmt::format(", on {} ({})", device,
                     runtime::of(device.type).properties(device.index).name);
}

Option Option::check(Check wrong) const {
  const bool is_one = option_->get_items_expected_max() == 1;
  if (is_one && !wrong(option_->get_default_str()).empty()) option_->default_str("");  // none
  option_->check(CLI::Validator(std::move(wrong), ""));
  return *this;
}
Option Option::required() const {
  option_->required();
  return *this;
}
Option Option::excludes(Option other) const {
  option_->excludes(other.option_);
  return *this;
}
Option Option::delimiter(char c) const {
  option_->delimiter(c);
  return *this;
}

CommandLine::CommandLine(std::string name, std::string about)
    : app_(std::make_unique<CLI::App>(std::move(about), std::move(name))) {}
CommandLine::~CommandLine() = default;

template <class T>
Option CommandLine::add(const char* name, T& value, const char* kind, const char* help) {
  values_.push_back({name, kind, [&value] { return fmt::format("{}", value); }});
  auto* const option = app_->add_option(name, value, help);
  if (option->get_items_expected_max() == 1) option->take_last();
  option->type_name(kind)->capture_default_str();
  if (option->get_default_str() == "[]") option->default_str("");  // no default
  return option;
}
template Option CommandLine::add(const char*, std::string&, const char*, const char*);
template Option CommandLine::add(const char*, std::vector<std::string>&, const char*, const char*);
template Option CommandLine::add(const char*, int64_t&, const char*, const char*);
template Option CommandLine::add(const char*, uint64_t&, const char*, const char*);
template Option CommandLine::add(const char*, double&, const char*, const char*);

void CommandLine::flag(const char* name, bool& value, const char* help) {
  values_.push_back({name, "", [&value] { return fmt::format("{}", value); }});
  app_->add_flag(name, value, help);
}

void CommandLine::share(int64_t& chunks) {
  chunks_ = &chunks;
  add("--chunks", chunks, "N",
      "parts of each batch, for the same numbers on any\nnumber of processes; 0: one for each")
      .check(count(0));
}

bool CommandLine::given(const char* name) const { return app_->count(name) > 0; }

int CommandLine::run(int argc, char** argv, const std::function<Work()>& prepare) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_->help().c_str(), stdout);
    return std::fflush(stdout) == 0 ? 0 : complain(unwritten, 1);
  } catch (const CLI::ParseError& e) {
    return complain(fmt::format("{} (--help lists the options)", e.what()), 2);
  }
  int code = 2;
  std::string rank;
  try {
    std::optional<dist::World> world;
    if (chunks_) world.emplace(dist::WorldOptions{.device = Device::cpu()});
    if (ranks()) rank = fmt::format("rank {} of {}: ", world->rank(), world->size());
    return work(prepare, code);
  } catch (const std::exception& e) {
    return complain(rank + e.what(), code);
  }
}

// The options that decide what is computed; where files lie, and on which device, a rank may
// decide.
std::vector<std::pair<std::string, std::string>> CommandLine::shared_options() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [name, kind, text] : values_)
    if (!kind.ends_with("FILE") && !kind.ends_with("DIR") && name != "--device" &&
        name != "--workers")
      all.emplace_back(name, text());
  return all;
}

// Leaves out what changes no number of the training, but how it runs, and what follows it.
io::Metadata CommandLine::settings() const {
  io::Metadata all;
  for (const auto& [name, text] : shared_options()) all[name] = text;
  for (const char* other :
       {"--resume", "--shards", "--prompt", "--sample", "--temperature", "--top-k"})
    all.erase(other);
  return all;
}

int CommandLine::work(const std::function<Work()>& prepare, int& code) const {
  const bool is_first = !ranks() || ranks()->is_first();
  if (!is_first) check(std::freopen("/dev/null", "w", stdout), "cannot open /dev/null");
  Work work;
  std::string wrong;
  try {
    if (ranks()) {
      std::string all;
      for (const auto& [name, text] : shared_options()) all += fmt::format("{} {}; ", name, text);
      ranks()->check_alike(all, "has other options");
    }
    if (chunks_) dist::World::current()->part(*chunks_);  // throws if ranks cannot share them
    work = prepare();
  } catch (const std::exception& e) {
    if (!ranks()) throw;
    wrong = e.what();
  }
  const std::vector<std::string> all = ranks() ? ranks()->gather(wrong) : std::vector{wrong};
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    const bool alike = std::ranges::count(all, all[r]) == std::ssize(all);
    return is_first ? complain(alike ? all[r] : fmt::format("rank {}: {}", r, all[r]), 2) : 2;
  }
  code = 1;
  try {
    work();
    check(std::fflush(stdout) == 0 && !std::ferror(stdout), "{}", unwritten);
  } catch (const Interrupted& e) {
    const int signal = 128 + train::Interrupt::last_signal();
    return is_first ? complain(fmt::format("interrupted: {}", e.what()), signal) : signal;
  }
  return 0;
}

// Prints the first line only; the others are source locations. Uses fputs, since fmt::print throws
// if stderr is not writable, and the exit code would be lost.
int CommandLine::complain(const std::string& text, int code) const {
  const std::string line = text.substr(0, text.find('\n'));
  std::fputs(fmt::format("{}: {}\n", app_->get_name(), line).c_str(), stderr);
  return code;
}

}  // namespace mixtape::examples
