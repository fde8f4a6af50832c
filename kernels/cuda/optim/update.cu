// The optimizer step of every optimizer; most take one pass over their tensors.

#include "kernels/cuda/optim/update.cuh"

namespace mixtape::kernels::cuda {
namespace {

template <class T, class O, class Item>
__global__ void take_step(Table<Item> table, Control control, const StepOf<O, T>* steps) {
  if (control.is_skipped()) return;
  const Chunk chunk = chunk_of_block(table);
  const StepOf<O, T> step = steps[table.number[chunk.tensor]];
  for_elements<Writes{}>(table.item[chunk.tensor], chunk, control.scale<T>(),
                         [&](int64_t, T p, T g, StatesAt<T> state) { return step(p, g, state); });
}

template <class T, class O>
void run_step(Launch& launch, Updates updates, const OptionsNow<O>& o, const Control& control) {
  StepOf<O, T>* const steps = launch.scratch<StepOf<O, T>>(int64_t(updates.size()));
  launch_begin<T>(launch, updates, o, control, steps);
  for_parameters<O, T>(updates, [&]<class Item>(const Table<Item>& table) {
    launch_table(launch, "take_step", take_step<T, O, Item>, table, control,
                 static_cast<const StepOf<O, T>*>(steps));
  });
}

}  // namespace

void optimizer_step(Launch& launch, const AnyOptimizer& optimizer, Updates updates,
                    const StepControl& control) {
  const Control on_device(control);
  optimizer.visit([&]<class O>(const O& given) {
    const OptionsNow<O> o{given, static_cast<const O*>(optimizer.place)};
    run_step<float>(launch, updates, o, on_device);
    run_step<double>(launch, updates, o, on_device);
  });
}

}  // namespace mixtape::kernels::cuda
