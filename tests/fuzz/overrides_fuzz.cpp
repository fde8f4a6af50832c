// libFuzzer: any text either parses as overrides or throws Error.

#include <cstdint>

#include "amp/policy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    mixtape::amp::parse_overrides({reinterpret_cast<const char*>(data), size});
  } catch (const mixtape::Error&) {
  }
  return 0;
}
