#include "train/data/loader.h"

#include <cmath>
#include <numeric>

#include "core/check.h"
#include "core/format.h"
#include "core/random.h"

namespace mixtape::train {

Loader::Loader(Images images, const LoaderOptions& options)
    : images_(std::move(images)), options_(options) {
  check(images_.pixels.rank() == 3 && images_.pixels.dtype() == u8,
        "images are {} {}, not u8 [n, height, width]", images_.pixels.dtype(),
        images_.pixels.shape());
  check(images_.labels.shape() == Shape{images_.pixels.size(0)},
        "{} labels of shape {} for images of shape {}", images_.labels.numel(),
        images_.labels.shape(), images_.pixels.shape());
  check(options.batch_size > 0, "batches of {}", options.batch_size);
  check(std::isfinite(options.mean), "a mean of {}", options.mean);
  check(std::isfinite(options.std) && options.std > 0, "a standard deviation of {}", options.std);
  order_.resize(size_t(examples()));
  std::iota(order_.begin(), order_.end(), 0);
}

int64_t Loader::batches() const {
  const int64_t n = examples(), b = options_.batch_size;
  return n / b + (!options_.drop_last && n % b > 0);
}

Loader::Iterator Loader::begin() {
  if (options_.shuffle) {
    std::iota(order_.begin(), order_.end(), 0);
    Generator g(options_.seed);
    g.set_offset(epoch_++ << 32);  // a stretch of the stream for each epoch
    for (int64_t i = examples() - 1; i > 0; --i) std::swap(order_[i], order_[g.below(i + 1)]);
  }
  return {this, 0};
}

Batch Loader::batch(int64_t i) const {
  check(i >= 0 && i < batches(), "batch {} of {}", i, batches());
  const int64_t first = i * options_.batch_size,
                n = std::min(options_.batch_size, examples() - first);
  const int64_t h = images_.pixels.size(1), w = images_.pixels.size(2);
  Batch b{Tensor({n, 1, h, w}, f32, Device::cpu()), Tensor({n}, i64, Device::cpu())};
  const float scale = float(1 / (255 * options_.std)), shift = float(-options_.mean / options_.std);
  const uint8_t* const pixels = images_.pixels.data<uint8_t>();
  const int64_t* const labels = images_.labels.data<int64_t>();
  float* out = b.x.data<float>();
  for (int64_t k = 0; k < n; ++k) {
    const int64_t source = order_[first + k];
    for (int64_t p = 0; p < h * w; ++p) *out++ = float(pixels[source * h * w + p]) * scale + shift;
    b.y.data<int64_t>()[k] = labels[source];
  }
  return b;
}

PixelStats pixel_stats(const Images& images) {
  const uint8_t* const p = images.pixels.data<uint8_t>();
  const int64_t n = images.pixels.numel();
  check(n > 0, "no images");
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = p[i] / 255.0;
    sum += v;
    squares += v * v;
  }
  const double mean = sum / double(n);
  return {mean, std::sqrt(std::max(1e-12, squares / double(n) - mean * mean))};
}

}  // namespace mixtape::train
