// Unscaling, norms, clipping and sums of all gradients.

#include <atomic>
#include <cmath>

#include "kernels/common/scaling.h"
#include "kernels/common/sum_tree.h"
#include "kernels/common/tensor_stats.h"
#include "kernels/common/visit_narrow.h"
#include "kernels/cpu/loops/chunks.h"
#include "kernels/cpu/optim/exponents.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// Tests the product alone: no factor makes an infinity or NaN finite. When the product is stored,
// tests the rounded value.
template <bool writes>
void scale_and_find(Launch& launch, std::span<const View> grads, In factor, Out found,
                    Out exponents) {
  float* const flags = found.as<float>();
  int32_t* const counts = exponents ? exponents.as<int32_t>() : nullptr;
  std::fill_n(flags, grads.size(), 0.0f);
  if (counts) std::fill_n(counts, exponents.size(), 0);
  Chunks(launch, grads).for_each([&](size_t tensor, int64_t begin, int64_t) {
    visit_chunk(grads[tensor], begin, [&]<class S>(S* g, int64_t n) {
      using T = math_t<S>;
      if (counts) Exponents<S>(g, n).add_to(counts + int64_t(tensor) * exponent_bins);
      const Vec<T> by(T(read_scalar(factor, 1)));
      const bool bad = any_nonfinite<T>(n, [&](int64_t i, int64_t count) {
        Vec<T> x = read<T>(g + i, count) * by;
        if constexpr (writes) {
          write(g + i, x, count);
          if constexpr (!std::is_same_v<S, T>) x = read<T>(g + i, count);
        }
        return x;
      });
      if (bad) std::atomic_ref(flags[tensor]).store(1.0f, std::memory_order_relaxed);
    });
  });
}

// sum |x|^p, or max |x| if p is infinite.
template <class S>
double norm_part(const S* x, int64_t n, double p) {
  using T = math_t<S>;
  WideSum sum;
  Vec<T> largest(T(0));
  const auto each = [&](auto f) {
    for_each_vec<T>(n, [&](int64_t i, int64_t count) { f(read<T>(x + i, count)); });
  };
  if (p == 2) {
    each([&](Vec<T> a) { sum.add_square(a); });
  } else if (p == 1) {
    each([&](Vec<T> a) { sum.add(abs(a)); });
  } else if (std::isinf(p)) {
    each([&](Vec<T> a) { largest = max(largest, abs(a)); });
    return hmax(largest);
  } else {
    double total = 0;  // rare, so scalar
    for (int64_t i = 0; i < n; ++i) total += std::pow(std::abs(static_cast<double>(x[i])), p);
    return total;
  }
  return sum.total();
}

void put(Out to, double x) {
  visit_float(to.dtype, [&]<class S>() { *to.as<S>() = static_cast<S>(x); });
}

}  // namespace

void unscale(Launch& launch, std::span<const View> grads, In inv_scale, Out found, Out exponents) {
  scale_and_find<true>(launch, grads, inv_scale, found, exponents);
}
void find_nonfinite(Launch& launch, std::span<const View> grads, In inv_scale, Out found,
                    Out exponents) {
  scale_and_find<false>(launch, grads, inv_scale, found, exponents);
}

void tensor_stats(Launch& launch, std::span<const View> tensors, Out stats) {
  const Chunks chunks(launch, tensors);
  TensorStats* const parts = launch.scratch<TensorStats>(chunks.count());
  chunks.for_each([&](size_t tensor, int64_t begin, int64_t chunk) {
    visit_chunk(tensors[tensor], begin, [&]<class S>(const S* x, int64_t n) {
      using T = math_t<S>;
      const T smallest = T(smallest_normal(dtype_of<S>()));
      StatsAccumulator<T> c;
      for (int64_t i = 0; i < n; ++i) c.add(T(x[i]), smallest);
      parts[chunk] = {double(c.largest), double(c.infinities), double(c.nans), double(c.zeros),
                      double(c.subnormals)};
    });
  });
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorStats& all = stats.as<TensorStats>()[i] = {};
    for (int64_t c = chunks.first(i); c < chunks.first(i + 1); ++c) all.join(parts[c]);
  }
}

void norm_parts(Launch& launch, std::span<const View> grads, double p, Out parts) {
  static_assert(Chunks::length % norm_block == 0);
  int64_t* const first = launch.scratch<int64_t>(int64_t(grads.size()) + 1);  // of each gradient
  first[0] = 0;
  for (size_t i = 0; i < grads.size(); ++i)
    first[i + 1] = first[i] + ceil_div(grads[i].size(), norm_block);
  Chunks(launch, grads).for_each([&](size_t tensor, int64_t begin, int64_t) {
    visit_chunk(grads[tensor], begin, [&](auto* g, int64_t n) {
      double* part = parts.as<double>() + first[tensor] + begin / norm_block;
      for (int64_t at = 0; at < n; at += norm_block)
        *part++ = norm_part(g + at, std::min(norm_block, n - at), p);
    });
  });
}

void norm_of_parts(Launch&, In all, double p, Out norm) {
  const double* const parts = all.as<double>();
  double total = 0;
  for (int64_t i = 0; i < all.size(); ++i) {
    if (std::isinf(p))
      total = total >= parts[i] || std::isnan(total) ? total : parts[i];
    else
      total += parts[i];
  }
  if (p == 2) total = std::sqrt(total);
  if (p != 1 && p != 2 && !std::isinf(p)) total = std::pow(total, 1 / p);
  put(norm, total);
}

void clip_factor(Launch&, In grad_norm, In scale, double max_norm, Out norm, Out factor) {
  const ClipFactor clip(read_scalar(grad_norm, 0), read_scalar(scale, 1), max_norm);
  put(norm, clip.norm);
  put(factor, clip.factor);
}

void clip_value(Launch& launch, std::span<const View> grads, double limit) {
  Chunks(launch, grads).for_each([&](size_t tensor, int64_t begin, int64_t) {
    visit_chunk(grads[tensor], begin, [&]<class S>(S* g, int64_t n) {
      using T = math_t<S>;
      const T bound = static_cast<T>(limit);
      const Vec<T> high(bound), low(-bound);
      for_each_vec<T>(n, [&](int64_t i, int64_t count) {
        write(g + i, min(max(read<T>(g + i, count), low), high), count);
      });
    });
  });
}

void sum_parts(Launch&, In parts, double by, Out y) {
  const int64_t n = parts.shape()[0], elements = y.size();
  visit_float_or_narrow(parts.dtype, y.dtype, [&]<class P, class S>() {
    using T = math_t<S>;
    const Vec<T> factor(static_cast<T>(by));
    parallel_ranges(elements, grain_of(n), [&](int64_t begin, int64_t end) {
      for_each_vec<T>(end - begin, [&](int64_t i, int64_t count) {
        const P* const first = parts.as<P>() + begin + i;
        const Vec<T> sum =
            sum_tree<Vec<T>>(n, [&](int64_t p) { return read<T>(first + p * elements, count); });
        write(y.as<S>() + begin + i, sum * factor, count);
      });
    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
