#pragma once
// Hooks of a module: functions that see, and may replace, the tensors that go in and come out, and
// their gradients.

#include <concepts>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape::nn {

class ModuleBase;
using Tensors = std::vector<Tensor>;

// Before forward, with the tensors among the arguments; what is put into `inputs` is used instead.
using ForwardPreHook = std::function<void(const ModuleBase&, Tensors& inputs)>;
// After forward; what is put into `outputs` is returned instead.
using ForwardHook = std::function<void(const ModuleBase&, const Tensors& inputs, Tensors& outputs)>;
// In backward, once the gradients of all inputs are there; what is put into `grad_inputs` goes on
// instead. No tensor stands for no gradient; if no input wants one, the hook is called once the
// gradients of the outputs are there. (The module may be gone by then, so it is not passed.)
using BackwardHook = std::function<void(Tensors& grad_inputs, const Tensors& grad_outputs)>;

// The hooks of one module.
struct ModuleHooks {
  template <class F>
  using List = std::vector<std::pair<uint64_t, F>>;
  List<ForwardPreHook> before_forward;
  List<ForwardHook> after_forward;
  List<BackwardHook> backward;
  uint64_t next_id = 1;
};

// Takes a hook away again. Follows the module when that is moved; harmless when it is gone.
class HookHandle {
 public:
  HookHandle() = default;
  HookHandle(const std::shared_ptr<ModuleHooks>& hooks, uint64_t id) : hooks_(hooks), id_(id) {}
  void remove();

 private:
  std::weak_ptr<ModuleHooks> hooks_;
  uint64_t id_ = 0;
};

// What hooks see of arguments and results: a Tensor, a vector of them, or a struct that lists its
// own with tensors().
template <class T>
concept HoldsTensors = std::same_as<T, Tensor> || std::same_as<T, Tensors> || requires(T& t) {
  t.tensors();
};
template <class T>
void list_tensors([[maybe_unused]] T& value, [[maybe_unused]] std::vector<Tensor*>& into) {
  if constexpr (std::same_as<T, Tensor>) {
    into.push_back(&value);
  } else if constexpr (std::same_as<T, Tensors>) {
    for (Tensor& t : value) into.push_back(&t);
  } else if constexpr (HoldsTensors<T>) {
    for (Tensor* t : value.tensors()) into.push_back(t);
  }
}

// One call of a module that has hooks: made before forward, finished after it.
class HookedCall {
 public:
  HookedCall(const ModuleBase& m, std::shared_ptr<ModuleHooks> hooks,
             const std::vector<Tensor*>& inputs);
  void finish(const std::vector<Tensor*>& outputs);

 private:
  struct Gradients;

  const ModuleBase& module_;
  const std::shared_ptr<ModuleHooks> hooks_;
  Tensors inputs_;
  std::shared_ptr<Gradients> gradients_;  // if there are backward hooks and history is recorded
};

}  // namespace mixtape::nn
