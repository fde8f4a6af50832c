#pragma once
// Every op, with the names and semantics of NumPy and PyTorch. Binary ops broadcast their operands.
// Dimensions may be negative; where a result keeps or drops one, a 0-d tensor has dimension 0 (or
// -1). Arguments that do not fit each other throw Error.

#include <array>
#include <concepts>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/tape.h"
#include "core/index.h"
#include "core/random.h"
#include "kernels/common/epilogue.h"

namespace mixtape {

// A bool for each element. `if (eq(a, b))` does not compile; write `if (all(eq(a, b)).item())`.
struct BoolTensor : Tensor {
  explicit BoolTensor(Tensor t) : Tensor(std::move(t)) {}
  BoolTensor(const BoolTensor&) = default;
  BoolTensor(BoolTensor&&) = default;
  BoolTensor& operator=(const BoolTensor&) & = default;  // (x > 0) = y would change a temporary
  BoolTensor& operator=(BoolTensor&&) & = default;
  explicit operator bool() const = delete;
};

// --- creation (not differentiable) ---
Tensor empty(const Shape& shape, DType dtype = f32,
             Device device = DefaultDevice::current());  // uninitialised
Tensor full(const Shape& shape, double value, DType dtype = f32,
            Device device = DefaultDevice::current());
Tensor zeros(const Shape& shape, DType dtype = f32, Device device = DefaultDevice::current());
Tensor ones(const Shape& shape, DType dtype = f32, Device device = DefaultDevice::current());
// Sizes as arguments: zeros(2, 3), f32 on the default device.
Tensor empty(std::integral auto size, std::integral auto... more) {
  return empty(Shape{int64_t(size), int64_t(more)...});
}
Tensor zeros(std::integral auto size, std::integral auto... more) {
  return zeros(Shape{int64_t(size), int64_t(more)...});
}
Tensor ones(std::integral auto size, std::integral auto... more) {
  return ones(Shape{int64_t(size), int64_t(more)...});
}
Tensor arange(double start, double stop, double step = 1, DType dtype = i64,
              Device device = DefaultDevice::current());  // a step of 0.1 needs a float dtype
Tensor arange(double stop, DType dtype = i64,
              Device device = DefaultDevice::current());  // from 0
inline Tensor arange(double start, double stop, DType dtype,
                     Device device = DefaultDevice::current()) {  // in steps of 1
  return arange(start, stop, 1, dtype, device);
}
Tensor linspace(double start, double stop, int64_t n, DType dtype = f32,
                Device device = DefaultDevice::current());  // n numbers, both ends included
// The base to the power of linspace(start, stop, n).
Tensor logspace(double start, double stop, int64_t n, double base = 10, DType dtype = f32,
                Device device = DefaultDevice::current());
Tensor eye(int64_t n, DType dtype = f32, Device device = DefaultDevice::current());  // identity
Tensor eye(int64_t rows, int64_t columns, DType dtype = f32,
           Device device = DefaultDevice::current());  // ones on the diagonal, zeros elsewhere
// x's shape and device and, unless one is given, its dtype. empty_like() also keeps the order of
// its memory: row-major or channels last.
Tensor empty_like(const Tensor& x, std::optional<DType> dtype = {});
Tensor zeros_like(const Tensor& x, std::optional<DType> dtype = {});
Tensor ones_like(const Tensor& x, std::optional<DType> dtype = {});
Tensor full_like(const Tensor& x, double value, std::optional<DType> dtype = {});
Tensor rand_like(const Tensor& x, std::optional<DType> dtype = {});
Tensor randn_like(const Tensor& x, std::optional<DType> dtype = {});
// A copy of shape.size() elements in row-major order, in T's dtype, on the default device. Integer
// types without a dtype become i32 if that holds all their values, else i64; throws Error if a
// value is too large.
template <detail::Number T>
Tensor from_data(const T* data, const Shape& shape);
template <detail::Number T>
Tensor from_data(const std::vector<T>& data) {  // 1-d
  return from_data(data.data(), {static_cast<int64_t>(data.size())});
}
Tensor from_data(const std::vector<bool>& data);
Tensor rand(const Shape& shape, DType dtype = f32,
            Device device = DefaultDevice::current());  // [0, 1), in steps of 2^-24 or coarser
// Sizes as arguments: rand(2, 3).
Tensor rand(std::integral auto size, std::integral auto... more) {
  return rand(Shape{int64_t(size), int64_t(more)...});
}
Tensor uniform(const Shape& shape, double low, double high, DType dtype = f32,
               Device device = DefaultDevice::current());  // between low and high
Tensor randn(const Shape& shape, DType dtype = f32,
             Device device = DefaultDevice::current());  // mean 0, standard deviation 1
// Sizes as arguments: randn(2, 3).
Tensor randn(std::integral auto size, std::integral auto... more) {
  return randn(Shape{int64_t(size), int64_t(more)...});
}
Tensor normal(const Shape& shape, double mean, double std, DType dtype = f32,
              Device device = DefaultDevice::current());  // of that mean and deviation
Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype = i64,
               Device device = DefaultDevice::current());  // whole numbers in [low, high)
inline Tensor randint(int64_t high, const Shape& shape, DType dtype = i64,
                      Device device = DefaultDevice::current()) {
  return randint(0, high, shape, dtype, device);
}
Tensor randperm(int64_t n, Device device = DefaultDevice::current());  // i64: 0..n-1, shuffled
// Draws n classes with probabilities in proportion to the weights: [..., classes] -> i64 [..., n],
// all different unless with replacement. Waits for the device. For logits use models::sample.
Tensor multinomial(const Tensor& weights, int64_t n, bool replacement = false);
// 1 with probability p, else 0, in p's dtype. Throws Error (on a device later) unless 0 <= p <= 1.
Tensor bernoulli(const Tensor& p);
// Counts of events of which `rate` are expected (Poisson's distribution), in the rate's dtype:
// drawn on the CPU. Throws Error unless rates are from 0 to 2^31.
Tensor poisson(const Tensor& rate);
// [...] -> [..., classes]; -1: as many as the largest index needs, which waits for the device.
Tensor one_hot(const Tensor& index, int64_t classes = -1, DType dtype = f32);
// The rows and columns of the lower or upper triangle of a matrix, on and beside that diagonal, in
// row-major order: i64 [2, n].
Tensor tril_indices(int64_t rows, int64_t columns, int64_t diagonal = 0,
                    Device device = DefaultDevice::current());
Tensor triu_indices(int64_t rows, int64_t columns, int64_t diagonal = 0,
                    Device device = DefaultDevice::current());

// --- dtype and device ---
Tensor cast(const Tensor& x, DType to);  // x itself if it has that dtype
Tensor clone(const Tensor& x);           // a row-major copy
Tensor contiguous(const Tensor& x);      // x itself if it is row-major
// x in that order of memory, itself if it is already. ChannelsLast needs a rank of at least 3.
Tensor contiguous(const Tensor& x, MemoryFormat format);
Tensor detach(const Tensor& x);  // the same data without history

// --- views: share storage with x wherever its strides allow ---
Tensor reshape(const Tensor& x, const Shape& shape);  // one size may be -1
Tensor view(const Tensor& x, const Shape& shape);     // reshape; throws Error if it would copy
Tensor flatten(const Tensor& x, int from = 0, int to = -1);
Tensor unflatten(const Tensor& x, int dim, const Shape& sizes);  // dim split; one size may be -1
Tensor transpose(const Tensor& x, int a = -2, int b = -1);
Tensor permute(const Tensor& x, const Dims& order);
Tensor movedim(const Tensor& x, const Dims& from, const Dims& to);  // the others keep their order
Tensor squeeze(const Tensor& x, const Dims& dims = {});  // drops those dims that have size 1
Tensor unsqueeze(const Tensor& x, int dim);
// Broadcasts x to the shape; -1 keeps a dimension's size.
Tensor expand(const Tensor& x, const Shape& shape);
// x[start:stop:step]; without `stop`, to the end: to the beginning with a negative step.
Tensor slice(const Tensor& x, int dim, int64_t start,
             int64_t stop = std::numeric_limits<int64_t>::max(), int64_t step = 1);
Tensor slice_scatter(const Tensor& x, const Tensor& source, int dim, int64_t start,
                     int64_t stop = std::numeric_limits<int64_t>::max(),
                     int64_t step = 1);  // x with that slice replaced
Tensor narrow(const Tensor& x, int dim, int64_t start,
              int64_t length);  // x[start:start + length], within x; start may be negative
Tensor select(const Tensor& x, int dim, int64_t index);  // drops dim
std::vector<Tensor> split(const Tensor& x, int64_t size,
                          int dim = 0);  // pieces of `size`; the last may be smaller
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim = 0);
std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int dim = 0);
// Parts of nearly equal sizes, the larger ones first; or those that end before each index, and the
// rest, where indices are as in slice().
std::vector<Tensor> tensor_split(const Tensor& x, int64_t parts, int dim = 0);
std::vector<Tensor> tensor_split(const Tensor& x, const std::vector<int64_t>& indices, int dim = 0);
inline std::vector<Tensor> tensor_split(const Tensor& x, std::initializer_list<int64_t> indices,
                                        int dim = 0) {  // {3} is an index, too
  return tensor_split(x, std::vector<int64_t>(indices), dim);
}
std::vector<Tensor> unbind(const Tensor& x, int dim = 0);  // a select for each index of dim
namespace detail {
void unpack(const std::vector<Tensor>& list, std::span<Tensor> parts);
}  // namespace detail
// The N tensors of a list, by name: const auto [q, k, v] = unpack<3>(x.chunk(3, -1)). Throws Error
// unless there are N.
template <size_t N>
std::array<Tensor, N> unpack(const std::vector<Tensor>& list) {
  std::array<Tensor, N> parts;
  detail::unpack(list, parts);
  return parts;
}
struct SplitHeadsOptions {
  int64_t parts = 3;        // queries, keys and values
  bool batch_first = true;  // false: x is [t, b, ...]
};
// Queries, keys and values made by one product: x [b, t, parts heads d] -> `parts` views of x,
// [b, heads, t, d] each.
std::vector<Tensor> split_heads(const Tensor& x, int64_t heads,
                                const SplitHeadsOptions& options = {});
