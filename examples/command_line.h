#pragma once
// What the programs here share: options that are checked in our words, mistakes as one line on
// stderr, and exit codes.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/error.h"

namespace mixtape::examples {

// A whole number or any, within limits.
template <class T>
CLI::Validator number(T low, T high) {
  const auto wrong = [=](const std::string& text) -> std::string {
    T value{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && low <= value && value <= high) return {};
    return fmt::format("\"{}\" is not a {}number from {} to {}", text,
                       std::is_integral_v<T> ? "whole " : "", low, high);
  };
  return {wrong, ""};
}
inline CLI::Validator count(int64_t low = 1) { return number<int64_t>(low, 1'000'000); }

CLI::Validator one_of(std::vector<std::string> names);
CLI::Validator name_of(const char* what);  // "folder", "file": anything but nothing
CLI::Validator precision();                // for low()

DType low(const std::string& name);           // float32, fp16, bf16, ...: what to train in
Device usable(const std::string& device);     // throws Error if there is none
std::string on_device(const Device& device);  // ", on cuda:0 (NVIDIA H200)"; nothing of the CPU

// To be thrown after Ctrl-C, with what became of the work so far.
struct Interrupted : Error {
  using Error::Error;
};

class CommandLine {
 public:
  CommandLine(std::string name, std::string about) : app_(std::move(about), std::move(name)) {}

  template <class T>
  CLI::Option* add(const char* name, T& value, const char* kind, const char* help) {
    auto* const option = app_.add_option(name, value, help);
    if (option->get_items_expected_max() == 1) option->take_last();  // the later of two wins
    return option->type_name(kind)->capture_default_str();
  }
  CLI::Option* flag(const char* name, bool& value, const char* help) {
    return app_.add_flag(name, value, help);
  }

  // Parses, prepares and works; returns what main() should. What is thrown before there is work is
  // the input's fault and makes 2, what the work throws 1, or 130 if it was interrupted.
  using Work = std::function<void()>;
  int run(int argc, char** argv, const std::function<Work()>& prepare);

 private:
  int complain(const std::string& text, int code) const;

  CLI::App app_;
};

}  // namespace mixtape::examples
