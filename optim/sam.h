#pragma once
// Sharpness-aware minimization (Foret et al. 2020, arXiv 2010.01412): takes the gradient at the
// worst point nearby, to find flat minima, which generalize better. Works with any optimizer.
//
//   loss_of(net).backward();
//   {
//     const optim::Ascended worst(opt, 0.05);
//     opt.zero_grad();
//     loss_of(net).backward();
//   }
//   opt.step();

#include "optim/optimizer.h"
#include "optim/stand_ins.h"

namespace mixtape::optim {

// A guard: all handles of the optimizer's parameters see p + rho g / |g|, with the norm over all
// gradients; writes to these values are lost. Gradients may carry a loss scale, which cancels out.
// If their norm is 0 or not finite, parameters stay where they are. Waits for the device.
// Afterwards parameters, masters and states are as before, to the bit.
class Ascended : NoCopy {
 public:
  // Throws Error unless rho >= 0, if parameters are on several devices, or if they have 16 bits,
  // which would round the step away. Processes that divide parameters must all make it together.
  [[nodiscard]] explicit Ascended(const Optimizer& optimizer, double rho = 0.05);

 private:
  StandIns moved_;
};

}  // namespace mixtape::optim
