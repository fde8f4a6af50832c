// Clipping, as three kernels: the norm, the factor that follows from it, the product.
#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/format.h"
#include "core/op.h"
#include "core/warn.h"
#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

Device device_of(const std::vector<Tensor>& params) {
  return params.empty() ? Device::cpu() : params[0].device();
}

// The gradients that there are, as they lie in memory, on one device; else throws Error.
std::vector<View> dense_grads(const std::vector<Tensor>& params) {
  std::vector<View> grads;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].has_grad() && params[i].leaf().grad_scale().number)
      warn(
          "clipping gradients of a scaled loss, whose norm is that much larger: use "
          "scaler.unscale(optimizer) before, or scaler.step(optimizer, {.clip_norm = 1})");
    const Tensor g = dense_raw_grad(params[i]);
    if (!g) continue;
    check(g.device() == device_of(params), "the gradient of parameter {} is on {}, others on {}", i,
          g.device(), device_of(params));
    grads.push_back(g);
  }
  return grads;
}

void multiply(const Tensor& grad, const Tensor& factor) {
  const View g = grad;
  kernels::unscale(grad.device(), std::span(&g, 1), factor, Tensor({1}, f32, grad.device()));
}

}  // namespace

void settle(const std::vector<Tensor>& params) {
  for (const Tensor& p : params) (void)p.grad();
}

Tensor dense_raw_grad(const Tensor& param) {
  if (!param.has_grad()) return {};
  if (const Tensor& raw = param.leaf().grad; raw.is_contiguous()) return raw;
  const Tensor g = param.grad(), dense(g.shape(), g.dtype(), g.device());
  kernels::convert(g.device(), g, dense);
  param.set_grad(dense);
  return dense;
}

Tensor dense_grad(const Tensor& param) {
  (void)param.grad();
  return dense_raw_grad(param);
}

void find_nonfinite(const std::vector<Tensor>& params, const Tensor& factor, const Tensor& found) {
  const bool trusts = found.device().is_host() && !(factor && factor.item() > 1);
  std::vector<View> grads;
  for (const Tensor& p : params) {
    const bool reads = p.has_grad() && !(trusts && p.leaf().grad.storage()->known_finite());
    grads.push_back(gradient_view(reads ? dense_raw_grad(p) : Tensor()));
  }
  kernels::find_nonfinite(found.device(), grads, factor, found);
}

void multiply_grads(const std::vector<Tensor>& params, const Tensor& factor, const Tensor& found) {
  const Device device = factor.device();
  // (Narrow ones would be rounded, or not, by whether somebody reads them before the step.)
  const auto may_wait = [](const Tensor& p) {
    return !p.has_grad() || (p.leaf().grad.is_unique() && !is_half(p.leaf().grad.dtype()));
  };
  const bool waits = device.is_host() && std::ranges::all_of(params, may_wait);
  if (waits && found) find_nonfinite(params, factor, found);
  std::vector<View> grads;
  for (const Tensor& p : params) {
    grads.push_back(gradient_view(dense_raw_grad(p)));
    if (!p.has_grad()) continue;
    p.leaf().defer(waits ? factor : Tensor(), multiply);
    p.leaf().grad.storage()->bump_version();
  }
  if (waits) return;
  const Tensor unasked = found ? found : Tensor({int64_t(grads.size())}, f32, device);
  kernels::unscale(device, grads, factor, unasked);
}

Tensor waiting_factor(const std::vector<Tensor>& params) {
  const Tensor* factor = nullptr;  // of the first
  bool agree = true;
  for (const Tensor& p : params) {
    if (!p.has_grad()) continue;
    if (!factor) factor = &p.leaf().factor();
    agree = agree && p.leaf().factor().is_same(*factor);
  }
  if (agree) return factor ? *factor : Tensor();
  settle(params);
  return {};
}

Tensor clip_grad_norm(const std::vector<Tensor>& params, double max_norm,
                      const ClipOptions& options) {
  const Scope scope("clip_grad_norm");
  check(max_norm >= 0, "max_norm is {}, not a number from 0", max_norm);
  check(options.norm_type > 0, "norm_type is {}, not a positive number", options.norm_type);
  // (Other powers of gradients that are still scaled might leave the range of the sum.)
  const bool as_they_lie = options.norm_type <= 2 || std::isinf(options.norm_type);
  if (!as_they_lie) settle(params);
  const Tensor waiting = waiting_factor(params);
  const std::vector<View> grads = dense_grads(params);
  const Device device = device_of(params);
  const Tensor total({}, f64, device), norm({}, f32, device), factor({}, f32, device);
  kernels::grad_norm(device, grads, options.norm_type, total);
  kernels::clip_factor(device, total, waiting, max_norm, norm, factor);
  if (options.error_if_nonfinite)
    check(std::isfinite(norm.item()), "the norm of {} gradients is {}", grads.size(), norm.item());
  multiply_grads(params, factor);
  return norm;
}

void clip_grad_value(const std::vector<Tensor>& params, double limit) {
  const Scope scope("clip_grad_value");
  check(limit >= 0, "the limit is {}, not a number from 0", limit);
  settle(params);
  kernels::clip_value(device_of(params), dense_grads(params), limit);
  for (const Tensor& p : params)
    if (p.has_grad()) p.grad().storage()->bump_version();
}

}  // namespace mixtape::optim
