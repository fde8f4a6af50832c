#pragma once
// What convolutions are made of: an image with zeros around it, panels that an engine gathers from
// it, rows that are packed for a tile, and a pass, the product of both. Nothing here knows which
// gradient it is.

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/strips.h"

namespace mixtape::kernels::cpu {

using Positions = std::vector<int64_t>;
inline constexpr int64_t deep = 384;    // units that are packed at once, at most
inline constexpr int64_t beyond = 64;   // elements behind an image that an engine may read
inline constexpr int64_t together = 8;  // panels that stay in the second-level cache

constexpr int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }
constexpr int64_t up(int64_t n, int64_t to) { return pieces(n, to) * to; }

// An image with `low` zeros before each axis and `size` rows and columns. Columns that are equal
// modulo `stride` lie side by side.
struct Canvas {
  int64_t low[2], size[2], stride = 1;

  int64_t part() const { return pieces(size[1], stride); }
  int64_t row() const { return part() * stride; }
  int64_t plane() const { return size[0] * row(); }
  int64_t column(int64_t q) const { return q % stride * part() + q / stride; }
  bool is_plain(const int64_t (&x)[2]) const {
    return stride == 1 && size[0] == x[0] && size[1] == x[1];
  }

  template <class S>
  void draw(const S* x, int64_t planes, const int64_t (&x_size)[2], S* room) const {
    if (is_plain(x_size)) return static_cast<void>(std::copy_n(x, planes * plane(), room));
    std::fill_n(room, planes * plane(), S());
    for (int64_t p = 0; p < planes; ++p)
      for (int64_t r = 0; r < x_size[0]; ++r) {
        const S* const from = x + (p * x_size[0] + r) * x_size[1];
        S* const to = room + p * plane() + (low[0] + r) * row();
        if (stride == 1)
          std::copy_n(from, x_size[1], to + low[1]);
        else
          for (int64_t q = 0; q < x_size[1]; ++q) to[column(low[1] + q)] = from[q];
      }
  }
  // With channels last, for a stride of 1; `other` is room for as many elements as x has.
  template <class S>
  void draw_last(const S* x, int64_t planes, const int64_t (&x_size)[2], S* room, S* other) const {
    const int64_t x_plane = x_size[0] * x_size[1];
    S* const turned = is_plain(x_size) ? room : other;
    if (planes > 1 && x_plane > 1) {
      View from{const_cast<S*>(x), dtype_of<S>(), Layout({planes, x_plane})}, to = from;
      to.data = turned;
      to.layout.strides = {1, planes};
      copy_transposed(from, to);
      x = turned;
    } else if (turned == room) {
      std::copy_n(x, planes * x_plane, room);
    }
    if (turned == room) return;
    std::fill_n(room, planes * plane(), S());
    for (int64_t r = 0; r < x_size[0]; ++r)
      std::copy_n(x + r * x_size[1] * planes, x_size[1] * planes,
                  room + ((low[0] + r) * size[1] + low[1]) * planes);
  }
};

// Lines that begin at `at`, cut into panels, and those into what lies side by side.
struct Panels {
  int64_t lines, lanes, width;
  std::vector<Piece> all;
  Positions first;

  template <class T>
  Panels(const Engine<T>& e, const Positions& at)
      : lines(static_cast<int64_t>(at.size())), lanes(e.lanes), width(lanes * e.vectors) {
    for (int64_t i = 0, begin = 0; i < lines; ++i) {
      if (i % width == 0) first.push_back(static_cast<int64_t>(all.size()));
      if (i % width != 0 && at[i] == at[i - 1] + 1 && i - begin < lanes) continue;
      begin = i;
      all.push_back({at[i], i % width});
    }
    first.push_back(static_cast<int64_t>(all.size()));
  }
  int64_t count() const { return static_cast<int64_t>(first.size()) - 1; }
  int64_t lines_of(int64_t p) const { return std::min(width, lines - p * width); }
  int vectors_of(int64_t p) const { return static_cast<int>(pieces(lines_of(p), lanes)); }
  int64_t width_of(int64_t p) const { return vectors_of(p) * lanes; }
  template <class T>
  void gather(const Engine<T>& e, int64_t p, const void* data, std::span<const int64_t> step,
              void* to) const {
    e.gather(data, step.data(), static_cast<int64_t>(step.size()), all.data() + first[p],
             first[p + 1] - first[p], width_of(p), to);
  }
};

// Rows of one matrix, packed as slivers as high as a tile, each for all units of a block.
template <class T>
struct Rows {
  const Engine<T>& engine;
  int64_t count, sliver, pitch;

