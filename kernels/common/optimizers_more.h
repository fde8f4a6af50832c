#pragma once
// Optimizers that are used less often. kernels/common/optimizers.h includes and explains them.

#include <limits>

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
      const V u = state.set(1, maximum(state.get(1) * V(rates.keep2), abs(g) + V(eps)));
      return fma(V(rate), m / u, p);
    }
  };
};

// p -= s sign(g). Each element has a step s, at first lr, which grows by eta_plus while g keeps its
// sign; when it does not, s shrinks by eta_minus and p stays (Riedmiller & Braun 1993). For
// gradients of the whole data set, since the size of g does not count.
struct Rprop {
  static constexpr std::string_view name = "rprop";
  static constexpr StateInfo states[] = {"prev", square("step_size")};
  double lr = 1e-2, eta_minus = 0.5, eta_plus = 1.2, min_step = 1e-6, max_step = 50;

  Options options() {
    return {{"lr", lr},
            {"eta_minus", eta_minus, Bounds::Below1},
            {"eta_plus", eta_plus},
            {"min_step", min_step},
            {"max_step", max_step, Bounds::Limit}};
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
      const V step = state.set(1, minimum(maximum(size * factor, V(least)), V(most)));
      g = state.set(0, select(same < zero, zero, g));
      // (The sign of 0 is 0, that of NaN is NaN.)
      return p - select(g > zero, one, select(g < zero, -one, g)) * step;
    }
  };
};

// p -= eta (g + lambd p), eta = lr / (1 + lambd lr t)^alpha; ax is the mean of p after t0 steps
// (Polyak & Juditsky 1992)
struct ASGD {
  static constexpr std::string_view name = "asgd";
  static constexpr StateInfo states[] = {weight("ax")};
  double lr = 1e-2, lambd = 1e-4, alpha = 0.75, t0 = 1e6, weight_decay = 0;

