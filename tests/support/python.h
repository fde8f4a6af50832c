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

}  // namespace mixtape::test
