// JPEG: reads files of this library and of others, grey, colour and CMYK; rejects damaged files by
// name.

#include "io/jpeg.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/support/damage.h"
#include "tests/support/temp_folder.h"

#ifdef MIXTAPE_JPEG
#include <turbojpeg.h>
#endif

namespace mixtape::io {
using namespace internal;
namespace jpeg_test {

using test::slurp;
using test::spit;
using test::TempFolder;

#ifdef MIXTAPE_JPEG

Tensor parse(std::string_view file, const JpegOptions& o = {}) {
  return parse_jpeg(std::as_bytes(std::span(file)), "f", o);
}

Tensor grey_of(const Shape& shape) {  // all 128
  const Tensor t(shape, u8);
  std::memset(t.host(), 128, size_t(t.numel()));
  return t;
}

// A smooth image, which loses little.
Tensor waves(int64_t channels, int64_t height, int64_t width) {
  const Tensor t({channels, height, width}, u8);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const int64_t c = i / (height * width), y = i / width % height, x = i % width;
    t.data<uint8_t>()[i] =
        uint8_t(128 + 90 * std::sin(0.11 * double(x) + double(c)) * std::cos(0.07 * double(y)));
  }
  return t;
}

std::string written(const Tensor& t, int quality = 90) {
  const TempFolder folder;
  save_jpeg(folder / "a.jpg", t, quality);
  return slurp(folder / "a.jpg");
}

// Pixels interleaved, as TurboJPEG takes them.
std::string compressed(const std::vector<uint8_t>& pixels, int width, int height, TJPF format,
                       TJSAMP sampling, int flags = 0) {
  const tjhandle codec = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  EXPECT_EQ(tjCompress2(codec, pixels.data(), width, 0, height, format, &bytes, &size, sampling, 95,
                        flags),
            0);
  std::string file(reinterpret_cast<char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(codec);
  return file;
}

double mean_difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) sum += std::abs(a.at(i) - b.at(i));
  return sum / double(a.numel());
}

TEST(Jpeg, ReadsWhatItWrote) {
  for (const int64_t channels : {1, 3})
    for (const int64_t width : {1, 7, 60}) {
      const Tensor t = waves(channels, 33, width), back = parse(written(t));
      EXPECT_EQ(back.shape(), t.shape());
      EXPECT_LT(mean_difference(back, t), 3);
    }
  const Tensor grey = waves(1, 9, 12);
  EXPECT_LT(mean_difference(parse(written(grey.with_layout(select(grey.layout(), 0, 0)))), grey),
            2);
  const Tensor tall = waves(3, 20, 12), turned = tall.with_layout(transpose(tall.layout(), 1, 2));
  EXPECT_LT(mean_difference(parse(written(turned)), turned), 3);  // strided
  EXPECT_LT(written(tall, 20).size(), written(tall, 95).size());
  const TempFolder folder;
  save_jpeg(folder / "a.jpg", tall);
  EXPECT_EQ(mean_difference(load_jpeg(folder / "a.jpg"), parse(written(tall))), 0);
}

TEST(Jpeg, ConvertsGreyAndColour) {
  const std::string grey = written(waves(1, 8, 8)), colour = written(waves(3, 8, 8));
  const Tensor as_colour = parse(grey, {.channels = 3}), one = parse(grey);
  EXPECT_EQ(as_colour.shape(), Shape({3, 8, 8}));
  for (int64_t i = 0; i < 192; ++i) EXPECT_EQ(as_colour.at(i), one.at(i % 64));
  const Tensor y = parse(colour, {.channels = 1}), rgb = parse(colour);
  EXPECT_EQ(y.shape(), Shape({1, 8, 8}));
  for (int64_t i = 0; i < 64; ++i)
    EXPECT_NEAR(y.at(i), 0.299 * rgb.at(i) + 0.587 * rgb.at(64 + i) + 0.114 * rgb.at(128 + i), 1.5);
}

