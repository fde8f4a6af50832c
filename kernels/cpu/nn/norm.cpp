// Layer, RMS and group norm over rows, batch norm over channels. Parameters and their gradients are
// computed in f32 (or f64).

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/common/visit_narrow.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
using namespace internal;
namespace {

// Mean and biased variance of several rows.
template <int rows>
struct Moments {
  std::array<double, rows> mean, var;

  std::array<double, rows> rstd(double eps) const {
    std::array<double, rows> all;
    for (int r = 0; r < rows; ++r) all[r] = 1 / std::sqrt(var[r] + eps);
    return all;
  }
};

// Moments of one row in f64, around a value near its mean.
template <class S>
void widen(const S* x, int64_t n, bool centered, double& mean, double& var) {
  constexpr int64_t lanes = 8;
  double sum[lanes] = {}, squares[lanes] = {};
  for (int64_t start = 0; start < n; start += lanes)
    for (int64_t i = 0; i < std::min(lanes, n - start); ++i) {
      const double d = static_cast<double>(x[start + i]) - mean;
      sum[i] += d;
      squares[i] += d * d;
    }
  const double per = 1 / static_cast<double>(n);
  const double off = centered ? std::accumulate(sum, sum + lanes, 0.0) * per : 0;
  mean += off;
  var = std::accumulate(squares, squares + lanes, 0.0) * per - off * off;
}

// Moments of several rows at once, so that no sum waits for another; around zero if not centered.
// Sums differences from the first element of each row. A row whose first element is so far from the
// mean that the variance loses digits, or whose squares leave T, is summed again in f64.
template <class T, int rows, class S>
MIXTAPE_ALWAYS_INLINE Moments<rows> moments_of(const S* x, int64_t n, bool centered = true) {
  const double per = 1 / static_cast<double>(n);
  std::array<T, rows> center = {};
  if (centered && n > 0)
    for (int r = 0; r < rows; ++r) center[r] = static_cast<T>(x[r * n]);
  const auto about = sums_over<T, 2 * rows>(n, [&](int64_t i, int64_t count, auto& sums) {
    for (int r = 0; r < rows; ++r) {
      const Vec<T> d = keep(read<T>(x + r * n + i, count) - Vec<T>(center[r]), count);
      sums[r] += d;
      sums[rows + r] += d * d;
    }
  });
  Moments<rows> result;
  for (int r = 0; r < rows; ++r) {
    double &mean = result.mean[r], &var = result.var[r];
    const double off = centered ? about[r] * per : 0;
    mean = center[r] + off;
    var = about[rows + r] * per - off * off;
    if (!(off * off <= 8 * var) || !std::isfinite(var)) {
      if (!std::isfinite(mean)) mean = center[r];
      widen(x + r * n, n, centered, mean, var);
    }
    if (var < 0) var = 0;  // (NaN stays)
  }
  return result;
}

// y = (x - mean) rstd scale + shift for rows of n; all but rstd may be null. Prefetches as many
// rows after these.
template <class T, class S, class O>
void normalize(const S* x, int64_t rows, int64_t n, const T* mean, const T* rstd, const T* scale,
               const T* shift, O* y) {
  const int64_t ahead = rows * n;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const Vec<T> less(mean ? mean[r] : T(0)), times(rstd[r]);
    for_each_vec<T>(n, [=](int64_t i, int64_t count) {
      __builtin_prefetch(x + ahead + i);
      Vec<T> v = (read<T>(x + i, count) - less) * times;
      if (scale) v = v * read<T>(scale + i, count);
      if (shift) v = v + read<T>(shift + i, count);
      write(y + i, v, count);
    });
  }
}

// Copies single channels of x [n, c, inner] to dense memory of type T, and back.
struct Channels {
  int64_t n, c, inner;
  explicit Channels(In x)
      : n(x.shape()[0]), c(x.shape()[1]), inner(x.size() ? x.size() / (n * c) : 0) {}
  int64_t length() const { return n * inner; }

  template <class S, class T>
  void gather(const S* x, int64_t channel, T* run) const {
    for (int64_t i = 0; i < n; ++i)
      convert_run(x + (i * c + channel) * inner, inner, run + i * inner);
  }
  template <class T, class O>
  void scatter(const T* run, int64_t channel, O* y) const {
    for (int64_t i = 0; i < n; ++i)
      convert_run(run + i * inner, inner, y + (i * c + channel) * inner);
  }
};

