// 2-D convolution and its gradients as matrix products. What each tap of the windows sees is laid
// out as a matrix of columns, one per pixel of y, for as many images at a time as stay in the
// cache; windows of one pixel need no copy. Then y = w columns and dw = dy columns^T. Of windows at
// every pixel dx is a convolution of dy; of others it gathers what w^T dy holds of each pixel, in
// the order of the taps. Where a group has one channel (depthwise) a product would be idle: there
// threads sum up the taps themselves.

#include <algorithm>

#include "kernels/common/activation.h"
#include "kernels/common/batch.h"
#include "kernels/cuda/planes.cuh"

namespace mixtape::kernels::cuda {
namespace {

constexpr int64_t slice_bytes = 256 << 10;  // of columns per multiprocessor: what caches hold
constexpr int threads = 256;

// A window and the planes on both of its sides, per direction.
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
  // Of the convolution of dy that is dx, with the taps in reverse, where all strides are 1.
  Geometry reversed() const {
    Geometry g = *this;
    for (int d = 0; d < 2; ++d) {
      std::swap(g.x[d], g.y[d]);
      g.padding[d] = dilation[d] * (size[d] - 1) - padding[d];
    }
    return g;
  }
  bool steps() const { return stride[0] > 1 || stride[1] > 1; }
  MIXTAPE_HD int taps() const { return size[0] * size[1]; }
  MIXTAPE_HD int64_t x_plane() const { return int64_t(x[0]) * x[1]; }
  MIXTAPE_HD int64_t y_plane() const { return int64_t(y[0]) * y[1]; }
  // Where tap t of window i begins to see x, or outside of x.
  MIXTAPE_HD int seen(int d, int i, int t) const {
    return i * stride[d] - padding[d] + t * dilation[d];
  }
  // The window whose tap t sees place i of x, or -1.
  MIXTAPE_HD int window(int d, int i, int t) const {
    const int from = i + padding[d] - t * dilation[d];
    if (from < 0) return -1;
    const int w = stride[d] == 1 ? from : from / stride[d];
    return w < y[d] && w * stride[d] == from ? w : -1;
  }
};

// Of one convolution; in and out are channels of one group.
struct Sizes {
  int64_t images, groups, in, out;
  Sizes(In x, In w, const Window& window)
      : images(x.shape()[0]),
        groups(window.groups),
        in(w.shape()[1]),
        out(w.shape()[0] / window.groups) {}
  bool depthwise() const { return in == 1 && groups > 1; }
};

// --- columns ---
// col[channel, tap][image][p] for pixels p of y, which are filled up with zeros to `length`. A
// thread finds 16 bytes' worth of pixels once, for all taps of a channel. Grid: pixels, channels.
template <class S>
__global__ void fill_columns(const S* __restrict__ x, Geometry g, int channels, int images,
                             int length, S* __restrict__ col) {
  constexpr int n = 16 / int(sizeof(S));
  const int packs = length / n;
  const int64_t id = gpu::global_thread(), row = int64_t(images) * length;
  if (id >= int64_t(images) * packs) return;
  const int image = int(id / packs), p = int(id - int64_t(image) * packs) * n;
  int down[n], right[n];  // where the first tap sees x, or far outside
  int i = p / g.y[1], j = p - i * g.y[1];
#pragma unroll
  for (int e = 0; e < n; ++e) {
    down[e] = i < g.y[0] ? g.seen(0, i, 0) : -(1 << 30);
    right[e] = g.seen(1, j, 0);
    if (++j == g.y[1]) {
      j = 0;
      ++i;
    }
  }
  for (int c = int(gpu::block().y); c < channels; c += int(gpu::grid_size().y)) {
    const S* const plane = x + (int64_t(image) * channels + c) * g.x_plane();
    S* to = col + int64_t(c) * g.taps() * row + int64_t(image) * length + p;
#pragma unroll 1
    for (int tap_row = 0; tap_row < g.size[0]; ++tap_row)
#pragma unroll 1
      for (int tap_column = 0; tap_column < g.size[1]; ++tap_column) {
        gpu::Pack<S, n> out;
#pragma unroll
        for (int e = 0; e < n; ++e) {
          const int r = down[e] + tap_row * g.dilation[0],
                    q = right[e] + tap_column * g.dilation[1];
          const bool inside = unsigned(r) < unsigned(g.x[0]) && unsigned(q) < unsigned(g.x[1]);
          out.v[e] = inside ? plane[r * g.x[1] + q] : S();
        }
        gpu::store_as(to, out);
        to += row;
      }
  }
}

// Rows of images of pixels, somewhere in memory.
struct Columns {
  View data;  // of any shape
  int64_t row, image;
  // As matrices [images, groups, rows of a group, pixels].
  View matrices(int64_t images, int64_t groups, int64_t rows, int64_t pixels) const {
    return {data.data, data.dtype,
            Layout({images, groups, rows, pixels}, {image, rows * row, row, 1})};
  }
  // As matrices [groups, rows of a group, pixels of all images].
  View joint(int64_t groups, int64_t rows, int64_t pixels) const {
    return {data.data, data.dtype, Layout({groups, rows, pixels}, {rows * row, row, 1})};
  }
};

View image_of(In x, int64_t first) {
  View from = x;
  from.data = static_cast<char*>(x.data) + first * x.strides()[0] * int64_t(size_of(x.dtype));
  return from;
}

// Where a row of pixels ends in memory: products copy 16 bytes at a time.
int64_t padded(int64_t pixels, DType t) {
  const int64_t n = 16 / int64_t(size_of(t));
  return round_up(pixels, n);
}
// Whether each window is one pixel in its place, so that planes can be read as columns. (The planes
// of a transposed convolution differ by its output padding.)
bool is_its_own_columns(In x, const Geometry& g) {
  bool same = g.taps() == 1 && !g.steps() && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
              padded(g.y_plane(), x.dtype) == g.y_plane();
  for (int d = 0; d < 2; ++d) same = same && g.padding[d] == 0 && g.x[d] == g.y[d];
  return same;
}
Geometry single(In y) { return {y, y, Window{}}; }  // every pixel is its own window

// Of `images` images from `first` on; joint: with the images of a row one behind the other.
Columns columns(Launch& launch, In x, const Geometry& g, int64_t first, int64_t images,
                bool joint) {
  const View from = image_of(x, first);
  const int64_t channels = x.shape()[1], rows = channels * g.taps();
  if (is_its_own_columns(from, g) && (!joint || images == 1))
    return {from, g.x_plane(), channels * g.x_plane()};
  const int64_t length = padded(g.y_plane(), x.dtype);
  View to{nullptr, x.dtype, {}};
  visit_float(x.dtype, [&]<class S>() {
    to.data = launch.scratch<S>(rows * images * length);
    const int64_t packs = images * length * int64_t(sizeof(S)) / 16;
    if (rows * packs == 0) return;
    gpu::launch(
        {"conv2d_columns",
         {unsigned(ceil_div(packs, threads)), unsigned(std::min<int64_t>(channels, 65535)), 1},
         {threads, 1, 1}},
        launch.stream, fill_columns<S>, from.as<const S>(), g, int(channels), int(images),
        int(length), to.as<S>());
  });
  return {to, images * length, length};
}

// Calls f(launch, first image, images) for slices that fill the cache with `bytes` per image, each
// with scratch memory of its own.
template <class F>
void in_slices(Launch& launch, int64_t images, int64_t bytes, F f) {
  const int64_t each = std::clamp<int64_t>(
      slice_bytes * gpu::multiprocessors(launch.device.index) / std::max<int64_t>(bytes, 1), 1,
      images);
  for (int64_t first = 0; first < images; first += each) {
    Launch slice(launch.device);
    f(slice, first, std::min(each, images - first));
  }
}

// c = activation(a @ b) for [images, groups, ., .], of which `before` is one, too; to row r of
// group g is added bias[g * rows + r].
void product(Launch& launch, const View& a, const View& b, const Epilogue& epilogue,
             const View& c) {
  const View& bias = epilogue.bias;
  if (!bias) return gemm(launch, a, b, epilogue, c);
  const auto of_group = [](const View& v, int64_t g) {
    const Shape &n = v.shape(), &s = v.strides();
    return View{static_cast<char*>(v.data) + g * s[1] * int64_t(size_of(v.dtype)), v.dtype,
                Layout({n[0], n[2], n[3]}, {s[0], s[2], s[3]})};
  };
  const int64_t rows = c.shape()[2], step = bias.strides()[0];
  for (int64_t g = 0; g < c.shape()[1]; ++g) {
    const View added{static_cast<char*>(bias.data) + g * rows * step * int64_t(size_of(bias.dtype)),
                     bias.dtype, Layout({rows, c.shape()[3]}, {step, 0})};
    gemm(launch, of_group(a, g), of_group(b, g),
         {.bias = added,
          .activation = epilogue.activation,
          .before = epilogue.before ? of_group(epilogue.before, g) : View{}},
         of_group(c, g));
  }
}

// Weights as [images, groups, rows, depth], the same for all images, whose rows begin at multiples
// of 16 bytes.
View repeated(View w, int64_t images) {
  const Shape &n = w.shape(), &s = w.strides();
  w.layout = Layout({images, n[0], n[1], n[2]}, {0, s[0], s[1], s[2]});
  return w;
}
View weight_room(Launch& launch, DType t, int64_t groups, int64_t rows, int64_t depth) {
  const int64_t ld = padded(depth, t);
  return visit_float(t, [&]<class S>() {
    return View{launch.scratch<S>(groups * rows * ld), t,
                Layout({groups, rows, depth}, {rows * ld, ld, 1})};
  });
}
View weights(Launch& launch, In w, const Sizes& z, int taps) {
  const int64_t depth = z.in * taps;
  const View dense{w.data, w.dtype, Layout({z.groups, z.out, depth})};
  if (padded(depth, w.dtype) == depth) return dense;
  const View copy = weight_room(launch, w.dtype, z.groups, z.out, depth);
  convert(launch, dense, copy);
  return copy;
}
// [groups, inputs, (output, tap in reverse)]
View reversed_weights(Launch& launch, In w, const Sizes& z, int taps) {
  const View copy = weight_room(launch, w.dtype, z.groups, z.in, z.out * taps);
  const Shape sizes{z.groups, z.in, z.out, taps};
  const Shape& to = copy.strides();
  convert(launch,
          {static_cast<char*>(w.data) + (taps - 1) * int64_t(size_of(w.dtype)), w.dtype,
           Layout(sizes, {z.out * z.in * taps, taps, z.in * taps, -1})},
          {copy.data, copy.dtype, Layout(sizes, {to[0], to[1], taps, 1})});
  return copy;
}
View swapped(View v) {
  v.layout = transpose(v.layout, -1, -2);
  return v;
}
// Images of dense planes as [images, groups, channels of a group, pixels].
View planes(In x, int64_t first, int64_t images, int64_t groups) {
  const int64_t channels = x.shape()[1] / groups, pixels = x.shape()[2] * x.shape()[3];
  return {image_of(x, first).data, x.dtype, Layout({images, groups, channels, pixels})};
}

// --- gathering: what the windows give back to each place of x ---
// dx = bias + the sum over taps of f(image, channel, tap, window).
template <class T, class O, class F>
__global__ void gather_windows(F f, Geometry g, int channels, const T* bias, RowQuads strips,
                               O* __restrict__ dx) {
  const int64_t strip = gpu::global_thread();
  if (strip >= strips.count) return;
  const RowQuads::Place at = strips.find(strip);
  const int64_t image = at.plane / channels;
  const int channel = int(at.plane - image * channels);
  T sum[RowQuads::height];
#pragma unroll
  for (int k = 0; k < RowQuads::height; ++k) sum[k] = bias ? bias[channel] : T(0);
#pragma unroll 1
  for (int i = 0; i < g.size[0]; ++i)
#pragma unroll 1
    for (int j = 0; j < g.size[1]; ++j) {
      const int q = g.window(1, at.column, j);
      if (q < 0) continue;
#pragma unroll
      for (int k = 0; k < RowQuads::height; ++k) {
        const int r = g.window(0, at.row + k, i);
        if (r >= 0) sum[k] += f(image, channel, i * g.size[1] + j, r * g.y[1] + q);
      }
    }
  dx += (at.plane * g.x[0] + at.row) * g.x[1] + at.column;
#pragma unroll
  for (int k = 0; k < RowQuads::height; ++k)
    if (at.row + k < g.x[0]) dx[k * g.x[1]] = gpu::narrow<O>(sum[k]);
}

template <class T>
struct FromColumns {
  const T* col;
  int64_t row, image_stride;
  int taps;
  __device__ T operator()(int64_t image, int channel, int tap, int window) const {
    return col[(int64_t(channel) * taps + tap) * row + image * image_stride + window];
  }
};
template <class S>
struct FromGradient {  // of a channel that is alone in its group
  const S *dy, *w;
  int channels, outputs, taps;  // outputs of a group
  int64_t plane;
  __device__ gpu::math_t<S> operator()(int64_t image, int channel, int tap, int window) const {
    gpu::math_t<S> sum = 0;
#pragma unroll 1
    for (int m = 0; m < outputs; ++m)
      sum += gpu::widen(w[(int64_t(channel) * outputs + m) * taps + tap]) *
             gpu::widen(dy[((image * channels + channel) * outputs + m) * plane + window]);
    return sum;
  }
};

template <class T, class O, class F>
void gather(Launch& launch, F f, const Geometry& g, const T* bias, In dx, int64_t first,
            int64_t images) {
  const int64_t channels = dx.shape()[1];
  const RowQuads strips(images * channels, g.x[0], g.x[1]);
  gpu::launch(strips.grid("conv2d_gather"), launch.stream, gather_windows<T, O, F>, f, g,
              int(channels), bias, strips, image_of(dx, first).as<O>());
}

template <class T>
const T* widened(Launch& launch, In x) {
  if (!x) return nullptr;
  if (x.dtype == dtype_of<T>() && x.layout.is_contiguous()) return x.as<const T>();
  const View wide{launch.scratch<T>(x.size()), dtype_of<T>(), Layout(x.shape())};
  convert(launch, x, wide);
  return wide.as<const T>();
}

// --- depthwise: planes that meet only themselves ---
template <class S, class O>
__global__ void sum_taps(const S* __restrict__ x, const S* __restrict__ w, Geometry g, int channels,
                         int outputs, const gpu::math_t<S>* bias, Activation activation,
                         RowQuads strips, O* __restrict__ before, O* __restrict__ y) {
  using T = gpu::math_t<S>;
  const int64_t strip = gpu::global_thread();
  if (strip >= strips.count) return;
  const RowQuads::Place at = strips.find(strip);
  const int64_t image = at.plane / channels;
  const int channel = int(at.plane - image * channels);  // of y
  x += (image * (channels / outputs) + channel / outputs) * g.x_plane();
  w += int64_t(channel) * g.taps();
  T sum[RowQuads::height];
#pragma unroll
  for (int k = 0; k < RowQuads::height; ++k) sum[k] = bias ? bias[channel] : T(0);
#pragma unroll 1
  for (int i = 0; i < g.size[0]; ++i)
#pragma unroll 1
    for (int j = 0; j < g.size[1]; ++j) {
      const int q = g.seen(1, at.column, j);
      if (unsigned(q) >= unsigned(g.x[1])) continue;
      const T weight = gpu::widen(w[i * g.size[1] + j]);
#pragma unroll
      for (int k = 0; k < RowQuads::height; ++k) {
        const int r = g.seen(0, at.row + k, i);
        if (unsigned(r) < unsigned(g.x[0])) sum[k] += weight * gpu::widen(x[r * g.x[1] + q]);
      }
    }
  const int64_t first = (at.plane * g.y[0] + at.row) * g.y[1] + at.column;
  const auto store = [&](O* to) {
#pragma unroll
    for (int k = 0; k < RowQuads::height; ++k)
      if (at.row + k < g.y[0]) to[first + k * g.y[1]] = gpu::narrow<O>(sum[k]);
  };
  if (before) store(before);
  visit_activation(activation, [&]<class F>() {
#pragma unroll
    for (int k = 0; k < RowQuads::height; ++k) sum[k] = F::f(sum[k]);
  });
  store(y);
}

// A block sums up some taps of one channel over a part of all pixels. Grid: channels, parts, taps.
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
  for (int64_t p = begin + gpu::thread().x; p < end; p += threads) {
    const int64_t image = p / g.y_plane();
    const int at = int(p - image * g.y_plane()), i = at / g.y[1], j = at - i * g.y[1];
    const T v = gpu::widen(dy[(image * channels + channel) * g.y_plane() + at]);
    const S* const plane = x + (image * (channels / outputs) + channel / outputs) * g.x_plane();
    int down = first_tap / g.size[1], right = first_tap - down * g.size[1];
#pragma unroll
    for (int t = 0; t < taps_at_once; ++t) {
      const int r = g.seen(0, i, down), q = g.seen(1, j, right);
      if (down < g.size[0] && unsigned(r) < unsigned(g.x[0]) && unsigned(q) < unsigned(g.x[1]))
        sum[t] += v * gpu::widen(plane[r * g.x[1] + q]);
      if (++right == g.size[1]) {
        right = 0;
        ++down;
      }
    }
  }
  constexpr int warps = threads / gpu::warp_size;
  const auto of_warps = gpu::shared_memory<T>();
#pragma unroll
  for (int t = 0; t < taps_at_once; ++t) {
    for (int mask = gpu::warp_size / 2; mask > 0; mask /= 2)
      sum[t] += gpu::shuffle_xor(sum[t], mask);
    if (gpu::lane() == 0) of_warps[t * warps + int(gpu::thread().x) / gpu::warp_size] = sum[t];
  }
  gpu::sync_block();
  const int t = int(gpu::thread().x);
  if (t >= taps_at_once || first_tap + t >= g.taps()) return;
  T all = of_warps[t * warps];
  for (int w = 1; w < warps; ++w) all += T(of_warps[t * warps + w]);
  parts[(int64_t(part) * channels + channel) * g.taps() + first_tap + t] = all;
}

