#pragma once
// Checks that several ops share. Each throws Error, with what it got, unless its comment holds.

#include <algorithm>
#include <limits>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "core/format.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

// The dtype is a float: kernels of floats would misread other elements.
void check_real(const Tensor& t);
// The dtype is of numbers, not bool.
void check_numeric(const Tensor& t);
// x is a batch of lines [n, c, l], images or volumes, as its rank of 3, 4 or 5 says. (An input
// without n gets one before.)
void check_batch(const Tensor& x, int rank);
// The tensor, if there is one, has that shape.
void check_shape(const Tensor& t, std::string_view what, const Shape& shape);
// The weight of a linear layer has the dimensions with these names; the second is that of x's
// lines.
void check_weight(const Tensor& x, const Tensor& weight, std::string_view names);
// A number combined with integers is whole: 0.5 would become 0.
void check_number(DType t, double s);
// An element of that dtype can hold the value.
void check_fits(DType t, double value);

// True if sums of products of two of these numbers can be counted in 64 bits.
inline bool countable(std::initializer_list<int64_t> numbers) {
  return std::ranges::all_of(
      numbers, [](int64_t n) { return 0 <= n && n <= std::numeric_limits<int32_t>::max(); });
}
// There are no more elements than kernels can count in 32 bits, up to eight at a time.
void check_counted(std::string_view what, std::initializer_list<int64_t> sizes);

// Integers as indices of kernels, i64. Throws Error for other dtypes.
Tensor as_index(const Tensor& t, std::string_view what = "indices");
// One more than the largest element, if that can be counted. Waits for the device.
int64_t one_past_largest(const Tensor& index);
// low <= i < end for all elements of an i64 tensor. On a device the Error comes later (see
// core/readback.h). `problem` makes the message from an element out of range.
void check_range(const Tensor& index, int64_t low, int64_t end,
                 const std::function<std::string(int64_t)>& problem,
                 SourceLocation where = SourceLocation::here());
// The same for indices of a dimension of that size.
void check_index_range(const Tensor& index, int dim, int64_t low, int64_t size);
void check_targets(const Tensor& targets, int64_t classes);
// The same for lengths, up to the longest.
void check_lengths(const Tensor& lengths, std::string_view what, int64_t longest);
// 0 <= p <= 1 for all elements. On a device the Error comes later.
void check_probabilities(const Tensor& p, bool nan_passes,
                         SourceLocation where = SourceLocation::here());

}  // namespace ops
}  // namespace mixtape
