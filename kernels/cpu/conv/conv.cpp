// 2-D convolution and its gradients as matrix products that an engine reads straight from images
// with channels last. The forward pass has pixels as rows, the channels of y as lanes and the
// elements of a window as steps; the gradient of x is a forward pass over dy for each phase of the
// stride; the gradient of w has the columns and channels of a window as rows, the channels of y as
// lanes and pixels as steps. Measured in bench/worklog/060.

#include <cstring>

#include "kernels/common/batch.h"
#include "kernels/cpu/conv/depthwise.h"
#include "kernels/cpu/conv/direct_conv.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

// Sizes of one convolution, per group where channels are meant; groups of single channels count as
// one.
struct Sizes {
  bool single;
  int64_t images, groups, in, out, taps;  // taps: rows * columns of the window
  int64_t x[2], y[2];

  Sizes(In x_, In w, In y_, const Window& window)
      : single(window.groups > 1 && w.shape()[1] == 1 && w.shape()[0] == window.groups),
        images(x_.shape()[0]),
        groups(single ? 1 : window.groups),
        in(x_.shape()[1] / groups),
        out(y_.shape()[1] / groups),
        taps(window.size[0] * window.size[1]),
        x{x_.shape()[2], x_.shape()[3]},
        y{y_.shape()[2], y_.shape()[3]} {}
  int64_t seen() const { return single ? 1 : in; }  // channels that one of y sees
  int64_t y_plane() const { return y[0] * y[1]; }
};

// The dtype's own engine if that reads images in place, else that of T, as which they are drawn.
template <class T>
const Engine<T>& engine_of(DType dtype, bool single) {
  const Engine<T>& e = any_engine<T>(current_isa(), dtype);
  return e.in_place && !single ? e : any_engine<T>(current_isa(), dtype_of<T>());
}

// Units from pixel to pixel: pixels whole pages apart would share a few places of the first-level
// cache.
template <class T>
int64_t pitch_of(int64_t units, bool single) {
  if (single) return round_up(units, 2 * vec_width<T>);
  return units > 0 && units * int64_t{sizeof(T)} % 4096 == 0 ? units + vec_width<T> : units;
}

// Units of a canvas: of a group, or of one panel of channels that see but themselves.
template <class T>
int64_t units_of(int64_t channels, int64_t unit, bool single) {
  return single ? std::min<int64_t>(channels, 2 * vec_width<T>) : ceil_div(channels, unit);
}

// The channels of one group of an image, as units.
template <class S>
Planes<S> channels_of(const S* x, int64_t channels, int64_t plane, int64_t unit) {
  return {x, x + plane, unit * plane, channels / unit, unit == 2};
}

// The rows of the canvas that are seen from a part of the pixels.
template <class T>
void see(std::span<const Pass<T>> passes, Part& part) {
  part.top = part.bottom = 0;
  for (const Pass<T>& pass : passes) {
    const int64_t begin = part.begin(pass.size[0]), end = part.end(pass.size[0]);
    if (begin == end || pass.taps.empty()) continue;
    const int64_t top = begin * pass.stride[0] + pass.taps.front().down;
    part.top = part.bottom == 0 ? top : std::min(part.top, top);
    part.bottom = std::max(part.bottom, (end - 1) * pass.stride[0] + pass.taps.back().down + 1);
  }
}

// All passes over each image of x, [images, planes, size].
template <class T, class S, class O>
void run_passes(Launch& launch, std::span<const Pass<T>> passes, In x, int64_t groups,
                const Epilogue& epilogue, Out y) {
  const Pass<T>& any = passes[0];
  const int64_t plane = x.shape()[2] * x.shape()[3];
  const int64_t planes = x.shape()[1] / groups, y_plane = y.shape()[2] * y.shape()[3];
  const int64_t room = any.panels() * any.panel();
  const T* const given = widened<T>(launch, epilogue.bias);
  T* const added = given ? launch.scratch<T>(groups * room) : nullptr;
  for (int64_t g = 0; g < groups && given; ++g) {
    std::fill_n(added + g * room, room, T(0));
    std::copy_n(given + g * any.channels, any.channels, added + g * room);
  }
  // Few images are cut into bands, so that there is work for several threads.
  const int64_t shares = any.single ? any.panels() : 1, tasks = x.shape()[0] * groups * shares;
  const int64_t bands = std::min(ceil_div(8, tasks), ceil_div(any.size[0], 4));
  parallel_for(tasks * bands, [&](int64_t i) {
    const int64_t g = i / bands / shares % groups, n = i / bands / shares / groups;
    Part part{g, i / bands % shares * any.panel(), i % bands, bands};
    see(passes, part);
    const int64_t first = (n * groups + g) * planes + part.channel;
    const int64_t count = any.single ? std::min(any.canvas.units, planes - part.channel) : planes;
    Buffer<T> image((part.bottom - part.top) * any.canvas.row());
    any.canvas.draw(channels_of(x.as<S>() + first * plane, count, plane, any.engine.unit),
                    ceil_div(count, any.engine.unit), part.top, part.bottom, image.data());
    const int64_t at = (n * groups + g) * any.channels * y_plane;
    for (const Pass<T>& pass : passes)
      pass(image.data(), part, added ? added + g * room : nullptr, epilogue.activation,
           epilogue.before ? epilogue.before.as<O>() + at : nullptr, y.as<O>() + at);
  });
}

