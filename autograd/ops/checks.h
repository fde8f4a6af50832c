#pragma once
// Checks that several ops share. Each throws Error and names what it got.

#include <algorithm>
#include <limits>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "core/format.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

// A float dtype: kernels of floats would misread other elements.
void check_real(const Tensor& t);
// The given shape, if there is such a tensor.
void check_shape(const Tensor& t, std::string_view what, const Shape& shape);
// A whole number, if it is combined with integers: 0.5 would become 0.
void check_number(DType t, double s);
// A value that an element of that dtype can hold.
void check_fits(DType t, double value);

// True if sums of products of two of these numbers can be counted in 64 bits.
inline bool countable(std::initializer_list<int64_t> numbers) {
  return std::ranges::all_of(
      numbers, [](int64_t n) { return 0 <= n && n <= std::numeric_limits<int32_t>::max(); });
}
// No more elements than kernels can count: 32 bits, up to eight elements at a time.
void check_counted(std::string_view what, std::initializer_list<int64_t> sizes);

// Integers as indices of kernels, i64. Throws Error for other dtypes.
Tensor as_index(const Tensor& t, std::string_view what = "indices");
// low <= i < end for all elements of an i64 tensor; on a device the Error comes late, see
// core/readback.h. `problem` makes the message from an element out of range.
void check_range(const Tensor& index, int64_t low, int64_t end,
                 const std::function<std::string(int64_t)>& problem,
                 SourceLocation where = SourceLocation::here());
// The same for indices of a dimension, which has that size.
void check_index_range(const Tensor& index, int dim, int64_t low, int64_t size);
void check_targets(const Tensor& targets, int64_t classes);
// The same for lengths, up to the longest.
void check_lengths(const Tensor& lengths, std::string_view what, int64_t longest);
// 0 <= p <= 1 for all elements; on a device the Error comes late.
void check_probabilities(const Tensor& p, bool nan_passes,
                         SourceLocation where = SourceLocation::here());

}  // namespace ops
}  // namespace mixtape
