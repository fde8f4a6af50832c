// libFuzzer: any text either parses as lines of JSON, which read back as they are written, or
// throws Error.

#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "io/jsonl.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const auto& fields : mixtape::io::parse_json_lines(text, "input"))
      if (mixtape::io::parse_json_lines(mixtape::io::json_object(fields) + "\n", "again").size() !=
          1)
        std::abort();
  } catch (const mixtape::Error&) {
  }
  return 0;
}
