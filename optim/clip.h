#pragma once
// Gradients as a whole: their norm, and limits on it. Nothing here waits for the device.

#include <vector>

#include "core/tensor.h"

namespace mixtape::optim {

// The gradient of a parameter, or no tensor. One that is strided is first replaced by a dense copy,
// as kernels over many tensors need it.
Tensor dense_grad(const Tensor& param);

// Sets found[i] (f32 [parameters], zeros) where gradient i is not finite, or its product with
// `factor` is not. `factor`: f32, 0-d, or no tensor.
void find_nonfinite(const std::vector<Tensor>& params, const Tensor& factor, const Tensor& found);
// Multiplies the gradients by `factor` (f32, 0-d). `found`, if given, is set as find_nonfinite()
// does.
void multiply_grads(const std::vector<Tensor>& params, const Tensor& factor,
                    const Tensor& found = {});

// For kernels that want a view of each gradient: of no elements where there is none.
inline View gradient_view(const Tensor& grad) {
  return grad ? View(grad) : View{nullptr, f32, Layout(Shape{0})};
}

struct ClipOptions {
  double norm_type = 2;             // p of the norm: any positive number, or infinity
  bool error_if_nonfinite = false;  // waits for the norm, and throws Error if it is inf or NaN
};
// Multiplies all gradients by min(1, max_norm / (norm + 1e-6)), where norm is that of the gradients
// taken as one vector, and returns the norm from before: f32, 0-d, on the device. Semantics and
// names are those of torch.nn.utils.clip_grad_norm_. Warns of gradients of a loss that
// amp::GradScaler has scaled.
Tensor clip_grad_norm(const std::vector<Tensor>& params, double max_norm,
                      const ClipOptions& options = {});

// Limits each element of the gradients to [-limit, limit], as torch.nn.utils.clip_grad_value_.
void clip_grad_value(const std::vector<Tensor>& params, double limit);

}  // namespace mixtape::optim
