#pragma once
// Every optimizer, once: a struct of its options (defaults, names, ranges), the states that it
// keeps for each parameter, and Step<T>, one step for one element on either device. Constants that
// depend on the options and the step count alone are computed once per parameter, in f64; the rest
// is arithmetic on V: a T, or a SIMD vector of T.

#include <limits>
#include <string_view>

#include "kernels/common/moments.h"
#include "kernels/common/op_list.h"
#include "kernels/common/optimizers_more.h"
#include "kernels/common/update.h"

namespace mixtape::kernels {

template <class O, class T>
using StepOf = typename O::template Step<T>;
template <class O>
inline constexpr int state_count = int(std::size(O::states));
template <class O>
inline constexpr int element_states = [] {  // those that Step<T> sees
  int count = 0;
  for (const StateInfo& info : O::states) count += info.over == Over::Elements;
  return count;
}();

// An optimizer's members, beside its options:
//   name, states: texts, as they stand in a state dict; square() says that a state is >= 0
//   options(): the options by name, with their ranges
//   uses(k), optional: true if these options need state k; uses(k, rank) if that depends on the
//     parameter as well; initial(), optional: the first value of states
//   requirements(), optional: what options in range must satisfy together
//   min_rank, optional: the fewest dimensions of a parameter
//   Step<T>: step(p, g, state) is the new p; state.get(k) is state k, state.set(k, v) returns v
// Layerwise ones take two passes, between which the norms of a parameter and of measured() give
// trust_ratio() (layerwise.h):
//   moves_states_first: true if the first pass stores states, false if the second does
//   Step<T>: step.measured(p, g, state), and step.moved(p, g, state, trust), the new p

// b = momentum b + (1 - dampening) g, or g the first time; p -= lr (nesterov ? g + momentum b : b)
struct SGD {
  static constexpr std::string_view name = "sgd";
  static constexpr StateInfo states[] = {"momentum_buffer"};
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;

  Options options() {
    return {{"lr", lr},
            {"momentum", momentum},
            {"dampening", dampening, Bounds::Any},
            {"weight_decay", weight_decay},
            {"nesterov", nesterov}};
  }
  Requirements requirements() const {
    return {{!nesterov || (momentum > 0 && dampening == 0),
             "nesterov needs momentum > 0 and dampening 0", momentum, dampening}};
  }
  bool uses(int) const { return momentum != 0; }

  template <class T>
  struct Step {
    T lr, momentum, decay, keep, take;
    bool nesterov;

    MIXTAPE_HD Step(const SGD& o, double steps)
        : lr(T(o.lr)),
          momentum(T(o.momentum)),
          decay(T(o.weight_decay)),
          keep(steps == 0 ? T(0) : T(o.momentum)),
          take(steps == 0 ? T(1) : T(1 - o.dampening)),
          nesterov(o.nesterov) {}
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
};

// Kingma & Ba 2015, algorithm 1; amsgrad: Reddi et al. 2018.
struct Adam {
  static constexpr std::string_view name = "adam";
  static constexpr StateInfo states[] = {"exp_avg", square("exp_avg_sq"), square("max_exp_avg_sq")};
  double lr = 1e-3;
  Betas betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;
  bool amsgrad = false;

  Options options() { return adam_options(*this, {{"amsgrad", amsgrad}}); }
  bool uses(int state) const { return state < 2 || amsgrad; }

  template <class T>
  using Step = AdamStep<T, false>;
};

// Loshchilov & Hutter 2019, algorithm 2.
struct AdamW {
  static constexpr std::string_view name = "adamw";
  static constexpr StateInfo states[] = {"exp_avg", square("exp_avg_sq"), square("max_exp_avg_sq")};
  double lr = 1e-3;
  Betas betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 1e-2;
  bool amsgrad = false;

  Options options() { return adam_options(*this, {{"amsgrad", amsgrad}}); }
  bool uses(int state) const { return state < 2 || amsgrad; }

  template <class T>
  using Step = AdamStep<T, true>;
};

// Moments; p -= lr ((1 - mu_t) g / (1 - M_t) + mu_t+1 m / (1 - M_t+1)) / (sqrt(v / (1 - b2^t)) +
// eps) where mu_t = b1 (1 - 0.96^(t momentum_decay) / 2), and M_t the product of mu_1 to mu_t
// (Dozat 2016, algorithm 2).
struct NAdam {
  static constexpr std::string_view name = "nadam";
  static constexpr StateInfo states[] = {"exp_avg", square("exp_avg_sq")};
  double lr = 2e-3;
  Betas betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3;
  bool decoupled_weight_decay = false;

