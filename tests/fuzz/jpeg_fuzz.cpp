// libFuzzer: any bytes either parse as JPEG or throw Error.

#include <cstdint>

#include "core/error.h"
#include "io/jpeg.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using mixtape::io::JpegOptions;
  for (const JpegOptions& o : {JpegOptions{}, JpegOptions{.channels = 1, .min_side = 2}}) try {
      mixtape::io::parse_jpeg(std::as_bytes(std::span(data, size)), "input", o);
    } catch (const mixtape::Error&) {
    }
  return 0;
}
