#pragma once
// Numbers and lists in texts.

#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

namespace mixtape::internal {

// None unless the whole text is a number that T has.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

// The parts between separators, one more than there are of these.
inline std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0; at <= text.size(); at += parts.back().size() + 1)
    parts.push_back(text.substr(at, text.find(separator, at) - at));
  return parts;
}

}  // namespace mixtape::internal
