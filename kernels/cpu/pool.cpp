// Max pooling, and reading and writing planes where the maxima stood. The first maximum of a window
// in row-major order wins, and NaN beats everything.

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

constexpr int64_t grain(int64_t plane) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(plane, 1));
}

// One line of windows after another: the largest of each column, in vectors, with the row where it
// first stands; then the largest of the window's columns.
template <class S>
void pool_plane(const S* x, const Sampling& rows, const Sampling& columns, S* y, int32_t* index) {
  using T = math_t<S>;
  using Rows = typename detail::Vector<T>::integer;
  using Row = std::decay_t<decltype(Rows{}[0])>;
  Buffer<T> top(columns.from);
  Buffer<Row> place(columns.from);
  Buffer<int64_t> edges(2 * columns.to);
  for (int64_t q = 0; q < columns.to; ++q) {
    edges.data()[2 * q] = columns.begin(q);
    edges.data()[2 * q + 1] = columns.end(q);
  }
  for (int64_t r = 0; r < rows.to; ++r) {
    const int64_t begin = rows.begin(r), end = rows.end(r);
    for_lanes<T>(columns.from, [&](int64_t c, int64_t count) {
      auto best = read<T>(x + begin * columns.from + c, count).v;
      Rows at = Rows{} + static_cast<Row>(begin);
      for (int64_t row = begin + 1; row < end; ++row) {
        const auto v = read<T>(x + row * columns.from + c, count).v;
        const Rows wins = (v > best) | ((v != v) & (best == best));
        best = wins ? v : best;
        at = wins ? Rows{} + static_cast<Row>(row) : at;
      }
      write(top.data() + c, Lanes<T>(best), count);
      std::memcpy(place.data() + c, &at, static_cast<size_t>(count) * sizeof(Row));
    });
    for (int64_t q = 0; q < columns.to; ++q) {
      int64_t at = edges.data()[2 * q];
      T best = top.data()[at];
      for (int64_t c = at + 1; c < edges.data()[2 * q + 1]; ++c) {
        const T v = top.data()[c];
        const bool equal = v == best || (v != v && best != best);
        if (equal ? place.data()[c] >= place.data()[at] : !(v > best || v != v)) continue;
        best = v;
        at = c;
      }
      *y++ = S(best);
      *index++ = static_cast<int32_t>(place.data()[at] * columns.from + at);
    }
  }
}

using Floats = Lanes<float>::Vector;
using Indices = detail::Vector<float>::integer;

// Sixteen 2 x 2 windows side by side, the first at x; `position` is that of x in its plane. Reads
// `count` elements of both rows.
template <class S>
[[gnu::always_inline]] inline void pool_pairs(const S* x, int64_t columns, int64_t position,
                                              int64_t count, Floats& best, Indices& at) {
  const auto row = [&](const S* p, Floats& even, Floats& odd) {
    const Floats low = read<float>(p, std::min<int64_t>(count, 16)).v;
    const Floats high = count > 16 ? read<float>(p + 16, count - 16).v : Floats{};
    even = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28,
                                   30);
    odd = __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29,
                                  31);
  };
  Floats next, below, last;
  row(x, best, next);
  row(x + columns, below, last);
  // The better one of each row, then of both.
  const auto winner = [](Floats& one, const Floats& other) {
    const Indices wins = ~(other <= one) & (one == one);
    one = wins ? other : one;
    return wins;
  };
  const Indices right = winner(best, next), right_below = winner(below, last),
                lower = winner(best, below);
  at = Indices{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30} +
       static_cast<int32_t>(position);
  at += lower ? static_cast<int32_t>(columns) - right_below : -right;  // (true is -1)
}

