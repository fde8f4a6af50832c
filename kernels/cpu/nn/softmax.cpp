// Softmax, masked softmax, log_softmax and logsumexp.

#include "kernels/cpu/nn/softmax.h"

#include "kernels/common/visit_narrow.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// Replaces x by its softmax, or the logarithm of that.
template <class T>
void softmax_of_column(bool log_of, Column<T> x) {
  const Vec<T> top = column_max(x),
               scale = log_of ? column_log_sum(x, top) : Vec<T>(T(1)) / column_sum_exp(x, top);
  for (int64_t i = 0; i < x.n; ++i) x.set(i, log_of ? x[i] - top - scale : x[i] * scale);
}

template <class T>
void softmax_of_columns(bool log_of, In x, Out y) {
  const int64_t n = x.shape()[-1];
  Columns<T>::visit(x, n, [&](const Columns<T>& c, T* buffer) {
    c.gather(x, buffer);
    c.each([&](int64_t j, int64_t) { softmax_of_column(log_of, c.column(buffer, j, n)); });
    c.scatter(buffer, y);
  });
}

// The same of a row. `e`: for round_up(n, width) numbers, unless `log`; y may be e.
template <class T, class S, class O>
void softmax_of_row(bool log, const S* x, int64_t n, T* e, O* y) {
  const T top = row_max<T>(x, n);
  const Vec<T> shift(top),
      scale(log ? row_log_sum<T>(x, n, top) : T(1) / row_sum_exp<T>(x, n, top, e));
  for_each_vec<T>(n, [&](int64_t i, int64_t count) {
    write(y + i, log ? read<T>(x + i, count) - shift - scale : load<T, T>(e + i) * scale, count);
  });
}

}  // namespace

void softmax(Launch&, bool log, In x, Out y) {
  const int64_t n = x.shape()[-1];
  if (x.size() == 0) return;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    if (takes_columns<T>(x)) return softmax_of_columns<T>(log, x, y);
    parallel_ranges(x.size() / n, grain_of(n), [&](int64_t begin, int64_t end) {
      Buffer<T> terms(log ? 0 : round_up(n, Vec<T>::width));
      for (int64_t r = begin; r < end; ++r)
        softmax_of_row(log, x.as<S>() + r * n, n, terms.data(), y.as<O>() + r * n);
    });
  });
}

void masked_softmax(Launch&, In x, In mask, In bias, bool causal, double scale, Out y) {
  const int64_t n = x.shape()[-1], queries = x.shape()[-2];
  if (x.size() == 0) return;
  visit_float(y.dtype, x.dtype, [&]<class O, class S>() {
    using T = math_t<S>;
    parallel_ranges(x.size() / n, grain_of(n), [&](int64_t begin, int64_t end) {
      Buffer<T> scores(round_up(n, Vec<T>::width)), bias_buffer(n);
      Buffer<bool> mask_buffer(n);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t visible = causal ? std::min(n, r % queries + 1) : n;
        const bool* const allowed =
            mask ? dense_row<bool, bool>(mask, r, n, mask_buffer.data()) : nullptr;
        const T* added = nullptr;
        if (bias)
          visit_float(bias.dtype,
                      [&]<class B>() { added = dense_row<T, B>(bias, r, n, bias_buffer.data()); });
        masked_softmax_row(x.as<S>() + r * n, n, visible, static_cast<T>(scale), added, allowed,
                           scores.data(), y.as<O>() + r * n);
      }
    });
  });
}

