#pragma once
// What the programs here share: options that are checked in our words, mistakes as one line on
// stderr, and exit codes.

#include <fmt/core.h>

#include <charconv>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/error.h"

namespace CLI {  // its headers take longer to compile than a program does
class App;
class Option;
}  // namespace CLI

namespace mixtape::examples {

// What is wrong with an option's text; nothing if it is right.
using Check = std::function<std::string(const std::string&)>;

// A whole number or any, within limits.
template <class T>
Check number(T low, T high) {
  return [=](const std::string& text) -> std::string {
    T value{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && low <= value && value <= high) return {};
    return fmt::format("\"{}\" is not a {}number from {} to {}", text,
                       std::is_integral_v<T> ? "whole " : "", low, high);
  };
}
inline Check count(int64_t low = 1) { return number<int64_t>(low, 1'000'000); }

Check one_of(std::vector<std::string> names);
Check name_of(const char* what);  // "folder", "file": anything but nothing
Check precision();                // for low()

DType low(const std::string& name);           // float32, fp16, bf16, ...: what to train in
Device usable(const std::string& device);     // throws Error if there is none
std::string on_device(const Device& device);  // ", on cuda:0 (NVIDIA H200)"; nothing of the CPU

// Runs f, which takes what a file holds; an Error from it begins with the file's name.
template <class F>
auto of_file(const std::string& path, const F& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(path + ": " + e.what());
  }
}

// To be thrown after Ctrl-C, with what became of the work so far.
struct Interrupted : Error {
  using Error::Error;
};

// An option of a CommandLine, to say more of.
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

  // value: its default before, what was given afterwards; text, a list of texts, or a number
  // (int64_t, uint64_t, double). A name without dashes is of what follows the options.
  template <class T>
  Option add(const char* name, T& value, const char* kind, const char* help);
  void flag(const char* name, bool& value, const char* help);

  // Parses, prepares and works; returns what main() should. What is thrown before there is work is
  // the input's fault and makes 2, what the work throws 1, or 130 if it was interrupted.
  using Work = std::function<void()>;
  int run(int argc, char** argv, const std::function<Work()>& prepare);

 private:
  int complain(const std::string& text, int code) const;

  std::unique_ptr<CLI::App> app_;
};

}  // namespace mixtape::examples
