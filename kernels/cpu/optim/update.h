#pragma once
// How optimizer steps (kernels/common/steps.h) go over their tensors: a run of elements at a time,
// of whatever types.

#include "kernels/common/steps.h"
#include "kernels/cpu/loops/chunks.h"

namespace mixtape::kernels::cpu {

template <class P>
void round_into(const View& shadow, int64_t begin, const P* param, int64_t n) {
  visit_float(shadow.dtype, [&]<class S>() { convert_run(param, n, shadow.as<S>() + begin); });
}

// The states of some elements, as kernels/common/steps.h sees them.
template <class T>
struct StatesAt {
  T* const* state;
  int64_t i, count;

  [[gnu::always_inline]] Vec<T> get(int k) const { return read<T>(state[k] + i, count); }
  [[gnu::always_inline]] Vec<T> set(int k, Vec<T> x) const {
    write(state[k] + i, x, count);
    return x;
  }
};

// One chunk of one parameter, and what multiplies its gradient. P, G: element types of the two.
template <class P, class G>
struct Run {
  using T = math_t<P>;
  P* param;
  const G* grad;
  T* state[Update::max_states];
  const View& shadow;  // of the whole parameter
  int64_t begin, n;
  T grad_scale;
  double steps;  // before this one

  // f(i, count, p, g) returns the new p.
  template <class F>
  void each(F f) const {
    for_each_vec<T>(n, [&](int64_t i, int64_t count) {
      const Vec<T> p = read<T>(param + i, count);
      write(param + i, f(i, count, p, scaled_grad(i, count)), count);
    });
    if (shadow) round_into(shadow, begin, param, n);
  }
  StatesAt<T> states(int64_t i, int64_t count) const { return {state, i, count}; }
  [[gnu::always_inline]] Vec<T> scaled_grad(int64_t i, int64_t count) const {
    return read<T>(grad + i, count) * Vec<T>(grad_scale);
  }
};

inline bool is_skipped(const StepControl& control) { return read_scalar(control.skip, 0) != 0; }

// f(run, tensor, chunk) for all chunks of all parameters.
template <class Rule, class F>
void for_each_run(Updates updates, const Chunks& chunks, const Rule& rule,
                  const StepControl& control, F f) {
  const double scale =
      read_scalar(control.grad_scale, 1) * control.rescale * (rule.maximize ? -1 : 1);
  chunks.for_each([&](size_t tensor, int64_t begin, int64_t chunk) {
    const Update& u = updates[tensor];
    visit_chunk(u.param, begin, [&]<class P>(P* p, int64_t n) {
      visit_float(u.grad.dtype, [&]<class G>() {
        using T = math_t<P>;
        const auto state = [&](size_t k) {
          return u.state[k] ? u.state[k].as<T>() + begin : nullptr;
        };
        f(Run<P, G>{p,
                    u.grad.as<G>() + begin,
                    {state(0), state(1), state(2)},
                    u.shadow,
                    begin,
                    n,
                    T(scale),
                    read_scalar(u.steps, 0)},
          tensor, chunk);
      });
    });
  });
}

inline void count_step(Updates updates) {
  for (const Update& u : updates)
    if (u.steps) *u.steps.as<float>() += 1;
}

// A step in one pass.
template <class Rule>
void step(Launch& launch, Updates updates, const Rule& rule, const StepControl& control) {
  if (is_skipped(control)) return;
  for_each_run(updates, Chunks(launch, updates), rule, control,
               [&]<class P, class G>(const Run<P, G>& run, size_t, int64_t) {
                 const Step<Rule, math_t<P>> move(rule, run.steps);
                 run.each([&](int64_t i, int64_t count, auto p, auto g) {
                   return move(p, g, run.states(i, count));
                 });
               });
  count_step(updates);
}

}  // namespace mixtape::kernels::cpu
