#pragma once
// PNG images as tensors, through libpng. In a build without libpng these functions throw Error.

#include <string_view>

#include "core/tensor.h"

namespace mixtape::io {

inline constexpr std::string_view png_signature("\x89PNG\r\n\x1a\n", 8);  // begins every file

// Reads u8 [channels, height, width]. Channels are 1 grey, 2 grey and alpha, 3 red, green and blue,
// or 4 with alpha; the option converts, and 0 keeps the file's. Palettes become colours, and 16
// bits become
// 8. Removed alpha is blended on black, the file's gamma is applied, and grey is the luminance in
// linear light. Throws Error that names the file if it is invalid. Sizes are checked against the
// file and memory_limit() before allocating.
Tensor load_png(const std::string& path, int channels = 0, uint64_t max_memory = 0);
// Parses a file in memory; errors call it `name`.
Tensor parse_png(std::span<const std::byte> file, const std::string& name, int channels = 0,
                 uint64_t max_memory = 0);

// Writes u8 [channels, height, width], or grey [height, width], atomically.
void save_png(const std::string& path, const Tensor& image);

}  // namespace mixtape::io
