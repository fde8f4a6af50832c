// Optimizer steps in one pass.

#include "kernels/cpu/optim/update.h"

namespace mixtape::kernels::cpu {

void sgd(Launch& launch, Updates updates, const SgdRule& rule, const StepControl& control) {
  step(launch, updates, rule, control);
}
void adam(Launch& launch, Updates updates, const AdamRule& rule, const StepControl& control) {
  step(launch, updates, rule, control);
}
void lion(Launch& launch, Updates updates, const LionRule& rule, const StepControl& control) {
  step(launch, updates, rule, control);
}
void rmsprop(Launch& launch, Updates updates, const RmspropRule& rule, const StepControl& control) {
  step(launch, updates, rule, control);
}
void adagrad(Launch& launch, Updates updates, const AdagradRule& rule, const StepControl& control) {
  step(launch, updates, rule, control);
}
void adadelta(Launch& launch, Updates updates, const AdadeltaRule& rule,
              const StepControl& control) {
  step(launch, updates, rule, control);
}
void nadam(Launch& launch, Updates updates, const NadamRule& rule, const StepControl& control) {
  step(launch, updates, rule, control);
}
void radam(Launch& launch, Updates updates, const RadamRule& rule, const StepControl& control) {
  step(launch, updates, rule, control);
}

}  // namespace mixtape::kernels::cpu
