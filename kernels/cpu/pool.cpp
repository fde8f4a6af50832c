// Max pooling, and reading and writing planes where the maxima stood. The first maximum of a window
// in row-major order wins, and NaN beats everything.

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"
#include "kernels/pieces.h"

namespace mixtape::kernels::cpu {
namespace {

// The best elements so far of some windows, a lane for each, and their places.
template <class T>
struct Best {
  using Vector = typename Lanes<T>::Vector;
  using Places = typename detail::Vector<T>::integer;
  using Place = std::decay_t<decltype(Places{}[0])>;
  Vector value;
  Places place;

  // Takes what is larger, or the first NaN, of elements that stand behind.
  [[gnu::always_inline]] void meet(const Vector& other, const Places& at) {
    take(~(other <= value) & (value == value), other, at);
  }
  // The same of elements that may stand before.
  [[gnu::always_inline]] void meet_any(const Vector& other, const Places& at) {
    const Places larger = ~(other <= value) & (value == value),
                 equal = (other == value) | ((other != other) & (value != value));
    take(larger | (equal & (at < place)), other, at);
  }

 private:
  [[gnu::always_inline]] void take(const Places& wins, const Vector& other, const Places& at) {
    value = wins ? other : value;
    place = wins ? at : place;
  }
};

// Pools a line of windows at a time: the best of each column, in vectors; then, from each column
// on, of as many as a window has, in vectors too if those are few. Wide windows, and those that the
// edge cuts off, go from column to column.
template <class S>
class PlanePool {
 public:
  PlanePool(const Sampling& rows, const Sampling& columns)
      : rows_(rows),
        columns_(columns),
        room_(columns.from + few + 2 * width),
        values_(room_),
        slid_(room_),
        places_(2 * room_),
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
      const Place* const places = places_.data() + room_;
      for (int64_t q = columns_.to; q > 0; --q, ++y, ++index, edge += 2) {
        const int64_t begin = edge[0], end = edge[1];
        if (longest_ <= few && end - begin == longest_) {
          *y = values[begin];
          *index = static_cast<int32_t>(places[begin]);
        } else {
          pool_window(begin, end, *y, *index);
        }
      }
    }
  }

 private:
  using T = math_t<S>;
  using Place = typename Best<T>::Place;
  using Places = typename Best<T>::Places;
  static constexpr int64_t width = Lanes<T>::width, few = 8;

  void pool_columns(const S* x, int64_t r) const {
    const int64_t begin = rows_.begin(r), end = rows_.end(r);
    Places lane;
    for (int i = 0; i < width; ++i) lane[i] = i;
    for_lanes<T>(columns_.from, [&](int64_t c, int64_t count) {
      int64_t at = begin * columns_.from + c;
      Best<T> best{read<T>(x + at, count).v, lane + static_cast<Place>(at)};
      for (int64_t row = begin + 1; row < end; ++row) {
        at += columns_.from;
        best.meet(read<T>(x + at, count).v, lane + static_cast<Place>(at));
      }
      std::memcpy(values_.data() + c, &best.value, sizeof best.value);
      put(best.place, c);
    });
  }
  void slide() const {
    for (int64_t c = 0; c < columns_.from; c += width) {
      Best<T> best = at(c);
      for (int64_t j = 1; j < longest_; ++j) {
        const Best<T> next = at(c + j);
        best.meet_any(next.value, next.place);
      }
      store(slid_.data() + c, Lanes<T>(best.value));
      put(best.place, room_ + c);
    }
  }
  void pool_window(int64_t begin, int64_t end, S& y, int32_t& index) const {
    T best = values_.data()[begin];
    Place place = places_.data()[begin];
    for (int64_t c = begin + 1; c < end; ++c) {
      const T v = values_.data()[c];
      const Place at = places_.data()[c];
      const bool equal = v == best || (v != v && best != best);
      if (equal ? at >= place : !(v > best || v != v)) continue;
      best = v;
      place = at;
    }
    y = S(best);
    index = static_cast<int32_t>(place);
  }

  [[gnu::always_inline]] Best<T> at(int64_t i) const {
    Best<T> b;
    std::memcpy(&b.value, values_.data() + i, sizeof b.value);
    std::memcpy(&b.place, places_.data() + i, sizeof b.place);
    return b;
  }
  [[gnu::always_inline]] void put(const Places& places, int64_t i) const {
    std::memcpy(places_.data() + i, &places, sizeof places);
  }

  const Sampling rows_, columns_;
  const int64_t room_;
  int64_t longest_ = 0;  // window, in columns
  // Of columns, and of as many as a window has; places of both.
  const Buffer<T> values_;
  const Buffer<S> slid_;
  const Buffer<Place> places_;
  const Buffer<int64_t> edges_;  // where the columns of each window begin and end
};

