// JPEG by TurboJPEG's interface. Reads the segments before the pixels first: sizes must fit the
// file, and only segments say whether CMYK is inverted. Decoding stops at libjpeg's first warning,
// since it would fill missing data with grey, except if there are merely bytes too many. Since
// libjpeg reports no later warning, the end of the image is checked as well.

#include "io/jpeg.h"

#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/text.h"

#ifdef MIXTAPE_JPEG
#include <turbojpeg.h>
#endif

namespace mixtape::io {

#ifdef MIXTAPE_JPEG
namespace {

constexpr uint64_t largest_jpeg = uint64_t(1) << 28;  // bytes, of a file and of an image
constexpr uint64_t pixels_of_byte = 512;              // at most, since a block of 8 x 8 takes a bit

// A codec of TurboJPEG, freed by its destructor.
class Codec : NoCopy {
 public:
  explicit Codec(tjhandle made) : handle_(made) {
    check(handle_ != nullptr, "libjpeg-turbo: {}", tjGetErrorStr2(nullptr));
  }
  ~Codec() { tjDestroy(handle_); }
  operator tjhandle() const { return handle_; }
  std::string_view error() const { return tjGetErrorStr2(handle_); }

 private:
  tjhandle handle_;
};

struct JpegHeader {
  uint64_t width = 0, height = 0, components = 0;
  bool progressive = false, arithmetic = false;
  bool inverted = false;  // Adobe's: CMYK is stored as 255 - ink
  bool by_scans = false;  // libjpeg keeps the coefficients of all scans
  uint64_t scan = 0;      // the byte at which the first scan begins
  uint64_t revision = 0;  // the byte of JFIF's revision if libjpeg would warn of it, else 0
};

// Reads the segments up to the first scan.
JpegHeader read_segments(std::string_view file, const std::string& name) {
  const auto byte = [&](uint64_t at) { return uint64_t(uint8_t(file[at])); };
  if (!file.starts_with(jpeg_signature))
    fail("{}: not a JPEG file: {}", name,
         wrong_begin(InputBytes(std::as_bytes(std::span(file)), name)));
  JpegHeader h;
  for (uint64_t at = 2;;) {
    check(file.size() - at >= 4, "{}: ends at byte {}, before the image", name, file.size());
    check(byte(at) == 0xff, "{}: no segment begins at byte {}", name, at);
    const uint64_t marker = byte(at + 1);
    if (marker == 0xff) {  // fill bytes
      ++at;
      continue;
    }
    const uint64_t length = byte(at + 2) << 8 | byte(at + 3), room = file.size() - at - 2;
    check(2 <= length && length <= room, "{}: the segment at byte {} has {} bytes, but {} are left",
          name, at, length, room);
    const std::string_view body = file.substr(at + 4, length - 2);
    const bool frame = 0xc0 <= marker && marker <= 0xcf && marker % 4 != 0;
    if (frame || marker == 0xc0) {
      check(body.size() >= 6, "{}: the frame at byte {} has {} bytes", name, at, body.size());
      h.height = byte(at + 5) << 8 | byte(at + 6);
      h.width = byte(at + 7) << 8 | byte(at + 8);
      h.components = byte(at + 9);
      h.progressive = marker % 4 == 2;
      h.arithmetic = marker > 0xc8;
    }
    if (marker == 0xee && body.starts_with("Adobe")) h.inverted = true;
    if (marker == 0xe0 && body.starts_with(std::string_view("JFIF", 5)) && body.size() > 5 &&
        body[5] != 1)
      h.revision = at + 9;
    if (marker == 0xda) {  // start of scan
      h.by_scans = h.progressive || body.empty() || uint8_t(body[0]) < h.components;
      h.scan = at;
      break;
    }
    at += 2 + length;
  }
  return h;
}

// Throws Error unless the end marker follows the scan that begins at `at`.
void check_end(std::string_view file, uint64_t at, const std::string& name) {
  while ((at = file.find('\xff', at)) < file.size() - 1) {
    const uint64_t marker = uint8_t(file[at + 1]);
    if (marker == 0xd9) return;
    const bool alone = marker <= 1 || (0xd0 <= marker && marker <= 0xd8);  // data, and restarts
    if (marker == 0xff)
      ++at;
    else if (alone || file.size() - at < 4)
      at += 2;
    else
      at += 2 + std::max(2u, unsigned(uint8_t(file[at + 2])) << 8 | uint8_t(file[at + 3]));
  }
  fail("{}: Premature end of JPEG file", name);
}

void check_size(const JpegHeader& h, uint64_t file, const std::string& name) {
  const uint64_t pixels = h.width * h.height;  // below 2^32
  check(pixels > 0 && pixels <= largest_jpeg / 4, "{}: {} x {} pixels, must be from 1 to {}", name,
        h.width, h.height, largest_jpeg / 4);
  check(h.arithmetic || pixels <= file * pixels_of_byte,
        "{}: {} x {} pixels, but a file of {} bytes has at most {}", name, h.width, h.height, file,
        file * pixels_of_byte);
}

void decode(const Codec& codec, std::span<const std::byte> file, const std::string& name,
            uint8_t* to, int width, int height, TJPF format) {
  const auto run = [&](int flags) {
    return tjDecompress2(codec, reinterpret_cast<const unsigned char*>(file.data()), file.size(),
                         to, width, 0, height, format, flags | TJFLAG_LIMITSCANS) == 0;
  };
  const auto too_many = [&] { return codec.error().find("extraneous bytes") != std::string::npos; };
  const bool done = run(TJFLAG_STOPONWARNING) || (too_many() && (run(0) || too_many()));
  check(done, "{}: {}", name, codec.error());
}

// Converts interleaved inks to planes of red, green and blue, or to their luminance, as JPEG's Y.
void mix_inks(std::span<const uint8_t> inks, bool inverted, int channels, uint8_t* to) {
  const size_t pixels = inks.size() / 4;
  for (size_t i = 0; i < pixels; ++i) {
    const auto paper = [&](size_t c) {
      const unsigned ink = inks[4 * i + c];
      return inverted ? ink : 255 - ink;
    };
    const auto mixed = [&](size_t c) { return (paper(c) * paper(3) + 127) / 255; };
    if (channels == 1)
      to[i] = uint8_t((19595 * mixed(0) + 38470 * mixed(1) + 7471 * mixed(2) + 32768) >> 16);
    else
      for (size_t c = 0; c < 3; ++c) to[c * pixels + i] = uint8_t(mixed(c));
  }
}

// The denominator of the scale.
int scale_for(const JpegHeader& h, int64_t min_side) {
  int scale = 1;
  if (min_side > 0)
    while (scale < 8 && int64_t(std::min(h.width, h.height)) >= 2 * scale * min_side) scale *= 2;
  return scale;
}

}  // namespace

Tensor parse_jpeg(std::span<const std::byte> file, const std::string& name,
                  const JpegOptions& options) {
  check(options.channels == 0 || options.channels == 1 || options.channels == 3,
        "channels must be 0, 1 or 3, got {}", options.channels);
  check(options.min_side >= 0, "min_side must be >= 0, got {}", options.min_side);
  check(file.size() <= largest_jpeg, "{}: has {} bytes, more than the {} allowed", name,
        file.size(), largest_jpeg);
  const std::string_view bytes = as_text(file);
  const JpegHeader h = read_segments(bytes, name);
  check_size(h, file.size(), name);
  check_end(bytes, h.scan, name);
  if (h.revision > 0) {
    std::string usual(bytes);
    usual[h.revision] = 1;
    return parse_jpeg(std::as_bytes(std::span(usual)), name, options);
  }
  const Codec codec(tjInitDecompress());
  int width = 0, height = 0, subsampling = 0, space = -1;
  // It also fails for unusual subsampling, which can be decoded.
  tjDecompressHeader3(codec, reinterpret_cast<const unsigned char*>(file.data()), file.size(),
                      &width, &height, &subsampling, &space);
  check(width > 0 && height > 0 && space >= 0, "{}: {}", name, codec.error());
  const bool inks = space == TJCS_CMYK || space == TJCS_YCCK;
  const int stored = space == TJCS_GRAY ? 1 : 3,
            channels = options.channels == 0 ? stored : options.channels;
  const int scale = scale_for(h, options.min_side);
  width = int(internal::ceil_div(int64_t(width), int64_t(scale)));
  height = int(internal::ceil_div(int64_t(height), int64_t(scale)));
  const uint64_t pixels = uint64_t(width) * uint64_t(height);
  const uint64_t coefficients = h.by_scans ? 2 * h.width * h.height * h.components : 0;
  const uint64_t bytes_of_pixel = uint64_t(channels) + (inks ? 4 : 0);
  // Enough for photos of cameras, even in files that hold them scan by scan.
  const uint64_t least = h.by_scans ? 3 * least_for_image : least_for_image;
  check_memory(pixels * bytes_of_pixel + coefficients, name, file.size(),
               memory_limit(file.size(), options.max_memory, least));
  const Tensor t({channels, height, width}, u8, Device::cpu());
  auto* const to = t.data<uint8_t>();
  if (inks) {
    std::vector<uint8_t> interleaved(pixels * 4);
    decode(codec, file, name, interleaved.data(), width, height, TJPF_CMYK);
    mix_inks(interleaved, h.inverted, channels, to);
  } else {
    decode(codec, file, name, to, width, height, channels == 1 ? TJPF_GRAY : TJPF_RGB);
    to_planes(to, height, width, channels);
  }
  return t;
}

Tensor load_jpeg(const std::string& path, const JpegOptions& options) {
  JpegOptions limited = options;
  if (has_extension(path, ".gz"))  // the limit depends on the size of the packed file
    limited.max_memory = memory_limit(InputFile(path).size(), options.max_memory, least_for_image);
  return parse_jpeg(read_whole(path, options.max_memory, 1), path, limited);
}

void save_jpeg(const std::string& path, const Tensor& image, int quality) {
  const auto [channels, height, width] = image_sizes(path, image);
  check(1 <= quality && quality <= 100, "{}: quality must be from 1 to 100, got {}", path, quality);
  check(channels == 1 || channels == 3, "{}: channels must be 1 or 3, got {}", path, channels);
  constexpr int64_t longest = 65500;  // libjpeg's limit
  check(0 < height && 0 < width && height <= longest && width <= longest &&
            height * width <= int64_t(largest_jpeg / 4),
        "{}: {} x {} pixels, must be from 1 to {}, and no side above {}", path, width, height,
        largest_jpeg / 4, longest);
  const std::vector<uint8_t> pixels = interleaved(image, channels);
  const Codec codec(tjInitCompress());
  const TJSAMP sampling = channels == 1 ? TJSAMP_GRAY : TJSAMP_420;
  std::string bytes(tjBufSize(int(width), int(height), sampling), '\0');
  auto* out = reinterpret_cast<unsigned char*>(bytes.data());
  unsigned long size = bytes.size();
  const bool done = tjCompress2(codec, pixels.data(), int(width), 0, int(height),
                                channels == 1 ? TJPF_GRAY : TJPF_RGB, &out, &size, sampling,
                                quality, TJFLAG_NOREALLOC) == 0;
  check(done, "{}: {}", path, codec.error());
  write_file(path, std::string_view(bytes).substr(0, size));
}

#else

namespace {
[[noreturn]] void refuse_jpeg(const std::string& path) {
  fail("{}: this build lacks libjpeg-turbo, which JPEG files need", path);
}
}  // namespace

Tensor load_jpeg(const std::string& path, const JpegOptions&) { refuse_jpeg(path); }
Tensor parse_jpeg(std::span<const std::byte>, const std::string& name, const JpegOptions&) {
  refuse_jpeg(name);
}
void save_jpeg(const std::string& path, const Tensor&, int) { refuse_jpeg(path); }

#endif

}  // namespace mixtape::io
