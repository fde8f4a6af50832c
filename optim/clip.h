#pragma once
// Gradients as a whole: their norm, and limits on it. Nothing here waits for the device.

#include <vector>

#include "core/tensor.h"

namespace mixtape::optim {

// The gradient of a parameter, or no tensor. One that is strided is first replaced by a dense copy,
// as kernels over many tensors need it.
Tensor dense_grad(const Tensor& param);

// The same as it lies in memory, to be multiplied by what waiting_factor() says.
Tensor dense_raw_grad(const Tensor& param);

// Sets found[i] (f32 [parameters], zeros) where gradient i, as it lies in memory, is not finite or
// does not stay so when multiplied. `factor`: f32, 0-d, or no tensor. On the CPU it does not read
// those that the products which made them saw to be finite.
void find_nonfinite(const std::vector<Tensor>& params, const Tensor& factor, const Tensor& found);
// Multiplies the gradients, as they lie in memory, by factor (f32, 0-d), and with `found` also does
// what find_nonfinite() does. On the CPU the products of f32 and f64 wait, if nobody else holds a
// gradient, until somebody asks for one or a step reads them all: a pass over memory less.
void multiply_grads(const std::vector<Tensor>& params, const Tensor& factor,
                    const Tensor& found = {});
// Multiplies what waits.
void settle(const std::vector<Tensor>& params);
// The number by which all gradients of these wait to be multiplied; if there is none such, no
// tensor, and then none of them waits any longer.
Tensor waiting_factor(const std::vector<Tensor>& params);

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
