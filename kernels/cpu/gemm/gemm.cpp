// Matrix products: c is cut into chunks whose sizes depend on the shape alone; a chunk packs what
// it needs of the operands, block by block of k, and sums tiles that an engine keeps in registers.
// Every element of c is one sum in the order of k, so neither the cut nor the number of threads,
// nor which operand becomes rows and which lanes, changes a bit. Measured in bench/worklog/020 to
// 022, 071, 092 and 143.

#include <algorithm>
#include <optional>

#include "kernels/common/batch.h"
#include "kernels/cpu/gemm/blocking.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/simd/transpose_tiles.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

// One product of the batch.
template <class T, class S, class O>
struct Product {
  const GemmPlan<T>& plan;
  const S *a, *b;
  const T* bias;
  Activation activation;
  O *c, *before;
};

// Memory of one chunk, or of all for what they share.
template <class T>
struct Room {
  std::optional<Buffer<char>> a, b;
  std::optional<Buffer<T>> sums;

  explicit Room(const GemmPlan<T>& p) {
    if (!p.a.in_place && !p.a.shared)
      a.emplace(p.room(p.a, p.b_outer ? p.a.chunk : p.a.sliver, p.depth));
    if (!p.b.shared && !(p.b.in_place && p.b.count % p.b.sliver == 0))
      b.emplace(p.room(p.b, p.b_outer || p.b.in_place ? p.b.sliver : p.b.chunk, p.depth));
    if (!p.c_in_place || (p.narrow && p.k > p.depth)) sums.emplace(p.a.chunk * p.b.chunk);
  }
};

// Steps [k, k + depth) of the lines [from, to), as slivers one after the other.
template <class T, class S>
void pack(const GemmPlan<T>& p, const Side& x, const S* data, int64_t from, int64_t to, int64_t k,
          int64_t depth, char* room) {
  const int64_t unit = p.engine.unit;
  // Lines that lie side by side are read together, a few steps at a time; of a, whose slivers are
  // narrow, more of them where the second-level cache has all of it.
  const bool near = &x == &p.a && x.count * p.k * p.element < (512 << 10);
  const int64_t steps = x.line == 1 ? (near ? 64 : 8) * unit : depth;
  for (int64_t d = 0; d < depth; d += steps)
    for (int64_t i = from; i < to; i += x.sliver) {
      const int64_t count = std::min(x.sliver, to - i);
      // (Of a, the last sliver is as narrow as its tile.)
      const int64_t width = &x == &p.b ? x.sliver : count;
      p.engine.pack({data + i * x.line + (k + d) * x.step, x.line, x.step, count, x.count - i},
                    std::min(steps, depth - d), width,
                    room + (i - from) / x.sliver * p.pitch(x, depth) +
                        d / unit * width * p.engine.unit_bytes);
    }
}

// Where a line's sliver begins in what is shared, for the block of k that begins at `k`.
template <class T>
int64_t shared_at(const GemmPlan<T>& p, const Side& x, int64_t line, int64_t k, int64_t depth) {
  return k / p.depth * p.room(x, x.count, p.depth) + line / x.sliver * p.pitch(x, depth);
}

// All lines, block by block of k.
template <class T, class S>
void pack_shared(const GemmPlan<T>& p, const Side& x, const S* data, char* room) {
  const int64_t group = x.sliver * std::max<int64_t>(1, 256 / x.sliver);
  const int64_t groups = ceil_div(x.count, group);
  parallel_for(groups * ceil_div(p.k, p.depth), [&](int64_t i) {
    const int64_t k = i / groups * p.depth, depth = std::min(p.depth, p.k - k);
    const int64_t from = i % groups * group, to = std::min(x.count, from + group);
    pack(p, x, data, from, to, k, depth, room + shared_at(p, x, from, k, depth));
  });
}

