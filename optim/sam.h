#pragma once
// Sharpness-aware minimization (Foret et al. 2020, arXiv 2010.01412): the gradient is that at the
// worst point nearby, for flat minima, which generalize better. Works with any optimizer.
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

// While alive, all handles to the optimizer's parameters see p + rho g / |g|, with the norm of all
// gradients; writes to those are lost. A multiple of the gradients is as good, so a loss scale may
// be on them; where their norm is 0 or not finite, parameters stay where they are. Waits for the
// device. Parameters, masters and states are afterwards as before, to the bit.
class Ascended : NoCopy {
 public:
  // Throws Error if rho is not >= 0, or if parameters are on several devices, or of 16 bits, in
  // which the step is less than their spacing. Where processes divide them, all make it together.
  [[nodiscard]] explicit Ascended(const Optimizer& optimizer, double rho = 0.05);

 private:
  StandIns moved_;
};

}  // namespace mixtape::optim