void depthwise_weight(Launch& launch, In x, In dy, const Geometry& g, Out dw) {
  const int64_t channels = dy.shape()[1], pixels = dy.shape()[0] * g.y_plane();
  const int64_t taps = ceil_div(g.taps(), taps_at_once);
  // Parts, where there are too few channels to fill the device: each at least 2048 long.
  const int64_t count = gpu::parts_for(launch, channels * taps, pixels / 2048);
  visit_float(x.dtype, [&]<class S>() {
    using T = gpu::math_t<S>;
    const auto room = [&](int64_t n) {
      return View{launch.scratch<T>(n * dw.size()), dtype_of<T>(), Layout({n, dw.size()})};
    };
    const View parts = room(count), sum = room(1);
    gpu::launch({"conv2d_depthwise_weight",
                 {unsigned(channels), unsigned(count), unsigned(taps)},
                 {threads, 1, 1},
                 sizeof(T) * taps_at_once * threads / gpu::warp_size},
                launch.stream, sum_pixels<S>, x.as<const S>(), dy.as<const S>(), g,
                int(channels / x.shape()[1]), pixels, parts.as<T>());
    reduce(launch, Reduce::Sum, parts, sum);
    convert(launch, {sum.data, sum.dtype, Layout(dw.shape())}, dw);
  });
}

