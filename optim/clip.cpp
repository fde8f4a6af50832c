// Clipping as three kernels: the norm, the factor computed from it, the product.
#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "autograd/autograd_meta.h"
#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "core/warn.h"
#include "kernels/kernels.h"

namespace mixtape::optim {
using namespace internal;
namespace {

Device device_of(const std::vector<Tensor>& params) {
  return params.empty() ? Device::cpu() : params[0].device();
}

// The gradients that exist. Throws Error if they are on several devices.
std::vector<View> dense_grads(const std::vector<Tensor>& params) {
  std::vector<View> grads;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].has_grad() && params[i].autograd_meta().loss_scale().number)
      warn(
          "clipping gradients that are multiplied by the loss scale: call "
          "scaler.unscale(optimizer) first, or scaler.step(optimizer, {.clip_norm = 1})");
    const Tensor g = dense_grad(params[i]);
    if (!g) continue;
    check(g.device() == device_of(params), "the gradient of parameter {} is on {}, others on {}", i,
          g.device(), device_of(params));
    g.storage()->begin_write();
    grads.push_back(g);
  }
  return grads;
}

// Notes a write to the gradients, which leaves their loss scales as they were. (They may share
// storage, and so a version: all scales are read first.)
void bump_versions(const std::vector<Tensor>& params) {
  std::vector<LossScaleTag> scales;
  for (const Tensor& p : params)
    scales.push_back(p.has_grad() ? p.autograd_meta().loss_scale() : LossScaleTag());
  for (const Tensor& p : params)
    if (p.has_grad()) p.grad().storage()->bump_version();
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].has_grad()) params[i].autograd_meta().set_loss_scale(scales[i]);
}

}  // namespace

Tensor dense_grad(const Tensor& param) {
  const Tensor g = param.grad();
  if (!g || g.is_contiguous()) return g;
  const Tensor dense(g.shape(), g.dtype(), g.device());
  kernels::convert(g.device(), g, dense);
  const LossScaleTag scale = param.autograd_meta().loss_scale();
  param.set_grad(dense);
  param.autograd_meta().set_loss_scale(scale);
  return dense;
}

Tensor clip_grad_norm(const std::vector<Tensor>& params, double max_norm,
                      const ClipOptions& options) {
  const Scope scope("clip_grad_norm");
  check(max_norm >= 0, "max_norm must be >= 0, got {}", max_norm);
  check(options.norm_type > 0, "norm_type must be > 0, got {}", options.norm_type);
  const std::vector<View> grads = dense_grads(params);
  const Device device = device_of(params);
  const bool wide = std::ranges::any_of(grads, [](const View& g) { return g.dtype == f64; });
  const Tensor total({}, f64, device), norm({}, wide ? f64 : f32, device), factor({}, f64, device);
  kernels::grad_norm(device, grads, options.norm_type, total);
  kernels::clip_factor(device, total, View{}, max_norm, norm, factor);
  if (options.error_if_nonfinite)
    check(std::isfinite(norm.item()), "the norm of {} gradients is {}", grads.size(), norm.item());
  kernels::unscale(device, grads, factor, Tensor({int64_t(grads.size())}, f32, device));
  bump_versions(params);
  return norm;
}

void clip_grad_value(const std::vector<Tensor>& params, double limit) {
  const Scope scope("clip_grad_value");
  check(limit >= 0, "limit must be >= 0, got {}", limit);
  kernels::clip_value(device_of(params), dense_grads(params), limit);
  bump_versions(params);
}

}  // namespace mixtape::optim
