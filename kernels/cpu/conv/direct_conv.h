#pragma once
// A pass of a convolution over an image that is drawn: each of its pixels is a sum over taps. Where
// a group has one channel (depthwise), all groups are one whose lanes are multiplied by each other.

#include <vector>

#include "kernels/common/launch.h"
#include "kernels/cpu/conv/padded_image.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"

namespace mixtape::kernels::cpu {

// As an engine's tile, but lane i of the sums takes lane i of a, and `depth` is 1; of `rows` rows
// and `width` lanes.
template <class T>
void multiply_lanes(int64_t rows, int64_t width, const Tile<T>& t) {
  const auto some = [&]<int n>(std::integral_constant<int, n>, int64_t i,
                               int64_t l) __attribute__((always_inline)) {
    Vec<T> sum[n];
    for (int k = 0; k < n; ++k) sum[k] = t.add ? load<T, T>(t.add + l) : Vec<T>(T(0));
    const char* const a = static_cast<const char*>(t.a) + i * t.a_row;
    const char* const b = static_cast<const char*>(t.b);
    for (int64_t m = 0; m < t.blocks; ++m) {
      const Vec<T> w = load<T, T>(reinterpret_cast<const T*>(b + t.block[m].b) + l);
      for (int k = 0; k < n; ++k)
        sum[k] += load<T, T>(reinterpret_cast<const T*>(a + t.block[m].a + k * t.a_row) + l) * w;
    }
    for (int k = 0; k < n; ++k) store(static_cast<T*>(t.out) + (i + k) * t.out_row + l, sum[k]);
  };
  for (int64_t l = 0; l < width; l += vec_width<T>) {
    int64_t i = 0;
    for (; i + 8 <= rows; i += 8) some(std::integral_constant<int, 8>(), i, l);
    for (; i + 4 <= rows; i += 4) some(std::integral_constant<int, 4>(), i, l);
    for (; i < rows; ++i) some(std::integral_constant<int, 1>(), i, l);
  }
}

// Sums of those products over all steps, added to t.add.
template <class T>
void sum_lanes(int64_t width, const Tile<T>& t) {
  for (int64_t l = 0; l < width; l += vec_width<T>) {
    Vec<T> sum[4] = {T(0), T(0), T(0), T(0)};
    for (int64_t m = 0; m < t.blocks; ++m) {
      const char* a = static_cast<const char*>(t.a) + t.block[m].a;
      const char* b = static_cast<const char*>(t.b) + t.block[m].b;
      const auto take = [&](Vec<T>& to) __attribute__((always_inline)) {
        to += load<T, T>(reinterpret_cast<const T*>(a) + l) *
              load<T, T>(reinterpret_cast<const T*>(b) + l);
        a += t.a_step;
        b += t.b_step;
      };
      int64_t k = 0;
      for (; k + 4 <= t.depth; k += 4)
        for (auto& to : sum) take(to);
      for (; k < t.depth; ++k) take(sum[0]);
    }
    store(static_cast<T*>(t.out) + l,
          load<T, T>(t.add + l) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
  }
}

struct Tap {
  int64_t down, across;  // where it sees the canvas
  int64_t at;            // of its weight, in elements
};

// What one task does of an image: a group, or one panel of channels where each sees but itself, and
// a band of rows of pixels. Of the canvas, rows [top, bottom) are drawn.
struct Part {
  int64_t group, channel, band, bands, top = 0, bottom = 0;

  int64_t begin(int64_t rows) const { return band * rows / bands; }
  int64_t end(int64_t rows) const { return (band + 1) * rows / bands; }
};

// y[r, q] = bias + sum over taps and units of w * canvas[r * stride + down, q * stride + across].
template <class T>
struct Pass {
  const Engine<T>& engine;
  const PaddedImage& canvas;
  bool single;       // whether a channel of y sees but its own
  int64_t channels;  // of y
  int64_t size[2], stride[2];
  int64_t first[2], apart[2], y[2];  // where pixels stand in a plane of y, and its size
  std::vector<Tap> taps = {};
  int64_t run = 1;                 // taps that follow each other in memory
  std::vector<Block> blocks = {};  // one for each run
  T* weights = nullptr;            // of all groups

  int64_t panel() const {
    return single
               ? 2 * vec_width<T>
               : std::min(int64_t{engine.lanes} * engine.vectors, round_up(channels, engine.lanes));
  }
  int64_t panels() const { return ceil_div(channels, panel()); }
  int64_t group() const { return panels() * depth() * panel(); }
  int64_t each() const { return single ? 1 : canvas.units; }  // units of a tap
  int64_t depth() const { return static_cast<int64_t>(taps.size()) * each(); }

  // Finds the runs, and packs weights [groups][lane, step and tap at these strides].
  template <class S>
  void prepare(Launch& launch, const S* w, int64_t groups, int64_t w_group, int64_t lane,
               int64_t steps, int64_t step) {
    const int64_t count = static_cast<int64_t>(taps.size());
    const auto follows = [&](int64_t t, int64_t n) {
      return taps[t].down == taps[t - n].down && taps[t].across == taps[t - n].across + n;
    };
    if (canvas.pitch == canvas.units && !single) {
      while (run < count && follows(run, run)) ++run;
      for (int64_t t = 0; t < count; ++t)
        if (count % run != 0 || (t % run != 0 && !follows(t, 1))) run = 1;
    }
    const int64_t bytes = sizeof(T);
    for (int64_t t = 0; t < count; t += run)
      blocks.push_back({(taps[t].down * canvas.row() + taps[t].across * canvas.pitch) * bytes,
                        t * each() * panel() * bytes});
    weights = launch.scratch<T>(groups * group());
    const int64_t unit = engine.unit, whole = depth() * panel();
    parallel_for(groups * panels(), [&](int64_t i) {
      T* const to = weights + i * whole;
      const int64_t from = i % panels() * panel(), lanes = std::min(panel(), channels - from);
      std::fill_n(to, whole, T(0));
      const S* const x = w + i / panels() * w_group + from * lane;
      const auto pack = [&]<class E>(E* out) {
        for (int64_t k = 0; k < steps; ++k)
          for (int64_t t = 0; t < count; ++t) {
            E* const row = out + (t * each() + k / unit) * panel() * unit + k % unit;
            const S* const line = x + k * step + taps[t].at;
            for (int64_t l = 0; l < lanes; ++l) row[l * unit] = static_cast<E>(line[l * lane]);
          }
      };
      if (unit == 1)
        pack(to);
      else if constexpr (sizeof(S) == 2)
        pack(reinterpret_cast<S*>(to));
    });
  }

  // Of an image that is drawn; `bias` is as wide as all panels. What is activated goes to `before`
  // first, if that is given.
  template <class O>
  void operator()(const T* image, const Part& part, const T* bias, Activation activation, O* before,
                  O* to) const {
    const int64_t bytes = sizeof(T), width = panel();
    const int64_t high = ceil_div(size[1], ceil_div(size[1], engine.rows));
    // Of rows of pixels, or of a part of one. (What turns the sums reads whole vectors.)
    const int64_t pixels = std::max(high, 8192 / width / high * high);
    const int64_t across = std::min(size[1], pixels);
    const int64_t most = std::clamp<int64_t>(pixels / across, 1, size[0]);
    Buffer<T> sums(most * across * width + vec_width<T>);
    Tile<T> t{};
    t.depth = run * each();
    t.a_row = stride[1] * canvas.pitch * bytes;
    t.a_step = bytes;
    t.b_step = width * bytes;
    t.out_row = width;
    const int64_t begin = part.begin(size[0]), end = part.end(size[0]);
    const int64_t last = single ? std::min(part.channel + width, channels) : channels;
    for (int64_t c = part.channel; c < last; c += width) {
      const int64_t here = std::min(width, channels - c);
      const int vectors = static_cast<int>(ceil_div(here, engine.lanes));
      t.b = weights + part.group * group() + c * depth();
      t.add = bias ? bias + c : nullptr;
      for (int64_t r = begin; r < end; r += most)
        for (int64_t q0 = 0; q0 < size[1]; q0 += across) {
          const int64_t rows = std::min(most, end - r), columns = std::min(across, size[1] - q0);
          for (int64_t i = 0; i < rows; ++i) {
            const T* const from = image + ((r + i) * stride[0] - part.top) * canvas.row();
            see((r + i) * stride[0], t);
            for (int64_t q = 0; q < columns; q += high) {
              t.a = from + (q0 + q) * stride[1] * canvas.pitch;
              t.out = sums.data() + (i * columns + q) * width;
              const int64_t some = std::min(high, columns - q);
              if (single)
                multiply_lanes(some, width, t);
              else
                engine.tile(static_cast<int>(some), vectors, t);
            }
          }
          const auto write_to = [&](O* out) {
            finish(sums.data(), r, rows, q0, columns, here, out + c * y[0] * y[1]);
          };
          if (before) write_to(before);
          activate(activation, sums.data(), 0, 1, rows * columns * width);
          write_to(to);
        }
    }
  }

 private:
  // The taps that see the image from this row on, not the zeros above and below.
  void see(int64_t row, Tile<T>& t) const {
    const auto sees = [&](int64_t n) {
      const int64_t at = row + taps[n * run].down - canvas.low[0];
      return at >= 0 && at < canvas.x[0];
    };
    int64_t begin = 0, end = static_cast<int64_t>(blocks.size());
    while (begin < end && !sees(begin)) ++begin;
    while (begin < end && !sees(end - 1)) --end;
    t.block = blocks.data() + begin;
    t.blocks = end - begin;
  }
  // Some rows of pixels of the first `count` channels, or some pixels of a row, to the planes that
  // begin at `to`.
  template <class O>
  void finish(const T* sums, int64_t row, int64_t rows, int64_t column, int64_t columns,
              int64_t count, O* to) const {
    const int64_t plane = y[0] * y[1], pitch = panel();
    const auto get = [=](int64_t q, int64_t c, int64_t) __attribute__((always_inline)) {
      return load<T, T>(sums + q * pitch + c);
    };
    if (apart[0] == 1 && apart[1] == 1)
      return turn<T>(rows * columns, count, get,
                     [out = to + row * size[1] + column, plane](
                         int64_t c, int64_t q, Vec<T> v, int64_t n) __attribute__((always_inline)) {
                       __builtin_prefetch(out + c * plane + q + 4 * vec_width<T>, 1);
                       write(out + c * plane + q, v, n);
                     });
    for (int64_t r = 0; r < rows; ++r, sums += columns * pitch)
      for (int64_t c = 0; c < count; ++c) {
        O* const out = to + c * plane + (first[0] + (row + r) * apart[0]) * y[1] + first[1];
        for (int64_t q = 0; q < columns; ++q) out[(column + q) * apart[1]] = O(sums[q * pitch + c]);
      }
  }
};

}  // namespace mixtape::kernels::cpu