// Windows of 2 x 2 with stride 2 over planes [begin, end). Where memory allows, a row's last vector
// runs over into what follows, which is written after it.
template <class S>
void pool_halves(const S* x, int64_t rows, int64_t columns, int64_t begin, int64_t end,
                 int64_t planes, S* y, int32_t* index) {
  const int64_t y_rows = rows / 2, y_columns = columns / 2;
  const int64_t readable = planes * rows * columns, writable = end * y_rows * y_columns;
  for (int64_t p = begin; p < end; ++p)
    for (int64_t r = 0; r < y_rows; ++r)
      for (int64_t q = 0; q < y_columns; q += 16) {
        const int64_t position = 2 * r * columns + 2 * q, from = p * rows * columns + position;
        const int64_t to = (p * y_rows + r) * y_columns + q;
        Floats best;
        Indices at;
        if (from + columns + 32 <= readable && to + 16 <= writable) {
          pool_pairs(x + from, columns, position, 32, best, at);
          store(y + to, Lanes<float>(best));
          std::memcpy(index + to, &at, sizeof at);
        } else {
          const int64_t count = std::min<int64_t>(16, y_columns - q);
          pool_pairs(x + from, columns, position, 2 * count, best, at);
          store_first(y + to, Lanes<float>(best), count);
          detail::write_first<int32_t, 16>(index + to, reinterpret_cast<int32_t*>(&at), count);
        }
      }
}

}  // namespace

void max_pool2d(Launch&, In x, const Sampling& rows, const Sampling& columns, Out y, Out index) {
  if (y.size() == 0) return;
  const int64_t x_plane = rows.from * columns.from, y_plane = rows.to * columns.to;
  const int64_t planes = x.size() / x_plane;
  const auto halves = [](const Sampling& s) {
    return s.kind == Sampling::Kind::Windows && s.size == 2 && s.stride == 2 && s.padding == 0 &&
           s.to == s.from / 2;
  };
  visit_float(x.dtype, [&]<class S>() {
    parallel_ranges(planes, grain(x_plane), [&](int64_t begin, int64_t end) {
      if constexpr (!std::is_same_v<S, double>)
        if (halves(rows) && halves(columns))
          return pool_halves(x.as<S>(), rows.from, columns.from, begin, end, planes, y.as<S>(),
                             index.as<int32_t>());
      for (int64_t p = begin; p < end; ++p)
        pool_plane(x.as<S>() + p * x_plane, rows, columns, y.as<S>() + p * y_plane,
                   index.as<int32_t>() + p * y_plane);
    });
  });
}

void put_at(Launch&, bool apart, In y, In index, Out x) {
  if (x.size() == 0) return;
  const int64_t x_plane = x.shape()[-2] * x.shape()[-1], y_plane = y.shape()[-2] * y.shape()[-1];
  visit_float(y.dtype, x.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    parallel_ranges(x.size() / x_plane, grain(x_plane), [&](int64_t begin, int64_t end) {
      constexpr bool wide = std::is_same_v<S, T>, direct = std::is_same_v<T, O>;
      if constexpr (std::is_same_v<S, O>)
        if (apart) {
          for (int64_t p = begin; p < end; ++p) {
            O* const plane = x.as<O>() + p * x_plane;
            std::fill_n(plane, x_plane, O(0.0f));
            for (int64_t i = p * y_plane; i < (p + 1) * y_plane; ++i)
              plane[index.as<int32_t>()[i]] = y.as<S>()[i];
          }
          return;
        }
      // Windows may overlap: narrow sums are rounded once.
      Buffer<T> values(wide ? 0 : y_plane), room(direct ? 0 : x_plane);
      for (int64_t p = begin; p < end; ++p) {
        const int32_t* const at = index.as<int32_t>() + p * y_plane;
        const T* from = values.data();
        T* sum = room.data();
        if constexpr (wide)
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
    parallel_ranges(y.size() / y_plane, grain(y_plane), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * y_plane; i < end * y_plane; ++i) {
        const int64_t from = i / y_plane * x_plane + index.as<int32_t>()[i];
        y.as<O>()[i] = static_cast<O>(static_cast<math_t<S>>(x.as<S>()[from]));
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu
