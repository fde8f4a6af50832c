// Kernels over many tensors at once: optimizer steps, unscaling, norms, clipping. All tensors are
// cut into chunks of one size that threads take from one queue, so a hundred small tensors cost
// what one large one does, and results do not depend on the number of threads.

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

class Chunks {
 public:
  static constexpr int64_t length = 16384;

  // size(i) elements in tensor i of `tensors`.
  template <class Size>
  Chunks(Launch& launch, size_t tensors, Size size)
      : first_(launch.scratch<int64_t>(static_cast<int64_t>(tensors) + 1)),
        last_(first_ + tensors) {
    first_[0] = 0;
    for (size_t i = 0; i < tensors; ++i)
      first_[i + 1] = first_[i] + (size(i) + length - 1) / length;
  }
  Chunks(Launch& launch, std::span<const View> tensors)
      : Chunks(launch, tensors.size(), [&](size_t i) { return tensors[i].size(); }) {}

  int64_t count() const { return *last_; }

  // f(tensor, begin, chunk): each chunk, and where in its tensor it begins.
  template <class F>
  void for_each(F f) const {
    parallel_for(count(), [&](int64_t chunk) {
      const int64_t* const owner = std::upper_bound(first_, last_ + 1, chunk) - 1;
      f(static_cast<size_t>(owner - first_), (chunk - *owner) * length, chunk);
    });
  }

 private:
  int64_t* first_;  // chunk of each tensor, then the number of all
  int64_t* last_;
};

// f(p, n) for the chunk of a dense float tensor that begins at `begin`.
template <class F>
void visit_chunk(const View& x, int64_t begin, F f) {
  const int64_t n = std::min(Chunks::length, x.size() - begin);
  visit_float(x.dtype, [&]<class S>() { f(x.as<S>() + begin, n); });
}

double read_scalar(const View& v, double absent) { return v ? *v.as<float>() : absent; }

// --- steps ---

// One chunk of one parameter, and what multiplies its gradient. P, G: element types of the two.
template <class P, class G>
struct Run {
  using T = math_t<P>;
  P* param;
  const G* grad;
  T* state[2];
  int64_t n;
  T grad_scale;
  double steps;  // before this one

  // f(i, count, p, g) returns the new p.
  template <class F>
  void each(F f) const {
    for_lanes<T>(n, [&](int64_t i, int64_t count) {
      const Lanes<T> p = read<T>(param + i, count),
                     g = read<T>(grad + i, count) * Lanes<T>(grad_scale);
      write(param + i, f(i, count, p, g), count);
    });
  }
};

// buf = momentum buf + (1 - dampening) g, or g the first time; p -= lr (nesterov ? g + momentum buf
// : buf)
template <class P, class G>
void apply(const SgdRule& rule, const Run<P, G>& run) {
  using T = math_t<P>;
  const Lanes<T> lr(T(rule.lr)), momentum(T(rule.momentum)), decay(T(rule.weight_decay));
  const bool first = run.steps == 0;
  const Lanes<T> keep(first ? T(0) : T(rule.momentum)), take(first ? T(1) : T(1 - rule.dampening));
  run.each([&](int64_t i, int64_t count, Lanes<T> p, Lanes<T> g) {
    if (rule.weight_decay != 0) g = fma(p, decay, g);
    if (rule.momentum != 0) {
      T* const at = run.state[0] + i;
      const Lanes<T> buffer = fma(read<T>(at, count), keep, g * take);
      write(at, buffer, count);
      g = rule.nesterov ? fma(buffer, momentum, g) : buffer;
    }
    return p - lr * g;
  });
}

// m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, p -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) +
// eps) (Kingma & Ba 2015, algorithm 1; decoupled: Loshchilov & Hutter 2019, algorithm 2)
template <class P, class G>
void apply(const AdamRule& rule, const Run<P, G>& run) {
  using T = math_t<P>;
  const double t = run.steps + 1;
  const Lanes<T> rate(T(-rule.lr / (1 - std::pow(rule.beta1, t))));
  const Lanes<T> unbias(T(1 / std::sqrt(1 - std::pow(rule.beta2, t))));
  const Lanes<T> keep1(T(rule.beta1)), take1(T(1 - rule.beta1)), eps(T(rule.eps));
  const Lanes<T> keep2(T(rule.beta2)), take2(T(1 - rule.beta2));
  const Lanes<T> decay(T(rule.weight_decay)), shrink(T(1 - rule.lr * rule.weight_decay));
  run.each([&](int64_t i, int64_t count, Lanes<T> p, Lanes<T> g) {
    if (rule.decoupled)
      p = p * shrink;
    else if (rule.weight_decay != 0)
      g = fma(p, decay, g);
    T *const at1 = run.state[0] + i, *const at2 = run.state[1] + i;
    const Lanes<T> m = fma(read<T>(at1, count), keep1, g * take1);
    const Lanes<T> v = fma(read<T>(at2, count), keep2, g * g * take2);
    write(at1, m, count);
    write(at2, v, count);
    return fma(rate, m / fma(sqrt(v), unbias, eps), p);
  });
}

