#pragma once
// Files of tokens, as GPT-2's tokenizer numbers them.

#include <cstddef>
#include <span>
#include <string>

#include "core/tensor.h"

namespace mixtape::train {

// Reads tokens i32 [n], little-endian: those of llm.c, with a header of 1,024 bytes (u16, or u32 of
// Llama 3), or nothing but u16, as nanoGPT writes them. Throws Error that names the file if it has
// no token, a part of one, or not as many as its header says.
Tensor read_tokens(const std::string& path);
// Parses a file in memory; errors call it `name`.
Tensor parse_tokens(std::span<const std::byte> file, const std::string& name);

}  // namespace mixtape::train
