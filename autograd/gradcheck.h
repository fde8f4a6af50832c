#pragma once
// gradcheck: compares gradients with central differences, in f64.

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace mixtape {

struct GradcheckOptions {
  double step = 1e-6, tolerance = 1e-6;  // of |analytic - numeric| / max(1, |numeric|)
  bool second_order = false;             // also checks the gradient of the gradient
};
// Returns "" if the gradients of f agree, else a sentence with the input, the element and both
// values. Varies inputs that are f64 leaves one element at a time, so their elements must not share
// memory; f must be smooth near them. The output is projected on fixed random numbers, since a
// plain sum hides symmetric mistakes.
std::string gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                      const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace mixtape
