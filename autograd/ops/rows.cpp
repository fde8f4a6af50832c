// Reshaping for row kernels and batched products, made of views, so that it is recorded.
#include "autograd/ops/rows.h"

namespace mixtape::ops {
using namespace internal;
namespace {

Dims moved_last(int rank, int dim) {
  Dims order;
  for (int d = 0; d < rank; ++d)
    if (d != dim) order.push_back(d);
  order.push_back(dim);
  return order;
}

}  // namespace

Shape leading(const Tensor& x) { return Shape(std::span(x.shape().begin(), size_t(x.rank() - 2))); }
Tensor expand_leading(const Tensor& x, const Shape& to) {
  if (leading(x) == to) return x;  // (A weight stays a leaf, with its cached half copy.)
  return expand(x, joined(to, {x.size(-2), x.size(-1)}));
}

Dims inverse(const Dims& order) {
  std::vector<int> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[wrap_dim(order[i], int(order.size()))] = int(i);
  return back;
}
Tensor permute_back(const Tensor& x, const Shape& shape, const Dims& order) {
  Shape moved = shape;
  for (int d = 0; d < shape.rank; ++d) moved[d] = shape[order[size_t(d)]];
  return permute(reshape(x, moved), inverse(order));
}
Tensor rows_along(const Tensor& x, int dim) {
  const Tensor last = dim == x.rank() - 1 ? x : permute(x, moved_last(x.rank(), dim));
  return reshape(last, {without(x.shape(), dim).size(), x.size(dim)});
}
Tensor lines_along(const Tensor& x, int dim) {
  constexpr int64_t fewest = 16;  // fewer leave vector lanes empty
  int64_t a = 1, b = 1;
  for (int d = 0; d < x.rank(); ++d) (d < dim ? a : b) *= d == dim ? 1 : x.size(d);
  const bool are_rows = permute(x.layout(), moved_last(x.rank(), dim)).is_contiguous();
  if (are_rows || b < fewest || !x.device().is_like_cpu()) return rows_along(x, dim);
  return reshape(x, {a, x.size(dim), b});
}
Tensor lines_like(const Tensor& lines, const Tensor& x, int dim) {
  return lines.rank() == 3 ? reshape(x, lines.shape()) : rows_along(x, dim);
}
Tensor lines_to(const Tensor& lines, const Shape& shape, int dim) {
  if (lines.rank() == 3 || dim == shape.rank - 1) return reshape(lines, shape);
  return permute_back(lines, shape, moved_last(shape.rank, dim));
}

}  // namespace mixtape::ops