// The coordinates of all points of a grid, from axes of n, m, ... numbers: [n, m, ...] each. With
// "xy", as for images, the first axis runs along columns: [m, n, ...].
std::vector<Tensor> meshgrid(const std::vector<Tensor>& axes, std::string_view indexing = "ij");
// All of them expanded to one shape, by NumPy's rule.
std::vector<Tensor> broadcast_tensors(const std::vector<Tensor>& tensors);
// x with sizes of 1 added to at least that many dimensions: [n] becomes [1, n] or [1, n, 1], and
// [m, n] becomes [m, n, 1].
Tensor atleast_1d(const Tensor& x);
Tensor atleast_2d(const Tensor& x);
Tensor atleast_3d(const Tensor& x);
// Windows of `size` elements that start `step` apart: [..., n, ...] -> [..., windows, ..., size].
Tensor unfold(const Tensor& x, int dim, int64_t size, int64_t step);
// Replaces dimensions a and b by a last one: i of a and i + offset of b.
Tensor diagonal(const Tensor& x, int64_t offset = 0, int a = 0, int b = 1);

// --- rearranging: copies ---
Tensor flip(const Tensor& x, const Dims& dims);  // no dims: all of them, as in NumPy
// Turned `times` times by 90 degrees, from the first of two dimensions towards the second.
Tensor rot90(const Tensor& x, int64_t times = 1, const Dims& dims = {0, 1});
Tensor roll(const Tensor& x, int64_t shift, int dim);  // wraps around
Tensor roll(const Tensor& x, const Shape& shifts, const Dims& dims);
Tensor roll(const Tensor& x, int64_t shift);         // in row-major order
Tensor repeat(const Tensor& x, const Shape& times);  // tiles: [2] of [3] -> [6]
// Repeats each slice of dim `times` times, or slice i times[i] times, for integers [n], or [] for
// all (which wait for their device). Without dim, repeats the elements in row-major order: 1-d.
Tensor repeat_interleave(const Tensor& x, int64_t times, int dim);
Tensor repeat_interleave(const Tensor& x, int64_t times);
Tensor repeat_interleave(const Tensor& x, const Tensor& times, int dim);
Tensor repeat_interleave(const Tensor& x, const Tensor& times);
Tensor diag(const Tensor& x, int64_t offset = 0);  // [n] -> a diagonal matrix, or back
Tensor diag_embed(const Tensor& x, int64_t offset = 0, int a = -2,
                  int b = -1);                       // undoes diagonal() of a and b
Tensor trace(const Tensor& x);                       // of a matrix
Tensor tril(const Tensor& x, int64_t diagonal = 0);  // zeros above the diagonal
Tensor triu(const Tensor& x, int64_t diagonal = 0);  // zeros below it
enum class PadMode { Constant, Reflect, Replicate, Circular };
// Sizes are {left, right} of the last dimension, then of the one before, ...; negative sizes crop.
// Reflect repeats up to n - 1 elements, without the edge; Circular up to n from the other end.
Tensor pad(const Tensor& x, const std::vector<int64_t>& sizes, PadMode mode = PadMode::Constant,
           double value = 0);

// --- joining ---
// Parts of shape [0] join tensors of any rank, so that a list can grow from zeros({0}).
Tensor cat(const std::vector<Tensor>& parts, int dim = 0);
Tensor concat(const std::vector<Tensor>& parts, int dim = 0);  // as cat
Tensor stack(const std::vector<Tensor>& parts, int dim = 0);
Tensor vstack(const std::vector<Tensor>& parts);  // cat of rows: a 1-d or 0-d tensor is one
Tensor hstack(const std::vector<Tensor>& parts);  // cat along dimension 1, or 0 of vectors, numbers
Tensor dstack(const std::vector<Tensor>& parts);  // cat of atleast_3d() along dimension 2
Tensor column_stack(const std::vector<Tensor>& parts);  // hstack: a 1-d or 0-d tensor is a column
// The matrices along a diagonal, zeros beside them; a 1-d or 0-d tensor is one row.
Tensor block_diag(const std::vector<Tensor>& parts);
// All combinations of an element of each part: [n], [m], ... -> [n m ..., parts]; [n] of one part.
Tensor cartesian_prod(const std::vector<Tensor>& parts);
// Sequences [t, ...] padded with value to the longest -> [longest, n, ...] or [n, longest, ...].
Tensor pad_sequence(const std::vector<Tensor>& parts, bool batch_first = false, double value = 0);

// --- indexing: indices are integers; negative ones count from the end where stated ---
// See core/index.h for x(Slice(1, 3), 0), x[i] = v and the rest of NumPy's indexing.
Tensor index_select(const Tensor& x, int dim, const Tensor& index);  // index [k]; dim becomes k
// y[i][j][k] = x[index[i][j][k]][j][k] for dim 0; in other dimensions index is at most x's size.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
// x with x[index[i][j][k]][j][k] (for dim 0) replaced by source[i][j][k], or with it added. If an
// element is replaced several times, the last source in row-major order wins.
Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
Tensor scatter(const Tensor& x, int dim, const Tensor& index, double value);
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
Tensor index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
enum class ScatterMode { Sum, Prod, Mean, Amax, Amin };
struct ScatterReduceOptions {
  bool include_self = true;  // the element of x counts, too
};
// scatter() that adds up, multiplies, ... the sources of one element instead of keeping the last.
// Ties share the gradient of an extremum; NaN wins.
Tensor scatter_reduce(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                      ScatterMode mode, const ScatterReduceOptions& options = {});
// The same by PyTorch's names: "sum", "prod", "mean", "amax" or "amin".
Tensor scatter_reduce(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                      std::string_view mode, const ScatterReduceOptions& options = {});
// x with slices `index` [k] of dim replaced by a number, or by the slices of source.
Tensor index_fill(const Tensor& x, int dim, const Tensor& index, double value);
Tensor index_copy(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
// gather() whose operands broadcast in the other dimensions, as np.take_along_axis: for the results
// of argsort() and argmax(). Without dim, gathers from the flattened tensors.
Tensor take_along_dim(const Tensor& x, const Tensor& index, int dim);
Tensor take_along_dim(const Tensor& x, const Tensor& index);
// The elements at these places of the flattened x, in the index's shape; -1 is the last one.
Tensor take(const Tensor& x, const Tensor& index);
// x with the elements where mask is true replaced by those of source, in row-major order. source
// has at least as many; x and mask broadcast.
Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source);
// x[i, j, ...]: integer index tensors (not u8) for the first dimensions, broadcast together, or
// bool masks over them, which wait for the device. Negative indices count from the end.
Tensor index(const Tensor& x, const std::vector<Tensor>& indices);
// x with those elements replaced by values (broadcast), or with them added.
Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values,
                 bool accumulate = false);
Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, double value,
                 bool accumulate = false);
Tensor masked_select(const Tensor& x, const Tensor& mask);  // 1-d; waits for the device
Tensor nonzero(const Tensor& x);  // i64 [count, rank]; waits for the device
inline Tensor argwhere(const Tensor& x) { return nonzero(x); }  // as nonzero
// The index in each dimension of a tensor of that shape, for positions in row-major order, as
// argmax(x) gives: i64 of the positions' shape.
std::vector<Tensor> unravel_index(const Tensor& positions, const Shape& shape);

// --- order ---
struct Sorted {
  Tensor values, indices;
};
// Stable; NaN counts as largest.
Sorted sort(const Tensor& x, int dim = -1, bool descending = false);
Tensor argsort(const Tensor& x, int dim = -1, bool descending = false);
Sorted sort(const Tensor& x, bool) = delete;  // the dimension comes first
Tensor argsort(const Tensor& x, bool) = delete;
// The k largest, or smallest, best first; equal elements in the order of x.
Sorted topk(const Tensor& x, int64_t k, int dim = -1, bool largest = true);
// The k-th smallest element, k from 1; NaN counts as largest.
Sorted kthvalue(const Tensor& x, int64_t k, int dim = -1, bool keepdim = false);
// The most frequent element (of several, the smallest) and the position of its last occurrence.
Sorted mode(const Tensor& x, int dim = -1, bool keepdim = false);
// The middle element, the lower of two for an even number; NaN if there is one.
Sorted median(const Tensor& x, int dim, bool keepdim = false);
Tensor median(const Tensor& x);  // of all; ties share the gradient; NaN if there are no elements
Sorted median(const Tensor& x, bool) = delete;  // the dimension comes first
// The q-quantile; NaN if there is one. Between two elements it is interpolated, "linear", or it is
// the "lower", "higher" or "nearest" one, or their "midpoint".
Tensor quantile(const Tensor& x, double q, int dim, bool keepdim = false,
                std::string_view interpolation = "linear");
Tensor quantile(const Tensor& x, double q,
                std::string_view interpolation = "linear");  // of all elements
// The same of each q [k] -> [k, ...]. Reads q, which waits for its device.
Tensor quantile(const Tensor& x, const Tensor& q, int dim, bool keepdim = false,
                std::string_view interpolation = "linear");
Tensor quantile(const Tensor& x, const Tensor& q, std::string_view interpolation = "linear");
// The same of the elements that are not NaN; NaN if there is none. nanmedian(x) waits for the
// device.
Sorted nanmedian(const Tensor& x, int dim, bool keepdim = false);
Tensor nanmedian(const Tensor& x);
Sorted nanmedian(const Tensor& x, bool) = delete;  // the dimension comes first
Tensor nanquantile(const Tensor& x, double q, int dim, bool keepdim = false,
                   std::string_view interpolation = "linear");
Tensor nanquantile(const Tensor& x, double q, std::string_view interpolation = "linear");
Tensor nanquantile(const Tensor& x, const Tensor& q, int dim, bool keepdim = false,
                   std::string_view interpolation = "linear");