  Rows(const Engine<T>& e, int64_t rows, int64_t units)
      : engine(e),
        count(rows),
        sliver(pieces(rows, pieces(rows, e.rows))),
        pitch((units * sliver + e.lanes) * e.unit_bytes) {}
  int64_t slivers() const { return pieces(count, sliver); }
  int64_t height(int64_t s) const { return std::min(sliver, count - s * sliver); }
  int64_t bytes() const { return slivers() * pitch; }
  // Rows of `depth` numbers, at `unit` of those in `to`.
  template <class S>
  void pack(const S* data, int64_t row, int64_t depth, int64_t unit, char* to) const {
    for (int64_t s = 0; s < slivers(); ++s)
      engine.pack({data + s * sliver * row, row, 1, height(s), height(s)}, depth, height(s),
                  to + s * pitch + unit * height(s) * engine.unit_bytes);
  }
  // A tile of sliver s with a panel of `width` lanes.
  Tile<T> tile(const char* packed, int64_t s, const char* panel, int64_t width,
               int64_t units) const {
    Tile<T> t{};
    t.depth = units;
    t.a = packed + s * pitch;
    t.a_row = engine.unit_bytes;
    t.a_step = height(s) * engine.unit_bytes;
    t.b = panel;
    t.b_step = width * engine.unit_bytes;
    return t;
  }
};

// y[r][place[p]] = bias[r] + sum over k of w[r][k] * image[base[p] + step[k]].
template <class T>
struct Pass {
  const Engine<T>& engine;
  Positions step, place;
  Panels panels;
  int64_t depth, block, blocks;  // steps in all, and packed at once
  Rows<T> rows;
  bool dense;  // places count from zero

  Pass(const Engine<T>& e, int64_t rows_, const Positions& base, Positions step_, Positions place_)
      : engine(e),
        step(std::move(step_)),
        place(std::move(place_)),
        panels(e, base),
        depth(static_cast<int64_t>(step.size())),
        block(block_of(e, depth)),
        blocks(std::max<int64_t>(1, pieces(depth, block))),
        rows(e, rows_, block / e.unit),
        dense(place.back() == static_cast<int64_t>(place.size()) - 1) {}
  static int64_t block_of(const Engine<T>& e, int64_t depth) {
    const int64_t units = std::max<int64_t>(1, pieces(depth, e.unit));
    return pieces(units, pieces(units, deep)) * e.unit;
  }
  int64_t bytes() const { return blocks * rows.bytes(); }  // of the packed weights
  int64_t panel_pitch() const {
    return (block / engine.unit * panels.width + engine.lanes) * engine.unit_bytes;
  }

  template <class S>
  void pack(const S* w, char* to) const {
    for (int64_t k = 0; k < depth; k += block)
      rows.pack(w + k, depth, std::min(block, depth - k), 0, to + k / block * rows.bytes());
  }

  // `bias` is repeated along a panel.
  template <class S, class O>
  void run(const S* image, const char* weights, const T* bias, O* y, int64_t y_row) const {
    const int64_t most = std::min(together, panels.count()), stride = most * panels.width;
    Buffer<char> packed(most * panel_pitch());
    Buffer<T> sums(blocks > 1 || !dense ? rows.count * stride : 0);
    for (int64_t p = 0; p < panels.count(); p += most)
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t here = std::min(most, panels.count() - p);
        const auto steps = std::span(step).subspan(b * block, std::min(block, depth - b * block));
        for (int64_t i = 0; i < here; ++i)
          panels.gather(engine, p + i, image, steps, packed.data() + i * panel_pitch());
        const int64_t units = pieces(static_cast<int64_t>(steps.size()), engine.unit);
        for (int64_t s = 0; s < rows.slivers(); ++s)
          for (int64_t i = 0; i < here; ++i) {
            Tile<T> t = rows.tile(weights + b * rows.bytes(), s, packed.data() + i * panel_pitch(),
                                  panels.width_of(p + i), units);
            T* const sum = sums.data() + s * rows.sliver * stride + i * panels.width;
            t.add = b > 0 ? sum : bias ? bias + s * rows.sliver * panels.width : nullptr;
            t.add_row = b > 0 ? stride : panels.width;
            t.out = sum;
            t.out_row = stride;
            if (b + 1 == blocks)
              finish(t, s, p + i, y + s * rows.sliver * y_row, y_row);
            else
              engine.tile(static_cast<int>(rows.height(s)), panels.vectors_of(p + i), t);
          }
      }
  }

 private:
  // The tile of the last block, to y; by way of t.out where places are not dense.
  template <class O>
  void finish(Tile<T>& t, int64_t s, int64_t p, O* y, int64_t y_row) const {
    const int64_t height = rows.height(s), lines = panels.lines_of(p), at = p * panels.width;
    alignas(64) O edge[14 * 32];
    const bool whole = lines == panels.width_of(p);
    if (dense) {
      t.out = whole ? y + at : edge;
      t.out_row = whole ? y_row : panels.width;
      t.narrow = !std::is_same_v<O, T>;
    }
    engine.tile(static_cast<int>(height), panels.vectors_of(p), t);
    if (dense && whole) return;
    for (int64_t r = 0; r < height; ++r) {
      if (dense) {
        std::copy_n(edge + r * panels.width, lines, y + r * y_row + at);
      } else {
        const T* const sum = static_cast<const T*>(t.out) + r * t.out_row;
        for (int64_t i = 0; i < lines; ++i) y[r * y_row + place[at + i]] = O(sum[i]);
      }
    }
  }
};

}  // namespace mixtape::kernels::cpu