// y = activation(w columns of x + bias), for w [groups, rows, depth].
void convolve(Launch& launch, In x, In w, const Epilogue& epilogue, const Geometry& g, Out y) {
  const int64_t groups = w.shape()[0], depth = w.shape()[2];
  const int64_t bytes = groups * depth * padded(g.y_plane(), x.dtype) * int64_t(size_of(x.dtype));
  in_slices(launch, x.shape()[0], is_its_own_columns(x, g) ? 0 : bytes,
            [&](Launch& slice, int64_t first, int64_t images) {
              const Columns col = columns(slice, x, g, first, images, false);
              Epilogue e = epilogue;
              if (e.before) e.before = planes(e.before, first, images, groups);
              product(slice, repeated(w, images), col.matrices(images, groups, depth, g.y_plane()),
                      e, planes(y, first, images, groups));
            });
}

}  // namespace

void conv2d(Launch& launch, In x, In w, const Epilogue& epilogue, const Window& window, Out y) {
  if (y.size() == 0) return;
  const Sizes z(x, w, window);
  const Geometry g(x, y, window);
  if (!z.depthwise()) return convolve(launch, x, weights(launch, w, z, g.taps()), epilogue, g, y);
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    const RowQuads strips(z.images * y.shape()[1], g.y[0], g.y[1]);
    gpu::launch(strips.grid("conv2d_depthwise"), launch.stream, sum_taps<S, O>, x.as<const S>(),
                w.as<const S>(), g, int(y.shape()[1]), int(z.out),
                widened<gpu::math_t<S>>(launch, epilogue.bias), epilogue.activation, strips,
                epilogue.before.as<O>(), y.as<O>());
  });
}