// Paper of 8 x 8 pixels with one mixture of inks, with Adobe's marker or without.
std::string inked(const std::array<uint8_t, 4>& inks, bool adobe) {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < 64; ++i) pixels.insert(pixels.end(), inks.begin(), inks.end());
  std::string file = compressed(pixels, 8, 8, TJPF_CMYK, TJSAMP_444);
  if (const size_t at = file.find("\xff\xee"); !adobe && at != std::string::npos)
    file.erase(at, 16);
  return file;
}

// Adobe stores 255 - ink. Cyan absorbs red.
TEST(Jpeg, MixesInks) {
  const Tensor cyan = parse(inked({55, 255, 255, 255}, true));
  EXPECT_EQ(cyan.shape(), Shape({3, 8, 8}));
  EXPECT_NEAR(cyan.at(0), 55, 3);
  EXPECT_NEAR(cyan.at(64), 255, 3);
  const Tensor dark = parse(inked({255, 255, 255, 51}, true), {.channels = 1});
  EXPECT_EQ(dark.shape(), Shape({1, 8, 8}));
  EXPECT_NEAR(dark.at(5), 51, 3);
  const Tensor half = parse(inked({128, 128, 128, 128}, true));
  EXPECT_NEAR(half.at(100), 64, 3);
}

TEST(Jpeg, APhotoByScansNeedsNoOption) {
  const std::string file = compressed(std::vector<uint8_t>(72'000'000, 128), 6000, 4000, TJPF_RGB,
                                      TJSAMP_444, TJFLAG_PROGRESSIVE);
  EXPECT_EQ(parse(file).numel(), 72'000'000);
}

