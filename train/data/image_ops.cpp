// Resampling works as in PIL, with 22-bit weights, first along rows, then along columns, each
// rounded to bytes; colours as in torchvision, in f32, truncated to bytes.

#include "train/data/image_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "core/format.h"

namespace mixtape::train::images {
namespace {

struct Planes {
  Tensor dense;
  int64_t channels, height, width;
  const uint8_t* data;

  explicit Planes(const Tensor& image) {
    check(image && image.dtype() == u8 && image.rank() == 3 && image.device().is_host() &&
              (image.size(0) == 1 || image.size(0) == 3) && image.numel() > 0,
          "an image must be u8 [channels, height, width] with 1 or 3 channels, got {}",
          image ? fmt::format("{} {}", image.dtype(), image.shape()) : "no tensor");
    dense = image.contiguous();
    channels = dense.size(0), height = dense.size(1), width = dense.size(2);
    data = dense.data<uint8_t>();
  }
  int64_t plane() const { return height * width; }
};

Tensor image_of(int64_t channels, int64_t height, int64_t width) {
  check(height > 0 && width > 0, "an image must have a size > 0, got {} x {}", height, width);
  return Tensor({channels, height, width}, u8, Device::cpu());
}

uint8_t cut_off(float x) { return uint8_t(std::clamp(x, 0.0f, 255.0f)); }

// ---- resampling

constexpr int weight_bits = 32 - 8 - 2;

// The inputs of each output, and their weights.
struct Resampling {
  int64_t most;
  std::vector<int64_t> first, count;
  std::vector<int32_t> weights;  // [outputs, most]

  Resampling(int64_t in, int64_t out) {
    const double scale = double(in) / double(out), wide = std::max(scale, 1.0);
    most = int64_t(std::ceil(wide)) * 2 + 1;
    weights.resize(size_t(out * most));
    std::vector<double> exact(static_cast<size_t>(most));
    for (int64_t i = 0; i < out; ++i) {
      const double center = (double(i) + 0.5) * scale;
      const int64_t from = std::max<int64_t>(0, int64_t(center - wide + 0.5));
      const int64_t to = std::min(in, int64_t(center + wide + 0.5));
      double sum = 0;
      for (int64_t k = 0; k < to - from; ++k) {
        const double distance = std::abs((double(from + k) - center + 0.5) / wide);
        sum += exact[size_t(k)] = std::max(0.0, 1 - distance);
      }
      for (int64_t k = 0; k < to - from; ++k)
        weights[size_t(i * most + k)] = int32_t(0.5 + exact[size_t(k)] / sum * (1 << weight_bits));
      first.push_back(from);
      count.push_back(to - from);
    }
  }
};

uint8_t rounded(int32_t sum) { return uint8_t(std::clamp(sum >> weight_bits, 0, 255)); }
constexpr int32_t half_weight = 1 << (weight_bits - 1);

void resample_rows(const uint8_t* from, int64_t step, int64_t lines, const Resampling& r,
                   uint8_t* to) {
  const auto width = int64_t(r.first.size());
  for (int64_t line = 0; line < lines; ++line, from += step, to += width)
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* pixel = from + r.first[size_t(x)];
      const int32_t* weight = r.weights.data() + x * r.most;
      int32_t sum = half_weight;
      for (int64_t k = 0; k < r.count[size_t(x)]; ++k) sum += pixel[k] * weight[k];
      to[x] = rounded(sum);
    }
}

void resample_columns(const uint8_t* from, int64_t step, int64_t width, const Resampling& r,
                      uint8_t* to) {
  std::vector<int32_t> sums(static_cast<size_t>(width));
  for (size_t y = 0; y < r.first.size(); ++y, to += width) {
    std::fill(sums.begin(), sums.end(), half_weight);
    for (int64_t k = 0; k < r.count[y]; ++k) {
      const uint8_t* line = from + (r.first[y] + k) * step;
      const int32_t weight = r.weights[y * size_t(r.most) + size_t(k)];
      for (int64_t x = 0; x < width; ++x) sums[size_t(x)] += line[x] * weight;
    }
    for (int64_t x = 0; x < width; ++x) to[x] = rounded(sums[size_t(x)]);
  }
}

// ---- colours

// Grey values in one plane; for colours their luminance.
std::vector<uint8_t> greys(const Planes& p) {
  std::vector<uint8_t> grey(p.data, p.data + p.plane());
  if (p.channels == 3)
    for (int64_t i = 0; i < p.plane(); ++i)
      grey[size_t(i)] = cut_off(0.2989f * float(p.data[i]) + 0.587f * float(p.data[p.plane() + i]) +
                                0.114f * float(p.data[2 * p.plane() + i]));
  return grey;
}

// factor * image + (1 - factor) * other(i), where i counts bytes
template <class F>
Tensor blended(const Planes& p, double factor, const F& other) {
  check(factor >= 0, "a factor must be >= 0, got {}", factor);
  const Tensor out = image_of(p.channels, p.height, p.width);
  const float mine = float(factor), rest = float(1 - factor);
  for (int64_t i = 0; i < p.channels * p.plane(); ++i)
    out.data<uint8_t>()[i] = cut_off(mine * float(p.data[i]) + rest * float(other(i)));
  return out;
}

// Maps bytes by a table per channel.
template <class F>
Tensor by_tables(const Tensor& image, const F& table_of) {
  const Planes p(image);
  const Tensor out = image_of(p.channels, p.height, p.width);
  for (int64_t c = 0; c < p.channels; ++c) {
    const uint8_t* from = p.data + c * p.plane();
    const std::array<uint8_t, 256> table = table_of(std::span(from, size_t(p.plane())));
    std::transform(from, from + p.plane(), out.data<uint8_t>() + c * p.plane(),
                   [&](uint8_t v) { return table[v]; });
  }
  return out;
}

template <class F>
std::array<uint8_t, 256> table(const F& f) {
  std::array<uint8_t, 256> values;
  for (int v = 0; v < 256; ++v) values[size_t(v)] = uint8_t(f(v));
  return values;
}

struct Hsv {
  float hue, saturation, value;
};

Hsv to_hsv(float r, float g, float b) {
  const float most = std::max({r, g, b}), least = std::min({r, g, b}), range = most - least;
  if (range == 0) return {0, 0, most};
  const float to_r = (most - r) / range, to_g = (most - g) / range, to_b = (most - b) / range;
  const float sixths = most == r ? to_b - to_g : most == g ? 2 + to_r - to_b : 4 + to_g - to_r;
  return {std::fmod(sixths / 6 + 1, 1.0f), range / most, most};
}

std::array<float, 3> to_rgb(const Hsv& c) {
  const float sixths = c.hue * 6, whole = std::floor(sixths), part = sixths - whole, v = c.value;
  const auto unit = [](float x) { return std::clamp(x, 0.0f, 1.0f); };
  const float p = unit(v * (1 - c.saturation)), q = unit(v * (1 - c.saturation * part)),
              t = unit(v * (1 - c.saturation * (1 - part)));
  switch (int(whole) % 6) {
    case 0:
      return {v, t, p};
    case 1:
      return {q, v, p};
    case 2:
      return {p, v, t};
    case 3:
      return {p, q, v};
    case 4:
      return {t, p, v};
    default:
      return {v, p, q};
  }
}

}  // namespace

