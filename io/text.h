#pragma once
// Text from anywhere, made safe for the formats we write. Bytes that are not UTF-8 become U+FFFD.

#include <string>
#include <string_view>

namespace mixtape::io {

std::string json_string(std::string_view text);  // with its quotes
std::string xml_text(std::string_view text);     // for element content and attribute values

bool is_utf8(std::string_view text);

// As json_string, but at most about 80 bytes: a name out of a hostile file, for an error message.
std::string quote(std::string_view text);

}  // namespace mixtape::io
