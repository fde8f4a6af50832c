#pragma once
// How optimizer steps (kernels/common/steps.h) go over lists of parameters: one kernel counts the
// step and works out the rule's numbers for each parameter, the others read them. A skipped step
// changes nothing: every kernel looks at the verdict first.

#include "kernels/common/steps.h"
#include "kernels/cuda/optim/multi.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {

template <int states>
struct Moved {
  void *param, *grad, *shadow;
  void* state[states];
  DType type, grad_type, shadow_type;
  bool aligned;
};

// StepControl for the device, with the rule's sign.
struct Control {
  const float *skip, *grad_scale;
  double factor;

  Control(const StepControl& control, bool maximize)
      : skip(control.skip.as<const float>()),
        grad_scale(control.grad_scale.as<const float>()),
        factor(control.rescale * (maximize ? -1 : 1)) {}
  __device__ bool is_skipped() const { return skip && *skip != 0; }
  template <class T>
  __device__ T scale() const {  // of gradients
    return T((grad_scale ? double(*grad_scale) : 1.0) * factor);
  }
};

// Advances the count of each parameter. steps[i], if the rule has such numbers, is parameter i's.
template <class Step, class Rule>
__global__ void begin_step(Table<float*> counts, Control control, Rule rule, Step* steps) {
  if (control.is_skipped() || gpu::thread().x != 0) return;
  const int k = int(gpu::block().x);
  float* const count = counts.item[k];
  const double before = count ? *count : 0;
  if constexpr (std::is_constructible_v<Step, const Rule&, double>)
    steps[counts.number[k]] = Step(rule, before);
  if (count) *count = float(before + 1);
}
template <class T>
bool is_computed_in(const Update& u) {
  return (u.param.dtype == f64) == std::is_same_v<T, double>;
}
template <class Step, class T, class Rule>
void launch_begin(Launch& launch, Updates updates, const Rule& rule, const Control& control,
                  Step* steps) {
  for_tables<float*>(
      updates.size(), 0,
      [&](size_t i, float*& count, int64_t& size) {
        count = updates[i].steps.as<float>();
        size = 1;
        return is_computed_in<T>(updates[i]);
      },
      [&](const Table<float*>& table) {
        gpu::launch({"begin_step", {unsigned(table.blocks()), 1, 1}, {gpu::warp_size, 1, 1}},
                    launch.stream, begin_step<Step, Rule>, table, control, rule, steps);
      });
}

// run(table) for all parameters that are computed in T.
template <int states, class T, class Run>
void for_parameters(Updates updates, Run run) {
  for_tables<Moved<states>>(
      updates.size(), 0,
      [&](size_t i, Moved<states>& item, int64_t& size) {
        const Update& u = updates[i];
        item = {u.param.data,   u.grad.data,
                u.shadow.data,  {},
                u.param.dtype,  u.grad.dtype,
                u.shadow.dtype, is_aligned(u.param) && is_aligned(u.grad) && is_aligned(u.shadow)};
        for (int k = 0; k < states; ++k) {
          item.state[k] = u.state[k].data;
          item.aligned = item.aligned && is_aligned(u.state[k]);
        }
        size = u.param.size();
        return is_computed_in<T>(u);
      },
      run);
}

// One element's states, as kernels/common/steps.h sees them.
template <class T>
struct StatesAt {
  T* state;
  __device__ T get(int k) const { return state[k]; }
  __device__ T set(int k, T x) const { return state[k] = x; }
};

// f(i, p, g, state) returns the new p of element i, and sets its states, for all elements of a
// chunk; `moves` says what of them is written back. Loads go first, so that they are under way
// together.
struct Moves {
  bool param = true, states = true;
};
template <Moves moves, class T, int states, class F>
__device__ void for_elements(const Moved<states>& p, const Chunk& chunk, T grad_scale, F f) {
  for (int64_t i = chunk.begin + 4 * int64_t(gpu::thread().x); i < chunk.end;
       i += 4 * chunk_threads) {
    const Four four = four_at(i, chunk.end, p.aligned);
    Words<T> state[states];
#pragma unroll
    for (int k = 0; k < states; ++k)
      if (p.state[k]) state[k] = fetch<T>(p.state[k], dtype_of<T>(), four);
    const Words<T> param = fetch<T>(p.param, p.type, four),
                   grad = fetch<T>(p.grad, p.grad_type, four);
    T x[4], s[states][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      T now[states];
#pragma unroll
      for (int k = 0; k < states; ++k) now[k] = element(state[k], dtype_of<T>(), e);
      x[e] = f(four.at + e, element(param, p.type, e), element(grad, p.grad_type, e) * grad_scale,
               StatesAt<T>{now});
#pragma unroll
      for (int k = 0; k < states; ++k) s[k][e] = now[k];
    }
    if (moves.param) {
      store(p.param, p.type, four, packed(x, p.type));
      if (p.shadow) store(p.shadow, p.shadow_type, four, packed(x, p.shadow_type));
    }
#pragma unroll
    for (int k = 0; k < states; ++k)
      if (moves.states && p.state[k])
        store(p.state[k], dtype_of<T>(), four, packed(s[k], dtype_of<T>()));
  }
}

}  // namespace mixtape::kernels::cuda
