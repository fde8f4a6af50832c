#pragma once
// Module: a struct with parameters. Modules are values whose fields are tensors and modules. From
// the list of those fields (nn/fields.h) the library names, saves, converts and clones them.
//
//   struct Mlp : nn::Module<Mlp> {
//     nn::Linear up, down;
//     Mlp(int64_t dim, int64_t hidden) : up(dim, hidden), down(hidden, dim) {}
//     Tensor forward(const Tensor& x) const { return down(gelu(up(x))); }
//     MIXTAPE_FIELDS(up, down)
//   };

#include <atomic>
#include <typeinfo>

#include "autograd/backward_state.h"
#include "core/scope.h"
#include "core/state_dict.h"
#include "nn/fields.h"
#include "nn/hooks.h"

namespace mixtape::nn {

// "Linear" for mixtape::nn::Linear.
std::string type_name(const std::type_info& type);

struct LoadOptions {
  bool strict = true;  // false: missing and unexpected names are only reported, not an Error
};
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};

// The base of all modules, whatever their type. Names are paths: "blocks.3.attn.qkv.weight".
class ModuleBase {
 public:
  virtual ~ModuleBase();
  virtual void list_fields(Fields&) = 0;  // written by MIXTAPE_FIELDS
  // True if this module's own tensors, not those of modules inside, stay f32 in an f16 or bf16
  // model. (For a single buffer there is KeepsF32.)
  virtual bool keeps_f32() const { return false; }

  // In the order of the fields, depth first. A tensor that is used twice is listed once.
  std::vector<Tensor> parameters() const;
  StateDict named_parameters() const;
  StateDict named_buffers() const;  // by path, like the parameters
  // Parameters and saved buffers, sharing their storage. A tied tensor is listed under each name.
  StateDict state_dict() const;
  // This module, named "", and all modules inside it.
  std::vector<std::pair<std::string, ModuleBase*>> named_modules();
  std::vector<ModuleBase*> modules();  // the same without names
  int64_t num_parameters() const;      // the number of elements of all parameters

  // Copies values into the module's tensors, converting dtypes. If names are missing (except
  // num_batches_tracked) or unexpected, or shapes differ, throws Error before writing anything.
  LoadReport load_state_dict(const StateDict& from, const LoadOptions& options = {});

  // Converts in place, for all handles of a parameter, and drops the gradients of converted
  // tensors. Only floats change dtype. Tensors of normalisation layers and losses, and KeepsF32
  // buffers, stay at least f32.
  void to(DType dtype);
  void to(Device device);

  bool is_training() const { return training_; }  // true at first
  bool training() const { return training_; }     // the same, as PyTorch calls it
  void train(bool on = true);                     // this module and all below it
  void eval() { train(false); }                   // as train(false)
  void zero_grad();                               // drops the gradients of all parameters
  // Freezes or unfreezes all parameters. Freezing drops gradients, so that optimizers skip them.
  void requires_grad_(bool on = true);

  // Hooks (nn/hooks.h) run at each call, in order of registration. They move with the module;
  // clone() drops them, since they may refer to the original. Without hooks, a call only tests a
  // pointer.
  HookHandle register_forward_pre_hook(ForwardPreHook f);
  HookHandle register_forward_hook(ForwardHook f);
  HookHandle register_full_backward_hook(BackwardHook f);

 protected:
  ModuleBase() = default;
  ModuleBase(const ModuleBase& other);  // for clone() only: throws Error otherwise
  ModuleBase(ModuleBase&& other) noexcept
      : hooks_(std::move(other.hooks_)), training_(other.training_) {}
  ModuleBase& operator=(const ModuleBase&) = delete;
  ModuleBase& operator=(ModuleBase&& other) noexcept {
    hooks_ = std::move(other.hooks_);
    training_ = other.training_;
    return *this;
  }

  void own_tensors();  // replaces each tensor by a copy; tied ones stay tied

  // The path to this module from `root`, or null if it is not part of it. Found once for all
  // modules of a root, and cached until the root changes or the module is moved. (Moving or
  // swapping a whole std::vector of modules moves none of them, so they keep their paths until
  // another root runs.) Throws Error for a trainable member that MIXTAPE_FIELDS leaves out.
  const std::string* path_from(const ModuleBase& root) const {
    const bool known = root_.load(std::memory_order_acquire) == &root;
    const std::string* const path = path_.load(std::memory_order_acquire);
    if (!known || path == &omitted) [[unlikely]]
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
  const ModuleBase* omitted_by(const ModuleBase& root, const std::vector<Field>& fields) const;

  // Stands for the path of a module left out of MIXTAPE_FIELDS that ran while nothing was recorded.
  static const std::string omitted;

  bool training_ = true;
  // The last root, and the path from it (null if this module is not part of it). Atomic, since
  // several threads may run a module; with the same root they all write the same.
  mutable std::atomic<const ModuleBase*> root_ = nullptr;
  mutable std::atomic<const std::string*> path_ = nullptr;
};

struct ModuleState {
  bool cloning = false;  // modules may be copied

  static ModuleState& current();
};
inline thread_local constinit ModuleState module_state;
inline ModuleState& ModuleState::current() { return module_state; }

// Alive while a module's operator() runs. The outermost module on a thread is the root of paths.
class Running {
 public:
  explicit Running(const ModuleBase& m)
      : root_(backward_state.root_module ? backward_state.root_module : &m),
        scope_({}, m.path_from(*static_cast<const ModuleBase*>(backward_state.root_module))) {}

 private:
  const ScopedValue<&BackwardState::root_module> root_;
  const internal::Scope scope_;
};

// A guard that sets a module and all modules inside it to evaluation, and restores each at the end.
class Evaluating : NoCopy {
 public:
  [[nodiscard]] explicit Evaluating(ModuleBase& m);
  ~Evaluating();

 private:
  std::vector<std::pair<ModuleBase*, bool>> was_training_;
};

// A guard that permits copies of modules on this thread.
struct Cloning : ScopedValue<&ModuleState::cloning> {
  [[nodiscard]] Cloning() : ScopedValue(true) {}
};

template <class M, class... Args>
concept Forwards = requires(M& m, Args&&... args) { m.forward(std::forward<Args>(args)...); };

template <class Derived>
class Module : public ModuleBase {
 public:
  using ModuleOf = Derived;

  // Runs forward. Errors thrown inside begin with this module's path.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const {
    static_assert(Forwards<const Derived, Args...> || !Forwards<Derived, Args...>,
                  "forward must be const: Tensor forward(const Tensor& x) const");
    const Running running(*this);
    using Result = decltype(self().forward(std::forward<Args>(args)...));
    if constexpr (std::is_object_v<Result>) {
      return has_hooks() ? hooked<Args...>(std::forward<Args>(args)...)
                         : self().forward(std::forward<Args>(args)...);
    } else {  // a reference or void: no result to hook
      return self().forward(std::forward<Args>(args)...);
    }
  }

  // A copy with its own tensors, without gradients. Tied tensors stay tied.
  Derived clone() const {
    const Cloning permit;
    Derived copy(self());
    static_cast<Module&>(copy).own_tensors();
    return copy;
  }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }

  // An argument as hooks take it: tensors as copies, anything else by reference.
  template <class A>
  using Argument = std::conditional_t<HoldsTensors<std::decay_t<A>>, std::decay_t<A>, A&&>;

  template <class... Args>
  [[gnu::cold, gnu::noinline]] auto hooked(Argument<Args>... args) const {
    HookedCall call(*this, hooks_);
    (call.add(args), ...);
    call.before_forward();
    auto y = self().forward(std::forward<Argument<Args>>(args)...);
    call.add(y);
    call.after_forward();
    return y;
  }
};

// Makes t a parameter: a contiguous leaf that requires a gradient. If it gets a gradient while no
// module lists it and no optimizer has it, the next optimizer step on the thread warns.
Tensor parameter(const Tensor& t);

}  // namespace mixtape::nn
