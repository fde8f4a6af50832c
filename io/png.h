#pragma once
// PNG images as tensors, through libpng. A build without it has both functions, which then say so.

#include <cstddef>
#include <span>
#include <string>

#include "core/tensor.h"

namespace mixtape::io {

// u8 [channels, height, width]: 1 grey, 2 grey and alpha, 3 red, green and blue, 4 with alpha.
// `channels` converts; 0 leaves the file's, palettes become colours and 16 bits 8. Where alpha
// goes, what lies behind is black; a gamma that the file states is applied, and colours become grey
// by their luminance in linear light. Throws Error that names the file when anything is not as the
// format wants it; nothing of the size a header claims is allocated before the file can hold it.
Tensor load_png(const std::string& path, int channels = 0);
// The same from memory; `name` stands for the file in errors.
Tensor parse_png(std::span<const std::byte> file, const std::string& name, int channels = 0);

// Writes u8 [channels, height, width], or [height, width] in grey, atomically.
void save_png(const std::string& path, const Tensor& image);

}  // namespace mixtape::io