Tensor nanquantile(const Tensor& x, const Tensor& q, std::string_view interpolation = "linear");
// True for each element that is in `among`, of the same dtype; with invert, for each that is not.
BoolTensor isin(const Tensor& elements, const Tensor& among, bool invert = false);
// Counts the elements in each of `bins` equal parts of [low, high], in x's dtype. If low equals
// high, the range is that of x, which must be finite (waits for the device). Not differentiable.
Tensor histc(const Tensor& x, int64_t bins = 100, double low = 0, double high = 0);
struct Unique {
  Tensor values, inverse, counts;
};
// The distinct elements, sorted; for each element of x its index among them, i64 of x's shape; and
// how often each occurs. NaNs are distinct. Waits for the device. Not differentiable.
Unique unique(const Tensor& x);
// The same of the slices of a dimension, sorted by their first element, then the second, ... ->
// values [..., k, ...], inverse i64 [n], counts i64 [k].
Unique unique(const Tensor& x, int dim);
Unique unique_consecutive(const Tensor& x);  // in the order of x, of which equal neighbours are one
Unique unique_consecutive(const Tensor& x, int dim);
// The number of times that 0, 1, ... occur in x, i64 [n] with n at least `least`; with weights,
// their sum for each number (i64 for integers). Waits for the device.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, int64_t least = 0);
// The index at which each value would be inserted into sorted numbers [n], or each of values
// [..., m] into numbers [..., n]: before equal numbers, or after them if `right`. i64 of the
// values' shape; values and numbers must agree in dtype.
Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right = false);
inline Tensor bucketize(const Tensor& values, const Tensor& bounds, bool right = false) {
  return searchsorted(bounds, values, right);
}
struct SearchsortedOptions {
  bool right = false;
};
// The same by name: searchsorted(sorted, values, {.right = true}).
inline Tensor searchsorted(const Tensor& sorted, const Tensor& values,
                           const SearchsortedOptions& options) {
  return searchsorted(sorted, values, options.right);
}

