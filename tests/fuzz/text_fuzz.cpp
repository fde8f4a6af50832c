// libFuzzer: any bytes either are a text that its tokens decode to, or throw Error.

#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "train/data/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const mixtape::train::CharText text(bytes, {.context = 1, .valid_fraction = 0.4});
    if (text.decode(text.train().tokens()) + text.decode(text.valid().tokens()) != bytes)
      std::abort();
  } catch (const mixtape::Error&) {
  }
  return 0;
}
