// Max pooling, and reads and writes at the positions of the maxima. The first maximum of a window
// in row-major order wins, and NaN beats everything.

#include "core/int_math.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/nn/best.h"
#include "kernels/cpu/nn/pixel_pool.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

// Pools one row of windows at a time: first the maximum of each column, in vectors; then, for
// narrow windows, the maximum of each group of neighbouring columns, in vectors too. Wide windows,
// and those that the edge cuts off, go column by column.
template <class S>
class PlanePool {
 public:
  PlanePool(const Sampling& rows, const Sampling& columns)
      : rows_(rows),
        columns_(columns),
        stride_(columns.from + few + 2 * width),
        values_(stride_),
        slid_(stride_),
        positions_(2 * stride_),
        edges_(2 * columns.to) {
    for (int64_t q = 0; q < columns.to; ++q) {
      const int64_t begin = edges_.data()[2 * q] = columns.begin(q);
      const int64_t end = edges_.data()[2 * q + 1] = columns.end(q);
      longest_ = std::max(longest_, end - begin);
    }
  }

  void operator()(const S* x, S* y, int32_t* index) const {
    for (int64_t r = 0; r < rows_.to; ++r) {
      pool_columns(x, r);
      if (longest_ <= few) slide();
      const int64_t* edge = edges_.data();
      const S* const values = slid_.data();
      const Position* const positions = positions_.data() + stride_;
      for (int64_t q = columns_.to; q > 0; --q, ++y, ++index, edge += 2) {
        const int64_t begin = edge[0], end = edge[1];
        if (longest_ <= few && end - begin == longest_) {
          *y = values[begin];
          *index = static_cast<int32_t>(positions[begin]);
        } else {
          pool_window(begin, end, *y, *index);
        }
      }
    }
  }

 private:
  using T = math_t<S>;
  using Position = typename Best<T>::Position;
  using Positions = typename Best<T>::Positions;
  static constexpr int64_t width = Vec<T>::width, few = 8;

  void pool_columns(const S* x, int64_t r) const {
    const int64_t begin = rows_.begin(r), end = rows_.end(r);
    Positions lane;
    for (int i = 0; i < width; ++i) lane[i] = i;
    for_each_vec<T>(columns_.from, [&](int64_t c, int64_t count) {
      int64_t at = begin * columns_.from + c;
      Best<T> best{read<T>(x + at, count).v, lane + static_cast<Position>(at)};
      for (int64_t row = begin + 1; row < end; ++row) {
        at += columns_.from;
        best.meet(read<T>(x + at, count).v, lane + static_cast<Position>(at));
      }
      std::memcpy(values_.data() + c, &best.value, sizeof best.value);
      put(best.position, c);
    });
  }
  void slide() const {
    for (int64_t c = 0; c < columns_.from; c += width) {
      Best<T> best = at(c);
      for (int64_t j = 1; j < longest_; ++j) {
        const Best<T> next = at(c + j);
        best.meet_any(next.value, next.position);
      }
      store(slid_.data() + c, Vec<T>(best.value));
      put(best.position, stride_ + c);
    }
  }
  void pool_window(int64_t begin, int64_t end, S& y, int32_t& index) const {
    T best = values_.data()[begin];
    Position position = positions_.data()[begin];
    for (int64_t c = begin + 1; c < end; ++c) {
      const T v = values_.data()[c];
      const Position at = positions_.data()[c];
      const bool equal = v == best || (v != v && best != best);
      if (equal ? at >= position : !(v > best || v != v)) continue;
      best = v;
      position = at;
    }
    y = S(best);
    index = static_cast<int32_t>(position);
  }

  MIXTAPE_ALWAYS_INLINE Best<T> at(int64_t i) const {
    Best<T> b;
    std::memcpy(&b.value, values_.data() + i, sizeof b.value);
    std::memcpy(&b.position, positions_.data() + i, sizeof b.position);
    return b;
  }
  MIXTAPE_ALWAYS_INLINE void put(const Positions& positions, int64_t i) const {
    std::memcpy(positions_.data() + i, &positions, sizeof positions);
  }

  const Sampling rows_, columns_;
  const int64_t stride_;
  int64_t longest_ = 0;  // window, in columns
  // Maxima of columns, maxima of whole windows, and the positions of both.
  const Buffer<T> values_;
  const Buffer<S> slid_;
  const Buffer<Position> positions_;
  const Buffer<int64_t> edges_;  // where the columns of each window begin and end
};

using Floats = Vec<float>::Vector;
using Indices = detail::Vector<float>::integer;

constexpr int side_by_side = Vec<float>::width;

// The rows (2 or 1) of adjacent windows of two columns; 0 for other windows.
int64_t rows_of_pairs(const Sampling& rows, const Sampling& columns) {
  if (!columns.abut(2) || rows.to == 0) return 0;
  return rows.abut(2) ? 2 : rows.abut(1) ? 1 : 0;
}

