// Reductions in a fixed order. Each result consists of chunks of fixed size; a chunk is reduced on
// lanes in f32 (f64, i64), again in f64 if it leaves the range of f32, and chunks are combined in
// order, in f64 (i64). If a kept dimension is dense, lanes hold neighbouring results; otherwise
// parts of one result, unless it has few elements: then a copy makes results neighbours (worklog
// 103).

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/common/elementwise.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

constexpr int64_t chunk_elements = 4096;     // of one result, if lanes hold parts of it
constexpr int64_t chunk_rows = 256;          // of one result, if lanes hold neighbouring results
constexpr int64_t piece_elements = 1 << 16;  // copied at once, to stay in the cache

// Type to combine chunks in.
template <class T>
using total_t = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

// A reduction joins map() of each element. Its identity is unchanged by map() and neutral in
// join().
struct Elements {
  template <class T>
  MIXTAPE_ALWAYS_INLINE static T map(T x) {
    return x;
  }
};

// The type of sums and products: integers wrap around.
template <class T>
using wrapping_t = std::conditional_t<std::is_integral_v<T>, Whole, T>;

struct Sum : Elements {
  template <class S>
  static constexpr S identity = S(0.0f);
  template <class T>
  MIXTAPE_ALWAYS_INLINE static T join(T a, T b) {
    return T(wrapping_t<T>(a) + wrapping_t<T>(b));
  }
  template <class T>
  MIXTAPE_ALWAYS_INLINE static T over_lanes(Vec<T> x) {
    return hsum(x);
  }
  // True if no term or sum of a chunk can have left the range of f32.
  MIXTAPE_ALWAYS_INLINE static bool in_range(float sum) { return sum - sum == 0; }
};

struct SumAbs : Sum {
  template <class T>
  MIXTAPE_ALWAYS_INLINE static Vec<T> map(Vec<T> x) {
    return abs(x);
  }
};
struct SumSquares : Sum {
  template <class T>
  MIXTAPE_ALWAYS_INLINE static Vec<T> map(Vec<T> x) {
    return x * x;
  }
  MIXTAPE_ALWAYS_INLINE static bool in_range(float sum) { return squares_in_range(sum); }
};

struct Prod : Elements {  // in f64: a product that left the range of f32 may come back
  static constexpr bool wide = true;
  template <class S>
  static constexpr S identity = S(1.0f);
  template <class T>
  MIXTAPE_ALWAYS_INLINE static T join(T a, T b) {
    return T(wrapping_t<T>(a) * wrapping_t<T>(b));
  }
  template <class T>
  MIXTAPE_ALWAYS_INLINE static T over_lanes(Vec<T> x) {
    return detail::fold(x, [](Vec<T> a, Vec<T> b) { return a * b; });
  }
};

template <class S>
constexpr S lowest() {
  if constexpr (is_float(dtype_of<S>()))
    return S(-std::numeric_limits<float>::infinity());
  else
    return std::numeric_limits<S>::min();
}
template <class S>
constexpr S highest() {
  if constexpr (is_float(dtype_of<S>()))
    return S(std::numeric_limits<float>::infinity());
  else
    return std::numeric_limits<S>::max();
}

struct Max : Elements {
  template <class S>
  static constexpr S identity = lowest<S>();
  template <class T>
  MIXTAPE_ALWAYS_INLINE static T join(T a, T b) {
    return Maximum::f(a, b);
  }
  template <class T>
  MIXTAPE_ALWAYS_INLINE static T over_lanes(Vec<T> x) {
    return hmax(x);
  }
};
struct Min : Elements {
  template <class S>
  static constexpr S identity = highest<S>();
  template <class T>
  MIXTAPE_ALWAYS_INLINE static T join(T a, T b) {
    return Minimum::f(a, b);
  }
  template <class T>
  MIXTAPE_ALWAYS_INLINE static T over_lanes(Vec<T> x) {
    return hmin(x);
  }
};

struct MaxAbs : Max {
  template <class S>
  static constexpr S identity = S(0.0f);
  template <class T>
  MIXTAPE_ALWAYS_INLINE static Vec<T> map(Vec<T> x) {
    return abs(x);
  }
};

// Type to accumulate one chunk in.
template <class Op, class T>
using chunk_t = std::conditional_t<std::is_integral_v<T>, int64_t,
                                   std::conditional_t<requires { Op::wide; }, double, math_t<T>>>;
// True if a chunk in f32 may leave its range (f16 is too narrow for that).
template <class Op, class S, class T>
constexpr bool may_leave =
    std::is_same_v<T, float> && !std::is_same_v<S, Half> && requires { Op::in_range(0.0f); };

