#pragma once
// Transforms: functions applied to the inputs of a batch. Random ones draw from a generator per
// example, so results depend on the loader's seed, the epoch and the position in it, not on the
// batch.

#include "core/random.h"
#include "train/data/dataset.h"

namespace mixtape::train {

// The context of one row of a batch.
struct RowContext {
  int64_t example;         // number in the data set
  RandomGenerator random;  // of this example in this epoch
};
// Maps [n, ...] on the CPU to [n, ...]; rows[i] belongs to x[i]. Must be thread-safe.
using Transform = std::function<Tensor(const Tensor& x, std::span<RowContext> rows)>;
// Maps one input [...] to [...], perhaps of another shape; may draw. Must be thread-safe.
using InputTransform = std::function<Tensor(const Tensor& x, RandomGenerator& random)>;

namespace transforms {

// Applies transforms one after the other.
Transform compose(std::vector<Transform> parts);
// Applies f, which maps [...] to [...], to each example. Errors name the example.
Transform each(InputTransform f);

// Converts to f32; u8 is divided by 255, to [0, 1].
Transform to_float();
// (to_float(x) - mean) / std in one pass, with one value for all elements or one per channel of
// [n, channels, ...]. Throws Error unless all are finite and std is positive.
Transform normalize(std::vector<double> mean, std::vector<double> std);
inline Transform normalize(double mean, double std) {
  return normalize(std::vector{mean}, std::vector{std});
}
Transform cast(DType dtype);  // converts x to the dtype

// Shifts images [n, ..., height, width] by up to `padding` pixels each way, and fills with zeros.
Transform random_crop(int64_t padding);
// Mirrors images [n, ..., height, width] left to right with this probability.
Transform random_flip(double probability = 0.5);

}  // namespace transforms

struct GridOptions {
  int64_t nrow = 8, padding = 2;  // images per row; pixels between and around them
  double pad_value = 0;
};
// Puts images [n, channels, height, width] side by side, like torchvision's make_grid: [channels,
// ...]. Throws Error without images.
Tensor make_grid(const Tensor& images, const GridOptions& options = {});

// The mean and standard deviation of to_float(x) per channel, for normalize().
struct PixelStats {
  std::vector<double> mean, std;
};
PixelStats pixel_stats(const Tensor& x);  // u8 [n, channels, height, width]; throws Error if empty
// For images on disk: an estimate from `images` images of any sizes, spread evenly over a data set.
PixelStats pixel_stats(const AnyDataset& data, int64_t images = 1000);

}  // namespace mixtape::train
