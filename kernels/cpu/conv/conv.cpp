// 2-D convolution and its gradients as matrix products that a microkernel reads from padded NHWC
// images. Forward, rows are pixels, lanes are channels of y, and k is a window; the gradient of x
// is a forward pass over dy for each phase of the stride; for the gradient of w, rows are columns
// and channels of a window, and k is pixels. Measured in bench/worklog/060.

#include <algorithm>
#include <cstring>

#include "kernels/common/batch.h"
#include "kernels/cpu/conv/depthwise.h"
#include "kernels/cpu/conv/direct_conv.h"
#include "kernels/cpu/conv/scatter.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

// Sizes of one convolution; channels are those of one group. A depthwise convolution counts as one
// group.
struct Sizes {
  bool depthwise;
  int64_t images, groups, in, out, taps;  // taps: rows * columns of the window
  int64_t x[2], y[2];

  Sizes(In x_, In w, In y_, const Window& window)
      : depthwise(window.groups > 1 && w.shape()[1] == 1 && w.shape()[0] == window.groups),
        images(x_.shape()[0]),
        groups(depthwise ? 1 : window.groups),
        in(x_.shape()[1] / groups),
        out(y_.shape()[1] / groups),
        taps(window.size[0] * window.size[1]),
        x{x_.shape()[2], x_.shape()[3]},
        y{y_.shape()[2], y_.shape()[3]} {}
  int64_t depth() const { return depthwise ? 1 : in; }  // channels of x per channel of y
  int64_t y_plane() const { return y[0] * y[1]; }
};

// The microkernel of the dtype if it reads images in place, else that of T, to which they are
// packed.
template <class T>
const Microkernel<T>& kernel_for(DType dtype, bool depthwise) {
  const Microkernel<T>& e = microkernel_or_portable<T>(current_isa(), dtype);
  return e.in_place && !depthwise ? e : microkernel_or_portable<T>(current_isa(), dtype_of<T>());
}

// k_groups from pixel to pixel: pixels whole pages apart would compete for a few sets of the
// first-level cache.
template <class T>
int64_t pitch_of(int64_t k_groups, bool depthwise) {
  if (depthwise) return round_up(k_groups, 2 * vec_width<T>);
  return k_groups > 0 && k_groups * int64_t{sizeof(T)} % 4096 == 0 ? k_groups + vec_width<T>
                                                                   : k_groups;
}

// k_groups of a pixel: for a whole group or, in a depthwise convolution, one panel of channels.
template <class T>
int64_t k_groups_of(int64_t channels, int64_t k_group, bool depthwise) {
  return depthwise ? std::min<int64_t>(channels, 2 * vec_width<T>) : ceil_div(channels, k_group);
}

// The channels of one group of an image.
template <class S>
ChannelSource<S> channels_of(const S* x, int64_t channels, const ImageStrides& strides,
                             int64_t k_group) {
  return {x,
          x + strides.channel,
          k_group * strides.channel,
          strides.pixel,
          channels / k_group,
          k_group == 2};
}

// The image that a microkernel reads: x itself if nothing has to be added around it, and if its
// pixels lie in memory as packed ones do. pitch(n): the distance of pixels of n k_groups.
template <class T, class S, class Pitch>
PaddedImage image_of(In x, int64_t groups, const int64_t (&low)[2], const int64_t (&size)[2],
                     int64_t k_groups, int64_t k_group, Pitch pitch) {
  const int64_t rows = x.shape()[2], columns = x.shape()[3], channels = x.shape()[1],
                whole = channels / k_group;
  const bool in_place = ImageStrides(x).pixel == channels && channels / groups % k_group == 0 &&
                        k_group * int64_t{sizeof(S)} == sizeof(T) && low[0] == 0 && low[1] == 0 &&
                        size[0] == rows && size[1] == columns && pitch(k_groups) == k_groups &&
                        pitch(whole) == whole;
  return {{rows, columns}, low, size, k_groups, in_place ? whole : pitch(k_groups), in_place};
}

// Sets the rows of the padded image that a task reads.
template <class T>
void find_rows(std::span<const DirectConv<T>> passes, ConvTask& task) {
  task.top = task.bottom = 0;
  for (const DirectConv<T>& pass : passes) {
    const int64_t begin = task.begin(pass.size[0]), end = task.end(pass.size[0]);
    if (begin == end || pass.taps.empty()) continue;
    const int64_t top = begin * pass.stride[0] + pass.taps.front().down;
    task.top = task.bottom == 0 ? top : std::min(task.top, top);
    task.bottom = std::max(task.bottom, (end - 1) * pass.stride[0] + pass.taps.back().down + 1);
  }
}

