// Computes the mean x from parameters y and states z: y = b1 x + (1 - b1) z, so x = y - (1 - 1 /
// b1) (y - z).
#include "optim/averaged.h"

#include <fmt/format.h>

#include "autograd/tape.h"
#include "core/scope.h"
#include "kernels/kernels.h"
#include "optim/optimizers.h"

namespace mixtape::optim {
using namespace internal;
namespace {

Tensor mean_of(const Tensor& y, const Tensor& z, double beta1) {
  const Tensor x = dense_copy(y, z.dtype(), y.device());
  kernels::Update update;
  update.param = x;
  update.grad = z;
  const kernels::SGD towards_z{.lr = 1 - 1 / beta1, .weight_decay = 1};
  kernels::optimizer_step(y.device(), towards_z, std::span(&update, 1),
                          kernels::StepControl{.rescale = -1});
  return x;
}

}  // namespace

Averaged::Averaged(Optimizer& optimizer) {
  const Scope scope("averaged");
  if (!dynamic_cast<const ScheduleFreeAdamW*>(&optimizer) || !optimizer.averaged_.expired()) return;
  const std::vector<Tensor> masters = optimizer.masters();  // which states follow to a device
  const StateDict states = optimizer.state_dict();
  size_t index = 0;
  for (size_t group = 0; group < optimizer.groups(); ++group)
    for (const Tensor& p : optimizer.params(group)) {
      const Tensor& y = masters[index] ? masters[index] : p;
      const std::string key = fmt::format("state.{}.z", index++);
      if (!states.contains(key)) continue;
      const Tensor& z = z_.emplace_back(states.at(key));
      const Tensor mean = mean_of(y, z, optimizer.option("beta1", group)),
                   own = own_.emplace_back(dense_copy(mean, p.dtype(), p.device()));
      means_.put_joined(p, own);
    }
  optimizer.averaged_ = alive_ = std::make_shared<int>();
}

void Averaged::keep() {
  for (size_t i = 0; i < own_.size(); ++i) mixtape::detail::write(own_[i], z_[i]);
  means_.keep();
  own_.clear();
  alive_.reset();
}

}  // namespace mixtape::optim
