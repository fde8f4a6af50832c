#pragma once
// Optimizer steps (kernels/common/optimizers.h) over lists of parameters: one kernel counts the
// step and computes Step<T> for each parameter, the others read it. A skipped step changes nothing:
// every kernel reads the skip flag first.

#include "kernels/common/optimizers.h"
#include "kernels/cuda/optim/blocks.cuh"

namespace mixtape::kernels::cuda {

// StepControl for the device.
struct Control {
  const float* skip;
  Scalar grad_scale;
  double rescale;
  Pass pass;

  explicit Control(const StepControl& control)
      : skip(control.skip.as<const float>()),
        grad_scale(control.grad_scale),
        rescale(control.rescale),
        pass(control.pass) {}
  __device__ bool is_skipped() const { return skip && *skip != 0; }
  template <class T>
  __device__ T scale() const {  // of gradients
    return T(grad_scale.or_else(1) * rescale);
  }
};

// Advances each parameter's count of steps, in the first pass. steps[i], where Step<T> follows from
// the options and the count, becomes parameter i's.
template <class T, class O>
__global__ void begin_step(Table<float*> counts, Control control, OptionsNow<O> o,
                           StepOf<O, T>* steps) {
  if (control.is_skipped() || gpu::thread().x != 0) return;
  const int k = int(gpu::block().x);
  float* const count = counts.item[k];
  const bool advances = control.pass != Pass::Move;
  const double before = count ? *count - (advances ? 0 : 1) : 0;
  if constexpr (std::is_constructible_v<StepOf<O, T>, const O&, double>)
    steps[counts.number[k]] = StepOf<O, T>(o(), before);
  if (count && advances) *count = float(before + 1);
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

template <int states>
ParamItem<states> plain_item(const Update& u) {
  ParamItem<states> item{
      u.param.data,   u.grad.data,
      u.shadow.data,  {},
      u.param.dtype,  u.grad.dtype,
      u.shadow.dtype, is_aligned(u.param) && is_aligned(u.grad) && is_aligned(u.shadow)};
  for (int k = 0; k < states; ++k) {
    item.state[k] = u.state[k].data;
    item.aligned = item.aligned && is_aligned(u.state[k]);
  }
  return item;
}

// Calls f(table) for tables of all parameters that are computed in T: of ParamItem, then of
// LowItem.
template <class O, class T, class F>
void for_parameters(Updates updates, F f) {
  constexpr int states = element_states<O>;
  const int64_t chunks = for_tables<ParamItem<states>>(
      updates.size(), 0,
      [&](size_t i, ParamItem<states>& item, int64_t& size) {
        const Update& u = updates[i];
        item = plain_item<states>(u);
        size = u.param.size();
        return !u.low && is_computed_in<T>(u);
      },
      f);
  if constexpr (std::is_same_v<T, float>)
    for_tables<LowItem<O>>(
        updates.size(), chunks,
        [&](size_t i, LowItem<O>& item, int64_t& size) {
          if (!updates[i].low) return false;
          item = LowItem<O>(plain_item<states>(updates[i]), updates[i]);
          size = updates[i].param.size();
          return true;
        },
        f);
}

// Lamb, Lars, Adafactor and Muon look at a parameter as a whole (layerwise.cu).
template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Lamb>& o, const Control& control);
template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Lars>& o, const Control& control);
template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Adafactor>& o,
              const Control& control);
template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Muon>& o, const Control& control);

}  // namespace mixtape::kernels::cuda
