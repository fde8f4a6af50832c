// libFuzzer: any file either loads as a capsule or throws Error.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "amp/capsule.h"
#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("capsule", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != ssize_t(size)) std::abort();
  try {
    mixtape::amp::Capsule::load(path);
  } catch (const mixtape::Error&) {
  }
  return 0;
}