// If `inner` is small, x is transposed to [1, c, n inner] first: gathering channels in short pieces
// would take longer.
bool has_short_pieces(In x) {
  const Channels z(x);
  return x.size() > 0 && z.inner < 8 && z.n > 1;
}
View by_channel(In x) {
  const Channels z(x);
  return {x.data, x.dtype, Layout({z.c, z.n, z.inner}, {z.inner, z.c * z.inner, 1})};
}
View channel_buffer(Launch& launch, In x) {
  const Channels z(x);
  return {launch.scratch<char>(x.size() * int64_t(size_of(x.dtype))), x.dtype,
          Layout({1, z.c, z.length()})};
}
View by_channel_copy(Launch& launch, In x) {
  const View y = channel_buffer(launch, x);
  copy(by_channel(x), {y.data, y.dtype, Layout(by_channel(x).shape())});
  return y;
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
      const auto m = moments_of<T, rows>(x.as<S>() + r * n, n, bool(mean));
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
    // Each part sums dw and db over its own rows; the parts are added in order.
    const bool sum = dw || db;
    const int64_t parts = std::clamp<int64_t>(rows / grain_of(n), 1, 32);
    T* const sums = sum ? launch.scratch<T>(parts * 2 * n) : nullptr;
    if (sum) std::fill_n(sums, parts * 2 * n, T(0));
    parallel_for(parts, [&](int64_t part) {
      for (int64_t r = part * rows / parts; r < (part + 1) * rows / parts; ++r) {
        const S* const in = x.as<S>() + r * n;
        const D* const dout = dy.as<D>() + r * n;
        const Vec<T> center(mean ? mean.as<T>()[r] : T(0)), inverse(rstd.as<T>()[r]);
        const auto normal = [&](int64_t i, int64_t count) {
          return (read<T>(in + i, count) - center) * inverse;
        };
        // (fma() rounds the product: contracted with the difference below, it would differ from the
        // one in the mean, and a row of one element would not give 0.)
        const auto scaled = [&](Vec<T> g, int64_t i, int64_t count) {
          return scale ? fma(g, read<T>(scale + i, count), Vec<T>(T(0))) : g;
        };
        const auto [g_sum, gh_sum] = sums_over<T, 2>(n, [&](int64_t i, int64_t count, auto& s) {
          const Vec<T> d = read<T>(dout + i, count), g = scaled(d, i, count);
          const Vec<T> h = normal(i, count);
          s[0] += g;
          s[1] += g * h;
          if (!sum) return;
          T *const w_sum = sums + part * 2 * n + i, *const b_sum = w_sum + n;
          write(w_sum, read<T>(w_sum, count) + d * h, count);
          write(b_sum, read<T>(b_sum, count) + d, count);
        });
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
      for (int64_t i = 0; i < 2 * n; ++i) sums[i] += sums[part * 2 * n + i];
    if (dw) from_dense(dw, sums);
    if (db) from_dense(db, sums + n);
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
        const auto m = moments_of<T, 1>(x.as<S>() + r * n, n);
        const T center = static_cast<T>(m.mean[0]), inverse = static_cast<T>(m.rstd(eps)[0]);
        mean.as<T>()[r] = center;
        rstd.as<T>()[r] = inverse;
        for (int64_t k = 0; k < channels; ++k) {
          const int64_t c = r % groups * channels + k, at = r * n + k * inner;
          const Vec<T> less(center), times(scale ? inverse * scale[c] : inverse),
              plus(shift ? shift[c] : T(0));
          for_each_vec<T>(inner, [&](int64_t i, int64_t count) {
            write(y.as<O>() + at + i, (read<T>(x.as<S>() + at + i, count) - less) * times + plus,
                  count);
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
        const Vec<T> center(mean.as<T>()[r]), inverse(rstd.as<T>()[r]);
        const auto normal = [&](int64_t i, int64_t count) {
          return (read<T>(x.as<S>() + i, count) - center) * inverse;
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
          const double h = sum_over<T>(
              inner, [&](int64_t i, int64_t count) { return g(i, count) * normal(at + i, count); });
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

void batch_stats(Launch& launch, In x, double eps, Out mean, Out var, Out rstd) {
  if (has_short_pieces(x))
    return batch_stats(launch, by_channel_copy(launch, x), eps, mean, var, rstd);
  const Channels z(x);
  visit_float(x.dtype, [&]<class S>() {
    using T = math_t<S>;
    parallel_ranges(z.c, grain_of(z.length()), [&](int64_t begin, int64_t end) {
      Buffer<T> run(z.length());
      for (int64_t c = begin; c < end; ++c) {
        z.gather(x.as<S>(), c, run.data());
        const auto m = moments_of<T, 1>(run.data(), z.length());
        mean.as<T>()[c] = static_cast<T>(m.mean[0]);
        var.as<T>()[c] = static_cast<T>(m.var[0]);
        rstd.as<T>()[c] = static_cast<T>(m.rstd(eps)[0]);
      }
    });
  });
}

void batch_norm(Launch& launch, In x, In mean, In rstd, In w, In b, Out y) {
  const Channels z(x);
  if (x.size() == 0) return;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const T *const center = to_dense<T>(launch, mean), *const inverse = to_dense<T>(launch, rstd);
    const T *const weight = to_dense<T>(launch, w), *const shift = to_dense<T>(launch, b);
    T* const scale = launch.scratch<T>(z.c);
    for (int64_t c = 0; c < z.c; ++c) scale[c] = inverse[c] * (weight ? weight[c] : T(1));
    const int64_t run = z.c * z.inner;  // elements of one image
    parallel_ranges(z.n, grain_of(run), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * run; i < end * run; i += run) {
        const S* const in = x.as<S>() + i;
        O* const out = y.as<O>() + i;
        if (z.inner == 1) {
          for_each_vec<T>(z.c, [&](int64_t c, int64_t count) {
            const Vec<T> v =
                (read<T>(in + c, count) - read<T>(center + c, count)) * read<T>(scale + c, count);
            write(out + c, shift ? v + read<T>(shift + c, count) : v, count);
          });
          continue;
        }
        for (int64_t c = 0; c < z.c; ++c) {
          const Vec<T> less(center[c]), times(scale[c]), plus(shift ? shift[c] : T(0));
          for_each_vec<T>(z.inner, [&](int64_t j, int64_t count) {
            write(out + c * z.inner + j,
                  (read<T>(in + c * z.inner + j, count) - less) * times + plus, count);
          });
        }
      }
    });
  });
}

// With h = (x - mean) rstd: dw = sum(dy h), db = sum(dy), dx = w rstd (dy - mean(dy) - h mean(dy
// h)); with fixed statistics dx = w rstd dy.
void batch_norm_grad(Launch& launch, In x, In mean, In rstd, In w, In dy, bool fixed_stats, Out dx,
                     Out dw, Out db) {
  if (has_short_pieces(x)) {
    const View buffer = dx ? channel_buffer(launch, dx) : dx;
    batch_norm_grad(launch, by_channel_copy(launch, x), mean, rstd, w, by_channel_copy(launch, dy),
                    fixed_stats, buffer, dw, db);
    const View y = by_channel(dx ? dx : x);
    if (dx) copy({buffer.data, buffer.dtype, Layout(y.shape())}, y);
    return;
  }
  const Channels z(x);
  visit_float(x.dtype, dy.dtype, dx ? dx.dtype : x.dtype, [&]<class S, class D, class O>() {
    using T = math_t<S>;
    const T *const center = to_dense<T>(launch, mean), *const inverse = to_dense<T>(launch, rstd);
    const T* const weight = to_dense<T>(launch, w);
    T *const w_sum = launch.scratch<T>(z.c), *const b_sum = launch.scratch<T>(z.c);
    parallel_ranges(z.c, grain_of(z.length()), [&](int64_t begin, int64_t end) {
      const int64_t n = z.length();
      Buffer<T> x_run(n), dy_run(n);
      T *const h = x_run.data(), *const g = dy_run.data();
      for (int64_t c = begin; c < end; ++c) {
        z.gather(x.as<S>(), c, h);
        z.gather(dy.as<D>(), c, g);
        const Vec<T> less(center[c]), times(inverse[c]);
        const double level =
            sum_over<T>(n, [&](int64_t i, int64_t count) { return read<T>(g + i, count); });
        const double slope = sum_over<T>(n, [&](int64_t i, int64_t count) {
          const Vec<T> v = (read<T>(h + i, count) - less) * times;
          write(h + i, v, count);
          return v * read<T>(g + i, count);
        });
        w_sum[c] = static_cast<T>(slope);
        b_sum[c] = static_cast<T>(level);
        if (!dx) continue;
        const double per = 1 / static_cast<double>(n);
        const auto share = [&](double sum) {
          return fixed_stats ? T(0) : static_cast<T>(sum * per);
        };
        const Vec<T> mean_g(share(level)), mean_gh(share(slope));
        const Vec<T> scale(inverse[c] * (weight ? weight[c] : T(1)));
        for_each_vec<T>(n, [&](int64_t i, int64_t count) {
          const Vec<T> v = read<T>(g + i, count) - mean_g - read<T>(h + i, count) * mean_gh;
          write(g + i, v * scale, count);
        });
        z.scatter(g, c, dx.as<O>());
      }
    });
    if (dw) from_dense(dw, w_sum);
    if (db) from_dense(db, b_sum);
  });
}

}  // namespace mixtape::kernels::cpu
