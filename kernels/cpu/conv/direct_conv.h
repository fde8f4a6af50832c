#pragma once
// DirectConv: a convolution that reads a padded image in place; each result is a sum over taps. In
// a depthwise convolution, lanes are channels that are multiplied one by one.

#include <algorithm>
#include <vector>

#include "kernels/common/launch.h"
#include "kernels/cpu/conv/padded_image.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// A depthwise tile of `rows` rows and `width` lanes: lane i of the sums takes lane i of a, and
// there is one k_group in each segment.
template <class T>
void depthwise_tile(int64_t rows, int64_t width, const Tile<T>& t) {
  const auto some = [&]<int n>(std::integral_constant<int, n>, int64_t i,
                               int64_t l) MIXTAPE_INLINE_LAMBDA {
    Vec<T> sum[n];
    for (int k = 0; k < n; ++k) sum[k] = t.add ? load<T, T>(t.add + l) : Vec<T>(T(0));
    const char* const a = static_cast<const char*>(t.a) + i * t.a_row_stride;
    const char* const b = static_cast<const char*>(t.b);
    for (int64_t m = 0; m < t.segment_count; ++m) {
      const Vec<T> w = load<T, T>(reinterpret_cast<const T*>(b + t.segments[m].b) + l);
      for (int k = 0; k < n; ++k)
        sum[k] +=
            load<T, T>(reinterpret_cast<const T*>(a + t.segments[m].a + k * t.a_row_stride) + l) *
            w;
    }
    for (int k = 0; k < n; ++k)
      store(static_cast<T*>(t.out) + (i + k) * t.out_row_stride + l, sum[k]);
  };
  for (int64_t l = 0; l < width; l += vec_width<T>) {
    int64_t i = 0;
    for (; i + 8 <= rows; i += 8) some(std::integral_constant<int, 8>(), i, l);
    for (; i + 4 <= rows; i += 4) some(std::integral_constant<int, 4>(), i, l);
    for (; i < rows; ++i) some(std::integral_constant<int, 1>(), i, l);
  }
}

