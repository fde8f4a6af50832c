// libFuzzer: any bytes either parse as tokens or throw Error.

#include <cstdint>

#include "core/error.h"
#include "train/data/tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    mixtape::train::parse_tokens(std::as_bytes(std::span(data, size)), "input");
  } catch (const mixtape::Error&) {
  }
  return 0;
}
