// libFuzzer: any bytes either parse as an adapter_config.json of LoRA or throw Error.

#include <cstdint>

#include "core/error.h"
#include "train/lora.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    mixtape::train::parse_lora_config({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const mixtape::Error&) {
  }
  return 0;
}
