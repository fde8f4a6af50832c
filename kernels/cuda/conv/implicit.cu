// Convolutions of images with channels last and their gradients: weights are arranged as the
// kernels read them, and channels that are no multiple of 16 bytes are padded with zeros.

#include "kernels/cuda/conv/implicit.cuh"

#include <numeric>

#include "kernels/cuda/conv/implicit.h"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

template <class T>
constexpr int64_t chunk = 16 / int64_t(sizeof(T));

// A dense copy of [a, rows, columns, b] of any strides, with b padded to a multiple of 16 bytes.
template <class T>
View arranged(Launch& launch, const View& from) {
  const Shape& n = from.shape();
  const int64_t padded = round_up(n[3], chunk<T>);
  const View all{launch.scratch<T>(n[0] * n[1] * n[2] * padded), from.dtype,
                 Layout({n[0], n[1], n[2], padded})};
  if (padded != n[3]) fill(launch, 0, all);
  convert(launch, from, {all.data, all.dtype, Layout(n, all.strides())});
  return all;
}
// Images as [n, rows, columns, channels]: themselves, unless their channels must be padded.
template <class T>
View pixels(Launch& launch, const View& x) {
  const Shape &n = x.shape(), &s = x.strides();
  const Layout by_pixel({n[0], n[2], n[3], n[1]}, {s[0], s[2], s[3], s[1]});
  const View same{x.data, x.dtype, Layout(by_pixel.shape)};
  const bool shares = n[1] % chunk<T> == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  return shares ? same : arranged<T>(launch, {x.data, x.dtype, by_pixel});
}
View at(const View& x, int64_t offset, const Layout& layout) {
  return {x.as<char>() + offset * int64_t(size_of(x.dtype)), x.dtype, layout};
}

// The problem, its plan, and the launch of kernels[tile].
template <class T>
void multiply(Launch& launch, const char* name, Gemm<T> g, const Windows<T>& windows,
              void (*const (&kernels)[3])(Gemm<T>, Windows<T>)) {
  const GemmProblem p{g.m, g.n, g.k, 1};
  const GemmPlan best = plan(p, true, gpu::multiprocessors(launch.device.index));
  const Tile& t = tiles[best.tile];
  constexpr size_t shared_bytes[] = {
      // (the same for all layouts)
      detail::TensorTile<T, true, false, 0, Tier::Mma>::shared_bytes,
      detail::TensorTile<T, true, false, 1, Tier::Mma>::shared_bytes,
      detail::TensorTile<T, true, false, 2, Tier::Mma>::shared_bytes};
  const KParts k = cut_k(g.k, k_step<T>, best.split);
  g.part_k = k.size;
  start_parts(launch, g, p, k.count, [&](const Gemm<T>& of) {
    gpu::launch({name,
                 {unsigned(ceil_div(g.m, t.m) * ceil_div(g.n, t.n)), unsigned(k.count), 1},
                 {unsigned(t.threads()), 1, 1},
                 shared_bytes[best.tile]},
                launch.stream, kernels[best.tile], of, windows);
  });
}

// y = epilogue(windows of x, by weights [outputs, rows, columns, channels]).
template <class T>
void convolve(Launch& launch, const View& x, const View& w, const Epilogue& epilogue,
              const Geometry& geometry, const View& y) {
  const Windows<T> windows(x.as<const T>(), geometry, x.shape()[0], x.shape()[3]);
  using A = gpu::math_t<T>;
  Gemm<T> g{};
  g.b = w.as<const T>();
  g.c = y.data;
  g.before = epilogue.before.data;
  g.activation = epilogue.activation;
  g.bias = bias_of(epilogue.bias);
  g.wide = y.dtype != dtype_of<T>();
  g.m = windows.pixels;
  g.n = w.shape()[0];
  g.k = geometry.taps() * x.shape()[3];
  g.b_down = 1;
  g.b_right = g.k;
  g.fast_b = true;
  g.ldc = g.n;
  const auto fast = [&](const void* p) {
    return g.wide ? aligned<A>(p, g.n, {}) : aligned<T>(p, g.n, {});
  };
  g.fast_c = fast(g.c) && fast(g.before);
  g.residual = residual_of(epilogue.residual, g);
  multiply<T>(launch, "conv_images", g, windows,
              {conv_images<T, 0>, conv_images<T, 1>, conv_images<T, 2>});
}

// The pixels of dx along direction d whose windows begin at the same distance `phase` from a
// multiple of the stride read the same taps: every `step`-th, `taps` of them, up to tap `last`.
// Among these pixels dx is a convolution of dy with a stride of 1, by the taps in reverse order.
struct Phase {
  int first, count;  // pixels: first, first + stride, ...
  int last = 0, step, taps = 0, padding, dilation;

  Phase(const Geometry& g, int d, int phase) : first(phase) {
    const int stride = g.stride[d], common = std::gcd(stride, g.dilation[d]);
    count = g.x[d] > phase ? ceil_div(g.x[d] - phase, stride) : 0;
    step = stride / common;
    dilation = g.dilation[d] / common;
    for (int t = 0; t < g.size[d]; ++t)
      if ((phase + g.padding[d] - t * g.dilation[d]) % stride == 0) {
        last = t;
        ++taps;
      }
    padding = (last * g.dilation[d] - phase - g.padding[d]) / stride;  // exact, if there are taps
  }
};