template <class T, class S, class O>
void forward(Launch& launch, In x, In w, const Epilogue& epilogue, const Window& window, Out y) {
  const Sizes z(x, w, y, window);
  const Engine<T>& engine = engine_of<T>(x.dtype, z.single);
  const int64_t units = units_of<T>(z.in, engine.unit, z.single);
  const PaddedImage canvas(z.x, {window.padding[0], window.padding[1]},
                           {z.x[0] + 2 * window.padding[0], z.x[1] + 2 * window.padding[1]}, units,
                           pitch_of<T>(units, z.single));
  Pass<T> pass{.engine = engine,
               .canvas = canvas,
               .single = z.single,
               .channels = z.out,
               .size = {z.y[0], z.y[1]},
               .stride = {window.stride[0], window.stride[1]},
               .first = {0, 0},
               .apart = {1, 1},
               .y = {z.y[0], z.y[1]}};
  for (int64_t i = 0; i < window.size[0]; ++i)
    for (int64_t j = 0; j < window.size[1]; ++j)
      pass.taps.push_back({i * window.dilation[0], j * window.dilation[1], i * window.size[1] + j});
  const int64_t lane = z.seen() * z.taps;
  pass.prepare(launch, w.as<S>(), z.groups, z.out * lane, lane, z.seen(), z.taps);
  run_passes<T, S, O>(launch, std::span(&pass, 1), x, z.groups, epilogue, y);
}

// Pixel y0 + stride * t of x gets dy[t + (y0 + padding - i * dilation) / stride] through each tap i
// that divides evenly. `low` zeros stand before dy, so that no position is negative. The pixels of
// x that meet the same taps are those whose rows and columns are equal modulo the stride.
template <class T, class S, class O>
void input_gradient(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  const Sizes z(dx, w, dy, window);
  const Engine<T>& engine = engine_of<T>(dy.dtype, z.single);
  const int64_t units = units_of<T>(z.out, engine.unit, z.single);
  int64_t low[2], size[2];
  for (int d = 0; d < 2; ++d) {
    const int64_t before = window.dilation[d] * (window.size[d] - 1) - window.padding[d];
    low[d] = before > 0 ? ceil_div(before, window.stride[d]) : 0;
    size[d] = low[d] + std::max(z.y[d], (z.x[d] - 1 + window.padding[d]) / window.stride[d] + 1);
  }
  const PaddedImage canvas(z.y, low, size, units, pitch_of<T>(units, z.single));
  const auto shift = [&](int d, int64_t first, int64_t tap) {
    return first + window.padding[d] - tap * window.dilation[d];
  };
  std::vector<Pass<T>> passes;
  for (int64_t r0 = 0; r0 < std::min(window.stride[0], z.x[0]); ++r0)
    for (int64_t q0 = 0; q0 < std::min(window.stride[1], z.x[1]); ++q0) {
      Pass<T>& pass = passes.emplace_back(Pass<T>{.engine = engine,
                                                  .canvas = canvas,
                                                  .single = z.single,
                                                  .channels = z.in,
                                                  .size = {ceil_div(z.x[0] - r0, window.stride[0]),
                                                           ceil_div(z.x[1] - q0, window.stride[1])},
                                                  .stride = {1, 1},
                                                  .first = {r0, q0},
                                                  .apart = {window.stride[0], window.stride[1]},
                                                  .y = {z.x[0], z.x[1]}});
      for (int64_t i = window.size[0] - 1; i >= 0; --i)
        for (int64_t j = window.size[1] - 1; j >= 0; --j) {
          const int64_t down = shift(0, r0, i), across = shift(1, q0, j);
          if (down % window.stride[0] != 0 || across % window.stride[1] != 0) continue;
          pass.taps.push_back({low[0] + down / window.stride[0], low[1] + across / window.stride[1],
                               i * window.size[1] + j});
        }
      pass.prepare(launch, w.as<S>(), z.groups, z.out * z.in * z.taps, z.taps, z.single ? 1 : z.out,
                   z.in * z.taps);
    }
  run_passes<T, S, O>(launch, passes, dy, z.groups, {.bias = bias}, dx);
}

