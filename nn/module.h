#pragma once
// Module: a struct with parameters. Modules are values, made of fields that are tensors and
// modules; a list of those fields (nn/fields.h) is all the library needs to name, save, convert and
// clone them.
//
//   struct Mlp : nn::Module<Mlp> {
//     nn::Linear up, down;
//     Mlp(int64_t dim, int64_t hidden) : up(dim, hidden), down(hidden, dim) {}
//     Tensor forward(const Tensor& x) const { return down(gelu(up(x))); }
//     MIXTAPE_FIELDS(up, down)
//   };

#include <atomic>
#include <typeinfo>

#include "core/scope.h"
#include "core/state_dict.h"
#include "nn/fields.h"
#include "nn/hooks.h"

namespace mixtape::nn {

// "Linear" for mixtape::nn::Linear.
std::string type_name(const std::type_info& type);

struct LoadOptions {
  bool strict = true;  // a missing or unexpected name is an Error; otherwise it is only reported
};
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};

// What does not depend on a module's type. Names are paths such as "blocks.3.attn.qkv.weight".
class ModuleBase {
 public:
  virtual ~ModuleBase();
  virtual void list_fields(Fields&) = 0;  // written by MIXTAPE_FIELDS
  // Whether tensors of this module (not of modules inside) stay f32 in an f16 or bf16 model.
  virtual bool keeps_f32() const { return false; }

  // In the order of the fields, depth first. A tensor that is used twice is listed once.
  std::vector<Tensor> parameters() const;
  StateDict named_parameters() const;
  StateDict named_buffers() const;
  // Parameters and buffers, but for an UnsavedBuffer, a tied tensor under each of its names; they
  // share storage with the module.
  StateDict state_dict() const;
  // This module, named "", and all inside it.
  std::vector<std::pair<std::string, ModuleBase*>> named_modules();
  int64_t num_parameters() const;

  // Copies values into the tensors that are there, converting dtypes. Throws Error, before anything
  // is written, that lists the missing and unexpected names and the shapes that differ.
  LoadReport load_state_dict(const StateDict& from, const LoadOptions& options = {});

  // Converts in place: every handle to a parameter sees it. Only floats change dtype; tensors of
  // normalisation layers and losses go no narrower than f32. Gradients of what changed are dropped.
  void to(DType dtype);
  void to(Device device);

  bool is_training() const { return training_; }
  void train(bool on = true);
  void eval() { train(false); }
  void zero_grad();
  // Freezes all parameters, or thaws them. Freezing drops their gradients, so that optimizers leave
  // them as they are.
  void requires_grad_(bool on = true);

  // Hooks (nn/hooks.h) run in the order in which they were registered, whenever this module is
  // called; where there never were any, a call only tests a pointer. They move with the module;
  // clone() leaves them behind, since they may refer to what they were registered for.
  HookHandle register_forward_pre_hook(ForwardPreHook f);
  HookHandle register_forward_hook(ForwardHook f);
  HookHandle register_full_backward_hook(BackwardHook f);

 protected:
  ModuleBase() = default;
  ModuleBase(const ModuleBase& other);  // for clone(): throws Error outside one
  ModuleBase(ModuleBase&& other) noexcept
      : hooks_(std::move(other.hooks_)), training_(other.training_) {}
  ModuleBase& operator=(const ModuleBase&) = delete;
  ModuleBase& operator=(ModuleBase&& other) noexcept {
    hooks_ = std::move(other.hooks_);
    training_ = other.training_;
    return *this;
  }

  void own_tensors();  // replaces each tensor by a copy, keeping ties

  // Its path from a module that it may be part of, or null. Found once for all modules of that
  // root, and remembered until the root changes; a moved module starts anew. (A std::vector of
  // modules that is moved or swapped as a whole moves none: those keep the paths that they had
  // until another root has run.) Throws Error if it is a member that MIXTAPE_FIELDS leaves out
  // although it is to be trained.
  const std::string* path_from(const ModuleBase& root) const {
    const bool known = root_.load(std::memory_order_acquire) == &root;
    const std::string* const path = path_.load(std::memory_order_acquire);
    if (!known || path == &forgotten) [[unlikely]]
      return find_path(root);
    return path;
  }

