#pragma once
// Texts cut into words, numbers, signs and spaces before byte-pair encoding, which joins bytes only
// within such pieces. The regular expressions of GPT-2 and of Llama 3, by hand.

#include <cstdint>
#include <string>
#include <string_view>

namespace mixtape::train {

struct Pretokenizer {
  bool as_gpt2 = true;        // else as Llama 3: words may begin with any sign, and end lines
  int digits = 3;             // of a number's pieces, as Llama 3
  bool prefix_space = false;  // a text begins with a space

  // The end of the piece that begins at byte `at` of UTF-8.
  size_t end_of_piece(std::string_view text, size_t at) const;
};

// The pretokenizer of a regular expression, as tokenizer.json spells it. Throws Error if it is not
// that of GPT-2, Llama 3 or Qwen 2.
Pretokenizer pretokenizer_of(std::string_view pattern, const std::string& where);

// Replaces what is no UTF-8 by U+FFFD, one for each longest begin of a character, as Python does.
std::string replace_invalid(std::string_view text);

// The end of the spaces that begin at a byte of UTF-8, and the begin of those at the end of it.
size_t end_of_spaces(std::string_view text, size_t at);
size_t begin_of_spaces(std::string_view text);

enum class CharClass : uint8_t { Other, Letter, Number, Space };
CharClass char_class(uint32_t code);  // as Unicode 16 has it: \p{L}, \p{N} and \s

}  // namespace mixtape::train