// Runs all passes over each image of x, [images, planes, size].
template <class T, class S, class O>
void run_passes(Launch& launch, std::span<const DirectConv<T>> passes, In x, int64_t groups,
                const Epilogue& epilogue, Out y) {
  const DirectConv<T>& first_pass = passes[0];
  const ImageStrides from(x), to(y);
  const int64_t planes = x.shape()[1] / groups;
  const int64_t padded = first_pass.panels() * first_pass.panel();
  const T* const bias = to_dense<T>(launch, epilogue.bias);
  const T* const residual = widened<T>(launch, epilogue.residual);
  T* const padded_bias = bias ? launch.scratch<T>(groups * padded) : nullptr;
  for (int64_t g = 0; g < groups && bias; ++g) {
    std::fill_n(padded_bias + g * padded, padded, T(0));
    std::copy_n(bias + g * first_pass.channels, first_pass.channels, padded_bias + g * padded);
  }
  // Cuts few images into bands, so that several threads have work.
  const int64_t panels = first_pass.depthwise ? first_pass.panels() : 1,
                tasks = x.shape()[0] * groups * panels;
  const int64_t bands = std::min(ceil_div(8, tasks), ceil_div(first_pass.size[0], 4));
  parallel_for(tasks * bands, [&](int64_t i) {
    const int64_t g = i / bands / panels % groups, n = i / bands / panels / groups;
    ConvTask task{g, i / bands % panels * first_pass.panel(), i % bands, bands};
    find_rows(passes, task);
    const S* const source = x.as<S>() + n * from.image + (g * planes + task.channel) * from.channel;
    const int64_t count =
        first_pass.depthwise ? std::min(first_pass.x.k_groups, planes - task.channel) : planes;
    const PaddedImage& padded_image = first_pass.x;
    Buffer<T> packed(padded_image.in_place ? 0 : (task.bottom - task.top) * padded_image.row());
    const T* image = packed.data();
    if (padded_image.in_place)
      image = reinterpret_cast<const T*>(source) + task.top * padded_image.row();
    else
      padded_image.pack_nhwc(channels_of(source, count, from, first_pass.kernel.k_group),
                             ceil_div(count, first_pass.kernel.k_group), task.top, task.bottom,
                             packed.data());
    const int64_t at = n * to.image + g * first_pass.channels * to.channel;
    for (const DirectConv<T>& pass : passes)
      pass(image, task, padded_bias ? padded_bias + g * padded : nullptr,
           residual ? residual + at : nullptr, epilogue.activation,
           epilogue.before ? epilogue.before.as<O>() + at : nullptr, y.as<O>() + at);
  });
}

template <class T, class S, class O>
void forward(Launch& launch, In x, In w, const Epilogue& epilogue, const Window& window, Out y) {
  const Sizes sizes(x, w, y, window);
  const Microkernel<T>& kernel = kernel_for<T>(x.dtype, sizes.depthwise);
  const int64_t k_groups = k_groups_of<T>(sizes.in, kernel.k_group, sizes.depthwise);
  const PaddedImage image = image_of<T, S>(
      x, sizes.groups, {window.padding[0], window.padding[1]},
      {sizes.x[0] + 2 * window.padding[0], sizes.x[1] + 2 * window.padding[1]}, k_groups,
      kernel.k_group, [&](int64_t n) { return pitch_of<T>(n, sizes.depthwise); });
  DirectConv<T> pass{.kernel = kernel,
                     .x = image,
                     .depthwise = sizes.depthwise,
                     .channels = sizes.out,
                     .size = {sizes.y[0], sizes.y[1]},
                     .stride = {window.stride[0], window.stride[1]},
                     .first = {0, 0},
                     .y_step = {1, 1},
                     .y = {sizes.y[0], sizes.y[1]},
                     .y_strides = ImageStrides(y)};
  for (int64_t i = 0; i < window.size[0]; ++i)
    for (int64_t j = 0; j < window.size[1]; ++j)
      pass.taps.push_back({i * window.dilation[0], j * window.dilation[1], i * window.size[1] + j});
  const int64_t lane = sizes.depth() * sizes.taps;
  pass.prepare(launch, w.as<S>(), sizes.groups, sizes.out * lane, lane, sizes.depth(), sizes.taps);
  run_passes<T, S, O>(launch, std::span(&pass, 1), x, sizes.groups, epilogue, y);
}

