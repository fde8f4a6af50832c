#pragma once
// Optimizer steps (kernels/common/optimizers.h) over lists of parameters: one kernel counts the
// step and computes Step<T> for each parameter, the others read it. A skipped step changes nothing:
// every kernel reads the skip flag first.

#include "kernels/common/optimizers.h"
#include "kernels/cuda/optim/multi.cuh"

namespace mixtape::kernels::cuda {

// An Update in a kernel's parameters.
template <int states>
struct ParamItem {
  void *param, *grad, *shadow;
  void* state[states];
  DType type, grad_type, shadow_type;
  bool aligned;
};
template <class O>
using ParamTable = Table<ParamItem<state_count<O>>>;

// StepControl for the device.
struct Control {
  const float* skip;
  Scalar grad_scale;
  double rescale;

  explicit Control(const StepControl& control)
      : skip(control.skip.as<const float>()),
        grad_scale(control.grad_scale),
        rescale(control.rescale) {}
  __device__ bool is_skipped() const { return skip && *skip != 0; }
  template <class T>
  __device__ T scale() const {  // of gradients
    return T(grad_scale.or_else(1) * rescale);
  }
};

// Advances each parameter's count of steps. steps[i], where Step<T> follows from the options and
// the count, becomes parameter i's.
template <class T, class O>
__global__ void begin_step(Table<float*> counts, Control control, OptionsNow<O> o,
                           StepOf<O, T>* steps) {
  if (control.is_skipped() || gpu::thread().x != 0) return;
  const int k = int(gpu::block().x);
  float* const count = counts.item[k];
  const double before = count ? *count : 0;
  if constexpr (std::is_constructible_v<StepOf<O, T>, const O&, double>)
    steps[counts.number[k]] = StepOf<O, T>(o(), before);
  if (count) *count = float(before + 1);
}
template <class T>
bool is_computed_in(const Update& u) {
  return (u.param.dtype == f64) == std::is_same_v<T, double>;
}
template <class T, class O>
void launch_begin(Launch& launch, Updates updates, const OptionsNow<O>& o, const Control& control,
                  StepOf<O, T>* steps) {
  for_tables<float*>(
      updates.size(), 0,
      [&](size_t i, float*& count, int64_t& size) {
        count = updates[i].steps.as<float>();
        size = 1;
        return is_computed_in<T>(updates[i]);
      },
      [&](const Table<float*>& table) {
        gpu::launch({"begin_step", {unsigned(table.blocks()), 1, 1}, {gpu::warp_size, 1, 1}},
                    launch.stream, begin_step<T, O>, table, control, o, steps);
      });
}

// Calls f(table) for tables of all parameters that are computed in T.
template <class O, class T, class F>
void for_parameters(Updates updates, F f) {
  constexpr int states = state_count<O>;
  for_tables<ParamItem<states>>(
      updates.size(), 0,
      [&](size_t i, ParamItem<states>& item, int64_t& size) {
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
      f);
}

// The states of an element, as Step<T> sees them.
template <class T>
struct StatesAt {
  T* state;
  __device__ T get(int k) const { return state[k]; }
  __device__ T set(int k, T x) const { return state[k] = x; }
};

// For all elements of a chunk: f(i, p, g, state) returns the new p of element i, and sets its
// states; `writes` says which of them are stored. All loads are issued before the arithmetic, to
// overlap.
struct Writes {
  bool param = true, states = true;
};
template <Writes writes, class T, int states, class F>
__device__ void for_elements(const ParamItem<states>& p, const Chunk& chunk, T grad_scale, F f) {
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
    if (writes.param) {
      store(p.param, p.type, four, packed(x, p.type));
      if (p.shadow) store(p.shadow, p.shadow_type, four, packed(x, p.shadow_type));
    }
#pragma unroll
    for (int k = 0; k < states; ++k)
      if (writes.states && p.state[k])
        store(p.state[k], dtype_of<T>(), four, packed(s[k], dtype_of<T>()));
  }
}

// Lamb and Muon look at a parameter as a whole (layerwise.cu).
template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Lamb>& o, const Control& control);
template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Muon>& o, const Control& control);

}  // namespace mixtape::kernels::cuda
