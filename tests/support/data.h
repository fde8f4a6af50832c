#pragma once
// Where the files of tests/data are: in the source tree, or where MIXTAPE_TEST_DATA says, for test
// programs that run on another machine.

#include <cstdlib>
#include <string>

namespace mixtape::test {

inline std::string data_file(const std::string& name) {
  const char* const elsewhere = std::getenv("MIXTAPE_TEST_DATA");
  return std::string(elsewhere ? elsewhere : MIXTAPE_TEST_DATA) + "/" + name;
}

}  // namespace mixtape::test
