#pragma once
// StepOutcome: the result of an optimizer's step, as schedules and averages take it.

#include <concepts>

namespace mixtape::optim {

// A bool, or a type that waits for the device when converted to one: amp::StepResult.
template <class R>
concept StepOutcome = std::same_as<R, bool> || requires(const R& r) {
  { r.is_deferred() } -> std::same_as<bool>;
  static_cast<bool>(r);
};

}  // namespace mixtape::optim
