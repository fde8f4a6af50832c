#pragma once
// JPEG images as tensors, through libjpeg-turbo. In a build without it these functions throw Error.

#include <string_view>

#include "core/tensor.h"

namespace mixtape::io {

inline constexpr std::string_view jpeg_signature = "\xff\xd8\xff";  // begins every file

struct JpegOptions {
  int channels = 0;         // converts to 1 (grey) or 3 (red, green, blue); 0: as in the file
  int64_t min_side = 0;     // the smallest side that is needed; 0: full size
  uint64_t max_memory = 0;  // in bytes; 0: by the file's size, see memory_limit()
};
// Reads u8 [channels, height, width]. CMYK becomes colours; grey is the luminance Y. With min_side,
// decodes to 1/2, 1/4 or 1/8 of the size, the smallest in which no side is below it: this is much
// faster, and as good if the image is made smaller still. EXIF's orientation is not applied. Throws
// Error that names the file if it is invalid or truncated. Sizes are checked against the file and
// memory_limit() before allocating.
Tensor load_jpeg(const std::string& path, const JpegOptions& options = {});
// Parses a file in memory; errors call it `name`.
Tensor parse_jpeg(std::span<const std::byte> file, const std::string& name,
                  const JpegOptions& options = {});

// Writes u8 [channels, height, width] of 1 or 3 channels, or grey [height, width], atomically. The
// quality is 1 to 100; colours have half the resolution (4:2:0).
void save_jpeg(const std::string& path, const Tensor& image, int quality = 90);

}  // namespace mixtape::io
