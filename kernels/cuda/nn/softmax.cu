// Softmax, optionally masked, log-softmax and log-sum-exp over rows. A row of -inf gives NaN.

#include "kernels/common/softmax.h"
#include "kernels/common/visit_narrow.h"
#include "kernels/cuda/elementwise/elementwise.cuh"
#include "kernels/cuda/nn/online_log_sum_exp.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// Softmax of an element of a row, or its logarithm.
template <class T>
class SoftmaxOf {
 public:
  __device__ SoftmaxOf(bool log, const OnlineLogSumExp<T>& sum)
      : log_(log), top_(sum.top), log_sum_(sum.log_sum()), scale_(T(1) / sum.sum()) {}
  __device__ T operator()(T x) const { return log_ ? x - top_ - log_sum_ : exp(x - top_) * scale_; }

 private:
  bool log_;
  T top_, log_sum_, scale_;
};

template <class S, class O>
MIXTAPE_ROW_KERNEL softmax_rows(Rows rows, bool log_of, const S* x, O y) {
  using T = gpu::math_t<S>;
  RowTask<Packing<typename O::Smallest, S>> row(rows);
  auto in = row.load(x);
  OnlineLogSumExp<T> sum;
  row.for_each([&]<int n>(int64_t, const S(&v)[n]) { sum.add(v); }, in);
  sum = joined(row.group, sum);
  const SoftmaxOf<T> softmax(log_of, sum);
  row.for_each(
      [&]<int n>(int64_t column, const S(&v)[n]) {
        T out[n];
#pragma unroll
        for (int i = 0; i < n; ++i) out[i] = softmax(gpu::widen(v[i]));
        row.store(y, column, out);
      },
      in);
}

// `of_input`: y is x, of which the result is computed again.
template <bool of_input, class S, class D, class O>
MIXTAPE_ROW_KERNEL softmax_grad_rows(Rows rows, bool log_of, const S* y, const D* dy, O dx) {
  using T = gpu::math_t<S>;
  RowTask<Packing<typename O::Smallest, S, D>> row(rows);
  auto ys = row.load(y);
  auto dys = row.load(dy);
  OnlineLogSumExp<T> exps;
  if constexpr (of_input) {
    row.for_each([&]<int n>(int64_t, const S(&v)[n]) { exps.add(v); }, ys);
    exps = joined(row.group, exps);
  }
  const SoftmaxOf<T> softmax(log_of, exps);
  const auto result = [&](S v) {
    if constexpr (of_input)
      return softmax(gpu::widen(v));
    else
      return gpu::widen(v);
  };
  Sums<T, 4> sum;
  row.for_each(
      [&]<int n>(int64_t, const S(&v)[n], const D(&g)[n]) {
#pragma unroll
        for (int i = 0; i < n; ++i)
          add_to_slope(log_of, T(result(v[i])), T(gpu::widen(g[i])), sum.v);
      },
      ys, dys);
  sum = joined(row.group, sum);
  const SoftmaxSlope<T> slope(log_of, sum.v[0], sum.v[1], sum.v[2], sum.v[3]);
  row.for_each(
      [&]<int n>(int64_t column, const S(&v)[n], const D(&g)[n]) {
        T out[n];
#pragma unroll
        for (int i = 0; i < n; ++i) out[i] = slope(T(result(v[i])), T(gpu::widen(g[i])));
        row.store(dx, column, out);
      },
      ys, dys);
}

template <class S, class O>
MIXTAPE_ROW_KERNEL logsumexp_rows(Rows rows, const S* x, O y) {
  using T = gpu::math_t<S>;
  RowTask<Packing<S, S>> row(rows);
  auto in = row.load(x);
  OnlineLogSumExp<T> sum;
  row.for_each([&]<int n>(int64_t, const S(&v)[n]) { sum.add(v); }, in);
  sum = joined(row.group, sum);
  constexpr T largest = std::numeric_limits<T>::max();
  const bool finite = sum.top >= -largest && sum.top <= largest;
  if (row.leads) y.set(row.index, finite ? sum.top + sum.log_sum() : sum.top);
}

// A mask or a bias: its values, and a walk over the rows above its last dimension.
template <class V>
struct RowOperand {
  V values;
  Walk<1> rows;

  explicit RowOperand(const View& v) : values(v) {
    if (!v) return;
    Layout above = v.layout;
    --above.shape.rank, --above.strides.rank;
    collapse(std::array{&above});
    rows = walk_of<1>({&above});
  }
  __device__ int64_t begin(int64_t row) const {
    int64_t at[1];
    rows.find(row, at);
    return at[0];
  }
};

struct Allowed {
  const bool* data;
  int64_t step = 1;

  explicit Allowed(const View& v) : data(v.as<const bool>()) {
    if (v) step = v.strides()[-1];
  }
  template <int count>
  __device__ void load(int64_t first, int64_t i, bool (&v)[count]) const {
    const bool* const p = data + first + i * step;
    if (step == 1) return load_vec(p, is_aligned<count>(p), v);
#pragma unroll
    for (int e = 0; e < count; ++e) v[e] = p[e * step];
  }
};

