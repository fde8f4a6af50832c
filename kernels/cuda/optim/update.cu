// Optimizer steps in one pass.

#include "kernels/cuda/optim/update.cuh"

namespace mixtape::kernels::cuda {
namespace {

template <class T, class Rule>
__global__ void take_step(Table<Moved<Step<Rule, T>::states>> table, Control control,
                          const Step<Rule, T>* steps) {
  if (control.is_skipped()) return;
  const Chunk chunk = chunk_of_block(table);
  const Step<Rule, T> step = steps[table.number[chunk.tensor]];
  for_elements<Moves{}>(table.item[chunk.tensor], chunk, control.scale<T>(),
                        [&](int64_t, T p, T g, StatesAt<T> state) { return step(p, g, state); });
}

template <class T, class Rule>
void run_in(Launch& launch, Updates updates, const Rule& rule, const Control& control) {
  using Numbers = Step<Rule, T>;
  Numbers* const steps = launch.scratch<Numbers>(int64_t(updates.size()));
  launch_begin<Numbers, T>(launch, updates, rule, control, steps);
  for_parameters<Numbers::states, T>(updates, [&](const auto& table) {
    launch_table(launch, "take_step", take_step<T, Rule>, table, control,
                 static_cast<const Numbers*>(steps));
  });
}
template <class Rule>
void run(Launch& launch, Updates updates, const Rule& rule, const StepControl& control) {
  run_in<float>(launch, updates, rule, {control, rule.maximize});
  run_in<double>(launch, updates, rule, {control, rule.maximize});
}

}  // namespace

void sgd(Launch& launch, Updates updates, const SgdRule& rule, const StepControl& control) {
  run(launch, updates, rule, control);
}
void adam(Launch& launch, Updates updates, const AdamRule& rule, const StepControl& control) {
  run(launch, updates, rule, control);
}
void lion(Launch& launch, Updates updates, const LionRule& rule, const StepControl& control) {
  run(launch, updates, rule, control);
}
void rmsprop(Launch& launch, Updates updates, const RmspropRule& rule, const StepControl& control) {
  run(launch, updates, rule, control);
}
void adagrad(Launch& launch, Updates updates, const AdagradRule& rule, const StepControl& control) {
  run(launch, updates, rule, control);
}
void adadelta(Launch& launch, Updates updates, const AdadeltaRule& rule,
              const StepControl& control) {
  run(launch, updates, rule, control);
}
void nadam(Launch& launch, Updates updates, const NadamRule& rule, const StepControl& control) {
  run(launch, updates, rule, control);
}
void radam(Launch& launch, Updates updates, const RadamRule& rule, const StepControl& control) {
  run(launch, updates, rule, control);
}

}  // namespace mixtape::kernels::cuda