// --- arithmetic: bools count as 0 and 1 of the other operand's dtype, of f32 beside a number ---
// The sum and the maximum of two bool tensors are their or, the product and minimum their and.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);  // integers give f32
Tensor pow(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  // ties share the gradient; NaN wins
inline Tensor max(const Tensor& a, const std::convertible_to<Tensor> auto& b) {
  return maximum(a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b);
inline Tensor min(const Tensor& a, const std::convertible_to<Tensor> auto& b) {
  return minimum(a, b);
}
Tensor fmax(const Tensor& a, const Tensor& b);  // maximum(), but NaN loses; of ties, a
Tensor fmin(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, const Tensor& b);     // sign of b, as Python's %; integers % 0: 0
Tensor fmod(const Tensor& a, const Tensor& b);          // sign of a, as C's %; integers % 0: 0
Tensor copysign(const Tensor& a, const Tensor& b);      // |a| with the sign of b; integers give f32
Tensor logaddexp(const Tensor& a, const Tensor& b);     // log(exp(a) + exp(b))
Tensor logaddexp2(const Tensor& a, const Tensor& b);    // log2(2^a + 2^b)
Tensor xlogy(const Tensor& a, const Tensor& b);         // a log(b); 0 where a is, unless b is NaN
Tensor atan2(const Tensor& a, const Tensor& b);         // the angle of (b, a)
Tensor hypot(const Tensor& a, const Tensor& b);         // sqrt(a^2 + b^2); gradient 0 at (0, 0)
Tensor floor_divide(const Tensor& a, const Tensor& b);  // floor(a / b); integers by 0: 0
Tensor add(const Tensor& a, double b);
Tensor sub(const Tensor& a, double b);
Tensor mul(const Tensor& a, double b);
Tensor div(const Tensor& a, double b);
Tensor floor_divide(const Tensor& a, double b);  // floor(a / b), exact
Tensor pow(const Tensor& a, double b);
Tensor remainder(const Tensor& a, double b);
Tensor fmod(const Tensor& a, double b);
Tensor copysign(const Tensor& a, double b);
Tensor xlogy(const Tensor& a, double b);
Tensor xlogy(double a, const Tensor& b);
Tensor sub(double a, const Tensor& b);
Tensor div(double a, const Tensor& b);
Tensor pow(double a, const Tensor& b);
// a / b rounded down ("floor", floor_divide()) or toward zero ("trunc"), exactly; integers by 0: 0.
Tensor div(const Tensor& a, const Tensor& b, std::string_view rounding_mode);
Tensor div(const Tensor& a, double b, std::string_view rounding_mode);
// min(max(x, low), high). The gradient is 1 from low to high, both included; NaN stays.
Tensor clamp(const Tensor& x, std::optional<double> low, std::optional<double> high = {});
// Each bound is a tensor that broadcasts, or absent; the gradient goes to the operand that was
// taken.
Tensor clamp(const Tensor& x, const Tensor& low, const Tensor& high = {});
Tensor lerp(const Tensor& a, const Tensor& b, double weight);  // a + weight (b - a)
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b,
               double value = 1);  // x + value a b
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b,
               double value = 1);  // x + value a / b
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor expm1(const Tensor& x);
Tensor log(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor log2(const Tensor& x);
Tensor log10(const Tensor& x);
Tensor exp2(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tan(const Tensor& x);
Tensor asin(const Tensor& x);
Tensor acos(const Tensor& x);
Tensor atan(const Tensor& x);
Tensor sinh(const Tensor& x);
Tensor cosh(const Tensor& x);
Tensor asinh(const Tensor& x);
Tensor acosh(const Tensor& x);
Tensor atanh(const Tensor& x);
Tensor erf(const Tensor& x);
Tensor erfc(const Tensor& x);     // 1 - erf(x), however small
Tensor erfinv(const Tensor& x);   // the inverse of erf
Tensor lgamma(const Tensor& x);   // log |gamma(x)|
Tensor digamma(const Tensor& x);  // the derivative of lgamma
Tensor i0(const Tensor& x);       // the modified Bessel function of order 0
Tensor sign(const Tensor& x);     // 0 for NaN; gradient 0, as for the next four
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
Tensor round(const Tensor& x);                // ties to even
Tensor round(const Tensor& x, int decimals);  // to digits after the point, or if negative before it
Tensor trunc(const Tensor& x);                // toward zero
Tensor frac(const Tensor& x);                 // x - trunc(x); gradient 1
Tensor sinc(const Tensor& x);                 // sin(pi x) / (pi x), 1 at 0
Tensor deg2rad(const Tensor& x);              // integers give f32
Tensor rad2deg(const Tensor& x);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return div(a, b); }
inline Tensor operator+(double a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(double a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(double a, const Tensor& b) { return div(a, b); }
inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
inline Tensor operator%(const Tensor& a, double b) { return remainder(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

// --- bits of integers: on bools these are the logical ops ---
Tensor bitwise_and(const Tensor& a, const Tensor& b);
Tensor bitwise_or(const Tensor& a, const Tensor& b);
Tensor bitwise_xor(const Tensor& a, const Tensor& b);
Tensor bitwise_not(const Tensor& x);
// A negative shift, or one by all bits or more, shifts every bit out.
Tensor bitwise_left_shift(const Tensor& a, const Tensor& b);
Tensor bitwise_right_shift(const Tensor& a, const Tensor& b);  // keeps the sign
Tensor bitwise_and(const Tensor& a, double b);
Tensor bitwise_or(const Tensor& a, double b);
Tensor bitwise_xor(const Tensor& a, double b);
Tensor bitwise_left_shift(const Tensor& a, double b);
Tensor bitwise_right_shift(const Tensor& a, double b);
Tensor gcd(const Tensor& a, const Tensor& b);  // the greatest common divisor, >= 0; of zeros 0
Tensor lcm(const Tensor& a, const Tensor& b);  // the least common multiple, >= 0; 0 beside 0

// --- comparison: bool ---
BoolTensor eq(const Tensor& a, const Tensor& b);
BoolTensor ne(const Tensor& a, const Tensor& b);
BoolTensor lt(const Tensor& a, const Tensor& b);
BoolTensor le(const Tensor& a, const Tensor& b);
BoolTensor gt(const Tensor& a, const Tensor& b);
BoolTensor ge(const Tensor& a, const Tensor& b);
BoolTensor eq(const Tensor& a, double b);
BoolTensor ne(const Tensor& a, double b);
BoolTensor lt(const Tensor& a, double b);
BoolTensor le(const Tensor& a, double b);
BoolTensor gt(const Tensor& a, double b);
BoolTensor ge(const Tensor& a, double b);

inline BoolTensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline BoolTensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline BoolTensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline BoolTensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline BoolTensor operator<(const Tensor& a, double b) { return lt(a, b); }
inline BoolTensor operator<=(const Tensor& a, double b) { return le(a, b); }
inline BoolTensor operator>(const Tensor& a, double b) { return gt(a, b); }
inline BoolTensor operator>=(const Tensor& a, double b) { return ge(a, b); }
inline BoolTensor operator<(double a, const Tensor& b) { return b > a; }
inline BoolTensor operator<=(double a, const Tensor& b) { return b >= a; }
inline BoolTensor operator>(double a, const Tensor& b) { return b < a; }
inline BoolTensor operator>=(double a, const Tensor& b) { return b <= a; }

bool operator==(const Tensor& a, const Tensor& b) = delete;  // eq(a, b), or equal(a, b) of all
bool operator==(const Tensor& a, double b) = delete;         // eq(a, b); for a != b, ne(a, b)

BoolTensor logical_and(const Tensor& a, const Tensor& b);
BoolTensor logical_or(const Tensor& a, const Tensor& b);
BoolTensor logical_xor(const Tensor& a, const Tensor& b);
BoolTensor logical_not(const Tensor& x);

inline BoolTensor operator&(const BoolTensor& a, const BoolTensor& b) { return logical_and(a, b); }
inline BoolTensor operator|(const BoolTensor& a, const BoolTensor& b) { return logical_or(a, b); }
inline BoolTensor operator^(const BoolTensor& a, const BoolTensor& b) { return logical_xor(a, b); }
inline BoolTensor operator~(const BoolTensor& x) { return logical_not(x); }
inline Tensor operator&(const Tensor& a, const Tensor& b) { return bitwise_and(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return bitwise_or(a, b); }
inline Tensor operator^(const Tensor& a, const Tensor& b) { return bitwise_xor(a, b); }
inline Tensor operator~(const Tensor& x) { return bitwise_not(x); }
// m & true is of bools, m & 3 of i64.
inline BoolTensor operator&(const BoolTensor& a, std::same_as<bool> auto b) {
  return logical_and(a, full({}, b, boolean, a.device()));
}
inline BoolTensor operator|(const BoolTensor& a, std::same_as<bool> auto b) {
  return logical_or(a, full({}, b, boolean, a.device()));
}
inline BoolTensor operator^(const BoolTensor& a, std::same_as<bool> auto b) {
  return logical_xor(a, full({}, b, boolean, a.device()));
}
inline Tensor operator&(const Tensor& a, std::integral auto b) { return bitwise_and(a, double(b)); }
inline Tensor operator|(const Tensor& a, std::integral auto b) { return bitwise_or(a, double(b)); }
inline Tensor operator^(const Tensor& a, std::integral auto b) { return bitwise_xor(a, double(b)); }

BoolTensor isnan(const Tensor& x);
BoolTensor isinf(const Tensor& x);
BoolTensor isfinite(const Tensor& x);
// |a - b| <= atol + rtol |b|, in f64; an infinity is close only to itself, NaN to nothing or, if
// `equal_nan`, to NaN.
BoolTensor isclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
                   bool equal_nan = false);
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);
bool equal(const Tensor& a, const Tensor& b);  // same dtype, shape and elements
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
// The number takes the tensor's dtype; beside integers it must be whole.
Tensor where(const Tensor& condition, const Tensor& a, double b);
Tensor where(const Tensor& condition, double a, const Tensor& b);
Tensor where(const Tensor& condition, double a, double b);  // f32
std::vector<Tensor> where(const Tensor& mask) = delete;     // nonzero(mask).unbind(1)
// x with value where mask is true; a finite value outside the range of x's dtype saturates.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);
// x with NaN and infinities replaced; +-inf by default by the largest number of x's dtype.
Tensor nan_to_num(const Tensor& x, double nan = 0, std::optional<double> inf = {},
                  std::optional<double> minus_inf = {});

// --- activations ---
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x);                                // x * Phi(x), exact
Tensor gelu_tanh(const Tensor& x);                           // GPT-2's approximation
Tensor gelu(const Tensor& x, std::string_view approximate);  // "none" or "tanh"
Tensor silu(const Tensor& x);                                // x * sigmoid(x)
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor softplus(const Tensor& x);  // log(1 + exp(x))
Tensor softplus(const Tensor& x, double beta,
                double threshold = 20);  // softplus(beta x) / beta; x above threshold / beta
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
Tensor elu(const Tensor& x, double alpha = 1);  // alpha (exp(x) - 1) below zero
Tensor selu(const Tensor& x);
Tensor relu6(const Tensor& x);                          // clamp(x, 0, 6)
Tensor hardsigmoid(const Tensor& x);                    // clamp(x / 6 + 1 / 2, 0, 1)
Tensor hardswish(const Tensor& x);                      // x * hardsigmoid(x)
Tensor mish(const Tensor& x);                           // x * tanh(softplus(x))
Tensor celu(const Tensor& x, double alpha = 1);         // elu(x / alpha) * alpha
Tensor softshrink(const Tensor& x, double size = 0.5);  // moved towards 0 by size, at most to 0
Tensor hardshrink(const Tensor& x, double size = 0.5);  // 0 where |x| <= size
Tensor hardtanh(const Tensor& x, double low = -1, double high = 1);  // clamp(); slope 0 at bounds
Tensor tanhshrink(const Tensor& x);                                  // x - tanh(x)
Tensor threshold(const Tensor& x, double threshold, double value);   // value where x <= threshold
// x above zero; elsewhere x times a random number from [lower, upper), one per element. Use
// leaky_relu(x, (lower + upper) / 2) in evaluation.
Tensor rrelu(const Tensor& x, double lower = 1.0 / 8, double upper = 1.0 / 3);
Tensor softsign(const Tensor& x);  // x / (1 + |x|)
Tensor log_sigmoid(const Tensor& x);
inline Tensor logsigmoid(const Tensor& x) { return log_sigmoid(x); }  // as log_sigmoid
// log(x / (1 - x)), the inverse of sigmoid; with eps, x is clamped to [eps, 1 - eps] first.
Tensor logit(const Tensor& x, std::optional<double> eps = {});
// x above zero, weight x below it, with one weight [1] or one per channel [c] of x [n, c, ...].
Tensor prelu(const Tensor& x, const Tensor& weight);
Tensor glu(const Tensor& x, int dim = -1);  // first half * sigmoid(second half)
Tensor swiglu(const Tensor& a,
              const Tensor& b);  // silu(a) b: the gate of a network, and its values
// A dtype is that to which x is cast first, and that of the result whatever the policy.
Tensor softmax(const Tensor& x, int dim = -1, std::optional<DType> dtype = {});
Tensor log_softmax(const Tensor& x, int dim = -1, std::optional<DType> dtype = {});
Tensor softmin(const Tensor& x, int dim = -1);  // softmax(-x)
// A differentiable sample of softmax(logits) (Jang et al. 2017), close to one_hot for a small tau;
// if hard, exactly one_hot, with the gradient of the soft sample.
Tensor gumbel_softmax(const Tensor& logits, double tau = 1, bool hard = false, int dim = -1);
struct GumbelSoftmaxOptions {
  double tau = 1;
  bool hard = false;
  int dim = -1;
};
// The same by name: gumbel_softmax(logits, {.hard = true}).
inline Tensor gumbel_softmax(const Tensor& logits, const GumbelSoftmaxOptions& options) {
  return gumbel_softmax(logits, options.tau, options.hard, options.dim);
}

// --- reductions over any dimensions ---
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // integers sum to i64
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor var(const Tensor& x, const Dims& dims = {}, bool keepdim = false, int correction = 1);
Tensor stddev(const Tensor& x, const Dims& dims = {}, bool keepdim = false, int correction = 1);
Tensor max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // ties share gradients
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
inline Tensor amax(const Tensor& x, const Dims& dims = {}, bool keepdim = false) {  // as max
  return max(x, dims, keepdim);
}
inline Tensor amin(const Tensor& x, const Dims& dims = {}, bool keepdim = false) {  // as min
  return min(x, dims, keepdim);
}
Tensor argmax(const Tensor& x, int dim, bool keepdim = false);  // i64; ties: the first
Tensor argmin(const Tensor& x, int dim, bool keepdim = false);
Tensor argmax(const Tensor& x);  // of all elements in row-major order, 0-d
Tensor argmin(const Tensor& x);
Tensor argmax(const Tensor& x, bool) = delete;  // the dimension comes first
Tensor argmin(const Tensor& x, bool) = delete;
Tensor prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);     // integers give i64
BoolTensor any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // bool
BoolTensor all(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // bool
Tensor count_nonzero(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // i64
Tensor logsumexp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
// (sum |x|^p)^(1/p). p = +-infinity: the largest or least |x|; p = 0: how many are not 0. The
// gradient is 0 at kinks.
Tensor norm(const Tensor& x, double p = 2, const Dims& dims = {}, bool keepdim = false);
Tensor vector_norm(const Tensor& x, double ord = 2, const Dims& dims = {}, bool keepdim = false);
// The 2-norm. (A list, since norm(x, {1}) would otherwise be the 1-norm over all dimensions.)
Tensor norm(const Tensor& x, std::initializer_list<int> dims, bool keepdim = false);
Tensor cumsum(const Tensor& x, int dim);   // integers give i64
Tensor cumprod(const Tensor& x, int dim);  // integers give i64
// The largest (or smallest) element so far and its position, the last of equal ones; NaN wins.
Sorted cummax(const Tensor& x, int dim);
Sorted cummin(const Tensor& x, int dim);
Tensor logcumsumexp(const Tensor& x, int dim);  // log(cumsum(exp(x))), however large x are

// Differences of neighbours, taken n times (0: x itself), with other elements put before or after
// x. For bools they say where x changes.
Tensor diff(const Tensor& x, int n = 1, int dim = -1, const Tensor& before = {},
            const Tensor& after = {});
// The integral of a function with values y by the trapezoidal rule: at points that are dx apart, or
// at points x, [n] for that dimension or as y. cumulative_trapezoid() has it up to each point but
// the first: [..., n, ...] -> [..., n - 1, ...].
Tensor trapezoid(const Tensor& y, double dx = 1, int dim = -1);
Tensor trapezoid(const Tensor& y, const Tensor& x, int dim = -1);
Tensor cumulative_trapezoid(const Tensor& y, double dx = 1, int dim = -1);
Tensor cumulative_trapezoid(const Tensor& y, const Tensor& x, int dim = -1);
// sum() and mean() of the elements that are not NaN.
Tensor nansum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor nanmean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
struct StdMean {
  Tensor std, mean;
};
StdMean std_mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false, int correction = 1);
struct VarMean {
  Tensor var, mean;
};
VarMean var_mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false, int correction = 1);
struct AminMax {
  Tensor min, max;
};
AminMax aminmax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
struct CovOptions {
  int correction = 1;
  Tensor fweights = {};  // integers [observations]: how often each was made
  Tensor aweights =
      {};  // [observations]: how much each counts. Checking either waits for the device.
};
// The covariances of variables, and their correlation coefficients: [variables, observations] ->
// [variables, variables], or [observations] -> [].
Tensor cov(const Tensor& x, const CovOptions& options = {});
Tensor corrcoef(const Tensor& x);

// --- matrix products ---
struct MatmulOptions {
  std::optional<DType> out = {};  // dtype of the result: the inputs' or f32
  double alpha = 1;               // multiplies the sums before they are rounded
};
// [..., m, k] @ [..., k, n] -> [..., m, n]; leading dimensions broadcast; 1-d operands as in NumPy.
// Sums of integers keep their dtype and wrap around.
Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options = {});
Tensor mm(const Tensor& a, const Tensor& b);  // matmul of [m, k] and [k, n]
// The product of two or more matrices, [a, b], [b, c], ... -> [a, z], in the order that takes the
// fewest multiplications. The first may be a vector [b], the last one [y], as in matmul().
Tensor multi_dot(const std::vector<Tensor>& parts);
Tensor bmm(const Tensor& a, const Tensor& b);  // [b, m, k] @ [b, k, n] -> [b, m, n]
Tensor mv(const Tensor& a, const Tensor& x);   // matmul of [m, n] and [n]
struct AddmmOptions {
  double beta = 1, alpha = 1;
};
// beta c + alpha a @ b; c broadcasts to [m, n].
Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, const AddmmOptions& options = {});
// The same for batches: c broadcasts to [b, m, n].
Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, const AddmmOptions& options = {});
// Multiplies each group of rows by a matrix of its own, as for tokens sorted by expert: x [rows,
// k], group after group, weight [groups, k, n] -> [rows, n]. Sizes given as a tensor, i64 [groups],
// wait for the device.
Tensor grouped_matmul(const Tensor& x, const Tensor& weight, const std::vector<int64_t>& sizes);
Tensor grouped_matmul(const Tensor& x, const Tensor& weight, const Tensor& sizes);
Tensor outer(const Tensor& a, const Tensor& b);  // [m], [n] -> [m, n]
Tensor kron(const Tensor& a, const Tensor& b);   // each element of a replaced by it times b
Tensor cross(const Tensor& a, const Tensor& b, int dim = -1);  // of vectors of 3; others broadcast
Tensor dot(const Tensor& a, const Tensor& b);                  // [n], [n] -> []
// Einstein summation: einsum("bik,bkj->bij", {a, b}). "..." stands for broadcast dimensions; a
// letter that occurs twice in one operand takes its diagonal; without "->" the result has the
// letters that occur once, sorted.
Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands);
// einsum("ij,jk->ik", a, b), without braces.
template <std::derived_from<Tensor>... More>
Tensor einsum(std::string_view equation, const Tensor& first, const More&... more) {
  return einsum(equation, std::vector<Tensor>{first, more...});
}
// Sums the products over those dimensions of a and b, in pairs, or over the last `dims` of a and
// the first of b: [..., k], [k, ...] -> [..., ...].
Tensor tensordot(const Tensor& a, const Tensor& b, const Dims& of_a, const Dims& of_b);
Tensor tensordot(const Tensor& a, const Tensor& b, int dims = 2);
using kernels::Activation;  // None, Relu, Gelu or GeluTanh
struct LinearOptions {
  Activation activation = Activation::None;  // applied before the sums are rounded
  Tensor residual = {};                      // of y's shape, added before that; if f32, so is y
};
// x [..., in], weight [out, in], bias [out] or none -> [..., out]
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const LinearOptions& options = {});
// x1 [..., in1], x2 [..., in2], weight [out, in1, in2], bias [out] or none -> [..., out]: x1^T W_o
// x2 + b_o for each output o.
Tensor bilinear(const Tensor& x1, const Tensor& x2, const Tensor& weight, const Tensor& bias = {});
// The dtype in which linear() would read x now: that of x, or the one to which Autocast casts it.
DType dtype_of_operand(const Tensor& x);

