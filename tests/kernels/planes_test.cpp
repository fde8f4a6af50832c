// The CPU kernels for pools and interpolation against plain loops in double over the same rounded
// inputs, and against themselves on other numbers of threads.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/kernel_compare.h"
#include "tests/support/samplings.h"

namespace mixtape::kernels {
namespace kernels_planes_test {

// The elements that result i sums, as pairs of a position and a weight, from the definitions.
std::vector<std::pair<int64_t, double>> parts(const Sampling& s, int64_t i) {
  const double at = static_cast<double>(i), n = static_cast<double>(s.from),
               m = static_cast<double>(s.to);
  std::vector<std::pair<int64_t, double>> result;
  const auto even = [&](int64_t begin, int64_t end, int64_t divisor) {
    for (int64_t j = std::max<int64_t>(begin, 0); j < std::min(end, s.from); ++j)
      result.emplace_back(j, 1 / static_cast<double>(divisor));
    return result;
  };
  if (s.kind == Kind::Windows) {
    const int64_t begin = i * s.stride - s.padding, end = begin + s.size;
    const int64_t with_padding = std::min(end, s.from + s.padding) - begin;
    return even(
        begin, end,
        s.count_padding ? with_padding : std::min(end, s.from) - std::max<int64_t>(begin, 0));
  }
  if (s.kind == Kind::Adaptive) {
    const int64_t begin = static_cast<int64_t>(std::floor(at * n / m)),
                  end = static_cast<int64_t>(std::ceil((at + 1) * n / m));
    return even(begin, end, end - begin);
  }
  if (s.kind == Kind::Nearest)
    return {{s.step > 0 ? static_cast<int64_t>(at * s.step) : i * s.from / s.to, 1.0}};
  double source = (at + 0.5) * (s.step > 0 ? s.step : n / m) - 0.5;
  if (s.align_corners) source = s.to > 1 ? at * (n - 1) / (m - 1) : 0;
  if (s.kind == Kind::Linear) source = std::max(0.0, source);
  const double low = std::floor(source), t = source - low;
  const auto add = [&](int64_t k, double weight) {
    result.emplace_back(std::clamp<int64_t>(static_cast<int64_t>(low) + k, 0, s.from - 1), weight);
  };
  if (s.kind == Kind::Linear) {
    add(0, 1 - t);
    add(1, t);
    return result;
  }
  // Hermite's curve from element 0 to 1; its slopes are 3/4 of the difference of the neighbours.
  const double leave = (t * t - 2 * t + 1) * t, arrive = (t - 1) * t * t,
               there = (3 - 2 * t) * t * t;
  add(-1, -0.75 * leave);
  add(0, 1 - there - 0.75 * arrive);
  add(1, there + 0.75 * leave);
  add(2, 0.75 * arrive);
  return result;
}

TEST(Resample, ForwardAndTransposed) {
  for (const auto& [in, out] : float_pairs)
    for (const auto& lines : resamplings) {
      const Sampling &rows = lines.first, &columns = lines.second;
      const Shape small{2, 3, rows.to, columns.to}, large{2, 3, rows.from, columns.from};
      const Tensor x = random(large, in, 1), dy = random(small, in, 2), y = output(small, out),
                   dx = output(large, out);
      launch([&](Launch& l) {
        resample(l, x, rows, columns, false, y);
        resample(l, dy, rows, columns, true, dx);
      });
      Values y_want(y.numel()), dx_want(x.numel());
      for (int64_t i = 0; i < y.numel(); ++i)
        for (const auto& [r, down] : parts(rows, i / columns.to % rows.to))
          for (const auto& [q, across] : parts(columns, i % columns.to)) {
            const int64_t at = (i / (rows.to * columns.to) * rows.from + r) * columns.from + q;
            y_want[i] += down * across * x.at(at);
            dx_want[at] += down * across * dy.at(i);
          }
      const std::string what =
          std::string(name(in)) + " rows " + text(rows) + " columns " + text(columns);
      expect_close(y, y_want, tolerance(out), "y " + what);
      expect_close(dx, dx_want, tolerance(out), "dx " + what);
    }
}

TEST(Resample, OnlyReadsWhatItWeighs) {
  const Tensor x = random({1, 2, 3, 4}, f32, 1);
  x.set(5, nan);  // row 1, column 1 of the first plane
  const Tensor y = output({1, 2, 3, 2}, f32);
  launch([&](Launch& l) { resample(l, x, windows(3, 1, 1), windows(4, 2, 2), false, y); });
  for (int64_t i = 0; i < y.numel(); ++i) EXPECT_EQ(std::isnan(y.at(i)), i == 2) << i;
  // Every second pixel coincides with one of x: its neighbour has weight zero.
  const Tensor z = output({1, 2, 3, 7}, f32);
  launch([&](Launch& l) {
    resample(l, x, corners(Kind::Linear, 3, 3), corners(Kind::Linear, 4, 7), false, z);
  });
  for (int64_t i = 0; i < z.numel(); ++i) EXPECT_EQ(std::isnan(z.at(i)), i >= 8 && i <= 10) << i;
}

TEST(MaxPool2d, ForwardAndGradient) {
  const struct {
    int64_t n, c;
    Sampling rows, columns;
  } cases[] = {
      {2, 3, windows(26, 2, 2), windows(26, 2, 2)},
      {1, 1, windows(2, 2, 2), windows(2, 2, 2)},
      {1, 2, windows(5, 2, 2), windows(37, 2, 2)},
      {3, 1, windows(66, 2, 2), windows(67, 2, 2)},
      {3, 7, windows(4, 2, 2), windows(5, 2, 2)},
      {2, 3, windows(1, 1, 1), windows(37, 2, 2)},
      {3, 5, windows(26, 2, 2), windows(26, 2, 2)},
      {4, 5, windows(9, 2, 2), windows(17, 2, 2)},
      {5, 9, windows(3, 2, 2), windows(16, 2, 2)},
      {4, 7, windows(2, 2, 2), windows(33, 2, 2)},
      {3, 5, windows(1, 1, 1), windows(23, 2, 2)},
      {1, 2, windows(5, 1, 1), windows(66, 2, 2)},
      {2, 2, windows(5, 1, 1), windows(7, 2, 2, 0, false, 1)},
      {2, 2, windows(7, 2, 2, 0, false, 1), windows(9, 2, 2, 0, false, 1)},
      {2, 2, windows(7, 3, 2, 1), windows(9, 3, 2, 1)},
      {1, 2, windows(9, 2, 1, 1), windows(40, 3, 2)},
      {1, 2, windows(30, 9, 3, 4), windows(31, 9, 2, 3)},
      {2, 1, of_kind(Kind::Adaptive, 7, 3), of_kind(Kind::Adaptive, 20, 6)},
      {2, 2, of_kind(Kind::Adaptive, 9, 3), of_kind(Kind::Adaptive, 20, 5)},
      {2, 2, of_kind(Kind::Adaptive, 8, 4), of_kind(Kind::Adaptive, 66, 33)},
      {0, 2, windows(4, 2, 2), windows(4, 2, 2)},
  };
  for (const auto& [in, out] : float_pairs)
    for (const auto& k : cases)
      for (const bool ties : {false, true}) {
        const Sampling &rows = k.rows, &columns = k.columns;
        const Shape small{k.n, k.c, rows.to, columns.to}, large{k.n, k.c, rows.from, columns.from};
        const Tensor x = random(large, in, 5, -3, 3), dy = random(small, in, 6);
        for (int64_t i = 0; i < x.numel(); ++i) {
          if (ties) x.set(i, std::round(x.at(i)));
          if (ties && i % 17 == 3) x.set(i, nan);
          if (ties && i % 5 == 0) x.set(i, -inf);
        }
        const Tensor y = output(small, in), index = output(small, i32), dx = output(large, out),
                     taken = output(small, out);
        launch([&](Launch& l) {
          max_pool2d(l, x, rows, columns, y, index);
          put_at(l, dy, index, rows, columns, dx);
          take_at(l, x, index, taken);
        });
        const Values xv = to_vector(x);
        Values best(y.numel()), at(y.numel(), -1), grad(x.numel());
        for (int64_t i = 0; i < y.numel(); ++i) {
          const int64_t plane = i / (rows.to * columns.to) * rows.from * columns.from;
          for (const auto& [r, down] : parts(rows, i / columns.to % rows.to))
            for (const auto& [q, across] : parts(columns, i % columns.to)) {
              const double value = xv[plane + r * columns.from + q];
              if (at[i] >= 0 && !(value > best[i] || (std::isnan(value) && !std::isnan(best[i]))))
                continue;
              best[i] = value;
              at[i] = static_cast<double>(r * columns.from + q);
            }
          grad[plane + static_cast<int64_t>(at[i])] += dy.at(i);
        }
        const std::string what = std::string(name(in)) + " rows " + text(rows) + " columns " +
                                 text(columns) + (ties ? " ties" : "");
        expect_close(y, best, 0, what);
        expect_close(taken, best, 0, "taken " + what);
        expect_close(index, at, 0, "index " + what);
        expect_close(dx, grad, tolerance(out), "dx " + what);
      }
}

TEST(Planes, SameForAnyThreads) {
  const Tensor x = random({8, 16, 27, 27}, f32, 1), dy = random({8, 16, 13, 13}, f32, 2);
  const Sampling line = windows(27, 3, 2), half = windows(27, 2, 2);
  expect_same_for_any_threads([&] {
    const Tensor y = output(dy.shape(), f32), index = output(dy.shape(), i32),
                 dx = output(x.shape(), f32);
    const Tensor mean = output(dy.shape(), f32), spread = output(x.shape(), f32);
    const Tensor halved = output(dy.shape(), f32), at = output(dy.shape(), i32),
                 put = output(x.shape(), f32);
    launch([&](Launch& l) {
      max_pool2d(l, x, line, line, y, index);
      put_at(l, dy, index, line, line, dx);
      max_pool2d(l, x, half, half, halved, at);
      put_at(l, dy, at, half, half, put);
      resample(l, x, line, line, false, mean);
      resample(l, dy, line, line, true, spread);
    });
    return std::vector<Tensor>{y, index, dx, mean, spread, halved, at, put};
  });
}

}  // namespace kernels_planes_test
}  // namespace mixtape::kernels
