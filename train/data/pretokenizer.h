#pragma once
// Pretokenizer: cuts texts into words, numbers, signs and spaces. Byte-pair encoding then joins
// bytes only within these pieces. The regular expressions of GPT-2 and Llama 3 are written by hand.

#include <cstdint>
#include <string>
#include <string_view>

namespace mixtape::train {

struct Pretokenizer {
  bool as_gpt2 = true;        // false: like Llama 3, words may begin with any sign, and end lines
  int digits = 3;             // per piece of a number, for Llama 3
  bool prefix_space = false;  // puts a space before the text

  // The end of the piece that begins at byte `at` of UTF-8.
  size_t end_of_piece(std::string_view text, size_t at) const;
};

// The pretokenizer for a regular expression of tokenizer.json. Throws Error if it is not that of
// GPT-2, Llama 3 or Qwen 2.
Pretokenizer pretokenizer_of(std::string_view pattern, const std::string& where);

// Replaces invalid UTF-8 by U+FFFD, one for each longest incomplete character, as Python does.
std::string replace_invalid(std::string_view text);

// The end of the spaces that begin at byte `at`, and the beginning of the spaces that end a text.
size_t end_of_spaces(std::string_view text, size_t at);
size_t begin_of_spaces(std::string_view text);

enum class CharClass : uint8_t { Other, Letter, Number, Space };
CharClass char_class(uint32_t code);  // by Unicode 16: \p{L}, \p{N} and \s

}  // namespace mixtape::train