// The gradients of w and of the bias, summed over images that are drawn.
template <class T, class S>
struct WeightGradient {
  const Sizes z;
  const Window& window;
  const Engine<T>& engine;
  const int64_t unit = engine.unit, panel = int64_t{engine.lanes} * engine.vectors;  // unit: images
  const int64_t width =
      round_up(z.out, std::max<int64_t>(engine.lanes, z.single ? vec_width<T> : 1));
  const PaddedImage from{z.x,
                         {window.padding[0], window.padding[1]},
                         {z.x[0] + 2 * window.padding[0], z.x[1] + 2 * window.padding[1]},
                         z.in,
                         pitch_of<T>(z.in, z.single)};
  const PaddedImage to{z.y, {0, 0}, z.y, z.out, width};
  // Rows of a product: the channels of one tap, or of a row of taps if they lie side by side.
  const int64_t run =
      window.dilation[1] == 1 && from.pitch == z.in && !z.single ? window.size[1] : 1;
  const int64_t rows = run * z.seen();
  const int64_t area = z.taps * z.seen() * width;   // of the sums of w, in one group
  const int64_t total = z.groups * (area + width);  // those of the bias stand behind them
  std::vector<Block> blocks = {};                   // a row of pixels each
  alignas(T) char ones[sizeof(T)] = {};             // a unit of them

  WeightGradient(const Sizes& z_, const Window& window_, const Engine<T>& e, int64_t together)
      : z(z_), window(window_), engine(e) {
    const int64_t bytes = sizeof(T);
    for (int64_t i = 0; i < together; ++i)
      for (int64_t r = 0; r < z.y[0]; ++r)
        blocks.push_back({(i * from.area() + r * window.stride[0] * from.row()) * bytes,
                          (i * to.area() + r * to.row()) * bytes});
    const auto fill = [&]<class E>(E one) {
      for (size_t i = 0; i < sizeof ones; i += sizeof one) std::memcpy(ones + i, &one, sizeof one);
    };
    unit == 1 ? fill(T(1)) : fill(S(1.0f));
  }
  // Unit n of group g of x's or dy's images.
  void draw(const PaddedImage& canvas, In images, int64_t n, int64_t g, T* room) const {
    const int64_t plane = canvas.x[0] * canvas.x[1], next = z.groups * canvas.units * plane;
    const S* const even = images.as<S>() + n * unit * next + g * canvas.units * plane;
    const int64_t odds = n * unit + 1 < z.images ? canvas.units : 0;
    canvas.draw(Planes<S>{even, even + next, plane, odds, unit == 2}, canvas.units, 0,
                canvas.size[0], room);
  }
  // Adds group g of `count` images to sums: of w at taps [first, last), and of the bias.
  void add(const T* x, const T* dy, int64_t count, int64_t g, int64_t first, int64_t last,
           bool bias, T* sums) const {
    const int64_t bytes = sizeof(T), high = ceil_div(rows, ceil_div(rows, engine.rows));
    Tile<T> t{};
    t.a_row = bytes;
    t.b_step = width * bytes;
    t.out_row = t.add_row = width;
    const auto tiles = [&](int64_t height, const T* b, T* out) {
      for (int64_t l = 0; l < width; l += panel) {
        t.b = b + l;
        t.out = out + l;
        t.add = out + l;
        engine.tile(static_cast<int>(height),
                    static_cast<int>(std::min(panel, width - l) / engine.lanes), t);
      }
    };
    t.a_step = window.stride[1] * from.pitch * bytes;
    t.depth = z.y[1];
    // Long sums are sums of shorter ones.
    const int64_t all = count * z.y[0], some = std::max<int64_t>(1, 512 / z.y[1]);
    for (int64_t block = 0; block < all; block += some) {
      t.block = blocks.data() + block;
      t.blocks = std::min(some, all - block);
      for (int64_t k = first; k < last; k += run)
        for (int64_t r = 0; r < rows; r += high) {
          t.a = x + k / window.size[1] * window.dilation[0] * from.row() +
                k % window.size[1] * window.dilation[1] * from.pitch + r;
          T* const out = sums + g * area + (k * z.seen() + r) * width;
          t.b = dy;
          t.out = out;
          t.add = out;
          if (z.single)
            sum_lanes(width, t);
          else
            tiles(std::min(high, rows - r), dy, out);
        }
    }
    if (!bias) return;
    t.a = ones;  // the product with a row of ones
    t.a_step = 0;
    t.block = nullptr;
    t.blocks = 1;
    for (int64_t at = 0; at < count * z.y_plane(); at += 512) {
      t.depth = std::min<int64_t>(512, count * z.y_plane() - at);
      tiles(1, dy + at * width, sums + z.groups * area + g * width);
    }
  }
};

