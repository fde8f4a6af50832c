// Optimizer steps by momentum, in one pass.

#include <cmath>

#include "kernels/cpu/update.h"

namespace mixtape::kernels::cpu {
namespace {

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
// eps) (Kingma & Ba 2015, algorithm 1; decoupled: Loshchilov & Hutter 2019, algorithm 2; amsgrad,
// the largest v so far: Reddi et al. 2018)
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
    Lanes<T> v = fma(read<T>(at2, count), keep2, g * g * take2);
    write(at1, m, count);
    write(at2, v, count);
    if (rule.amsgrad) {
      T* const at3 = run.state[2] + i;
      v = max(v, read<T>(at3, count));
      write(at3, v, count);
    }
    return fma(rate, m / fma(sqrt(v), unbias, eps), p);
  });
}

// p -= lr (sign(b1 m + (1 - b1) g) + weight_decay p), m = b2 m + (1 - b2) g (Chen et al. 2023,
// algorithm 2)
template <class P, class G>
void apply(const LionRule& rule, const Run<P, G>& run) {
  using T = math_t<P>;
  const Lanes<T> lr(T(rule.lr)), shrink(T(1 - rule.lr * rule.weight_decay)), zero(T(0));
  const Lanes<T> keep1(T(rule.beta1)), take1(T(1 - rule.beta1));
  const Lanes<T> keep2(T(rule.beta2)), take2(T(1 - rule.beta2));
  run.each([&](int64_t i, int64_t count, Lanes<T> p, Lanes<T> g) {
    T* const at = run.state[0] + i;
    const Lanes<T> m = read<T>(at, count), u = fma(m, keep1, g * take1);
    write(at, fma(m, keep2, g * take2), count);
    // Zero and NaN are their own signs.
    const Lanes<T> sign = select(u > zero, T(1), select(u < zero, T(-1), u));
    return fma(p, shrink, -(lr * sign));
  });
}

}  // namespace

void sgd(Launch& launch, std::span<const Update> updates, const SgdRule& rule,
         const StepControl& control) {
  step(launch, updates, rule, control, [&](const auto& run) { apply(rule, run); });
}
void adam(Launch& launch, std::span<const Update> updates, const AdamRule& rule,
          const StepControl& control) {
  step(launch, updates, rule, control, [&](const auto& run) { apply(rule, run); });
}
void lion(Launch& launch, std::span<const Update> updates, const LionRule& rule,
          const StepControl& control) {
  step(launch, updates, rule, control, [&](const auto& run) { apply(rule, run); });
}

}  // namespace mixtape::kernels::cpu
