// Data sets, batches, subsets and transforms.

#include "train/data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "autograd/ops.h"
#include "core/random.h"
#include "tests/support/errors.h"
#include "train/data/transforms.h"

namespace mixtape::train {
namespace dataset_test {

using Values = std::vector<double>;

TensorDataset counting(int64_t n) {
  return {arange(0, double(2 * n)).reshape({n, 2}), arange(100, double(100 + n)), "counting"};
}

// Example i has i + 1 elements or another dtype.
class Ragged final : public Dataset {
 public:
  explicit Ragged(bool types) : types_(types) {}
  std::string name() const override { return "ragged"; }
  int64_t size() const override { return 3; }
  Example get(int64_t i) const override {
    if (types_) return {zeros({2}, i == 2 ? f64 : f32), zeros({}, i64)};
    return {zeros({i + 1}), zeros({}, i64)};
  }

 private:
  bool types_;
};

// Defines get() only, to test the default gather().
class OneByOne final : public Dataset {
 public:
  explicit OneByOne(TensorDataset of) : of_(std::move(of)) {}
  int64_t size() const override { return of_.size(); }
  Example get(int64_t i) const override { return of_.get(i); }

 private:
  TensorDataset of_;
};

TEST(Dataset, StacksWhatItGives) {
  const TensorDataset fast = counting(5);
  const OneByOne slow(fast);
  EXPECT_EQ(slow.name(), "OneByOne");
  const int64_t some[] = {3, 0, 3};
  for (const Dataset* data :
       {static_cast<const Dataset*>(&fast), static_cast<const Dataset*>(&slow)}) {
    const Batch b = data->gather(some);
    EXPECT_EQ(b.x.shape(), Shape({3, 2}));
    EXPECT_EQ(to_vector(b.x), (Values{6, 7, 0, 1, 6, 7}));
    EXPECT_EQ(to_vector(b.y), (Values{103, 100, 103}));
    EXPECT_EQ(b.y.shape(), Shape({3}));
  }
  EXPECT_EQ(to_vector(fast.get(1).x), (Values{2, 3}));
  EXPECT_EQ(fast.get(1).y.shape(), Shape());
}

TEST(Dataset, ReadsAPartOfALargerTensorInItsOrder) {
  const Tensor all = arange(0, 12).reshape({3, 4});
  const TensorDataset columns(all.t(), arange(0, 4));
  EXPECT_EQ(to_vector(columns.get(2).x), (Values{2, 6, 10}));
  const TensorDataset part = counting(5).rows(2, 4);
  EXPECT_EQ(part.size(), 2);
  EXPECT_EQ(to_vector(part.x()), (Values{4, 5, 6, 7}));
  EXPECT_EQ(part.name(), "counting");
}

TEST(Dataset, RefusesWhatDoesNotFit) {
  const int64_t all[] = {0, 1, 2}, outside[] = {1, 5};
  EXPECT_ERROR(Ragged(false).gather(all),
               "example 1: its input is f32 [2], but the first in the batch has f32 [1]");
  EXPECT_ERROR(Ragged(true).gather(all),
               "example 2: its input is f64 [2], but the first in the batch has f32 [2]");
  EXPECT_ERROR(counting(5).gather(outside), "counting: example 5 is out of range for 5");
  EXPECT_ERROR(TensorDataset(zeros({2}), zeros({2})).gather({}),
               "a batch needs at least one example");
  EXPECT_ERROR(counting(5).get(-1), "counting: example -1 is out of range for 5");
  EXPECT_ERROR(counting(5).rows(3, 6), "counting: examples 3 to 6 are out of range for 5");
  EXPECT_ERROR(TensorDataset(zeros({3, 2}), zeros({4}), "xy"),
               "xy: inputs of shape [3, 2] need as many targets, got [4]");
  EXPECT_ERROR(TensorDataset(zeros({}), zeros({4})), "inputs of shape []");
  EXPECT_ERROR(Subset(counting(5), {0, 5}), "counting: example 5 is out of range for 5");
  EXPECT_ERROR(Subset(counting(5), {0, 2}).get(2),
               "counting: example 2 is out of range for a subset of 2");
  EXPECT_ERROR(Subset(counting(5), {0, 2}).gather(outside),
               "example 5 is out of range for a subset of 2");
  EXPECT_EQ(TensorDataset().size(), 0);
  EXPECT_EQ(Subset().size(), 0);
}

TEST(Split, DrawsWhatValidates) {
  const auto parts = split(counting(20), {.valid_fraction = 0.25, .seed = 3});
  EXPECT_EQ(parts.train.size(), 15);
  EXPECT_EQ(parts.valid.size(), 5);
  std::set<int64_t> all;
  for (const Subset* part : {&parts.train, &parts.valid}) {
    EXPECT_TRUE(std::is_sorted(part->indices().begin(), part->indices().end()));
    all.insert(part->indices().begin(), part->indices().end());
  }
  EXPECT_EQ(all.size(), 20u);
  const int64_t first = parts.valid.indices()[0];
  EXPECT_EQ(parts.valid.get(0).y.item(), double(100 + first));
  EXPECT_EQ(split(counting(20), {.valid_fraction = 0.25, .seed = 3}).valid.indices(),
            parts.valid.indices());
  EXPECT_NE(split(counting(20), {.valid_fraction = 0.25, .seed = 4}).valid.indices(),
            parts.valid.indices());
  EXPECT_ERROR(split(counting(20), {.valid_fraction = 1}),
               "valid_fraction must be between 0 and 1, got 1");
  EXPECT_ERROR(split(counting(20), {.valid_fraction = 0.01}),
               "counting: 20 examples cannot be split with 0.01 for validation");
}

// ---- transforms

// The transformed x, with rows numbered from 0 and a generator each.
Tensor applied(const Transform& t, const Tensor& x, uint64_t seed = 1) {
  std::vector<RowContext> rows;
  for (int64_t i = 0; i < x.size(0); ++i) rows.push_back({i, RandomGenerator(seed + uint64_t(i))});
  return t(x, rows);
}

TEST(Transforms, NormaliseByMeanAndDeviation) {
  const Tensor x = arange(0, 256).to(u8).reshape({4, 1, 8, 8});
  const PixelStats stats = pixel_stats(x);
  ASSERT_EQ(stats.mean.size(), 1u);
  EXPECT_NEAR(stats.mean[0], 0.5, 1e-12);
  EXPECT_NEAR(stats.std[0], std::sqrt((256.0 * 256 - 1) / 12) / 255, 1e-12);  // uniform
  const Tensor y = applied(transforms::normalize(stats.mean, stats.std), x);
  EXPECT_EQ(y.dtype(), f32);
  EXPECT_NEAR(mean(y).item(), 0, 1e-6);
  EXPECT_NEAR(mean(mul(y, y)).item(), 1, 1e-6);
  const Tensor again =
      applied(transforms::normalize(stats.mean, stats.std), applied(transforms::to_float(), x));
  EXPECT_LT(max(abs(sub(y, again))).item(), 1e-5);
}

TEST(Transforms, NormaliseByAPartOfADataSet) {
  const Tensor x = arange(0, 240).to(u8).reshape({60, 1, 2, 2});
  const TensorDataset data(x, zeros({60}));
  EXPECT_EQ(pixel_stats(data).mean, pixel_stats(x).mean);
  const Tensor third = cat({slice(x, 0, 0, 1), slice(x, 0, 20, 21), slice(x, 0, 40, 41)});
  EXPECT_EQ(pixel_stats(data, 3).mean, pixel_stats(third).mean);
  EXPECT_EQ(pixel_stats(data, 3).std, pixel_stats(third).std);
  EXPECT_ERROR(pixel_stats(TensorDataset()), "pixel_stats of 0 images");
}

TEST(Transforms, NormaliseEachChannel) {
  const Tensor x =
      stack({full({2, 2, 2}, 51, u8), full({2, 2, 2}, 102, u8), full({2, 2, 2}, 255, u8)}, 1);
  const PixelStats stats = pixel_stats(x);
  ASSERT_EQ(stats.mean.size(), 3u);
  EXPECT_NEAR(stats.mean[0], 0.2, 1e-12);
  EXPECT_NEAR(stats.mean[1], 0.4, 1e-12);
  EXPECT_NEAR(stats.mean[2], 1, 1e-12);
  EXPECT_GT(stats.std[0], 0);  // positive, although all pixels are equal
  const Tensor y = applied(transforms::normalize({0, 0.4, 0.5}, {1, 1, 0.25}), x);
  const Values of_one = to_vector(select(select(y, 0, 1), 1, 0));
  EXPECT_NEAR(of_one[0], 0.2, 1e-6);
  EXPECT_NEAR(of_one[2], 0, 1e-6);
  EXPECT_NEAR(of_one[4], 2, 1e-6);
  EXPECT_ERROR(applied(transforms::normalize({0, 0}, {1, 1}), x),
               "means of 2 channels do not fit inputs of shape [2, 3, 2, 2]");
}

TEST(Transforms, Cast) {
  const Tensor x = from({1, 2.5, 300}, {3, 1});
  EXPECT_EQ(applied(transforms::cast(f16), x).dtype(), f16);
  EXPECT_EQ(to_vector(applied(transforms::cast(f16), x)), (Values{1, 2.5, 300}));
  EXPECT_NEAR(applied(transforms::to_float(), from({0, 51, 255}, {3}, u8)).at(1), 0.2, 1e-7);
  EXPECT_EQ(applied(transforms::to_float(), from({7, 51, 255}, {3}, i64)).at(1), 51);
}

// Every crop of a padded image occurs about equally often, and nothing else does.
TEST(Transforms, CropIsAPartOfThePaddedImage) {
  const Tensor one = add(arange(0, 12), 1.0).to(u8).reshape({1, 1, 3, 4});
  const Tensor padded = pad(one.to(f32), {2, 2, 2, 2});
  const Tensor y = applied(transforms::random_crop(2), one.to(f32).to(u8).reshape({1, 1, 3, 4}));
  EXPECT_EQ(y.shape(), one.shape());
  std::set<Values> crops, seen;
  for (int64_t top = 0; top < 5; ++top)
    for (int64_t left = 0; left < 5; ++left)
      crops.insert(to_vector(slice(slice(padded, 2, top, top + 3), 3, left, left + 4)));
  EXPECT_EQ(crops.size(), 25u);
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Values crop = to_vector(applied(transforms::random_crop(2), one, seed));
    EXPECT_TRUE(crops.contains(crop)) << seed;
    seen.insert(crop);
  }
  EXPECT_EQ(seen.size(), 25u);
  EXPECT_EQ(to_vector(applied(transforms::random_crop(0), one)), to_vector(one));
  // Shifts may exceed the image, and are the same for all channels.
  const Tensor two = cat({one, one}, 1);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Tensor both = applied(transforms::random_crop(9), two, seed);
    EXPECT_EQ(to_vector(select(both, 1, 0)), to_vector(select(both, 1, 1)));
  }
}