template <class Rule>
void step(Launch& launch, std::span<const Update> updates, const Rule& rule,
          const StepControl& control) {
  if (read_scalar(control.skip, 0) != 0) return;
  const double scale = read_scalar(control.grad_scale, 1) * (rule.maximize ? -1 : 1);
  const Chunks chunks(launch, updates.size(), [&](size_t i) { return updates[i].param.size(); });
  chunks.for_each([&](size_t tensor, int64_t begin, int64_t) {
    const Update& u = updates[tensor];
    visit_chunk(u.param, begin, [&]<class P>(P* p, int64_t n) {
      visit_float(u.grad.dtype, [&]<class G>() {
        using T = math_t<P>;
        const auto state = [&](int k) { return u.state[k] ? u.state[k].as<T>() + begin : nullptr; };
        apply(rule, Run<P, G>{p,
                              u.grad.as<G>() + begin,
                              {state(0), state(1)},
                              n,
                              T(scale),
                              read_scalar(u.steps, 0)});
      });
      if (u.shadow)
        visit_float(u.shadow.dtype,
                    [&]<class S>() { convert_run(p, n, u.shadow.as<S>() + begin); });
    });
  });
  for (const Update& u : updates)
    if (u.steps) *u.steps.as<float>() += 1;
}

// --- gradients as a whole ---

// A product that is not finite covers both cases: no factor makes an infinity or NaN finite again.
// What counts is the product as the gradient's dtype holds it.
template <bool writes>
void scale_and_find(Launch& launch, std::span<const View> grads, In factor, Out found) {
  float* const flags = found.as<float>();
  std::fill_n(flags, grads.size(), 0.0f);
  Chunks(launch, grads).for_each([&](size_t tensor, int64_t begin, int64_t) {
    visit_chunk(grads[tensor], begin, [&]<class S>(S* g, int64_t n) {
      using T = math_t<S>;
      const Lanes<T> by(T(read_scalar(factor, 1)));
      Lanes<T> sum(T(0));  // of products with zero: NaN if one of them is not finite
      for_lanes<T>(n, [&](int64_t i, int64_t count) {
        Lanes<T> x = read<T>(g + i, count) * by;
        if constexpr (writes) {
          write(g + i, x, count);
          if constexpr (!std::is_same_v<S, T>) x = read<T>(g + i, count);
        }
        sum += x * Lanes<T>(T(0));
      });
      if (hsum(sum) != T(0)) std::atomic_ref(flags[tensor]).store(1.0f, std::memory_order_relaxed);
    });
  });
}

template <class S>
double sum_of_squares(const S* x, int64_t n) {
  constexpr int width = Lanes<double>::width;
  Lanes<double> even(0.0), odd(0.0);
  if constexpr (std::is_same_v<S, double>) {
    for_lanes<double>(n, [&](int64_t i, int64_t count) {
      const Lanes<double> a = read<double>(x + i, count);
      even = fma(a, a, even);
    });
  } else {
    for_lanes<float>(n, [&](int64_t i, int64_t count) {
      float wide[2 * width];
      store(wide, read<float>(x + i, count));
      const Lanes<double> a = load<float, double>(wide), b = load<float, double>(wide + width);
      even = fma(a, a, even);
      odd = fma(b, b, odd);
    });
  }
  return hsum(even + odd);
}

}  // namespace

void sgd(Launch& launch, std::span<const Update> updates, const SgdRule& rule,
         const StepControl& control) {
  step(launch, updates, rule, control);
}
void adam(Launch& launch, std::span<const Update> updates, const AdamRule& rule,
          const StepControl& control) {
  step(launch, updates, rule, control);
}

void unscale(Launch& launch, std::span<const View> grads, In inv_scale, Out found) {
  scale_and_find<true>(launch, grads, inv_scale, found);
}
void find_nonfinite(Launch& launch, std::span<const View> grads, In inv_scale, Out found) {
  scale_and_find<false>(launch, grads, inv_scale, found);
}

void squared_norm(Launch& launch, std::span<const View> grads, Out norm2) {
  const Chunks chunks(launch, grads);
  double* const partial = launch.scratch<double>(chunks.count());
  chunks.for_each([&](size_t tensor, int64_t begin, int64_t chunk) {
    visit_chunk(grads[tensor], begin,
                [&](auto* g, int64_t n) { partial[chunk] = sum_of_squares(g, n); });
  });
  double sum = 0;
  for (int64_t i = 0; i < chunks.count(); ++i) sum += partial[i];
  visit_float(norm2.dtype, [&]<class S>() { *norm2.as<S>() = static_cast<S>(sum); });
}

void clip_factor(Launch&, In norm2, In scale, double max_norm, Out norm, Out factor) {
  const double by = read_scalar(scale, 1);
  visit_float(norm2.dtype, [&]<class S>() {
    const double total = std::sqrt(static_cast<double>(*norm2.as<S>())) * by;
    const double clip = max_norm / (total + 1e-6);
    *norm.as<float>() = static_cast<float>(total);
    *factor.as<float>() = static_cast<float>(clip > 1 ? by : by * clip);  // NaN stays NaN
  });
}

void clip_value(Launch& launch, std::span<const View> grads, double limit) {
  Chunks(launch, grads).for_each([&](size_t tensor, int64_t begin, int64_t) {
    visit_chunk(grads[tensor], begin, [&]<class S>(S* g, int64_t n) {
      using T = math_t<S>;
      const T bound = static_cast<T>(limit);
      const Lanes<T> high(bound), low(-bound);
      for_lanes<T>(n, [&](int64_t i, int64_t count) {
        write(g + i, min(max(read<T>(g + i, count), low), high), count);
      });
    });
  });
}

}  // namespace mixtape::kernels::cpu
