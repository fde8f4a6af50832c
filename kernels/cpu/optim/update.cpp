// The optimizer step of every optimizer; most take one pass over their tensors.

#include "kernels/cpu/optim/update.h"

namespace mixtape::kernels::cpu {
namespace {

template <class O>
void take_step(Launch& launch, Updates updates, const O& o, const StepControl& control) {
  for_each_chunk(
      updates, Chunks(launch, updates), control,
      [&]<class P, class G>(const ParamChunk<P, G>& chunk, size_t, int64_t) {
        const StepOf<O, math_t<P>> step(o, chunk.steps);
        chunk.update([&](int64_t i, int64_t count, auto p, auto g)
                         MIXTAPE_INLINE_LAMBDA { return step(p, g, chunk.states(i, count)); });
      });
}

}  // namespace

void optimizer_step(Launch& launch, const AnyOptimizer& optimizer, Updates updates,
                    const StepControl& control) {
  if (read_scalar(control.skip, 0) != 0) return;
  optimizer.visit([&](const auto& o) { take_step(launch, updates, o, control); });
  for (const Update& u : updates)
    if (u.steps) *u.steps.as<float>() += 1;
}

}  // namespace mixtape::kernels::cpu
