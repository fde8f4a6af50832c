#pragma once
// Call, Policy, Observer: one call of an op, and the interfaces through which the layers above
// change its dtypes (amp) and watch it (profilers, traces).

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "core/inline_vector.h"
#include "core/op_info.h"
#include "core/tensor.h"
#include "core/thread_state.h"

namespace mixtape {

// Every op linked into this program, for tests and tools.
std::span<const OpInfo* const> all_ops();
bool list_op(const OpInfo&);  // adds an op to all_ops(), for good; returns true

namespace internal {

// Functions that serialize a call of an op with arguments of these types and repeat it in another
// process of the same build. They are null if an attribute is not plain data.
struct Repeat {
  const OpInfo& op;
  const char* types;                       // of the arguments, as the compiler spells them
  const std::type_info* const* arguments;  // the same, in order, and a null at their end
  std::string (*attributes)(const void* const* arguments);  // their bytes
  // Calls `op`, this one, with its tensors in order, and the sizes of lists of them.
  Tensor (*run)(const Repeat& op, std::span<const Tensor> inputs, std::span<const int64_t> lists,
                std::string_view attributes);
};
// A call's own arguments.
struct Repetition {
  const Repeat& how;
  const void* const* arguments;
  std::span<const int64_t> lists;

  // The argument of type A, or the nth of several (from 0 on), for observers that know the op.
  // Throws Error if there is none.
  template <class A>
  const A& argument(int nth = 0) const {
    return *static_cast<const A*>(find(typeid(A), nth));
  }
  const void* find(const std::type_info& type, int nth) const;  // the address of argument()
};
std::span<const Repeat* const> all_repeats();  // for every call linked into this program
bool list_repeat(const Repeat&);               // adds one to all_repeats(), for good; returns true

// One call of an op, before it runs.
struct Call {
  const OpInfo& op;
  std::span<const Tensor*> inputs;  // an optional input that is absent points to an empty Tensor
  std::optional<DType> out = {};    // dtype of the result; by default that of the first activation
  bool backward = false;            // made by a backward rule
  bool composed = false;  // forward is made of ops, which compute in the dtypes of their inputs
  bool alike = false;  // all inputs are defined, of one dtype and device; none is an index or mask
  const Tensor* result = nullptr;    // where call_out() puts the result
  std::string_view rounded_by = {};  // the policy's recipe for the operands, such as "mx"

  // Substitutes `t` for an input and keeps it alive for the call.
  void replace(size_t input, Tensor t) {
    while (replaced.size() < inputs.size()) replaced.emplace_back();
    Replaced& r = replaced[input];
    if (!r.given) r.given = inputs[input];
    r.by = std::move(t);
    inputs[input] = &r.by;
  }
  // The input that decides the result's dtype: the first activation, else the first input.
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
  struct Replaced {                 // an input, and what stands in for it
    const Tensor* given = nullptr;  // null: not replaced
    Tensor by = {};
  };
  InlineVector<Replaced, 3> replaced = {};  // empty, or one for each input
  const Repetition* repetition = nullptr;   // in Observer::after()
};

// Decides the dtypes in which ops of this thread run. Only the innermost policy applies.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual void apply(Call&) = 0;  // may replace inputs and set `out` and `rounded_by`
  // An equal policy that may outlive this one's scope, for ops that backward runs again.
  virtual std::shared_ptr<Policy> snapshot() const = 0;
};

// Watches the calls of this thread, forward and backward. Any number may be active.
class Observer : NoCopy {
 public:
  virtual ~Observer() = default;
  virtual void before(const Call&) {}  // the policy has been applied
  virtual void after(const Call&, const Tensor& result) { (void)result; }  // the op has run
  // Called around a backward rule, which turns dy into dx, one tensor per input (empty: not
  // needed). before() and after() also see the ops that the rule calls.
  virtual void before_rule(const Node&, const Tensor& dy) { (void)dy; }
  // dx is as the rule made it, before it is added to other gradients.
  virtual void after_rule(const Node&, const Tensor& dy, std::span<const Tensor> dx) {
    (void)dy, (void)dx;
  }
  // A backward pass begins at a scaled loss with this id. nonfinite, f32 [1], is 1 if the loss was
  // not finite; the scaler sees what is written there.
  virtual void scaled_loss(int id, const Tensor& nonfinite) { (void)id, (void)nonfinite; }
  // The loss scale to begin with where calibration found this one, or infinity if it found none.
  // Processes that train together begin with one scale.
  virtual double joined_scale(double found) { return found; }
  // An outermost call of backward() is over; `whole` is false if an exception ended it.
  virtual void after_backward(bool whole) { (void)whole; }
  // The sum of dx over all uses of a leaf has been added to the leaf's `total`.
  virtual void after_accumulate(const Node& leaf, const Tensor& total) { (void)leaf, (void)total; }
  // True if it takes the gradients of a leaf from backward(), to add up those of several processes.
  virtual bool exchanges(const Tensor& leaf) const { return (void)leaf, false; }
  // False if the observer looks at no values: ops and rules may then overwrite tensors that it has
  // seen, and accumulate gradients in place, as they do without an observer.
  virtual bool reads_values() const { return true; }
  virtual void before_write(const Tensor& x, const Tensor& y) { (void)x, (void)y; }  // x = y
  // The handles that the observer keeps of a storage, which a write in place leaves to it.
  virtual long handles(const Storage& storage) const { return (void)storage, 0; }
  Observer* outer = nullptr;
};

// True if an observer of this thread reads values, which must then not be overwritten early.
inline bool values_are_observed() {
  const Observer* o = thread_state.observer;
  while (o && !o->reads_values()) o = o->outer;
  return o != nullptr;
}

}  // namespace internal

// Adds an observer to this thread's chain while alive. Destruction may be in any order.
class Observe : NoCopy {
 public:
  explicit Observe(internal::Observer& o) : observer_(o) {  // `o` must outlive it
    o.outer = thread_state.observer;
    thread_state.observer = &o;
  }
  ~Observe() {
    internal::Observer** at = &thread_state.observer;
    while (*at && *at != &observer_) at = &(*at)->outer;
    if (*at) *at = observer_.outer;
  }

 private:
  internal::Observer& observer_;
};

}  // namespace mixtape