TEST(Jpeg, ReadsProgressiveFiles) {
  const Tensor t = waves(3, 40, 50);
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < 2000; ++i)
    for (int64_t c = 0; c < 3; ++c) pixels.push_back(t.data<uint8_t>()[c * 2000 + i]);
  const std::string file = compressed(pixels, 50, 40, TJPF_RGB, TJSAMP_444, TJFLAG_PROGRESSIVE);
  EXPECT_LT(mean_difference(parse(file), t), 2);
  EXPECT_EQ(parse(file, {.max_memory = 18'000}).numel(), 6000);  // and twice that of coefficients
  EXPECT_ERROR(parse(file, {.max_memory = 17'999}),
               "f: needs 18000 bytes of memory, more than the 17999 allowed");
}

// A sequential file of a scan for each component, with `between` before the second. Sampling is
// that of Y, as 0x42 for four times and twice that of the others.
std::string of_scans(const Tensor& y, const Tensor& b, const Tensor& r, char sampling,
                     const std::string& between = "") {
  std::string file = written(y);
  const auto scan = [](const std::string& grey, char id) {
    std::string part = grey.substr(grey.find("\xff\xda"));
    part.resize(part.size() - 2);
    part[5] = id;
    return part;
  };
  const std::string scans = scan(file, 1) + between + scan(written(b), 2) + scan(written(r), 3);
  const size_t frame = file.find("\xff\xc0");
  const std::string tables =
      file.substr(frame + 13, file.find("\xff\xda") - frame - 13) + scans + "\xff\xd9";
  file[frame + 3] = 17;
  file[frame + 9] = 3;
  file.resize(frame + 10);
  return file + std::string({1, sampling, 0, 2, 0x11, 0, 3, 0x11, 0}) + tables;
}

TEST(Jpeg, ReadsFilesOfAScanForEachComponent) {
  const Tensor y = waves(1, 40, 50), grey = grey_of({1, 40, 50});
  const std::string file = of_scans(y, grey, grey, 0x11);
  const Tensor read = parse(file);
  EXPECT_EQ(read.shape(), Shape({3, 40, 50}));
  EXPECT_LT(mean_difference(parse(file, {.channels = 1}), y), 2);
  EXPECT_ERROR(parse(file, {.max_memory = 17'999}),
               "f: needs 18000 bytes of memory, more than the 17999 allowed");
  const Tensor small = grey_of({1, 20, 13});  // 4:1:0, which TurboJPEG has no name for
  const Tensor unusual = parse(of_scans(y, small, small, 0x42));
  EXPECT_EQ(mean_difference(unusual, read), 0);
}

// libjpeg warns of surplus bytes, after which it would not warn of missing data.
TEST(Jpeg, RefusesTruncatedFilesWithBytesTooMany) {
  const Tensor y = waves(1, 40, 50), grey = grey_of({1, 40, 50});
  const std::string clean = of_scans(y, grey, y, 0x11), more = of_scans(y, grey, y, 0x11, "abc");
  EXPECT_EQ(mean_difference(parse(more), parse(clean)), 0);
  for (size_t cut = 2; cut < 60; ++cut)
    EXPECT_ERROR(parse(more.substr(0, more.size() - cut)), "f: Premature end of JPEG file");
}

// libjpeg warns of an unknown revision, which changes nothing.
TEST(Jpeg, ReadsAnyRevisionOfJfif) {
  const std::string good = written(waves(3, 24, 40));
  std::string later = good;
  later[good.find("JFIF") + 5] = 2;
  EXPECT_EQ(mean_difference(parse(later), parse(good)), 0);
  EXPECT_ERROR(parse(later.substr(0, later.size() - 30)), "f: Premature end of JPEG file");
}

// As PIL's draft mode: a half, a quarter or an eighth.
TEST(Jpeg, DecodesToASmallerSize) {
  const Tensor t = waves(3, 160, 241);
  const std::string file = written(t);
  EXPECT_EQ(parse(file, {.min_side = 81}).shape(), t.shape());
  const Tensor half = parse(file, {.min_side = 80});
  EXPECT_EQ(half.shape(), Shape({3, 80, 121}));
  double error = 0;  // against means of four pixels
  for (int64_t y = 0; y < 80; ++y)
    for (int64_t x = 0; x < 120; ++x) {
      const int64_t at = 2 * y * 241 + 2 * x;
      error += std::abs(half.at(y * 121 + x) -
                        (t.at(at) + t.at(at + 1) + t.at(at + 241) + t.at(at + 242)) / 4);
    }
  EXPECT_LT(error / 9600, 2);
  EXPECT_EQ(parse(file, {.min_side = 40}).shape(), Shape({3, 40, 61}));
  EXPECT_EQ(parse(file, {.channels = 1, .min_side = 1}).shape(), Shape({1, 20, 31}));
}

TEST(Jpeg, RefusesHostileFiles) {
  const std::string good = written(waves(3, 24, 40));
  EXPECT_ERROR(parse(""), "f: not a JPEG file: it is empty");
  EXPECT_ERROR(parse("\x89PNG\r\n\x1a\n..."), "it starts with other bytes, but a PNG image");
  EXPECT_ERROR(parse(good.substr(0, 4)), "f: ends at byte 4, before the image");
  EXPECT_ERROR(parse(good.substr(0, 10)), "f: the segment at byte 2 has 16 bytes, but 6 are left");
  EXPECT_ERROR(parse(good.substr(0, good.size() - 2)), "f: Premature end of JPEG file");
  EXPECT_ERROR(parse(good.substr(0, good.size() - 40)), "f: Premature end of JPEG file");
  const size_t frame = good.find("\xff\xc0");
  const auto with = [&](size_t at, const std::string& bytes) {
    std::string file = good;
    return file.replace(at, bytes.size(), bytes);
  };
  EXPECT_ERROR(parse(with(20, "x")), "f: no segment begins at byte 20");
  EXPECT_ERROR(parse(with(frame + 2, std::string("\0\5", 2))),
               "f: the frame at byte " + std::to_string(frame) + " has 3 bytes");
  EXPECT_ERROR(parse(with(frame + 5, "\xff\xff\xff\xff")),
               "f: 65535 x 65535 pixels, must be from 1 to 67108864");
  EXPECT_ERROR(parse(with(frame + 5, std::string(2, '\0'))), "f: 40 x 0 pixels");
  EXPECT_ERROR(parse(with(frame + 5, std::string("\x10\0\x10\0", 4))),
               "f: 4096 x 4096 pixels, but a file of " + std::to_string(good.size()) +
                   " bytes has at most " + std::to_string(512 * good.size()));
  EXPECT_ERROR(parse(with(frame + 4, "\x0c")), "f: Unsupported JPEG data precision 12");
  EXPECT_ERROR(parse(good, {.channels = 2}), "channels must be 0, 1 or 3, got 2");
  EXPECT_ERROR(parse(good, {.min_side = -1}), "min_side must be >= 0, got -1");
  EXPECT_ERROR(load_jpeg("/no/such.jpg"), "/no/such.jpg: cannot open");
}

// Cameras append data to the image, and some programs insert bytes before the end.
TEST(Jpeg, ReadsFilesWithBytesTooMany) {
  const Tensor t = waves(3, 24, 40);
  const std::string good = written(t);
  EXPECT_EQ(mean_difference(parse(good + "appended"), parse(good)), 0);
  std::string inserted = good;
  inserted.insert(good.size() - 2, "abc");
  EXPECT_EQ(mean_difference(parse(inserted), parse(good)), 0);
}

TEST(Jpeg, TakesNoMoreMemoryThanAllowed) {
  const std::string file = written(waves(1, 3000, 3000), 1);
  const uint64_t colour = 27'000'000;
  EXPECT_EQ(parse(file).numel(), 9'000'000);
  EXPECT_EQ(parse(file, {.channels = 3}).numel(), 27'000'000);  // as photos are
  EXPECT_EQ(parse(file, {.channels = 3, .max_memory = colour}).numel(), 27'000'000);
  EXPECT_ERROR(parse(file, {.channels = 3, .max_memory = colour - 1}), "the 26999999 allowed");
  EXPECT_EQ(parse(file, {.channels = 3, .min_side = 100}).shape(), Shape({3, 375, 375}));
  const std::string flat = written(grey_of({1, 8000, 8000}), 1);
  ASSERT_LT(flat.size(), 1'000'000u);
  EXPECT_ERROR(parse(flat, {.channels = 3}), "f: needs 192000000 bytes of memory");
  EXPECT_EQ(parse(flat, {.channels = 3, .min_side = 100}).shape(), Shape({3, 1000, 1000}));
}

TEST(Jpeg, SurvivesDamage) {
  const std::string valid = written(waves(3, 20, 12));
  const auto parse = [](std::span<const std::byte> file) { parse_jpeg(file, "f"); };
  test::survive_damage(valid, "", parse);
  test::refuse_truncation(valid, parse);
}

TEST(Jpeg, RefusesToWriteWhatIsNoImage) {
  const TempFolder folder;
  const std::string path = folder / "a.jpg";
  EXPECT_ERROR(save_jpeg(path, Tensor({3, 4, 4}, f32)),
               "a.jpg: an image must be u8 [channels, height,");
  EXPECT_ERROR(save_jpeg(path, Tensor({2, 4, 4}, u8)), "a.jpg: channels must be 1 or 3, got 2");
  EXPECT_ERROR(save_jpeg(path, Tensor({3, 0, 4}, u8)), "a.jpg: 4 x 0 pixels");
  EXPECT_ERROR(save_jpeg(path, Tensor({1, 1, 65501}, u8)), "and no side above 65500");
  EXPECT_ERROR(save_jpeg(path, Tensor({1, 1, 1}, u8), 0), "quality must be from 1 to 100, got 0");
  EXPECT_EQ(folder.count(), 0u);
}

#else

TEST(Jpeg, SaysWhenThereIsNoLibjpegTurbo) {
  EXPECT_ERROR(load_jpeg("a.jpg"), "a.jpg: this build lacks libjpeg-turbo, which JPEG files need");
  EXPECT_ERROR(save_jpeg("a.jpg", Tensor({1, 2, 2}, u8)), "a.jpg: this build lacks libjpeg-turbo");
  EXPECT_ERROR(parse_jpeg({}, "f"), "f: this build lacks libjpeg-turbo");
}
TEST(Jpeg, ReadsWhatItWrote) { GTEST_SKIP() << "lacks libjpeg-turbo"; }

#endif

}  // namespace jpeg_test
}  // namespace mixtape::io
