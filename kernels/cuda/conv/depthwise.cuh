#pragma once
// Depthwise convolution, by threads that sum up taps: products of one channel leave a GPU idle.

#include "kernels/common/activation.h"
#include "kernels/cuda/conv/windows.cuh"
#include "kernels/cuda/rows.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;

// y = activation(w x + bias + residual). `outputs` channels of y belong to each channel of x.
template <class S, class O>
__global__ void sum_taps(const S* __restrict__ x, const S* __restrict__ w, Geometry g, int channels,
                         int outputs, const gpu::math_t<S>* bias,
                         Parameter<gpu::math_t<S>> residual, Activation activation, RowQuads quads,
                         O* __restrict__ before, O* __restrict__ y) {
  using T = gpu::math_t<S>;
  const int64_t quad = gpu::global_thread();
  if (quad >= quads.count) return;
  const RowQuads::Position at = quads.find(quad);
  const int64_t image = at.plane / channels;
  const int channel = int(at.plane - image * channels);  // of y
  x += (image * (channels / outputs) + channel / outputs) * g.x_plane();
  w += int64_t(channel) * g.taps();
  T sum[RowQuads::height];
  fill_quad(bias ? bias[channel] : T(0), sum);
  add_taps(
      g, at, g.x[1],
      [&](int d, int i, int t) {
        const int index = g.input_index(d, i, t);
        return unsigned(index) < unsigned(g.x[d]) ? index : -1;
      },
      [&](int tap) {
        return
            [x, weight = gpu::widen(w[tap])](int pixel) { return weight * gpu::widen(x[pixel]); };
      },
      sum);
  if (residual) {
    const int64_t first = (at.plane * g.y[0] + at.row) * g.y[1] + at.column;
#pragma unroll
    for (int k = 0; k < RowQuads::height; ++k)
      if (at.row + k < g.y[0]) sum[k] += residual[first + k * g.y[1]];
  }
  if (before) store_quad(sum, at, g.y, before);
  visit_activation(activation, [&]<class F>() {
#pragma unroll
    for (int k = 0; k < RowQuads::height; ++k) sum[k] = F::f(sum[k]);
  });
  store_quad(sum, at, g.y, y);
}

// The terms of dx: a window's gradients of all outputs of a channel, times their weights.
template <class S>
struct DepthwiseTerms {
  const S *dy, *w;
  int channels, outputs, taps;
  int64_t plane;
  __device__ auto operator()(int64_t image, int channel, int tap) const {
    return [*this, image, channel, tap](int window) {
      gpu::math_t<S> sum = 0;
#pragma unroll 1
      for (int m = 0; m < outputs; ++m)
        sum += gpu::widen(w[(int64_t(channel) * outputs + m) * taps + tap]) *
               gpu::widen(dy[((image * channels + channel) * outputs + m) * plane + window]);
      return sum;
    };
  }
};

// dw. Each block sums some taps of one channel over a part of all pixels. Grid: channels, parts,
// taps.
constexpr int taps_at_once = 9;
template <class S>
__global__ void sum_pixels(const S* __restrict__ x, const S* __restrict__ dy, Geometry g,
                           int outputs, int64_t pixels, gpu::math_t<S>* __restrict__ parts) {
  using T = gpu::math_t<S>;
  const int channel = int(gpu::block().x), channels = int(gpu::grid_size().x),
            part = int(gpu::block().y), first_tap = int(gpu::block().z) * taps_at_once;
  const int64_t begin = pixels * part / gpu::grid_size().y,
                end = pixels * (part + 1) / gpu::grid_size().y;
  T sum[taps_at_once] = {};
  for (int64_t p = begin + gpu::thread().x; p < end; p += RowQuads::threads) {
    const int64_t image = p / g.y_plane();
    const int at = int(p - image * g.y_plane()), i = at / g.y[1], j = at - i * g.y[1];
    const T v = gpu::widen(dy[(image * channels + channel) * g.y_plane() + at]);
    const S* const plane = x + (image * (channels / outputs) + channel / outputs) * g.x_plane();
    int down = first_tap / g.size[1], right = first_tap - down * g.size[1];
#pragma unroll
    for (int t = 0; t < taps_at_once; ++t) {
      const int r = g.input_index(0, i, down), q = g.input_index(1, j, right);
      if (down < g.size[0] && unsigned(r) < unsigned(g.x[0]) && unsigned(q) < unsigned(g.x[1]))
        sum[t] += v * gpu::widen(plane[r * g.x[1] + q]);
      if (++right == g.size[1]) {
        right = 0;
        ++down;
      }
    }
  }
  constexpr int warps = RowQuads::threads / gpu::warp_size;
  const auto warp_sums = gpu::shared_memory<T>();
#pragma unroll
  for (int t = 0; t < taps_at_once; ++t) {
    for (int mask = gpu::warp_size / 2; mask > 0; mask /= 2)
      sum[t] += gpu::shuffle_xor(sum[t], mask);
    if (gpu::lane() == 0) warp_sums[t * warps + int(gpu::thread().x) / gpu::warp_size] = sum[t];
  }
  gpu::sync_block();
  const int t = int(gpu::thread().x);
  if (t >= taps_at_once || first_tap + t >= g.taps()) return;
  T all = warp_sums[t * warps];
  for (int w = 1; w < warps; ++w) all += T(warp_sums[t * warps + w]);
  parts[(int64_t(part) * channels + channel) * g.taps() + first_tap + t] = all;
}

inline void depthwise_weight(Launch& launch, In x, In dy, const Geometry& g, Out dw) {
  const int64_t channels = dy.shape()[1], pixels = dy.shape()[0] * g.y_plane();
  const int64_t taps = ceil_div(g.taps(), taps_at_once);
  // Too few channels to fill the device are cut into parts of at least 2048 pixels.
  const int64_t count = gpu::parts_for(launch, channels * taps, pixels / 2048);
  visit_float(x.dtype, [&]<class S>() {
    using T = gpu::math_t<S>;
    const auto workspace = [&](int64_t n) {
      return View{launch.scratch<T>(n * dw.size()), dtype_of<T>(), Layout({n, dw.size()})};
    };
    const View parts = workspace(count), sum = workspace(1);
    gpu::launch({"conv2d_depthwise_weight",
                 {unsigned(channels), unsigned(count), unsigned(taps)},
                 {RowQuads::threads, 1, 1},
                 sizeof(T) * taps_at_once * RowQuads::threads / gpu::warp_size},
                launch.stream, sum_pixels<S>, x.as<const S>(), dy.as<const S>(), g,
                int(channels / x.shape()[1]), pixels, parts.as<T>());
    reduce(launch, Reduce::Sum, parts, sum);
    convert(launch, {sum.data, sum.dtype, Layout(dw.shape())}, dw);
  });
}

}  // namespace mixtape::kernels::cuda
