// The optimizer step of every optimizer; most take one pass over their tensors.

#include "kernels/cpu/optim/update.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

template <class O>
void take_step(Launch& launch, Updates updates, const O& o, const StepControl& control) {
  for_each_chunk(updates, Chunks(launch, updates), control,
                 [&]<class Chunk>(const Chunk& chunk, size_t, int64_t) {
                   const StepOf<O, typename Chunk::T> step(o, chunk.steps);
                   chunk.template for_elements<Writes{}>(
                       [&](int64_t, int64_t, auto p, auto g, auto state)
                           MIXTAPE_INLINE_LAMBDA { return step(p, g, state); });
                 });
}

}  // namespace

void optimizer_step(Launch& launch, const AnyOptimizer& optimizer, Updates updates,
                    const StepControl& control) {
  if (read_scalar(control.skip, 0) != 0) return;
  optimizer.visit([&](const auto& o) { take_step(launch, updates, o, control); });
  if (control.pass == Pass::Measure) return;
  for (const Update& u : updates)
    if (u.steps) *u.steps.as<float>() += 1;
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
