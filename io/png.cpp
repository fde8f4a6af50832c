// PNG by libpng's simplified interface. Before that, checks that the file has all chunks up to
// IEND, which libpng never reads, and that deflate can make the image from a file of this size.

#include "io/png.h"

#include <cstring>

#include "core/check.h"
#include "core/format.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/text.h"

#ifdef MIXTAPE_PNG
#include <png.h>
#endif

namespace mixtape::io {

#ifdef MIXTAPE_PNG
namespace {

constexpr uint64_t largest = uint64_t(1) << 28;  // bytes, of a file and of an image
constexpr uint64_t max_png_inflation = 1032;     // most bytes that deflate makes from one
constexpr png_uint_32 channel_formats[] = {0, PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB,
                                           PNG_FORMAT_RGBA};

// A png_image, freed by its destructor.
struct Image : png_image, NoCopy {
  Image() : png_image{} { version = PNG_IMAGE_VERSION; }
  ~Image() { png_image_free(this); }
};

struct PngHeader {
  uint64_t width, height, bits;  // bits of a pixel
};

PngHeader check_chunks(std::string_view file, const std::string& name) {
  const auto number = [&](size_t at) {
    uint32_t n = 0;
    for (size_t i = 0; i < 4; ++i) n = n << 8 | uint8_t(file[at + i]);
    return uint64_t(n);
  };
  if (!file.starts_with(png_signature))
    fail("{}: not a PNG file: {}", name,
         wrong_begin(InputBytes(std::as_bytes(std::span(file)), name)));
  constexpr uint64_t frame = 12;  // length, type and checksum
  std::string_view type;
  for (uint64_t at = png_signature.size(); type != "IEND";) {
    check(file.size() - at >= frame, "{}: ends at byte {}, before IEND", name, file.size());
    const uint64_t length = number(at), room = file.size() - at - frame;
    check(length <= room, "{}: the chunk at byte {} has {} bytes, but {} are left", name, at,
          length, room);
    type = file.substr(at + 4, 4);
    check((at == png_signature.size()) == (type == "IHDR") && (type != "IHDR" || length == 13),
          "{}: the chunk at byte {} should {}be a header of 13 bytes", name, at,
          at == png_signature.size() ? "" : "not ");
    at += frame + length;
  }
  constexpr uint64_t samples[] = {1, 0, 3, 1, 2, 0, 4};
  const auto depth = uint8_t(file[24]), color = uint8_t(file[25]);
  check(color < std::size(samples) && samples[color] > 0 && depth <= 16,
        "{}: colour type {} with {} bits is not supported", name, color, depth);
  return {number(16), number(20), samples[color] * depth};
}

void check_size(const PngHeader& h, uint64_t file, const std::string& name) {
  // Width and height are below 2^32, so no product overflows.
  check(h.width > 0 && h.height > 0 && h.width * h.height <= largest / 4,
        "{}: {} x {} pixels, must be from 1 to {}", name, h.width, h.height, largest / 4);
  const uint64_t packed = h.height * ((h.width * h.bits + 7) / 8 + 1);
  check(packed <= file * max_png_inflation,
        "{}: {} x {} pixels take {} bytes, but a file of {} unpacks to at most {}", name, h.width,
        h.height, packed, file, file * max_png_inflation);
}

}  // namespace

Tensor parse_png(std::span<const std::byte> file, const std::string& name, int channels,
                 uint64_t max_memory) {
  check(0 <= channels && channels <= 4, "channels must be from 0 to 4, got {}", channels);
  check(file.size() <= largest, "{}: has {} bytes, more than the {} allowed", name, file.size(),
        largest);
  check_size(check_chunks(as_text(file), name), file.size(), name);
  Image image;
  check(png_image_begin_read_from_memory(&image, file.data(), file.size()) != 0, "{}: {}", name,
        image.message);
  image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // otherwise libpng treats 16 bits as linear light
  if (channels == 0) channels = int(PNG_IMAGE_SAMPLE_CHANNELS(image.format));
  image.format = channel_formats[channels];
  check_memory(PNG_IMAGE_SIZE(image), name, file.size(),
               memory_limit(file.size(), max_memory, least_for_image));
  const Tensor t({channels, image.height, image.width}, u8, Device::cpu());
  auto* const pixels = t.data<uint8_t>();
  std::memset(pixels, 0, PNG_IMAGE_SIZE(image));  // black, on which libpng blends
  check(png_image_finish_read(&image, nullptr, pixels, 0, nullptr) != 0, "{}: {}", name,
        image.message);
  to_planes(pixels, t.size(1), t.size(2), channels);
  return t;
}

Tensor load_png(const std::string& path, int channels, uint64_t max_memory) {
  return parse_png(read_whole(path, max_memory, 1), path, channels,
                   memory_limit(InputFile(path).size(), max_memory, least_for_image));
}

void save_png(const std::string& path, const Tensor& image) {
  const auto [channels, height, width] = image_sizes(path, image);
  check(1 <= channels && channels <= 4, "{}: channels must be from 1 to 4, got {}", path, channels);
  check(0 < height && 0 < width && height <= int64_t(largest / 4) / width,
        "{}: {} x {} pixels, must be from 1 to {}", path, width, height, largest / 4);
  const std::vector<uint8_t> pixels = interleaved(image, channels);
  Image out;
  out.width = png_uint_32(width);
  out.height = png_uint_32(height);
  out.format = channel_formats[channels];
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(out);
  std::string bytes(size, '\0');
  check(png_image_write_to_memory(&out, bytes.data(), &size, 0, pixels.data(), 0, nullptr) != 0,
        "{}: {}", path, out.message);
  write_file(path, std::string_view(bytes).substr(0, size));
}

#else

namespace {
[[noreturn]] void refuse(const std::string& path) {
  fail("{}: this build has no libpng, which PNG files need", path);
}
}  // namespace

Tensor load_png(const std::string& path, int, uint64_t) { refuse(path); }
Tensor parse_png(std::span<const std::byte>, const std::string& name, int, uint64_t) {
  refuse(name);
}
void save_png(const std::string& path, const Tensor&) { refuse(path); }

#endif

}  // namespace mixtape::io
