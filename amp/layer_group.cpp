// Groups made of hooks, which multiply gradients where a backward pass enters and leaves a group.
#include "amp/layer_group.h"

#include "amp/scaler.h"
#include "autograd/backward_state.h"
#include "autograd/hook_list.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"

namespace mixtape::amp {
using namespace internal;
namespace {

// A hook that multiplies gradients. A second pass would also divide gradients that the group's end
// has not multiplied.
Node::Hook times(double factor, std::shared_ptr<const void> with = {}) {
  return [factor, with](const Tensor& g) {
    check(!grad_enabled(), "gradients of a LayerGroup can't be differentiated again");
    return g * factor;
  };
}

// A new handle of x whose gradient is multiplied by `factor`. Its graph keeps `with` alive.
Tensor with_gradient_times(const Tensor& x, double factor,
                           const std::shared_ptr<const void>& with = nullptr) {
  const NoPolicy as_called;
  const Tensor y = squeeze(unsqueeze(x, 0), 0);  // a view with x's own shape would be x itself
  if (!y.requires_grad()) return x;              // also under NoGrad
  register_hook(y, times(factor, with));
  return y;
}

}  // namespace

// The parameters and their hooks, kept as long as the group or a graph through end() is alive.
struct LayerGroup::Parameters : NoCopy {
  struct Entry {
    Tensor tensor;
    bool hooked = false;
    HookHandle hook = {};
  };
  std::vector<Entry> all;

  ~Parameters() {
    for (Entry& p : all) p.hook.remove();
  }
};

LayerGroup::LayerGroup(const std::vector<Tensor>& parameters, double scale)
    : scale_(scale), parameters_(std::make_shared<Parameters>()) {
  const Scope scope("LayerGroup");
  check(detail::is_scale(scale) && detail::is_scale(1 / scale),
        "the scale and its inverse must be positive and finite in f32, got {}", scale);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& p = parameters[i];
    check(!is_half(p.grad_dtype()),
          "parameter {} has gradients of {}, which would lose what the group's scale saves: keep "
          "parameters in f32",
          i, p.grad_dtype());
    parameters_->all.push_back({p});
  }
}

LayerGroup::~LayerGroup() = default;

Tensor LayerGroup::begin(const Tensor& x) const { return with_gradient_times(x, 1 / scale_); }
Tensor LayerGroup::end(const Tensor& y) const {
  check(!backward_state.by_example,
        "per_sample_gradients() runs no hooks, which divide the gradients of a LayerGroup: compute "
        "them without the group");
  const Tensor end = with_gradient_times(y, scale_, parameters_);
  if (!end.requires_grad()) return end;
  for (Parameters::Entry& p : parameters_->all) {
    if (p.hooked || !p.tensor.requires_grad()) continue;  // it may have been frozen until now
    p.hook = register_hook(p.tensor, times(1 / scale_));
    p.hooked = true;
  }
  return end;
}

}  // namespace mixtape::amp
