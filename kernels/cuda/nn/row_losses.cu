// Losses over rows: cross-entropy, negative log-likelihood, and the products of a cosine.

#include "kernels/common/softmax.h"
#include "kernels/common/visit_narrow.h"
#include "kernels/cuda/nn/online_log_sum_exp.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// (The host reports a target out of range after these kernels ran; they ignore it, so that they
// read no foreign memory.)
inline __device__ bool is_class(int64_t at, int64_t ignore, int64_t classes) {
  return at != ignore && uint64_t(at) < uint64_t(classes);
}

// The weighted target distribution q = w ((1 - smoothing) p + smoothing / n). With a class as the
// target, q of that class is kept apart.
template <class T>
struct Targets {
  const int64_t* classes = nullptr;  // one per row; null: probabilities p of all classes
  Parameter<T> p, w;
  int64_t ignore, n;
  T kept, even;

  Targets(const View& target, const View& weights, int64_t ignore, double smoothing, int64_t n)
      : w(weights),
        ignore(ignore),
        n(n),
        kept(T(1 - smoothing)),
        even(T(smoothing / double(std::max<int64_t>(1, n)))) {
    if (is_float(target.dtype))
      p = target;
    else
      classes = target.as<const int64_t>();
  }

  struct OfRow {
    int64_t at = -1;      // the target class, or -1
    T mass = T(0);        // the one-hot part of q
    bool spread = false;  // q is not 0 outside of the target class
  };
  __device__ OfRow of_row(int64_t row) const {
    if (p) return {-1, T(0), true};
    const int64_t at = classes[row];
    if (!is_class(at, ignore, n)) return {};
    return {at, w ? w[at] * kept : kept, even != T(0)};
  }
  // q of some classes of a row, without the one-hot part.
  template <int n>
  __device__ void load(int64_t row_begin, int64_t column, T (&q)[n]) const {
    if (p) p.load(row_begin, column, q);
#pragma unroll
    for (int i = 0; i < n; ++i) q[i] = p ? q[i] * kept + even : even;
    if (!w) return;
    T weight[n];
    w.load(0, column, weight);
#pragma unroll
    for (int i = 0; i < n; ++i) q[i] *= weight[i];
  }
};

// With log p = x - top - log(sum(exp(x - top))): loss = -sum(q log p).
template <class S, class O>
MIXTAPE_ROW_KERNEL cross_entropy_rows(Rows rows, const S* x, Targets<gpu::math_t<S>> targets,
                                      O loss, gpu::math_t<S>* lse) {
  using T = gpu::math_t<S>;
  RowTask<Packing<S, S>> row(rows);
  auto in = row.load(x);
  OnlineLogSumExp<T> exps;
  row.for_each([&]<int n>(int64_t, const S(&v)[n]) { exps.add(v); }, in);
  exps = joined(row.group, exps);
  const T log_sum = exps.log_sum();
  const int64_t begin = row.index * rows.n;
  typename Targets<T>::OfRow target;
  if (row.exists) target = targets.of_row(row.index);
  Sums<T, 3> sums;  // of -q log p, q, and q where x is not the maximum, without the one-hot part
  if (target.spread)
    row.for_each(
        [&]<int n>(int64_t column, const S(&v)[n]) {
          T q[n];
          targets.load(begin, column, q);
#pragma unroll
          for (int i = 0; i < n; ++i) {
            const T below_top = exps.top - gpu::widen(v[i]);
            sums.v[0] += q[i] == T(0) ? T(0) : q[i] * (below_top + log_sum);
            sums.v[1] += q[i];
            sums.v[2] += below_top == T(0) ? T(0) : q[i];
          }
        },
        in);
  sums = joined(row.group, sums);
  if (!row.leads) return;
  if (target.mass != T(0)) {
    const T below_top = exps.top - gpu::widen(x[row.index * rows.stride + target.at]);
    sums.v[0] += target.mass * (below_top + log_sum);
    sums.v[1] += target.mass;
    if (below_top != T(0)) sums.v[2] += target.mass;
  }
  loss.set(row.index, sums.v[0]);
  T* const kept = lse + 4 * row.index;
  kept[0] = exps.top;
  kept[1] = log_sum;
  kept[2] = sums.v[1];
  kept[3] = is_likely(true, -log_sum) ? sums.v[2] : T(0);
}

// dx = dloss (p sum(q) - q)
template <class S, class O>
MIXTAPE_ROW_KERNEL cross_entropy_grad_rows(Rows rows, const S* x, Targets<gpu::math_t<S>> targets,
                                           const gpu::math_t<S>* lse,
                                           Parameter<gpu::math_t<S>> dloss, O dx) {
  using T = gpu::math_t<S>;
  RowTask<Packing<typename O::Smallest, S>> row(rows);
  if (!row.exists) return;
  const auto target = targets.of_row(row.index);
  const bool counts = target.at >= 0 || target.spread;
  const int64_t begin = row.index * rows.n;
  const T *const kept = lse + 4 * row.index, top = kept[0], log_sum = kept[1], total = kept[2],
                 others = kept[3], scale = dloss[row.index];
  auto in = row.load(x);
  row.for_each(
      [&]<int n>(int64_t column, const S(&v)[n]) {
        T q[n] = {}, out[n] = {};
        if (target.spread) targets.load(begin, column, q);
        if (counts) {
#pragma unroll
          for (int i = 0; i < n; ++i) {
            if (column + i == target.at) q[i] += target.mass;
            out[i] = scale * logit_slope(gpu::widen(v[i]) - top - log_sum, q[i], total, others);
          }
        }
        row.store(dx, column, out);
      },
      in);
}