// c = activation(sums + bias) for rows from `row` and columns from `column` on: a part at a time,
// that stays in the first cache, and in loops of one kind of work each. A part is as long as c is
// contiguous.
template <class T, class S, class O>
void finish(const Product<T, S, O>& x, T* sums, int64_t stride, int64_t row, int64_t rows,
            int64_t column, int64_t columns) {
  const int64_t c_row = x.plan.c[0], c_column = x.plan.c[1];
  const int64_t b_row = x.plan.bias[0], b_column = x.plan.bias[1];
  const auto part = [&](int64_t top, int64_t left, int64_t height, int64_t width) {
    T* const from = sums + top * stride + left;
    const auto get = [&](int64_t i, int64_t j, int64_t) {
      return load<T, T>(from + i * stride + j);
    };
    const auto write_to = [&](O* c) {
      c += (row + top) * c_row + (column + left) * c_column;
      if (c_column == 1) {
        for (int64_t i = 0; i < height; ++i)
          for_each_vec<T>(width, [&](int64_t j, int64_t count) {
            write(c + i * c_row + j, get(i, j, count), count);
          });
      } else if (c_row == 1) {
        turn<T>(height, width, get, [&](int64_t j, int64_t i, Vec<T> v, int64_t count) {
          write(c + i + j * c_column, v, count);
        });
      } else {
        for (int64_t i = 0; i < height; ++i)
          for (int64_t j = 0; j < width; ++j) c[i * c_row + j * c_column] = O(from[i * stride + j]);
      }
    };
    if (x.bias)
      for (int64_t i = 0; i < height; ++i)
        for_each_vec<T>(width, [&](int64_t j, int64_t count) {
          const T* const bias = x.bias + (row + top + i) * b_row + (column + left + j) * b_column;
          Vec<T> added(*bias);
          if (b_column == 1)
            added = read<T>(bias, count);
          else if (b_column != 0)
            for (int64_t l = 1; l < count; ++l) added.v[l] = bias[l * b_column];
          T* const at = from + i * stride + j;
          store(at, load<T, T>(at) + added);
        });
    if (x.before) write_to(x.before);
    activate(x.activation, from, stride, height, width);
    write_to(x.c);
  };
  const bool by_columns = c_row == 1 && c_column != 1;
  const int64_t height = by_columns ? rows : 2, width = by_columns ? vec_width<T> : columns;
  for (int64_t i = 0; i < rows; i += height)
    for (int64_t j = 0; j < columns; j += width)
      part(i, j, std::min(height, rows - i), std::min(width, columns - j));
}

// What there is of a tile in a room of its own: put(row, column, tile + add, count). (A function of
// its own: its vectors would cost every tile a frame.)
template <class T, class Put>
[[gnu::noinline]] void move_edge(const T* tile, int64_t width, int64_t rows, int64_t columns,
                                 const T* add, int64_t add_row, Put put) {
  for (int64_t r = 0; r < rows; ++r)
    for_each_vec<T>(columns, [&](int64_t q, int64_t count) {
      const Vec<T> sum = read<T>(tile + r * width + q, count);
      put(r, q, add ? sum + read<T>(add + r * add_row + q, count) : sum, count);
    });
}

