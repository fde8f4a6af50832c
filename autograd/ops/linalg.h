#pragma once
// Steps that ops of linear algebra share: checks, and matrices as kernels take them.

#include "autograd/ops/checks.h"
#include "autograd/ops/rows.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

// Real matrices [..., m, n], and square ones.
void check_matrices(const Tensor& a);
void check_square(const Tensor& a);
// Matrices and right-hand sides with as many rows.
void check_equations(const Tensor& a, const Tensor& b);
// Matrices [batch, m, n] in f64, dense.
Tensor matrices(const Tensor& a);
// Throws Error for the first matrix for which a kernel reported anything but 0, from which
// `problem` makes the end of the message.
void check_each(const Tensor& reports, const std::function<std::string(int64_t)>& problem);

// Tensors of a backward rule in f64, since products on the way may leave the range of f32. A 16-bit
// result is rounded, so `again` makes it from precise inputs; it also makes one that is absent.
inline Tensor precise(const Tensor& x) { return cast(x, f64); }
template <class F>
Tensor precise_result(const Tensor& y, const F& again) {
  return !y || is_half(y.dtype()) ? again() : precise(y);
}
// f(a, b) with a vector b [n], or vectors [..., n] for matrices of that batch, as columns.
template <class F>
Tensor with_columns(const Tensor& a, const Tensor& b, const F& f) {
  const bool vector = b.rank() == 1 || (b.rank() + 1 == a.rank() &&
                                        b.shape() == internal::without(a.shape(), a.rank() - 1));
  return vector ? squeeze(f(a, unsqueeze(b, -1)), -1) : f(a, b);
}
// f(a, b) with the leading dimensions of both broadcast.
template <class F>
Tensor with_batch(const Tensor& a, const Tensor& b, const F& f) {
  const Shape batch = broadcast(leading(a), leading(b));
  return f(expand_leading(a, batch), expand_leading(b, batch));
}

}  // namespace ops
}  // namespace mixtape
