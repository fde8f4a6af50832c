#pragma once
// Files of tokens with the numbers of GPT-2's tokenizer.

#include <cstddef>
#include <span>
#include <string>

#include "core/tensor.h"

namespace mixtape::train {

// Reads tokens as i32 [n] from little-endian files: those of llm.c, with a header of 1,024 bytes
// (u16, or u32 for Llama 3), or those of nanoGPT, plain u16. Throws Error that names the file if it
// has no token, a part of a token, or not as many tokens as its header says.
Tensor read_tokens(const std::string& path);
// Parses a file in memory; errors call it `name`.
Tensor parse_tokens(std::span<const std::byte> file, const std::string& name);

}  // namespace mixtape::train
