#pragma once
// Sums over the taps of a convolution's windows, for four rows of one column of a plane at a time.

#include "kernels/cuda/planes.cuh"

namespace mixtape::kernels::cuda {

// The window of a convolution and the sizes of x and y, by direction (0 rows, 1 columns).
struct Geometry {
  int x[2], y[2], size[2], stride[2], padding[2], dilation[2];

  Geometry(In x_, In y_, const Window& w) {
    for (int d = 0; d < 2; ++d) {
      x[d] = int(x_.shape()[2 + d]);
      y[d] = int(y_.shape()[2 + d]);
      size[d] = int(w.size[d]);
      stride[d] = int(w.stride[d]);
      padding[d] = int(w.padding[d]);
      dilation[d] = int(w.dilation[d]);
    }
  }
  // The convolution of dy, with the taps in reverse order, that gives dx; for strides of 1.
  Geometry reversed() const {
    Geometry g = *this;
    for (int d = 0; d < 2; ++d) {
      std::swap(g.x[d], g.y[d]);
      g.padding[d] = dilation[d] * (size[d] - 1) - padding[d];
    }
    return g;
  }
  bool is_strided() const { return stride[0] > 1 || stride[1] > 1; }
  MIXTAPE_HD int taps() const { return size[0] * size[1]; }
  MIXTAPE_HD int64_t x_plane() const { return int64_t(x[0]) * x[1]; }
  MIXTAPE_HD int64_t y_plane() const { return int64_t(y[0]) * y[1]; }
  // The index in x that tap t of window i reads; it may lie outside of x.
  MIXTAPE_HD int input_index(int d, int i, int t) const {
    return i * stride[d] - padding[d] + t * dilation[d];
  }
  // The window whose tap t reads index i of x, or -1.
  MIXTAPE_HD int window_index(int d, int i, int t) const {
    const int from = i + padding[d] - t * dilation[d];
    if (from < 0) return -1;
    const int w = stride[d] == 1 ? from : from / stride[d];
    return w < y[d] && w * stride[d] == from ? w : -1;
  }
};

// sum[k] += the sum over taps t of term(t)(p), where p is the pixel that belongs to tap t and row
// at.row + k, in a plane with rows of `width`; index(d, i, t) is its row or column, -1 for none.
template <class T, class Index, class Term>
__device__ __forceinline__ void add_taps(const Geometry& g, const RowQuads::Position& at, int width,
                                         Index index, Term term, T (&sum)[RowQuads::height]) {
#pragma unroll 1
  for (int i = 0; i < g.size[0]; ++i)
#pragma unroll 1
    for (int j = 0; j < g.size[1]; ++j) {
      const int column = index(1, at.column, j);
      if (column < 0) continue;
      const auto value = term(i * g.size[1] + j);
#pragma unroll
      for (int k = 0; k < RowQuads::height; ++k) {
        const int row = index(0, at.row + k, i);
        if (row >= 0) sum[k] += value(row * width + column);
      }
    }
}
template <class T>
__device__ __forceinline__ void fill_quad(T value, T (&sum)[RowQuads::height]) {
#pragma unroll
  for (int k = 0; k < RowQuads::height; ++k) sum[k] = value;
}
template <class T, class O>
__device__ __forceinline__ void store_quad(const T (&sum)[RowQuads::height],
                                           const RowQuads::Position& at, const int (&plane)[2],
                                           O* to) {
  to += (at.plane * plane[0] + at.row) * plane[1] + at.column;
#pragma unroll
  for (int k = 0; k < RowQuads::height; ++k)
    if (at.row + k < plane[0]) to[k * plane[1]] = gpu::round_to<O>(sum[k]);
}

// dx = bias + the sum over taps of f(image, channel, tap)(window), for the windows that read each
// pixel of x, in the order of the taps.
template <class T, class O, class F>
__global__ void gather_windows(F f, Geometry g, int channels, const T* bias, RowQuads quads,
                               O* __restrict__ dx) {
  const int64_t quad = gpu::global_thread();
  if (quad >= quads.count) return;
  const RowQuads::Position at = quads.find(quad);
  const int64_t image = at.plane / channels;
  const int channel = int(at.plane - image * channels);
  T sum[RowQuads::height];
  fill_quad(bias ? bias[channel] : T(0), sum);
  add_taps(
      g, at, g.y[1], [&](int d, int i, int t) { return g.window_index(d, i, t); },
      [&](int tap) { return f(image, channel, tap); }, sum);
  store_quad(sum, at, g.x, dx);
}

template <class T, class O, class F>
void gather(Launch& launch, F f, const Geometry& g, const T* bias, int64_t images, int64_t channels,
            O* dx) {
  const RowQuads quads(images * channels, g.x[0], g.x[1]);
  gpu::launch(quads.grid("conv2d_gather"), launch.stream, gather_windows<T, O, F>, f, g,
              int(channels), bias, quads, dx);
}

}  // namespace mixtape::kernels::cuda