  Options options() {
    return adam_options(*this, {{"momentum_decay", momentum_decay},
                                {"decoupled_weight_decay", decoupled_weight_decay}});
  }

  template <class T>
  struct Step {
    Moments<T> moments;
    WeightDecay<T> decay;
    T take_grad, take_mean, unbias, eps;

    MIXTAPE_HD Step(const NAdam& o, double steps)
        : moments(o.betas),
          decay(o, o.decoupled_weight_decay),
          unbias(T(1 / sqrt(1 - pow(o.betas.second, steps + 1)))),
          eps(T(o.eps)) {
      const double t = steps + 1, product = mus(o, t), next = mu(o, t + 1);
      take_grad = T(-o.lr * (1 - mu(o, t)) / (1 - product));
      take_mean = T(-o.lr * next / (1 - product * next));
    }
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
      V shrunk = p;
      decay(shrunk, g);
      const auto [m, v] = moments.move(g, state);
      const V change = fma(V(take_grad), g, V(take_mean) * m) / fma(sqrt(v), V(unbias), V(eps));
      // (shrunk + change, rounded once in every loop: compilers join them in some loops only.)
      return fma(p, V(decay.keep), change);
    }

   private:
    MIXTAPE_HD static double mu(const NAdam& o, double t) {
      return o.betas.first * (1 - 0.5 * pow(0.96, t * o.momentum_decay));
    }
    // M_t, computed anew at each step, so that it needs no state; after a few dozen factors it is 0
    // beside 1. If momentum_decay is large, all factors but the first are beta1.
    MIXTAPE_HD static double mus(const NAdam& o, double t) {
      const double ratio = pow(0.96, o.momentum_decay);
      double product = 1, power = 1, i = 0;
      while (i < t && product > 1e-20 && power > 1e-20) {
        ++i;
        power *= ratio;
        product *= o.betas.first * (1 - 0.5 * power);
      }
      return product > 1e-20 ? product * pow(o.betas.first, t - i) : 0;
    }
  };
};

// Moments; p -= lr r m / (1 - b1^t) sqrt(1 - b2^t) / (sqrt(v) + eps), where r rectifies the
// variance of the denominator; or p -= lr m / (1 - b1^t) in the first steps, where the variance is
// not finite (Liu et al. 2020, algorithm 2).
struct RAdam {
  static constexpr std::string_view name = "radam";
  static constexpr StateInfo states[] = {"exp_avg", square("exp_avg_sq")};
  double lr = 1e-3;
  Betas betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;
  bool decoupled_weight_decay = false;

  Options options() {
    return adam_options(*this, {{"decoupled_weight_decay", decoupled_weight_decay}});
  }

  template <class T>
  struct Step {
    Moments<T> moments;
    WeightDecay<T> decay;
    T rate, eps;
    bool rectified;

    MIXTAPE_HD Step(const RAdam& o, double steps)
        : moments(o.betas), decay(o, o.decoupled_weight_decay), eps(T(o.eps)) {
      const double t = steps + 1, kept = pow(o.betas.second, t),
                   most = 2 / (1 - o.betas.second) - 1;
      const double length = most - 2 * t * kept / (1 - kept);
      rectified = length > 5;
      const double r = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length);
      rate = T(-o.lr / (1 - pow(o.betas.first, t)) * (rectified ? sqrt(r * (1 - kept)) : 1));
    }
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
      decay(p, g);
      const auto [m, v] = moments.move(g, state);
      return fma(V(rate), rectified ? m / (sqrt(v) + V(eps)) : m, p);
    }
  };
};

// p -= lr (sign(b1 m + (1 - b1) g) + weight_decay p), m = b2 m + (1 - b2) g (Chen et al. 2023,
// algorithm 2)
struct Lion {
  static constexpr std::string_view name = "lion";
  static constexpr StateInfo states[] = {"exp_avg"};
  double lr = 1e-4;
  Betas betas = {0.9, 0.99};
  double weight_decay = 0;

  Options options() {
    return {{"lr", lr},
            {"beta1", betas.first, Bounds::Below1},
            {"beta2", betas.second, Bounds::Below1},
            {"weight_decay", weight_decay}};
  }

  template <class T>
  struct Step {
    T lr, shrink;
    Moments<T> rates;

