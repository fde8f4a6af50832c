// Groups by hooks: a backward pass multiplies gradients where it enters and where it leaves one.
#include "amp/layer_group.h"

#include "amp/scaler.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"

namespace mixtape::amp {
using namespace internal;
namespace {

// x under another name, whose gradient is multiplied by `factor`.
Tensor with_gradient_times(const Tensor& x, double factor) {
  if (!x.requires_grad()) return x;
  const NoPolicy as_called;
  const Tensor y = squeeze(unsqueeze(x, 0), 0);  // a view of one's own shape would be x itself
  register_hook(y, [factor](const Tensor& g) { return g * factor; });
  return y;
}

}  // namespace

LayerGroup::LayerGroup(const std::vector<Tensor>& parameters, double scale) : scale_(scale) {
  const Scope scope("LayerGroup");
  check(detail::is_scale(scale) && detail::is_scale(1 / scale),
        "the scale and its inverse must be positive and finite in f32, got {}", scale);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& p = parameters[i];
    check(!is_half(p.grad_dtype()),
          "parameter {} has gradients of {}, which would lose what the group's scale saves: keep "
          "parameters in f32",
          i, p.grad_dtype());
    if (p.requires_grad())
      hooks_.push_back(register_hook(p, [by = 1 / scale](const Tensor& g) { return g * by; }));
  }
}
LayerGroup::~LayerGroup() {
  for (HookHandle& h : hooks_) h.remove();
}

Tensor LayerGroup::begin(const Tensor& x) const { return with_gradient_times(x, 1 / scale_); }
Tensor LayerGroup::end(const Tensor& y) const { return with_gradient_times(y, scale_); }

}  // namespace mixtape::amp
