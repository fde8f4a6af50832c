#pragma once
// What every file here starts from, and what rules and checks of several topics share.

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {

// Throws Error for elements that are not floats: kernels of floats would misread them.
void check_real(const Tensor& t);
// Throws Error if there is such a tensor, and it has another shape.
void check_shape(const Tensor& t, std::string_view what, const Shape& shape);
// Throws Error for a number beside integers that is none: of 0.5 nothing would be left.
void check_number(DType t, double s);
// Throws Error for what no element of that dtype can be.
void check_fits(DType t, double value);
// t in the dtype of sums of its elements; no tensor stays none.
inline Tensor wide(const Tensor& t) { return t ? cast(t, accumulate_dtype(t.dtype())) : t; }
// Row-major; no tensor stays none.
inline Tensor dense(const Tensor& t) { return t ? t.contiguous() : t; }

// What is added, or the least divisor, where t holds it: 1e-8 is 0 in f16.
inline double least_of(DType t, double eps) { return t == f16 ? std::max(eps, 0x1p-24) : eps; }

// The leading dimensions of matrices, all but the last two; and x with others.
Shape leading(const Tensor& x);
Tensor expand_leading(const Tensor& x, Shape to);

// Whether windows of such lengths, steps and sizes can be counted in 64 bits: by sums of products
// of two of these numbers.
inline bool countable(std::initializer_list<int64_t> numbers) {
  return std::ranges::all_of(
      numbers, [](int64_t n) { return 0 <= n && n <= std::numeric_limits<int32_t>::max(); });
}

// Throws Error for more elements than kernels count, which do it in 32 bits, up to eight at a time.
void check_counted(std::string_view what, std::initializer_list<int64_t> sizes);

// What reshape(permute(y, order), ...) made of a y of this shape, back to that shape.
Tensor permute_back(const Tensor& x, const Shape& shape, const Dims& order);
// What remains of a shape without one dimension.
Shape without(const Shape& shape, int dim);
// A shape with another size in one dimension, which may be negative.
inline Shape with_size(const Shape& shape, int dim, int64_t size) {
  Shape other = shape;
  other[dim] = size;
  return other;
}
// [a, n, b] -> [a * b, n], n the size of that dimension.
Tensor rows_along(const Tensor& x, int dim);
// What kernels of rows are given along a dimension, as ops see it: rows [a * b, n], or matrices
// [a, n, b] whose columns are taken where they lie. (A GPU has rows alone.)
Tensor lines_along(const Tensor& x, int dim);
Tensor lines_like(const Tensor& lines, const Tensor& x, int dim);   // in the form of others
Tensor lines_to(const Tensor& lines, const Shape& shape, int dim);  // and back
// As the kernels see them: [..., n].
inline Tensor rows_of(const Tensor& lines) {
  return lines && lines.rank() == 3 ? lines.with_layout(transpose(lines.layout(), 1, 2)) : lines;
}

// Two factors in the wider of their dtypes: in a second backward a gradient may be wider than what
// was saved.
struct Factors {
  Tensor a, b;

  Factors(const Tensor& x, const Tensor& y) : a(cast(x, wider(x, y))), b(cast(y, wider(x, y))) {}
  // The dtype of their product: the wanted one, where the factors leave a choice.
  DType product(DType wanted) const { return is_half(a.dtype()) ? wanted : a.dtype(); }

 private:
  static DType wider(const Tensor& x, const Tensor& y) {
    return is_half(x.dtype()) ? y.dtype() : x.dtype();
  }
};

// The product of two factors, in the wanted dtype where they leave a choice.
Tensor product(const Tensor& a, const Tensor& b, DType wanted);

// Where a gradient goes that is made of dy element by element: over dy, if nobody else sees that.
Tensor in_place_of(const Tensor& dy, DType dtype);

// dy f'(x) of an activation, in x's dtype: from x, or from y for Relu.
Tensor activation_gradient(Activation f, const Tensor& x_or_y, const Tensor& dy);

// What the gradient of an epilogue's activation is made of: the sums, or else the result.
inline bool reads_sums(Activation f) { return f == Activation::Gelu || f == Activation::GeluTanh; }
// Keeps that as number 3, behind x and the weight, and the bias.
inline void save_activated(Ctx& ctx, Activation f, const Tensor& bias, const Tensor& sums,
                           const Tensor& y) {
  if (f == Activation::None) return;
  ctx.save(bias);
  if (reads_sums(f))
    ctx.save_extra(sums);
  else
    ctx.save_result(y);
}
// The gradient of the sums. Those that are kept have no history: to be differentiated again they
// are made `again`.
template <class Again>
Tensor gradient_of_sums(const Ctx& ctx, Activation f, const Tensor& dy, Again again) {
  if (f == Activation::None) return dy;
  return activation_gradient(f, grad_enabled() && reads_sums(f) ? again() : ctx.saved(3), dy);
}

// Dropout by the numbers at one place of the random stream: the same elements at every call.
struct DropoutAt {
  uint64_t seed = 0, offset = 0;
  double p = 0;
};
DropoutAt draw_dropout(double p, int64_t elements);  // checks p, reserves the numbers
Tensor dropout(const Tensor& x, const DropoutAt& at);

// Throws Error unless low <= i < end for all elements of an i64 tensor; on a device late, see
// core/readback.h. `problem` tells what is wrong from the smallest and the largest.
void check_range(const Tensor& index, int64_t low, int64_t end,
                 const std::function<std::string(int64_t, int64_t)>& problem,
                 SourceLocation where = SourceLocation::here());
// Throws Error unless 0 <= p <= 1 for all elements, likewise late on a device.
void check_probabilities(const Tensor& p, bool nan_passes,
                         SourceLocation where = SourceLocation::here());
// As one_hot, but zeros for an index out of range.
Tensor hot(const Tensor& index, int64_t classes, DType dtype);
// As gather and index_select, of indices known to be i64 and in range.
Tensor pick(const Tensor& x, int dim, const Tensor& index);
Tensor pick_slices(const Tensor& x, int dim, const Tensor& index);

// Sums with a chosen result dtype, for rules that want a gradient in f32 from narrow terms.
struct ReduceOptions {
  uint32_t dims = 0;              // bit d: dimension d is reduced
  std::optional<DType> out = {};  // dtype of the result
};
ReduceOptions reduce_options(const Dims& dims, int rank);  // no dims: all
// Keeps reduced dimensions with size 1.
Tensor sum_to(const Tensor& x, const ReduceOptions& options);
// The gradient of input `i`, a bias that was added along these dimensions (bit d: dimension d).
Tensor bias_gradient(const Ctx& ctx, size_t i, const Tensor& dy, uint32_t dims);
// What a loss makes of the losses of single elements.
Tensor reduce_losses(const Tensor& each, Reduction reduction);
// The product of all other elements along dim, for each; exact where some are zero.
Tensor product_of_others(const Tensor& x, int dim);

}  // namespace mixtape