Tensor resized(const Tensor& image, const Box& box, int64_t height, int64_t width) {
  const Planes p(image);
  check(0 <= box.top && 0 <= box.left && 0 < box.height && 0 < box.width &&
            box.height <= p.height - box.top && box.width <= p.width - box.left,
        "the box of {} x {} pixels at {}, {} is not within the image of {} x {}", box.height,
        box.width, box.top, box.left, p.height, p.width);
  const Tensor out = image_of(p.channels, height, width);
  const Resampling rows(box.width, width), columns(box.height, height);
  std::vector<uint8_t> wide(width == box.width ? 0 : size_t(box.height * width));
  for (int64_t c = 0; c < p.channels; ++c) {
    const uint8_t* from = p.data + c * p.plane() + box.top * p.width + box.left;
    int64_t step = p.width;
    if (width != box.width) {
      resample_rows(from, step, box.height, rows, wide.data());
      from = wide.data(), step = width;
    }
    resample_columns(from, step, width, columns, out.data<uint8_t>() + c * height * width);
  }
  return out;
}

Tensor resized(const Tensor& image, int64_t height, int64_t width) {
  const Planes p(image);
  return resized(p.dense, {0, 0, p.height, p.width}, height, width);
}

Tensor cropped(const Tensor& image, const Box& box) {
  const Planes p(image);
  const Tensor out = image_of(p.channels, box.height, box.width);
  uint8_t* to = out.data<uint8_t>();
  std::fill_n(to, out.numel(), uint8_t(0));
  const int64_t begin = std::clamp<int64_t>(-box.left, 0, box.width),
                end = std::clamp<int64_t>(p.width - box.left, 0, box.width);
  for (int64_t line = 0; line < p.channels * box.height; ++line) {
    const int64_t y = line % box.height + box.top;
    if (0 <= y && y < p.height && begin < end)
      std::copy_n(p.data + (line / box.height * p.height + y) * p.width + box.left + begin,
                  end - begin, to + line * box.width + begin);
  }
  return out;
}

Tensor flipped(const Tensor& image) {
  const Planes p(image);
  const Tensor out = image_of(p.channels, p.height, p.width);
  for (int64_t line = 0; line < p.channels * p.height; ++line)
    std::reverse_copy(p.data + line * p.width, p.data + (line + 1) * p.width,
                      out.data<uint8_t>() + line * p.width);
  return out;
}