// Stores half of the lanes of v; 16-bit types also overwrite the half vector that follows.
template <int half, class S, class V>
MIXTAPE_ALWAYS_INLINE void store_half(S* to, const V& v) {
  constexpr int n = side_by_side, first = half * n / 2;
  [&]<int... i>(std::integer_sequence<int, i...>) MIXTAPE_INLINE_LAMBDA {
    if constexpr (sizeof(S) == sizeof v / n) {
      const auto some = __builtin_shufflevector(v, v, (first + i)...);
      std::memcpy(to, &some, sizeof some);
    } else {
      store(to, Vec<float>(__builtin_shufflevector(v, v, (first + i)..., (n / 2 - first + i)...)));
    }
  }(std::make_integer_sequence<int, n / 2>());
}

// Pools one vector of windows of two columns and two rows: the first half of them at x, the others
// `far` elements later. Rows are `below` elements apart, 0 for windows of one row. `position` is
// the position of x in its plane. Reads `count` elements of each row.
template <class S, int... i>
MIXTAPE_ALWAYS_INLINE void pool_pairs(const S* x, int64_t far, int64_t below, int64_t position,
                                      int64_t count, Floats& best, Indices& at,
                                      std::integer_sequence<int, i...>) {
  constexpr int n = side_by_side;
  const auto row = [&](const S* p, Floats& even, Floats& odd) {
    const Floats low = read<float>(p, std::min<int64_t>(count, n)).v;
    const Floats high = count > n ? read<float>(p + far, count - n).v : Floats{};
    even = __builtin_shufflevector(low, high, (2 * i)...);
    odd = __builtin_shufflevector(low, high, (2 * i + 1)...);
  };
  Floats next, low, last;
  row(x, best, next);
  row(x + below, low, last);
  // First the maximum of each row, then of both.
  const auto winner = [](Floats& one, const Floats& other) {
    const Indices wins = ~(other <= one) & (one == one);
    one = wins ? other : one;
    return wins;
  };
  const Indices right = winner(best, next), right_below = winner(low, last),
                lower = winner(best, low);
  at = Indices{(2 * i)...} + static_cast<int32_t>(position);
  at += Indices{(i < n / 2 ? 0 : -1)...} & static_cast<int32_t>(far - n);
  at += lower ? static_cast<int32_t>(below) - right_below : -right;  // (true is -1)
}

// Pools rows [begin, end) of adjacent windows, of two columns and `high` rows (2 or 1), in each
// plane. Except in the last rows, the last vector overwrites the start of the next row, which is
// stored later. `vectors`: vectors per row of the plane if one or two, otherwise 0; if one, two
// rows are pooled at once.
template <bool last, int vectors, class S>
[[gnu::noinline]] void pool_rows(const S* x, int64_t high, int64_t rows, int64_t columns,
                                 int64_t planes, int64_t begin, int64_t end, S* y, int32_t* index) {
  constexpr int n = side_by_side;
  constexpr std::make_integer_sequence<int, n> lanes;
  const int64_t across = columns / 2, below = (high - 1) * columns, plane = rows / high * across;
  Floats best;
  Indices at;
  for (int64_t p = 0; p < planes; ++p, x += rows * columns, y += plane, index += plane) {
    int64_t r = begin;
    if constexpr (vectors == 1) {
      for (; r + 1 < end; r += 2) {
        const int64_t position = r * high * columns, to = r * across;
        pool_pairs(x + position, high * columns, below, position, 2 * n, best, at, lanes);
        store_half<0>(y + to, best);
        store_half<0>(index + to, at);
        store_half<1>(y + to + across, best);
        store_half<1>(index + to + across, at);
      }
    }
    for (; r < end; ++r)
      for (int64_t q = 0; q < (vectors ? 1 : across); q += n) {
        const int64_t position = r * high * columns + 2 * q, to = r * across + q;
        const int64_t count = std::min<int64_t>(n, across - q);
        pool_pairs(x + position, n, below, position, last ? 2 * count : (vectors == 1 ? 1 : 2) * n,
                   best, at, lanes);
        if constexpr (last) {
          store_first(y + to, Vec<float>(best), count);
          detail::write_first<int32_t, n>(index + to, reinterpret_cast<int32_t*>(&at), count);
        } else if constexpr (vectors == 1) {
          store_half<0>(y + to, best);
          store_half<0>(index + to, at);
        } else {
          store(y + to, Vec<float>(best));
          std::memcpy(index + to, &at, sizeof at);
        }
      }
  }
}

