#pragma once
// parse_number: a number from its text.

#include <charconv>
#include <optional>
#include <string_view>

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

}  // namespace mixtape::internal