TEST(Transforms, FlipMirrorsHalfOfTheImages) {
  const Tensor x = expand(arange(0, 6).reshape({1, 1, 2, 3}), {400, 1, 2, 3});
  for (const DType t : {u8, f16, f32, i64}) {
    const Tensor y = applied(transforms::random_flip(), x.to(t));
    EXPECT_EQ(y.dtype(), t);
    int flipped = 0;
    for (int64_t i = 0; i < 400; ++i) {
      const Values image = to_vector(select(y, 0, i));
      const bool mirrored = image == Values{2, 1, 0, 5, 4, 3};
      EXPECT_TRUE(mirrored || image == (Values{0, 1, 2, 3, 4, 5}));
      flipped += mirrored;
    }
    EXPECT_GT(flipped, 140);
    EXPECT_LT(flipped, 260);
  }
  EXPECT_EQ(to_vector(select(applied(transforms::random_flip(1), x), 0, 5)),
            (Values{2, 1, 0, 5, 4, 3}));
  EXPECT_EQ(to_vector(select(applied(transforms::random_flip(0), x), 0, 5)),
            (Values{0, 1, 2, 3, 4, 5}));
}

TEST(Transforms, EachSeesOneExample) {
  const Transform t = transforms::each([](const Tensor& x, RandomGenerator& random) {
    EXPECT_EQ(x.shape(), Shape({2}));
    return full({3}, x.at(0) + double(random.below(2)) * 0);
  });
  const Tensor y =
      applied(transforms::compose({t, transforms::cast(f64)}), from({1, 2, 3, 4}, {2, 2}));
  EXPECT_EQ(to_vector(y), (Values{1, 1, 1, 3, 3, 3}));
  EXPECT_EQ(y.dtype(), f64);
  const Transform ragged =
      transforms::each([](const Tensor& x, RandomGenerator&) { return zeros({int64_t(x.at(0))}); });
  EXPECT_ERROR(applied(ragged, from({1, 2, 3, 4}, {2, 2})),
               "example 1: its transformed input is f32 [3], but the first");
}

