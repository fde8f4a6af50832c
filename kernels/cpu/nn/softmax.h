#pragma once
// Shared by softmax and cross-entropy. Lanes hold parts of one row or, if rows are columns of
// matrices or short, neighbouring rows (worklogs 103 and 199). A row is read once for its maximum,
// and again for the sum of exponentials: nothing overflows, and a row of -inf gives NaN.

#include <algorithm>
#include <limits>

#include "kernels/common/softmax.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/simd/transpose_tiles.h"
#include "kernels/kernels.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
using namespace internal;

template <class S>
S minus_infinity() {
  return S(-std::numeric_limits<float>::infinity());
}

template <class T, class S>
T row_max(const S* x, int64_t n) {
  Vec<T> top(-std::numeric_limits<T>::infinity());
  for_each_vec<T>(n, [&](int64_t i, int64_t count) {
    top = max(read<T>(x + i, count, minus_infinity<S>()), top);
  });
  return hmax(top);
}

// The sum of exp(x - top); also stores each term in `keep`, unless that is null: in whole vectors,
// since reading them back after a partial store would stall.
template <class T, class S>
T row_sum_exp(const S* x, int64_t n, T top, T* keep) {
  return static_cast<T>(sum_over<T>(n, [&](int64_t i, int64_t count) {
    const Vec<T> e = exp(read<T>(x + i, count, minus_infinity<S>()) - Vec<T>(top));
    if (keep) store(keep + i, e);
    return e;
  }));
}

// The logarithm of `sum`, that of exp(x - top). A sum near 1 has lost digits of all terms but the
// maximum's own, 1: they are added again without it.
template <class T, class S>
[[gnu::noinline]] T log_of_sum(T sum, const S* x, int64_t n, T top) {
  if (!(sum < T(1.5))) return std::log(sum);
  return std::log1p(static_cast<T>(sum_over<T>(n, [&](int64_t i, int64_t count) {
    const Vec<T> below = read<T>(x + i, count, minus_infinity<S>()) - Vec<T>(top), zero(T(0));
    return select(below == zero, zero, exp(below));
  })));
}

// log(sum(exp(x - top)))
template <class T, class S>
T row_log_sum(const S* x, int64_t n, T top) {
  return log_of_sum(row_sum_exp<T>(x, n, top, nullptr), x, n, top);
}

// Row r of a view as dense T: the view itself if possible, otherwise a copy in `buffer`.
template <class T, class S>
const T* dense_row(const View& v, int64_t r, int64_t n, T* buffer) {
  const int64_t step = v.strides()[-1];
  Layout rows = v.layout;
  --rows.shape.rank;
  const S* const from = v.as<S>() + rows.at(r);
  if constexpr (std::is_same_v<S, T>)
    if (step == 1) return from;
  for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<T>(from[i * step]);
  return buffer;
}

// out = softmax(factor in + added) over the first `visible` of n scores, or those of them that
// `allowed` has; zeros elsewhere, or everywhere if there are none. `e`: for round_up(n, width)
// numbers, since scores are stored in whole vectors: reading them back after partial stores would
// stall. out may be in.
template <class T, class S, class O>
void masked_softmax_row(const S* in, int64_t n, int64_t visible, T factor, const T* added,
                        const bool* allowed, T* e, O* out) {
  const Vec<T> nothing(minus_infinity<T>());
  Vec<T> tops = nothing;
  for_each_vec<T>(visible, [&](int64_t i, int64_t count) {
    Vec<T> v = read<T>(in + i, count) * Vec<T>(factor);
    if (added) v = v + read<T>(added + i, count);
    if (allowed) v = select(read<T>(allowed + i, count) != Vec<T>(T(0)), v, nothing);
    v = keep(v, count, nothing);
    store(e + i, v);
    tops = max(v, tops);
  });
  const T top = hmax(tops);
  if (top == minus_infinity<T>()) {
    std::fill_n(out, n, O(0.0f));
    return;
  }
  const double sum = sum_over<T>(round_up(visible, Vec<T>::width), [&](int64_t i, int64_t) {
    const Vec<T> v = exp(load<T, T>(e + i) - Vec<T>(top));
    store(e + i, v);
    return v;
  });
  const Vec<T> share(static_cast<T>(1 / sum));
  for_each_vec<T>(n, [&](int64_t i, int64_t count) {
    Vec<T> v(T(0));
    if (i < visible) v = keep(load<T, T>(e + i) * share, visible - i);
    write(out + i, v, count);
  });
}