// A chunk of c; `shared_a`, `shared_b`: what is packed for all.
template <class T, class S, class O>
void chunk(const Product<T, S, O>& x, int64_t index, const char* shared_a, const char* shared_b,
           Room<T>& room) {
  const GemmPlan<T>& p = x.plan;
  const int64_t row = index / p.across() * p.a.chunk, column = index % p.across() * p.b.chunk;
  const int64_t rows = std::min(p.a.chunk, p.a.count - row),
                columns = std::min(p.b.chunk, p.b.count - column);
  const int64_t width = p.b.sliver, lanes = p.engine.lanes, unit_bytes = p.engine.unit_bytes;
  O* const c = x.c + row * p.c[0] + column * p.c[1];
  // Where sums wait for the next block of k.
  T* sums = room.sums ? room.sums->data() : nullptr;
  int64_t stride = p.b.chunk;
  if constexpr (std::is_same_v<T, O>)
    if (!sums) {
      sums = c;
      stride = p.c[0];
    }
  alignas(64) T edge[14 * 32];

  for (int64_t k = 0; k == 0 || k < p.k; k += p.depth) {
    const int64_t depth = std::min(p.depth, p.k - k), units = p.units(depth);
    const bool last = k + depth == p.k, to_c = last && p.c_in_place;
    const auto packed = [&](const Side& x, const char* shared, int64_t line, const auto& own) {
      return x.shared ? shared + shared_at(p, x, line, k, depth) : own ? own->data() : nullptr;
    };
    const char* const a = packed(p.a, shared_a, row, room.a);
    const char* const b = packed(p.b, shared_b, column, room.b);
    const auto pack_a = [&](int64_t from, int64_t to) {
      if (room.a) pack(p, p.a, x.a, row + from, row + to, k, depth, room.a->data());
    };
    const auto pack_b = [&](int64_t from, int64_t to) {
      // Of what is in place, the last sliver may not be read beyond its end.
      if (p.b.in_place) from = std::max(from, columns / width * width);
      if (room.b) pack(p, p.b, x.b, column + from, column + to, k, depth, room.b->data());
    };
    Tile<T> t;
    t.depth = units;
    t.far = rows * columns * int64_t{sizeof(T)} > (512 << 10);
    // Of what the outer loop packs, each sliver takes the place of the last.
    const int64_t a_pitch = room.a && !p.b_outer ? 0 : p.pitch(p.a, depth);
    const int64_t b_pitch = room.b && (p.b_outer || p.b.in_place) ? 0 : p.pitch(p.b, depth);
    // Where their slivers begin, as bytes.
    const auto place = [&](const Side& x, const S* data, int64_t line) {
      return reinterpret_cast<const char*>(data + line * x.line + k * x.step);
    };
    const char* const a_first = p.a.in_place ? place(p.a, x.a, row) : a;
    const char* const b_first = place(p.b, x.b, column);
    const int64_t a_apart = p.a.in_place ? p.a.sliver * p.a.line * p.element : a_pitch;
    const int64_t b_apart = width * p.b.line * p.element;
    t.a_row = p.a.in_place ? p.a.line * p.element : unit_bytes;
    const auto tile = [&](int64_t down, int64_t right) {
      const int64_t i = down * p.a.sliver, j = right * width;
      const int64_t high = std::min(p.a.sliver, rows - i), here = std::min(width, columns - j);
      const int vectors =
          here == width ? p.engine.vectors : static_cast<int>(ceil_div(here, lanes));
      const bool as_is = p.b.in_place && here == width;
      t.a = a_first + down * a_apart;
      t.a_step = p.a.in_place ? p.a.step * p.element * p.engine.unit : high * unit_bytes;
      t.b = as_is ? b_first + right * b_apart : b + right * b_pitch;
      t.b_step = as_is ? p.b.step * p.element : width * unit_bytes;
      t.b_line = as_is && p.b_along ? p.b.line * p.element : 0;
      t.add = k > 0 ? sums + i * stride + j : nullptr;
      t.add_row = stride;
      if (p.c_in_place && x.bias) {  // of one block
        t.add = x.bias + (row + i) * p.bias[0] + column + j;
        t.add_row = p.bias[0];
      }
      // Tiles with less than whole vectors go to c by way of `edge`.
      const bool staged = p.c_in_place && here < vectors * lanes;
      const T* const add = t.add;
      t.narrow = to_c && p.narrow && !staged;
      if (staged) {
        t.out = edge;
        t.out_row = width;
        t.add = nullptr;
      } else if (to_c) {
        t.out = c + i * p.c[0] + j;
        t.out_row = p.c[0];
      } else {
        t.out = sums + i * stride + j;
        t.out_row = stride;
      }
      p.engine.tile(static_cast<int>(high), vectors, t);
      if (!staged) return;
      move_edge(edge, width, high, here, add, t.add_row,
                [&](int64_t r, int64_t q, Vec<T> sum, int64_t count) {
                  if (last)
                    write(c + (i + r) * p.c[0] + j + q, sum, count);
                  else
                    write(sums + (i + r) * stride + j + q, sum, count);
                });
    };
    // What is tiled in the inner loop stays in the second-level cache.
    const int64_t tall = ceil_div(rows, p.a.sliver), wide = ceil_div(columns, width);
    if (p.b_outer) {
      pack_a(0, rows);
      for (int64_t right = 0; right < wide; ++right) {
        pack_b(right * width, std::min(columns, (right + 1) * width));
        for (int64_t down = 0; down < tall; ++down) tile(down, right);
      }
    } else {
      pack_b(0, columns);
      for (int64_t down = 0; down < tall; ++down) {
        pack_a(down * p.a.sliver, std::min(rows, (down + 1) * p.a.sliver));
        for (int64_t right = 0; right < wide; ++right) tile(down, right);
      }
    }
  }
  if (!p.c_in_place) finish(x, sums, stride, row, rows, column, columns);
}

