// One matrix product gives each pixel of dy its window of x, and windows are added up at their
// places (col2im). A forward pass for each phase of the stride, as in conv.cpp, would pack weights
// as often as there are phases. Measured in bench/worklog/208.

#include "kernels/cpu/conv/scatter.h"

#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

constexpr int64_t most_numbers = 1 << 20;  // of windows at a time

template <class T>
View matrix(const T* data, int64_t rows, int64_t columns, int64_t stride) {
  return {const_cast<T*>(data), dtype_of<T>(), Layout({rows, columns}, {stride, 1})};
}

// Adds windows of one group to x [n, c, rows, columns]; there is a row of windows, [channels of the
// group, taps], for each of dy's pixels `first` to `last`.
template <class T>
struct AddWindows {
  const Window& window;
  int64_t y_columns, y_plane, x[2], channels, all_channels, first_channel, first, last;
  const T* windows;
  T* sums;

  void operator()() const {
    const int64_t image = first / y_plane, images = (last - 1) / y_plane - image + 1;
    parallel_for(images * channels, [&](int64_t i) { add(image + i / channels, i % channels); });
  }

 private:
  void add(int64_t image, int64_t channel) const {
    const int64_t taps = window.size[0] * window.size[1], begin = std::max(first, image * y_plane),
                  end = std::min(last, (image + 1) * y_plane);
    T* const plane = sums + (image * all_channels + first_channel + channel) * x[0] * x[1];
    for (int64_t p = begin; p < end; ++p) {
      const T* from = windows + ((p - first) * channels + channel) * taps;
      const int64_t at = p - image * y_plane,
                    row = at / y_columns * window.stride[0] - window.padding[0],
                    column = at % y_columns * window.stride[1] - window.padding[1];
      for (int64_t k = 0; k < window.size[0]; ++k, from += window.size[1])
        if (const int64_t r = row + k * window.dilation[0]; 0 <= r && r < x[0])
          add_row(from, column, plane + r * x[1]);
    }
  }
  // Adds a row of a window that begins at `column`, which may be outside.
  void add_row(const T* from, int64_t column, T* to) const {
    const int64_t by = window.dilation[1],
                  begin = column < 0 ? std::min(ceil_div(-column, by), window.size[1]) : 0,
                  end = std::min(window.size[1], ceil_div(std::max<int64_t>(x[1] - column, 0), by));
    to += column;
    if (by != 1) {
      for (int64_t k = begin; k < end; ++k) to[k * by] += from[k];
      return;
    }
    from += begin, to += begin;
    for_each_vec<T>(end - begin, [&](int64_t i, int64_t count) {
      write(to + i, read<T>(to + i, count) + read<T>(from + i, count), count);
    });
  }
};

template <class T, class S>
void scatter_to(Launch& launch, In dy, In w, const Window& window, T* sums, In dx) {
  const int64_t in = w.shape()[1], taps = window.size[0] * window.size[1], width = in * taps,
                out = w.shape()[0] / window.groups, all = w.shape()[0];
  View pixels = dy;  // [n, rows, columns, channels]
  pixels.layout = transpose(transpose(dy.layout, 1, 2), 2, 3);
  const S *const of_y = to_dense<S>(launch, pixels), *const of_w = to_dense<S>(launch, w);
  const int64_t plane = dy.shape()[2] * dy.shape()[3], count = dy.shape()[0] * plane,
                some = std::clamp<int64_t>(most_numbers / std::max<int64_t>(width, 1), 1, count);
  const Buffer<T> windows(some * width);
  for (int64_t g = 0; g < window.groups; ++g)
    for (int64_t first = 0; first < count; first += some) {
      const int64_t last = std::min(count, first + some);
      gemm(launch, matrix(of_y + first * all + g * out, last - first, out, all),
           matrix(of_w + g * out * width, out, width, width), Epilogue{},
           matrix(windows.data(), last - first, width, width));
      AddWindows<T>{window, dy.shape()[3],  plane,  {dx.shape()[2], dx.shape()[3]},
                    in,     dx.shape()[1],  g * in, first,
                    last,   windows.data(), sums}();
    }
}

}  // namespace

bool scatter_input(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  // (conv.cpp's lanes are channels of x.)
  const int64_t phases = window.stride[0] * window.stride[1];
  const bool lanes_are_few = window.groups == 1 && 2 * w.shape()[1] < Vec<float>::width;
  if (phases <= (lanes_are_few ? 1 : 16)) return false;
  visit_float(dy.dtype, [&]<class S>() {
    using T = math_t<S>;
    const bool in_place = dx.dtype == dtype_of<T>() && dx.layout.is_contiguous();
    const View sums{in_place ? dx.data : launch.scratch<T>(dx.size()), dtype_of<T>(),
                    Layout(dx.shape())};
    if (bias)
      convert(launch, {bias.data, bias.dtype, Layout(dx.shape(), {0, bias.strides()[0], 0, 0})},
              sums);
    else
      fill(launch, 0, sums);
    if (dy.size() > 0) scatter_to<T, S>(launch, dy, w, window, sums.as<T>(), dx);
    if (!in_place) convert(launch, sums, dx);
  });
  return true;
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
