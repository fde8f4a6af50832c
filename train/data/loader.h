#pragma once
// Loader: images as batches ready for a network, in an order that depends on the seed and the epoch
// alone.

#include <vector>

#include "train/data/images.h"

namespace mixtape::train {

struct Batch {
  Tensor x;  // f32 [n, 1, height, width]: (pixel / 255 - mean) / std
  Tensor y;  // i64 [n]
};

struct LoaderOptions {
  int64_t batch_size = 64;
  bool shuffle = false;
  bool drop_last = false;  // leave out a last batch that is smaller
  uint64_t seed = 0;
  double mean = 0, std = 1;
};

//   for (const auto& [x, y] : loader) ...      // one epoch; the next loop is the next epoch
class Loader {
 public:
  // Throws Error if images and labels do not fit each other, the batch size or std is not positive,
  // or mean or std is not finite.
  Loader(Images images, const LoaderOptions& options = {});

  int64_t examples() const { return images_.labels.numel(); }
  int64_t batches() const;
  Batch batch(int64_t i) const;  // of the current epoch; throws Error if there is no such batch

  class Iterator {
   public:
    Iterator(const Loader* loader, int64_t i) : loader_(loader), i_(i) {}
    Batch operator*() const { return loader_->batch(i_); }
    Iterator& operator++() {
      ++i_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return i_ == other.i_; }

   private:
    const Loader* loader_;
    int64_t i_;
  };
  Iterator begin();  // starts an epoch
  Iterator end() const { return {this, batches()}; }

 private:
  Images images_;
  LoaderOptions options_;
  std::vector<int64_t> order_;
  uint64_t epoch_ = 0;
};

// Mean and standard deviation of pixel / 255 over all images.
struct PixelStats {
  double mean, std;
};
PixelStats pixel_stats(const Images& images);

}  // namespace mixtape::train
