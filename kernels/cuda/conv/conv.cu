// 2-D convolution and its gradients as matrix products. The inputs of each tap form a matrix of
// columns, one per pixel of y, for as many images as stay in the cache; 1 x 1 windows need no copy.
// Then y = w columns and dw = dy columns^T. dx is a convolution of dy or, with strides above 1,
// gathers what w^T dy holds for each pixel, in the order of the taps. (implicit.cu has images
// with channels last for tensor cores, which need no columns.)

#include <algorithm>

#include "kernels/common/batch.h"
#include "kernels/cuda/conv/depthwise.cuh"
#include "kernels/cuda/conv/implicit.h"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

constexpr int64_t slice_bytes = 256 << 10;  // of columns per multiprocessor: what caches hold
constexpr int threads = 256;

// The sizes of a convolution; in and out are channels of one group.
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
// col[channel, tap][image][p] for pixels p of y, padded with zeros to `length`. A thread locates 16
// bytes' worth of pixels once, for all taps of a channel. Grid: pixels, channels.
template <class S>
__global__ void fill_columns(const S* __restrict__ x, Geometry g, int channels, int images,
                             int length, S* __restrict__ col) {
  constexpr int n = 16 / int(sizeof(S));
  const int packs = length / n;
  const int64_t id = gpu::global_thread(), row = int64_t(images) * length;
  if (id >= int64_t(images) * packs) return;
  const int image = int(id / packs), p = int(id - int64_t(image) * packs) * n;
  int down[n], right[n];  // the index that the first tap reads, or one far outside
  int i = p / g.y[1], j = p - i * g.y[1];
#pragma unroll
  for (int e = 0; e < n; ++e) {
    down[e] = i < g.y[0] ? g.input_index(0, i, 0) : -(1 << 30);
    right[e] = g.input_index(1, j, 0);
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
        gpu::store_global(to, out);
        to += row;
      }
  }
}

// Rows of pixels of several images: `row` and `image` are their strides.
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

// The padded length of a row of pixels: products copy 16 bytes at a time.
int64_t padded(int64_t pixels, DType t) {
  const int64_t n = 16 / int64_t(size_of(t));
  return round_up(pixels, n);
}
// True if each window is the pixel at its own index, so that planes are columns already. (The
// planes of a transposed convolution differ by its output padding.)
bool is_its_own_columns(In x, const Geometry& g) {
  bool same = g.taps() == 1 && !g.is_strided() && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
              padded(g.y_plane(), x.dtype) == g.y_plane();
  for (int d = 0; d < 2; ++d) same = same && g.padding[d] == 0 && g.x[d] == g.y[d];
  return same;
}
Geometry pointwise(In y) { return {y, y, Window{}}; }  // every pixel is a window

// The columns of `images` images from `first` on; joint: the images of a row follow each other.
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

// Calls f(launch, first image, images) for slices of the images that fill the cache, at `bytes` per
// image, each with its own scratch memory.
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

// c = activation(a @ b + bias + residual) for [images, groups, ., .], as `residual` and `before`
// are; row r of group g gets bias[g * rows + r].
void product(Launch& launch, const View& a, const View& b, const Epilogue& epilogue,
             const View& c) {
  const View& bias = epilogue.bias;
  if (!bias) return gemm(launch, a, b, epilogue, c);
  const auto of_group = [](const View& v, int64_t g) {
    if (!v) return v;
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
          .residual = of_group(epilogue.residual, g),
          .activation = epilogue.activation,
          .before = of_group(epilogue.before, g)},
         of_group(c, g));
  }
}

// Weights as [images, groups, rows, depth], the same for all images.
View repeated(View w, int64_t images) {
  const Shape &n = w.shape(), &s = w.strides();
  w.layout = Layout({images, n[0], n[1], n[2]}, {0, s[0], s[1], s[2]});
  return w;
}
// Scratch memory for weights, whose rows begin at multiples of 16 bytes.
View weight_buffer(Launch& launch, DType t, int64_t groups, int64_t rows, int64_t depth) {
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
  const View copy = weight_buffer(launch, w.dtype, z.groups, z.out, depth);
  convert(launch, dense, copy);
  return copy;
}
// [groups, inputs, (output, tap in reverse)]
View reversed_weights(Launch& launch, In w, const Sizes& z, int taps) {
  const View copy = weight_buffer(launch, w.dtype, z.groups, z.in, z.out * taps);
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

// --- gradients by columns ---
// The terms of dx: what w^T dy holds for a pixel at each tap and window.
template <class T>
struct ColumnTerms {
  const T* col;
  int64_t row, image_stride;
  int taps;
  __device__ auto operator()(int64_t image, int channel, int tap) const {
    return [from = col + (int64_t(channel) * taps + tap) * row + image * image_stride](int window) {
      return from[window];
    };
  }
};

template <class T>
const T* widened(Launch& launch, In x) {
  if (!x) return nullptr;
  if (x.dtype == dtype_of<T>() && x.layout.is_contiguous()) return x.as<const T>();
  const View wide{launch.scratch<T>(x.size()), dtype_of<T>(), Layout(x.shape())};
  convert(launch, x, wide);
  return wide.as<const T>();
}

// y = activation(w columns of x + bias + residual), for w [groups, rows, depth].
void convolve(Launch& launch, In x, In w, const Epilogue& epilogue, const Geometry& g, Out y) {
  const int64_t groups = w.shape()[0], depth = w.shape()[2];
  const int64_t bytes = groups * depth * padded(g.y_plane(), x.dtype) * int64_t(size_of(x.dtype));
  in_slices(launch, x.shape()[0], is_its_own_columns(x, g) ? 0 : bytes,
            [&](Launch& slice, int64_t first, int64_t images) {
              const Columns col = columns(slice, x, g, first, images, false);
              Epilogue e = epilogue;
              for (View* v : {&e.residual, &e.before})
                if (*v) *v = planes(*v, first, images, groups);
              product(slice, repeated(w, images), col.matrices(images, groups, depth, g.y_plane()),
                      e, planes(y, first, images, groups));
            });
}

}  // namespace

