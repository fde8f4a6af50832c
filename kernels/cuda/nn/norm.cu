// Layer, RMS and group norm over rows. A row that fits in registers is read once; mean and variance
// are computed in one pass.

#include "kernels/common/scalar.h"
#include "kernels/common/visit_narrow.h"
#include "kernels/cuda/nn/channels.cuh"

namespace mixtape::kernels::cuda {
namespace {

// The weights and biases of a row, dense: by column, or by channel of `inner` elements.
template <class T>
struct Affine {
  Parameter<T> w, b;
  int64_t groups = 1, channels = 1, inner = 0;  // inner 0: by column

  template <int n>
  __device__ void load(int64_t row, int64_t column, T (&scale)[n], T (&shift)[n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) scale[i] = T(1), shift[i] = T(0);
    if (inner == 0) {
      if (w) w.load_dense(column, scale);
      if (b) b.load_dense(column, shift);
      return;
    }
    const int64_t of_row = quotient(column, inner), left = (of_row + 1) * inner - column;
    const int64_t channel = (row - quotient(row, groups) * groups) * channels + of_row;
    if (w) w.repeat(channel, left, inner, scale);
    if (b) b.repeat(channel, left, inner, shift);
  }
};

// A weight or bias, which may be absent, or a dense copy of it.
View dense(Launch& launch, const View& v) {
  if (!v || v.layout.is_contiguous()) return v;
  return visit_float(v.dtype, [&]<class S>() {
    const View copy{launch.scratch<S>(v.size()), v.dtype, Layout(v.shape())};
    convert(launch, v, copy);
    return copy;
  });
}

template <class S, class O>
MIXTAPE_ROW_KERNEL norm_rows(Rows rows, const S* x, Affine<gpu::math_t<S>> affine,
                             gpu::math_t<S> eps, O y, gpu::math_t<S>* mean, gpu::math_t<S>* rstd) {
  using T = gpu::math_t<S>;
  RowTask<Packing<typename O::Smallest, S>> row(rows);
  auto in = row.load(x);
  const T origin = mean && row.exists ? T(gpu::widen(x[row.index * rows.n])) : T(0);
  Moments<T> m;
  row.for_each([&]<int n>(int64_t, const S(&v)[n]) { m.add(v, origin, mean != nullptr); }, in);
  m = joined(row.group, m);
  T center = origin + m.mean, inverse = T(1) / sqrt(m.var() + eps);
  if constexpr (std::is_same_v<T, float>)
    if (gpu::any_lane(row.exists && !m.in_range(eps))) {
      Moments<double> wide;
      row.for_each_again(
          [&]<int n>(int64_t, const S(&v)[n]) { wide.add(v, origin, mean != nullptr); }, in);
      wide = joined(row.group, wide);
      center = T(origin + wide.mean);
      inverse = T(1 / sqrt(wide.var() + eps));
    }
  if (row.leads) {
    if (mean) mean[row.index] = center;
    rstd[row.index] = inverse;
  }
  const StandardScore<T> score(center, inverse);
  row.for_each(
      [&]<int n>(int64_t column, const S(&v)[n]) {
        T scale[n], out[n];
        affine.load(row.index, column, scale, out);
#pragma unroll
        for (int i = 0; i < n; ++i) out[i] += score(gpu::widen(v[i])) * scale[i];
        row.store(y, column, out);
      },
      in);
}

// dx = rstd (g - mean(g) - h mean(g h)) with h = (x - mean) rstd and g = dy w. Without a mean,
// mean(g) is left out. The sums over a row are computed here, or come from those of its channels.
// `added` is nothing or one tensor that is added to dx, and may be dx.
template <class S, class D, class O, class... Added>
MIXTAPE_ROW_KERNEL norm_grad_rows(Rows rows, const S* x, const D* dy, Affine<gpu::math_t<S>> affine,
                                  const gpu::math_t<S>* mean, const gpu::math_t<S>* rstd,
                                  const Sums<gpu::math_t<S>, 2>* of_channels, O dx,
                                  const Added*... added) {
  using T = gpu::math_t<S>;
  RowTask<Packing<typename O::Smallest, S, D, Added...>> row(rows);
  auto xs = row.load(x);
  auto dys = row.load(dy);
  const T inverse = row.exists ? rstd[row.index] : T(0);
  const StandardScore<T> score(mean && row.exists ? mean[row.index] : T(0), inverse);
  const auto finish = [&](auto... more) {  // (a lambda, so that it is loaded with the others)
    Sums<T, 2> sums;                       // of g h and g
    if (!of_channels) {
      row.for_each(
          [&]<int n>(int64_t column, const S(&v)[n], const D(&d)[n]) {
            T scale[n], none[n];
            affine.load(row.index, column, scale, none);
#pragma unroll
            for (int i = 0; i < n; ++i) {
              const T g = fma(T(gpu::widen(d[i])), scale[i], T(0));
              sums.v[0] += g * score(gpu::widen(v[i]));
              sums.v[1] += g;
            }
          },
          xs, dys);
    } else if (row.exists) {
      for (int64_t k = row.group.index; k < affine.channels; k += row.group.size) {
        T scale[1], none[1];
        affine.load(row.index, k * affine.inner, scale, none);
        const auto of_channel = of_channels[row.index * affine.channels + k];
        for (int i = 0; i < 2; ++i) sums.v[i] += of_channel.v[i] * scale[0];
      }
    }
    sums = joined(row.group, sums);
    const T slope = sums.v[0] / T(rows.n), level = mean ? sums.v[1] / T(rows.n) : T(0);
    row.for_each(
        [&]<int n>(int64_t column, const S(&v)[n], const D(&d)[n], const auto&... a) {
          T scale[n], out[n];
          affine.load(row.index, column, scale, out);
#pragma unroll
          for (int i = 0; i < n; ++i) {
            const T h = score(gpu::widen(v[i]));
            const T g = fma(T(gpu::widen(d[i])), scale[i], T(0));
            out[i] = (g - level - h * slope) * inverse;
            ((out[i] += gpu::widen(a[i])), ...);
          }
          row.store(dx, column, out);
        },
        xs, dys, more...);
  };
  finish(row.load(added)...);
}

}  // namespace

void layer_norm(Launch& launch, In x, In w, In b, double eps, Out y, Out mean, Out rstd) {
  const int64_t n = x.shape()[-1];
  if (x.size() == 0) return;
  visit_float_or_narrow(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = gpu::math_t<S>;
    launch_rows<Packing<O, S>>(launch, "layer_norm", x.size() / n, n, norm_rows<S, OutputOf<S, O>>,
                               x.as<S>(), Affine<T>{dense(launch, w), dense(launch, b)}, T(eps), y,
                               mean.as<T>(), rstd.as<T>());
  });
}

