// libFuzzer: any bytes either parse as CSV, to as many inputs as targets, or throw Error.

#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "train/data/tables.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto csv =
        mixtape::train::parse_csv({reinterpret_cast<const char*>(data), size}, "input");
    if (csv.data.x().size(1) != int64_t(csv.columns.size())) std::abort();
  } catch (const mixtape::Error&) {
  }
  return 0;
}
