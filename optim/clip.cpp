// Clipping as three kernels: the norm, the factor computed from it, the product.
#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "autograd/autograd_meta.h"
#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "core/scope.h"
#include "core/warn.h"
#include "kernels/kernels.h"
#include "optim/sharing.h"

namespace mixtape::optim {
using namespace internal;
namespace {

Device device_of(const std::vector<Tensor>& params) {
  return params.empty() ? Device::cpu() : params[0].device();
}

// A view for each parameter. Throws Error if gradients are on several devices.
std::vector<View> dense_grads(const std::vector<Tensor>& params) {
  std::vector<View> grads;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].has_grad() && params[i].autograd_meta().loss_scale().number)
      warn(
          "clipping gradients that are multiplied by the loss scale: call "
          "scaler.unscale(optimizer) first, or scaler.step(optimizer, {.clip_norm = 1})");
    const Tensor g = dense_grad(params[i]);
    grads.push_back(gradient_view(g));
    if (!g) continue;
    check(g.device() == device_of(params), "the gradient of parameter {} is on {}, others on {}", i,
          g.device(), device_of(params));
    g.storage()->begin_write();
  }
  return grads;
}

// Notes a write to the gradients, which keep their loss scales. (Gradients may share a storage and
// thereby its version, so all scales are read first.)
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

Tensor grad_norm(const std::vector<Tensor>& params, std::span<const View> grads, double p,
                 const Tensor& found, bool steps) {
  const Device device = device_of(params);
  int64_t count = 0;
  for (const View& g : grads) count += ceil_div(g.size(), kernels::norm_block);
  Tensor parts({count}, f64, device);
  kernels::norm_parts(device, grads, p, parts);
  if (const auto sharing = sharing_of(params)) parts = sharing->join(params, parts, found, steps);
  const Tensor norm({}, f64, device);
  kernels::norm_of_parts(device, parts, p, norm);
  return norm;
}

Tensor clip_grad_norm(const std::vector<Tensor>& of, double max_norm, const ClipOptions& options) {
  const Scope scope("clip_grad_norm");
  const std::vector<Tensor> params = own_pieces(of);
  check(max_norm >= 0, "max_norm must be >= 0, got {}", max_norm);
  check(options.norm_type > 0, "norm_type must be > 0, got {}", options.norm_type);
  const std::vector<View> grads = dense_grads(params);
  const Device device = device_of(params);
  const bool wide = std::ranges::any_of(grads, [](const View& g) { return g.dtype == f64; });
  const Tensor norm({}, wide ? f64 : f32, device), factor({}, f64, device);
  kernels::clip_factor(device, grad_norm(params, grads, options.norm_type), View{}, max_norm, norm,
                       factor);
  if (options.error_if_nonfinite && !device.is_meta())  // a plan has no values
    check(std::isfinite(norm.item()), "the norm of {} gradients is {}",
          std::ranges::count_if(params, &Tensor::has_grad), norm.item());
  kernels::unscale(device, grads, factor, Tensor({int64_t(grads.size())}, f32, device), View{});
  bump_versions(params);
  return norm;
}

void clip_grad_value(const std::vector<Tensor>& of, double limit) {
  const Scope scope("clip_grad_value");
  const std::vector<Tensor> params = own_pieces(of);
  check(limit >= 0, "limit must be >= 0, got {}", limit);
  kernels::clip_value(device_of(params), dense_grads(params), limit);
  bump_versions(params);
}

}  // namespace mixtape::optim