template <class T>
void convolve_phase(Launch& launch, const View& dy, In w, In bias, const Geometry& g,
                    const Phase& rows, const Phase& columns, Out dx) {
  const Shape &n = dx.shape(), &to = dx.strides(), &s = w.strides();
  if (rows.count == 0 || columns.count == 0) return;
  const Shape sizes{n[0], n[1], rows.count, columns.count};
  const View part = at(dx, rows.first * to[2] + columns.first * to[3],
                       Layout(sizes, {to[0], to[1], to[2] * g.stride[0], to[3] * g.stride[1]}));
  if (rows.taps == 0 || columns.taps == 0) {
    if (!bias) return fill(launch, 0, part);
    return convert(launch, {bias.data, bias.dtype, Layout(sizes, {0, bias.strides()[0], 0, 0})},
                   part);
  }
  const View weights =
      arranged<T>(launch, at(w, rows.last * s[2] + columns.last * s[3],
                             Layout({n[1], rows.taps, columns.taps, w.shape()[0]},
                                    {s[1], -rows.step * s[2], -columns.step * s[3], s[0]})));
  Geometry phase = g;
  const Phase* const of[] = {&rows, &columns};
  for (int d = 0; d < 2; ++d) {
    phase.x[d] = g.y[d];
    phase.y[d] = of[d]->count;
    phase.size[d] = of[d]->taps;
    phase.stride[d] = 1;
    phase.padding[d] = of[d]->padding;
    phase.dilation[d] = of[d]->dilation;
  }
  if (!g.is_strided()) return convolve<T>(launch, dy, weights, {.bias = bias}, phase, dx);
  Launch own(launch.device);
  const View result = visit_float(dx.dtype, [&]<class O>() {
    return View{own.scratch<O>(sizes.size()), dx.dtype, channels_last(sizes)};
  });
  convolve<T>(own, dy, weights, {.bias = bias}, phase, result);
  convert(own, result, part);
}

template <class F>
void visit_tensor(DType t, F f) {
  t == f16    ? f.template operator()<Half>()
  : t == bf16 ? f.template operator()<BFloat16>()
              : f.template operator()<float>();
}

}  // namespace

bool takes_images(const Launch& launch, In x, In y) {
  const bool tensor = is_half(x.dtype) || (x.dtype == f32 && launch.tf32);
  return tensor && (has_channels_last(x) || has_channels_last(y));
}

void conv2d_images(Launch& launch, In x, In w, const Epilogue& epilogue, const Window& window,
                   Out y) {
  const Shape &n = w.shape(), &s = w.strides();
  visit_tensor(x.dtype, [&]<class T>() {
    const View weights = arranged<T>(
        launch, {w.data, w.dtype, Layout({n[0], n[2], n[3], n[1]}, {s[0], s[2], s[3], s[1]})});
    convolve<T>(launch, pixels<T>(launch, x), weights, epilogue, Geometry(x, y, window), y);
  });
}

void conv2d_input_images(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  visit_tensor(dy.dtype, [&]<class T>() {
    const Geometry g(dx, dy, window);
    const View from = pixels<T>(launch, dy);
    for (int i = 0; i < g.stride[0]; ++i)
      for (int j = 0; j < g.stride[1]; ++j)
        convolve_phase<T>(launch, from, w, bias, g, Phase(g, 0, i), Phase(g, 1, j), dx);
  });
}

void conv2d_weight_images(Launch& launch, In x, In dy, const Window& window, Out dw, Out db) {
  visit_tensor(x.dtype, [&]<class T>() {
    using A = gpu::math_t<T>;
    const View from = pixels<T>(launch, x), of_y = pixels<T>(launch, dy);
    const int64_t channels = from.shape()[3];
    const Windows<T> windows(from.as<const T>(), Geometry(x, dy, window), x.shape()[0], channels);
    const Shape &n = dw.shape(), &to = dw.strides();
    Gemm<T> g{};
    g.a = of_y.as<const T>();
    g.m = n[0];
    g.n = windows.g.taps() * channels;
    g.k = windows.pixels;
    g.a_down = 1;
    g.a_right = of_y.shape()[3];
    g.fast_a = true;
    g.c = launch.scratch<A>(g.m * g.n);
    g.wide = true;
    g.ldc = g.n;
    g.fast_c = true;
    g.row_sums = db.as<A>();
    multiply<T>(launch, "conv_images_weight", g, windows,
                {conv_images_weight<T, 0>, conv_images_weight<T, 1>, conv_images_weight<T, 2>});
    const Shape taps{n[0], n[2], n[3], n[1]};
    convert(launch, {g.c, dtype_of<A>(), Layout(taps, {g.n, n[3] * channels, channels, 1})},
            {dw.data, dw.dtype, Layout(taps, {to[0], to[2], to[3], to[1]})});
  });
}

}  // namespace mixtape::kernels::cuda