void conv2d_input(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  if (dx.size() == 0) return;
  const Sizes z(dx, w, window);
  const Geometry g(dx, dy, window);
  if (!z.depthwise() && !g.steps())
    return convolve(launch, dy, reversed_weights(launch, w, z, g.taps()), {.bias = bias},
                    g.reversed(), dx);
  visit_float(dy.dtype, dx.dtype, [&]<class S, class O>() {
    using T = gpu::math_t<S>;
    const T* const added = widened<T>(launch, bias);
    if (z.depthwise())
      return gather<T, O>(launch,
                          FromGradient<S>{dy.as<const S>(), w.as<const S>(), int(z.groups),
                                          int(z.out), g.taps(), g.y_plane()},
                          g, added, dx, 0, z.images);
    const View factor = weights(launch, w, z, g.taps());
    const int64_t depth = z.in * g.taps(), length = padded(g.y_plane(), dy.dtype);
    in_slices(
        launch, z.images, z.groups * depth * length * int64_t(sizeof(T)),
        [&](Launch& slice, int64_t first, int64_t images) {
          const Columns of_dy = columns(slice, dy, single(dy), first, images, false);
          const View room{slice.scratch<T>(z.groups * depth * images * length), dtype_of<T>(), {}};
          const Columns col{room, images * length, length};
          product(slice, swapped(repeated(factor, images)),
                  of_dy.matrices(images, z.groups, z.out, g.y_plane()), {},
                  col.matrices(images, z.groups, depth, g.y_plane()));
          gather<T, O>(slice, FromColumns<T>{room.as<const T>(), col.row, col.image, g.taps()}, g,
                       added, dx, first, images);
        });
  });
}