// Pixel y0 + stride * t of x receives dy[t + (y0 + padding - i * dilation) / stride] from each tap
// i for which the division is exact. `low` zeros before dy keep every position positive. Pixels of
// x whose rows and columns are equal modulo the stride receive from the same taps: one pass each.
template <class T, class S, class O>
void input_gradient(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  const Sizes sizes(dx, w, dy, window);
  const Microkernel<T>& kernel = kernel_for<T>(dy.dtype, sizes.depthwise);
  const int64_t k_groups = k_groups_of<T>(sizes.out, kernel.k_group, sizes.depthwise);
  int64_t low[2], size[2];
  for (int d = 0; d < 2; ++d) {
    const int64_t before = window.dilation[d] * (window.size[d] - 1) - window.padding[d];
    low[d] = before > 0 ? ceil_div(before, window.stride[d]) : 0;
    size[d] =
        low[d] + std::max(sizes.y[d], (sizes.x[d] - 1 + window.padding[d]) / window.stride[d] + 1);
  }
  const PaddedImage image =
      image_of<T, S>(dy, sizes.groups, low, size, k_groups, kernel.k_group,
                     [&](int64_t n) { return pitch_of<T>(n, sizes.depthwise); });
  const auto shift = [&](int d, int64_t first, int64_t tap) {
    return first + window.padding[d] - tap * window.dilation[d];
  };
  std::vector<DirectConv<T>> passes;
  for (int64_t r0 = 0; r0 < std::min(window.stride[0], sizes.x[0]); ++r0)
    for (int64_t q0 = 0; q0 < std::min(window.stride[1], sizes.x[1]); ++q0) {
      DirectConv<T>& pass =
          passes.emplace_back(DirectConv<T>{.kernel = kernel,
                                            .x = image,
                                            .depthwise = sizes.depthwise,
                                            .channels = sizes.in,
                                            .size = {ceil_div(sizes.x[0] - r0, window.stride[0]),
                                                     ceil_div(sizes.x[1] - q0, window.stride[1])},
                                            .stride = {1, 1},
                                            .first = {r0, q0},
                                            .y_step = {window.stride[0], window.stride[1]},
                                            .y = {sizes.x[0], sizes.x[1]},
                                            .y_strides = ImageStrides(dx)});
      for (int64_t i = window.size[0] - 1; i >= 0; --i)
        for (int64_t j = window.size[1] - 1; j >= 0; --j) {
          const int64_t down = shift(0, r0, i), across = shift(1, q0, j);
          if (down % window.stride[0] != 0 || across % window.stride[1] != 0) continue;
          pass.taps.push_back({low[0] + down / window.stride[0], low[1] + across / window.stride[1],
                               i * window.size[1] + j});
        }
      pass.prepare(launch, w.as<S>(), sizes.groups, sizes.out * sizes.in * sizes.taps, sizes.taps,
                   sizes.depthwise ? 1 : sizes.out, sizes.in * sizes.taps);
    }
  run_passes<T, S, O>(launch, passes, dy, sizes.groups, {.bias = bias}, dx);
}

// The gradients of w and of the bias, summed over packed images.
template <class T, class S>
struct WeightGradient {
  static constexpr int64_t max_pixels = 512;  // of one sum
  const Sizes sizes;
  const Window& window;
  const Microkernel<T>& kernel;
  const int64_t together;                  // steps whose images are packed together
  const int64_t k_group = kernel.k_group;  // images that are multiplied together
  const int64_t panel = int64_t{kernel.lanes} * kernel.vectors;
  const int64_t width =
      round_up(sizes.out, std::max<int64_t>(kernel.lanes, sizes.depthwise ? vec_width<T> : 1));
  const PaddedImage x_image, dy_image;
  // Rows of a product: the channels of one tap, or of a row of taps that are adjacent in memory.
  const int64_t row_taps =
      window.dilation[1] == 1 && x_image.pitch == sizes.in && !sizes.depthwise ? window.size[1] : 1;
  const int64_t rows = row_taps * sizes.depth();
  const int64_t high = ceil_div(rows, ceil_div(rows, kernel.rows));  // rows of a tile
  const int64_t chunk = high * std::max<int64_t>(1, 128 / high);  // rows that are summed together
  const int64_t row_chunks = ceil_div(rows, chunk), chunks = sizes.taps / row_taps * row_chunks;
  const bool packs_lines = are_read_often();
  const int64_t area = sizes.taps * sizes.depth() * width;  // sums of w for one group
  const int64_t total = sizes.groups * (area + width);      // then those of the bias
  std::vector<KSegment> segments = {};                      // a row of pixels each
  alignas(T) char ones[sizeof(T)] = {};                     // one k_group of ones

