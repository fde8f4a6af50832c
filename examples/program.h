#pragma once
// What the programs here share: they exit with 2 if the input is at fault, with 1 if anything else
// is, and say why in one line.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>
#include <string>

// Only the first line is for people: those after it say where in the source it was raised.
inline int complain(const CLI::App& app, std::string_view text, int code) {
  fmt::print(stderr, "{}: {}\n", app.get_name(), text.substr(0, text.find('\n')));
  return code;
}

// The exit code, if the command line does not lead further. `also` may throw CLI::ParseError.
template <class Also>
std::optional<int> parse(CLI::App& app, int argc, char** argv, const Also& also) {
  try {
    app.parse(argc, argv);
    also();
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& e) {
    return complain(app, fmt::format("{} (--help lists the options)", e.what()), 2);
  }
  return {};
}

inline const CLI::Validator folder_name(
    [](const std::string& text) {
      return std::string(text.empty() ? "the name of the folder is empty" : "");
    },
    "");