void conv2d_weight(Launch& launch, In x, In dy, const Window& window, Out dw, Out db) {
  if (db) reduce(launch, Reduce::Sum, dy, per_channel(db));
  if (dw.size() == 0) return;
  if (x.size() == 0 || dy.size() == 0) return fill(launch, 0, dw);
  const Sizes z(x, dw, window);
  const Geometry g(x, dy, window);
  if (z.depthwise()) return depthwise_weight(launch, x, dy, g, dw);
  const int64_t depth = z.in * g.taps(), length = padded(g.y_plane(), x.dtype);
  const Layout matrices(Shape{z.groups, z.out, depth});
  const auto room = [&](Launch& owner) {
    return visit_float(x.dtype, [&]<class S>() {
      using T = gpu::math_t<S>;
      return View{owner.scratch<T>(dw.size()), dtype_of<T>(), matrices};
    });
  };
  const View result{dw.data, dw.dtype, matrices};
  View sum = result;  // or, of several slices, in scratch memory
  in_slices(launch, z.images, z.groups * (depth + z.out) * length * int64_t(size_of(x.dtype)),
            [&](Launch& slice, int64_t first, int64_t images) {
              if (first == 0 && images < z.images) sum = room(launch);
              const View part = first == 0 ? sum : room(slice);
              const int64_t pixels = images == 1 ? g.y_plane() : images * length;
              const Columns col = columns(slice, x, g, first, images, true),
                            out = columns(slice, dy, single(dy), first, images, true);
              gemm(slice, out.joint(z.groups, z.out, pixels),
                   swapped(col.joint(z.groups, depth, pixels)), {}, part);
              if (first > 0) accumulate(slice, part, sum);
            });
  if (sum.data != result.data) convert(launch, sum, result);
}

}  // namespace mixtape::kernels::cuda