// Rows of softmax, logsumexp and cross-entropy may be the columns of dense matrices: views of shape
// [..., b, n] and strides [..., 1, b]. Then all other operands have that layout too: lse is a view
// [..., b, 4]. (A matrix [rows, 1] counts as rows, whatever its stride.)
inline bool are_columns(In x) { return x.layout.rank() > 2 && x.strides()[-1] != 1; }

// True for those, and for rows that would leave lanes of their few vectors empty: Columns computes
// both. A last vector that is not full costs as much as several, so then rows may be longer.
template <class T>
bool takes_columns(In x, int64_t longest = 48) {
  constexpr int64_t width = Vec<T>::width;
  const int64_t n = x.shape()[-1];
  const bool is_short = n > 0 && n <= (n % width == 0 ? 2 * width : longest);
  return are_columns(x) || (is_short && x.size() >= n * width);
}

// One vector of rows, a lane for each, whose elements are `stride` apart.
template <class T>
struct Column {
  T* data;
  int64_t n, stride;

  MIXTAPE_ALWAYS_INLINE Vec<T> operator[](int64_t i) const { return load<T, T>(data + i * stride); }
  MIXTAPE_ALWAYS_INLINE void set(int64_t i, Vec<T> x) const { store(data + i * stride, x); }
};

// A block of rows, copied to and from buffers [n, columns], whose columns they are: in the order of
// memory, however far apart the elements of a row are.
template <class T>
class Columns {
 public:
  static constexpr int64_t width = Vec<T>::width;
  int64_t first, count;  // index of the first row; number of rows

