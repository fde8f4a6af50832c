#pragma once
// The division of images with channels last among threads: each takes 16 bytes' worth of channels
// of a pixel, so that neighbouring threads access neighbours.

#include "kernels/cuda/planes.cuh"
#include "kernels/cuda/rows.cuh"

namespace mixtape::kernels::cuda {

// Threads for images [n, c, h, w] of S.
template <class S>
struct Pixels {
  static constexpr int width = 16 / int(sizeof(S)), threads = 256;
  int64_t count;
  int channels, packs, columns, rows;

  explicit Pixels(In x)
      : channels(int(x.shape()[1])),
        packs(int(ceil_div(x.shape()[1], width))),
        columns(int(x.shape()[3])),
        rows(int(x.shape()[2])) {
    count = x.shape()[0] * rows * columns * packs;
  }
  gpu::Grid grid(const char* name) const {
    return {name, {unsigned(ceil_div(count, threads)), 1, 1}, {threads, 1, 1}};
  }
  struct Position {
    int64_t image;
    int row, column, channel, channels;  // of which there are that many
  };
  __device__ Position find(int64_t thread) const {
    const int64_t pixel = quotient(thread, packs), line = quotient(pixel, columns),
                  image = quotient(line, rows);
    const int channel = int(thread - pixel * packs) * width;
    return {image, int(line - image * rows), int(pixel - line * columns), channel,
            channels - channel < width ? channels - channel : width};
  }
  // The place of a position's channels in an image that has so many rows and columns.
  __device__ int64_t offset(const Position& at, int64_t row, int64_t column, int64_t rows_,
                            int64_t columns_) const {
    return ((at.image * rows_ + row) * columns_ + column) * channels + at.channel;
  }
};

// Some channels of a pixel; the rest of v stays as it is.
template <class S, int n>
__device__ void load_channels(const S* from, int channels, S (&v)[n]) {
  if (channels == n && is_aligned<n>(from)) return load_vec(from, true, v);
#pragma unroll
  for (int e = 0; e < n; ++e)
    if (e < channels) v[e] = from[e];
}
template <class O, class T, int n>
__device__ void store_channels(O* to, int channels, const T (&v)[n]) {
  if (channels == n && is_aligned<n>(to)) return store_vec(to, true, v);
#pragma unroll
  for (int e = 0; e < n; ++e)
    if (e < channels) to[e] = gpu::round_to<O>(v[e]);
}

}  // namespace mixtape::kernels::cuda
