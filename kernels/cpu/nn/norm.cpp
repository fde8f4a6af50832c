// Layer, RMS and group norm over rows. Parameters and their gradients are computed in f32 (or f64).

#include <algorithm>

#include "kernels/common/visit_narrow.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/nn/moments.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// y = (x - mean) rstd scale + shift for rows of n; all but rstd may be null. Prefetches as many
// rows after these.
template <class T, class S, class O>
void normalize(const S* x, int64_t rows, int64_t n, const T* mean, const T* rstd, const T* scale,
               const T* shift, O* y) {
  const int64_t ahead = rows * n;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const StandardScore<Vec<T>> score(mean ? mean[r] : T(0), rstd[r]);
    for_each_vec<T>(n, [=](int64_t i, int64_t count) {
      __builtin_prefetch(x + ahead + i);
      Vec<T> v = score(read<T>(x + i, count));
      if (scale) v = v * read<T>(scale + i, count);
      if (shift) v = v + read<T>(shift + i, count);
      write(y + i, v, count);
    });
  }
}

}  // namespace

void layer_norm(Launch& launch, In x, In w, In b, double eps, Out y, Out mean, Out rstd) {
  const int64_t n = x.shape()[-1];
  if (x.size() == 0) return;
  visit_float_or_narrow(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const T *const scale = to_dense<T>(launch, w), *const shift = to_dense<T>(launch, b);
    // Two sums and a center for each row take three quarters of the registers.
    constexpr int together = sizeof(Vec<T>) == 64 ? 8 : 4;
    const auto measure = [&](int64_t r, auto rows) {
      const auto m = moments_of<T, rows>(x.as<S>() + r * n, n, eps, bool(mean));
      const auto factors = m.rstd(eps);
      for (int i = 0; i < rows; ++i) {
        if (mean) mean.as<T>()[r + i] = static_cast<T>(m.mean[i]);
        rstd.as<T>()[r + i] = static_cast<T>(factors[i]);
      }
    };
    // Moments are computed for as many rows as fit in the first-level cache, so that no row waits
    // for its square root.
    const int64_t ahead =
        together * std::max<int64_t>(1, 8192 / (together * n * int64_t{sizeof(S)}));
    parallel_ranges(x.size() / n, grain_of(n), [&](int64_t begin, int64_t end) {
      for (; begin < end; begin += ahead) {
        const int64_t until = std::min(end, begin + ahead);
        int64_t r = begin;
        for (; r + together <= until; r += together)
          measure(r, std::integral_constant<int, together>());
        for (; r < until; ++r) measure(r, std::integral_constant<int, 1>());
        normalize(x.as<S>() + begin * n, until - begin, n, mean ? mean.as<T>() + begin : nullptr,
                  rstd.as<T>() + begin, scale, shift, y.as<O>() + begin * n);
      }
    });
  });
}

// With h = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - h mean(g h)), dw = sum over rows
// of dy h, db = sum over rows of dy. RMS norm has no mean, so no mean(g).
void layer_norm_grad(Launch& launch, In x, In w, In mean, In rstd, In dy, In added, Out dx, Out dw,
                     Out db) {
  const int64_t n = x.shape()[-1], rows = n ? x.size() / n : 0;
  visit_float(x.dtype, dy.dtype, dx ? dx.dtype : x.dtype, [&]<class S, class D, class O>() {
    using T = math_t<S>;
    const T* const scale = to_dense<T>(launch, w);
    const double per = 1 / static_cast<double>(n);
    // Each part sums dw and db over its own rows, some at a time; sums of them are added in f64.
    const bool sum = dw || db;
    constexpr int64_t some = 64;
    const int64_t parts = std::clamp<int64_t>(rows / grain_of(n), 1, 32);
    T* const sums = sum ? launch.scratch<T>(parts * 2 * n) : nullptr;
    double* const totals = sum ? launch.scratch<double>(parts * 2 * n) : nullptr;
    if (sum) std::fill_n(totals, parts * 2 * n, 0.0);
    parallel_for(parts, [&](int64_t part) {
      T* const part_sums = sum ? sums + part * 2 * n : nullptr;
      const int64_t begin = part * rows / parts, end = (part + 1) * rows / parts;
      for (int64_t r = begin; r < end; ++r) {
        if (sum && (r - begin) % some == 0) std::fill_n(part_sums, 2 * n, T(0));
        const S* const in = x.as<S>() + r * n;
        const D* const dout = dy.as<D>() + r * n;
        const Vec<T> inverse(rstd.as<T>()[r]);
        const StandardScore<Vec<T>> score(mean ? mean.as<T>()[r] : T(0), inverse);
        const auto normal = [&](int64_t i, int64_t count) { return score(read<T>(in + i, count)); };
        // (fma() rounds the product: contracted with the difference below, it would differ from the
        // one in the mean, and a row of one element would not give 0.)
        const auto scaled = [&](Vec<T> g, int64_t i, int64_t count) {
          return scale ? fma(g, read<T>(scale + i, count), Vec<T>(T(0))) : g;
        };
        const auto [g_sum, gh_sum] = sums_over<T, 2>(n, [&](int64_t i, int64_t count, auto& s) {
          const Vec<T> d = read<T>(dout + i, count), g = scaled(d, i, count);
          const Vec<T> h = normal(i, count);
          s[0] += g;
          s[1] += keep(g * h, count);  // beyond count, 0 may be multiplied by infinity
          if (!sum) return;
          T *const w_sum = part_sums + i, *const b_sum = w_sum + n;
          write(w_sum, read<T>(w_sum, count) + d * h, count);
          write(b_sum, read<T>(b_sum, count) + d, count);
        });
        if (sum && ((r - begin) % some == some - 1 || r == end - 1))
          for (int64_t i = 0; i < 2 * n; ++i) totals[part * 2 * n + i] += double(part_sums[i]);
        if (!dx) continue;
        const Vec<T> level(mean ? static_cast<T>(g_sum * per) : T(0)),
            slope(static_cast<T>(gh_sum * per));
        O* const out = dx.as<O>() + r * n;
        const O* const more = added ? added.as<const O>() + r * n : nullptr;
        for_each_vec<T>(n, [&](int64_t i, int64_t count) {
          const Vec<T> g = scaled(read<T>(dout + i, count), i, count);
          const Vec<T> v = (g - level - normal(i, count) * slope) * inverse;
          write(out + i, more ? v + read<T>(more + i, count) : v, count);
        });
      }
    });
    for (int64_t part = 1; sum && part < parts; ++part)
      for (int64_t i = 0; i < 2 * n; ++i) totals[i] += totals[part * 2 * n + i];
    if (dw) from_dense(dw, totals);
    if (db) from_dense(db, totals + n);
  });
}