  // Calls f(columns, buffer) for all rows of x, with a buffer for `numbers` numbers a row.
  template <class F>
  static void visit(In x, int64_t numbers, F&& f) {
    // Buffers stay in the second-level cache, short ones in the first; lines are read as a whole.
    constexpr int64_t piece = (1 << 17) / sizeof(T), least = 2 * width, most = 8 * width;
    Layout kept = x.layout;
    --kept.shape.rank;
    const int64_t n = x.shape()[-1], rows = kept.shape.size();
    if (rows == 0) return;
    const int64_t b = are_columns(x) ? x.shape()[-2] : rows,
                  fit = piece / std::max<int64_t>(n, 1) / width * width,
                  columns = std::min(round_up(b, width), std::clamp(fit, least, most)),
                  blocks = ceil_div(b, columns);
    parallel_ranges(rows / b * blocks, grain_of(n * columns), [&](int64_t begin, int64_t end) {
      Buffer<T> buffer(numbers * columns);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i % blocks * columns;
        f(Columns(i / blocks * b + at, std::min(columns, b - at), columns, are_columns(x) ? b : 0),
          buffer.data());
      }
    });
  }
  // Copies these rows of v, of any number of elements, to a buffer.
  void gather(In v, T* to) const {
    const int64_t n = v.shape()[-1], step = b_ > 0 ? b_ : n;
    visit_float(v.dtype, [&]<class S>() {
      const S* const from = start<S>(v);
      const auto get = [&](int64_t r, int64_t c, int64_t some)
                           MIXTAPE_INLINE_LAMBDA { return read<T>(from + r * step + c, some); };
      const auto put = [&](int64_t r, int64_t c, Vec<T> x, int64_t)
                           MIXTAPE_INLINE_LAMBDA { store(to + r * columns_ + c, x); };
      if (b_ == 0) return transpose_tiles<T>(count, n, get, put);
      for (int64_t i = 0; i < n; ++i)
        for_each_vec<T>(count, [&](int64_t c, int64_t some) { put(i, c, get(i, c, some), some); });
    });
  }
  // Copies a buffer to these rows of v.
  void scatter(const T* from, Out v) const {
    const int64_t n = v.shape()[-1], step = b_ > 0 ? b_ : n;
    visit_float(v.dtype, [&]<class S>() {
      S* const to = start<S>(v);
      const auto get = [&](int64_t r, int64_t c, int64_t)
                           MIXTAPE_INLINE_LAMBDA { return load<T, T>(from + r * columns_ + c); };
      // (AVX2's masked stores take four times as long as two that overlap.)
      const auto put = [&](int64_t r, int64_t c, Vec<T> x, int64_t some) MIXTAPE_INLINE_LAMBDA {
        S* const y = to + r * step + c;
        if (some == width) return store(y, x);
        S part[width];
        store(part, x);
        copy_short<sizeof part>(part, some, y);
      };
      if (b_ == 0) return transpose_tiles<T>(n, count, get, put);
      for (int64_t i = 0; i < n; ++i)
        for_each_vec<T>(count, [&](int64_t c, int64_t some) { put(i, c, get(i, c, some), some); });
    });
  }
  // The same for a dense v with one number for each row.
  void scatter_each(const T* from, Out v) const {
    visit_float(v.dtype, [&]<class S>() { convert_run(from, count, v.as<S>() + first); });
  }
  // Calls f(j, some) for each vector of these rows: it starts at row j of them, and has so many.
  template <class F>
  MIXTAPE_ALWAYS_INLINE void each(F&& f) const {
    for (int64_t j = 0; j < count; j += width) f(j, std::min(width, count - j));
  }
  Column<T> column(T* buffer, int64_t j, int64_t n) const { return {buffer + j, n, columns_}; }
  int64_t size(int64_t n) const { return n * columns_; }  // of a buffer

 private:
  Columns(int64_t first, int64_t count, int64_t columns, int64_t b)
      : first(first), count(count), columns_(columns), b_(b) {}

  template <class S>
  S* start(const View& v) const {
    const int64_t matrix = b_ > 0 ? first / b_ * b_ : first;
    return v.as<S>() + matrix * v.shape()[-1] + (first - matrix);
  }

  const int64_t columns_, b_;  // of a buffer; columns of a matrix, or 0 for dense rows
};

// The maximum of each column.
template <class T>
Vec<T> column_max(Column<T> x) {
  Vec<T> top(-std::numeric_limits<T>::infinity());
  for (int64_t i = 0; i < x.n; ++i) top = max(x[i], top);
  return top;
}

// Replaces x by exp(x - top), and returns the sum.
template <class T>
Vec<T> column_sum_exp(Column<T> x, Vec<T> top) {
  Vec<T> sum(T(0));
  for (int64_t i = 0; i < x.n; ++i) {
    const Vec<T> e = exp(x[i] - top);
    x.set(i, e);
    sum += e;
  }
  return sum;
}

// log(sum(exp(x - top))), as row_log_sum(): `rest` is the sum without the maximum's own terms.
template <class T>
Vec<T> column_log_sum(Column<T> x, Vec<T> top) {
  const Vec<T> zero(T(0));
  Vec<T> sum = zero, rest = zero;
  for (int64_t i = 0; i < x.n; ++i) {
    const Vec<T> below = x[i] - top, e = exp(below);
    sum += e;
    rest += select(below == zero, zero, e);
  }
  const Mask<T> is_near = sum < Vec<T>(T(1.5));
  return any(is_near) ? select(is_near, log1p(rest), log(sum)) : log(sum);
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
