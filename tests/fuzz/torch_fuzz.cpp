// libFuzzer: any bytes either parse as a file of torch.save or throw Error. Bytes that are no zip
// archive are the object, and what follows it, of an old file, so that pickles are reached at once.

#include <cstdint>
#include <string>

#include "core/error.h"
#include "io/torch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace std::string_literals;
  std::string file(reinterpret_cast<const char*>(data), size);
  if (!file.starts_with("PK"))
    file = "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}."s + file;
  try {
    mixtape::io::parse_torch(std::as_bytes(std::span(file)), "input");
  } catch (const mixtape::Error&) {
  }
  return 0;
}