    MIXTAPE_HD Step(const Lion& o, double)
        : lr(T(o.lr)), shrink(T(1 - o.lr * o.weight_decay)), rates(o.betas) {}
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
      const V m = state.get(0), u = fma(m, V(rates.keep1), g * V(rates.take1)), zero(T(0));
      state.set(0, fma(m, V(rates.keep2), g * V(rates.take2)));
      // (The sign of 0 is 0, that of NaN is NaN.)
      const V sign = select(u > zero, V(T(1)), select(u < zero, V(T(-1)), u));
      return fma(p, V(shrink), -(V(lr) * sign));
    }
  };
};

// v = alpha v + (1 - alpha) g^2, p -= lr g / (sqrt(v) + eps) (Hinton's lecture 6e, 2012). Centered:
// v - a^2 replaces v, a = alpha a + (1 - alpha) g (Graves 2013). With momentum, b = momentum b +
// g / (...), p -= lr b.
struct RMSprop {
  static constexpr std::string_view name = "rmsprop";
  static constexpr StateInfo states[] = {square("square_avg"), "momentum_buffer", "grad_avg"};
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, momentum = 0, weight_decay = 0;
  bool centered = false;

  Options options() {
    return {{"lr", lr},
            {"alpha", alpha, Bounds::Below1},
            {"eps", eps},
            {"momentum", momentum},
            {"weight_decay", weight_decay},
            {"centered", centered}};
  }
  bool uses(int state) const { return state == 0 || (state == 1 ? momentum != 0 : centered); }

  template <class T>
  struct Step {
    T lr, momentum, decay, keep, take, eps;
    bool centered;

    MIXTAPE_HD Step(const RMSprop& o, double)
        : lr(T(o.lr)),
          momentum(T(o.momentum)),
          decay(T(o.weight_decay)),
          keep(T(o.alpha)),
          take(T(1 - o.alpha)),
          eps(T(o.eps)),
          centered(o.centered) {}
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
      if (decay != T(0)) g = fma(p, V(decay), g);
      V v = state.set(0, fma(state.get(0), V(keep), g * g * V(take)));
      if (centered) {
        const V a = state.set(2, fma(state.get(2), V(keep), g * V(take)));
        v = maximum(v - a * a, V(T(0)));  // a variance; rounding could make it negative
      }
      g = g / (sqrt(v) + V(eps));
      if (momentum != T(0)) g = state.set(1, fma(state.get(1), V(momentum), g));
      return p - V(lr) * g;
    }
  };
};

// s += g^2, p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) (Duchi et al. 2011)
struct Adagrad {
  static constexpr std::string_view name = "adagrad";
  static constexpr StateInfo states[] = {square("sum")};
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;

  Options options() {
    return {{"lr", lr},
            {"lr_decay", lr_decay},
            {"weight_decay", weight_decay},
            {"initial_accumulator_value", initial_accumulator_value},
            {"eps", eps}};
  }
  double initial() const { return initial_accumulator_value; }

  template <class T>
  struct Step {
    T rate, decay, eps;

    MIXTAPE_HD Step(const Adagrad& o, double steps)
        : rate(T(o.lr / (1 + steps * o.lr_decay))), decay(T(o.weight_decay)), eps(T(o.eps)) {}
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
      if (decay != T(0)) g = fma(p, V(decay), g);
      const V sum = state.set(0, fma(g, g, state.get(0)));
      return p - V(rate) * g / (sqrt(sum) + V(eps));
    }
  };
};

// v = rho v + (1 - rho) g^2, d = sqrt(u + eps) / sqrt(v + eps) g, u = rho u + (1 - rho) d^2,
// p -= lr d (Zeiler 2012, algorithm 1)
struct Adadelta {
  static constexpr std::string_view name = "adadelta";
  static constexpr StateInfo states[] = {square("square_avg"), square("acc_delta")};
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;

  Options options() {
    return {{"lr", lr}, {"rho", rho, Bounds::Below1}, {"eps", eps}, {"weight_decay", weight_decay}};
  }

  template <class T>
  struct Step {
    T lr, decay, eps, keep, take;

    MIXTAPE_HD Step(const Adadelta& o, double)
        : lr(T(o.lr)),
          decay(T(o.weight_decay)),
          eps(T(o.eps)),
          keep(T(o.rho)),
          take(T(1 - o.rho)) {}
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
};

// Moments; p -= lr trust (r + weight_decay p), where r is Adam's m / (1 - b1^t) / (sqrt(v / (1 -
// b2^t)) + eps) (You et al. 2020, algorithm 2).
struct Lamb {
  static constexpr std::string_view name = "lamb";
  static constexpr StateInfo states[] = {"exp_avg", square("exp_avg_sq")};
  static constexpr bool moves_states_first = true;
  double lr = 1e-3;
  Betas betas = {0.9, 0.999};
  double eps = 1e-6, weight_decay = 0;
  // Limits of |p| (phi in the paper) and of the trust ratio.
  double min_norm = 0, max_norm = std::numeric_limits<double>::infinity();
  double min_trust = 0, max_trust = std::numeric_limits<double>::infinity();

