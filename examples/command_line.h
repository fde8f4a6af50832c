#pragma once
// Command lines of the examples: options with checks, mistakes as one line on stderr, exit codes.

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/parse.h"
#include "io/safetensors.h"
#include "train/data/transforms.h"

namespace CLI {  // forward declarations: its headers compile slowly
class App;
class Option;
}  // namespace CLI

namespace mixtape::examples {

// Returns what is wrong with an option's text, or an empty string.
using Check = std::function<std::string(const std::string&)>;

// Accepts numbers within limits, whole ones if T is an integer type.
template <class T>
Check number(T low, T high) {
  return [=](const std::string& text) -> std::string {
    const auto value = internal::parse_number<T>(text);
    if (value && low <= *value && *value <= high) return {};
    return fmt::format("\"{}\" is not a {}number from {} to {}", text,
                       std::is_integral_v<T> ? "whole " : "", low, high);
  };
}
inline Check count(int64_t low = 1) { return number<int64_t>(low, 1'000'000); }
inline Check rate() { return number(1e-12, 1e6); }  // a learning rate
inline Check any_seed() { return number<uint64_t>(0, UINT64_MAX); }

Check one_of(std::vector<std::string> names);
Check not_empty();
Check precision();  // the names that low() takes

DType low(const std::string& name);  // dtype of float32, fp16, bf16, ...
// Throws Error if it does not exist, or has no values. "cuda" is a GPU of its own for each rank of
// a machine.
Device usable(const std::string& device);
Device planned_device(const std::string& device);  // its stand-in without memory
std::string on_device(const Device& device);       // ", on cuda:0 (NVIDIA H200)"; empty for the CPU
// Images of a run, for its settings.
std::string described(int64_t train, int64_t valid, const train::PixelStats& stats);
// Throws Error if a batch has no example for each of the --chunks.
void check_chunks(int64_t batch, int64_t chunks);
// The checkpoint in the folder of --out from which --resume continues, or "" without that option.
// Throws Error if it is not there, or has other settings; and, without --resume, where the folder
// holds another run, which would be lost.
std::string checkpoint(const std::string& folder, bool resume, const io::Metadata& settings);

// Runs f; prefixes its Error with the file's name.
template <class F>
auto of_file(const std::string& path, const F& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(path + ": " + e.what());
  }
}

// Throws Error if the file of --save is one of those that the program reads, or cannot be written.
void prepare_to_save(const std::string& file, const std::vector<std::string>& read);

// Thrown after Ctrl-C or SIGTERM; says what was saved.
struct Interrupted : Error {
  using Error::Error;
};

// Refines an option of a CommandLine.
class Option {
 public:
  Option(CLI::Option* option) : option_(option) {}
  Option check(Check wrong) const;
  Option required() const;
  Option excludes(Option other) const;
  Option delimiter(char c) const;  // between the items of a list

 private:
  CLI::Option* option_;
};

class CommandLine {
 public:
  CommandLine(std::string name, std::string about);
  ~CommandLine();

  // `value` holds the default, and the given value after parsing: a string, a list of strings, or a
  // number (int64_t, uint64_t, double). A name without dashes is a positional argument.
  template <class T>
  Option add(const char* name, T& value, const char* kind, const char* help);
  void flag(const char* name, bool& value, const char* help);
  void device(std::string& name) { add("--device", name, "NAME", "cpu, cuda, cuda:1, ..."); }
  bool given(const char* name) const;  // an option that was given, after parsing
  // The options that determine the numbers of a run, for its checkpoints, after parsing. (Those of
  // its files do not: a program adds what its data are.)
  io::Metadata settings() const;
  // The program trains on all ranks of a dist::World, which run() opens. Adds the option --chunks.
  // Only the first rank's stdout is seen.
  void share(int64_t& chunks);

  // Parses, prepares and works; returns main()'s exit code: 2 for an exception from parsing or
  // preparing, a mistake of the user; 1 for one from the work, or 128 and the signal for
  // Interrupted. With several ranks, messages name the rank; a message that all have comes once.
  using Work = std::function<void()>;
  int run(int argc, char** argv, const std::function<Work()>& prepare);

 private:
  struct Value {
    std::string name, kind;
    std::function<std::string()> text;
  };
  int complain(const std::string& text, int code) const;
  std::vector<std::pair<std::string, std::string>> shared_options() const;
  int work(const std::function<Work()>& prepare, int& code) const;

  std::unique_ptr<CLI::App> app_;
  std::vector<Value> values_;
  const int64_t* chunks_ = nullptr;  // if it shares
};

}  // namespace mixtape::examples