template <class Op>
constexpr bool of_floats =
    std::is_same_v<Op, SumAbs> || std::is_same_v<Op, SumSquares> || std::is_same_v<Op, MaxAbs>;

// Splits x into kept and reduced dimensions, each collapsed, in the order of memory.
struct ReducePlan {
  Layout kept_x, kept_y, reduced;
  int64_t results = 1, count = 1;  // number of results, and of elements of each

  ReducePlan(In x, In y) {
    const MemoryOrder order(x.layout);
    const Layout from = order.of(x.layout), to = order.of(y.layout);
    for (int d = 0; d < from.rank(); ++d) {
      const int64_t size = from.shape[d];
      if (size == 1) continue;
      const auto append = [](Layout& l, int64_t n, int64_t stride) {
        l.shape.push_back(n);
        l.strides.push_back(stride);
      };
      if (to.shape[d] == 1) {
        append(reduced, size, from.strides[d]);
        count *= size;
      } else {
        append(kept_x, size, from.strides[d]);
        append(kept_y, size, to.strides[d]);
        results *= size;
      }
    }
    Layout* const kept[] = {&kept_x, &kept_y};
    Layout* const gone[] = {&reduced};
    collapse(kept);
    collapse(gone);
  }
};

// Reduces one chunk of one result: `count` elements of `reduced` from `begin` on.
template <class Op, class S, class T = chunk_t<Op, S>>
total_t<S> reduce_chunk(const S* x, const Layout& reduced, int64_t begin, int64_t count) {
  using L = Vec<T>;
  constexpr int width = L::width;
  if (count == 0) return total_t<S>(Op::template identity<S>);
  // At least 128 bytes of sums: with fewer, each has more terms, whose rounding errors add up.
  constexpr int sums = std::max(4, 128 / int(sizeof(L)));
  L acc[sums];
  for (L& a : acc) a = Op::template identity<T>;
  const auto add = [&](const S* p, int64_t n) {
    int64_t i = 0;
    for (; i + sums * width <= n; i += sums * width)
      for (int k = 0; k < sums; ++k)
        acc[k] = Op::join(acc[k], Op::map(load<S, T>(p + i + k * width)));
    for (; i + width <= n; i += width) acc[0] = Op::join(acc[0], Op::map(load<S, T>(p + i)));
    if (i < n)
      acc[1] = Op::join(acc[1], Op::map(load_first<S, T>(p + i, n - i, Op::template identity<S>)));
  };
  if (reduced.rank() == 1 && reduced.strides[0] == 1) {
    add(x + begin, count);
  } else if (Walk walk(const_cast<S*>(x), sizeof(S), reduced, begin);
             reduced.strides[-1] == 1 && reduced.shape[-1] >= 64) {
    for (int64_t left = count; left > 0;) {
      const Walk::Run run = walk.next(left);
      add(reinterpret_cast<const S*>(run.data), run.count);
      left -= run.count;
    }
  } else {
    constexpr int64_t piece = 512;
    alignas(64) S buffer[piece];
    for (int64_t left = count; left > 0; left -= piece) {
      const int64_t n = std::min(left, piece);
      walk.gather(buffer, n);
      add(buffer, n);
    }
  }
  for (int step = 1; step < sums; step *= 2)
    for (int k = 0; k < sums; k += 2 * step) acc[k] = Op::join(acc[k], acc[k + step]);
  const T all = Op::over_lanes(acc[0]);
  if constexpr (may_leave<Op, S, T>)
    if (!Op::in_range(all)) [[unlikely]]
      return reduce_chunk<Op, S, double>(x, reduced, begin, count);
  return total_t<S>(all);
}

template <class Op, class S>
void reduce_wide_columns(const S* x, const Layout& reduced, int64_t begin, int64_t rows,
                         int64_t columns, double* out);

