// Losses other than cross-entropy (see nn/): elementwise losses, negative log-likelihood, and the
// dot products of cosine similarity.

#include <algorithm>
#include <cmath>

#include "kernels/common/losses.h"
#include "kernels/cpu/loops/elements.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

struct LossNumbers {
  double s, w;
};

template <class F, class Tx, class Ty>
void forward(void* const* p, int64_t n, const void* context) {
  using L = Vec<math_t<Tx>>;
  const Tx* const x = static_cast<const Tx*>(p[0]);
  const Tx* const t = static_cast<const Tx*>(p[1]);
  Ty* const y = static_cast<Ty*>(p[2]);
  const auto [factor, weight] = *static_cast<const LossNumbers*>(context);
  const L s = number<L>(factor), w = number<L>(weight);
  for (int64_t i = 0; i < n; i += L::width)
    store(y + i, F::f(get<Tx>(x + i), get<Tx>(t + i), s, w));
}

template <class F, class Tx, class Ty>
void backward(void* const* p, int64_t n, const void* context) {
  using L = Vec<math_t<Tx>>;
  const Tx* const x = static_cast<const Tx*>(p[0]);
  const Tx* const t = static_cast<const Tx*>(p[1]);
  const Ty* const dy = static_cast<const Ty*>(p[2]);
  Tx* const dx = static_cast<Tx*>(p[3]);
  Tx* const dt = static_cast<Tx*>(p[4]);
  const auto [factor, weight] = *static_cast<const LossNumbers*>(context);
  const L s = number<L>(factor), w = number<L>(weight);
  for (int64_t i = 0; i < n; i += L::width) {
    const L a = get<Tx>(x + i), b = get<Tx>(t + i), g = get<Tx>(dy + i);
    if (dx) store(dx + i, g * F::dx(a, b, s, w));
    if (dt) store(dt + i, g * F::dt(a, b, s, w));
  }
}

// Runs choose.operator()<F, Tx, Ty>(), the loop of a loss for an x and a y or dy of these dtypes.
// If it is computed in f64, floats of other dtypes pass through buffers.
template <class Choose>
void run_loss(Launch& launch, int op, DType x, DType y, Choose choose,
              std::initializer_list<const View*> views, const LossNumbers& numbers, int outputs) {
  visit_op(Losses{}, op, [&]<class F>() {
    if (loss_dtype<F>(x) == f64)
      return for_each_as(launch, f64, views, choose.template operator()<F, double, double>(),
                         &numbers, outputs);
    const ContiguousLoop loop = visit_float(x, y, [&]<class Tx, class Ty>() -> ContiguousLoop {
      return choose.template operator()<F, Tx, Ty>();
    });
    for_each_contiguous(launch, views, loop, &numbers, outputs);
  });
}

}  // namespace

void elementwise_loss(Launch& launch, int op, In x, In target, double s, double w, Out y) {
  run_loss(
      launch, op, x.dtype, y.dtype,
      []<class F, class Tx, class Ty>() { return &forward<F, Tx, Ty>; }, {&x, &target, &y}, {s, w},
      1);
}

void elementwise_loss_grad(Launch& launch, int op, In x, In target, double s, double w, In dy,
                           Out dx, Out dtarget) {
  run_loss(
      launch, op, x.dtype, dy.dtype,
      []<class F, class Tx, class Ty>() { return &backward<F, Tx, Ty>; },
      {&x, &target, &dy, &dx, &dtarget}, {s, w}, 2);
}

void nll_loss(Launch& launch, In x, In target, In weights, int64_t ignore, Out y) {
  const int64_t inner = x.shape()[2];
  const Shape& stride = x.strides();
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const T* const weight = to_dense<T>(launch, weights);
    parallel_ranges(target.size(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = target.as<int64_t>()[i];
        const S* const at = x.as<S>() + i / inner * stride[0] + i % inner * stride[2];
        const T value = c == ignore ? T(0) : -static_cast<T>(at[c * stride[1]]);
        y.as<O>()[i] = static_cast<O>(c != ignore && weight ? weight[c] * value : value);
      }
    });
  });
}

void nll_loss_grad(Launch& launch, In target, In weights, int64_t ignore, In dy, Out dx) {
  const int64_t classes = dx.shape()[1], inner = dx.shape()[2];
  fill(launch, 0, dx);
  visit_float(dx.dtype, [&]<class O>() {
    using T = math_t<O>;
    const T* const weight = to_dense<T>(launch, weights);
    const T* const g = to_dense<T>(launch, dy);
    parallel_ranges(target.size(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = target.as<int64_t>()[i];
        if (c == ignore) continue;
        const int64_t at = (i / inner * classes + c) * inner + i % inner;
        dx.as<O>()[at] = static_cast<O>(weight ? -weight[c] * g[i] : -g[i]);
      }
    });
  });
}

namespace {

// Sums of u v, u u and v v, with terms in T. Both halves of a row at once, so that fewer sums wait
// for the one before.
template <class T, class S>
std::array<double, 3> products_of(const S* u, const S* v, int64_t n) {
  const int64_t half = n / (2 * Vec<T>::width) * Vec<T>::width;
  const auto add = [=](int64_t i, int64_t count, Vec<T>* sums) MIXTAPE_INLINE_LAMBDA {
    const Vec<T> a = read<T>(u + i, count), b = read<T>(v + i, count);
    sums[0] = fma(a, b, sums[0]);
    sums[1] = fma(a, a, sums[1]);
    sums[2] = fma(b, b, sums[2]);
  };
  const auto both = sums_over<T, 6>(half, [=](int64_t i, int64_t count, auto& sums) {
    add(i, count, &sums[0]);
    add(half + i, count, &sums[3]);
  });
  const auto rest = sums_over<T, 3>(n - 2 * half, [=](int64_t i, int64_t count, auto& sums) {
    add(2 * half + i, count, &sums[0]);
  });
  return {both[0] + both[3] + rest[0], both[1] + both[4] + rest[1], both[2] + both[5] + rest[2]};
}

}  // namespace

void row_products(Launch&, In x, In y, Out products) {
  const int64_t n = x.shape()[1], rows = x.shape()[0];
  visit_float(x.dtype, [&]<class S>() {
    parallel_ranges(rows, grain_of(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const S *const u = x.as<S>() + r * n, *const v = y.as<S>() + r * n;
        auto sums = products_of<math_t<S>>(u, v, n);
        if (!std::ranges::all_of(sums, [](double s) { return squares_in_range(std::abs(s)); }))
          sums = products_of<double>(u, v, n);
        std::copy_n(sums.data(), 3, products.as<double>() + 3 * r);
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