TEST(Transforms, RefuseWhatMakesNoSense) {
  EXPECT_ERROR(transforms::normalize(NAN, 1), "means must be finite, got nan");
  EXPECT_ERROR(transforms::normalize(0, 0), "standard deviations must be finite and > 0, got 0");
  EXPECT_ERROR(transforms::normalize(0, INFINITY),
               "standard deviations must be finite and > 0, got inf");
  EXPECT_ERROR(transforms::normalize({0, 1}, {1}),
               "there must be means, and as many standard deviations, got 2 and 1");
  EXPECT_ERROR(transforms::random_crop(-1), "padding must be from 0 to 65536, got -1");
  EXPECT_ERROR(transforms::random_crop(int64_t(1) << 62), "padding must be from 0 to 65536, got ");
  EXPECT_ERROR(transforms::random_flip(1.5), "probability must be from 0 to 1, got 1.5");
  EXPECT_ERROR(applied(transforms::random_flip(), zeros({2, 3})),
               "inputs must be images [n, ..., height, width], got [2, 3]");
  EXPECT_ERROR(applied(transforms::random_crop(1), zeros({2, 3})), "inputs must be images");
  std::vector<RowContext> rows(3);
  EXPECT_ERROR(transforms::random_crop(1)(zeros({2, 3, 3}), rows), "2 images for 3 rows");
  EXPECT_ERROR(pixel_stats(zeros({0, 1, 2, 2}, u8)), "no images");
  EXPECT_ERROR(pixel_stats(zeros({2, 2})),
               "images must be u8 [n, channels, height, width], got f32 [2, 2]");
}

}  // namespace dataset_test
}  // namespace mixtape::train