// --- linear algebra: computed on the CPU in f64, rounded once ---
Tensor inv(const Tensor& a);  // [..., n, n]; throws Error if a matrix is singular
// The solution x [..., n, k] of a x = b; leading dimensions broadcast. b is [..., n, k], a vector
// [n] or vectors of a's leading dimensions. Throws Error if a matrix is singular.
Tensor solve(const Tensor& a, const Tensor& b);
struct TriangularOptions {
  bool upper = false;          // read that triangle of a, else the lower one
  bool left = true;            // false: x a = b
  bool unitriangular = false;  // treat a's diagonal as ones
};
// solve() for triangular matrices and b [..., n, k]. A zero on the diagonal gives infinities.
Tensor solve_triangular(const Tensor& a, const Tensor& b, const TriangularOptions& options = {});
Tensor det(const Tensor& a);  // [..., n, n] -> [...]; singular matrices have gradients, too
struct Slogdet {
  Tensor sign, logabsdet;
};
// The sign of the determinant and the logarithm of its absolute value; 0 and -inf if a is singular.
Slogdet slogdet(const Tensor& a);
Tensor logdet(const Tensor& a);  // the logarithm of det(a): NaN where that is negative
// The lower triangle l with a = l l^T, or the upper one l^T. a counts as its symmetric part
// (a + a^T) / 2. Throws Error unless that is positive definite.
Tensor cholesky(const Tensor& a, bool upper = false);
// The solution x [..., n, k] of a x = b, where l is cholesky(a, upper).
Tensor cholesky_solve(const Tensor& b, const Tensor& l, bool upper = false);
struct Qr {
  Tensor q, r;
};
struct QrOptions {
  bool complete = false;  // k = m: q is square. Not differentiable if m > n.
};
// a [..., m, n] = q r with orthonormal columns q [..., m, k], an upper triangle r [..., k, n] and
// k = min(m, n). The gradient needs the first k columns to be independent.
Qr qr(const Tensor& a, const QrOptions& options = {});
struct Eigh {
  Tensor values, vectors;
};
// Eigenvalues [..., n], ascending, and eigenvectors, the columns of [..., n, n], of the symmetric
// parts (a + a^T) / 2. Throws Error if an element is not finite. The sign of each vector is
// arbitrary, and so are the vectors of equal eigenvalues; a function of them has a meaningful
// gradient only if it does not depend on that choice.
Eigh eigh(const Tensor& a);
Tensor eigvalsh(const Tensor& a);  // its eigenvalues alone
struct Svd {
  Tensor u, s, vh;
};
struct SvdOptions {
  bool full_matrices = false;  // u [..., m, m] and vh [..., n, n]; the vectors added are arbitrary
};
// a [..., m, n] = u diag(s) vh with u [..., m, k], s [..., k], descending, vh [..., k, n] and
// k = min(m, n). Errors and gradients as for eigh.
Svd svd(const Tensor& a, const SvdOptions& options = {});
Tensor svdvals(const Tensor& a);  // its singular values alone
struct PinvOptions {
  // Singular values up to this fraction of the largest count as 0. By default max(m, n) eps, with
  // the eps of f32 for f16 and bf16.
  std::optional<double> rtol = {};
};
Tensor pinv(const Tensor& a, const PinvOptions& options = {});  // [..., m, n] -> [..., n, m]
// The shortest x [..., n, k] with the least |a x - b|, for a [..., m, n] of any rank; b as in
// solve.
Tensor lstsq(const Tensor& a, const Tensor& b, const PinvOptions& options = {});
// The number of singular values that do not count as 0: [..., m, n] -> i64 [...].
Tensor matrix_rank(const Tensor& a, const PinvOptions& options = {});
Tensor cond(const Tensor& a);  // the largest singular value over the least: [..., m, n] -> [...]
// [..., m, n] -> [...]: "fro", the root of the sum of squares, or "nuc", the sum of singular
// values; or by a number the largest (2) or least (-2) singular value, or the largest (1) or least
// (-1) sum of |a| of a column, or with an infinity of a row.
Tensor matrix_norm(const Tensor& a, std::string_view ord = "fro");
Tensor matrix_norm(const Tensor& a, double ord);
Tensor matrix_exp(const Tensor& a);  // sum of a^i / i!, [..., n, n]
// a @ a @ ..., n times, [..., n, n]; of inv(a) for a negative n. On a's device, at least in f32.
Tensor matrix_power(const Tensor& a, int64_t n);

// --- networks: convolutions are cross-correlations; they, pools and unfold work without n ---
struct Size2 {  // rows and columns: {3, 5}, or 3 for both
  int64_t h, w;
  Size2(int64_t both) : h(both), w(both) {}
  Size2(int64_t rows, int64_t columns) : h(rows), w(columns) {}
  template <class F>
    requires std::is_floating_point_v<F>
  Size2(F) = delete;  // 1.5 would become 1
  int64_t operator[](int d) const { return d == 0 ? h : w; }
};
// The first field of options that go by name only, since {2, 1} is a stride or padding.
struct ByName {
  constexpr ByName() {}
};
template <class Size>
struct ConvOptionsOf {  // Conv1dOptions and, of Size2, Conv2dOptions
  ByName by_name = {};
  Size stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  Activation activation = Activation::None;  // applied before the sums are rounded
  Tensor residual = {};                      // of y's shape, added before that; if f32, so is y
};
using Conv1dOptions = ConvOptionsOf<int64_t>;
using Conv2dOptions = ConvOptionsOf<Size2>;
// x [n, c, l], weight [o, c/groups, k], bias [o] or none -> [n, o, l']
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv1dOptions& options = {});
// x [n, c, h, w], weight [o, c/groups, kh, kw], bias [o] or none -> [n, o, h', w']
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});
// The same with numbers in place of names, in PyTorch's order, as those of pools.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, std::integral auto stride,
              int64_t padding = 0, int64_t dilation = 1, int64_t groups = 1) {
  return conv1d(x, weight, bias,
                {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
}
inline Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Size2 stride,
                     Size2 padding = 0, Size2 dilation = 1, int64_t groups = 1) {
  return conv2d(x, weight, bias,
                {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
}
template <class Size>
struct ConvTransposeOptionsOf {  // ConvTranspose1dOptions and, of Size2 and Size3, those of 2d, 3d
  ByName by_name = {};
  Size stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
};
using ConvTranspose1dOptions = ConvTransposeOptionsOf<int64_t>;
using ConvTranspose2dOptions = ConvTransposeOptionsOf<Size2>;
// The gradient of conv2d as an op: x [n, c, h, w], weight [c, o/groups, kh, kw], bias [o] or
// none -> [n, o, (h - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1, ...]
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose2dOptions& options = {});
// The gradient of conv1d: x [n, c, l], weight [c, o/groups, k], bias [o] or none -> [n, o, l']
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose1dOptions& options = {});
// The same with numbers in place of names, in PyTorch's order: groups before dilation.
inline Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               Size2 stride, Size2 padding = 0, Size2 output_padding = 0,
                               int64_t groups = 1, Size2 dilation = 1) {
  return conv_transpose2d(x, weight, bias, {{}, stride, padding, output_padding, dilation, groups});
}
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        std::integral auto stride, int64_t padding = 0, int64_t output_padding = 0,
                        int64_t groups = 1, int64_t dilation = 1) {
  return conv_transpose1d(x, weight, bias,
                          {{}, int64_t(stride), padding, output_padding, dilation, groups});
}

