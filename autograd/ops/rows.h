#pragma once
// Conversions to the shapes that kernels take and back: rows along a dimension, broadcast batches
// of matrices.

#include "autograd/ops.h"
#include "core/format.h"
#include "core/inline_vector.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

// Casts t to the dtype in which its elements are summed. An absent tensor stays absent.
inline Tensor wide(const Tensor& t) { return t ? cast(t, accumulate_dtype(t.dtype())) : t; }
// Makes t row-major. An absent tensor stays absent.
inline Tensor dense(const Tensor& t) { return t ? t.contiguous() : t; }

// All dimensions of a batch of matrices but the last two, and x with these dimensions replaced.
Shape leading(const Tensor& x);
Tensor expand_leading(const Tensor& x, const Shape& to);

// The permutation that undoes `order`.
Dims inverse(const Dims& order);
// Undoes reshape(permute(y, order), ...) for a y of this shape.
Tensor permute_back(const Tensor& x, const Shape& shape, const Dims& order);
// A number in x's dtype and on its device, expanded to a shape.
inline Tensor number_like(const Tensor& x, double value, const Shape& shape = {}) {
  return expand(full({}, value, x.dtype(), x.device()), shape);
}
// The order in which image kernels take x: channels last if the channels of a pixel lie side by
// side, as they do in a part of such an image, else row-major.
inline MemoryFormat order_of(const Tensor& x) {
  const internal::Layout& l = x.layout();
  const bool beside = l.rank() == 4 && l.shape[1] > 1 && l.strides[1] == 1 && !l.is_contiguous();
  return beside ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
}
// y, new and row-major, in that order.
inline Tensor in_order(const Tensor& y, MemoryFormat order) {
  return order == MemoryFormat::ChannelsLast ? y.with_layout(internal::channels_last(y.shape()))
                                             : y;
}
// The same in the order of x, if both are images.
inline Tensor in_order_of(const Tensor& x, const Tensor& y) {
  return y.rank() == 4 ? in_order(y, order_of(x)) : y;
}
// A tensor for the result, in that order.
inline Tensor image(const Ctx& ctx, const Shape& shape, MemoryFormat order,
                    std::optional<DType> dtype = {}) {
  return in_order(ctx.output(shape, dtype.value_or(ctx.dtype())), order);
}

// Like wrap_dim(), but a 0-d tensor has one line, of one element, along dimension 0 or -1.
inline int wrap_line(int dim, int rank) {
  return rank == 0 && (dim == 0 || dim == -1) ? 0 : wrap_dim(dim, rank);
}
inline Tensor as_line(const Tensor& x) { return x.rank() == 0 ? reshape(x, {1}) : x; }
// A line [n], or a number, along dimension dim of `rank`: [1, ..., n, ..., 1].
inline Tensor laid_along(const Tensor& line, int dim, int rank) {
  Shape shape;
  for (int d = 0; d < rank; ++d) shape.push_back(d == dim ? line.numel() : 1);
  return reshape(line, shape);
}
// f(x, dim) for a dimension counted from the front, with 0-d results for a 0-d x.
template <class F>
auto along_line(const Tensor& x, int dim, F f) {
  const int d = wrap_line(dim, x.rank());
  const auto y = f(as_line(x), d);
  const auto like_x = [&](const Tensor& t) { return x.rank() == 0 ? reshape(t, {}) : t; };
  if constexpr (requires { y.values; })
    return Sorted{like_x(y.values), like_x(y.indices)};
  else
    return like_x(y);
}

// [a, n, b] -> [a * b, n], where n is the size of that dimension.
Tensor rows_along(const Tensor& x, int dim);
// x as row kernels along a dimension take it: rows [a * b, n], or matrices [a, n, b] whose columns
// are read in place. (On a GPU always rows.)
Tensor lines_along(const Tensor& x, int dim);
Tensor lines_like(const Tensor& lines, const Tensor& x, int dim);   // x in the form of `lines`
Tensor lines_to(const Tensor& lines, const Shape& shape, int dim);  // and back
// The same lines as kernels see them: [..., n].
inline Tensor rows_of(const Tensor& lines) {
  return lines && lines.rank() == 3 ? lines.with_layout(transpose(lines.layout(), 1, 2)) : lines;
}

// one_hot without its check: a row of zeros for an index out of range.
Tensor one_hot_or_zeros(const Tensor& index, int64_t classes, DType dtype);
// gather and index_select without their checks, for i64 indices that are known to be in range.
Tensor gather_unchecked(const Tensor& x, int dim, const Tensor& index);
Tensor index_select_unchecked(const Tensor& x, int dim, const Tensor& index);
// Checks an index per element: it has x's rank and is no larger than x except in `dim`.
// slice_index() checks one per slice. Both check the range.
Tensor element_index(const Tensor& x, int dim, const Tensor& given);
Tensor slice_index(const Tensor& x, int dim, const Tensor& given);
// The index [k] expanded to a shape with k elements in dimension dim.
Tensor for_all_lines(const Tensor& index, int dim, const Shape& shape);
// The first elements of x in each dimension, cut to this shape.
Tensor corner(Tensor x, const Shape& shape);
// scatter and scatter_add without their checks. The source has the index's shape.
Tensor scatter_unchecked(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
Tensor scatter_add_unchecked(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
// x with slices `index` [k] along dim replaced by those of source, or with them added.
Tensor index_put_unchecked(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                           bool accumulate = false);
// The same in place, without recording; source has x's dtype.
void write_slices(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

// Basic indexing: slices, single elements and new dimensions, applied one after the other.
struct BasicIndex {
  static constexpr OpInfo view{"slice"}, place{"place_slice"};
  enum class Kind : uint8_t { Slice, Select, Unsqueeze };
  struct Step {
    Kind kind;
    int dim;
    int64_t start = 0, stop = 0, step = 1;
  };
  InlineVector<Step, 2> steps;

  internal::Layout of(internal::Layout x) const;
};
Tensor basic_index(const Tensor& x, const BasicIndex& index);
// x with that part replaced by values, which have the part's shape and x's dtype. Written to x
// itself if nothing else needs the old value.
Tensor replace_part(const Tensor& x, const Tensor& values, const BasicIndex& index, bool in_place);

}  // namespace ops
}  // namespace mixtape
