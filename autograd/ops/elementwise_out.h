#pragma once
// Elementwise ops that write their result to `out`, for the ops in place: see call_out().

#include <optional>

#include "core/tensor.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

Tensor add_out(const Tensor& out, const Tensor& a, const Tensor& b);
Tensor sub_out(const Tensor& out, const Tensor& a, const Tensor& b);
Tensor mul_out(const Tensor& out, const Tensor& a, const Tensor& b);
Tensor div_out(const Tensor& out, const Tensor& a, const Tensor& b);  // floats
Tensor add_out(const Tensor& out, const Tensor& a, double b);
Tensor sub_out(const Tensor& out, const Tensor& a, double b);
Tensor mul_out(const Tensor& out, const Tensor& a, double b);
Tensor div_out(const Tensor& out, const Tensor& a, double b);  // floats
Tensor clamp_out(const Tensor& out, const Tensor& x, std::optional<double> low,
                 std::optional<double> high);

}  // namespace ops
}  // namespace mixtape
