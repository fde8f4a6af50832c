// Optimizer steps in one pass.

#include "kernels/cpu/update.h"

namespace mixtape::kernels::cpu {

void sgd(Launch& launch, std::span<const Update> updates, const SgdRule& rule,
         const StepControl& control) {
  step(launch, updates, rule, control);
}
void adam(Launch& launch, std::span<const Update> updates, const AdamRule& rule,
          const StepControl& control) {
  step(launch, updates, rule, control);
}
void lion(Launch& launch, std::span<const Update> updates, const LionRule& rule,
          const StepControl& control) {
  step(launch, updates, rule, control);
}
void rmsprop(Launch& launch, std::span<const Update> updates, const RmspropRule& rule,
             const StepControl& control) {
  step(launch, updates, rule, control);
}
void adagrad(Launch& launch, std::span<const Update> updates, const AdagradRule& rule,
             const StepControl& control) {
  step(launch, updates, rule, control);
}
void adadelta(Launch& launch, std::span<const Update> updates, const AdadeltaRule& rule,
              const StepControl& control) {
  step(launch, updates, rule, control);
}
void nadam(Launch& launch, std::span<const Update> updates, const NadamRule& rule,
           const StepControl& control) {
  step(launch, updates, rule, control);
}
void radam(Launch& launch, std::span<const Update> updates, const RadamRule& rule,
           const StepControl& control) {
  step(launch, updates, rule, control);
}

}  // namespace mixtape::kernels::cpu
