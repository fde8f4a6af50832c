// Transforms of single images: PIL's and torchvision's bytes, random numbers that depend on the
// position alone, folders of PNG and JPEG files of different sizes.

#include "train/data/images.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <map>

#include "autograd/ops.h"
#include "io/jpeg.h"
#include "io/png.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"
#include "train/data/folder.h"
#include "train/data/image_ops.h"
#include "train/data/loader.h"

namespace mixtape::train::images {
using namespace internal;
namespace images_test {

using test::TempFolder;

struct ImageReference {
  int64_t height, width;
  std::vector<int> bytes;
};
const std::map<std::string, ImageReference> references = {
#include "tests/data/image_reference.inc"
};

// That of make_image_reference.py.
Tensor image(int64_t height, int64_t width, int64_t channels = 3) {
  const Tensor t({channels, height, width}, u8);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const int64_t c = i / (height * width), y = i / width % height, x = i % width;
    t.data<uint8_t>()[i] =
        uint8_t((60 * c + 11 * y * (c + 1) + 17 * x + 5 * x * y) % (240 - 50 * c) + 5 * c);
  }
  return t;
}

// Most bytes are equal, since f32 sums may round another way, and none is off by more than 1.
void expect_reference(const std::string& name, const Tensor& t, int64_t may_differ = 0) {
  const ImageReference& r = references.at(name);
  ASSERT_EQ(t.shape(), Shape({3, r.height, r.width})) << name;
  int64_t different = 0;
  for (int64_t i = 0; i < t.numel(); ++i) {
    const double off = std::abs(t.at(i) - r.bytes[size_t(i)]);
    EXPECT_LE(off, 1) << name << " at " << i;
    different += off > 0;
  }
  EXPECT_LE(different, may_differ) << name;
}

TEST(Images, ResizeAsPil) {
  RandomGenerator none;
  const Tensor large = image(31, 45), x = image(9, 11);
  expect_reference("smaller", resized(large, 12, 9));
  expect_reference("larger", resize(13, 20)(x, none));
  expect_reference("box", resized(large, {3, 10, 20, 31}, 7, 8));
  expect_reference("wide", resized(large, 31, 10));
  EXPECT_EQ(to_vector(resized(x, 9, 11)), to_vector(x));
  EXPECT_EQ(resize(10)(large, none).shape(), Shape({3, 10, 14}));
  EXPECT_EQ(resize(10)(image(45, 31, 1), none).shape(), Shape({1, 14, 10}));
  EXPECT_EQ(to_vector(resize(9)(x, none)), to_vector(x));
}

TEST(Images, CropAndFlip) {
  RandomGenerator none;
  const Tensor x = image(9, 11);
  expect_reference("center", center_crop(6)(x, none));
  expect_reference("around", center_crop(12, 14)(x, none));
  EXPECT_EQ(to_vector(flipped(x)), to_vector(flip(x, {2})));
  EXPECT_EQ(to_vector(random_flip(1)(x, none)), to_vector(flipped(x)));
  EXPECT_EQ(to_vector(random_flip(0)(x, none)), to_vector(x));
  EXPECT_EQ(to_vector(cropped(x, {20, 0, 2, 2})), std::vector<double>(12, 0));
}

TEST(Images, ColorsAsTorchvision) {
  const Tensor x = image(9, 11);
  expect_reference("brightness", adjust_brightness(x, 1.7), 3);
  expect_reference("contrast", adjust_contrast(x, 0.3), 3);
  expect_reference("saturation", adjust_saturation(x, 1.6), 3);
  expect_reference("sharpness", adjust_sharpness(x, 1.8), 3);
  expect_reference("hue", adjust_hue(x, -0.2), 3);
  expect_reference("posterize", posterize(x, 3));
  expect_reference("solarize", solarize(x, 120.5));
  expect_reference("autocontrast", autocontrast(x), 3);
  expect_reference("equalize", equalize(image(31, 45)));
  const Tensor grey = image(9, 11, 1), two = image(2, 7);
  EXPECT_EQ(to_vector(adjust_hue(grey, 0.3)), to_vector(grey));
  EXPECT_EQ(to_vector(adjust_saturation(grey, 2)), to_vector(grey));
  EXPECT_EQ(to_vector(adjust_sharpness(two, 2)), to_vector(two));
  const Tensor flat = full({1, 3, 3}, 7, u8);
  EXPECT_EQ(to_vector(autocontrast(flat)), to_vector(flat));
  EXPECT_EQ(to_vector(equalize(flat)), to_vector(flat));
  EXPECT_EQ(to_vector(adjust_hue(x, 0)), to_vector(x));
}

TEST(Images, WarpAsTorchvision) {
  const Tensor x = image(9, 11);
  expect_reference("shear_x", warp(x, {1, 0.27, 0, 0, 1, 0}));
  expect_reference("shear_y", warp(x, {1, 0, 0, -0.23, 1, 0}));
  expect_reference("shift", warp(x, {1, 0, -3, 0, 1, 2}));
  const double angle = 27 * M_PI / 180, c = std::cos(angle), s = std::sin(angle);
  expect_reference("rotate",
                   warp(x, {c, -s, 5.5 - c * 5.5 + s * 4.5, s, c, 4.5 - s * 5.5 - c * 4.5}));
}

// Areas and ratios of crops of a picture whose values tell where they come from.
TEST(Images, RandomCropsHaveTheirAreaAndRatio) {
  Tensor t({1, 100, 200}, u8);
  for (int64_t i = 0; i < t.numel(); ++i) t.data<uint8_t>()[i] = uint8_t(i % 200);
  RandomGenerator random(3);
  double narrowest = 1000, widest = 0, leftmost = 1000, rightmost = 0;
  for (int i = 0; i < 300; ++i) {
    const Tensor crop = random_resized_crop(20, {.scale = {0.2, 0.5}, .ratio = {1, 1}})(t, random);
    ASSERT_EQ(crop.shape(), Shape({1, 20, 20}));
    const double width = (crop.at(15) - crop.at(5)) * 2;  // of 63 to 100 pixels
    narrowest = std::min(narrowest, width), widest = std::max(widest, width);
    leftmost = std::min(leftmost, crop.at(0)), rightmost = std::max(rightmost, crop.at(19));
  }
  EXPECT_NEAR(narrowest, 63, 5);
  EXPECT_NEAR(widest, 100, 5);
  EXPECT_LT(leftmost, 10);
  EXPECT_GT(rightmost, 190);
  // A strip has no such part: its middle.
  const Tensor strip = random_resized_crop(4)(image(2, 400, 1), random);
  EXPECT_EQ(to_vector(strip), to_vector(resized(image(2, 400, 1), {0, 198, 2, 3}, 4, 4)));
}

TEST(Images, RandomTransformsChangeAndRepeat) {
  const Tensor x = image(24, 30);
  for (const InputTransform& t :
       {random_resized_crop(16), color_jitter({0.4, 0.4, 0.4, 0.1}),
        rand_augment({.magnitude = 20}), compose({random_flip(), resize(8, 8)})}) {
    RandomGenerator one(5), same(5), other(6);
    const Tensor a = t(x, one);
    EXPECT_EQ(to_vector(t(x, same)), to_vector(a));
    EXPECT_EQ(one.offset(), same.offset());
    bool differ = false;
    for (int i = 0; i < 20; ++i) differ |= to_vector(t(x, other)) != to_vector(a);
    EXPECT_TRUE(differ);
  }
  RandomGenerator random(1);
  EXPECT_EQ(to_vector(color_jitter({})(x, random)), to_vector(x));
  EXPECT_EQ(to_vector(rand_augment({.ops = 0})(x, random)), to_vector(x));
  for (int i = 0; i < 100; ++i)  // each change is drawn
    EXPECT_EQ(rand_augment({.ops = 1, .magnitude = 30})(x, random).shape(), x.shape());
}

TEST(Images, RefuseWhatTheyCannotDo) {
  RandomGenerator random;
  const Tensor x = image(4, 4);
  EXPECT_ERROR(resized(zeros({3, 4, 4}), 2, 2),
               "an image must be u8 [channels, height, width] with 1 or 3 channels, got f32 [3, 4");
  EXPECT_ERROR(resized(Tensor({2, 4, 4}, u8), 2, 2), "got u8 [2, 4, 4]");
  EXPECT_ERROR(resized(Tensor(), 2, 2), "got no tensor");
  EXPECT_ERROR(resized(x, 0, 2), "an image must have a size > 0, got 0 x 2");
  EXPECT_ERROR(resized(x, {0, 2, 4, 3}, 2, 2),
               "the box of 4 x 3 pixels at 0, 2 is not within the image of 4 x 4");
  EXPECT_ERROR(resize(0), "an image must have sides of 1 to 67108864 pixels, got 0 x 0");
  EXPECT_ERROR(resize(int64_t(1) << 62), "an image must have sides of 1 to 67108864 pixels, got ");
  EXPECT_ERROR(resize(2)(Tensor({4}, u8), random),
               "an image must be [channels, height, width], got [4]");
  EXPECT_ERROR(adjust_contrast(x, -1), "a factor must be >= 0, got -1");
  EXPECT_ERROR(adjust_hue(x, 0.6), "turn must be from -0.5 to 0.5, got 0.6");
  EXPECT_ERROR(posterize(x, 9), "bits must be from 0 to 8, got 9");
  EXPECT_ERROR(random_flip(2), "probability must be from 0 to 1, got 2");
  EXPECT_ERROR(random_resized_crop(4, {.scale = {0, 1}}), "scale must be within 0 and 1, got 0 to");
  EXPECT_ERROR(random_resized_crop(4, {.ratio = {2, 1}}),
               "ratio must be > 0 and finite, got 2 to 1");
  EXPECT_ERROR(color_jitter({.contrast = -1}), "contrast must be >= 0 and finite, got -1");
  EXPECT_ERROR(color_jitter({.hue = 0.6}), "hue must be from 0 to 0.5, got 0.6");
  EXPECT_ERROR(resize(224)(zeros({1, 1, 20000}).to(u8), random),
               "an image of 1 x 20000 would become one of 224 x 4480000, above 67108864 pixels");
  EXPECT_ERROR(rand_augment({.ops = -1}), "ops must be >= 0, got -1");
  EXPECT_ERROR(rand_augment({.magnitude = 31}), "magnitude must be from 0 to 30, got 31");
}

// Pictures of different sizes, in memory.
struct Pictures final : Dataset {
  std::string name() const override { return "pictures"; }
  int64_t size() const override { return 12; }
  Example get(int64_t i) const override {
    return {image(20 + i, 30 - i), full({}, double(i), i64)};
  }
};

TEST(Mapped, HasTheSameBitsForAnyBatchesAndWorkers) {
  const auto all = [](int64_t batch_size, int workers, uint64_t epoch) {
    DataLoader loader(Mapped(Pictures(), compose({random_resized_crop(8), rand_augment()})),
                      {.batch_size = batch_size, .shuffle = true, .workers = workers, .seed = 4});
    loader.set_epoch(epoch);
    std::vector<double> values;
    for (const auto& [x, y] : loader) {
      const std::vector<double> more = to_vector(x);
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  };
  const std::vector<double> one = all(1, 0, 0);
  EXPECT_EQ(one.size(), 12u * 3 * 64);
  EXPECT_EQ(all(5, 0, 0), one);
  EXPECT_EQ(all(4, 3, 0), one);
  EXPECT_NE(all(4, 3, 1), one);
}

TEST(Mapped, NamesItsExamples) {
  const Mapped mapped(Pictures(), resize(4));
  EXPECT_EQ(mapped.name(), "pictures");
  EXPECT_EQ(mapped.size(), 12);
  const auto fails = [](const Tensor&, RandomGenerator&) -> Tensor { throw Error("cannot"); };
  EXPECT_ERROR(DataLoader(Mapped(Pictures(), fails)).batch(0),
               "pictures: epoch 0, batch 0: example 0: cannot");
}

// gather() of a data set that draws nothing leaves the thread's generator alone.
TEST(Mapped, DrawsOnlyWhereItMust) {
  const Seed seed(1);
  const std::array<int64_t, 3> rows{0, 5, 7};
  Mapped(Pictures(), resize(4, 4)).gather(rows);
  EXPECT_EQ(generator().offset(), 0u);
  Mapped(Pictures(), random_resized_crop(4)).gather(rows);
  EXPECT_GT(generator().offset(), 0u);
}

#if defined(MIXTAPE_JPEG) && defined(MIXTAPE_PNG)

TEST(Folder, ReadsJpegAndPngOfAnySizesByTheirContent) {
  const TempFolder folder;
  for (const std::string name : {"a", "b"}) std::filesystem::create_directories(folder / name);
  io::save_jpeg(folder / "a/1.JPEG", image(20, 30));
  io::save_png(folder / "a/2.jpg", image(10, 12));  // there are such files in ImageNet
  io::save_jpeg(folder / "b/3.jpg", image(160, 200, 1));
  const ImageFolder all(folder.path());
  EXPECT_EQ(all.get(0).x.shape(), Shape({3, 20, 30}));
  EXPECT_EQ(to_vector(all.get(1).x), to_vector(image(10, 12)));
  EXPECT_EQ(load_image(folder / "b/3.jpg", {.channels = 0}).shape(), Shape({1, 160, 200}));
  const auto small = from_folder(folder.path(), {.valid_fraction = 0.34, .min_side = 40});
  const ImageFolder halves(folder.path(), {.min_side = 40});
  EXPECT_EQ(halves.get(2).x.shape(), Shape({3, 40, 50}));
  EXPECT_EQ(small.train.size(), 2);
  const DataLoader loader(Mapped(all, compose({resize(16), center_crop(16)})), {.batch_size = 3});
  EXPECT_EQ(loader.batch(0).x.shape(), Shape({3, 3, 16, 16}));
  EXPECT_EQ(pixel_stats(all).mean.size(), 3u);
  test::spit(folder / "b/3.jpg", test::slurp(folder / "a/1.JPEG").substr(0, 700));
  EXPECT_ERROR(loader.batch(0), "b/3.jpg: Premature end of JPEG file");
}

#else

TEST(Folder, ReadsJpegAndPngOfAnySizesByTheirContent) {
  GTEST_SKIP() << "lacks libjpeg-turbo or libpng";
}

#endif

}  // namespace images_test
}  // namespace mixtape::train::images