  Options options() {
    return adam_options(*this, {{"min_norm", min_norm},
                                {"max_norm", max_norm, Bounds::Limit},
                                {"min_trust", min_trust},
                                {"max_trust", max_trust, Bounds::Limit}});
  }
  Requirements requirements() const {
    return {{min_norm <= max_norm, "min_norm must be <= max_norm", min_norm, max_norm},
            {min_trust <= max_trust, "min_trust must be <= max_trust", min_trust, max_trust}};
  }

  template <class T>
  struct Step {
    Moments<T> moments;
    double lr;
    T unbias1, unbias2, eps, decay;

    MIXTAPE_HD Step(const Lamb& o, double steps)
        : moments(o.betas),
          lr(o.lr),
          unbias1(T(1 / (1 - pow(o.betas.first, steps + 1)))),
          unbias2(T(1 / sqrt(1 - pow(o.betas.second, steps + 1)))),
          eps(T(o.eps)),
          decay(T(o.weight_decay)) {}
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V measured(V p, V g, State state) const {
      const auto [m, v] = moments.move(g, state);
      return direction(p, m, v);
    }
    template <class V, class State>
    [[gnu::always_inline]] MIXTAPE_HD V moved(V p, V, State state, double trust) const {
      return fma(V(T(-lr * trust)), direction(p, state.get(0), state.get(1)), p);
    }

   private:
    template <class V>
    [[gnu::always_inline]] MIXTAPE_HD V direction(V p, V m, V v) const {
      return fma(p, V(decay), m * V(unbias1) / fma(sqrt(v), V(unbias2), V(eps)));
    }
  };
};

// m = momentum m + (1 - momentum) g; p -= lr (factor orthogonalize(m) + weight_decay p), or with
// momentum m + (1 - momentum) g for m if nesterov (Jordan 2024). factor is sqrt(max(1, rows /
// columns)), or with match_adam 0.2 sqrt(max(rows, columns)), which makes steps as large as Adam's
// (Liu et al. 2025).
struct Muon {
  static constexpr std::string_view name = "muon";
  static constexpr StateInfo states[] = {"momentum_buffer"};
  static constexpr int min_rank = 2;
  double lr = 0.02, momentum = 0.95, eps = 1e-7, weight_decay = 0;
  bool nesterov = true, match_adam = false;

  Options options() {
    return {{"lr", lr},
            {"momentum", momentum, Bounds::Below1},
            {"eps", eps},
            {"weight_decay", weight_decay},
            {"nesterov", nesterov},
            {"match_adam", match_adam}};
  }

  template <class T>
  struct Step {
    T keep, take, rate, shrink;
    bool nesterov;

    MIXTAPE_HD Step(const Muon& o, int64_t rows, int64_t columns)
        : keep(T(o.momentum)),
          take(T(1 - o.momentum)),
          rate(T(-o.lr * factor(o, double(rows), double(columns)))),
          shrink(T(1 - o.lr * o.weight_decay)),
          nesterov(o.nesterov) {}
    // The matrix to orthogonalize.
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
    MIXTAPE_HD static double factor(const Muon& o, double rows, double columns) {
      if (o.match_adam) return 0.2 * sqrt(rows > columns ? rows : columns);
      return rows > columns ? sqrt(rows / columns) : 1;
    }
  };
};

// The optimizers that optimizer_step runs.
using Optimizers = OpList<SGD, Adam, AdamW, NAdam, RAdam, Lion, RMSprop, Adagrad, Adadelta, Adamax,
                          Rprop, ASGD, Lamb, Muon, Lars, ScheduleFreeAdamW, Adafactor>;

// A reference to one of them, by its position in the list. visit() calls run(o) with it.
struct AnyOptimizer {
  template <class O>
  AnyOptimizer(const O& o) : which(index_in<O>(Optimizers())), options(&o) {}
  template <class Run>
  void visit(Run run) const {
    visit_op(Optimizers(), which, [&]<class O>() { run(*static_cast<const O*>(options)); });
  }
  int which;
  const void* options;
  const void* place = nullptr;  // in device memory: see OptionsNow
};

}  // namespace mixtape::kernels
