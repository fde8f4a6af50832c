#pragma once
// Transforms: what happens to the inputs of a batch between the data set and the network. Random
// ones draw from a generator per example, so what becomes of it depends on the loader's seed, the
// epoch and its place there, and neither on the batch it is in nor on who makes that.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/random.h"
#include "core/tensor.h"
#include "train/data/dataset.h"

namespace mixtape::train {

struct Row {
  int64_t example;   // its number in the data set
  Generator random;  // its own, anew in each epoch
};
// From [n, ...] on the CPU to [n, ...], rows[i] being about x[i]. Several threads call one at once.
using Transform = std::function<Tensor(const Tensor& x, std::span<Row> rows)>;

namespace transforms {

// One after the other.
Transform compose(std::vector<Transform> parts);
// The same for every example, one at a time: from [...] to [...]. Errors name the example.
Transform each(std::function<Tensor(const Tensor& x, Generator& random)> f);

// To f32: u8 over 255, so that it is within 0 to 1; other types as they are.
Transform to_float();
// (to_float - mean) / std in one pass. One number of each serves all elements; several are for the
// channels of [n, channels, ...]. Throws Error unless all are finite and std is positive.
Transform normalize(std::vector<double> mean, std::vector<double> std);
inline Transform normalize(double mean, double std) {
  return normalize(std::vector{mean}, std::vector{std});
}
Transform cast(DType dtype);

// Images [n, ..., height, width], moved by up to `padding` pixels each way; zeros come in.
Transform random_crop(int64_t padding);
// Images [n, ..., height, width], mirrored left to right with that probability.
Transform random_flip(double probability = 0.5);

}  // namespace transforms

// Of to_float(x), for normalize: per channel of [n, channels, height, width].
struct PixelStats {
  std::vector<double> mean, std;
};
PixelStats pixel_stats(const Tensor& x);  // u8; throws Error if there is no pixel
// The same of a data set, by so many of its images, spread evenly: for those that stay on the disk.
PixelStats pixel_stats(const AnyDataset& data, int64_t images = 1000);

}  // namespace mixtape::train
