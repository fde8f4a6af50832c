// Escapes text: one decoder finds valid UTF-8 sequences, and each format escapes the rest in its
// way.

#include "io/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>

namespace mixtape::io {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

bool is_continuation(std::string_view s, size_t i) {
  return i < s.size() && (static_cast<uint8_t>(s[i]) & 0xC0) == 0x80;
}

// Length of the well-formed sequence at the start of `s` (Unicode table 3-7), or 0.
size_t sequence(std::string_view s) {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<uint8_t>(s[i]) : 0; };
  const uint8_t a = byte(0), b = byte(1);
  if (a < 0x80) return 1;
  if (a < 0xC2 || a > 0xF4 || !is_continuation(s, 1)) return 0;
  if (a < 0xE0) return 2;
  if ((a == 0xE0 && b < 0xA0) || (a == 0xED && b > 0x9F)) return 0;  // overlong, surrogate
  if (!is_continuation(s, 2)) return 0;
  if (a < 0xF0) return 3;
  if ((a == 0xF0 && b < 0x90) || (a == 0xF4 && b > 0x8F)) return 0;  // overlong, above U+10FFFF
  return is_continuation(s, 3) ? 4 : 0;
}

// Replaces special characters as listed, and other control codes by control(code).
std::string escape(std::string_view text,
                   std::initializer_list<std::pair<char, std::string_view>> special,
                   std::string (*control)(int code)) {
  std::string out;
  out.reserve(text.size() + 2);
  while (!text.empty()) {
    const size_t n = sequence(text);
    const char c = text[0];
    const auto* const found = std::ranges::find(special, c, [](const auto& s) { return s.first; });
    if (found != special.end())
      out += found->second;
    else if (n == 1 && (c < 0x20 || c == 0x7F))
      out += control(c);
    else
      out += n == 0 ? replacement : text.substr(0, n);
    text.remove_prefix(n == 0 ? 1 : n);
  }
  return out;
}

}  // namespace

std::string json_string(std::string_view text) {
  return '"' +
         escape(text, {{'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}},
                [](int code) { return fmt::format("\\u{:04x}", code); }) +
         '"';
}

// XML 1.0 cannot represent other control codes.
std::string xml_text(std::string_view text) {
  return escape(text,
                {{'&', "&amp;"},
                 {'<', "&lt;"},
                 {'>', "&gt;"},
                 {'"', "&quot;"},
                 {'\t', "\t"},
                 {'\n', "\n"},
                 {'\r', "\r"},
                 {'\x7F', "\x7F"}},
                [](int) { return std::string(replacement); });
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t n = sequence(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

std::string quote(std::string_view text) {
  constexpr size_t longest = 80;
  if (text.size() <= longest) return json_string(text);
  size_t cut = longest;
  while (cut > 0 && is_continuation(text, cut)) --cut;
  return json_string(text.substr(0, cut)) + "...";
}

std::string bytes_text(int64_t bytes) {
  if (bytes < 10 << 10) return fmt::format("{} B", bytes);
  if (bytes < 10 << 20) return fmt::format("{:.1f} KiB", double(bytes) / (1 << 10));
  return fmt::format("{:.1f} MiB", double(bytes) / (1 << 20));
}

std::string columns(const std::vector<std::vector<std::string>>& lines,
                    const std::vector<bool>& number) {
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (size_t c = 0; c < line.size(); ++c) {
      size_t width = 0;
      for (const auto& other : lines) width = std::max(width, other[c].size());
      const std::string fill(width - line[c].size(), ' ');
      row += (c ? "  " : "") + (number[c] ? fill + line[c] : line[c] + fill);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + '\n';
  }
  return text;
}

}  // namespace mixtape::io
