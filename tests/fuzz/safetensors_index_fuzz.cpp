// libFuzzer: any text either parses as an index of shards or throws Error.

#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const auto& [tensor, file] : mixtape::io::parse_safetensors_index(text, "input"))
      if (file.find('/') != file.npos) std::abort();  // outside its folder
  } catch (const mixtape::Error&) {
  }
  return 0;
}
