#pragma once
// Convolutions of images with channels last as matrix products whose columns are never stored: the
// copies to shared memory gather them. A row of the matrix is a pixel of y, and its columns are the
// taps of its window, each with all channels: y = A w^T, dw = dy^T A.

#include "kernels/cuda/conv/windows.cuh"
#include "kernels/cuda/elementwise/elementwise_plan.h"
#include "kernels/cuda/gemm/gemm_tensor.cuh"

namespace mixtape::kernels::cuda {

// The windows of an image x [n, h, w, channels], dense; channels are a multiple of 16 bytes.
template <class T>
struct Windows {
  const T* x;
  Geometry g;
  int channels;
  int64_t pixels;        // of y, in all images
  Divisor plane, width;  // of y

  Windows(const T* x, const Geometry& g, int64_t images, int64_t channels)
      : x(x),
        g(g),
        channels(int(channels)),
        pixels(images * g.y_plane()),
        plane(g.y_plane()),
        width(g.y[1]) {}

  // Where the window of a pixel begins: its image's offset in pixels of x, and row and column,
  // which padding may put outside.
  struct Place {
    int64_t image;
    int row, column;
  };
  __device__ __forceinline__ Place place(int64_t pixel) const {
    const int64_t image = plane.quotient(pixel);
    const int at = int(pixel - image * g.y_plane()), row = int(width.quotient(at));
    return {image * g.x_plane(), row * g.stride[0] - g.padding[0],
            (at - row * g.y[1]) * g.stride[1] - g.padding[1]};
  }
};

namespace detail {

// A column of the matrix of windows: a tap, and the first of 16 bytes of channels.
struct Column {
  int row, column, channel;  // of the tap, in pixels of x; row is beyond all if there is none

  template <class T>
  __device__ __forceinline__ Column(const Windows<T>& of, int64_t index) {
    const int tap = int(quotient(index, of.channels)), down = tap / of.g.size[1];
    channel = int(index - int64_t(tap) * of.channels);
    row = tap < of.g.taps() ? down * of.g.dilation[0] : beyond;
    column = (tap - down * of.g.size[1]) * of.g.dilation[1];
  }
  // To the column `step` further on.
  template <class T>
  __device__ __forceinline__ void advance(const Windows<T>& of, int step) {
    channel += step;
    while (channel >= of.channels) {
      channel -= of.channels;
      column += of.g.dilation[1];
      if (column == of.g.size[1] * of.g.dilation[1]) {
        column = 0;
        row += of.g.dilation[0];
        if (row >= of.g.size[0] * of.g.dilation[0]) row = beyond;
      }
    }
  }
  static constexpr int beyond = 1 << 29;
};

// A thread's share of the copies of slices of the matrix of windows, as SliceCopy. along_k: lines
// are pixels, and steps go along columns; otherwise the other way round.
template <class T, class Slice, int threads, bool along_k>
class WindowCopy {
  static constexpr int chunk = Slice::chunk, chunks = Slice::chunks, bk = k_step<T>;
  static constexpr int count = Slice::lines * chunks / threads, apart = threads / chunks;
  static_assert(Slice::lines * chunks % threads == 0 && threads % chunks == 0);
  static_assert(apart % Slice::period == 0);

 public:
  __device__ __forceinline__ WindowCopy(const Windows<T>& of, int64_t pixel0, int64_t column0)
      : of_(of),
        column_(of, column0 + int(gpu::thread().x) % chunks * chunk),
        pixel_(pixel0 + int(gpu::thread().x) / chunks),
        to_(Slice::place(int(gpu::thread().x) / chunks, int(gpu::thread().x) % chunks * chunk)) {
    if constexpr (along_k) {
#pragma unroll
      for (int c = 0; c < count; ++c) place_[c] = place(c, int64_t{1} << 60);
    }
  }
  // Starts the copy of the next slice, of which the first k_left elements of k exist.
  __device__ __forceinline__ void start(Shared<T> slice, int k_left) {
    const Windows<T>& w = of_;
    const int64_t last = pixel_ - int(gpu::thread().x) / chunks + k_left;
#pragma unroll
    for (int c = 0; c < count; ++c) {
      const auto at = along_k ? place_[along_k ? c : 0] : place(c, last);
      const int row = at.row + column_.row, column = at.column + column_.column;
      const bool inside =
          unsigned(row) < unsigned(w.g.x[0]) && unsigned(column) < unsigned(w.g.x[1]);
      const T* const from =
          w.x + (at.image + int64_t(row) * w.g.x[1] + column) * w.channels + column_.channel;
      gpu::copy_async_or_zero<T>(slice + (to_ + c * apart * Slice::stride), inside ? from : w.x,
                                 inside);
    }
    if constexpr (along_k)
      column_.advance(w, bk);
    else
      pixel_ += bk;
  }

 private:
  // The window of the pixel of line c; nowhere from pixel `end` on.
  __device__ __forceinline__ typename Windows<T>::Place place(int c, int64_t end) const {
    const int64_t pixel = pixel_ + c * apart;
    if (pixel >= of_.pixels || pixel >= end) return {0, -2 * Column::beyond, 0};
    return of_.place(pixel);
  }

  const Windows<T>& of_;
  Column column_;
  int64_t pixel_;  // of the first line
  int to_;         // its place in a slice
  typename Windows<T>::Place place_[along_k ? count : 1];
};

}  // namespace detail

// y [pixels, outputs] = the matrix of windows times g.b [depth, outputs], by columns.
template <class T, int tile>
__global__ void __launch_bounds__(tiles[tile].threads(), 1)
    conv_images(Gemm<T> g, Windows<T> windows) {
  using namespace detail;
  using Steps = TensorTile<T, true, false, tile, Tier::Mma>;
  constexpr Tile t = tiles[tile];
  const Origin at = tile_origin(g, t);
  const KPart k = k_part(g);
  using Gather = WindowCopy<T, typename Steps::SliceA, Steps::threads, true>;
  typename Steps::template LoaderOf<Gather, typename Steps::CopyB> loader{
      {windows, at.m, k.begin}, {g.b, g.b_right, at.n, g.n, k.begin, g.fast_b}, k.size};
  multiply_tile<Steps>(g, at, k, 0, loader);
}

// dw [outputs, depth] = dy [pixels, outputs]^T times the matrix of windows, without an epilogue;
// row sums are those of dy.
template <class T, int tile>
__global__ void __launch_bounds__(tiles[tile].threads(), 1)
    conv_images_weight(Gemm<T> g, Windows<T> windows) {
  using namespace detail;
  using Steps = TensorTile<T, false, true, tile, Tier::Mma, false>;
  constexpr Tile t = tiles[tile];
  const Origin at = tile_origin(g, t);
  const KPart k = k_part(g);
  using Gather = WindowCopy<T, typename Steps::SliceB, Steps::threads, false>;
  typename Steps::template LoaderOf<typename Steps::CopyA, Gather> loader{
      {g.a, g.a_right, at.m, g.m, k.begin, g.fast_a}, {windows, k.begin, at.n}, k.size};
  multiply_tile<Steps>(g, at, k, 0, loader);
}

}  // namespace mixtape::kernels::cuda