  WeightGradient(const Sizes& sizes_, In x, In dy, const Window& window_, const Microkernel<T>& e,
                 int64_t together_)
      : sizes(sizes_),
        window(window_),
        kernel(e),
        together(together_),
        x_image(image_of<T, S>(
            x, sizes.groups, {window.padding[0], window.padding[1]},
            {sizes.x[0] + 2 * window.padding[0], sizes.x[1] + 2 * window.padding[1]}, sizes.in, 1,
            [&](int64_t n) { return pitch_of<T>(n, sizes.depthwise); })),
        dy_image(image_of<T, S>(dy, sizes.groups, {0, 0}, sizes.y, sizes.out, 1,
                                [&](int64_t n) { return n + width - sizes.out; })) {
    const int64_t bytes = sizeof(T);
    for (int64_t i = 0; i < together; ++i)
      for (int64_t r = 0; r < sizes.y[0]; ++r)
        segments.push_back({(i * x_image.area() + r * window.stride[0] * x_image.row()) * bytes,
                            (i * dy_image.area() + r * dy_image.row()) * bytes});
    const auto fill = [&]<class E>(E one) {
      for (size_t i = 0; i < sizeof ones; i += sizeof one) std::memcpy(ones + i, &one, sizeof one);
    };
    k_group == 1 ? fill(T(1)) : fill(S(1.0f));
  }

  // A task's share of the sums: chunks [first, last) of group g's rows, and perhaps its bias.
  struct Share {
    int64_t g, first, last;
    bool bias;
    T* sums;
    Buffer<T> x, dy;  // packed lines of one chunk of rows, and of all columns

    Share(const WeightGradient& w, int64_t g_, int64_t first_, int64_t last_, bool bias_, T* sums_)
        : g(g_),
          first(first_),
          last(last_),
          bias(bias_),
          sums(sums_),
          x(w.packs_lines ? (w.chunk + w.kernel.lanes) * max_pixels : 0),
          dy(w.packs_lines ? (w.width + w.kernel.lanes) * max_pixels : 0) {}
  };

  // k_groups n to n + count of group g of x's or dy's images, packed to `buffer` unless they lie in
  // memory like that.
  const T* pack(const PaddedImage& image, In images, int64_t n, int64_t count, int64_t g,
                T* buffer) const {
    const ImageStrides strides(images);
    const auto source = [&](int64_t k) {
      return images.as<S>() + k * k_group * strides.image + g * image.k_groups * strides.channel;
    };
    if (image.in_place) return reinterpret_cast<const T*>(source(n));
    for (int64_t k = 0; k < count; ++k) {
      const S* const even = source(n + k);
      const int64_t odds = (n + k) * k_group + 1 < sizes.images ? image.k_groups : 0;
      image.pack_nhwc(ChannelSource<S>{even, even + strides.image, strides.channel, strides.pixel,
                                       odds, k_group == 2},
                      image.k_groups, 0, image.size[0], buffer + k * image.area());
    }
    return buffer;
  }
  // Adds `count` images to a share. `begins`: there are no sums yet.
  void add(const T* x, const T* dy, int64_t count, const Share& share, bool begins) const {
    // A long sum is made of shorter ones, for accuracy.
    const int64_t all = count * sizes.y[0], some = std::max<int64_t>(1, max_pixels / sizes.y[1]);
    bool empty = begins;
    for (int64_t begin = 0; begin < all; begin += some)
      for (int64_t q = 0; q < sizes.y[1]; q += max_pixels, empty = false)
        add_pixels(x + q * window.stride[1] * x_image.pitch, dy + q * dy_image.pitch,
                   Segments(segments).subspan(size_t(begin), size_t(std::min(some, all - begin))),
                   std::min(max_pixels, sizes.y[1] - q), share, empty);
    if (share.bias) add_to_bias(dy, count * sizes.y_plane(), share, begins);
  }

 private:
  using Segments = std::span<const KSegment>;

  // True if many tiles read a sum's pixels, which would leave the first-level cache in between.
  bool are_read_often() const {
    const int64_t pixels = std::min(max_pixels, together * sizes.y_plane());
    return !sizes.depthwise && width > 2 * panel && sizes.taps * sizes.depth() >= 48 &&
           pixels * width * int64_t{sizeof(T)} > 64 << 10;
  }