// One direction of a recurrent layer with n hidden units, over t steps of a batch of b. x [t, b,
// gates n] is the inputs' share of the gates, linear(inputs, weight_ih, bias_ih); weight [gates n,
// n] and bias [gates n] or none are weight_hh and bias_hh; h0 and c0 are [b, n], or none for zeros.
// Formulas and gates are PyTorch's. Returns the hidden state after each step, in the order of x.
struct RecurrentOptions {
  bool reverse = false;  // from the last step to the first
  // Receives the state after the last step, [b, n]: an LSTM's c, else h. In f16 and bf16, that of
  // an LSTM or GRU is f32 if weight (under Autocast) or the initial state is, so that it can
  // continue.
  Tensor* last_state = nullptr;
};
// LSTM with gates i, f, g, o -> [t + 1, b, n]: the last row is the final cell state.
Tensor lstm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
            const Tensor& c0, const RecurrentOptions& options = {});
// GRU with gates r, z, n -> [t, b, n]
Tensor gru(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
           const RecurrentOptions& options = {});
// h = tanh(x + weight h + bias) -> [t, b, n]
Tensor rnn_tanh(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
                const RecurrentOptions& options = {});
// h = relu(x + weight h + bias) -> [t, b, n]
Tensor rnn_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
                const RecurrentOptions& options = {});

template <class Size>
struct PoolOptionsOf {  // Pool1dOptions and, of Size2 and Size3, PoolOptions and Pool3dOptions
  ByName by_name = {};
  Size stride = 0, padding = 0;   // stride 0 means the window's size
  Size dilation = 1;              // of maxima: from one element of a window to the next
  bool ceil_mode = false;         // windows may extend past the end
  bool count_include_pad = true;  // in means, padding counts as zeros
  std::optional<int64_t> divisor_override = {};  // of means, in place of the elements' count
};
using Pool1dOptions = PoolOptionsOf<int64_t>;
using PoolOptions = PoolOptionsOf<Size2>;
// x [n, c, h, w] -> [n, c, h', w'], the maximum of each window: NaN if there is one; at ties the
// first in row-major order gets the gradient.
Tensor max_pool2d(const Tensor& x, Size2 window, const PoolOptions& options = {});
// x [n, c, h, w] -> [n, c, h', w'], the mean of each window.
Tensor avg_pool2d(const Tensor& x, Size2 window, const PoolOptions& options = {});
// The maxima of max_pool2d, and i64 the place of each in its image in row-major order.
Sorted max_pool2d_with_indices(const Tensor& x, Size2 window, const PoolOptions& options = {});
// Puts maxima [n, c, h', w'] back to their places in images of zeros, [n, c, size]; by default the
// smallest images that have so many windows. Throws Error if those of this size have not.
Tensor max_unpool2d(const Tensor& x, const Tensor& indices, Size2 window,
                    const PoolOptions& options = {}, std::optional<Size2> size = {});
// x [n, c, l] -> [n, c, l']
Tensor max_pool1d(const Tensor& x, int64_t window, const Pool1dOptions& options = {});
Tensor avg_pool1d(const Tensor& x, int64_t window, const Pool1dOptions& options = {});
// The same with numbers in place of names.
inline Tensor max_pool2d(const Tensor& x, Size2 window, Size2 stride, Size2 padding = 0,
                         Size2 dilation = 1) {
  return max_pool2d(x, window, {.stride = stride, .padding = padding, .dilation = dilation});
}
inline Tensor avg_pool2d(const Tensor& x, Size2 window, Size2 stride, Size2 padding = 0) {
  return avg_pool2d(x, window, {.stride = stride, .padding = padding});
}
Tensor max_pool1d(const Tensor& x, int64_t window, std::integral auto stride, int64_t padding = 0,
                  int64_t dilation = 1) {
  return max_pool1d(x, window, {.stride = stride, .padding = padding, .dilation = dilation});
}
Tensor avg_pool1d(const Tensor& x, int64_t window, std::integral auto stride, int64_t padding = 0) {
  return avg_pool1d(x, window, {.stride = stride, .padding = padding});
}
// Pools to a given size: window i covers floor(i h / size) to ceil((i + 1) h / size).
Tensor adaptive_avg_pool2d(const Tensor& x, Size2 size);
Tensor adaptive_max_pool2d(const Tensor& x, Size2 size);
Tensor adaptive_avg_pool1d(const Tensor& x, int64_t size);
Tensor adaptive_max_pool1d(const Tensor& x, int64_t size);

enum class Interpolation { Nearest, Bilinear, Bicubic, Trilinear, Area };
struct InterpolateOptions {
  ByName by_name = {};
  std::optional<double> scale_factor = {};      // in place of a size, which is rounded down
  Interpolation mode = Interpolation::Nearest;  // Area: the mean of the pixels that one covers
  bool align_corners = false;  // not for Nearest and Area: aligns the centres of corners, not edges
  bool antialias = false;      // Bilinear and Bicubic: also filters where the result is smaller
};
// x [n, c, h, w] -> [n, c, size], with PyTorch's pixel positions; or [n, c, l], by one number
Tensor interpolate(const Tensor& x, Size2 size, const InterpolateOptions& options = {});
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);  // by scale_factor
struct GridSampleOptions {
  Interpolation mode = Interpolation::Bilinear;  // or Nearest
  PadMode padding = PadMode::Constant;  // outside the image: zeros; Replicate: the nearest pixel
  bool align_corners = false;           // -1 and 1 are the centres of corner pixels, not edges
};
// Samples x [n, c, h, w] at the points (x, y) of a grid [n, h', w', 2], which run from -1 (left,
// top) to 1 -> [n, c, h', w'] in x's dtype. The grid's dtype may be wider, but f64 needs f64. Both
// get gradients.
Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options = {});
// The grid for images of size [n, c, h, w], transformed by theta [n, 2, 3] -> [n, h, w, 2], at
// least f32.
Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners = false);
Tensor pixel_shuffle(const Tensor& x, int64_t factor);    // [n, c f f, h, w] -> [n, c, h f, w f]
Tensor pixel_unshuffle(const Tensor& x, int64_t factor);  // [n, c, h f, w f] -> [n, c f f, h, w]
// Takes a channel of each of `groups` groups in turn: x [n, c, ...] -> [n, c, ...].
Tensor channel_shuffle(const Tensor& x, int64_t groups);

struct UnfoldOptions {
  ByName by_name = {};
  Size2 dilation = 1, padding = 0, stride = 1;
};
// The windows of images as columns, for products: x [n, c, h, w] -> [n, c window, windows], the
// last two in row-major order.
Tensor unfold(const Tensor& x, Size2 window, const UnfoldOptions& options = {});
// The gradient of unfold as an op: adds up columns [n, c window, windows] to images [n, c, size].
Tensor fold(const Tensor& x, Size2 size, Size2 window, const UnfoldOptions& options = {});
// x (k + alpha / size * the sum of squares of `size` neighbouring channels)^-beta, x [n, c, ...].
Tensor local_response_norm(const Tensor& x, int64_t size, double alpha = 1e-4, double beta = 0.75,
                           double k = 1);

struct AttentionOptions {
  Tensor mask = {};     // [..., queries, keys]: bool (true: attend), or floats added to scores
  bool causal = false;  // query i attends to keys 0..i; not together with a mask
  double dropout = 0;
  std::optional<double> scale = {};  // 1 / sqrt(d) by default
  // k and v have fewer heads than q [..., heads, queries, d]; groups of q's heads share one.
  // Nothing is copied.
  bool enable_gqa = false;
};
// softmax(q kT scale + mask) v: q [..., queries, d], k [..., keys, d], v [..., keys, e]
// -> [..., queries, e]. A query that may attend to no key gives zeros.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

// Rotates each pair of elements i and i + d / 2 of x [..., t, d] by an angle given by its cosine
// and sine, [t, d / 2], which get no gradient (Su et al. 2021, in the order of Llama's files).
Tensor rotary_embedding(const Tensor& x, const Tensor& cosines, const Tensor& sines);

// x [..., shape]; weight and bias of that shape or none; statistics in f32. With `rounded`, a
// 16-bit dtype, the result is rounded as by cast(), but in the same pass: see dtype_of_operand().
Tensor layer_norm(const Tensor& x, const Shape& shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5, std::optional<DType> rounded = {});
// x / sqrt(mean(x^2) + eps) * weight over the last dimensions, which have that shape; `rounded` as
// in layer_norm. (PyTorch and nn::RMSNorm use an eps of 2^-23.)
Tensor rms_norm(const Tensor& x, const Shape& shape, const Tensor& weight = {}, double eps = 1e-6,
                std::optional<DType> rounded = {});
