#pragma once
// ThreadState: the scope, policy and observers of this thread's ops, and guards that change them.

#include <utility>

#include "core/no_copy.h"

namespace mixtape {

// Names that programs seldom write are in namespace internal, so that programs may use them for
// their own.
namespace internal {
class Scope;       // core/scope.h
class Policy;      // core/dispatch.h
class Observer;    // core/dispatch.h
class GraphState;  // core/capture.h
}  // namespace internal

struct ThreadState {                       // read by every op; null: none
  const internal::Scope* scope = nullptr;  // the innermost
  internal::Policy* policy = nullptr;      // the innermost
  internal::Observer* observer = nullptr;  // head of the chain
  bool recording = true;                   // ops on tensors with requires_grad() get a history

  static ThreadState& current();  // this thread's
};
inline thread_local constinit ThreadState thread_state;
namespace internal {
inline thread_local constinit GraphState* captured_graph = nullptr;  // that work is captured for
void check_no_capture(const char* reason);  // throws Error during a capture
}  // namespace internal
inline ThreadState& ThreadState::current() { return thread_state; }

// A guard that gives a member of a thread's state another value:
//   const ScopedValue<&ThreadState::recording> off(false);
// Any struct with a static current() will do, so each layer can have a state of its own.
template <auto member>
class ScopedValue;
template <class State, class Value, Value State::* member>
class ScopedValue<member> : NoCopy {
 public:
  [[nodiscard]] explicit ScopedValue(Value value)  // the outer one returns when it ends
      : outer_(std::exchange(State::current().*member, value)) {}
  ~ScopedValue() { State::current().*member = outer_; }

 private:
  const Value outer_;
};

// While one is alive, no policy changes the dtypes in which ops of this thread run.
struct NoPolicy : ScopedValue<&ThreadState::policy> {
  [[nodiscard]] NoPolicy() : ScopedValue(nullptr) {}  // sets the policy to none
};

}  // namespace mixtape