template <class S, class O>
MIXTAPE_ROW_KERNEL masked_softmax_rows(Rows rows, const S* x, RowOperand<Allowed> mask,
                                       RowOperand<Parameter<gpu::math_t<S>>> bias, bool causal,
                                       int64_t queries, gpu::math_t<S> scale, O y) {
  using T = gpu::math_t<S>;
  RowTask<Packing<typename O::Smallest, S>> row(rows);
  int64_t seen = rows.n, mask_row = 0, bias_row = 0;
  if (row.exists) {
    if (causal) seen = std::min(seen, row.index - quotient(row.index, queries) * queries + 1);
    if (mask.values.data) mask_row = mask.begin(row.index);
    if (bias.values.data) bias_row = bias.begin(row.index);
  }
  row.limit(seen);
  auto in = row.load(x);
  const auto scores = [&]<int n>(int64_t column, const S(&v)[n], T(&score)[n]) {
    constexpr T masked = T(-std::numeric_limits<float>::infinity());
#pragma unroll
    for (int i = 0; i < n; ++i) score[i] = gpu::widen(v[i]) * scale;
    if (bias.values.data) {
      T more[n];
      bias.values.load(bias_row, column, more);
#pragma unroll
      for (int i = 0; i < n; ++i) score[i] += more[i];
    }
    if (mask.values.data) {
      bool allowed[n];
      mask.values.load(mask_row, column, allowed);
#pragma unroll
      for (int i = 0; i < n; ++i) score[i] = allowed[i] ? score[i] : masked;
    }
#pragma unroll
    for (int i = 0; i < n; ++i) score[i] = column + i < seen ? score[i] : masked;
  };
  OnlineLogSumExp<T> sum;
  row.for_each(
      [&]<int n>(int64_t column, const S(&v)[n]) {
        if (column >= seen) return;
        T score[n];
        scores(column, v, score);
        sum.add(score);
      },
      in);
  sum = joined(row.group, sum);
  const bool none = sum.top < std::numeric_limits<T>::lowest();
  const T share = T(1) / sum.sum();
  row.for_each(
      [&]<int n>(int64_t column, const S(&v)[n]) {
        T out[n] = {};
        if (!none && column < seen) {
          scores(column, v, out);
#pragma unroll
          for (int i = 0; i < n; ++i)
            out[i] = column + i < seen ? exp(out[i] - sum.top) * share : T(0);
        }
        row.store(y, column, out);
      },
      in);
}

}  // namespace

void softmax(Launch& launch, bool log, In x, Out y) {
  const int64_t n = x.shape()[-1];
  if (x.size() == 0) return;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    launch_rows<Packing<O, S>>(launch, "softmax", x.size() / n, n, softmax_rows<S, OutputOf<S, O>>,
                               log, x.as<S>(), y);
  });
}

void softmax_grad(Launch& launch, bool log, In y, In dy, Out dx) {
  const int64_t n = y.shape()[-1];
  if (y.size() == 0) return;
  const auto run = [&]<class S, class D, class O>() {
    launch_rows<Packing<O, S, D>>(launch, "softmax_grad", y.size() / n, n,
                                  softmax_grad_rows<false, S, D, OutputOf<S, O>>, log, y.as<S>(),
                                  dy.as<D>(), dx);
  };
  // For an f16 or bf16 input with an f32 result, y and dy are f32.
  if (is_half(dx.dtype) && y.dtype == f32)
    visit_float(dx.dtype, [&]<class O>() { run.template operator()<float, float, O>(); });
  else
    visit_float(y.dtype, dy.dtype, dx.dtype, run);
}

void softmax_input_grad(Launch& launch, bool log, In x, In dy, Out dx) {
  const int64_t n = x.shape()[-1];
  if (x.size() == 0) return;
  visit_half(x.dtype, [&]<class S>() {
    launch_rows<Packing<S, S, S>>(launch, "softmax_input_grad", x.size() / n, n,
                                  softmax_grad_rows<true, S, S, OutputOf<S, S>>, log, x.as<S>(),
                                  dy.as<S>(), dx);
  });
}

void logsumexp(Launch& launch, In x, Out y) {
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    launch_rows<Packing<S, S>>(launch, "logsumexp", y.size(), x.shape()[-1],
                               logsumexp_rows<S, OutputOf<S, O>>, x.as<S>(), y);
  });
}

void masked_softmax(Launch& launch, In x, In mask, In bias, bool causal, double scale, Out y) {
  const int64_t n = x.shape()[-1], queries = x.shape()[-2];
  if (x.size() == 0) return;
  visit_float(y.dtype, x.dtype, [&]<class O, class S>() {
    using T = gpu::math_t<S>;
    launch_rows<Packing<O, S>>(launch, "masked_softmax", x.size() / n, n,
                               masked_softmax_rows<S, OutputOf<S, O>>, x.as<S>(),
                               RowOperand<Allowed>(mask), RowOperand<Parameter<T>>(bias), causal,
                               queries, T(scale), y);
  });
}

}  // namespace mixtape::kernels::cuda
