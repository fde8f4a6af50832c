#pragma once
// What an optimizer step does to one element, for both devices. What follows from a rule and the
// number of steps so far is worked out once per parameter, in f64; the rest is arithmetic on V: a
// number of type T, or lanes of them.

#include <algorithm>

#include "kernels/common/binary.h"
#include "kernels/common/rules.h"

namespace mixtape::kernels {

// step(p, g, state) is the new p. state.get(k) is the rule's k-th state, and state.set(k, v), which
// returns v, replaces it; those that its options do not use are not touched.
template <class Rule, class T>
struct Step;

// buf = momentum buf + (1 - dampening) g, or g the first time; p -= lr (nesterov ? g + momentum buf
// : buf)
template <class T>
struct Step<SgdRule, T> {
  static constexpr int states = 1;
  T lr, momentum, decay, keep, take;
  bool nesterov;

  MIXTAPE_HD Step(const SgdRule& rule, double steps)
      : lr(T(rule.lr)),
        momentum(T(rule.momentum)),
        decay(T(rule.weight_decay)),
        keep(steps == 0 ? T(0) : T(rule.momentum)),
        take(steps == 0 ? T(1) : T(1 - rule.dampening)),
        nesterov(rule.nesterov) {}
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
    if (decay != T(0)) g = fma(p, V(decay), g);
    if (momentum != T(0)) {
      const V buffer = state.set(0, fma(state.get(0), V(keep), g * V(take)));
      g = nesterov ? fma(buffer, V(momentum), g) : buffer;
    }
    return p - V(lr) * g;
  }
};

// m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2
template <class T>
struct Moments {
  template <class V>
  struct Pair {
    V m, v;
  };
  T keep1, take1, keep2, take2;

  template <class Rule>
  MIXTAPE_HD explicit Moments(const Rule& rule)
      : keep1(T(rule.beta1)),
        take1(T(1 - rule.beta1)),
        keep2(T(rule.beta2)),
        take2(T(1 - rule.beta2)) {}
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD Pair<V> move(V g, State state) const {
    return {state.set(0, fma(state.get(0), V(keep1), g * V(take1))),
            state.set(1, fma(state.get(1), V(keep2), g * g * V(take2)))};
  }
};

// Moments; p -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps) (Kingma & Ba 2015, algorithm 1;
// decoupled: Loshchilov & Hutter 2019, algorithm 2; amsgrad, the largest v so far: Reddi et al.
// 2018)
template <class T>
struct Step<AdamRule, T> {
  static constexpr int states = 3;
  Moments<T> moments;
  T rate, unbias, eps, decay, shrink;
  bool amsgrad, decoupled;

  MIXTAPE_HD Step(const AdamRule& rule, double steps)
      : moments(rule),
        rate(T(-rule.lr / (1 - pow(rule.beta1, steps + 1)))),
        unbias(T(1 / sqrt(1 - pow(rule.beta2, steps + 1)))),
        eps(T(rule.eps)),
        decay(T(rule.weight_decay)),
        shrink(T(1 - rule.lr * rule.weight_decay)),
        amsgrad(rule.amsgrad),
        decoupled(rule.decoupled) {}
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
    if (decoupled)
      p = p * V(shrink);
    else if (decay != T(0))
      g = fma(p, V(decay), g);
    auto [m, v] = moments.move(g, state);
    if (amsgrad) v = state.set(2, Maximum::f(v, state.get(2)));
    return fma(V(rate), m / fma(sqrt(v), V(unbias), V(eps)), p);
  }
};

// Moments; p -= lr ((1 - mu_t) g / (1 - M_t) + mu_t+1 m / (1 - M_t+1)) / (sqrt(v / (1 - b2^t)) +
// eps) where mu_t = b1 (1 - 0.96^(t momentum_decay) / 2), and M_t the product of mu_1 to mu_t
// (Dozat 2016, algorithm 2).
template <class T>
struct Step<NadamRule, T> {
  static constexpr int states = 2;
  Moments<T> moments;
  T take_grad, take_mean, unbias, eps, decay;

  MIXTAPE_HD Step(const NadamRule& rule, double steps)
      : moments(rule),
        unbias(T(1 / sqrt(1 - pow(rule.beta2, steps + 1)))),
        eps(T(rule.eps)),
        decay(T(rule.weight_decay)) {
    const double t = steps + 1, product = mus(rule, t), next = mu(rule, t + 1);
    take_grad = T(-rule.lr * (1 - mu(rule, t)) / (1 - product));
    take_mean = T(-rule.lr * next / (1 - product * next));
  }
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
    if (decay != T(0)) g = fma(p, V(decay), g);
    const auto [m, v] = moments.move(g, state);
    return p + fma(V(take_grad), g, V(take_mean) * m) / fma(sqrt(v), V(unbias), V(eps));
  }

 private:
  MIXTAPE_HD static double mu(const NadamRule& rule, double t) {
    return rule.beta1 * (1 - 0.5 * pow(0.96, t * rule.momentum_decay));
  }
  // M_t, anew at each step: it needs no state, and after some dozens of factors it is 0 beside 1.
  // Where momentum_decay is large, all factors but the first are beta1.
  MIXTAPE_HD static double mus(const NadamRule& rule, double t) {
    const double ratio = pow(0.96, rule.momentum_decay);
    double product = 1, power = 1, i = 0;
    while (i < t && product > 1e-20 && power > 1e-20) {
      ++i;
      power *= ratio;
      product *= rule.beta1 * (1 - 0.5 * power);
    }
    return product > 1e-20 ? product * pow(rule.beta1, t - i) : 0;
  }
};

