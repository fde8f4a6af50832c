// One time step of a recurrent layer: the cells of kernels/common/cells.h over rows, with all gates
// in one pass. What is kept of a row lies vector by vector, so that a processor that prefetches
// along lines finds one run of it instead of one for each factor (bench/worklog/161).

#include <algorithm>

#include "kernels/common/cells.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// Row r of a view [rows, k n]; null if the view is absent.
template <class S>
S* row(const View& v, int64_t r) {
  return v ? v.as<S>() + r * v.strides()[0] : nullptr;
}

// Reads and writes `count` lanes from i on of each of the `k` parts, n elements each, of a row.
template <class T, class S>
MIXTAPE_ALWAYS_INLINE void read_parts(const S* p, int k, int64_t n, int64_t i, int64_t count,
                                      Vec<T>* into) {
  for (int g = 0; g < k; ++g) into[g] = read<T>(p + g * n + i, count);
}
template <class T, class S>
MIXTAPE_ALWAYS_INLINE void write_parts(S* p, int k, int64_t n, int64_t i, int64_t count,
                                       const Vec<T>* from) {
  for (int g = 0; g < k; ++g) write(p + g * n + i, from[g], count);
}

constexpr int most_parts = 6;

template <class F>
void for_rows(const View& y, F f) {
  const int64_t n = y.shape()[1];
  parallel_ranges(y.shape()[0], std::max<int64_t>(1, 2048 / std::max<int64_t>(n, 1)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t r = begin; r < end; ++r) f(r, n);
                  });
}

}  // namespace

void cell(Launch&, Cell kind, In x, In h, Out state, Out kept, Out y) {
  visit_cell(kind, [&]<class C>() {
    visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
      using T = math_t<S>;
      for_rows(y, [&](int64_t r, int64_t n) {
        const S* const xr = row<S>(x, r);
        const T* const hr = row<T>(h, r);
        T *const sr = row<T>(state, r), *const kr = row<T>(kept, r);
        O* const yr = row<O>(y, r);
        for_each_vec<T>(n, [&](int64_t i, int64_t count) MIXTAPE_INLINE_LAMBDA {
          Vec<T> from_x[most_parts], from_h[most_parts], keep[most_parts], s(T(0));
          read_parts<T>(xr, C::gates, n, i, count, from_x);
          read_parts<T>(hr, C::gates, n, i, count, from_h);
          if (sr) s = read<T>(sr + i, count);
          write(yr + i, C::f(from_x, from_h, s, keep), count);
          if (sr) write(sr + i, s, count);
          if (kr) write_parts(kr + i * C::kept, C::kept, count, 0, count, keep);
        });
      });
    });
  });
}

void cell_grad(Launch&, Cell kind, In kept, In y, In dy, In dnext, Out carry, Out dx, Out dh) {
  visit_cell(kind, [&]<class C>() {
    visit_float(y.dtype, dy.dtype, [&]<class S, class D>() {
      using T = math_t<S>;
      for_rows(y, [&](int64_t r, int64_t n) {
        const S* const yr = row<S>(y, r);
        const D* const dyr = row<D>(dy, r);
        const T *const kr = row<T>(kept, r), *const nr = row<T>(dnext, r);
        T* const cr = row<T>(carry, r);
        S *const dxr = row<S>(dx, r), *const dhr = row<S>(dh, r);
        for_each_vec<T>(n, [&](int64_t i, int64_t count) MIXTAPE_INLINE_LAMBDA {
          Vec<T> keep[most_parts], to_x[most_parts], to_h[most_parts], c(T(0));
          read_parts<T>(kr + i * C::kept, C::kept, count, 0, count, keep);
          if (cr) c = read<T>(cr + i, count);
          Vec<T> d = read<T>(dyr + i, count);
          if (nr) d += read<T>(nr + i, count);
          C::df(keep, read<T>(yr + i, count), d, c, to_x, to_h);
          write_parts(dxr, C::gates, n, i, count, to_x);
          if (dhr) write_parts(dhr, C::gates, n, i, count, to_h);
          if (cr) write(cr + i, c, count);
        });
      });
    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