template <class T, class S, class O>
void multiply(const Product<T, S, O>& x) {
  const GemmPlan<T>& p = x.plan;
  std::optional<Buffer<char>> a, b;
  const auto share = [&](const Side& side, const S* data, std::optional<Buffer<char>>& all) {
    if (side.shared)
      pack_shared(p, side, data,
                  all.emplace(ceil_div(p.k, p.depth) * p.room(side, side.count, p.depth)).data());
  };
  share(p.a, x.a, a);
  share(p.b, x.b, b);
  parallel_for(p.chunks(), [&](int64_t i) {
    Room<T> room(p);
    chunk(x, i, a ? a->data() : nullptr, b ? b->data() : nullptr, room);
  });
}

}  // namespace

void gemm(Launch& launch, In a, In b, const Epilogue& epilogue, Out c) {
  const View& bias = epilogue.bias;
  if (epilogue.row_sums) reduce(launch, Reduce::Sum, a, column(epilogue.row_sums));
  if (c.size() == 0) return;
  visit_float(a.dtype, c.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const Engine<T>* const engine = find_engine<T>(current_isa(), a.dtype);
    if (!engine) return eigen_gemm(launch, a, b, epilogue, c);
    Layout al = a.layout, bl = b.layout, cl = c.layout;
    merge_batch(al, bl, cl);
    const int64_t m = cl.shape[-2], n = cl.shape[-1], k = al.shape[-1];
    // Where there is one line, or one step, its stride is free.
    const auto stride = [](const Layout& l, int d) { return l.shape[d] == 1 ? 1 : l.strides[d]; };
    GemmPlan<T> plan{*engine,
                     k,
                     sizeof(S),
                     {m, stride(al, -2), stride(al, -1)},
                     {n, stride(bl, -1), stride(bl, -2)},
                     {stride(cl, -2), stride(cl, -1)},
                     {1, 1},
                     !std::is_same_v<T, O>,
                     bool(bias),
                     epilogue.activation != Activation::None || epilogue.before};
    if (bias) plan.bias[0] = bias.layout.rank() == 1 ? 0 : n;
    plan.choose();
    const T* const added = widened<T>(launch, bias);
    const Layout ab = leading(al), bb = leading(bl), cb = leading(cl);
    const auto product = [&](int64_t i) {
      const S *x = a.as<S>() + ab.at(i), *y = b.as<S>() + bb.at(i);
      return Product<T, S, O>{plan,
                              plan.swapped ? y : x,
                              plan.swapped ? x : y,
                              added,
                              epilogue.activation,
                              c.as<O>() + cb.at(i),
                              epilogue.before ? epilogue.before.as<O>() + cb.at(i) : nullptr};
    };
    const int64_t batch = cb.shape.size();
    if (plan.chunks() > 1) {
      for (int64_t i = 0; i < batch; ++i) multiply(product(i));
    } else {
      const int64_t work = std::max<int64_t>(1, m * n * k);
      parallel_ranges(batch, std::max<int64_t>(1, (int64_t{1} << 18) / work),
                      [&](int64_t begin, int64_t end) {
                        Room<T> room(plan);
                        for (int64_t i = begin; i < end; ++i)
                          chunk(product(i), 0, nullptr, nullptr, room);
                      });
    }
  });
}

}  // namespace mixtape::kernels::cpu