// A group is a row of x; within it, each channel has its own weight and bias.
void group_norm(Launch& launch, In x, int64_t groups, In w, In b, double eps, Out y, Out mean,
                Out rstd) {
  if (x.size() == 0) return;
  const int64_t inner = x.shape()[2], channels = x.shape()[1] / groups, n = channels * inner;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const T *const scale = to_dense<T>(launch, w), *const shift = to_dense<T>(launch, b);
    parallel_ranges(x.size() / n, grain_of(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto m = moments_of<T, 1>(x.as<S>() + r * n, n, eps);
        const T center = static_cast<T>(m.mean[0]), inverse = static_cast<T>(m.rstd(eps)[0]);
        mean.as<T>()[r] = center;
        rstd.as<T>()[r] = inverse;
        for (int64_t k = 0; k < channels; ++k) {
          const int64_t c = r % groups * channels + k, at = r * n + k * inner;
          const StandardScore<Vec<T>> score(center, scale ? inverse * scale[c] : inverse);
          const Vec<T> plus(shift ? shift[c] : T(0));
          for_each_vec<T>(inner, [&](int64_t i, int64_t count) {
            write(y.as<O>() + at + i, score(read<T>(x.as<S>() + at + i, count)) + plus, count);
          });
        }
      }
    });
  });
}

// As layer_norm_grad, with the sums of a row taken by channel: the sums of dy h and of dy are dw
// and db and, multiplied by w, give the means.
void group_norm_grad(Launch& launch, In x, int64_t groups, In w, In mean, In rstd, In dy, Out dx,
                     Out dw, Out db) {
  const int64_t images = x.shape()[0], all = x.shape()[1], inner = x.shape()[2],
                channels = all / groups, n = channels * inner;
  visit_float(x.dtype, dy.dtype, dx ? dx.dtype : x.dtype, [&]<class S, class D, class O>() {
    using T = math_t<S>;
    const T* const scale = to_dense<T>(launch, w);
    const int64_t rows = std::max<int64_t>(1, images);  // no images: the sums are zeros
    T *const w_sum = launch.scratch<T>(rows * all), *const b_sum = launch.scratch<T>(rows * all);
    parallel_ranges(images * groups, grain_of(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const Vec<T> inverse(rstd.as<T>()[r]);
        const StandardScore<Vec<T>> score(mean.as<T>()[r], inverse);
        const auto normal = [&](int64_t i, int64_t count) {
          return score(read<T>(x.as<S>() + i, count));
        };
        const auto weight = [&](int64_t k) {
          return scale ? scale[r % groups * channels + k] : T(1);
        };
        double level = 0, slope = 0;
        for (int64_t k = 0; k < channels; ++k) {
          const int64_t at = r * n + k * inner, sum = r * channels + k;
          const auto g = [&](int64_t i, int64_t count) {
            return read<T>(dy.as<D>() + at + i, count);
          };
          const double b = sum_over<T>(inner, g);
          const double h = sum_over<T>(inner, [&](int64_t i, int64_t count) {
            return keep(g(i, count) * normal(at + i, count), count);
          });
          b_sum[sum] = static_cast<T>(b);
          w_sum[sum] = static_cast<T>(h);
          level += b * static_cast<double>(weight(k));
          slope += h * static_cast<double>(weight(k));
        }
        if (!dx) continue;
        const double size = static_cast<double>(n);
        const Vec<T> mean_g(static_cast<T>(level / size)), mean_gh(static_cast<T>(slope / size));
        for (int64_t k = 0; k < channels; ++k) {
          const Vec<T> times(weight(k));
          const int64_t at = r * n + k * inner;
          for_each_vec<T>(inner, [&](int64_t i, int64_t count) {
            const Vec<T> g = read<T>(dy.as<D>() + at + i, count) * times;
            write(dx.as<O>() + at + i, (g - mean_g - normal(at + i, count) * mean_gh) * inverse,
                  count);
          });
        }
      }
    });
    for (const auto& [out, sums] : {std::pair<const View*, T*>{&dw, w_sum}, {&db, b_sum}}) {
      if (!*out) continue;
      std::vector<double> total(all);
      for (int64_t i = 0; i < images; ++i)
        for (int64_t c = 0; c < all; ++c) total[c] += sums[i * all + c];
      from_dense(*out, total.data());
    }
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
