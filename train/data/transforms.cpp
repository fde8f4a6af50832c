// Transforms of whole batches. Random ones draw once per row, whatever its pixels.

#include "train/data/transforms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "train/data/stack.h"

namespace mixtape::train {
namespace transforms {
namespace {

// x * scale + shift in f32, per element or per channel (dimension 1).
Tensor affine(const Tensor& x, const std::vector<float>& scale, const std::vector<float>& shift) {
  const auto channels = int64_t(scale.size());
  check(channels == 1 || (x.rank() >= 2 && x.size(1) == channels),
        "means of {} channels do not fit inputs of shape {}", channels, x.shape());
  const Tensor dense = x.contiguous(), out(x.shape(), f32, Device::cpu());
  const int64_t planes = channels == 1 ? 1 : x.size(0) * channels;
  const int64_t size = planes == 0 ? 0 : x.numel() / planes;
  float* to = out.data<float>();
  visit(x.dtype(), [&]<class T>() {
    const T* from = static_cast<const T*>(dense.host());
    for (int64_t p = 0; p < planes; ++p) {
      const float a = scale[size_t(p % channels)], b = shift[size_t(p % channels)];
      for (int64_t i = 0; i < size; ++i) *to++ = float(*from++) * a + b;
    }
  });
  return out;
}

// Maps each image of x, planes of `height` lines, by f(row, from, to, lines, height, width).
template <class F>
Tensor map_images(const Tensor& x, std::span<RowContext> rows, const F& f) {
  check(x.rank() >= 3, "inputs must be images [n, ..., height, width], got {}", x.shape());
  check(x.size(0) == std::ssize(rows), "{} images for {} rows", x.size(0), rows.size());
  const Tensor dense = x.contiguous(), out(x.shape(), x.dtype(), Device::cpu());
  const int64_t height = x.size(-2), width = x.size(-1),
                image = x.numel() / std::max<int64_t>(1, x.size(0));
  visit(x.dtype(), [&]<class T>() {
    const T* from = static_cast<const T*>(dense.host());
    T* to = static_cast<T*>(out.host());
    for (RowContext& row : rows) {
      f(row, from, to, image / std::max<int64_t>(1, width), height, width);
      from += image, to += image;
    }
  });
  return out;
}

}  // namespace

Transform compose(std::vector<Transform> parts) {
  return [parts = std::move(parts)](const Tensor& x, std::span<RowContext> rows) {
    Tensor y = x;
    for (const Transform& part : parts) y = part(y, rows);
    return y;
  };
}

Transform each(InputTransform f) {
  return [f = std::move(f)](const Tensor& x, std::span<RowContext> rows) {
    Stack done("transformed input", int64_t(rows.size()));
    for (size_t i = 0; i < rows.size(); ++i)
      about([&] { return fmt::format("example {}", rows[i].example); },
            [&] {
              done.put(int64_t(i),
                       f(x.with_layout(select(x.layout(), 0, int64_t(i))), rows[i].random));
            });
    return done.all();
  };
}

Transform to_float() { return normalize(0, 1); }

Transform normalize(std::vector<double> mean, std::vector<double> std) {
  check(!mean.empty() && mean.size() == std.size(),
        "there must be means, and as many standard deviations, got {} and {}", mean.size(),
        std.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    check(std::isfinite(mean[i]), "means must be finite, got {}", mean[i]);
    check(std::isfinite(std[i]) && std[i] > 0, "standard deviations must be finite and > 0, got {}",
          std[i]);
  }
  std::vector<float> scale[2], shift;  // for u8, for others
  for (size_t i = 0; i < mean.size(); ++i) {
    scale[0].push_back(float(1 / (255 * std[i])));
    scale[1].push_back(float(1 / std[i]));
    shift.push_back(float(-mean[i] / std[i]));
  }
  return [bytes = scale[0], others = scale[1], shift](const Tensor& x, std::span<RowContext>) {
    return affine(x, x.dtype() == u8 ? bytes : others, shift);
  };
}

Transform cast(DType dtype) {
  return [dtype](const Tensor& x, std::span<RowContext>) { return x.to(dtype); };
}

Transform random_crop(int64_t padding) {
  check(0 <= padding && padding <= 65536, "padding must be from 0 to 65536, got {}", padding);
  return [padding](const Tensor& x, std::span<RowContext> rows) {
    return map_images(x, rows,
                      [&]<class T>(RowContext& row, const T* from, T* to, int64_t lines,
                                   int64_t height, int64_t width) {
                        const int64_t down = row.random.below(2 * padding + 1) - padding;
                        const int64_t right = row.random.below(2 * padding + 1) - padding;
                        // The part of a line that stays in the image.
                        const int64_t begin = std::clamp<int64_t>(-right, 0, width);
                        const int64_t end = std::clamp<int64_t>(width - right, 0, width);
                        for (int64_t line = 0; line < lines; ++line, to += width) {
                          std::fill_n(to, width, T(0.0f));
                          const int64_t y = line % height + down;
                          if (0 <= y && y < height && begin < end)
                            std::copy_n(from + (line + down) * width + begin + right, end - begin,
                                        to + begin);
                        }
                      });
  };
}

Transform random_flip(double probability) {
  check(probability >= 0 && probability <= 1, "probability must be from 0 to 1, got {}",
        probability);
  return [probability](const Tensor& x, std::span<RowContext> rows) {
    return map_images(
        x, rows,
        [&]<class T>(RowContext& row, const T* from, T* to, int64_t lines, int64_t, int64_t width) {
          const bool flip = row.random.uniform() < probability;
          for (int64_t line = 0; line < lines; ++line, from += width, to += width)
            flip ? std::reverse_copy(from, from + width, to) : std::copy_n(from, width, to);
        });
  };
}

}  // namespace transforms

Tensor make_grid(const Tensor& images, const GridOptions& o) {
  check(images.rank() == 4 && images.size(0) > 0,
        "a grid is made of images [n, channels, height, width], got {}", images.shape());
  check(o.nrow > 0 && 0 <= o.padding && o.padding <= 65536,
        "nrow must be > 0 and padding from 0 to 65536, got {} and {}", o.nrow, o.padding);
  const int64_t n = images.size(0), columns = std::min(o.nrow, n),
                rows = internal::ceil_div(n, columns), height = images.size(2),
                width = images.size(3);
  const NoGrad off;
  const Tensor grid = full({images.size(1), rows * (height + o.padding) + o.padding,
                            columns * (width + o.padding) + o.padding},
                           o.pad_value, images.dtype(), images.device());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t top = o.padding + i / columns * (height + o.padding),
                  left = o.padding + i % columns * (width + o.padding);
    copy_(narrow(narrow(grid, 1, top, height), 2, left, width), select(images, 0, i));
  }
  return grid;
}

