// Batch norm over channels, of planes or, with channels last, of rows of channels. Parameters and
// their gradients are computed in f32 (or f64).

#include <algorithm>

#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/nn/column_sums.h"
#include "kernels/cpu/nn/moments.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

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

// If `inner` is small but not 1, x is transposed to [1, c, n inner] first: gathering channels in
// short pieces would take longer.
bool has_short_pieces(In x) {
  const Channels z(x);
  return x.size() > 0 && z.inner > 1 && z.inner < 8 && z.n > 1;
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

// batch_stats of x [rows, c], around means of the first rows.
template <class S>
void pixel_stats(Launch& launch, In x, double eps, Out mean, Out var, Out rstd) {
  using T = math_t<S>;
  const int64_t rows = x.shape()[0], c = x.shape()[1], some = std::min<int64_t>(rows, 16);
  T* const center = launch.scratch<T>(round_up(c, Vec<T>::width));
  for_each_vec<T>(c, [&](int64_t i, int64_t count) {
    Vec<T> mean(T(0));
    const Vec<T> share(T(1) / static_cast<T>(some));
    for (int64_t r = 0; r < some; ++r)
      mean = fma(read<T>(x.as<S>() + r * c + i, count), share, mean);
    store(center + i, mean);
  });
  const double* const sums = column_sums<T, 2>(
      launch, rows, c, [&](int64_t r, int64_t i, int64_t count, auto& sum) MIXTAPE_INLINE_LAMBDA {
        const Vec<T> d = read<T>(x.as<S>() + r * c + i, count) - load<T, T>(center + i);
        sum[0] += d;
        sum[1] += d * d;
      });
  parallel_ranges(c, grain_of(1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Moments<1> m;
      finish_moments(sums[i], sums[c + i], center[i], rows, true, eps, m.mean[0], m.var[0], [&] {
        Buffer<S> column(rows);
        for (int64_t r = 0; r < rows; ++r) column.data()[r] = x.as<S>()[r * c + i];
        widen(column.data(), rows, true, m.mean[0], m.var[0]);
      });
      mean.as<T>()[i] = static_cast<T>(m.mean[0]);
      var.as<T>()[i] = static_cast<T>(m.var[0]);
      rstd.as<T>()[i] = static_cast<T>(m.rstd(eps)[0]);
    }
  });
}

// batch_norm_grad of x [rows, c].
template <class S, class D, class O>
void pixel_norm_grad(Launch& launch, In x, In mean, In rstd, In w, In dy, bool fixed_stats, Out dx,
                     Out dw, Out db) {
  using T = math_t<S>;
  const int64_t rows = x.shape()[0], c = x.shape()[1];
  const T *const center = to_dense<T>(launch, mean), *const inverse = to_dense<T>(launch, rstd);
  const T* const weight = to_dense<T>(launch, w);
  const auto g = [&](int64_t r, int64_t i, int64_t count)
                     MIXTAPE_INLINE_LAMBDA { return read<T>(dy.as<D>() + r * c + i, count); };
  const auto h = [&](int64_t r, int64_t i, int64_t count) MIXTAPE_INLINE_LAMBDA {
    const StandardScore<Vec<T>> score(read<T>(center + i, count), read<T>(inverse + i, count));
    return score(read<T>(x.as<S>() + r * c + i, count));
  };
  const double* const sums = column_sums<T, 2>(
      launch, rows, c, [&](int64_t r, int64_t i, int64_t count, auto& sum) MIXTAPE_INLINE_LAMBDA {
        const Vec<T> v = g(r, i, count);
        sum[0] += v;
        sum[1] += v * h(r, i, count);
      });
  if (db) from_dense(db, sums);
  if (dw) from_dense(dw, sums + c);
  if (!dx) return;
  T* const shares = launch.scratch<T>(3 * c);  // the means of g and of g h, and w rstd
  for (int64_t i = 0; i < 2 * c; ++i)
    shares[i] = fixed_stats ? T(0) : static_cast<T>(sums[i] / static_cast<double>(rows));
  for (int64_t i = 0; i < c; ++i) shares[2 * c + i] = inverse[i] * (weight ? weight[i] : T(1));
  parallel_ranges(rows, grain_of(c), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for_each_vec<T>(c, [&](int64_t i, int64_t count) {
        const auto share = [&](int k) { return read<T>(shares + k * c + i, count); };
        const Vec<T> v = g(r, i, count) - share(0) - h(r, i, count) * share(1);
        write(dx.as<O>() + r * c + i, v * share(2), count);
      });
  });
}

}  // namespace

void batch_stats(Launch& launch, In x, double eps, Out mean, Out var, Out rstd) {
  if (has_short_pieces(x))
    return batch_stats(launch, by_channel_copy(launch, x), eps, mean, var, rstd);
  const Channels z(x);
  visit_float(x.dtype, [&]<class S>() {
    using T = math_t<S>;
    if (z.inner == 1) return pixel_stats<S>(launch, x, eps, mean, var, rstd);
    parallel_ranges(z.c, grain_of(z.length()), [&](int64_t begin, int64_t end) {
      Buffer<T> run(z.length());
      for (int64_t c = begin; c < end; ++c) {
        z.gather(x.as<S>(), c, run.data());
        const auto m = moments_of<T, 1>(run.data(), z.length(), eps);
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
            const StandardScore<Vec<T>> score(read<T>(center + c, count),
                                              read<T>(scale + c, count));
            const Vec<T> v = score(read<T>(in + c, count));
            write(out + c, shift ? v + read<T>(shift + c, count) : v, count);
          });
          continue;
        }
        for (int64_t c = 0; c < z.c; ++c) {
          const StandardScore<Vec<T>> score(center[c], scale[c]);
          const Vec<T> plus(shift ? shift[c] : T(0));
          for_each_vec<T>(z.inner, [&](int64_t j, int64_t count) {
            write(out + c * z.inner + j, score(read<T>(in + c * z.inner + j, count)) + plus, count);
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
    if (z.inner == 1)
      return pixel_norm_grad<S, D, O>(launch, x, mean, rstd, w, dy, fixed_stats, dx, dw, db);
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
        const StandardScore<Vec<T>> score(center[c], inverse[c]);
        const double level =
            sum_over<T>(n, [&](int64_t i, int64_t count) { return read<T>(g + i, count); });
        const double slope = sum_over<T>(n, [&](int64_t i, int64_t count) {
          const Vec<T> v = score(read<T>(h + i, count));
          write(h + i, v, count);
          return keep(v * read<T>(g + i, count), count);
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

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