// In f64: squares of f32 numbers leave the range of f32.
template <class S>
MIXTAPE_ROW_KERNEL row_products_rows(Rows rows, const S* x, const S* y, double* products) {
  RowTask<Packing<S, S, S>> row(rows);
  auto xs = row.load(x);
  auto ys = row.load(y);
  Sums<double, 3> sums;
  row.for_each(
      [&]<int n>(int64_t, const S(&a)[n], const S(&b)[n]) {
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const double u = gpu::widen(a[i]), v = gpu::widen(b[i]);
          sums.v[0] += u * v;
          sums.v[1] += u * u;
          sums.v[2] += v * v;
        }
      },
      xs, ys);
  sums = joined(row.group, sums);
  if (!row.leads) return;
  for (int i = 0; i < 3; ++i) products[3 * row.index + i] = sums.v[i];
}

template <class S, class O>
__global__ void nll_loss_of(int64_t count, int64_t inner, int64_t image, int64_t class_step,
                            int64_t step, int64_t classes, const int64_t* target, int64_t ignore,
                            const S* x, Parameter<gpu::math_t<S>> w, O* y) {
  using T = gpu::math_t<S>;
  for (int64_t i = gpu::global_thread(); i < count; i += gpu::all_threads()) {
    const int64_t c = target[i], row = quotient(i, inner);
    T value(0);
    if (is_class(c, ignore, classes)) {
      value = -gpu::widen(x[row * image + c * class_step + (i - row * inner) * step]);
      if (w) value = w[c] * value;
    }
    y[i] = gpu::round_to<O>(value);
  }
}

// One thread for each element of dx [n, classes, inner]: non-zero if its class is the target.
template <class T, class O>
__global__ void nll_loss_grad_of(int64_t count, int64_t classes, int64_t inner,
                                 const int64_t* target, int64_t ignore, Parameter<T> w,
                                 Parameter<T> dy, O* dx) {
  for (int64_t i = gpu::global_thread(); i < count; i += gpu::all_threads()) {
    const int64_t plane = quotient(i, inner), row = quotient(plane, classes),
                  c = plane - row * classes, at = row * inner + (i - plane * inner);
    T value(0);
    if (target[at] == c && c != ignore) value = w ? -w[c] * dy[at] : -dy[at];
    dx[i] = gpu::round_to<O>(value);
  }
}

// From a row of x, or of dx, to the next one.
int64_t row_stride(const View& x) { return x.layout.rank() < 2 ? x.shape()[-1] : x.strides()[-2]; }

}  // namespace

void cross_entropy(Launch& launch, In x, In target, In w, int64_t ignore, double smoothing,
                   Out loss, Out lse) {
  const int64_t n = x.shape()[-1];
  visit_float(x.dtype, loss.dtype, [&]<class S, class O>() {
    using T = gpu::math_t<S>;
    launch_strided_rows<Packing<S, S>>(launch, "cross_entropy", loss.size(), n, row_stride(x),
                                       cross_entropy_rows<S, OutputOf<S, O>>, x.as<S>(),
                                       Targets<T>(target, w, ignore, smoothing, n), loss,
                                       lse.as<T>());
  });
}

void cross_entropy_grad(Launch& launch, In x, In target, In w, In lse, In dloss, int64_t ignore,
                        double smoothing, Out dx) {
  const int64_t n = x.shape()[-1];
  visit_float_or_narrow(x.dtype, dx.dtype, [&]<class S, class O>() {
    using T = gpu::math_t<S>;
    launch_strided_rows<Packing<O, S>>(launch, "cross_entropy_grad", dloss.size(), n, row_stride(x),
                                       cross_entropy_grad_rows<S, OutputOf<S, O>>, x.as<S>(),
                                       Targets<T>(target, w, ignore, smoothing, n), lse.as<T>(),
                                       dloss, dx);
  });
}

void row_products(Launch& launch, In x, In y, Out products) {
  visit_float(x.dtype, [&]<class S>() {
    launch_rows<Packing<S, S, S>>(launch, "row_products", x.shape()[0], x.shape()[1],
                                  row_products_rows<S>, x.as<S>(), y.as<S>(),
                                  products.as<double>());
  });
}

void nll_loss(Launch& launch, In x, In target, In w, int64_t ignore, Out y) {
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    gpu::launch_over(launch, "nll_loss", y.size(), nll_loss_of<S, O>, y.size(), x.shape()[2],
                     x.strides()[0], x.strides()[1], x.strides()[2], x.shape()[1],
                     target.as<int64_t>(), ignore, x.as<S>(), w, y.as<O>());
  });
}

void nll_loss_grad(Launch& launch, In target, In w, int64_t ignore, In dy, Out dx) {
  visit_float(dx.dtype, [&]<class O>() {
    gpu::launch_over(launch, "nll_loss_grad", dx.size(), nll_loss_grad_of<gpu::math_t<O>, O>,
                     dx.size(), dx.shape()[1], dx.shape()[2], target.as<int64_t>(), ignore, w, dy,
                     dx.as<O>());
  });
}

}  // namespace mixtape::kernels::cuda