namespace {

// Sums over the pixels of u8 images [n, channels, height, width] of any sizes.
struct PixelSums {
  std::vector<double> sum, squares;
  int64_t pixels = 0;

  void add(const Tensor& x) {
    check(x.rank() == 4 && x.dtype() == u8,
          "images must be u8 [n, channels, height, width], got {} {}", x.dtype(), x.shape());
    check(x.numel() > 0, "no images");
    const Tensor dense = x.contiguous();
    const int64_t channels = x.size(1), plane = x.size(2) * x.size(3);
    if (pixels == 0) sum.resize(size_t(channels)), squares.resize(size_t(channels));
    check(channels == std::ssize(sum), "images have {} channels, earlier ones {}", channels,
          sum.size());
    for (int64_t p = 0; p < x.size(0) * channels; ++p) {
      const uint8_t* const values = dense.data<uint8_t>() + p * plane;
      uint64_t s = 0, s2 = 0;
      for (int64_t k = 0; k < plane; ++k) s += values[k], s2 += uint64_t(values[k]) * values[k];
      sum[size_t(p % channels)] += double(s) / 255;
      squares[size_t(p % channels)] += double(s2) / (255 * 255);
    }
    pixels += x.size(0) * plane;
  }
  PixelStats stats() const {
    PixelStats stats;
    for (size_t c = 0; c < sum.size(); ++c) {
      const double mean = sum[c] / double(pixels);
      stats.mean.push_back(mean);
      stats.std.push_back(std::sqrt(std::max(1e-12, squares[c] / double(pixels) - mean * mean)));
    }
    return stats;
  }
};

}  // namespace

PixelStats pixel_stats(const Tensor& x) {
  PixelSums sums;
  sums.add(x);
  return sums.stats();
}

PixelStats pixel_stats(const AnyDataset& data, int64_t images) {
  const int64_t n = data->size(), count = std::min(n, images);
  check(count > 0, "{}: pixel_stats of {} images, at most {}", data->name(), n, images);
  PixelSums sums;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t i = k * n / count;
    about([&] { return data->name(); }, [&] { sums.add(data->gather({&i, 1}).x); });
  }
  return sums.stats();
}

}  // namespace mixtape::train