// x / max(|x|, eps), with a p-norm over dim.
Tensor normalize(const Tensor& x, double p = 2, int dim = 1, double eps = 1e-12);
struct NormalizeOptions {
  double p = 2;
  int dim = 1;
  double eps = 1e-12;
};
// The same by name: normalize(x, {.dim = -1}).
inline Tensor normalize(const Tensor& x, const NormalizeOptions& options) {
  return normalize(x, options.p, options.dim, options.eps);
}
// x, whose rank is at least 2, with each slice of dim shortened to a p-norm of maxnorm if its norm
// is larger.
Tensor renorm(const Tensor& x, double p, int dim, double maxnorm);
// Normalizes each of `groups` groups of channels of x [n, c, ...]; weight and bias [c] or none.
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
// Normalizes each channel of each image of x [n, c, ...]; weight and bias [c] or none.
Tensor instance_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                     double eps = 1e-5);
struct BatchNormOptions {
  bool training = false;
  double momentum = 0.1, eps = 1e-5;
};
// Normalizes each channel of x [n, c, ...]: in training by the batch's statistics, and if these are
// finite, the running ones (f32 [c], f64 for f64; absent: not tracked) are updated in place;
// otherwise by the running ones.
Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight = {}, const Tensor& bias = {},
                  const BatchNormOptions& options = {});
// The same with numbers in place of names, in PyTorch's order.
Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, std::same_as<bool> auto training,
                  double momentum = 0.1, double eps = 1e-5) {
  return batch_norm(x, running_mean, running_var, weight, bias,
                    BatchNormOptions{training, momentum, eps});
}
// 0 with probability p, else x / (1 - p). Draws from generator(). x itself if not in training.
Tensor dropout(const Tensor& x, double p, bool training = true);
struct EmbeddingOptions {
  // A row that gets no gradient (and starts as zeros in nn::Embedding); negative counts from the
  // end.
  std::optional<int64_t> padding_idx = {};
};
// table [rows, n], index of integers [...] -> [..., n]: the table comes first, unlike in
// F.embedding.
Tensor embedding(const Tensor& table, const Tensor& index, const EmbeddingOptions& options = {});
enum class BagMode { Sum, Mean, Max };
struct EmbeddingBagOptions {
  BagMode mode = BagMode::Mean;
  // A row that gets no gradient and counts in no bag; negative counts from the end.
  std::optional<int64_t> padding_idx = {};
  Tensor per_sample_weights = {};    // factors of the rows, in the index's shape; for Sum alone
  bool include_last_offset = false;  // offsets are [bags + 1], the last one k
};
// The sum, mean or maximum of the rows of each bag -> [bags, n]: an index of integers [bags, k], or
// [k] with the offset of each bag, [bags] (waits for the device). An empty bag gives zeros.
Tensor embedding_bag(const Tensor& table, const Tensor& index, const Tensor& offsets = {},
                     const EmbeddingBagOptions& options = {});

// --- volumes: [n, c, d, h, w], also without n ---
struct Size3 {  // planes, rows and columns: {1, 2, 2}, or 2 for all
  int64_t d, h, w;
  Size3(int64_t all) : d(all), h(all), w(all) {}
  Size3(int64_t planes, int64_t rows, int64_t columns) : d(planes), h(rows), w(columns) {}
  Size2 plane() const { return {h, w}; }
  int64_t operator[](int direction) const { return direction == 0 ? d : direction == 1 ? h : w; }
};
struct Conv3dOptions {
  ByName by_name = {};
  Size3 stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
};
// weight [o, c/groups, kd, kh, kw], bias [o] or none -> [n, o, d', h', w']; sums over planes are
// f32 for f16 and bf16.
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv3dOptions& options = {});
using ConvTranspose3dOptions = ConvTransposeOptionsOf<Size3>;
// The gradient of conv3d as an op: weight [c, o/groups, kd, kh, kw] -> [n, o, d', h', w']
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose3dOptions& options = {});
// The same with numbers in place of names, in PyTorch's order.
inline Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias, Size3 stride,
                     Size3 padding = 0, Size3 dilation = 1, int64_t groups = 1) {
  return conv3d(x, weight, bias, {{}, stride, padding, dilation, groups});
}
inline Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               Size3 stride, Size3 padding = 0, Size3 output_padding = 0,
                               int64_t groups = 1, Size3 dilation = 1) {
  return conv_transpose3d(x, weight, bias, {{}, stride, padding, output_padding, dilation, groups});
}
using Pool3dOptions = PoolOptionsOf<Size3>;
// The same as of images, for windows of planes, rows and columns.
Tensor max_pool3d(const Tensor& x, Size3 window, const Pool3dOptions& options = {});
Tensor avg_pool3d(const Tensor& x, Size3 window, const Pool3dOptions& options = {});
inline Tensor max_pool3d(const Tensor& x, Size3 window, Size3 stride, Size3 padding = 0,
                         Size3 dilation = 1) {
  return max_pool3d(x, window, {.stride = stride, .padding = padding, .dilation = dilation});
}
inline Tensor avg_pool3d(const Tensor& x, Size3 window, Size3 stride, Size3 padding = 0) {
  return avg_pool3d(x, window, {.stride = stride, .padding = padding});
}
Tensor adaptive_avg_pool3d(const Tensor& x, Size3 size);
Tensor adaptive_max_pool3d(const Tensor& x, Size3 size);
// interpolate() for volumes, by Nearest, Trilinear or Area.
Tensor interpolate3d(const Tensor& x, Size3 size, const InterpolateOptions& options = {});

// --- Fourier transforms: computed on the CPU in f64, rounded once ---
// A complex number is a pair in the last dimension, which `dim` does not count: real numbers [...,
// n] and complex ones [..., n, 2] have the same dimensions. What is divided by n: the inverse, both
// (by sqrt(n)), or the forward transform.
enum class FftNorm { Backward, Ortho, Forward };
struct FftOptions {
  std::optional<int64_t> n = {};  // cuts or pads dim with zeros to this many; all by default
  int dim = -1;
  FftNorm norm = FftNorm::Backward;
};
Tensor fft(const Tensor& x, const FftOptions& options = {});  // [..., n, 2] -> [..., n, 2]
Tensor ifft(const Tensor& x, const FftOptions& options = {});
Tensor rfft(const Tensor& x,
            const FftOptions& options = {});  // real [..., n] -> [..., n / 2 + 1, 2]
// The inverse of rfft: [..., m, 2] -> real [..., n], by default with n = 2 (m - 1).
Tensor irfft(const Tensor& x, const FftOptions& options = {});
struct Fft2Options {
  std::optional<Size2> s = {};        // rows and columns, as FftOptions::n
  std::array<int, 2> dim = {-2, -1};  // rows and columns; of real numbers, the last is cut in half
  FftNorm norm = FftNorm::Backward;
};
// The same over two dimensions, by default the last: [..., h, w, 2] or, if real, [..., h, w].
Tensor fft2(const Tensor& x, const Fft2Options& options = {});
Tensor ifft2(const Tensor& x, const Fft2Options& options = {});
Tensor rfft2(const Tensor& x, const Fft2Options& options = {});
Tensor irfft2(const Tensor& x, const Fft2Options& options = {});
struct FftnOptions {
  std::vector<int64_t> s = {};  // a size for each of dim, as FftOptions::n; or of none
  Dims dim = {};                // all by default or, with s, the last of them
  FftNorm norm = FftNorm::Backward;
};
// The same over any dimensions, of which real numbers have the last one cut in half.
Tensor fftn(const Tensor& x, const FftnOptions& options = {});
Tensor ifftn(const Tensor& x, const FftnOptions& options = {});
Tensor rfftn(const Tensor& x, const FftnOptions& options = {});
Tensor irfftn(const Tensor& x, const FftnOptions& options = {});
struct StftOptions {
  std::optional<int64_t> hop_length = {};  // from frame to frame; n_fft / 4 by default
  std::optional<int64_t> win_length = {};  // of the window, centred in a frame; n_fft by default
  Tensor window = {};                      // [win_length]; ones by default
  bool center = true;                      // i hop_length is frame i's centre, not its start
  PadMode pad_mode = PadMode::Reflect;     // for the padding that `center` needs
  bool normalized = false;                 // divide by sqrt(n_fft)
  bool onesided = true;                    // leave out the half that follows by symmetry
};
// Transforms the frames of a signal [t] or [b, t] -> [b, n_fft / 2 + 1, frames, 2].
Tensor stft(const Tensor& x, int64_t n_fft, const StftOptions& options = {});
struct IstftOptions {
  std::optional<int64_t> hop_length = {}, win_length = {};
  Tensor window = {};
  bool center = true, normalized = false, onesided = true;
  std::optional<int64_t> length = {};  // of the signal; by default all that the frames cover
};
// The signal whose stft is nearest. Throws Error if no window covers a part of it.
Tensor istft(const Tensor& x, int64_t n_fft, const IstftOptions& options = {});
// n numbers of sin^2 from 0 to pi; if periodic, the first n of n + 1.
Tensor hann_window(int64_t n, bool periodic = true, DType dtype = f32,
                   Device device = DefaultDevice::current());
// The same with 0.54 - 0.46 cos, and with 0.42 - 0.5 cos + 0.08 cos of twice the angle.
Tensor hamming_window(int64_t n, bool periodic = true, DType dtype = f32,
                      Device device = DefaultDevice::current());
Tensor blackman_window(int64_t n, bool periodic = true, DType dtype = f32,
                       Device device = DefaultDevice::current());
// i0(beta sqrt(1 - t^2)) / i0(beta) for t from -1 to 1.
Tensor kaiser_window(int64_t n, bool periodic = true, double beta = 12, DType dtype = f32,
                     Device device = DefaultDevice::current());
// The frequencies of fft's and rfft's results for n samples that are d apart: [n], [n / 2 + 1].
Tensor fftfreq(int64_t n, double d = 1, DType dtype = f32,
               Device device = DefaultDevice::current());
Tensor rfftfreq(int64_t n, double d = 1, DType dtype = f32,
                Device device = DefaultDevice::current());

// --- losses ---
// The way in which a loss becomes one number. Every loss takes it by name, {.reduction =
// Reduction::Sum}, or in place of its options.
struct Reduction {
  static const Reduction Mean, Sum, None;
  template <class Options>
    requires requires(Options& o) { o.reduction; }
  operator Options() const {
    Options o;
    o.reduction = *this;
    return o;
  }
  friend bool operator==(const Reduction&, const Reduction&) = default;

