// Takes a step of SGD up the gradient on copies, which stand in for the parameters. The parameters'
// own storages do not change, so masters and 16-bit copies stay valid.
#include "optim/sam.h"

#include <cmath>

#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "kernels/common/optimizers.h"
#include "kernels/kernels.h"
#include "optim/clip.h"

namespace mixtape::optim {
using namespace internal;

Ascended::Ascended(const Optimizer& optimizer, double rho) {
  const Scope scope("sam");
  check(rho >= 0 && std::isfinite(rho), "rho must be >= 0 and finite, got {}", rho);
  if (!optimizer.sharing()) optimizer.warn_of_idle();
  std::vector<Tensor> params;
  std::vector<View> grads;
  std::vector<kernels::Update> updates;
  for (const Tensor& p : optimizer.params()) {
    check(!is_half(p.dtype()),
          "parameters must be f32 or f64, got {}, which rounds such a step away: take f32, and "
          "Autocast for the operations",
          p.dtype());
    const Tensor g = dense_grad(p);
    if (!g) continue;
    params.push_back(p);
    grads.push_back(g);
    check(p.device() == params[0].device(), "a parameter is on {}, others on {}", p.device(),
          params[0].device());
  }
  if (params.empty()) return;
  const double norm = params[0].device().is_meta() ? 1 : grad_norm(params, grads, 2).item();
  if (!(norm > 0) || !std::isfinite(norm)) return;
  std::vector<Tensor> moved;
  for (size_t i = 0; i < params.size(); ++i) {
    moved.push_back(dense_copy(params[i], params[i].dtype(), params[i].device()));
    kernels::Update& update = updates.emplace_back();
    update.param = moved[i];
    update.grad = grads[i];
  }
  kernels::optimizer_step(params[0].device(), kernels::SGD{.lr = rho}, updates,
                          kernels::StepControl{.rescale = -1 / norm});
  for (size_t i = 0; i < params.size(); ++i) moved_.put_joined(params[i], moved[i]);
}

}  // namespace mixtape::optim