// Reduces one chunk of rows [begin, begin + rows) of `columns` neighbouring results.
template <class Op, class S, int unroll, class T = chunk_t<Op, S>>
MIXTAPE_ALWAYS_INLINE void reduce_columns(const S* x, const Layout& reduced, int64_t begin,
                                          int64_t rows, int64_t columns, total_t<S>* out) {
  using L = Vec<T>;
  L acc[unroll];
  for (L& a : acc) a = Op::template identity<T>;
  Walk walk(const_cast<S*>(x), sizeof(S), reduced, begin);
  for (int64_t left = rows; left > 0;) {
    const Walk::Run run = walk.next(left);
    const S* p = reinterpret_cast<const S*>(run.data);
    if (columns == unroll * L::width) {
      for (int64_t r = 0; r < run.count; ++r, p += run.stride)
        for (int k = 0; k < unroll; ++k)
          acc[k] = Op::join(acc[k], Op::map(load<S, T>(p + k * L::width)));
    } else {
      for (int64_t r = 0; r < run.count; ++r, p += run.stride)
        acc[0] = Op::join(acc[0], Op::map(load_first<S, T>(p, columns, Op::template identity<S>)));
    }
    left -= run.count;
  }
  T buffer[unroll * L::width];
  for (int k = 0; k < unroll; ++k) store(buffer + k * L::width, acc[k]);
  if constexpr (may_leave<Op, S, T>) {
    bool all_in_range = true;
    for (int64_t i = 0; i < columns; ++i) all_in_range &= Op::in_range(buffer[i]);
    if (!all_in_range) [[unlikely]]
      return reduce_wide_columns<Op>(x, reduced, begin, rows, columns, out);
  }
  std::copy_n(buffer, columns, out);
}
template <class Op, class S>
[[gnu::noinline]] void reduce_wide_columns(const S* x, const Layout& reduced, int64_t begin,
                                           int64_t rows, int64_t columns, double* out) {
  constexpr int64_t width = Vec<double>::width;
  for (int64_t i = 0; i < columns; i += width)
    reduce_columns<Op, S, 1, double>(x + i, reduced, begin, rows, std::min(width, columns - i),
                                     out + i);
}

// Joins the chunks of results [first, last) in order; they are `next` apart.
template <class Op, class Total>
[[gnu::noinline]] void join_parts(const Total* parts, int64_t next, int64_t result, int64_t chunks,
                                  int64_t first, int64_t last, Total* totals) {
  for (int64_t i = first; i < last; ++i) {
    totals[i] = parts[i * result];
    for (int64_t c = 1; c < chunks; ++c)
      totals[i] = Op::join(totals[i], parts[i * result + c * next]);
  }
}

template <class Op, class S>
void reduce_rows(Launch& launch, const S* x, const ReducePlan& plan, total_t<S>* totals) {
  const int64_t chunks = std::max<int64_t>(1, ceil_div(plan.count, chunk_elements));
  total_t<S>* const parts =
      chunks == 1 ? totals : launch.scratch<total_t<S>>(plan.results * chunks);
  const int64_t cost = std::clamp<int64_t>(plan.count, 1, chunk_elements);
  parallel_ranges(plan.results * chunks, grain / cost, [&](int64_t first, int64_t last) {
    // (Walk avoids divisions, which would take longer than a short result.)
    Walk kept(const_cast<S*>(x), sizeof(S), plan.kept_x, first / chunks);
    int64_t chunk = first % chunks;
    for (int64_t i = first; i < last;) {
      const Walk::Run run = kept.next(ceil_div(last - i + chunk, chunks));
      const S* from = reinterpret_cast<const S*>(run.data);
      for (int64_t r = 0; r < run.count; ++r, from += run.stride, chunk = 0)
        for (; chunk < chunks && i < last; ++chunk, ++i) {
          const int64_t begin = chunk * chunk_elements;
          parts[i] = reduce_chunk<Op>(from, plan.reduced, begin,
                                      std::min(chunk_elements, plan.count - begin));
        }
    }
  });
  if (chunks > 1) join_parts<Op>(parts, 1, chunks, chunks, 0, plan.results, totals);
}

int64_t chunks_of_rows(const ReducePlan& plan) { return ceil_div(plan.count, chunk_rows); }

// Reduces into `parts`, [chunk, result], then joins the chunks; a single one is the total.
template <class Op, class S>
void reduce_neighbours(const S* x, const ReducePlan& plan, total_t<S>* parts, total_t<S>* totals) {
  constexpr int width = Vec<chunk_t<Op, S>>::width, unroll = 4;
  constexpr int64_t columns = std::max<int64_t>(unroll * width, grain / chunk_rows);
  const int64_t inner = plan.kept_x.shape[-1], blocks = ceil_div(inner, columns);
  const int64_t chunks = chunks_of_rows(plan);
  const int64_t cost = std::min(plan.count, chunk_rows) * std::min(inner, columns);
  parallel_ranges(
      plan.results / inner * blocks * chunks, grain_of(cost), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const int64_t c = i % chunks, row = i / chunks / blocks * inner;
          const int64_t begin = c * chunk_rows, rows = std::min(chunk_rows, plan.count - begin);
          const S* const p = x + plan.kept_x.at(row);
          total_t<S>* const out = parts + c * plan.results + row;
          int64_t j = i / chunks % blocks * columns;
          const int64_t end = std::min(inner, j + columns);
          for (; j + unroll * width <= end; j += unroll * width)
            reduce_columns<Op, S, unroll>(p + j, plan.reduced, begin, rows, unroll * width,
                                          out + j);
          for (; j < end; j += width)
            reduce_columns<Op, S, 1>(p + j, plan.reduced, begin, rows,
                                     std::min<int64_t>(width, end - j), out + j);
        }
      });
  if (chunks == 1) return;
  parallel_ranges(plan.results, grain, [&](int64_t first, int64_t last) {
    join_parts<Op>(parts, plan.results, 1, chunks, first, last, totals);
  });
}

