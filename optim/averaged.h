#pragma once
// Averaged: the weights that a schedule-free optimizer finds (Defazio et al. 2024). Its parameters
// hold other weights, at which it takes gradients.
//
//   {
//     const optim::Averaged averages(opt);
//     evaluate(net);
//   }

#include "optim/optimizer.h"
#include "optim/stand_ins.h"

namespace mixtape::optim {

// A guard: all handles of a schedule-free optimizer's parameters see the mean of the weights so
// far. Writes to the means are lost, and a step throws Error. Afterwards parameters, masters and
// states are as before, to the bit. Inside another Averaged, and for other optimizers, it does
// nothing. Processes that divide the parameters must all make it together.
class Averaged : NoCopy {
 public:
  [[nodiscard]] explicit Averaged(Optimizer& optimizer);  // shows the averages at once
  void keep();  // makes the averages the parameters for good; further steps start from them

 private:
  StandIns means_;
  std::vector<Tensor> own_, z_;  // means of the optimizer's params(), and their states
  std::shared_ptr<const void> alive_;
};

}  // namespace mixtape::optim
