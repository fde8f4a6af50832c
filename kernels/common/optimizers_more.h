#pragma once
// Optimizers that are used less: see kernels/common/optimizers.h, which includes them.

#include "kernels/common/moments.h"

namespace mixtape::kernels {

// m = b1 m + (1 - b1) g, u = max(b2 u, |g| + eps), p -= lr / (1 - b1^t) m / u (Kingma & Ba 2015,
// section 7.1)
struct Adamax {
  static constexpr std::string_view name = "adamax";
  static constexpr StateInfo states[] = {"exp_avg", square("exp_inf")};
  double lr = 2e-3;
  Betas betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;

  Options options() { return adam_options(*this); }

  template <class T>
  struct Step {
    Moments<T> rates;
    T rate, eps, decay;

    MIXTAPE_HD Step(const Adamax& o, double steps)
        : rates(o.betas),
          rate(T(-o.lr / (1 - pow(o.betas.first, steps + 1)))),
          eps(T(o.eps)),
          decay(T(o.weight_decay)) {}
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
      if (decay != T(0)) g = fma(p, V(decay), g);
      const V m = state.set(0, fma(state.get(0), V(rates.keep1), g * V(rates.take1)));
      const V u = state.set(1, Maximum::f(state.get(1) * V(rates.keep2), abs(g) + V(eps)));
      return fma(V(rate), m / u, p);
    }
  };
};

// p -= s sign(g), where a step s of each element, at first lr, grows by eta_plus while g keeps its
// sign; where it does not, s shrinks by eta_minus and p waits (Riedmiller & Braun 1993). For whole
// batches: the size of g does not count.
struct Rprop {
  static constexpr std::string_view name = "rprop";
  static constexpr StateInfo states[] = {"prev", square("step_size")};
  double lr = 1e-2, eta_minus = 0.5, eta_plus = 1.2, min_step = 1e-6, max_step = 50;

  Options options() {
    return {{"lr", lr},
            {"eta_minus", eta_minus, Bounds::Below1},
            {"eta_plus", eta_plus},
            {"min_step", min_step},
            {"max_step", max_step}};
  }
  Requirements requirements() const {
    return {{eta_plus >= 1, "eta_plus must be >= 1", eta_plus, 1},
            {min_step <= max_step, "min_step must be <= max_step", min_step, max_step}};
  }

  template <class T>
  struct Step {
    T lr, shrink, grow, least, most;
    bool first;

    MIXTAPE_HD Step(const Rprop& o, double steps)
        : lr(T(o.lr)),
          shrink(T(o.eta_minus)),
          grow(T(o.eta_plus)),
          least(T(o.min_step)),
          most(T(o.max_step)),
          first(steps == 0) {}
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
      const V zero(T(0)), one(T(1));
      const V before = first ? zero : state.get(0), size = first ? V(lr) : state.get(1);
      const V same = g * before;
      const V factor = select(same > zero, V(grow), select(same < zero, V(shrink), one));
      const V step = state.set(1, Minimum::f(Maximum::f(size * factor, V(least)), V(most)));
      g = state.set(0, select(same < zero, zero, g));
      // Zero and NaN are their own signs.
      return p - select(g > zero, one, select(g < zero, -one, g)) * step;
    }
  };
};

// p -= eta (g + lambd p), eta = lr / (1 + lambd lr t)^alpha; ax is the mean of p after t0 steps
// (Polyak & Juditsky 1992)
struct ASGD {
  static constexpr std::string_view name = "asgd";
  static constexpr StateInfo states[] = {"ax"};
  double lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0;

  Options options() {
    return {
        {"lr", lr}, {"lambd", lambd}, {"alpha", alpha}, {"t0", t0}, {"weight_decay", weight_decay}};
  }

  template <class T>
  struct Step {
    T rate, shrink, decay, part;

    MIXTAPE_HD Step(const ASGD& o, double steps) : decay(T(o.weight_decay)) {
      const double eta = o.lr / pow(1 + o.lambd * o.lr * steps, o.alpha);
      rate = T(-eta);
      shrink = T(1 - o.lambd * eta);
      part = T(steps - o.t0 > 1 ? 1 / (steps - o.t0) : 1);
    }
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
      if (decay != T(0)) g = fma(p, V(decay), g);
      p = fma(V(rate), g, p * V(shrink));
      const V ax = state.get(0);
      state.set(0, part == T(1) ? p : fma(p - ax, V(part), ax));
      return p;
    }
  };
};

}  // namespace mixtape::kernels
