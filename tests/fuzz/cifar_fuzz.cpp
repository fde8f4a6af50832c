// libFuzzer: any bytes either parse as CIFAR records or throw Error.

#include <cstdint>

#include "core/error.h"
#include "train/data/cifar.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  for (const auto parse : {mixtape::train::parse_cifar10, mixtape::train::parse_cifar100}) try {
      parse(file, "input");
    } catch (const mixtape::Error&) {
    }
  return 0;
}
