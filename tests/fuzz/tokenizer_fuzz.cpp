// libFuzzer: any bytes, up to a zero as JSON and after it as merges, either parse as a tokenizer,
// which then takes them as a text and gives it back, or throw Error.

#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "train/data/pretokenizer.h"
#include "train/data/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mixtape;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(all.find('\0'), size);
  try {
    const auto tokenizer =
        train::Tokenizer::parse(all.substr(0, cut), all.substr(std::min(cut + 1, size)), "input");
    tokenizer.decode(tokenizer.encode(all));
  } catch (const Error&) {
  }
  const std::string text = train::replace_invalid(all);
  const train::Pretokenizer kinds[] = {{}, {.as_gpt2 = false}};
  for (const train::Pretokenizer& p : kinds)
    for (size_t at = 0; at < text.size();) {
      const size_t end = p.end_of_piece(text, at);
      if (end <= at || end > text.size()) std::abort();
      at = end;
    }
  return 0;
}