namespace {

// `of_input`: y is x, of which the result is computed again.
template <class T>
void softmax_grad_of_columns(bool log_of, bool of_input, In y, In dy, Out dx) {
  using L = Vec<T>;
  const int64_t n = y.shape()[-1];
  Columns<T>::visit(y, 2 * n, [&](const Columns<T>& c, T* buffer) {
    T* const slopes = buffer + c.size(n);
    c.gather(y, buffer);
    c.gather(dy, slopes);
    c.each([&](int64_t j, int64_t) {
      const Column<T> v = c.column(buffer, j, n), g = c.column(slopes, j, n);
      if (of_input) softmax_of_column(log_of, v);
      std::array<L, 4> sums;
      sums.fill(T(0));
      for (int64_t i = 0; i < n; ++i) add_to_slope(log_of, v[i], g[i], sums);
      const SoftmaxSlope<L> slope(log_of, sums[0], sums[1], sums[2], sums[3]);
      for (int64_t i = 0; i < n; ++i) g.set(i, slope(v[i], g[i]));
    });
    c.scatter(slopes, dx);
  });
}

template <class S, class D, class O>
void softmax_grad_of_row(bool log, const S* y, const D* dy, int64_t n, O* dx) {
  using T = math_t<S>;
  using L = Vec<T>;
  L top(-std::numeric_limits<T>::infinity());
  const auto [sum, shares] = sums_over<T, 2>(n, [&](int64_t i, int64_t count, auto& sums) {
    const L v = read<T>(y + i, count, log ? minus_infinity<S>() : S(0.0f)),
            g = read<T>(dy + i, count);
    sums[0] += log ? g : g * v;
    sums[1] += v;
    top = larger(v, top);
  });
  const L total(static_cast<T>(log || !(shares > 0) ? sum : sum / shares));
  const auto write_all = [&] {
    for_each_vec<T>(n, [&](int64_t i, int64_t count) {
      const L v = read<T>(y + i, count), g = read<T>(dy + i, count);
      write(dx + i, log ? g - exp(v) * total : v * (g - total), count);
    });
  };
  if (!any(is_likely(log, top))) return write_all();
  int64_t at = 0;  // of a vector with the class that outweighs the others
  const auto sums = sums_over<T, 4>(n, [&](int64_t i, int64_t count, auto& all) {
    const L v = read<T>(y + i, count, log ? minus_infinity<S>() : S(0.0f));
    if (any(is_likely(log, v))) at = i;
    add_to_slope(log, v, read<T>(dy + i, count), all);
  });
  const auto of = [&](int i) { return L(static_cast<T>(sums[i])); };
  const SoftmaxSlope<L> slope(log, of(0), of(1), of(2), of(3));
  const int64_t count = std::min<int64_t>(L::width, n - at);
  const L here = slope(read<T>(y + at, count), read<T>(dy + at, count));
  write_all();
  write(dx + at, here, count);
}

// The same from x; `e`: for round_up(n, width) numbers.
template <class S>
void softmax_input_grad_of_row(bool log, const S* x, const S* dy, int64_t n, float* e, S* dx) {
  using L = Vec<float>;
  const float top = row_max<float>(x, n);
  const auto [sum, sum_dy, dot] = sums_over<float, 3>(n, [&](int64_t i, int64_t count, auto& sums) {
    const L v = exp(read<float>(x + i, count, minus_infinity<S>()) - L(top)),
            g = read<float>(dy + i, count);
    store(e + i, v);
    sums[0] += v;
    sums[1] += g;
    sums[2] += v * g;
  });
  if (!(1 / sum < likely_share)) {
    softmax_of_row(log, x, n, e, e);
    return softmax_grad_of_row(log, e, dy, n, dx);
  }
  const L share(static_cast<float>(1 / sum)), total(static_cast<float>(log ? sum_dy : dot / sum));
  for_each_vec<float>(n, [&](int64_t i, int64_t count) {
    const L y = load<float, float>(e + i) * share, g = read<float>(dy + i, count);
    write(dx + i, log ? g - y * total : y * (g - total), count);
  });
}

}  // namespace

void softmax_grad(Launch&, bool log, In y, In dy, Out dx) {
  const int64_t n = y.shape()[-1];
  if (y.size() == 0) return;
  const auto run = [&]<class S, class D, class O>() {
    using T = math_t<S>;
    if (takes_columns<T>(y, 32)) return softmax_grad_of_columns<T>(log, false, y, dy, dx);
    parallel_ranges(y.size() / n, grain_of(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        softmax_grad_of_row(log, y.as<S>() + r * n, dy.as<D>() + r * n, n, dx.as<O>() + r * n);
    });
  };
  // With a 16-bit input, y and dy are f32 if the result was.
  if (is_half(dx.dtype) && y.dtype == f32)
    visit_float(dx.dtype, [&]<class O>() { run.template operator()<float, float, O>(); });
  else
    visit_float(y.dtype, dy.dtype, dx.dtype, run);
}

void softmax_input_grad(Launch&, bool log, In x, In dy, Out dx) {
  const int64_t n = x.shape()[-1];
  if (x.size() == 0) return;
  if (takes_columns<float>(x, 32)) return softmax_grad_of_columns<float>(log, true, x, dy, dx);
  visit_half(x.dtype, [&]<class S>() {
    parallel_ranges(x.size() / n, grain_of(n), [&](int64_t begin, int64_t end) {
      Buffer<float> terms(round_up(n, Vec<float>::width));
      for (int64_t r = begin; r < end; ++r)
        softmax_input_grad_of_row(log, x.as<S>() + r * n, dy.as<S>() + r * n, n, terms.data(),
                                  dx.as<S>() + r * n);
    });
  });
}

namespace {

template <class T>
void logsumexp_of_columns(In x, Out y) {
  const int64_t n = x.shape()[-1];
  Columns<T>::visit(x, n + 1, [&](const Columns<T>& c, T* buffer) {
    T* const sums = buffer + c.size(n);
    c.gather(x, buffer);
    c.each([&](int64_t j, int64_t) {
      const Column<T> e = c.column(buffer, j, n);
      const Vec<T> top = column_max(e), log_sum = column_log_sum(e, top);
      const Mask<T> finite = abs(top) <= Vec<T>(std::numeric_limits<T>::max());
      store(sums + j, select(finite, top + log_sum, top));
    });
    c.scatter_each(sums, y);
  });
}

}  // namespace

void logsumexp(Launch&, In x, Out y) {
  const int64_t n = x.shape()[-1];
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    if (takes_columns<T>(x)) return logsumexp_of_columns<T>(x, y);
    parallel_ranges(y.size(), grain_of(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        const T top = row_max<T>(in, n);  // the result, if not finite
        y.as<O>()[r] = static_cast<O>(std::isfinite(top) ? top + row_log_sum<T>(in, n, top) : top);
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