// The same products, summed over all steps and segments, and t.add.
template <class T>
void sum_depthwise(int64_t width, const Tile<T>& t) {
  for (int64_t l = 0; l < width; l += vec_width<T>) {
    Vec<T> sum[4] = {T(0), T(0), T(0), T(0)};
    for (int64_t m = 0; m < t.segment_count; ++m) {
      const char* a = static_cast<const char*>(t.a) + t.segments[m].a;
      const char* b = static_cast<const char*>(t.b) + t.segments[m].b;
      const auto take = [&](Vec<T>& to) MIXTAPE_INLINE_LAMBDA {
        to += load<T, T>(reinterpret_cast<const T*>(a) + l) *
              load<T, T>(reinterpret_cast<const T*>(b) + l);
        a += t.a_k_stride;
        b += t.b_k_stride;
      };
      int64_t k = 0;
      for (; k + 4 <= t.k_groups; k += 4)
        for (auto& to : sum) take(to);
      for (; k < t.k_groups; ++k) take(sum[0]);
    }
    store(static_cast<T*>(t.out) + l,
          (t.add ? load<T, T>(t.add + l) : Vec<T>(T(0))) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
  }
}

struct Tap {
  int64_t down, across;  // its offset in the padded image
  int64_t weight;        // the offset of its weight, in elements
};

// One task: a band of rows of an image, for one group or, in a depthwise convolution, one panel of
// channels. Rows [top, bottom) of the padded image are packed for it.
struct ConvTask {
  int64_t group, channel, band, bands, top = 0, bottom = 0;

  int64_t begin(int64_t rows) const { return band * rows / bands; }
  int64_t end(int64_t rows) const { return (band + 1) * rows / bands; }
};

// y[r, q] = bias + sum over taps and k_groups of w * x[r * stride + down, q * stride + across].
template <class T>
struct DirectConv {
  const Microkernel<T>& kernel;
  const PaddedImage& x;
  bool depthwise;
  int64_t channels;  // of y
  int64_t size[2], stride[2];
  int64_t first[2], y_step[2], y[2];  // positions of pixels in a plane of y, and its size
  ImageStrides y_strides;
  std::vector<Tap> taps = {};
  int64_t segment_taps = 1;             // taps that are adjacent in memory
  std::vector<KSegment> segments = {};  // of that many taps each
  T* weights = nullptr;                 // of all groups

  int64_t panel() const {
    return depthwise
               ? 2 * vec_width<T>
               : std::min(int64_t{kernel.lanes} * kernel.vectors, round_up(channels, kernel.lanes));
  }
  int64_t panels() const { return ceil_div(channels, panel()); }
  int64_t group_weights() const { return panels() * depth() * panel(); }
  int64_t tap_groups() const { return depthwise ? 1 : x.k_groups; }  // k_groups of a tap
  int64_t depth() const { return static_cast<int64_t>(taps.size()) * tap_groups(); }

  // Finds segments of adjacent taps, and packs weights [groups][lane, step, tap] of given strides.
  template <class S>
  void prepare(Launch& launch, const S* w, int64_t groups, int64_t w_group, int64_t lane,
               int64_t steps, int64_t step) {
    const int64_t count = static_cast<int64_t>(taps.size());
    const auto follows = [&](int64_t t, int64_t n) {
      return taps[t].down == taps[t - n].down && taps[t].across == taps[t - n].across + n;
    };
    if (x.pitch == x.k_groups && !depthwise) {
      while (segment_taps < count && follows(segment_taps, segment_taps)) ++segment_taps;
      for (int64_t t = 0; t < count; ++t)
        if (count % segment_taps != 0 || (t % segment_taps != 0 && !follows(t, 1)))
          segment_taps = 1;
    }
    const int64_t bytes = sizeof(T);
    for (int64_t t = 0; t < count; t += segment_taps)
      segments.push_back({(taps[t].down * x.row() + taps[t].across * x.pitch) * bytes,
                          t * tap_groups() * panel() * bytes});
    weights = launch.scratch<T>(groups * group_weights());
    // Weights of a lane lie side by side for one step, or for all of them, and become a column.
    const int64_t window = std::min(lane, step), k_group = kernel.k_group;
    const int64_t together = lane > 1 && step <= lane ? steps : 1;
    // Where it goes, before the lanes if its tap is not used; true for the second one of a pair.
    std::vector<std::pair<int64_t, bool>> places(static_cast<size_t>(steps * window), {-1, false});
    for (int64_t k = 0; k < steps; ++k)
      for (int64_t t = 0; t < count; ++t)
        places[k * window + taps[t].weight] = {(t * tap_groups() + k / k_group) * panel(),
                                               k % k_group != 0};
    parallel_for(groups * panels(), [&](int64_t i) {
      T* const to = weights + i * depth() * panel();
      const int64_t from = i % panels() * panel(), lanes = std::min(panel(), channels - from);
      if (lanes < panel()) std::fill_n(to, depth() * panel(), T(0));
      const S* const source = w + i / panels() * w_group + from * lane;
      const auto put = [&](int64_t column, int64_t l, Vec<T> v, int64_t n) MIXTAPE_INLINE_LAMBDA {
        const auto [at, second] = places[column];
        if (at < 0) return;
        T* const out = to + at + l;
        if constexpr (std::is_same_v<S, BFloat16>)
          if (k_group == 2) v = second ? joined(read<T>(out, n), v) : lowered(v);
        write(out, v, n);
      };
      for (int64_t k = 0; k < steps; k += together) {
        const S* const here = source + k * step;
        if (lane == 1)
          for_each_vec<T>(lanes, [&](int64_t l, int64_t n) { put(k, l, read<T>(here + l, n), n); });
        else
          transpose_tiles<T>(
              lanes, together * window,
              [=](int64_t l, int64_t c, int64_t n)
                  MIXTAPE_INLINE_LAMBDA { return read<T>(here + l * lane + c, n); },
              [&](int64_t c, int64_t l, Vec<T> v, int64_t n)
                  MIXTAPE_INLINE_LAMBDA { put(k * window + c, l, v, n); });
      }
    });
  }

  // Computes one task from its packed image. `bias` is as wide as all panels; `residual`, if given,
  // has y's strides; `before`, if given, receives the sums before the activation.
  template <class O>
  void operator()(const T* image, const ConvTask& task, const T* bias, const T* residual,
                  Activation activation, O* before, O* to) const {
    const int64_t bytes = sizeof(T), width = panel();
    const int64_t high = ceil_div(size[1], ceil_div(size[1], kernel.rows));
    // Sums of several rows of pixels, or of a part of one, that stay in the first-level cache. (The
    // transposition reads whole vectors.)
    const int64_t pixels = std::max(high, 8192 / width / high * high);
    const int64_t across = std::min(size[1], pixels);
    const int64_t most = std::clamp<int64_t>(pixels / across, 1, size[0]);
    Buffer<T> sums(most * across * width + vec_width<T>);
    Tile<T> t{};
    t.k_groups = segment_taps * tap_groups();
    t.a_row_stride = stride[1] * x.pitch * bytes;
    t.a_k_stride = bytes;
    t.b_k_stride = width * bytes;
    const int64_t begin = task.begin(size[0]), end = task.end(size[0]);
    const int64_t last = depthwise ? std::min(task.channel + width, channels) : channels;
    for (int64_t r = begin; r < end; r += most)
      for (int64_t q0 = 0; q0 < size[1]; q0 += across) {
        const int64_t rows = std::min(most, end - r), columns = std::min(across, size[1] - q0);
        for (int64_t c = task.channel; c < last; c += width) {
          const int64_t here = std::min(width, channels - c);
          const int vectors = static_cast<int>(ceil_div(here, kernel.lanes));
          // Lanes are stored as they come out, if they are all that a pixel of y gets.
          // (A microkernel of pairs rounds them to bf16.)
          const bool direct = y_strides.channels_last() && here == width && !residual && !before &&
                              activation == Activation::None &&
                              (std::is_same_v<T, O> || kernel.k_group == 2);
          t.out_dtype = direct ? dtype_of<O>() : dtype_of<T>();
          t.b = weights + task.group * group_weights() + c * depth();
          t.add = bias ? bias + c : nullptr;
          t.out_row_stride = direct ? y_step[1] * y_strides.pixel : width;
          for (int64_t i = 0; i < rows; ++i) {
            const T* const from = image + ((r + i) * stride[0] - task.top) * x.row();
            clip_taps((r + i) * stride[0], t);
            for (int64_t q = 0; q < columns; q += high) {
              t.a = from + (q0 + q) * stride[1] * x.pitch;
              t.out = direct ? static_cast<void*>(at(to, r + i, q0 + q) + c)
                             : sums.data() + (i * columns + q) * width;
              const int64_t some = std::min(high, columns - q);
              if (depthwise)
                depthwise_tile(some, width, t);
              else
                kernel.tile(static_cast<int>(some), vectors, t);
            }
          }
          if (direct) continue;
          if (residual)
            add(residual + c * y_strides.channel, r * size[1] + q0, rows * columns, here,
                sums.data());
          const auto write_to = [&](O* out) {
            finish(sums.data(), r, rows, q0, columns, here, out + c * y_strides.channel);
          };
          if (before) write_to(before);
          activate(activation, sums.data(), 0, 1, rows * columns * width);
          write_to(to);
        }
      }
  }

 private:
  // Pixel (row, column) of this pass in an image of y.
  template <class O>
  O* at(O* image, int64_t row, int64_t column) const {
    return image +
           ((first[0] + row * y_step[0]) * y[1] + first[1] + column * y_step[1]) * y_strides.pixel;
  }
  // Leaves out the taps that, from this row, read only zeros above and below the image.
  void clip_taps(int64_t row, Tile<T>& t) const {
    const auto inside = [&](int64_t n) {
      const int64_t at = row + taps[n * segment_taps].down - x.low[0];
      return at >= 0 && at < x.x[0];
    };
    int64_t begin = 0, end = static_cast<int64_t>(segments.size());
    while (begin < end && !inside(begin)) ++begin;
    while (begin < end && !inside(end - 1)) --end;
    t.segments = segments.data() + begin;
    t.segment_count = end - begin;
  }
  // Adds `pixels` of the first `count` channels, from pixel `first` on, to sums of whole planes.
  void add(const T* from, int64_t first, int64_t pixels, int64_t count, T* sums) const {
    const int64_t pitch = panel(), channel = y_strides.channel, pixel = y_strides.pixel;
    const auto put = [=](int64_t q, int64_t c, Vec<T> v, int64_t n) MIXTAPE_INLINE_LAMBDA {
      T* const to = sums + q * pitch + c;
      write(to, read<T>(to, n) + v, n);
    };
    if (y_strides.channels_last()) {
      for (int64_t q = 0; q < pixels; ++q)
        for_each_vec<T>(count, [&](int64_t c, int64_t n) {
          put(q, c, read<T>(from + (first + q) * pixel + c, n), n);
        });
      return;
    }
    transpose_tiles<T>(
        count, pixels,
        [=](int64_t c, int64_t q, int64_t n)
            MIXTAPE_INLINE_LAMBDA { return read<T>(from + c * channel + first + q, n); },
        put);
  }
  // Stores rows of pixels, or a part of one, of the first `count` channels to the image at `to`.
  template <class O>
  void finish(const T* sums, int64_t row, int64_t rows, int64_t column, int64_t columns,
              int64_t count, O* to) const {
    const int64_t plane = y_strides.channel, pitch = panel();
    const auto get = [=](int64_t q, int64_t c, int64_t)
                         MIXTAPE_INLINE_LAMBDA { return load<T, T>(sums + q * pitch + c); };
    if (y_step[0] == 1 && y_step[1] == 1 && !y_strides.channels_last())
      return transpose_tiles<T>(
          rows * columns, count, get,
          [out = to + row * size[1] + column, plane](int64_t c, int64_t q, Vec<T> v, int64_t n)
              MIXTAPE_INLINE_LAMBDA {
                __builtin_prefetch(out + c * plane + q + 4 * vec_width<T>, 1);
                write(out + c * plane + q, v, n);
              });
    for (int64_t r = 0; r < rows; ++r, sums += columns * pitch) {
      O* const line = at(to, row + r, column);
      const int64_t step = y_step[1] * y_strides.pixel;
      if (y_strides.channels_last())
        for (int64_t q = 0; q < columns; ++q)
          for_each_vec<T>(count, [&](int64_t c, int64_t n) {
            write(line + q * step + c, load<T, T>(sums + q * pitch + c), n);
          });
      else
        for (int64_t c = 0; c < count; ++c)
          for (int64_t q = 0; q < columns; ++q) line[c * plane + q * step] = O(sums[q * pitch + c]);
    }
  }
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
