#pragma once
// Hooks of a module: functions that see, and may replace, the tensors that go in and come out, and
// their gradients.

#include <concepts>
#include <functional>
#include <memory>
#include <vector>

#include "autograd/hook_list.h"
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

struct ModuleHooks;                      // those of one module
bool has_any(const ModuleHooks& hooks);  // whether one is left

using mixtape::HookHandle;

// What hooks see of arguments and results: a Tensor (a Buffer and a BoolTensor, too), a vector of
// them, or a struct that lists its own with tensors().
template <class T>
concept HoldsTensors =
    std::derived_from<T, Tensor> || std::same_as<T, Tensors> || requires(T& t) { t.tensors(); };

// One call of a module that has hooks: told the arguments before forward, and the result after it.
// (Its functions are not inline, since every module instantiates what calls them.)
class HookedCall : NoCopy {
 public:
  HookedCall(const ModuleBase& m, const std::shared_ptr<ModuleHooks>& hooks);
  ~HookedCall();

  // Adds the tensors in an argument, or in the result.
  template <class T>
  void add([[maybe_unused]] T& value) {
    if constexpr (std::derived_from<T, Tensor>) {
      add_one(value);
    } else if constexpr (std::same_as<T, Tensors>) {
      for (Tensor& t : value) add_one(t);
    } else if constexpr (HoldsTensors<T>) {
      for (Tensor* t : value.tensors()) add_one(*t);
    }
  }
  void before_forward();  // of the arguments that were added
  void after_forward();   // of the result that was added since

 private:
  struct Gradients;
  void add_one(Tensor& t);

  const ModuleBase& module_;
  const std::shared_ptr<ModuleHooks> hooks_;
  std::vector<Tensor*> places_;  // of arguments, then of results
  Tensors inputs_;
  std::shared_ptr<Gradients> gradients_;  // if there are backward hooks and history is recorded
};

}  // namespace mixtape::nn
