// Batch norm over channels: a sum over each channel in parts, then a map over the elements.

#include "kernels/common/scalar.h"
#include "kernels/cuda/nn/channels.cuh"

namespace mixtape::kernels::cuda {
namespace {

template <class S>
struct BatchStats {
  using T = gpu::math_t<S>;
  using V = Moments<T>;
  const S* x;
  int64_t images, channels, inner;
  T eps, *mean, *var, *rstd;

  __device__ T at(int64_t, int64_t c) const { return gpu::widen(x[c * inner]); }
  template <int n>
  __device__ void add(T origin, V& sums, const S (&values)[n], const S (&)[n]) const {
    sums.add(values, origin);
  }
  __device__ void finish(int64_t c, const V& sums) const {
    mean[c] = at(0, c) + sums.mean;
    var[c] = sums.var();
    rstd[c] = T(1) / sqrt(sums.var() + eps);
    if constexpr (std::is_same_v<T, float>)
      if (!sums.in_range(eps)) sum_in_f64(c);
  }

 private:
  // Rare: by one thread, up to a number that is not finite.
  __device__ void sum_in_f64(int64_t c) const {
    Moments<double> wide;
    for (int64_t i = 0; i < images; ++i)
      for (int64_t k = 0; k < inner; ++k) {
        const S value[1] = {x[(i * channels + c) * inner + k]};
        if (gpu::widen(value[0]) - gpu::widen(value[0]) != 0) return;
        wide.add(value, 0.0);
      }
    mean[c] = T(wide.mean);
    var[c] = T(wide.var());
    rstd[c] = T(1 / sqrt(wide.var() + eps));
  }
};

// y = (x - mean) rstd w + b
template <class T>
struct Normalise {
  const T *mean, *rstd;
  Parameter<T> w, b;

  struct Constants {
    StandardScore<T> score;
    T shift;
  };
  __device__ Constants at(int64_t c) const {
    return {{mean[c], w ? rstd[c] * w[c] : rstd[c]}, b ? b[c] : T(0)};
  }
  __device__ T operator()(const Constants& k, T x, T) const { return k.score(x) + k.shift; }
};

// dx = w rstd (dy - mean(dy) - h mean(dy h)) with h = (x - mean) rstd; with fixed statistics dx = w
// rstd dy.
template <class T>
struct NormaliseGrad {
  const T *mean, *rstd;
  Parameter<T> w;
  const Sums<T, 2>* sums;  // of dy h and dy; null: statistics are fixed
  T per;

  struct Constants {
    StandardScore<T> score;
    T scale, slope, level;
  };
  __device__ Constants at(int64_t c) const {
    return {{mean[c], rstd[c]},
            w ? rstd[c] * w[c] : rstd[c],
            sums ? sums[c].v[0] * per : T(0),
            sums ? sums[c].v[1] * per : T(0)};
  }
  __device__ T operator()(const Constants& k, T x, T dy) const {
    return (dy - k.level - k.score(x) * k.slope) * k.scale;
  }
};

// y = f(constants of the channel, x, dy) for x and dy [.., c, inner]. A pack that spans channels is
// handled element by element.
template <class F, class S, class D, class O>
__global__ void map_channels(F f, int64_t count, int64_t c, int64_t inner, bool aligned, const S* x,
                             const D* dy, O* y) {
  constexpr int width = Packing<O, S, D>::width;
  const int64_t packs = ceil_div(count, width), all = gpu::all_threads();
  for (int64_t r = gpu::global_thread(); r < packs; r += all) {
    const int64_t begin = r * width, plane = quotient(begin, inner);
    int64_t channel = plane - quotient(plane, c) * c, left = (plane + 1) * inner - begin;
    auto constants = f.at(channel);
    if (left >= width && begin + width <= count) {
      S v[width];
      D g[width];
      gpu::math_t<S> out[width];
      load_vec(x + begin, aligned, v);
      load_vec(dy + begin, aligned, g);
#pragma unroll
      for (int i = 0; i < width; ++i) out[i] = f(constants, gpu::widen(v[i]), gpu::widen(g[i]));
      store_vec(y + begin, aligned, out);
      continue;
    }
#pragma unroll 1
    for (int64_t i = begin; i < std::min(begin + width, count); ++i) {
      if (left-- == 0) {
        channel = channel + 1 == c ? 0 : channel + 1;
        left = inner - 1;
        constants = f.at(channel);
      }
      y[i] = gpu::round_to<O>(f(constants, gpu::widen(x[i]), gpu::widen(dy[i])));
    }
  }
}

struct Channels {
  int64_t n, c, inner;
  explicit Channels(In x)
      : n(x.shape()[0]), c(x.shape()[1]), inner(x.size() ? x.size() / (n * c) : 0) {}
};

template <class F, class S, class D, class O>
void map_all(Launch& launch, const char* name, F f, In x, const D* dy, O* y) {
  const int64_t count = x.size();
  if (count == 0) return;
  const Channels z(x);
  constexpr int width = Packing<O, S, D>::width;
  const S* const from = x.as<const S>();
  const bool aligned = is_aligned<width>(from) && is_aligned<width>(dy) && is_aligned<width>(y);
  gpu::launch_over(launch, name, ceil_div(count, width), map_channels<F, S, D, O>, f, count, z.c,
                   z.inner, aligned, from, dy, y);
}

}  // namespace

void batch_stats(Launch& launch, In x, double eps, Out mean, Out var, Out rstd) {
  const Channels z(x);
  visit_float(x.dtype, [&]<class S>() {
    using T = gpu::math_t<S>;
    const S* const from = x.as<S>();
    channels(
        launch,
        BatchStats<S>{from, z.n, z.c, z.inner, T(eps), mean.as<T>(), var.as<T>(), rstd.as<T>()},
        z.n, z.c, z.inner, from, from);
  });
}

void batch_norm(Launch& launch, In x, In mean, In rstd, In w, In b, Out y) {
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = gpu::math_t<S>;
    map_all<Normalise<T>, S>(launch, "batch_norm", {mean.as<T>(), rstd.as<T>(), w, b}, x,
                             x.as<const S>(), y.as<O>());
  });
}

void batch_norm_grad(Launch& launch, In x, In mean, In rstd, In w, In dy, bool fixed_stats, Out dx,
                     Out dw, Out db) {
  const Channels z(x);
  visit_float(x.dtype, dy.dtype, dx ? dx.dtype : x.dtype, [&]<class S, class D, class O>() {
    using T = gpu::math_t<S>;
    Sums<T, 2>* sums = nullptr;
    if (dx && !fixed_stats) sums = launch.scratch<Sums<T, 2>>(z.c);
    if (sums || dw || db) norm_sums(launch, x, dy, mean, rstd, dw, db, sums);
    if (dx)
      map_all<NormaliseGrad<T>, S>(
          launch, "batch_norm_grad",
          {mean.as<T>(), rstd.as<T>(), w, sums, T(1) / T(std::max<int64_t>(1, z.n * z.inner))}, x,
          dy.as<const D>(), dx.as<O>());
  });
}

}  // namespace mixtape::kernels::cuda
