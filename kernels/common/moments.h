#pragma once
// Parts shared by the optimizers of Adam's kind: the running means of the gradient and of its
// square, and the options.

#include "kernels/common/math.h"
#include "kernels/common/options.h"

namespace mixtape::kernels {

// m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2
template <class T>
struct Moments {
  template <class V>
  struct [[gnu::visibility("hidden")]] Pair {  // as kernels/cpu's vectors
    V m, v;
  };
  T keep1, take1, keep2, take2;

  MIXTAPE_HD explicit Moments(const Betas& betas)
      : keep1(T(betas.first)),
        take1(T(1 - betas.first)),
        keep2(T(betas.second)),
        take2(T(1 - betas.second)) {}
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD Pair<V> move(V g, State state) const {
    return {state.set(0, fma(state.get(0), V(keep1), g * V(take1))),
            state.set(1, fma(state.get(1), V(keep2), g * g * V(take2)))};
  }
};

// The options that these optimizers share, and `others`.
inline Options adam_options(double& lr, Betas& betas, double& eps, double& weight_decay,
                            std::initializer_list<Option> others) {
  Options all{{"lr", lr},
              {"beta1", betas.first, Bounds::Below1},
              {"beta2", betas.second, Bounds::Below1},
              {"eps", eps},
              {"weight_decay", weight_decay}};
  for (const Option& option : others) all.push_back(option);
  return all;
}
template <class O>
Options adam_options(O& o, std::initializer_list<Option> others = {}) {
  return adam_options(o.lr, o.betas, o.eps, o.weight_decay, others);
}

// Decoupled decay acts on p, not through the gradient.
template <class T>
struct WeightDecay {
  T add, keep;

  template <class O>
  MIXTAPE_HD WeightDecay(const O& o, bool decoupled)
      : add(T(decoupled ? 0 : o.weight_decay)),
        keep(T(decoupled ? 1 - o.lr * o.weight_decay : 1)) {}
  template <class V>
  [[gnu::always_inline]] MIXTAPE_HD void operator()(V& p, V& g) const {
    if (add != T(0)) g = fma(p, V(add), g);
    p = p * V(keep);
  }
};

// Moments; p -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps). amsgrad uses the largest v so
// far.
template <class T, bool decoupled>
struct AdamStep {
  Moments<T> moments;
  WeightDecay<T> decay;
  T rate, unbias, eps;
  bool amsgrad;

  template <class O>
  MIXTAPE_HD AdamStep(const O& o, double steps)
      : moments(o.betas),
        decay(o, decoupled),
        rate(T(-o.lr / (1 - pow(o.betas.first, steps + 1)))),
        unbias(T(1 / sqrt(1 - pow(o.betas.second, steps + 1)))),
        eps(T(o.eps)),
        amsgrad(o.amsgrad) {}
  template <class V, class State>
  [[gnu::always_inline]] MIXTAPE_HD V operator()(V p, V g, State state) const {
    decay(p, g);
    auto [m, v] = moments.move(g, state);
    if (amsgrad) v = state.set(2, maximum(v, state.get(2)));
    return fma(V(rate), m / fma(sqrt(v), V(unbias), V(eps)), p);
  }
};

}  // namespace mixtape::kernels
