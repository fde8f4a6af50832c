// Scans along one dimension: y_i = a_i y_(i-1) + b_i, with running sums and products as special
// cases, and the transpose, which is its gradient; positions of running maxima, and sums of
// exponentials. Each line runs in order, in f64 or i64.

#include <cstdlib>

#include "kernels/common/always_inline.h"
#include "kernels/common/elementwise.h"
#include "kernels/common/scan.h"
#include "kernels/cpu/loops/line_iterator.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

constexpr int64_t most_columns = 64, few = 4;  // lines side by side

struct Steps {
  bool transposed;
  int64_t count;
  const int64_t *along, *next;  // strides of a, b and y
};

// Scans `columns` neighbouring lines at once; their sums are independent.
template <bool has_a, bool has_b, class S, class O>
MIXTAPE_ALWAYS_INLINE void scan_block(const Steps& s, const S* a, const S* b, O* y,
                                      int64_t columns) {
  using T = std::conditional_t<std::is_integral_v<S>, Whole, double>;
  T state[most_columns];
  std::fill_n(state, columns, T(has_b ? 0 : 1));
  for (int64_t i = 0; i < s.count; ++i) {
    const int64_t at = s.transposed ? s.count - 1 - i : i;
    // The first step has no previous result to multiply, except the 1 of a product.
    const bool multiplies = has_a && (i > 0 || (!has_b && !s.transposed));
    const S* const factor = multiplies ? a + (s.transposed ? at + 1 : at) * s.along[0] : nullptr;
    const S* const term = has_b ? b + at * s.along[1] : nullptr;
    O* const to = y + at * s.along[2];
    for (int64_t c = 0; c < columns; ++c) {
      T v = state[c];
      if (multiplies) v = v * T(factor[c * s.next[0]]);
      if (has_b) v = v + T(term[c * s.next[1]]);
      state[c] = v;
      to[c * s.next[2]] = convert_to<O>(v);
    }
  }
}

// Lines side by side: for long dense lines, a few at a time hide the latency of a step; more would
// compete for the cache.
template <int n>
int64_t most_lines(const LineIterator<n>& lines) {
  const int64_t along = std::abs(lines.along[n - 1]), next = std::abs(lines.next[n - 1]);
  return along < next && lines.length > 8 ? few : most_columns;
}
// Calls block(columns) with the usual numbers as constants.
template <class F>
MIXTAPE_ALWAYS_INLINE void with_columns(int64_t columns, F block) {
  columns == few ? block(few) : columns == 1 ? block(1) : block(columns);
}

// A result as it is stored. Positions fit i64, so they need no check of their range.
template <class O, class T>
MIXTAPE_ALWAYS_INLINE O stored(T x) {
  if constexpr (std::is_integral_v<O>)
    return static_cast<O>(x);
  else
    return convert_to<O>(x);
}

// The lines of x by R, of kernels/common/scan.h, which reads no factors.
template <class R, class S, class O>
void scan_pairs(int dim, In x, Out y) {
  using T = std::conditional_t<std::is_integral_v<S>, Whole, double>;
  const LineIterator<2> lines(dim, y.shape(), {x.strides(), y.strides()});
  const int64_t x_along = lines.along[0], y_along = lines.along[1];
  const int64_t x_next = lines.next[0], y_next = lines.next[1];
  const auto block = [&](const S* from, O* to, int64_t columns) MIXTAPE_INLINE_LAMBDA {
    Pair<T> state[most_columns];
    for (int64_t i = 0; i < lines.length; ++i, from += x_along, to += y_along)
      for (int64_t c = 0; c < columns; ++c) {
        const Pair<T> one = R::step(T(0), T(from[c * x_next]), i);
        state[c] = i == 0 ? one : R::compose(state[c], one);
        to[c * y_next] = stored<O>(R::result(state[c]));
      }
  };
  lines.for_blocks(most_lines(lines), lines.length,
                   [&](const int64_t(&at)[2], int64_t columns, int64_t) {
                     with_columns(columns, [&](int64_t count) MIXTAPE_INLINE_LAMBDA {
                       block(x.as<S>() + at[0], y.as<O>() + at[1], count);
                     });
                   });
}

}  // namespace

void scan(Launch&, bool transposed, int dim, In a, In b, Out y) {
  const View& x = a ? a : b;
  const LineIterator<3> lines(dim, y.shape(), {x.strides(), (b ? b : x).strides(), y.strides()});
  const Steps all{transposed, lines.length, lines.along, lines.next};
  const auto run = [&]<bool has_a, bool has_b, class S, class O>() {
    lines.for_blocks(
        most_lines(lines), lines.length, [&](const int64_t(&at)[3], int64_t columns, int64_t) {
          with_columns(columns, [&](int64_t count) MIXTAPE_INLINE_LAMBDA {
            scan_block<has_a, has_b>(all, has_a ? a.as<S>() + at[0] : nullptr,
                                     has_b ? b.as<S>() + at[1] : nullptr, y.as<O>() + at[2], count);
          });
        });
  };
  const auto choose = [&]<class S, class O>() {
    if (a && b)
      run.template operator()<true, true, S, O>();
    else if (a)
      run.template operator()<true, false, S, O>();
    else
      run.template operator()<false, true, S, O>();
  };
  if (is_float(x.dtype))
    visit_float(x.dtype, y.dtype, choose);
  else
    visit(x.dtype, [&]<class S>() {
      if constexpr (std::is_integral_v<S>) choose.template operator()<S, int64_t>();
    });
}

void arg_scan(Launch&, Reduce op, int dim, In x, Out index) {
  visit(x.dtype, [&]<class S>() {
    if (op == Reduce::Max)
      scan_pairs<Extreme<true>, S, int64_t>(dim, x, index);
    else
      scan_pairs<Extreme<false>, S, int64_t>(dim, x, index);
  });
}

void log_cumsum_exp(Launch&, int dim, In x, Out y) {
  visit_float(x.dtype, y.dtype,
              [&]<class S, class O>() { scan_pairs<LogSumExp, S, O>(dim, x, y); });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