// Calls f(first, planes, begin, end, last, vectors) for the rows of windows of planes [begin, end):
// separately for the last rows, which may not write past their end.
template <class F>
void for_rows(int64_t begin, int64_t end, int64_t down, int64_t across, F f) {
  constexpr std::false_type no;
  constexpr std::integral_constant<int, 0> many;
  const auto whole = [&](int64_t first, int64_t planes, int64_t rows) {
    if (2 * across <= side_by_side)
      f(first, planes, 0, rows, no, std::integral_constant<int, 1>());
    else if (across <= side_by_side)
      f(first, planes, 0, rows, no, std::integral_constant<int, 2>());
    else
      f(first, planes, 0, rows, no, many);
  };
  const int64_t margin = std::min(down, ceil_div(side_by_side, across));
  const int64_t inner = std::max(begin, end - ceil_div(2 * side_by_side, down * across));
  whole(begin, inner - begin, down);
  for (int64_t p = inner; p < end; ++p) {
    whole(p, 1, down - margin);
    f(p, 1, down - margin, down, std::true_type(), many);
  }
}

template <class S>
void pool_halves(const S* x, int64_t high, int64_t rows, int64_t columns, int64_t begin,
                 int64_t end, S* y, int32_t* index) {
  const int64_t down = rows / high, across = columns / 2, to = down * across;
  for_rows(
      begin, end, down, across,
      [&](int64_t first, int64_t planes, int64_t from, int64_t until, auto last, auto vectors) {
        pool_rows<last, vectors>(x + first * rows * columns, high, rows, columns, planes, from,
                                 until, y + first * to, index + first * to);
      });
}

// Interleaves the lanes of a and b.
template <int... i>
MIXTAPE_ALWAYS_INLINE void interleave_pairs(Floats a, Floats b, float* to,
                                            std::integer_sequence<int, i...>) {
  constexpr int n = side_by_side;
  const Floats low = __builtin_shufflevector(a, b, (i / 2 + i % 2 * n)...),
               high = __builtin_shufflevector(a, b, (n / 2 + i / 2 + i % 2 * n)...);
  std::memcpy(to, &low, sizeof low);
  std::memcpy(to + n, &high, sizeof high);
}
// Stores pairs: y in the left or the right element, as the masks say, and zero elsewhere.
template <class S>
MIXTAPE_ALWAYS_INLINE void put_pairs(const S* y, int64_t count, Indices left, Indices right,
                                     S* pairs) {
  constexpr int n = side_by_side;
  if constexpr (sizeof(S) == sizeof(float)) {
    const Floats v = read<float>(y, count).v;
    interleave_pairs(left ? v : Floats{}, right ? v : Floats{}, pairs,
                     std::make_integer_sequence<int, n>());
  } else {
    using Halves [[gnu::vector_size(n * sizeof(uint16_t))]] = uint16_t;
    Halves halves{};
    std::memcpy(&halves, y, static_cast<size_t>(count) * sizeof(S));
    const auto v = __builtin_convertvector(halves, Indices);
    const Indices both = (v & left) | (v << 16 & right);
    std::memcpy(static_cast<void*>(pairs), &both, sizeof both);
  }
}
// The reverse of pool_rows: writes y to its positions in rows [begin, end) of windows, and zeros to
// the rest of those rows of x. Except in the last rows, the last vector overwrites the start of the
// next row.
template <bool last, int vectors, class S>
[[gnu::noinline]] void put_rows(const S* y, const int32_t* index, int64_t high, int64_t rows,
                                int64_t columns, int64_t planes, int64_t begin, int64_t end,
                                S* __restrict x) {
  constexpr int n = side_by_side;
  const int64_t across = columns / 2, down = rows / high, plane = down * across;
  Indices lane;
  for (int i = 0; i < n; ++i) lane[i] = 2 * i;
  for (int64_t p = 0; p < planes; ++p, x += rows * columns, y += plane, index += plane) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t row = r * high; row < (r + 1) * high; ++row) {
        for (int64_t q = 0; q < (vectors ? 1 : across); q += n) {
          const int64_t count = last ? std::min<int64_t>(n, across - q) : n;
          const int64_t position = row * columns + 2 * q, from = r * across + q;
          const Indices even = lane + static_cast<int32_t>(position);
          Indices at{};
          std::memcpy(&at, index + from, static_cast<size_t>(count) * sizeof(int32_t));
          const Indices left = at == even, right = at == even + 1;
          if constexpr (last) {
            S pairs[2 * n];
            put_pairs(y + from, count, left, right, pairs);
            std::memcpy(static_cast<void*>(x + position), pairs,
                        static_cast<size_t>(2 * count) * sizeof(S));
          } else {
            put_pairs(y + from, n, left, right, x + position);
          }
        }
        if (columns % 2) x[(row + 1) * columns - 1] = S(0.0f);
      }
    if (end == down) std::fill(x + down * high * columns, x + rows * columns, S(0.0f));
  }
}
template <class S>
void put_halves(const S* y, const int32_t* index, int64_t high, int64_t rows, int64_t columns,
                int64_t begin, int64_t end, S* x) {
  const int64_t down = rows / high, across = columns / 2, from = down * across;
  for_rows(
      begin, end, down, across,
      [&](int64_t first, int64_t planes, int64_t start, int64_t until, auto last, auto vectors) {
        put_rows<last, vectors>(y + first * from, index + first * from, high, rows, columns, planes,
                                start, until, x + first * rows * columns);
      });
}

}  // namespace