using Floats = Lanes<float>::Vector;
using Indices = detail::Vector<float>::integer;

constexpr int side_by_side = Lanes<float>::width;

// The rows, two or one, of windows that abut and have two columns; 0 of any others.
int64_t rows_of_pairs(const Sampling& rows, const Sampling& columns) {
  if (!columns.abut(2)) return 0;
  return rows.abut(2) ? 2 : rows.abut(1) ? 1 : 0;
}

// So many windows of two columns and two rows, which are `below` elements apart and may be one, the
// first at x; `position` is that of x in its plane. Reads `count` elements of both rows.
template <class S, int... i>
[[gnu::always_inline]] inline void pool_pairs(const S* x, int64_t below, int64_t position,
                                              int64_t count, Floats& best, Indices& at,
                                              std::integer_sequence<int, i...>) {
  constexpr int64_t n = side_by_side;
  const auto row = [&](const S* p, Floats& even, Floats& odd) {
    const Floats low = read<float>(p, std::min(count, n)).v;
    const Floats high = count > n ? read<float>(p + n, count - n).v : Floats{};
    even = __builtin_shufflevector(low, high, (2 * i)...);
    odd = __builtin_shufflevector(low, high, (2 * i + 1)...);
  };
  Floats next, low, last;
  row(x, best, next);
  row(x + below, low, last);
  // The better one of each row, then of both.
  const auto winner = [](Floats& one, const Floats& other) {
    const Indices wins = ~(other <= one) & (one == one);
    one = wins ? other : one;
    return wins;
  };
  const Indices right = winner(best, next), right_below = winner(low, last),
                lower = winner(best, low);
  at = Indices{(2 * i)...} + static_cast<int32_t>(position);
  at += lower ? static_cast<int32_t>(below) - right_below : -right;  // (true is -1)
}

// Windows of two columns and `high` rows, two or one, side by side over a plane. Unless it is the
// last, a row's last vector runs over into what follows, which is written after it.
template <bool last, class S>
[[gnu::noinline]] void pool_plane(const S* x, int64_t high, int64_t rows, int64_t columns, S* y,
                                  int32_t* index) {
  const int64_t across = columns / 2, below = (high - 1) * columns;
  for (int64_t r = 0; r + high <= rows; r += high, y += across, index += across)
    for (int64_t q = 0; q < across; q += side_by_side) {
      const int64_t position = r * columns + 2 * q;
      const int64_t count = std::min<int64_t>(side_by_side, across - q);
      Floats best;
      Indices at;
      pool_pairs(x + position, below, position, last ? 2 * count : 2 * side_by_side, best, at,
                 std::make_integer_sequence<int, side_by_side>());
      if constexpr (last) {
        store_first(y + q, Lanes<float>(best), count);
        detail::write_first<int32_t, side_by_side>(index + q, reinterpret_cast<int32_t*>(&at),
                                                   count);
      } else {
        store(y + q, Lanes<float>(best));
        std::memcpy(index + q, &at, sizeof at);
      }
    }
}

// The same of planes [begin, end) of so many.
template <class S>
void pool_halves(const S* x, int64_t high, int64_t rows, int64_t columns, int64_t begin,
                 int64_t end, int64_t planes, S* y, int32_t* index) {
  const int64_t x_plane = rows * columns, y_plane = (rows / high) * (columns / 2);
  // Planes behind which enough can be read, and may be written.
  const int64_t inner =
      std::min(planes - pieces(2 * side_by_side, x_plane), end - pieces(side_by_side, y_plane));
  for (int64_t p = begin; p < end; ++p)
    (p < inner ? pool_plane<false, S> : pool_plane<true, S>)(x + p * x_plane, high, rows, columns,
                                                             y + p * y_plane, index + p * y_plane);
}

