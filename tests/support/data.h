#pragma once
// Paths of files in tests/data: in the source tree, or in MIXTAPE_TEST_DATA for test programs that
// run on another machine.

#include <cstdlib>
#include <string>

namespace mixtape::test {

inline std::string data_file(const std::string& name) {
  const char* const elsewhere = std::getenv("MIXTAPE_TEST_DATA");
  return std::string(elsewhere ? elsewhere : MIXTAPE_TEST_DATA) + "/" + name;
}

}  // namespace mixtape::test