void max_pool2d(Launch&, In x, const Sampling& rows, const Sampling& columns, Out y, Out index) {
  if (y.size() == 0) return;
  const int64_t x_plane = rows.from * columns.from, y_plane = rows.to * columns.to;
  const int64_t planes = x.size() / x_plane;
  const int64_t high = rows_of_pairs(rows, columns);
  visit_float(x.dtype, [&]<class S>() {
    if (has_channels_last(x)) return pool_pixels<S>(x, rows, columns, y, index);
    parallel_ranges(planes, grain_of(x_plane), [&](int64_t begin, int64_t end) {
      if constexpr (!std::is_same_v<S, double>)
        if (high)
          return pool_halves(x.as<S>(), high, rows.from, columns.from, begin, end, y.as<S>(),
                             index.as<int32_t>());
      const PlanePool<S> pool(rows, columns);
      for (int64_t p = begin; p < end; ++p)
        pool(x.as<S>() + p * x_plane, y.as<S>() + p * y_plane, index.as<int32_t>() + p * y_plane);
    });
  });
}

void put_at(Launch&, In y, In index, const Sampling& rows, const Sampling& columns, Out x) {
  if (x.size() == 0) return;
  const int64_t x_plane = rows.from * columns.from, y_plane = rows.to * columns.to;
  const int64_t planes = x.size() / x_plane;
  const bool apart = rows.apart() && columns.apart();
  // (In narrow planes, single writes are faster.)
  constexpr int64_t least_columns = sizeof(Floats) == 64 ? 8 : 2 * side_by_side;
  const int64_t high = columns.to >= least_columns ? rows_of_pairs(rows, columns) : 0;
  visit_float(y.dtype, x.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    if (has_channels_last(x)) return sum_windows<S, O>(y, index, rows, columns, x);
    parallel_ranges(planes, grain_of(x_plane), [&](int64_t begin, int64_t end) {
      constexpr bool full_width = std::is_same_v<S, T>, direct = std::is_same_v<T, O>;
      if constexpr (std::is_same_v<S, O> && !std::is_same_v<S, double>)
        if (high)
          return put_halves(y.as<S>(), index.as<int32_t>(), high, rows.from, columns.from, begin,
                            end, x.as<O>());
      if constexpr (std::is_same_v<S, O>)
        if (apart) {
          for (int64_t p = begin; p < end; ++p) {
            O* const plane = x.as<O>() + p * x_plane;
            std::fill_n(plane, x_plane, O(0.0f));
            const int32_t* const at = index.as<int32_t>() + p * y_plane;
            const S* const from = y.as<S>() + p * y_plane;
#pragma GCC unroll 5
            for (int64_t i = 0; i < y_plane; ++i) plane[at[i]] = from[i];
          }
          return;
        }
      // Windows may overlap: sums of 16-bit values are rounded once.
      Buffer<T> values(full_width ? 0 : y_plane), sums(direct ? 0 : x_plane);
      for (int64_t p = begin; p < end; ++p) {
        const int32_t* const at = index.as<int32_t>() + p * y_plane;
        const T* from = values.data();
        T* sum = sums.data();
        if constexpr (full_width)
          from = y.as<S>() + p * y_plane;
        else
          convert_run(y.as<S>() + p * y_plane, y_plane, values.data());
        if constexpr (direct) sum = x.as<O>() + p * x_plane;
        std::fill_n(sum, x_plane, T(0));
        for (int64_t i = 0; i < y_plane; ++i) sum[at[i]] += from[i];
        if constexpr (!direct) convert_run(sum, x_plane, x.as<O>() + p * x_plane);
      }
    });
  });
}

void take_at(Launch&, In x, In index, Out y) {
  if (y.size() == 0) return;
  const int64_t x_plane = x.shape()[-2] * x.shape()[-1], y_plane = y.shape()[-2] * y.shape()[-1];
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    parallel_ranges(y.size() / y_plane, grain_of(y_plane), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * y_plane; i < end * y_plane; ++i) {
        const int64_t from = i / y_plane * x_plane + index.as<int32_t>()[i];
        y.as<O>()[i] = static_cast<O>(static_cast<math_t<S>>(x.as<S>()[from]));
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