// The lanes of a and b in turn.
template <int... i>
[[gnu::always_inline]] inline void interleave(Floats a, Floats b, float* to,
                                              std::integer_sequence<int, i...>) {
  constexpr int n = side_by_side;
  const Floats low = __builtin_shufflevector(a, b, (i / 2 + i % 2 * n)...),
               high = __builtin_shufflevector(a, b, (n / 2 + i / 2 + i % 2 * n)...);
  std::memcpy(to, &low, sizeof low);
  std::memcpy(to + n, &high, sizeof high);
}
// A row of a plane, `position` elements behind its first: of y, what belongs to windows of two
// columns and has its place here; zero elsewhere. Unless it is the last, the last vector reads and
// writes on into what follows, which is written after it.
template <bool last, class S>
[[gnu::noinline]] void put_pairs(const S* y, const int32_t* index, int64_t across, int64_t position,
                                 S* x) {
  constexpr int n = side_by_side;
  Indices even;
  for (int i = 0; i < n; ++i) even[i] = 2 * i;
  even += static_cast<int32_t>(position);
  for (int64_t q = 0; q < across; q += n, even += 2 * n) {
    const int64_t count = last ? std::min<int64_t>(n, across - q) : n;
    Indices at{};
    std::memcpy(&at, index + q, static_cast<size_t>(count) * sizeof(int32_t));
    const Indices left = at == even, right = at == even + 1;
    S pairs[2 * n];
    if constexpr (sizeof(S) == sizeof(float)) {
      const Floats v = read<float>(y + q, count).v, l = left ? v : Floats{},
                   r = right ? v : Floats{};
      interleave(l, r, pairs, std::make_integer_sequence<int, n>());
    } else {
      using Halves [[gnu::vector_size(n * sizeof(uint16_t))]] = uint16_t;
      Halves halves{};
      std::memcpy(&halves, y + q, static_cast<size_t>(count) * sizeof(S));
      const auto v = __builtin_convertvector(halves, Indices);
      const Indices both = (v & left) | (v << 16 & right);
      std::memcpy(static_cast<void*>(pairs), &both, sizeof both);
    }
    std::memcpy(static_cast<void*>(x + 2 * q), pairs, static_cast<size_t>(2 * count) * sizeof(S));
  }
}
// The same of planes [begin, end) of so many, of windows of `high` rows, two or one.
template <class S>
void put_halves(const S* y, const int32_t* index, int64_t high, int64_t rows, int64_t columns,
                int64_t begin, int64_t end, int64_t planes, S* x) {
  const int64_t across = columns / 2, down = rows / high;
  const S* const y_end = y + planes * down * across;
  const S* const x_end = x + end * rows * columns;
  for (int64_t p = begin; p < end; ++p)
    for (int64_t r = 0; r < rows; ++r) {
      S* const row = x + (p * rows + r) * columns;
      const int64_t from = (p * down + r / high) * across;
      int64_t done = 0;
      if (r < down * high) {
        const bool last =
            x_end - row < columns + 2 * side_by_side || y_end - (y + from) < across + side_by_side;
        (last ? put_pairs<true, S> : put_pairs<false, S>)(y + from, index + from, across,
                                                          r * columns, row);
        done = 2 * across;
      }
      std::fill(row + done, row + columns, S(0.0f));
    }
}

}  // namespace

void max_pool2d(Launch&, In x, const Sampling& rows, const Sampling& columns, Out y, Out index) {
  if (y.size() == 0) return;
  const int64_t x_plane = rows.from * columns.from, y_plane = rows.to * columns.to;
  const int64_t planes = x.size() / x_plane;
  const int64_t high = rows_of_pairs(rows, columns);
  visit_float(x.dtype, [&]<class S>() {
    parallel_ranges(planes, grain_of(x_plane), [&](int64_t begin, int64_t end) {
      if constexpr (!std::is_same_v<S, double>)
        if (high)
          return pool_halves(x.as<S>(), high, rows.from, columns.from, begin, end, planes,
                             y.as<S>(), index.as<int32_t>());
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
  // (What rows cost beside their vectors is more than places one by one do in narrow planes.)
  const int64_t high = columns.to >= 2 * side_by_side ? rows_of_pairs(rows, columns) : 0;
  visit_float(y.dtype, x.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    parallel_ranges(planes, grain_of(x_plane), [&](int64_t begin, int64_t end) {
      constexpr bool wide = std::is_same_v<S, T>, direct = std::is_same_v<T, O>;
      if constexpr (std::is_same_v<S, O> && !std::is_same_v<S, double>)
        if (high)
          return put_halves(y.as<S>(), index.as<int32_t>(), high, rows.from, columns.from, begin,
                            end, planes, x.as<O>());
      if constexpr (std::is_same_v<S, O>)
        if (apart) {
          for (int64_t p = begin; p < end; ++p) {
            O* const plane = x.as<O>() + p * x_plane;
            std::fill_n(plane, x_plane, O(0.0f));
            const int32_t* const at = index.as<int32_t>() + p * y_plane;
            const S* const from = y.as<S>() + p * y_plane;
#pragma GCC unroll 8
            for (int64_t i = 0; i < y_plane; ++i) plane[at[i]] = from[i];
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
    parallel_ranges(y.size() / y_plane, grain_of(y_plane), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * y_plane; i < end * y_plane; ++i) {
        const int64_t from = i / y_plane * x_plane + index.as<int32_t>()[i];
        y.as<O>()[i] = static_cast<O>(static_cast<math_t<S>>(x.as<S>()[from]));
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu
