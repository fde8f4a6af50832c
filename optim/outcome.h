#pragma once
// What became of an optimizer's step, for those that go with its steps.

#include <concepts>

namespace mixtape::optim {

// A bool, or what asks a device when it is converted to one: amp::StepResult.
template <class R>
concept StepOutcome = std::same_as<R, bool> || requires(const R& r) {
  { r.is_deferred() } -> std::same_as<bool>;
  static_cast<bool>(r);
};

}  // namespace mixtape::optim