  Options options() {
    return {{"lr", lr},
            {"lambd", lambd},
            {"alpha", alpha},
            {"t0", t0, Bounds::Limit},
            {"weight_decay", weight_decay}};
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

// d = trust (g + weight_decay p), b = momentum b + d, p -= lr (nesterov ? d + momentum b : b),
// where trust is trust_coefficient |p| / (|g| + weight_decay |p|) (You et al. 2017, algorithm 1,
// with the rate outside of the momentum, as SGD has it).
struct Lars {
  static constexpr std::string_view name = "lars";
  static constexpr StateInfo states[] = {"momentum_buffer"};
  static constexpr bool moves_states_first = false;
  double lr = 1, momentum = 0.9, weight_decay = 0, trust_coefficient = 1e-3;
  double min_trust = 0, max_trust = std::numeric_limits<double>::infinity();
  bool nesterov = false;

  Options options() {
    return {{"lr", lr},
            {"momentum", momentum},
            {"weight_decay", weight_decay},
            {"trust_coefficient", trust_coefficient},
            {"min_trust", min_trust},
            {"max_trust", max_trust, Bounds::Limit},
            {"nesterov", nesterov}};
  }
  Requirements requirements() const {
    return {{min_trust <= max_trust, "min_trust must be <= max_trust", min_trust, max_trust}};
  }
  bool uses(int) const { return momentum != 0; }

  template <class T>
  struct Step {
    T lr, momentum, decay;
    bool nesterov;

    MIXTAPE_HD Step(const Lars& o, double)
        : lr(T(o.lr)), momentum(T(o.momentum)), decay(T(o.weight_decay)), nesterov(o.nesterov) {}
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V measured(V, V g, State) const {
      return g;
    }
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V moved(V p, V g, State state, double trust) const {
      V d = V(T(trust)) * fma(p, V(decay), g);
      if (momentum != T(0)) {
        const V buffer = state.set(0, fma(state.get(0), V(momentum), d));
        d = nesterov ? fma(buffer, V(momentum), d) : buffer;
      }
      return p - V(lr) * d;
    }
  };
};

// v = (1 - c) v + c g^2 with c = t^beta2_decay, u = g / max(sqrt(v), eps1), p -= lr weight_decay p
// + min(lr, 1 / sqrt(t)) max(eps2, rms(p)) u / max(1, rms(u) / d), where rms(p) is that before the
// step (Shazeer & Stern 2018, algorithms 4 and 5). Of matrices, only the means of v over rows and
// columns are kept, and v is their product over the mean of all. eps1 = 0, PyTorch's None, is the
// distance from 1 to the next number of the type in which the step is computed.
struct Adafactor {
  static constexpr std::string_view name = "adafactor";
  static constexpr StateInfo states[] = {square("variance"), square("row_var", Over::Rows),
                                         square("col_var", Over::Columns)};
  static constexpr bool moves_states_first = true;
  double lr = 1e-2, beta2_decay = -0.8, eps1 = 0, eps2 = 1e-3, d = 1, weight_decay = 0;

  Options options() {
    return {{"lr", lr},
            {"beta2_decay", beta2_decay, Bounds::Any},
            {"eps1", eps1},
            {"eps2", eps2},
            {"d", d, Bounds::Limit},
            {"weight_decay", weight_decay}};
  }
  Requirements requirements() const {
    return {{beta2_decay <= 0, "beta2_decay must be <= 0", beta2_decay, 0},
            {d >= 1, "d must be >= 1", d, 1}};
  }
  bool uses(int state, int rank) const { return (state == 0) == (rank < 2); }

  // state.get(0) is v. A matrix's v follows from its rows and columns; what is set is ignored.
  template <class T>
  struct Step {
    T keep, take, rate, shrink, least;

    MIXTAPE_HD Step(const Adafactor& o, double steps)
        : keep(T(1 - pow(steps + 1, o.beta2_decay))),
          take(T(pow(steps + 1, o.beta2_decay))),
          shrink(T(1 - o.lr * o.weight_decay)),
          least(o.eps1 > 0 ? T(o.eps1) : std::numeric_limits<T>::epsilon()) {
      const double most = 1 / sqrt(steps + 1);
      rate = T(o.lr < most ? o.lr : most);
    }
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V measured(V, V g, State state) const {
      return in_units(g, state.set(0, averaged(state.get(0), g * g)));
    }
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V moved(V p, V g, State state, double trust) const {
      return fma(V(T(-double(rate) * trust)), in_units(g, state.get(0)), p * V(shrink));
    }
    template <class V>
    [[gnu::always_inline]] MIXTAPE_HD V averaged(V mean, V square) const {
      // (Finite, since means are divided by each other.)
      return minimum(fma(mean, V(keep), square * V(take)), V(std::numeric_limits<T>::max()));
    }

   private:
    template <class V>
    [[gnu::always_inline]] MIXTAPE_HD V in_units(V g, V v) const {
      return g / maximum(sqrt(v), V(least));
    }
  };
};

// AdamW's steps of z along gradients at y = b1 x + (1 - b1) z, where x is a mean of all z: v = b2 v
// + (1 - b2) g^2, d = g / (sqrt(v / (1 - b2^t)) + eps) + weight_decay y, z -= lr_t d, x += c (z -
// x) with c = lr_t^2 / (lr_1^2 + ... + lr_t^2), and lr_t = lr min(1, t / warmup_steps) (Defazio et
// al. 2024, algorithm 1). Parameters hold y; optim/averaged.h has x.
struct ScheduleFreeAdamW {
  static constexpr std::string_view name = "schedule_free_adamw";
  static constexpr StateInfo states[] = {weight("z"), square("exp_avg_sq")};
  double lr = 2.5e-3;
  Betas betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 0, warmup_steps = 0;

  Options options() { return adam_options(*this, {{"warmup_steps", warmup_steps}}); }
  Requirements requirements() const {
    return {{betas.first > 0, "beta1 must be > 0", betas.first, betas.second}};
  }

  template <class T>
  struct Step {
    Moments<T> rates;
    T part, rate, rate_ahead, unbias, eps, decay;
    bool first;

    MIXTAPE_HD Step(const ScheduleFreeAdamW& o, double steps)
        : rates(o.betas),
          unbias(T(1 / sqrt(1 - pow(o.betas.second, steps + 1)))),
          eps(T(o.eps)),
          decay(T(o.weight_decay)),
          first(steps == 0) {
      const double t = steps + 1, w = o.warmup_steps;
      const double now = t < w ? o.lr * t / w : o.lr;
      const double c = t < w ? 6 * t / ((t + 1) * (2 * t + 1)) : 1 / (t - floor(w) + squares(w));
      part = T(c);
      rate = T(-now);
      rate_ahead = T(now * (o.betas.first * (1 - c) - 1));
    }
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
      const V z = first ? p : state.get(0);
      const V v = state.set(1, fma(state.get(1), V(rates.keep2), g * g * V(rates.take2)));
      V d = g / fma(sqrt(v), V(unbias), V(eps));
      if (decay != T(0)) d = fma(p, V(decay), d);
      state.set(0, fma(V(rate), d, z));
      return fma(V(rate_ahead), d, fma(z - p, V(part), p));
    }

   private:
    // (1 / w)^2 + (2 / w)^2 + ... up to 1
    MIXTAPE_HD static double squares(double w) {
      const double n = floor(w);
      return n > 0 ? n * (n + 1) * (2 * n + 1) / (6 * w * w) : 0;
    }
  };
};

}  // namespace mixtape::kernels
