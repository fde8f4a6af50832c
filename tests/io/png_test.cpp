// PNG: reads files of this library and of others; rejects damaged files by name.

#include "io/png.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/check.h"
#include "tests/support/damage.h"
#include "tests/support/temp_folder.h"

#ifdef MIXTAPE_PNG
#include <png.h>
#endif

namespace mixtape::io {
using namespace internal;
namespace png_test {

using test::slurp;
using test::spit;
using test::TempFolder;
using Values = std::vector<double>;

// Pixels that encode their position.
Tensor image(int64_t channels, int64_t height, int64_t width) {
  const Tensor t({channels, height, width}, u8);
  for (int64_t i = 0; i < t.numel(); ++i) t.data<uint8_t>()[i] = uint8_t(i * 37 + 5);
  return t;
}

#ifdef MIXTAPE_PNG

Tensor parse(const std::string& file, int channels = 0) {
  return parse_png(std::as_bytes(std::span(file)), "f", channels);
}

std::string written(const Tensor& t) {
  const TempFolder folder;
  save_png(folder / "a.png", t);
  return slurp(folder / "a.png");
}

TEST(Png, ReadsWhatItWrote) {
  for (const int64_t channels : {1, 3})
    for (const int64_t width : {1, 7, 300}) {
      const Tensor t = image(channels, 5, width);
      const Tensor back = parse(written(t));
      EXPECT_EQ(back.shape(), t.shape());
      EXPECT_EQ(to_vector(back), to_vector(t));
    }
  const Tensor opaque = image(4, 3, 2);
  for (int64_t i = 18; i < 24; ++i) opaque.data<uint8_t>()[i] = 255;
  EXPECT_EQ(to_vector(parse(written(opaque))), to_vector(opaque));
  EXPECT_EQ(parse(written(image(2, 3, 2))).shape(), Shape({2, 3, 2}));
  const Tensor grey({4, 6}, u8);
  std::fill_n(grey.data<uint8_t>(), 24, uint8_t(9));
  EXPECT_EQ(parse(written(grey)).shape(), Shape({1, 4, 6}));
  const Tensor turned = image(6, 4, 3).with_layout(transpose(image(6, 4, 3).layout(), 0, 2));
  EXPECT_EQ(to_vector(parse(written(turned))), to_vector(turned));  // [3, 4, 6], strided
}

TEST(Png, Converts) {
  const std::string grey = written(image(1, 2, 2)), colour = written(image(3, 2, 2));
  const Tensor as_colour = parse(grey, 3);
  EXPECT_EQ(as_colour.shape(), Shape({3, 2, 2}));
  EXPECT_EQ(as_colour.at(0), as_colour.at(8));
  EXPECT_EQ(parse(colour, 1).shape(), Shape({1, 2, 2}));
  EXPECT_EQ(parse(colour, 4).at(12), 255);  // opaque
  const Tensor clear({4, 1, 1}, u8);
  for (int64_t i = 0; i < 4; ++i) clear.data<uint8_t>()[i] = i < 3 ? 200 : 0;
  EXPECT_EQ(to_vector(parse(written(clear), 3)), (Values{0, 0, 0}));  // on black
}

// A palette of red and blue: one bit per pixel, packed, as scanners write it.
std::string of_bits(const std::vector<uint8_t>& pixels, uint32_t width) {
  png_image palette{};
  palette.version = PNG_IMAGE_VERSION;
  palette.width = width, palette.height = uint32_t(pixels.size()) / width;
  palette.format = PNG_FORMAT_RGB_COLORMAP;
  palette.colormap_entries = 2;
  const uint8_t map[] = {255, 0, 0, 0, 0, 255};
  std::string file(20'000, '\0');
  png_alloc_size_t size = file.size();
  EXPECT_NE(png_image_write_to_memory(&palette, file.data(), &size, 0, pixels.data(), 0, map), 0);
  file.resize(size);
  return file;
}

TEST(Png, ReadsFewBitsAndPalettes) {
  EXPECT_EQ(to_vector(parse(of_bits({0, 1, 1, 0}, 4))),
            (Values{255, 0, 0, 255, 0, 0, 0, 0, 0, 255, 255, 0}));
}

// As in JPEG, such as what cameras and phones append.
TEST(Png, LeavesOutBytesAfterItsEnd) {
  const Tensor t = image(3, 4, 5);
  for (const std::string& surplus : {std::string("x"), std::string(40, '\0'), written(t)})
    EXPECT_EQ(to_vector(parse(written(t) + surplus)), to_vector(t));
}

// Sixteen bits without gamma are read like eight.
TEST(Png, ReadsSixteenBits) {
  std::string file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp to, png_bytep bytes, size_t n) {
        static_cast<std::string*>(png_get_io_ptr(to))->append(reinterpret_cast<char*>(bytes), n);
      },
      [](png_structp) {});
  png_set_IHDR(png, info, 3, 1, 16, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  const unsigned char row[] = {0x40, 0x00, 0x80, 0x00, 0xff, 0xff};
  png_write_row(png, row);
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  EXPECT_EQ(to_vector(parse_png(std::as_bytes(std::span(file)), "f")),
            (std::vector<double>{64, 128, 255}));
}

TEST(Png, RefusesHostileFiles) {
  const std::string good = written(image(3, 4, 4));
  EXPECT_ERROR(parse(""), "f: not a PNG file: it is empty");
  EXPECT_ERROR(parse("GIF89a"), "f: not a PNG file: it starts with other bytes, but a GIF image");
  EXPECT_ERROR(parse(good.substr(0, 20)), "f: the chunk at byte 8 has 13 bytes, but 0 are left");
  EXPECT_ERROR(parse(good.substr(0, good.size() - 12)),
               "f: ends at byte " + std::to_string(good.size() - 12) + ", before IEND");
  const auto with = [&](size_t at, const std::string& bytes) {
    std::string file = good;
    return file.replace(at, bytes.size(), bytes);
  };
  EXPECT_ERROR(parse(with(12, "IDAT")), "f: the chunk at byte 8 should be a header of 13 bytes");
  EXPECT_ERROR(parse(with(16, std::string("\x7f\xff\xff\xff", 4))),
               "f: 2147483647 x 4 pixels, must be from 1 to 67108864");
  EXPECT_ERROR(parse(with(16, std::string("\0\0\0\0", 4))),
               "f: 0 x 4 pixels, must be from 1 to 67108864");
  EXPECT_ERROR(parse(with(16, std::string("\0\0\x20\0\0\0\x10\0", 8))),
               "f: 8192 x 4096 pixels take 100667392 bytes, but a file of");
  EXPECT_ERROR(parse(with(25, "\5")), "f: colour type 5 with 8 bits is not supported");
  EXPECT_ERROR(parse(with(28, "\1")), "f: ");  // the checksum does not match the changed header
  EXPECT_ERROR(parse(good, 5), "channels must be from 0 to 4, got 5");
  EXPECT_ERROR(load_png("/no/such.png"), "/no/such.png: cannot open");
}

// A plane of one colour packs to a thousandth.
TEST(Png, TakesNoMoreMemoryThanAllowed) {
  const Tensor black({1, 3000, 3000}, u8);
  std::fill_n(black.data<uint8_t>(), black.numel(), uint8_t(0));
  const std::string file = written(black);
  ASSERT_LT(file.size(), 100'000u);
  EXPECT_EQ(parse(file).numel(), 9'000'000);
  EXPECT_EQ(parse(file, 3).numel(), 27'000'000);  // as photos are
  const auto bytes = std::as_bytes(std::span(file));
  EXPECT_EQ(parse_png(bytes, "f", 3, 27'000'000).numel(), 27'000'000);
  EXPECT_ERROR(parse_png(bytes, "f", 3, 26'999'999), "more than the 26999999 allowed");
  EXPECT_ERROR(parse_png(bytes, "f", 0, 8'000'000), "f: needs 9000000 bytes of memory");
}

// A few kilobytes that say 67 million pixels.
TEST(Png, RefusesALargeImageOfAFewBytes) {
  const std::string file = of_bits(std::vector<uint8_t>(8192 * 8191), 8192);
  ASSERT_LT(file.size(), 10'000u);
  const TempFolder folder;
  spit(folder / "a.png", file);
  EXPECT_ERROR(load_png(folder / "a.png"),
               "a.png: needs 201302016 bytes of memory, more than the 134217728 allowed for a file "
               "of " +
                   std::to_string(file.size()) + " (raise max_memory to at least 201302016)");
  EXPECT_EQ(load_png(folder / "a.png", 1).shape(), Shape({1, 8191, 8192}));
  EXPECT_EQ(load_png(folder / "a.png", 0, 201'302'016).at(0), 255);
}

TEST(Png, SurvivesDamage) {
  const std::string valid = written(image(3, 6, 5));
  const auto parse = [](std::span<const std::byte> file) { parse_png(file, "f"); };
  test::survive_damage(valid, "", parse);
  test::refuse_truncation(valid, parse);
}

TEST(Png, RefusesToWriteWhatIsNoImage) {
  const TempFolder folder;
  const std::string path = folder / "a.png";
  EXPECT_ERROR(save_png(path, Tensor({3, 4, 4}, f32)),
               "a.png: an image must be u8 [channels, height,");
  EXPECT_ERROR(save_png(path, Tensor({4}, u8)), "got u8 [4]");
  EXPECT_ERROR(save_png(path, Tensor({5, 4, 4}, u8)), "a.png: channels must be from 1 to 4, got 5");
  EXPECT_ERROR(save_png(path, Tensor({3, 0, 4}, u8)), "a.png: 4 x 0 pixels");
  const Tensor large = Tensor({1}, u8).with_layout(Layout(Shape{1, 8192, 16384}, Shape{0, 0, 0}));
  EXPECT_ERROR(save_png(path, large), "a.png: 16384 x 8192 pixels, must be from 1 to 67108864");
  EXPECT_EQ(folder.count(), 0u);
}

#else

TEST(Png, SaysWhenThereIsNoLibpng) {
  EXPECT_ERROR(load_png("a.png"), "a.png: this build has no libpng, which PNG files need");
  EXPECT_ERROR(save_png("a.png", image(1, 2, 2)), "this build has no libpng");
}

#endif

}  // namespace png_test
}  // namespace mixtape::io