void layer_norm_grad(Launch& launch, In x, In w, In mean, In rstd, In dy, In added, Out dx, Out dw,
                     Out db) {
  const int64_t n = x.shape()[-1], rows = n ? x.size() / n : 0;
  visit_float(x.dtype, dy.dtype, dx ? dx.dtype : x.dtype, [&]<class S, class D, class O>() {
    using T = gpu::math_t<S>;
    const auto rows_of = [&]<class... A>(const A*... more) {
      using To = std::conditional_t<sizeof...(A) == 0, OutputOf<S, O>, Output<O>>;
      launch_rows<Packing<O, S, D, A...>>(
          launch, "layer_norm_grad", rows, n, norm_grad_rows<S, D, To, A...>, x.as<S>(), dy.as<D>(),
          Affine<T>{dense(launch, w), {}}, mean.as<T>(), rstd.as<T>(), nullptr, dx, more...);
    };
    if (dx && added)
      rows_of(added.as<const O>());
    else if (dx)
      rows_of();
    if (dw || db)
      columns(launch, NormSums<T>{mean.as<T>(), rstd.as<T>(), true, 1, dw, db}, rows, n,
              x.as<const S>(), dy.as<const D>());
  });
}

// Each group is a row of channels, which have a weight and a bias each.
void group_norm(Launch& launch, In x, int64_t groups, In w, In b, double eps, Out y, Out mean,
                Out rstd) {
  if (x.size() == 0) return;
  const int64_t inner = x.shape()[2], channels = x.shape()[1] / groups, n = channels * inner;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = gpu::math_t<S>;
    launch_rows<Packing<O, S>>(
        launch, "group_norm", x.size() / n, n, norm_rows<S, OutputOf<S, O>>, x.as<S>(),
        Affine<T>{dense(launch, w), dense(launch, b), groups, channels, inner}, T(eps), y,
        mean.as<T>(), rstd.as<T>());
  });
}

// The sums of each channel of each image give dw and db and, times w, the sums over groups.
void group_norm_grad(Launch& launch, In x, int64_t groups, In w, In mean, In rstd, In dy, Out dx,
                     Out dw, Out db) {
  const int64_t images = x.shape()[0], all = x.shape()[1], inner = x.shape()[2],
                channels = all / groups;
  visit_float(x.dtype, dy.dtype, dx ? dx.dtype : x.dtype, [&]<class S, class D, class O>() {
    using T = gpu::math_t<S>;
    const NormSums<T> f{mean.as<T>(), rstd.as<T>(), false, channels, dw, db};
    Sums<T, 2>* sums = nullptr;
    if (images * all > 0)
      channel_parts(launch, f, 1, images * all, inner, x.as<const S>(), dy.as<const D>(), 1, sums);
    if (dx && x.size() > 0)
      launch_rows<Packing<O, S, D>>(launch, "group_norm_grad", images * groups, channels * inner,
                                    norm_grad_rows<S, D, OutputOf<S, O>>, x.as<S>(), dy.as<D>(),
                                    Affine<T>{dense(launch, w), {}, groups, channels, inner},
                                    mean.as<T>(), rstd.as<T>(), sums, dx);
    if (dw || db) finish(launch, f, images, all, sums);
  });
}

void norm_sums(Launch& launch, In x, In dy, In mean, In rstd, Out dw, Out db, void* total) {
  const int64_t n = x.shape()[0], c = x.shape()[1], inner = x.size() ? x.size() / (n * c) : 0;
  visit_float(x.dtype, dy.dtype, [&]<class S, class D>() {
    using T = gpu::math_t<S>;
    channels(launch, NormSums<T>{mean.as<T>(), rstd.as<T>(), false, 1, dw, db}, n, c, inner,
             x.as<const S>(), dy.as<const D>(), static_cast<Sums<T, 2>*>(total));
  });
}

}  // namespace mixtape::kernels::cuda
