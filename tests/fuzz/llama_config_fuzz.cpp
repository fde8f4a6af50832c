// libFuzzer: any bytes either parse as a config.json of a Llama or throw Error.

#include <cstdint>

#include "core/error.h"
#include "train/llama.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    mixtape::train::parse_llama_config({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const mixtape::Error&) {
  }
  return 0;
}
