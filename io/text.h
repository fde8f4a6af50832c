#pragma once
// Text for JSON, XML and terminals. Invalid UTF-8 becomes U+FFFD.

#include <string>
#include <string_view>
#include <vector>

namespace mixtape::io {

std::string json_string(std::string_view text);  // with its quotes
std::string xml_text(std::string_view text);     // for element content and attribute values

// A table for a terminal: columns two spaces apart, those of numbers aligned right.
std::string columns(const std::vector<std::vector<std::string>>& lines,
                    const std::vector<bool>& number);

bool is_utf8(std::string_view text);

// json_string of at most about 80 bytes, for names from hostile files in error messages.
std::string quote(std::string_view text);

}  // namespace mixtape::io
