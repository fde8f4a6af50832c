#pragma once
// OpModule: an op of one tensor as a module. If the op has an option, the module keeps it.
//
//   struct ReLU : OpModule<ReLU, relu> {};
//   struct Softmax : OpModule<Softmax, softmax> {
//     explicit Softmax(int dim = -1) : OpModule(dim) {}
//   };

#include "nn/module.h"

namespace mixtape::nn {

template <class Derived, auto op>
struct OpModule : Module<Derived> {
  Tensor forward(const Tensor& x) const { return op(x); }
  MIXTAPE_FIELDS()
};

template <class Derived, class Option, Tensor (*op)(const Tensor&, Option)>
struct OpModule<Derived, op> : Module<Derived> {
  explicit OpModule(Option option) : option_(option) {}
  Tensor forward(const Tensor& x) const { return op(x, option_); }
  MIXTAPE_FIELDS()

 private:
  Option option_;
};

}  // namespace mixtape::nn