// Moments; p -= lr r m / (1 - b1^t) sqrt(1 - b2^t) / (sqrt(v) + eps), r being what rectifies the
// variance of the denominator; or p -= lr m / (1 - b1^t) in the first steps, where that has none
// (Liu et al. 2020, algorithm 2).
template <class T>
struct Step<RadamRule, T> {
  static constexpr int states = 2;
  Moments<T> moments;
  T rate, eps, decay;
  bool rectified;

  MIXTAPE_HD Step(const RadamRule& rule, double steps)
      : moments(rule), eps(T(rule.eps)), decay(T(rule.weight_decay)) {
    const double t = steps + 1, kept = pow(rule.beta2, t), most = 2 / (1 - rule.beta2) - 1;
    const double length = most - 2 * t * kept / (1 - kept);
    rectified = length > 5;
    const double r = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length);
    rate = T(-rule.lr / (1 - pow(rule.beta1, t)) * (rectified ? sqrt(r * (1 - kept)) : 1));
  }
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
    if (decay != T(0)) g = fma(p, V(decay), g);
    const auto [m, v] = moments.move(g, state);
    return fma(V(rate), rectified ? m / (sqrt(v) + V(eps)) : m, p);
  }
};

// p -= lr (sign(b1 m + (1 - b1) g) + weight_decay p), m = b2 m + (1 - b2) g (Chen et al. 2023,
// algorithm 2)
template <class T>
struct Step<LionRule, T> {
  static constexpr int states = 1;
  T lr, shrink, keep1, take1, keep2, take2;

  MIXTAPE_HD Step(const LionRule& rule, double)
      : lr(T(rule.lr)),
        shrink(T(1 - rule.lr * rule.weight_decay)),
        keep1(T(rule.beta1)),
        take1(T(1 - rule.beta1)),
        keep2(T(rule.beta2)),
        take2(T(1 - rule.beta2)) {}
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
    const V m = state.get(0), u = fma(m, V(keep1), g * V(take1)), zero(T(0));
    state.set(0, fma(m, V(keep2), g * V(take2)));
    // Zero and NaN are their own signs.
    const V sign = select(u > zero, V(T(1)), select(u < zero, V(T(-1)), u));
    return fma(p, V(shrink), -(V(lr) * sign));
  }
};

// v = alpha v + (1 - alpha) g^2, p -= lr g / (sqrt(v) + eps) (Hinton's lecture 6e, 2012). Centered,
// v - a^2 with a = alpha a + (1 - alpha) g stands for v (Graves 2013). With momentum, buf =
// momentum buf + g / (...), p -= lr buf.
template <class T>
struct Step<RmspropRule, T> {
  static constexpr int states = 3;
  T lr, momentum, decay, keep, take, eps;
  bool centered;

  MIXTAPE_HD Step(const RmspropRule& rule, double)
      : lr(T(rule.lr)),
        momentum(T(rule.momentum)),
        decay(T(rule.weight_decay)),
        keep(T(rule.alpha)),
        take(T(1 - rule.alpha)),
        eps(T(rule.eps)),
        centered(rule.centered) {}
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
    if (decay != T(0)) g = fma(p, V(decay), g);
    V v = state.set(0, fma(state.get(0), V(keep), g * g * V(take)));
    if (centered) {
      const V a = state.set(2, fma(state.get(2), V(keep), g * V(take)));
      v = Maximum::f(v - a * a, V(T(0)));  // a variance, but for rounding
    }
    g = g / (sqrt(v) + V(eps));
    if (momentum != T(0)) g = state.set(1, fma(state.get(1), V(momentum), g));
    return p - V(lr) * g;
  }
};

// s += g^2, p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) (Duchi et al. 2011)
template <class T>
struct Step<AdagradRule, T> {
  static constexpr int states = 1;
  T rate, decay, eps;

  MIXTAPE_HD Step(const AdagradRule& rule, double steps)
      : rate(T(rule.lr / (1 + steps * rule.lr_decay))),
        decay(T(rule.weight_decay)),
        eps(T(rule.eps)) {}
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
    if (decay != T(0)) g = fma(p, V(decay), g);
    const V sum = state.set(0, fma(g, g, state.get(0)));
    return p - V(rate) * g / (sqrt(sum) + V(eps));
  }
};

// v = rho v + (1 - rho) g^2, d = sqrt(u + eps) / sqrt(v + eps) g, u = rho u + (1 - rho) d^2,
// p -= lr d (Zeiler 2012, algorithm 1)
template <class T>
struct Step<AdadeltaRule, T> {
  static constexpr int states = 2;
  T lr, decay, eps, keep, take;