  // Adds the first `depth` pixels of some rows of x and dy.
  void add_pixels(const T* x, const T* dy, Segments at, int64_t depth, const Share& share,
                  bool empty) const {
    const int64_t bytes = sizeof(T), step = window.stride[1] * x_image.pitch;
    const int64_t pixels = std::ssize(at) * depth;
    Tile<T> t{};
    t.k_groups = packs_lines ? pixels : depth;
    t.segments = packs_lines ? nullptr : at.data();
    t.segment_count = packs_lines ? 1 : std::ssize(at);
    t.a_row_stride = bytes;
    if (packs_lines)
      pack_lines(dy, at, &KSegment::b, dy_image.pitch, depth, width, panel, width, share.dy.data());
    for (int64_t i = share.first; i < share.last; ++i) {
      const int64_t k = i / row_chunks * row_taps, from = i % row_chunks * chunk,
                    to = std::min(rows, from + chunk);
      const T* const a = x + k / window.size[1] * window.dilation[0] * x_image.row() +
                         k % window.size[1] * window.dilation[1] * x_image.pitch;
      if (packs_lines)
        pack_lines(a + from, at, &KSegment::a, step, depth, to - from, high, rows - from,
                   share.x.data());
      T* const sums = share.sums + share.g * area + k * sizes.depth() * width;
      for (int64_t l = 0; l < width; l += sizes.depthwise ? width : panel)
        for (int64_t r = from; r < to; r += high) {
          const int64_t height = std::min(high, to - r);
          t.a = packs_lines ? share.x.data() + (r - from) * pixels : a + r;
          t.a_k_stride = (packs_lines ? height : step) * bytes;
          t.b = packs_lines ? share.dy.data() + l * pixels : dy + l;
          t.b_k_stride = (packs_lines ? std::min(panel, width - l) : dy_image.pitch) * bytes;
          add_to(sums + r * width + l, empty, t);
          sizes.depthwise ? sum_depthwise(width, t) : sum_tile(height, l, t);
        }
    }
  }
  // Adds dy's pixels.
  void add_to_bias(const T* dy, int64_t pixels, const Share& share, bool empty) const {
    Tile<T> t{};
    t.a = ones;  // a product with a row of ones
    t.a_row_stride = sizeof(T);
    t.b_k_stride = dy_image.pitch * int64_t{sizeof(T)};
    for (int64_t at = 0; at < pixels; at += max_pixels, empty = false)
      for (int64_t l = 0; l < width; l += panel) {
        t.k_groups = std::min(max_pixels, pixels - at);
        t.b = dy + at * dy_image.pitch + l;
        add_to(share.sums + sizes.groups * area + share.g * width + l, empty, t);
        sum_tile(1, l, t);
      }
  }
  void add_to(T* sums, bool empty, Tile<T>& t) const {
    t.out = sums;
    t.add = empty ? nullptr : sums;
    t.out_row_stride = t.add_row_stride = width;
  }
  void sum_tile(int64_t height, int64_t l, const Tile<T>& t) const {  // of columns from l on
    const int64_t vectors = std::min(panel, width - l) / kernel.lanes;
    kernel.tile(static_cast<int>(height), static_cast<int>(vectors), t);
  }
  // Packs `count` lines of the pixels, one sliver after the other.
  void pack_lines(const T* image, Segments at, int64_t KSegment::* offset, int64_t stride,
                  int64_t depth, int64_t count, int64_t sliver, int64_t readable, T* out) const {
    // (k_groups of T's size, whatever they hold.)
    const auto& pack_groups = microkernel_or_portable<T>(current_isa(), dtype_of<T>()).pack;
    for (int64_t l = 0; l < count; l += sliver)
      for (const KSegment& row : at) {
        const int64_t lines = std::min(sliver, count - l);
        const char* const from = reinterpret_cast<const char*>(image + l) + row.*offset;
        pack_groups({from, 1, stride, lines, readable - l}, depth, lines, out);
        out += depth * lines;
      }
  }
};

