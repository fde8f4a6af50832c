// Loader: every image once per epoch, beside its label, in an order that a seed and the epoch
// decide.

#include "train/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/check.h"
#include "core/random.h"
#include "tests/support/temp_folder.h"

namespace mixtape::train {
namespace {

// Image i is i everywhere, and so is its label.
Images numbered(int64_t n, int64_t height = 2, int64_t width = 3) {
  const Images images{Tensor({n, height, width}, u8), Tensor({n}, i64)};
  for (int64_t i = 0; i < n * height * width; ++i)
    images.pixels.data<uint8_t>()[i] = uint8_t(i / (height * width));
  for (int64_t i = 0; i < n; ++i) images.labels.data<int64_t>()[i] = i;
  return images;
}

// The labels of one epoch, in order. Checks that each image is beside its label.
std::vector<int64_t> epoch(Loader& loader) {
  std::vector<int64_t> seen;
  for (const auto& [x, y] : loader) {
    const int64_t pixels = x.size(2) * x.size(3);
    for (int64_t k = 0; k < y.numel(); ++k) {
      seen.push_back(int64_t(y.at(k)));
      for (int64_t p = 0; p < pixels; ++p)
        EXPECT_FLOAT_EQ(float(x.at(k * pixels + p)), float(y.at(k) / 255));
    }
  }
  return seen;
}

TEST(Loader, GivesImagesInOrderAndALastBatchThatIsSmaller) {
  Loader loader(numbered(10), {.batch_size = 4});
  EXPECT_EQ(loader.examples(), 10);
  EXPECT_EQ(loader.batches(), 3);
  EXPECT_EQ(epoch(loader), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  const Batch last = loader.batch(2);
  EXPECT_EQ(last.x.shape(), Shape({2, 1, 2, 3}));
  EXPECT_EQ(last.x.dtype(), f32);
  EXPECT_EQ(last.y.shape(), Shape({2}));
  EXPECT_EQ(last.y.dtype(), i64);
}

TEST(Loader, DropsALastBatchThatIsSmaller) {
  Loader dropping(numbered(10), {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(dropping.batches(), 2);
  EXPECT_EQ(epoch(dropping).size(), 8u);
  Loader exact(numbered(8), {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(epoch(exact).size(), 8u);
  Loader none(numbered(3), {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(none.batches(), 0);
  EXPECT_TRUE(epoch(none).empty());
}

TEST(Loader, AcceptsBatchesOfAnySize) {
  Loader loader(numbered(5), {.batch_size = std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(loader.batches(), 1);
  EXPECT_EQ(epoch(loader).size(), 5u);
  Loader empty(numbered(0));
  EXPECT_EQ(empty.batches(), 0);
  EXPECT_TRUE(epoch(empty).empty());
}

TEST(Loader, ShufflesDifferentlyInEachEpochAndTheSameForOneSeed) {
  const LoaderOptions options{.batch_size = 32, .shuffle = true, .seed = 7};
  Loader one(numbered(200), options), two(numbered(200), options);
  const auto first = epoch(one), second = epoch(one);
  EXPECT_EQ(epoch(two), first);
  EXPECT_EQ(epoch(two), second);
  EXPECT_NE(first, second);
  for (const auto& order : {first, second}) {
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), 200u);
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  }
  Loader other(numbered(200), {.batch_size = 32, .shuffle = true, .seed = 8});
  EXPECT_NE(epoch(other), first);
}

// The order belongs to the loader: it neither uses nor disturbs the numbers that a model draws.
TEST(Loader, LeavesTheGeneratorAlone) {
  const Seed seed(3);
  const uint64_t before = generator().offset();
  Loader loader(numbered(50), {.shuffle = true});
  epoch(loader);
  EXPECT_EQ(generator().offset(), before);
}

// Each of the 50 places is taken by each image about equally often.
TEST(Loader, ShufflesWithoutFavour) {
  Loader loader(numbered(50), {.batch_size = 50, .shuffle = true, .seed = 1});
  std::vector<int> at_front(50);
  constexpr int epochs = 5000;
  for (int i = 0; i < epochs; ++i) {
    loader.begin();
    ++at_front[size_t(loader.batch(0).y.at(0))];
  }
  double chi2 = 0;
  for (const int n : at_front) chi2 += (n - epochs / 50.0) * (n - epochs / 50.0) / (epochs / 50.0);
  EXPECT_LT(chi2, 85.4);  // exceeded once in a thousand (49 degrees of freedom)
}

TEST(Loader, NormalisesByMeanAndDeviation) {
  const Images images = numbered(256);
  const PixelStats stats = pixel_stats(images);
  EXPECT_NEAR(stats.mean, 0.5, 1e-12);
  EXPECT_NEAR(stats.std, std::sqrt((256.0 * 256 - 1) / 12) / 255, 1e-12);  // of 0 to 255, uniform
  Loader loader(images, {.batch_size = 256, .mean = stats.mean, .std = stats.std});
  const Batch batch = loader.batch(0);
  double sum = 0, squares = 0;
  for (const double v : to_vector(batch.x)) sum += v, squares += v * v;
  const double n = double(batch.x.numel());
  EXPECT_NEAR(sum / n, 0, 1e-6);
  EXPECT_NEAR(squares / n, 1, 1e-6);
}

TEST(Loader, StatsOfEqualPixelsAreUsable) {
  const PixelStats stats = pixel_stats(numbered(1));
  EXPECT_EQ(stats.mean, 0);
  EXPECT_GT(stats.std, 0);
  EXPECT_ERROR(pixel_stats(numbered(0)), "no images");
}

TEST(Loader, ReadsAPartOfALargerTensor) {
  const Images all = numbered(10);
  const auto rows = [](const Tensor& t) { return t.with_layout(slice(t.layout(), 0, 6, 10)); };
  Loader loader({rows(all.pixels), rows(all.labels)}, {.batch_size = 3});
  EXPECT_EQ(epoch(loader), (std::vector<int64_t>{6, 7, 8, 9}));
}

TEST(Loader, RefusesWhatDoesNotFit) {
  const Images good = numbered(4);
  EXPECT_ERROR(Loader({good.pixels, numbered(3).labels}), "3 labels of shape [3] for images");
  EXPECT_ERROR(Loader({good.labels, good.labels}), "images are i64 [4], not u8");
  EXPECT_ERROR(Loader(good, {.batch_size = 0}), "batches of 0");
  EXPECT_ERROR(Loader(good, {.mean = NAN}), "a mean of nan");
  EXPECT_ERROR(Loader(good, {.std = 0}), "a standard deviation of 0");
  EXPECT_ERROR(Loader(good, {.std = INFINITY}), "a standard deviation of inf");
  EXPECT_ERROR(Loader(good, {.batch_size = 3}).batch(2), "batch 2 of 2");
  EXPECT_ERROR(Loader(good).batch(-1), "batch -1 of 1");
}

}  // namespace
}  // namespace mixtape::train
