#pragma once
// JPEG images as tensors, through libjpeg-turbo. In a build without it these functions throw Error.

#include <string_view>

#include "core/tensor.h"

namespace mixtape::io {

inline constexpr std::string_view jpeg_signature = "\xff\xd8\xff";  // begins every file

struct JpegOptions {
  int channels = 0;         // 1 grey, 3 red, green and blue: converts; 0: as in the file
  int64_t min_side = 0;     // see below; 0: full size
  uint64_t max_memory = 0;  // bytes, see memory_limit; 0: by the size of the file
};
// u8 [channels, height, width]. CMYK becomes colours; grey is the luminance Y. With min_side,
// decodes to 1/2, 1/4 or 1/8 of the size, whichever is the smallest with no side below it: much
// faster, and as good where the image is made smaller still. Orientation of EXIF is not applied.
// Throws Error that names the file if it is invalid or truncated; checks sizes against the file
// before allocating, and against memory_limit of file and max_memory.
Tensor load_jpeg(const std::string& path, const JpegOptions& options = {});
// Parses a file in memory; errors call it `name`.
Tensor parse_jpeg(std::span<const std::byte> file, const std::string& name,
                  const JpegOptions& options = {});

// Writes u8 [channels, height, width] of 1 or 3 channels, or grey [height, width], atomically. The
// quality is 1 to 100; colours have half the resolution (4:2:0).
void save_jpeg(const std::string& path, const Tensor& image, int quality = 90);

}  // namespace mixtape::io
