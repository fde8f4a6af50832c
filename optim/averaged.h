#pragma once
// Averaged: the weights that a schedule-free optimizer finds (Defazio et al. 2024). Its parameters
// hold those at which it takes gradients.
//
//   {
//     const optim::Averaged averages(opt);
//     evaluate(net);
//   }

#include "optim/optimizer.h"
#include "optim/stand_ins.h"

namespace mixtape::optim {

// While alive, all handles to the parameters of a schedule-free optimizer see the mean of the
// weights so far; writes to those are lost, and a step is an Error. Afterwards parameters, masters
// and states are as before, to the bit. Within another, or for other optimizers, it does nothing.
// Processes that divide the parameters make it all at once.
class Averaged : NoCopy {
 public:
  [[nodiscard]] explicit Averaged(Optimizer& optimizer);  // shows the averages at once
  void keep();  // leaves the averages for good, from which a further step would start

 private:
  StandIns means_;
  std::vector<Tensor> own_, z_;  // means of the optimizer's params(), and their states
  std::shared_ptr<const void> alive_;
};

}  // namespace mixtape::optim
