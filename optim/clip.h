#pragma once
// Clipping of gradients by norm or value. Nothing here waits for the device, unless processes
// divide parameters, which then exchange numbers.

#include <vector>

#include "core/tensor.h"

namespace mixtape::optim {

// The gradient of a parameter, if any. A strided gradient is first replaced by a dense copy.
Tensor dense_grad(const Tensor& param);

// A view of the gradient, without elements if there is no gradient.
inline internal::View gradient_view(const Tensor& grad) {
  return grad ? internal::View(grad) : internal::View{nullptr, f32, internal::Layout(Shape{0})};
}

// The norm (f64, 0-d, on the device) of `grads`, views of the gradients of `params`. If processes
// divide parameters, it is the norm of all pieces; `found` (f32 [params] or none), which is set
// where a gradient is not finite, is then combined over processes in the same message. `steps` says
// that the optimizer's step follows at once.
Tensor grad_norm(const std::vector<Tensor>& params, std::span<const internal::View> grads, double p,
                 const Tensor& found = {}, bool steps = false);

struct ClipOptions {
  double norm_type = 2;             // p of the norm: any positive number, or infinity
  bool error_if_nonfinite = false;  // waits for the norm, and throws Error if it is inf or NaN
};
// Multiplies all gradients by min(1, max_norm / (norm + 1e-6)) and returns their norm before, taken
// as one vector: f32 (f64 if a gradient is), 0-d, on the device. Like
// torch.nn.utils.clip_grad_norm_. Warns if gradients are multiplied by a GradScaler's scale.
Tensor clip_grad_norm(const std::vector<Tensor>& params, double max_norm,
                      const ClipOptions& options = {});

// Clamps gradients to [-limit, limit], like torch.nn.utils.clip_grad_value_.
void clip_grad_value(const std::vector<Tensor>& params, double limit);

// PyTorch's names.
inline Tensor clip_grad_norm_(const std::vector<Tensor>& params, double max_norm,
                              const ClipOptions& options = {}) {
  return clip_grad_norm(params, max_norm, options);
}
// PyTorch's name, too.
inline void clip_grad_value_(const std::vector<Tensor>& params, double limit) {
  clip_grad_value(params, limit);
}

}  // namespace mixtape::optim
