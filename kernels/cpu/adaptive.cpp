// Optimizer steps that divide the gradient by its root mean square, in one pass.

#include <cmath>

#include "kernels/cpu/update.h"

namespace mixtape::kernels::cpu {
namespace {

// v = alpha v + (1 - alpha) g^2, p -= lr g / (sqrt(v) + eps) (Hinton's lecture 6e, 2012). Centered,
// v - a^2 with a = alpha a + (1 - alpha) g stands for v (Graves 2013). With momentum, buf =
// momentum buf + g / (...), p -= lr buf.
template <class P, class G>
void apply(const RmspropRule& rule, const Run<P, G>& run) {
  using T = math_t<P>;
  const Lanes<T> lr(T(rule.lr)), momentum(T(rule.momentum)), decay(T(rule.weight_decay));
  const Lanes<T> keep(T(rule.alpha)), take(T(1 - rule.alpha)), eps(T(rule.eps)), zero(T(0));
  run.each([&](int64_t i, int64_t count, Lanes<T> p, Lanes<T> g) {
    if (rule.weight_decay != 0) g = fma(p, decay, g);
    T* const square = run.state[0] + i;
    Lanes<T> v = fma(read<T>(square, count), keep, g * g * take);
    write(square, v, count);
    if (rule.centered) {
      T* const mean = run.state[2] + i;
      const Lanes<T> a = fma(read<T>(mean, count), keep, g * take);
      write(mean, a, count);
      v = max(v - a * a, zero);  // a variance, but for rounding
    }
    g = g / (sqrt(v) + eps);
    if (rule.momentum != 0) {
      T* const buffer = run.state[1] + i;
      g = fma(read<T>(buffer, count), momentum, g);
      write(buffer, g, count);
    }
    return p - lr * g;
  });
}

// s += g^2, p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) (Duchi et al. 2011)
template <class P, class G>
void apply(const AdagradRule& rule, const Run<P, G>& run) {
  using T = math_t<P>;
  const Lanes<T> rate(T(rule.lr / (1 + run.steps * rule.lr_decay)));
  const Lanes<T> decay(T(rule.weight_decay)), eps(T(rule.eps));
  run.each([&](int64_t i, int64_t count, Lanes<T> p, Lanes<T> g) {
    if (rule.weight_decay != 0) g = fma(p, decay, g);
    T* const at = run.state[0] + i;
    const Lanes<T> s = fma(g, g, read<T>(at, count));
    write(at, s, count);
    return p - rate * g / (sqrt(s) + eps);
  });
}

// v = rho v + (1 - rho) g^2, d = sqrt(u + eps) / sqrt(v + eps) g, u = rho u + (1 - rho) d^2,
// p -= lr d (Zeiler 2012, algorithm 1)
template <class P, class G>
void apply(const AdadeltaRule& rule, const Run<P, G>& run) {
  using T = math_t<P>;
  const Lanes<T> lr(T(rule.lr)), decay(T(rule.weight_decay)), eps(T(rule.eps));
  const Lanes<T> keep(T(rule.rho)), take(T(1 - rule.rho));
  run.each([&](int64_t i, int64_t count, Lanes<T> p, Lanes<T> g) {
    if (rule.weight_decay != 0) g = fma(p, decay, g);
    T *const at1 = run.state[0] + i, *const at2 = run.state[1] + i;
    const Lanes<T> v = fma(read<T>(at1, count), keep, g * g * take), u = read<T>(at2, count);
    const Lanes<T> d = sqrt(u + eps) / sqrt(v + eps) * g;
    write(at1, v, count);
    write(at2, fma(u, keep, d * d * take), count);
    return p - lr * d;
  });
}

}  // namespace

void rmsprop(Launch& launch, std::span<const Update> updates, const RmspropRule& rule,
             const StepControl& control) {
  step(launch, updates, rule, control, [&](const auto& run) { apply(rule, run); });
}
void adagrad(Launch& launch, std::span<const Update> updates, const AdagradRule& rule,
             const StepControl& control) {
  step(launch, updates, rule, control, [&](const auto& run) { apply(rule, run); });
}
void adadelta(Launch& launch, std::span<const Update> updates, const AdadeltaRule& rule,
              const StepControl& control) {
  step(launch, updates, rule, control, [&](const auto& run) { apply(rule, run); });
}

}  // namespace mixtape::kernels::cpu
