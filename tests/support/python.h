#pragma once
// Python programs, for tests that skip if packages are missing.

#include <fmt/format.h>

#include <cstdlib>
#include <string>

namespace mixtape::test {

// Runs a program with `argument` as sys.argv[1]; true if it succeeds. It must not contain '.
inline bool python(const std::string& program, const std::string& argument = "") {
  const char* interpreter = std::getenv("MIXTAPE_PYTHON");
  const std::string command = fmt::format("{} -c '{}' '{}' 2>/dev/null",
                                          interpreter ? interpreter : "python3", program, argument);
  return std::system(command.c_str()) == 0;
}

// Runs the script at this path, with one argument; no | in either.
inline bool python_script(const std::string& path, const std::string& argument) {
  return python(
      "import sys, runpy; sys.argv = sys.argv[1].split(\"|\"); "
      "runpy.run_path(sys.argv[0], run_name=\"__main__\")",
      path + "|" + argument);
}

}  // namespace mixtape::test
