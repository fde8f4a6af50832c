#pragma once
// Averaged: the weights that a schedule-free optimizer finds (Defazio et al. 2024). Its parameters
// hold those at which it takes gradients.
//
//   {
//     const optim::Averaged averages(opt);
//     evaluate(net);
//   }

#include "optim/optimizer.h"

namespace mixtape::optim {

// While alive, all handles to the parameters of a schedule-free optimizer see the mean of the
// weights so far; writes to those are lost. Afterwards parameters, masters and states are as
// before, to the bit. Those of other optimizers, or without a step, are what they are.
class Averaged : NoCopy {
 public:
  [[nodiscard]] explicit Averaged(Optimizer& optimizer);  // throws Error if processes divide it
  ~Averaged();
  void keep();  // leaves the averages in their place for good, at the end of training

 private:
  std::vector<Tensor> params_, values_;  // that are replaced, and their former values
};

}  // namespace mixtape::optim
