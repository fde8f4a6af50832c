// The patterns, by hand: from left to right, each alternative is tried if the one before it failed.

#include "train/data/pretokenizer.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "core/check.h"
#include "io/text.h"

namespace mixtape::train {
namespace {

using enum CharClass;

constexpr uint32_t class_runs[] = {
#include "train/data/unicode_classes.inc"
};

constexpr CharClass look_up(uint32_t code) {
  const auto* const after =
      std::upper_bound(std::begin(class_runs), std::end(class_runs), code << 2 | 3);
  return static_cast<CharClass>(after[-1] & 3);
}

// The classes of ASCII characters, of which most texts consist.
constexpr auto ascii_classes = [] {
  std::array<CharClass, 128> all{};
  for (uint32_t code = 0; code < 128; ++code) all[code] = look_up(code);
  return all;
}();

struct Char {
  uint32_t code = 0;
  size_t end = 0;  // the byte after it
  CharClass kind = Space;
};

// The character of valid UTF-8 at a byte; a space at the end.
Char char_at(std::string_view text, size_t at) {
  if (at >= text.size()) return {};
  const auto byte = [&](size_t i) { return uint32_t(uint8_t(text[at + i])); };
  const uint32_t first = byte(0);
  Char c{first, at + 1, Other};
  if (first >= 0xf0)
    c = {(first & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63), at + 4};
  else if (first >= 0xe0)
    c = {(first & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63), at + 3};
  else if (first >= 0x80)
    c = {(first & 31) << 6 | (byte(1) & 63), at + 2};
  c.kind = char_class(c.code);
  return c;
}

bool ends_line(uint32_t code) { return code == '\r' || code == '\n'; }

// The end of characters of a class from `at` on, at most `most`.
size_t end_of(std::string_view text, size_t at, CharClass kind, int64_t most = INT64_MAX) {
  for (Char c = char_at(text, at); at < text.size() && c.kind == kind && most > 0; --most) {
    at = c.end;
    c = char_at(text, at);
  }
  return at;
}

// \s+(?!\S)|\s+: leaves the last of several spaces to the word that follows.
size_t end_before_word(std::string_view text, size_t at) {
  size_t end = at, last = at;
  for (Char c = char_at(text, at); end < text.size() && c.kind == Space; c = char_at(text, end)) {
    last = end;
    end = c.end;
  }
  return end == text.size() || last == at ? end : last;
}

// The end of 's, 't, 're, 've, 'm, 'll or 'd after an apostrophe at `at`, or `at`.
size_t end_of_contraction(std::string_view text, size_t at, bool any_case) {
  const auto lower = [&](size_t i) -> char {
    if (i >= text.size()) return 0;
    return any_case && 'A' <= text[i] && text[i] <= 'Z' ? char(text[i] | 32) : text[i];
  };
  const char one = lower(at + 1), two = lower(at + 2);
  if (one == 's' || one == 't' || one == 'm' || one == 'd') return at + 2;
  if ((one == 'r' && two == 'e') || (one == 'v' && two == 'e') || (one == 'l' && two == 'l'))
    return at + 3;
  constexpr std::string_view long_s = "\u017f";  // a small form of S
  return any_case && text.substr(at + 1).starts_with(long_s) ? at + 1 + long_s.size() : at;
}

// '(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t end_as_gpt2(std::string_view text, size_t at) {
  if (text[at] == '\'')
    if (const size_t end = end_of_contraction(text, at, false); end > at) return end;
  const size_t word = text[at] == ' ' ? at + 1 : at;
  const Char c = char_at(text, word);
  return c.kind == Space ? end_before_word(text, at) : end_of(text, word, c.kind);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
// |\s*[\r\n]+|\s+(?!\S)|\s+
size_t end_as_llama(std::string_view text, size_t at, int digits) {
  if (text[at] == '\'')
    if (const size_t end = end_of_contraction(text, at, true); end > at) return end;
  const Char c = char_at(text, at);
  if (c.kind == Letter) return end_of(text, at, Letter);
  if (c.kind == Number) return end_of(text, at, Number, digits);
  const Char next = char_at(text, c.end);
  if (next.kind == Letter && !ends_line(c.code)) return end_of(text, c.end, Letter);
  if (c.kind == Other || (c.code == ' ' && next.kind == Other)) {
    size_t end = end_of(text, c.kind == Other ? at : c.end, Other);
    while (end < text.size() && ends_line(uint8_t(text[end]))) ++end;
    return end;
  }
  const std::string_view spaces = text.substr(at, end_of(text, at, Space) - at);
  const size_t line = spaces.find_last_of("\r\n");
  return line == spaces.npos ? end_before_word(text, at) : at + line + 1;
}

// The number of bytes (at least one) at `at` that may begin a character; `whole` if they are all of
// it.
size_t begin_of_char(std::string_view text, size_t at, bool& whole) {
  const auto first = uint8_t(text[at]);
  const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  const bool leads = first < 0x80 || (0xc2 <= first && first <= 0xf4);
  size_t n = 1;
  // (The second byte has a smaller range if the character would be too short, a surrogate or above
  // U+10FFFF.)
  uint8_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  uint8_t most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (; leads && n < length && at + n < text.size(); ++n, least = 0x80, most = 0xbf)
    if (const auto byte = uint8_t(text[at + n]); byte < least || byte > most) break;
  whole = leads && n == length;
  return n;
}

}  // namespace

CharClass char_class(uint32_t code) {
  return code < ascii_classes.size() ? ascii_classes[code] : look_up(code);
}

std::string replace_invalid(std::string_view text) {
  std::string valid;
  bool whole = true;
  for (size_t at = 0, n = 0; at < text.size(); at += n) {
    n = begin_of_char(text, at, whole);
    valid += whole ? text.substr(at, n) : "\ufffd";
  }
  return valid;
}

size_t end_of_spaces(std::string_view text, size_t at) { return end_of(text, at, Space); }

size_t begin_of_spaces(std::string_view text) {
  size_t begin = text.size();
  for (size_t at = begin; at > 0; begin = at) {
    do {
      --at;
    } while (at > 0 && (text[at] & 0xc0) == 0x80);
    if (char_at(text, at).kind != Space) break;
  }
  return begin;
}

size_t Pretokenizer::end_of_piece(std::string_view text, size_t at) const {
  return as_gpt2 ? end_as_gpt2(text, at) : end_as_llama(text, at, digits);
}

Pretokenizer pretokenizer_of(std::string_view pattern, const std::string& where) {
  constexpr std::string_view gpt2 =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  constexpr std::string_view begin =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
  constexpr std::string_view end = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (pattern == gpt2) return {};
  if (pattern.starts_with(begin) && pattern.ends_with(end) &&
      pattern.size() >= begin.size() + end.size()) {
    const auto digits = pattern.substr(begin.size(), pattern.size() - begin.size() - end.size());
    if (digits.empty()) return {.as_gpt2 = false, .digits = 1};
    if (digits == "{1,3}") return {.as_gpt2 = false, .digits = 3};
  }
  fail("{}: its pre_tokenizer splits by {}, not as GPT-2, Llama 3 or Qwen 2 do", where,
       io::quote(pattern));
}

}  // namespace mixtape::train