void conv2d(Launch& launch, In x, In w, const Epilogue& epilogue, const Window& window, Out y) {
  if (y.size() == 0) return;
  if (takes_images(launch, x, y)) return conv2d_images(launch, x, w, epilogue, window, y);
  const Sizes z(x, w, window);
  const Geometry g(x, y, window);
  if (!z.depthwise()) return convolve(launch, x, weights(launch, w, z, g.taps()), epilogue, g, y);
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    const RowQuads quads(z.images * y.shape()[1], g.y[0], g.y[1]);
    gpu::launch(quads.grid("conv2d_depthwise"), launch.stream, sum_taps<S, O>, x.as<const S>(),
                w.as<const S>(), g, int(y.shape()[1]), int(z.out),
                widened<gpu::math_t<S>>(launch, epilogue.bias),
                Parameter<gpu::math_t<S>>(epilogue.residual), epilogue.activation, quads,
                epilogue.before.as<O>(), y.as<O>());
  });
}

void conv2d_input(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  if (dx.size() == 0) return;
  if (takes_images(launch, dy, dx)) return conv2d_input_images(launch, dy, w, bias, window, dx);
  const Sizes z(dx, w, window);
  const Geometry g(dx, dy, window);
  if (!z.depthwise() && !g.is_strided())
    return convolve(launch, dy, reversed_weights(launch, w, z, g.taps()), {.bias = bias},
                    g.reversed(), dx);
  visit_float(dy.dtype, dx.dtype, [&]<class S, class O>() {
    using T = gpu::math_t<S>;
    const T* const added = widened<T>(launch, bias);
    if (z.depthwise())
      return gather(launch,
                    DepthwiseTerms<S>{dy.as<const S>(), w.as<const S>(), int(z.groups), int(z.out),
                                      g.taps(), g.y_plane()},
                    g, added, z.images, dx.shape()[1], dx.as<O>());
    const View factor = weights(launch, w, z, g.taps());
    const int64_t depth = z.in * g.taps(), length = padded(g.y_plane(), dy.dtype);
    in_slices(launch, z.images, z.groups * depth * length * int64_t(sizeof(T)),
              [&](Launch& slice, int64_t first, int64_t images) {
                const Columns of_dy = columns(slice, dy, pointwise(dy), first, images, false);
                const View buffer{
                    slice.scratch<T>(z.groups * depth * images * length), dtype_of<T>(), {}};
                const Columns col{buffer, images * length, length};
                product(slice, swapped(repeated(factor, images)),
                        of_dy.matrices(images, z.groups, z.out, g.y_plane()), {},
                        col.matrices(images, z.groups, depth, g.y_plane()));
                gather(slice, ColumnTerms<T>{buffer.as<const T>(), col.row, col.image, g.taps()}, g,
                       added, images, dx.shape()[1], image_of(dx, first).as<O>());
              });
  });
}

void conv2d_weight(Launch& launch, In x, In dy, const Window& window, Out dw, Out db) {
  if (dw.size() > 0 && x.size() > 0 && dy.size() > 0 && takes_images(launch, x, dy))
    return conv2d_weight_images(launch, x, dy, window, dw, db);
  if (db) reduce(launch, Reduce::Sum, dy, per_channel(db));
  if (dw.size() == 0) return;
  if (x.size() == 0 || dy.size() == 0) return fill(launch, 0, dw);
  const Sizes z(x, dw, window);
  const Geometry g(x, dy, window);
  if (z.depthwise()) return depthwise_weight(launch, x, dy, g, dw);
  const int64_t depth = z.in * g.taps(), length = padded(g.y_plane(), x.dtype);
  const Layout matrices(Shape{z.groups, z.out, depth});
  const auto buffer = [&](Launch& owner) {
    return visit_float(x.dtype, [&]<class S>() {
      using T = gpu::math_t<S>;
      return View{owner.scratch<T>(dw.size()), dtype_of<T>(), matrices};
    });
  };
  const View result{dw.data, dw.dtype, matrices};
  View sum = result;  // with several slices, in scratch memory
  in_slices(launch, z.images, z.groups * (depth + z.out) * length * int64_t(size_of(x.dtype)),
            [&](Launch& slice, int64_t first, int64_t images) {
              if (first == 0 && images < z.images) sum = buffer(launch);
              const View part = first == 0 ? sum : buffer(slice);
              const int64_t pixels = images == 1 ? g.y_plane() : images * length;
              const Columns col = columns(slice, x, g, first, images, true),
                            out = columns(slice, dy, pointwise(dy), first, images, true);
              gemm(slice, out.joint(z.groups, z.out, pixels),
                   swapped(col.joint(z.groups, depth, pixels)), {}, part);
              if (first > 0) accumulate(slice, part, sum);
            });
  if (sum.data != result.data) convert(launch, sum, result);
}

}  // namespace mixtape::kernels::cuda