Tensor adjust_brightness(const Tensor& image, double factor) {
  return blended(Planes(image), factor, [](int64_t) { return 0; });
}

Tensor adjust_contrast(const Tensor& image, double factor) {
  const Planes p(image);
  const std::vector<uint8_t> grey = greys(p);
  const auto sum = std::accumulate(grey.begin(), grey.end(), int64_t(0));
  const auto mean = float(double(sum) / double(grey.size()));
  return blended(p, factor, [mean](int64_t) { return mean; });
}

Tensor adjust_saturation(const Tensor& image, double factor) {
  const Planes p(image);
  if (p.channels == 1) return p.dense;
  const std::vector<uint8_t> grey = greys(p);
  return blended(p, factor, [&](int64_t i) { return grey[size_t(i % p.plane())]; });
}

Tensor adjust_sharpness(const Tensor& image, double factor) {
  const Planes p(image);
  if (p.height <= 2 || p.width <= 2) return p.dense;
  return blended(p, factor, [&](int64_t i) {
    const int64_t y = i / p.width % p.height, x = i % p.width;
    if (y == 0 || y == p.height - 1 || x == 0 || x == p.width - 1) return float(p.data[i]);
    float sum = 4 * float(p.data[i]);
    for (int64_t dy = -1; dy <= 1; ++dy)
      for (int64_t dx = -1; dx <= 1; ++dx) sum += float(p.data[i + dy * p.width + dx]);
    return std::nearbyint(sum / 13);
  });
}

Tensor adjust_hue(const Tensor& image, double turn) {
  check(-0.5 <= turn && turn <= 0.5, "turn must be from -0.5 to 0.5, got {}", turn);
  const Planes p(image);
  if (p.channels == 1) return p.dense;
  const Tensor out = image_of(3, p.height, p.width);
  for (int64_t i = 0; i < p.plane(); ++i) {
    const auto at = [&](int64_t c) { return float(p.data[c * p.plane() + i]) / 255; };
    Hsv color = to_hsv(at(0), at(1), at(2));
    color.hue += float(turn);
    color.hue -= std::floor(color.hue);
    const std::array<float, 3> rgb = to_rgb(color);
    for (int64_t c = 0; c < 3; ++c)
      out.data<uint8_t>()[c * p.plane() + i] = cut_off(rgb[size_t(c)] * 255.999f);
  }
  return out;
}

Tensor posterize(const Tensor& image, int bits) {
  check(0 <= bits && bits <= 8, "bits must be from 0 to 8, got {}", bits);
  return by_tables(image,
                   [&](auto) { return table([&](int v) { return v & -(1 << (8 - bits)); }); });
}

Tensor solarize(const Tensor& image, double threshold) {
  return by_tables(
      image, [&](auto) { return table([&](int v) { return v >= threshold ? 255 - v : v; }); });
}

Tensor autocontrast(const Tensor& image) {
  return by_tables(image, [](std::span<const uint8_t> plane) {
    const auto [least, most] = std::minmax_element(plane.begin(), plane.end());
    const int low = *least, range = *most - low;
    return table(
        [&](int v) { return range == 0 ? v : cut_off(float(v - low) * (255.0f / float(range))); });
  });
}

Tensor equalize(const Tensor& image) {
  return by_tables(image, [](std::span<const uint8_t> plane) {
    std::array<int64_t, 256> counts{};
    for (const uint8_t v : plane) ++counts[v];
    const int64_t last = counts[*std::max_element(plane.begin(), plane.end())];
    const int64_t step = (int64_t(plane.size()) - last) / 255;
    int64_t below = 0;
    return table([&](int v) {
      const int64_t rank = step == 0 ? v : std::min<int64_t>(255, (below + step / 2) / step);
      below += counts[size_t(v)];
      return rank;
    });
  });
}

Tensor warp(const Tensor& image, const std::array<double, 6>& m) {
  const Planes p(image);
  const Tensor out = image_of(p.channels, p.height, p.width);
  uint8_t* to = out.data<uint8_t>();
  for (int64_t y = 0; y < p.height; ++y)
    for (int64_t x = 0; x < p.width; ++x, ++to) {
      const double cx = double(x) + 0.5, cy = double(y) + 0.5;
      const double fx = std::floor(m[0] * cx + m[1] * cy + m[2]),
                   fy = std::floor(m[3] * cx + m[4] * cy + m[5]);
      const bool within = 0 <= fx && fx < double(p.width) && 0 <= fy && fy < double(p.height);
      const int64_t at = within ? int64_t(fy) * p.width + int64_t(fx) : 0;
      for (int64_t c = 0; c < p.channels; ++c)
        to[c * p.plane()] = within ? p.data[c * p.plane() + at] : 0;
    }
  return out;
}

}  // namespace mixtape::train::images
