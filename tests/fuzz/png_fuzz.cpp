// libFuzzer: any bytes either parse as PNG or throw Error.

#include <cstdint>

#include "core/error.h"
#include "io/png.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const int channels : {0, 3}) try {
      mixtape::io::parse_png(std::as_bytes(std::span(data, size)), "input", channels);
    } catch (const mixtape::Error&) {
    }
  return 0;
}
