// Rotation of the halves of each row by the angles of its position.

#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// The places of the rows of x [.., t, n].
Layout rows_in(const View& x) {
  Layout rows = x.layout;
  --rows.shape.rank;
  --rows.strides.rank;
  return rows;
}

}  // namespace

void rotate_halves(Launch&, bool back, In x, In c, In s, Out y) {
  const int64_t n = x.shape()[-1] / 2, t = x.shape()[-2];
  const Layout from = rows_in(x), to = rows_in(y);
  if (x.size() == 0) return;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const Vec<T> sign(back ? T(-1) : T(1));
    parallel_ranges(
        x.size() / (2 * n), std::max<int64_t>(1, 8192 / n), [&](int64_t i, int64_t end) {
          for (; i < end; ++i) {
            const S* const a = x.as<S>() + from.at(i);
            O* const b = y.as<O>() + to.at(i);
            const T *const cosines = c.as<T>() + i % t * n, *const sines = s.as<T>() + i % t * n;
            for_each_vec<T>(n, [&](int64_t k, int64_t count) MIXTAPE_INLINE_LAMBDA {
              const Vec<T> first = read<T>(a + k, count), second = read<T>(a + n + k, count);
              const Vec<T> cosine = read<T>(cosines + k, count),
                           sine = sign * read<T>(sines + k, count);
              write(b + k, cosine * first - sine * second, count);
              write(b + n + k, cosine * second + sine * first, count);
            });
          }
        });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