  int kind = 0;
};
inline constexpr Reduction Reduction::Mean{0}, Reduction::Sum{1}, Reduction::None{2};
struct LossOptions {
  Reduction reduction = Reduction::Mean;
};
struct CrossEntropyOptions {
  Reduction reduction = Reduction::Mean;
  double label_smoothing = 0;
  int64_t ignore_index = -100;
  double weight = 1;          // factor of the loss: static loss scaling
  Tensor class_weights = {};  // [classes], in the logits' dtype or f32; gets no gradient
};
// logits [n, classes, ...] or [classes]. The target is either integers [n, ...] or [], whose mean
// is weighted by the class weights (NaN if all are ignored), or probabilities of the logits' shape,
// whose mean is over all rows.
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     const CrossEntropyOptions& options = {});
struct LinearCrossEntropyOptions {
  Tensor bias = {};  // [classes]
  Reduction reduction = Reduction::Mean;
  double label_smoothing = 0;
  int64_t ignore_index = -100;
  Tensor class_weights = {};  // as in cross_entropy
  int64_t rows = 0;           // of logits at a time; 0: twice the features, at least 1024
};
// cross_entropy(linear(x, weight, bias), target) for x [..., features] and a target [...], without
// keeping the logits of all rows: backward recomputes each chunk. Logits are not rounded to 16
// bits.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyOptions& options = {});
struct NllOptions {
  Reduction reduction = Reduction::Mean;
  int64_t ignore_index = -100;
  Tensor class_weights = {};  // as in cross_entropy
};
// cross_entropy for results of log_softmax.
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& target,
                const NllOptions& options = {});
// Input and target have the same shape; both get gradients.
Tensor mse_loss(const Tensor& x, const Tensor& target, const LossOptions& options = {});
Tensor l1_loss(const Tensor& x, const Tensor& target, const LossOptions& options = {});
struct SmoothL1Options {
  Reduction reduction = Reduction::Mean;
  double beta = 1;
};
// d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2; l1_loss if beta is 0
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, const SmoothL1Options& options = {});
struct HuberOptions {
  Reduction reduction = Reduction::Mean;
  double delta = 1;
};
// d^2 / 2 where d = |x - target| < delta, else delta (d - delta / 2)
Tensor huber_loss(const Tensor& x, const Tensor& target, const HuberOptions& options = {});
struct BceOptions {
  Reduction reduction = Reduction::Mean;
  Tensor weight = {};      // for each element; broadcasts; in x's dtype or f32
  Tensor pos_weight = {};  // for the positive class, with logits only; as weight
};
// Throws Error if an x is outside [0, 1], or is f16 or bf16: use the version with logits.
// Logarithms are at least -100.
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BceOptions& options = {});
// binary_cross_entropy of sigmoid(x), for any x, without rounding the sigmoid.
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BceOptions& options = {});
struct KlDivOptions {
  Reduction reduction = Reduction::Mean;
  bool batch_mean = false;  // the mean divides by the batch size, as in the definition
  bool log_target = false;
};
// target (log(target) - x) for log-probabilities x; 0 where the target is 0.
Tensor kl_div(const Tensor& x, const Tensor& target, const KlDivOptions& options = {});
// x y / (|x| |y|) over dim, each norm at least eps; x and y broadcast.
Tensor cosine_similarity(const Tensor& x, const Tensor& y, int dim = 1, double eps = 1e-8);
// |x - y + eps|, a p-norm over the last dimension; x and y broadcast.
Tensor pairwise_distance(const Tensor& x, const Tensor& y, double p = 2, double eps = 1e-6,
                         bool keepdim = false);
// The p-norm distance of each point x [..., n, size] to each y [..., m, size]: [..., n, m], at
// least f32. For p = 2 and more than 25 points it uses a matrix product, which loses digits for
// close points; otherwise it allocates [..., n, m, size]. The gradient is 0 where a distance is 0.
Tensor cdist(const Tensor& x, const Tensor& y, double p = 2);
// The p-norm distance of each two rows i < j of x [n, size], the pairs in row-major order:
// [n (n - 1) / 2]. The gradient is 0 where a distance is 0.
Tensor pdist(const Tensor& x, double p = 2);
struct TripletMarginOptions {
  Reduction reduction = Reduction::Mean;
  double margin = 1, p = 2, eps = 1e-6;
  bool swap = false;  // use the negative's distance to the nearer of the other two
};
// max(0, margin + |anchor - positive| - |anchor - negative|), pairwise distances of [..., size].
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginOptions& options = {});
// The same with a distance function of the caller: two tensors [..., size] -> [...].
Tensor triplet_margin_with_distance_loss(const Tensor& anchor, const Tensor& positive,
                                         const Tensor& negative,
                                         Tensor (*distance)(const Tensor&, const Tensor&),
                                         const TripletMarginOptions& options = {});
struct MultiMarginOptions {
  Reduction reduction = Reduction::Mean;
  double margin = 1;
  int p = 1;                  // or 2, for squares
  Tensor class_weights = {};  // [classes]
};
// The mean over the other classes i of max(0, margin - x[target] + x[i])^p, for x [n, classes] and
// an i64 target [n], or [classes] and [].
Tensor multi_margin_loss(const Tensor& x, const Tensor& target,
                         const MultiMarginOptions& options = {});
// The mean over all classes of max(0, 1 - x[t] + x[i]), added up over the sample's classes t and
// all others i, for x [n, classes] and an i64 target [n, classes], or both without n: a sample's
// classes stand before its first negative number.
Tensor multilabel_margin_loss(const Tensor& x, const Tensor& target,
                              const LossOptions& options = {});
struct MultiLabelSoftMarginOptions {
  Reduction reduction = Reduction::Mean;
  Tensor class_weights = {};  // [classes]
};
// The mean over classes of binary_cross_entropy_with_logits, for x and target [..., classes].
Tensor multilabel_soft_margin_loss(const Tensor& x, const Tensor& target,
                                   const MultiLabelSoftMarginOptions& options = {});
struct CtcOptions {
  Reduction reduction = Reduction::Mean;  // Mean: divided by the target's length, then over n
  int64_t blank = 0;
  bool zero_infinity = false;  // 0 instead of infinity if an input is too short for its target
};
// Connectionist temporal classification (Graves et al. 2006): log-probabilities [t, n, classes],
// targets i64 [n, s], or [all] one after the other (waits for the device), and the lengths i64 [n]
// of inputs and targets; or all without n. Unlike PyTorch's, the gradient is exact for any
// log-probabilities; after a log_softmax both agree.
Tensor ctc_loss(const Tensor& log_probabilities, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, const CtcOptions& options = {});
struct MarginOptions {
  Reduction reduction = Reduction::Mean;
  double margin = 0;
};
// x, y [n, size], target [n]: 1 - cosine where target > 0, else max(0, cosine - margin).
Tensor cosine_embedding_loss(const Tensor& x, const Tensor& y, const Tensor& target,
                             const MarginOptions& options = {});
// max(0, margin - target (x - y)): target 1 where x should be larger, -1 where y should.
Tensor margin_ranking_loss(const Tensor& x, const Tensor& y, const Tensor& target,
                           const MarginOptions& options = {});

struct GaussianNllOptions {
  Reduction reduction = Reduction::Mean;
  bool full = false;  // add the constant log(2 pi) / 2
  double eps = 1e-6;  // the smallest variance
};
// (log(var) + (x - target)^2 / var) / 2. x and var are predictions; var is [...], per element, or
// [..., 1], per row. A variance below eps counts as eps and gets the gradient at eps.
Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& var,
                         const GaussianNllOptions& options = {});
struct PoissonNllOptions {
  Reduction reduction = Reduction::Mean;
  bool log_input = true;  // x is the logarithm of the expected count
  bool full = false;      // add Stirling's approximation of log(target!)
  double eps = 1e-8;      // added to x before its logarithm is taken
};
// exp(x) - target x, or x - target log(x + eps), for targets that count events.
Tensor poisson_nll_loss(const Tensor& x, const Tensor& target,
                        const PoissonNllOptions& options = {});
struct HingeEmbeddingOptions {
  Reduction reduction = Reduction::Mean;
  double margin = 1;
};
// For distances x: x where the target is 1, max(0, margin - x) where it is -1.
Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target,
                            const HingeEmbeddingOptions& options = {});
// log(1 + exp(-target x)), target 1 or -1.
Tensor soft_margin_loss(const Tensor& x, const Tensor& target, const LossOptions& options = {});

// --- in place ---
// Recorded if recording is on and x or the value written requires a gradient; x must then not be a
// leaf, and nothing else may hold its storage. Otherwise all tensors on that storage see the
// change. Elements of x must not share memory, as after expand. x keeps its dtype. All return x.
Tensor fill_(const Tensor& x, double value);
Tensor zero_(const Tensor& x);
Tensor copy_(const Tensor& x, const Tensor& from);  // converts and broadcasts
Tensor add_(const Tensor& x, const Tensor& y);
Tensor sub_(const Tensor& x, const Tensor& y);
Tensor mul_(const Tensor& x, const Tensor& y);
Tensor div_(const Tensor& x, const Tensor& y);
Tensor add_(const Tensor& x, double y);
Tensor sub_(const Tensor& x, double y);
Tensor mul_(const Tensor& x, double y);
Tensor div_(const Tensor& x, double y);
Tensor clamp_(const Tensor& x, std::optional<double> low, std::optional<double> high = {});

inline Tensor operator+=(const Tensor& x, const Tensor& y) { return add_(x, y); }
inline Tensor operator-=(const Tensor& x, const Tensor& y) { return sub_(x, y); }
inline Tensor operator*=(const Tensor& x, const Tensor& y) { return mul_(x, y); }
inline Tensor operator/=(const Tensor& x, const Tensor& y) { return div_(x, y); }
inline Tensor operator+=(const Tensor& x, double y) { return add_(x, y); }
inline Tensor operator-=(const Tensor& x, double y) { return sub_(x, y); }
inline Tensor operator*=(const Tensor& x, double y) { return mul_(x, y); }
inline Tensor operator/=(const Tensor& x, double y) { return div_(x, y); }

}  // namespace mixtape
