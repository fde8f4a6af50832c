// Max pooling and its gradient. The first maximum of a window in row-major order wins, and NaN
// beats everything.

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

constexpr int64_t grain(int64_t plane) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(plane, 1));
}

template <class S>
void pool_plane(const S* x, int64_t rows, int64_t columns, const Window& window, int64_t y_rows,
                int64_t y_columns, S* y, int32_t* index) {
  for (int64_t r = 0; r < y_rows; ++r)
    for (int64_t q = 0; q < y_columns; ++q) {
      math_t<S> best(0);
      int64_t at = -1;
      for (int64_t i = 0; i < window.size[0]; ++i) {
        const int64_t row = r * window.stride[0] - window.padding[0] + i * window.dilation[0];
        if (row < 0 || row >= rows) continue;
        for (int64_t j = 0; j < window.size[1]; ++j) {
          const int64_t column = q * window.stride[1] - window.padding[1] + j * window.dilation[1];
          if (column < 0 || column >= columns) continue;
          const math_t<S> v = x[row * columns + column];
          if (at >= 0 && !(v > best || (v != v && best == best))) continue;
          best = v;
          at = row * columns + column;
        }
      }
      *y++ = S(best);
      *index++ = static_cast<int32_t>(at);
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
  at = Indices{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30} +
       static_cast<int32_t>(position);
  const Indices first = at;
  const auto take = [&](Floats v, int32_t offset) {
    const Indices wins = (v > best) | ((v != v) & (best == best));
    best = wins ? v : best;
    at = wins ? first + offset : at;
  };
  take(next, 1);
  take(below, static_cast<int32_t>(columns));
  take(last, static_cast<int32_t>(columns + 1));
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
          std::memcpy(index + to, &at, static_cast<size_t>(count) * sizeof(int32_t));
        }
      }
}

}  // namespace

void max_pool2d(Launch&, In x, const Window& window, Out y, Out index) {
  if (y.size() == 0) return;
  const int64_t rows = x.shape()[-2], columns = x.shape()[-1], y_rows = y.shape()[-2],
                y_columns = y.shape()[-1];
  const int64_t planes = x.size() / (rows * columns), y_plane = y_rows * y_columns;
  bool halves = true;
  for (int d = 0; d < 2; ++d)
    halves = halves && window.size[d] == 2 && window.stride[d] == 2 && window.padding[d] == 0 &&
             window.dilation[d] == 1;
  visit_float(x.dtype, [&]<class S>() {
    parallel_ranges(planes, grain(rows * columns), [&](int64_t begin, int64_t end) {
      if constexpr (!std::is_same_v<S, double>)
        if (halves)
          return pool_halves(x.as<S>(), rows, columns, begin, end, planes, y.as<S>(),
                             index.as<int32_t>());
      for (int64_t p = begin; p < end; ++p)
        pool_plane(x.as<S>() + p * rows * columns, rows, columns, window, y_rows, y_columns,
                   y.as<S>() + p * y_plane, index.as<int32_t>() + p * y_plane);
    });
  });
}

void max_pool2d_grad(Launch&, In dy, In index, Out dx) {
  if (dx.size() == 0) return;
  const int64_t x_plane = dx.shape()[-2] * dx.shape()[-1],
                y_plane = dy.shape()[-2] * dy.shape()[-1];
  visit_float(dy.dtype, dx.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    parallel_ranges(dx.size() / x_plane, grain(x_plane), [&](int64_t begin, int64_t end) {
      constexpr bool direct = std::is_same_v<T, O>;
      Buffer<T> room(direct ? 0 : x_plane);  // windows may overlap: narrow sums are rounded once
      for (int64_t p = begin; p < end; ++p) {
        const S* const from = dy.as<S>() + p * y_plane;
        const int32_t* const at = index.as<int32_t>() + p * y_plane;
        T* sum = room.data();
        if constexpr (direct) sum = dx.as<O>() + p * x_plane;
        std::fill_n(sum, x_plane, T(0));
        for (int64_t i = 0; i < y_plane; ++i) sum[at[i]] += static_cast<T>(from[i]);
        if constexpr (!direct) convert_run(sum, x_plane, dx.as<O>() + p * x_plane);
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu
