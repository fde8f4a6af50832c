#pragma once
// One call of an op as the layers above may see and steer it, and where execution is. core defines
// the slots; amp, profilers and traces fill them.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/inline_vector.h"
#include "core/op_info.h"
#include "core/tensor.h"

namespace mixtape {

// Every op linked into this program, for tests and tools.
std::span<const OpInfo* const> all_ops();
bool list_op(const OpInfo&);

// Where execution is: modules and ops open a Scope. For error messages, profilers and policies that
// name a path. Costs two stores.
class Scope : NoCopy {
 public:
  // `module` is an interned path, or null to stay in the module of the enclosing scope.
  explicit Scope(std::string_view op, const std::string* module = nullptr);
  ~Scope();

  static const Scope* innermost();
  static const std::string* module_path();  // of the innermost module, or null
  static std::string trail();               // "decoder.2: linear: matmul: ", as errors begin
  static std::string_view caller();         // the op that runs the innermost one, or ""

  const std::string_view op;  // empty for a module's scope
  const std::string* const module;
  const Scope* const outer;
};
// A pointer that lives as long as the process and is equal for equal text.
const std::string* intern(std::string_view text);
// All of them so far: the paths of the modules of every root that ran. In no order.
std::vector<std::string_view> interned();

// A scope for people to open: errors from within name the place where it was, "model.cpp:42".
class SourceScope {
 public:
  [[nodiscard]] explicit SourceScope(SourceLocation where = SourceLocation::here());

 private:
  const std::string text_;
  const Scope scope_{text_};
};

// One call of an op, before it runs.
struct Call {
  const OpInfo& op;
  std::span<const Tensor*> inputs;  // an optional input that is absent points to an empty Tensor
  std::optional<DType> out = {};    // dtype of the result; by default that of the first activation
  bool backward = false;            // whether a backward rule makes this call
  bool composed = false;  // forward is made of ops, which compute in the dtypes of their inputs

  // Puts `t` in place of an input and keeps it alive for the call.
  void replace(size_t input, Tensor t) {
    if (replaced.empty()) replaced.resize(inputs.size());
    Replaced& r = replaced[input];
    if (!r.given) r.given = inputs[input];
    r.by = std::move(t);
    inputs[input] = &r.by;
  }
  // The input that decides the result's dtype: the first activation, or where there is none the
  // first.
  const Tensor* deciding() const {
    const Tensor* first = nullptr;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!*inputs[i]) continue;
      if (op.role(i) == Role::Activation) return inputs[i];
      if (!first) first = inputs[i];
    }
    return first;
  }
  // An input as the caller gave it.
  const Tensor& given(size_t input) const {
    return replaced.empty() || !replaced[input].given ? *inputs[input] : *replaced[input].given;
  }
  struct Replaced {
    const Tensor* given = nullptr;  // none: not replaced
    Tensor by = {};
  };
  std::vector<Replaced> replaced = {};
};

// Decides the dtypes in which ops run on this thread. One at a time: the innermost wins.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual void apply(Call&) = 0;
  // Decides as this one does, and may be put in the slot when this one's scope has ended: for what
  // is computed again in backward.
  virtual std::shared_ptr<Policy> snapshot() const = 0;
};

// Watches the calls of this thread, forward and backward; any number at once.
class Observer : NoCopy {
 public:
  virtual ~Observer() = default;
  virtual void before(const Call&) {}
  virtual void after(const Call&, const Tensor& result) { (void)result; }
  // A backward rule is to make gradients of the op's inputs from dy, and has made these (no tensor:
  // not wanted). What the rule calls as ops is seen by the two above as well.
  virtual void before_rule(const Node&, const Tensor& dy) { (void)dy; }
  virtual void after_rule(const Node&, const Tensor& dy, std::span<const Tensor> gradients) {
    (void)dy, (void)gradients;
  }
  // The gradient of a leaf, the sum over its uses, has been added to its grad().
  virtual void after_delivery(const Node& leaf, const Tensor& grad) { (void)leaf, (void)grad; }
  Observer* outer = nullptr;
};

struct ThreadState {
  const Scope* scope = nullptr;
  Policy* policy = nullptr;      // filled by amp::Autocast for its lifetime
  Observer* observer = nullptr;  // head of the chain
  bool recording = true;         // cleared by NoGrad
  bool in_backward = false;
  bool in_rule = false;          // of an op's backward, rather than between two of them
  const void* wanted = nullptr;  // within a rule, what grad() looks for; the engine's own
  bool forgetting = false;       // ops record, but save nothing: see autograd/checkpoint.h
  bool called_again = false;     // what a checkpoint runs, it runs a second time
  const void* root = nullptr;    // the module that paths start from; nn's own
  bool cloning = false;          // modules may be copied; nn's own
  GradScale* carried = nullptr;  // by the gradient that the innermost backward pass visits
  // What an op in place wants written by the next elementwise op: see autograd/ops/inplace.cpp.
  const Tensor* to_overwrite = nullptr;
};
inline thread_local constinit ThreadState thread_state;

// While one is alive, a member of this thread's state has another value:
//   const ScopedValue<&ThreadState::recording> off(false);
template <auto member>
class ScopedValue : NoCopy {
 public:
  using Value = std::remove_reference_t<decltype(thread_state.*member)>;
  [[nodiscard]] explicit ScopedValue(Value value)
      : outer_(std::exchange(thread_state.*member, value)) {}
  ~ScopedValue() { thread_state.*member = outer_; }

 private:
  const Value outer_;
};

// While one is alive, ops of this thread run in the dtypes that they are called with.
struct NoPolicy : ScopedValue<&ThreadState::policy> {
  [[nodiscard]] NoPolicy() : ScopedValue(nullptr) {}
};

// Adds an observer to this thread's chain while alive; they may go in any order.
class Observe : NoCopy {
 public:
  explicit Observe(Observer& o) : observer_(o) {
    o.outer = thread_state.observer;
    thread_state.observer = &o;
  }
  ~Observe() {
    Observer** at = &thread_state.observer;
    while (*at && *at != &observer_) at = &(*at)->outer;
    if (*at) *at = observer_.outer;
  }

 private:
  Observer& observer_;
};

inline Scope::Scope(std::string_view name, const std::string* path)
    : op(name),
      module(path                 ? path
             : thread_state.scope ? thread_state.scope->module
                                  : nullptr),
      outer(thread_state.scope) {
  thread_state.scope = this;
}
inline Scope::~Scope() { thread_state.scope = outer; }
inline const Scope* Scope::innermost() { return thread_state.scope; }
inline const std::string* Scope::module_path() {
  return thread_state.scope ? thread_state.scope->module : nullptr;
}

}  // namespace mixtape
