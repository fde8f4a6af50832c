// libFuzzer: any bytes either parse as .npy or throw Error.

#include <cstdint>

#include "core/error.h"
#include "io/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    mixtape::io::parse_npy(std::as_bytes(std::span(data, size)), "input");
  } catch (const mixtape::Error&) {
  }
  return 0;
}