template <class T, class S, class O>
void weight_gradient(Launch& launch, In x, In dy, const Window& window, Out dw, Out db) {
  const Sizes z(x, dw, dy, window);
  const Engine<T>& engine = engine_of<T>(x.dtype, z.single);
  // Planes of few pixels are drawn together.
  const int64_t steps = ceil_div(z.images, int64_t{engine.unit});
  const int64_t together =
      std::max<int64_t>(1, std::min(256 / std::max<int64_t>(1, z.y_plane()), ceil_div(steps, 16)));
  const WeightGradient<T, S> gradient(z, window, engine, together);
  // Each part sums over its own images; the parts are added in order. They have no more elements
  // than half of what the call reads, unless there is one: then tasks draw the same images and
  // share the taps.
  const int64_t total = gradient.total, half = (x.size() + dy.size()) / 2;
  const int64_t parts = std::clamp<int64_t>(std::min(steps, half / total), 1, 16);
  const int64_t taps = parts * z.groups < 8 ? gradient.run : z.taps;
  const int64_t shares = z.taps / taps;
  T* const sums = launch.scratch<T>(parts * total);
  std::fill_n(sums, parts * total, T(0));
  parallel_for(parts * z.groups * shares, [&](int64_t i) {
    const int64_t part = i / shares / z.groups, g = i / shares % z.groups, tap = i % shares * taps;
    const PaddedImage &from = gradient.from, &to = gradient.to;
    Buffer<T> a(together * from.area()), b(together * to.area());
    const int64_t end = (part + 1) * steps / parts;
    for (int64_t n = part * steps / parts; n < end; n += together) {
      const int64_t count = std::min(together, end - n);
      for (int64_t k = 0; k < count; ++k) {
        gradient.draw(from, x, n + k, g, a.data() + k * from.area());
        gradient.draw(to, dy, n + k, g, b.data() + k * to.area());
      }
      gradient.add(a.data(), b.data(), count, g, tap, tap + taps, bool(db) && tap == 0,
                   sums + part * total);
    }
  });
  parallel_ranges(total, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t i = begin; i < end; ++i) sums[i] += sums[part * total + i];
  });
  const int64_t width = gradient.width, area = gradient.area;
  const int64_t lanes = vec_width<T>, strips = ceil_div(z.out, lanes);
  parallel_for(z.groups * strips, [&](int64_t i) {
    const int64_t g = i / strips, first = i % strips * lanes, last = std::min(first + lanes, z.out);
    O* const out = dw.as<O>() + g * z.out * z.seen() * z.taps;
    for (int64_t c = 0; c < z.seen(); ++c)
      for (int64_t tap = 0; tap < z.taps; ++tap) {
        const T* const sum = sums + g * area + (tap * z.seen() + c) * width;
        for (int64_t o = first; o < last; ++o) out[(o * z.seen() + c) * z.taps + tap] = O(sum[o]);
      }
  });
  for (int64_t g = 0; g < z.groups && db; ++g)
    std::copy_n(sums + z.groups * area + g * width, z.out, db.as<T>() + g * z.out);
}

}  // namespace

void conv2d(Launch& launch, In x, In w, const Epilogue& epilogue, const Window& window, Out y) {
  if (y.size() == 0) return;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    forward<math_t<S>, S, O>(launch, x, w, epilogue, window, y);
  });
}

void conv2d_input(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  if (dx.size() == 0) return;
  visit_float(dy.dtype, dx.dtype, [&]<class S, class O>() {
    input_gradient<math_t<S>, S, O>(launch, dy, w, bias, window, dx);
  });
}

void conv2d_weight(Launch& launch, In x, In dy, const Window& window, Out dw, Out db) {
  if (dw.size() == 0) return db ? reduce(launch, Reduce::Sum, dy, per_channel(db)) : void();
  if (depthwise_weight(x, dy, window, dw, db)) return;
  visit_float(x.dtype, dw.dtype, [&]<class S, class O>() {
    weight_gradient<math_t<S>, S, O>(launch, x, dy, window, dw, db);
  });
}

}  // namespace mixtape::kernels::cpu
