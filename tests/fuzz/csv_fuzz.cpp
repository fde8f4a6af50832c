// libFuzzer: any bytes either throw Error or parse as CSV, with as many inputs as targets, and
// again to the same with .like set to the result.

#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "train/data/tables.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto csv = mixtape::train::parse_csv(text, "input");
    if (csv.data.x().size(1) != int64_t(csv.columns.size())) std::abort();
    const auto again = mixtape::train::parse_csv(text, "input", {.missing = 0.0f, .like = &csv});
    if (again.data.size() != csv.data.size() || again.classes != csv.classes) std::abort();
  } catch (const mixtape::Error&) {
  }
  return 0;
}
