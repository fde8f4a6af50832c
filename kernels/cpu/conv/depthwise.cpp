// If y is as wide as x divided by the stride, and x is split by phases of the stride, then each tap
// reads at a constant distance from its pixel, in all of a plane. So its gradient is a dot product
// of two arrays, with masks for pixels beyond the plane, which all planes share. Measured in
// bench/worklog/149.

#include "kernels/cpu/conv/depthwise.h"

#include <vector>

#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

// Splits a plane of x into one plane for each phase of the stride.
struct PhaseSplit {
  int64_t rows, columns, stride[2];  // of x
  int64_t width, area;               // of one plane

  PhaseSplit(In x, const Window& v)
      : rows(x.shape()[2]),
        columns(x.shape()[3]),
        stride{v.stride[0], v.stride[1]},
        width(ceil_div(columns, stride[1])),
        area(ceil_div(rows, stride[0]) * width) {}
  int64_t count() const { return stride[0] * stride[1]; }
  // The offset of pixel (row, column), which may be outside the plane.
  int64_t at(int64_t row, int64_t column) const {
    const auto phase = [](int64_t n, int64_t stride) { return (n % stride + stride) % stride; };
    const int64_t a = phase(row, stride[0]), b = phase(column, stride[1]);
    return (a * stride[1] + b) * area + (row - a) / stride[0] * width + (column - b) / stride[1];
  }
  template <class S>
  const S* operator()(const S* x, S* out) const {
    if (count() == 1) return x;
    for (int64_t r = 0; r < rows; ++r, x += columns) {
      const auto split_row = [&](auto step) {
        for (int64_t b = 0; b < step; ++b) {
          S* const to = out + at(r, b);
          for (int64_t q = 0, n = ceil_div(columns - b, int64_t{step}); q < n; ++q)
            to[q] = x[q * step + b];
        }
      };
      stride[1] == 2 ? split_row(std::integral_constant<int64_t, 2>()) : split_row(stride[1]);
    }
    return out;
  }
};

struct Tap {
  int64_t shift;                // from a pixel of y to what the tap reads
  std::vector<LaneBits> masks;  // for each vector of pixels: the lanes inside the plane
};

std::vector<Tap> taps_of(const Window& v, const PhaseSplit& split, int64_t y_rows, int64_t lanes) {
  const int64_t pixels = y_rows * split.width;
  std::vector<Tap> taps;
  for (int64_t i = 0; i < v.size[0]; ++i)
    for (int64_t j = 0; j < v.size[1]; ++j) {
      const int64_t down = i * v.dilation[0] - v.padding[0],
                    across = j * v.dilation[1] - v.padding[1];
      Tap& tap = taps.emplace_back(Tap{split.at(down, across), {}});
      tap.masks.resize(ceil_div(pixels, lanes));
      // The rows or columns of y for which the tap is inside the plane.
      const auto inside = [](int64_t from, int64_t stride, int64_t size, int64_t count) {
        const int64_t end = from < size ? ceil_div(size - from, stride) : 0;
        return std::pair(from < 0 ? ceil_div(-from, stride) : 0, std::min(count, end));
      };
      const auto [top, bottom] = inside(down, v.stride[0], split.rows, y_rows);
      const auto [left, right] = inside(across, v.stride[1], split.columns, split.width);
      for (int64_t r = top; r < bottom; ++r)
        for (int64_t p = r * split.width + left; p < r * split.width + right; ++p)
          tap.masks[p / lanes] |= static_cast<LaneBits>(1 << p % lanes);
    }
  return taps;
}

// sums[t] += sum over pixels [begin, end) of dy times what tap t reads, lane by lane.
template <class T, class S>
void add_products(const S* x, const S* dy, int64_t begin, int64_t end, std::span<const Tap> taps,
                  Vec<T>* sums) {
  const auto some = [&]<int n>(std::integral_constant<int, n>, size_t t) MIXTAPE_INLINE_LAMBDA {
    Vec<T> sum[n];
    const S* source[n];
    const LaneBits* masks[n];
    for (int k = 0; k < n; ++k) {
      sum[k] = T(0);
      source[k] = x + taps[t + k].shift;
      masks[k] = taps[t + k].masks.data();
    }
    for_each_vec<T>(end - begin, [&](int64_t i, int64_t count) {
      const int64_t p = begin + i;
      const Vec<T> d = read<T>(dy + p, count);
      __builtin_prefetch(dy + p + 512);  // (The hardware does not prefetch masked loads.)
      __builtin_prefetch(x + p + 512);
      for (int k = 0; k < n; ++k) {
        const LaneBits which = masks[k][p / Vec<T>::width];
        sum[k] = fma_where(which, load_where<S, T>(which, source[k] + p), d, sum[k]);
      }
    });
    for (int k = 0; k < n; ++k) sums[t + k] += sum[k];
  };
  size_t t = 0;
  for (; t + 5 <= taps.size(); t += 5) some(std::integral_constant<int, 5>(), t);
  for (; t + 3 <= taps.size(); t += 3) some(std::integral_constant<int, 3>(), t);
  for (; t < taps.size(); ++t) some(std::integral_constant<int, 1>(), t);
}

}  // namespace

bool depthwise_weight(In x, In dy, const Window& v, Out dw, Out db) {
  const int64_t channels = x.shape()[1], outs = dy.shape()[1],
                pixels = dy.shape()[2] * dy.shape()[3];
  const PhaseSplit split(x, v);
  const bool planes = x.layout.is_contiguous() && dy.layout.is_contiguous();
  if (!planes || !has_lane_bits || v.groups < 2 || v.groups != channels ||
      split.width != dy.shape()[3])
    return false;
  visit_float(x.dtype, dw.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const std::vector<Tap> taps = taps_of(v, split, dy.shape()[2], Vec<T>::width);
    parallel_for(outs, [&](int64_t o) {
      Buffer<S> buffer(split.count() > 1 ? split.count() * split.area : 0);
      std::vector<Vec<T>> sums(taps.size(), Vec<T>(T(0)));
      Vec<T> sum(T(0));
      for (int64_t n = 0; n < x.shape()[0]; ++n) {
        const int64_t plane = n * channels + o * channels / outs;
        const S* const d = dy.as<S>() + (n * outs + o) * pixels;
        const S* const phases =
            split(x.as<S>() + plane * split.rows * split.columns, buffer.data());
        // A long sum is made of shorter ones, for accuracy.
        constexpr int64_t piece = 512 * Vec<T>::width;
        for (int64_t p = 0; p < pixels; p += piece) {
          const int64_t end = std::min(pixels, p + piece);
          add_products<T>(phases, d, p, end, taps, sums.data());
          if (!db) continue;
          Vec<T> part(T(0));
          for_each_vec<T>(end - p, [&](int64_t i, int64_t n) { part += read<T>(d + p + i, n); });
          sum += part;
        }
      }
      for (size_t t = 0; t < taps.size(); ++t)
        dw.as<O>()[o * std::ssize(taps) + static_cast<int64_t>(t)] = static_cast<O>(hsum(sums[t]));
      if (db) db.as<T>()[o] = hsum(sum);
    });
  });
  return true;
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