template <class T, class S, class O>
void weight_gradient(Launch& launch, In x, In dy, const Window& window, Out dw, Out db) {
  const Sizes sizes(x, dw, dy, window);
  const Microkernel<T>& kernel = kernel_for<T>(x.dtype, sizes.depthwise);
  // Packs several images together if they have few pixels.
  const int64_t steps = ceil_div(sizes.images, int64_t{kernel.k_group});
  const int64_t together = std::max<int64_t>(
      1, std::min(256 / std::max<int64_t>(1, sizes.y_plane()), ceil_div(steps, 16)));
  const WeightGradient<T, S> gradient(sizes, x, dy, window, kernel, together);
  // Each part sums over its own images; the parts are added in order. Together they have at most
  // half the elements that the call reads. If there are few, tasks divide the rows, and pack the
  // same images.
  const int64_t total = gradient.total, half = (x.size() + dy.size()) / 2;
  const int64_t parts = std::clamp<int64_t>(std::min(steps, half / total), 1, 16);
  const int64_t shares = std::min(gradient.chunks, ceil_div(8, parts * sizes.groups));
  T* const sums = launch.scratch<T>(parts * total);
  parallel_for(parts * sizes.groups * shares, [&](int64_t i) {
    const int64_t n = i / shares / sizes.groups, g = i / shares % sizes.groups, s = i % shares;
    const typename WeightGradient<T, S>::Share share(gradient, g, s * gradient.chunks / shares,
                                                     (s + 1) * gradient.chunks / shares,
                                                     db && s == 0, sums + n * total);
    const PaddedImage &x_image = gradient.x_image, &dy_image = gradient.dy_image;
    Buffer<T> a(x_image.in_place ? 0 : together * x_image.area()),
        b(dy_image.in_place ? 0 : together * dy_image.area());
    const int64_t begin = n * steps / parts, end = (n + 1) * steps / parts;
    for (int64_t k = begin; k < end; k += together) {
      const int64_t count = std::min(together, end - k);
      gradient.add(gradient.pack(x_image, x, k, count, g, a.data()),
                   gradient.pack(dy_image, dy, k, count, g, b.data()), count, share, k == begin);
    }
  });
  parallel_ranges(db ? total : sizes.groups * gradient.area, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t i = begin; i < end; ++i) sums[i] += sums[part * total + i];
  });
  const int64_t width = gradient.width, area = gradient.area;
  const int64_t lane = sizes.depth() * sizes.taps;         // weights of a channel of y
  std::vector<int64_t> row_of(static_cast<size_t>(lane));  // where their sums begin
  for (int64_t r = 0; r < lane; ++r)
    row_of[r] = (r % sizes.taps * sizes.depth() + r / sizes.taps) * width;
  const int64_t lanes = vec_width<T>, vectors = ceil_div(sizes.out, lanes);
  parallel_for(sizes.groups * vectors, [&](int64_t i) {
    const int64_t g = i / vectors, first = i % vectors * lanes,
                  last = std::min(first + lanes, sizes.out);
    O* const out = dw.as<O>() + (g * sizes.out + first) * lane;
    transpose_tiles<T>(
        lane, last - first,
        [at = row_of.data(), from = sums + g * area + first](int64_t r, int64_t o, int64_t n)
            MIXTAPE_INLINE_LAMBDA { return read<T>(from + at[r] + o, n); },
        [=](int64_t o, int64_t r, Vec<T> v, int64_t n)
            MIXTAPE_INLINE_LAMBDA { write(out + o * lane + r, v, n); });
  });
  for (int64_t g = 0; g < sizes.groups && db; ++g)
    std::copy_n(sums + sizes.groups * area + g * width, sizes.out, db.as<T>() + g * sizes.out);
}

}  // namespace

void conv2d(Launch& launch, In x, In w, const Epilogue& epilogue, const Window& window, Out y) {
  if (y.size() == 0) return;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    forward<math_t<S>, S, O>(launch, x, w, epilogue, window, y);
  });
}

void conv2d_input(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  if (dx.size() == 0 || scatter_input(launch, dy, w, bias, window, dx)) return;
  visit_float(dy.dtype, dx.dtype, [&]<class S, class O>() {
    input_gradient<math_t<S>, S, O>(launch, dy, w, bias, window, dx);
  });
}

void conv2d_weight(Launch& launch, In x, In dy, const Window& window, Out dw, Out db) {
  if (dw.size() == 0 || dy.size() == 0) {
    fill(launch, 0, dw);
    if (db) reduce(launch, Reduce::Sum, dy, per_channel(db));
    return;
  }
  if (depthwise_weight(x, dy, window, dw, db)) return;
  visit_float(x.dtype, dw.dtype, [&]<class S, class O>() {
    weight_gradient<math_t<S>, S, O>(launch, x, dy, window, dw, db);
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