  bool has_hooks() const { return hooks_ && has_any(*hooks_); }

  std::shared_ptr<ModuleHooks> hooks_;

 private:
  friend class Any;
  friend class Evaluating;
  friend class Running;
  const std::string* find_path(const ModuleBase& root) const;
  const ModuleBase* forgotten_by(const ModuleBase& root, const std::vector<Field>& fields) const;

  // In place of a path: of one that MIXTAPE_FIELDS leaves out. It runs while nothing is recorded.
  static const std::string forgotten;

  bool training_ = true;
  // Where it ran last, and its path from there: null if it is no part of that root. Atomic since
  // several threads may run one module; from one root, they all write the same.
  mutable std::atomic<const ModuleBase*> root_ = nullptr;
  mutable std::atomic<const std::string*> path_ = nullptr;
};

struct ModuleState {
  const void* root = nullptr;  // the outermost module that runs, which paths start from
  bool cloning = false;        // modules may be copied

  static ModuleState& current();
};
inline thread_local constinit ModuleState module_state;
inline ModuleState& ModuleState::current() { return module_state; }

// Open while a module's operator() runs. The outermost one on a thread is the root that paths start
// from.
class Running {
 public:
  explicit Running(const ModuleBase& m)
      : root_(module_state.root ? module_state.root : &m),
        scope_({}, m.path_from(*static_cast<const ModuleBase*>(module_state.root))) {}

 private:
  const ScopedValue<&ModuleState::root> root_;
  const Scope scope_;
};

// While one is alive, a module and all inside it evaluate; then each is as it was.
class Evaluating : NoCopy {
 public:
  [[nodiscard]] explicit Evaluating(ModuleBase& m);
  ~Evaluating();

 private:
  std::vector<std::pair<ModuleBase*, bool>> was_training_;
};

// While one is alive, modules may be copied on this thread.
struct Cloning : ScopedValue<&ModuleState::cloning> {
  [[nodiscard]] Cloning() : ScopedValue(true) {}
};

template <class M, class... Args>
concept Forwards = requires(M& m, Args&&... args) { m.forward(std::forward<Args>(args)...); };

template <class Derived>
class Module : public ModuleBase {
 public:
  using ModuleOf = Derived;

  // Runs forward. Errors from inside begin with this module's path.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    static_assert(Forwards<const Derived, Args...> || !Forwards<Derived, Args...>,
                  "forward must be const: Tensor forward(const Tensor& x) const");
    const Running running(*this);
    using Result = decltype(self().forward(std::forward<Args>(args)...));
    if constexpr (std::is_object_v<Result>) {
      return has_hooks() ? hooked<Args...>(std::forward<Args>(args)...)
                         : self().forward(std::forward<Args>(args)...);
    } else {  // a reference, or nothing: there is nothing to hook
      return self().forward(std::forward<Args>(args)...);
    }
  }

  // The same module with tensors of its own. Tensors that were one stay one. No gradients.
  Derived clone() const {
    const Cloning permit;
    Derived copy(self());
    static_cast<Module&>(copy).own_tensors();
    return copy;
  }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  // An argument as hooks need it: tensors in a copy of their own, anything else as it came.
  template <class A>
  using Argument = std::conditional_t<HoldsTensors<std::decay_t<A>>, std::decay_t<A>, A&&>;

  template <class... Args>
  auto hooked(Argument<Args>... args) const {
    HookedCall call(*this, hooks_);
    (call.add(args), ...);
    call.before_forward();
    auto y = self().forward(std::forward<Argument<Args>>(args)...);
    call.add(y);
    call.after_forward();
    return y;
  }
};

// t as a parameter: a leaf that wants a gradient, dense as optimizers need it.
inline Tensor parameter(const Tensor& t) {
  return (t.is_contiguous() ? t : t.detach().contiguous()).set_requires_grad();
}

}  // namespace mixtape::nn
