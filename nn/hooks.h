#pragma once
// Hooks of a module, which see and may replace its input and output tensors and their gradients.

#include <array>
#include <concepts>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/hook_list.h"
#include "core/tensor.h"

namespace mixtape::detail {

// True for a type in which hooks find tensors that they may replace. (A container has an allocator,
// so that a span, which shares the tensors of another, is none.)
template <class T>
inline constexpr bool holds_tensors =
    (std::derived_from<T, Tensor> && !std::is_const_v<T>) || requires(T& t) { t.tensors(); };
template <class T>
  requires requires(T& t) {
    typename T::allocator_type;
    t.begin();
  }
inline constexpr bool holds_tensors<T> =
    holds_tensors<std::remove_reference_t<decltype(*std::declval<T&>().begin())>>;
template <class T, size_t n>
inline constexpr bool holds_tensors<std::array<T, n>> = holds_tensors<T>;
template <class... T>
inline constexpr bool holds_tensors<std::tuple<T...>> = (holds_tensors<T> || ...);
template <class A, class B>
inline constexpr bool holds_tensors<std::pair<A, B>> = holds_tensors<A> || holds_tensors<B>;

}  // namespace mixtape::detail

namespace mixtape::nn {

class ModuleBase;
using Tensors = std::vector<Tensor>;

// Called before forward with the tensors among its arguments, which it may replace.
using ForwardPreHook = std::function<void(const ModuleBase&, Tensors& inputs)>;
// Called after forward. The module's call returns `outputs` as the hook leaves them.
using ForwardHook = std::function<void(const ModuleBase&, const Tensors& inputs, Tensors& outputs)>;
// Called in backward with the gradients of all inputs; backward continues with `grad_inputs` as the
// hook leaves them. An absent tensor means no gradient. If no input needs one, the hook is called
// with the outputs' gradients alone. (The module is not passed, since it may be destroyed by then.)
using BackwardHook = std::function<void(Tensors& grad_inputs, const Tensors& grad_outputs)>;

struct ModuleHooks;                      // all hooks of one module
bool has_any(const ModuleHooks& hooks);  // true if any are left

using mixtape::HookHandle;

// Arguments and results that hooks see: a Tensor (also a Buffer or BoolTensor), a container, array,
// pair or tuple of them, or a struct that lists its own with tensors(); also within one another.
template <class T>
concept HoldsTensors = detail::holds_tensors<T>;

// Calls f with each tensor in an argument or a result, in order.
template <class T, class F>
void for_each_tensor([[maybe_unused]] T& value, [[maybe_unused]] const F& f) {
  if constexpr (!HoldsTensors<T>) {
  } else if constexpr (std::derived_from<T, Tensor>) {
    f(value);
  } else if constexpr (requires { value.tensors(); }) {
    for (Tensor* t : value.tensors()) f(*t);
  } else if constexpr (requires { value.begin(); }) {
    for (auto& part : value) for_each_tensor(part, f);
  } else {
    std::apply([&](auto&... parts) { (for_each_tensor(parts, f), ...); }, value);
  }
}

// One call of a module with hooks, which gets the arguments before forward and the result after it.
// (Its functions are not inline, since every module instantiates their callers.)
class HookedCall : NoCopy {
 public:
  HookedCall(const ModuleBase& m, const std::shared_ptr<ModuleHooks>& hooks);
  ~HookedCall();

  // Adds the tensors in an argument, or in the result.
  template <class T>
  void add(T& value) {
    for_each_tensor(value, [this](Tensor& t) { add_one(t); });
  }
  void before_forward();  // runs hooks on the arguments that were added
  void after_forward();   // runs hooks on the result that was added since

 private:
  struct Gradients;
  void add_one(Tensor& t);

  const ModuleBase& module_;
  const std::shared_ptr<ModuleHooks> hooks_;
  std::vector<Tensor*> tensors_;  // arguments, then results
  Tensors inputs_;
  std::shared_ptr<Gradients> gradients_;  // with backward hooks, while recording
};

}  // namespace mixtape::nn