// Reduces results of at most one vector of elements each: a copy makes them neighbours first.
template <class Op, class S>
void reduce_few(const S* x, const ReducePlan& plan, total_t<S>* totals) {
  const int64_t outer = plan.kept_x.shape[0], inner = plan.results / outer;
  const int64_t step = std::clamp<int64_t>(piece_elements / (inner * plan.count), 1, outer);
  parallel_ranges(outer, step, [&](int64_t begin, int64_t end) {
    View from{const_cast<S*>(x) + begin * plan.kept_x.strides[0], dtype_of<S>(), plan.reduced};
    for (int d = 0; d < plan.kept_x.rank(); ++d) {
      from.layout.shape.push_back(d == 0 ? end - begin : plan.kept_x.shape[d]);
      from.layout.strides.push_back(plan.kept_x.strides[d]);
    }
    ReducePlan piece = plan;
    piece.results = (end - begin) * inner;
    piece.kept_x = Layout({piece.results});
    piece.reduced = Layout({plan.count}, {piece.results});
    const Buffer<S> buffer(from.size());
    copy(from, {buffer.data(), from.dtype, Layout(from.shape())});
    total_t<S>* const to = totals + begin * inner;
    reduce_neighbours<Op>(buffer.data(), piece, to, to);
  });
}

// Divides totals in f64, or takes their square roots, before they are rounded.
enum class Finish { None, Divide, Root };

template <class Op>
void reduce_with(Launch& launch, In x, Out y, Finish finish = Finish::None) {
  const ReducePlan plan(x, y);
  const bool neighbours = plan.results > 1 && plan.kept_x.strides[-1] == 1 && plan.count > 0;
  View totals{launch.scratch<int64_t>(plan.results), is_float(x.dtype) ? f64 : i64,
              Layout(plan.kept_y.shape)};
  const auto run = [&]<class S>() {
    auto* const to = totals.as<total_t<S>>();
    constexpr int width = Vec<chunk_t<Op, S>>::width;
    const bool few = plan.count > 1 && plan.count <= width && plan.results >= 64;
    if (neighbours) {
      const int64_t chunks = chunks_of_rows(plan);
      reduce_neighbours<Op>(x.as<S>(), plan,
                            chunks == 1 ? to : launch.scratch<total_t<S>>(plan.results * chunks),
                            to);
    } else if (few) {
      reduce_few<Op>(x.as<S>(), plan, to);
    } else {
      reduce_rows<Op>(launch, x.as<S>(), plan, to);
    }
  };
  if constexpr (of_floats<Op>)
    visit_float(x.dtype, run);
  else
    visit_number(x.dtype, run);
  double* const all = totals.as<double>();
  if (finish == Finish::Divide)
    for (int64_t i = 0; i < plan.results; ++i) all[i] /= static_cast<double>(plan.count);
  if (finish == Finish::Root)
    for (int64_t i = 0; i < plan.results; ++i) all[i] = std::sqrt(all[i]);
  convert(launch, totals, View{y.data, y.dtype, plan.kept_y});
}

}  // namespace

void reduce(Launch& launch, Reduce op, In x, Out y) {
  switch (op) {
    case Reduce::Sum:
      return reduce_with<Sum>(launch, x, y);
    case Reduce::Mean:
      return reduce_with<Sum>(launch, x, y, Finish::Divide);
    case Reduce::Max:
      return reduce_with<Max>(launch, x, y);
    case Reduce::Min:
      return reduce_with<Min>(launch, x, y);
    case Reduce::Prod:
      return reduce_with<Prod>(launch, x, y);
    case Reduce::SumAbs:
      return reduce_with<SumAbs>(launch, x, y);
    case Reduce::Norm:
      return reduce_with<SumSquares>(launch, x, y, Finish::Root);
    case Reduce::MaxAbs:
      return reduce_with<MaxAbs>(launch, x, y);
  }
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