  MIXTAPE_HD Step(const AdadeltaRule& rule, double)
      : lr(T(rule.lr)),
        decay(T(rule.weight_decay)),
        eps(T(rule.eps)),
        keep(T(rule.rho)),
        take(T(1 - rule.rho)) {}
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
    if (decay != T(0)) g = fma(p, V(decay), g);
    const V v = fma(state.get(0), V(keep), g * g * V(take)), u = state.get(1);
    const V d = sqrt(u + V(eps)) / sqrt(v + V(eps)) * g;
    state.set(0, v);
    state.set(1, fma(u, V(keep), d * d * V(take)));
    return p - V(lr) * d;
  }
};

// Moments; p -= lr trust (r + weight_decay p), where r is Adam's m / (1 - b1^t) / (sqrt(v / (1 -
// b2^t)) + eps), in two passes: the first moves the moments, and its norms give the trust ratio
// (You et al. 2020, algorithm 2).
template <class T>
struct Step<LambRule, T> {
  static constexpr int states = 2;
  Moments<T> moments;
  T unbias1, unbias2, eps, decay;

  MIXTAPE_HD Step(const LambRule& rule, double steps)
      : moments(rule),
        unbias1(T(1 / (1 - pow(rule.beta1, steps + 1)))),
        unbias2(T(1 / sqrt(1 - pow(rule.beta2, steps + 1)))),
        eps(T(rule.eps)),
        decay(T(rule.weight_decay)) {}
  template <class V>
  [[gnu::always_inline]] MIXTAPE_HD V direction(V p, V m, V v) const {
    return fma(p, V(decay), m * V(unbias1) / fma(sqrt(v), V(unbias2), V(eps)));
  }
};

struct SquaredNorms {
  double param = 0, direction = 0;
};
// What multiplies lr for one parameter: phi(|p|) / |direction|, phi limiting to a range; 1 where
// either norm is 0.
MIXTAPE_HD inline double trust_ratio(const LambRule& rule, const SquaredNorms& squared) {
  const double norm = std::clamp(sqrt(squared.param), rule.min_norm, rule.max_norm);
  const double length = sqrt(squared.direction);
  const double ratio = norm > 0 && length > 0 ? norm / length : 1;
  return std::clamp(ratio, rule.min_trust, rule.max_trust);
}

// m = momentum m + (1 - momentum) g; p -= lr (factor orthogonalize(m) + weight_decay p), or with
// momentum m + (1 - momentum) g for m if nesterov (Jordan 2024). factor is sqrt(max(1, rows /
// columns)), or that of Liu et al. 2025, by which steps are as large as Adam's.
template <class T>
struct Step<MuonRule, T> {
  static constexpr int states = 1;
  T keep, take, rate, shrink;
  bool nesterov;

  Step(const MuonRule& rule, int64_t rows, int64_t columns)
      : keep(T(rule.momentum)),
        take(T(1 - rule.momentum)),
        rate(T(-rule.lr * factor(rule, double(rows), double(columns)))),
        shrink(T(1 - rule.lr * rule.weight_decay)),
        nesterov(rule.nesterov) {}
  // What is orthogonalized.
  template <class V, class State>
  MIXTAPE_HD V ahead(V g, State state) const {
    const V buffer = state.set(0, fma(state.get(0), V(keep), g * V(take)));
    return nesterov ? fma(buffer, V(keep), g * V(take)) : buffer;
  }
  template <class V>
  MIXTAPE_HD V move(V p, V orthogonal) const {
    return fma(V(rate), orthogonal, p * V(shrink));
  }

 private:
  static double factor(const MuonRule& rule, double rows, double columns) {
    return rule.match_adam ? 0.2 * sqrt(std::max(rows, columns))
                           : sqrt(std::max(1.0, rows / columns));
  }
};

// U V^T, about, for x = U S V^T [rows, columns]: five steps of X' = a X + b (X X^T) X + c (X X^T)^2
// X from x / |x|. The coefficients are Keller Jordan's (2024): steep at zero, and good enough at
// one. What is multiplied by itself is the smaller of X X^T and X^T X, which give the same.
// gemm(a, b, c) is c = a @ b, mix(b, s, c, a, f) is f = b s + c f + a I. Returns the one of x and
// `next` that holds the result; square and factor are [k, k], the smaller of rows and columns.
template <class Gemm, class Mix>
View orthogonalize(View x, View next, const View& square, const View& factor, Gemm gemm, Mix mix) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool wide = x.shape()[0] <= x.shape()[1];
  for (int step = 0; step < 5; ++step) {
    const View turned{x.data, x.dtype, transpose(x.layout, 0, 1)};
    wide ? gemm(x, turned, square) : gemm(turned, x, square);
    gemm(square, square, factor);
    mix(b, square, c, a, factor);
    wide ? gemm(factor, x, next) : gemm(x, factor, next);
    std::swap(x, next);
  }
  return x;
}

}  // namespace mixtape::kernels
