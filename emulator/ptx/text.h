#pragma once
// Words of PTX's text.

#include <optional>

#include "emulator/ptx/warp.h"

namespace mixtape::ptx {

[[noreturn]] void unknown(std::string_view what, std::string_view where);

// The end of the word that begins at i, which may have qualifiers such as .shared::cta; i if none.
size_t word_end(std::string_view text, size_t i);
std::vector<std::string_view> tokens_of(std::string_view text);
std::vector<std::string_view> parts_of(std::string_view name);  // between dots: cvt, rn, f32, s32
std::optional<int64_t> number(std::string_view text);
int64_t to_number(std::string_view text);
int width_of(std::string_view type);  // in bytes: of .f32, say; 0 of .pred
int round_up(int n, int to);

// A declaration, as in .param .align 8 .b8 name[16].
struct Declared {
  std::string_view name;
  int width = 0, count = 1, alignment = 0;
  bool open = false;  // its size is set by the launch

  int bytes() const { return std::max(width, 1) * count; }
};
Declared declared(std::span<const std::string_view> tokens);
std::vector<Declared> parameters_of(std::span<const std::string_view> head);  // of a function

}  // namespace mixtape::ptx
