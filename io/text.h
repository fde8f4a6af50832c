#pragma once
// Text for JSON, XML and terminals. Invalid UTF-8 becomes U+FFFD.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mixtape::io {

std::string json_string(std::string_view text);  // with its quotes
std::string xml_text(std::string_view text);     // for element content and attribute values

// A table for a terminal, with columns two spaces apart; columns of numbers are aligned right.
std::string columns(const std::vector<std::vector<std::string>>& lines,
                    const std::vector<bool>& number);

std::string bytes_text(int64_t bytes);  // "512 B", "20.5 KiB", "10.0 MiB"

// A view of the bytes of a file as text.
inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
bool is_utf8(std::string_view text);

// json_string() cut to about 80 bytes, for names from hostile files in error messages.
std::string quote(std::string_view text);

}  // namespace mixtape::io
