#pragma once
// Tensor: a shared handle to a view of storage. Copying a Tensor copies the handle. Its history and
// gradient belong to autograd; core holds two opaque pointers to them.

#include <atomic>
#include <concepts>
#include <iosfwd>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/storage.h"
#include "core/view.h"

namespace mixtape {

namespace internal {
class Node;     // the call that made a tensor: autograd/tape.h
class Indexed;  // core/index.h
struct Index;
}  // namespace internal

struct AutogradMeta;     // autograd's data of a tensor: autograd/autograd_meta.h
struct BackwardOptions;  // autograd/tape.h
struct BoolTensor;       // autograd/ops.h
struct Sorted;           // autograd/ops.h
class Tensor;

// Dimensions: a list, or one number. Empty: all.
struct Dims : std::vector<int> {
  Dims() = default;
  // Negative dimensions count from the end. The ops check them.
  Dims(std::initializer_list<int> dims);
  Dims(std::vector<int> dims);
  template <std::same_as<int> Dim>  // not bool: in sum(x, true) dimensions were forgotten
  Dims(Dim dim) : Dims({dim}) {}
};

struct AutogradMetaInterface {  // AutogradMeta as core sees it
  virtual ~AutogradMetaInterface() = default;
  virtual void on_set_data(const Tensor& data) = 0;  // called before the tensor gets this data
};

class Tensor {  // a handle: const members change the tensor, not which one it is
 public:
  // Undefined: `if (t)` is false, and every other use throws Error.
  Tensor() = default;
  // Uninitialised.
  Tensor(const Shape& shape, DType dtype, Device device = DefaultDevice::current());
  // `view` is within storage.
  Tensor(const std::shared_ptr<Storage>& storage, const internal::View& view);
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  ~Tensor() = default;
  Tensor& operator=(const Tensor&) & = default;  // another tensor in this handle
  Tensor& operator=(Tensor&&) & noexcept = default;
  void operator=(const Tensor&) && = delete;  // x.set_grad(y), x(0) = y or x.copy_(y) writes

  explicit operator bool() const { return impl_ != nullptr; }          // false: undefined
  bool defined() const { return impl_ != nullptr; }                    // the same
  const Shape& shape() const { return impl().view.layout.shape; }      // the sizes, outermost first
  const Shape& strides() const { return impl().view.layout.strides; }  // in elements
  // Shape and strides, from the first element on.
  const internal::Layout& layout() const { return impl().view.layout; }
  int rank() const { return shape().rank; }  // the number of dimensions
  // Throws Error beyond the rank.
  int64_t size(int dim) const { return shape()[wrap_dim(dim, rank())]; }
  int64_t numel() const { return shape().size(); }                      // the number of elements
  size_t nbytes() const { return size_t(numel()) * size_of(dtype()); }  // of its elements
  DType dtype() const { return impl().view.dtype; }                     // of an element
  Device device() const { return impl().storage->device(); }            // where its storage is
  bool is_contiguous() const { return layout().is_contiguous(); }       // row-major, no gaps
  bool is_contiguous(MemoryFormat format) const;  // no gaps, in that order of memory

  // The first element. Throws Error if T is not the element type of dtype(), or on a device. After
  // writing through it, call storage()->bump_version() to notify the tape, copies and loss scalers.
  template <class T>
  T* data() const {
    require_dtype(dtype_of<T>());
    return static_cast<T*>(host());
  }
  void* raw() const { return impl().view.data; }  // address of the first element, on its device
  void* host() const;  // the same for the host; throws Error if the tensor is on a device
  // Elements from the start of the storage to the first element.
  int64_t offset() const {
    return (static_cast<char*>(raw()) - static_cast<char*>(impl().storage->data())) >>
           log2_size_of(dtype());
  }
  // An undefined tensor converts to the View of an absent input.
  operator const internal::View&() const {
    if (!impl_) return absent;
    impl_->storage->touch();
    return impl_->view;
  }
  // The only element; throws Error if there are more. T is any number type or bool. Conversion to
  // an integer truncates, and throws Error if the value is out of range.
  template <detail::Number T = double>
  T item() const;
  // Element i in row-major order, converted as by item(). Slow: for tests and printing.
  template <detail::Number T = double>
  T at(int64_t i) const;
  // Sets element i and bumps the version. Throws Error on a recorded op's result outside NoGrad.
  void set(int64_t i, double value) const;

  Tensor detach() const;  // the same data without history
  // Uninitialised, with this shape and device and the same order in memory: row-major (on a GPU
  // perhaps with padded rows) or channels last.
  Tensor like(DType dtype) const {
    if (is_contiguous()) return Tensor(shape(), dtype, device());
    return like_in_order(dtype);
  }
  // A view of the same storage, relative to this tensor's first element, without history.
  Tensor with_layout(const internal::Layout&) const;
  // A copy on another device, in the same layout, without history; itself if it is there already.
  Tensor copied_to(Device target) const;
  const std::shared_ptr<Storage>& storage() const { return impl().storage; }  // shared by views
  uint64_t version() const { return impl().storage->version(); }  // counts writes to the storage
  const void* id() const { return impl_.get(); }  // equal for handles of the same tensor
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }  // handles of one tensor
  // True if this is the only handle, and neither another tensor nor another library uses the
  // storage, so that it may be overwritten.
  bool is_unique() const {
    return impl_.use_count() == 1 && impl_->storage.use_count() == 1 &&
           !impl_->storage->is_foreign();
  }
  // Replaces data and dtype for every handle, as Module::to and loading do.
  void set_data(const Tensor& other) const;

  // True for leaves, on which set_requires_grad() was called, and for results of recorded ops.
  bool requires_grad() const { return impl_ && (impl_->requires_grad || impl_->grad_fn); }
  // Throws Error on integers and on results of ops.
  const Tensor& set_requires_grad(bool on = true) const;
  bool is_leaf() const { return impl().requires_grad; }  // false where no gradient is required
  // True for the first and last weight of the running model, which nn marks, and for views made of
  // them since.
  bool is_end() const { return impl().is_end.load(std::memory_order_relaxed); }
  void mark_end(bool on) const {  // atomic: another thread may read it
    if (is_end() != on) impl().is_end.store(on, std::memory_order_relaxed);
  }
  // The recorded op that made it; null for leaves and constants.
  const std::shared_ptr<internal::Node>& grad_fn() const { return impl().grad_fn; }
  void set_grad_fn(std::shared_ptr<internal::Node> grad_fn) const { impl().grad_fn.swap(grad_fn); }

  // Defined in autograd; see autograd/autograd_meta.h.
  Tensor grad() const;
  bool has_grad() const;
  void set_grad(const Tensor& g) const;
  // The dtype in which backward() adds to grad(): dtype(), or what set_grad_dtype() set for a leaf,
  // which may be f32 for f16 and bf16. An existing gradient is converted.
  DType grad_dtype() const;
  void set_grad_dtype(DType dtype) const;
  // A copy in f16 or bf16; undefined without one, or once either has been written to.
  Tensor shadow() const;
  void set_shadow(const Tensor& copy) const;
  AutogradMeta& autograd_meta() const;  // made on first use

  // Methods for the functions of the same name; defined in autograd.
  void backward() const;
  void backward(const BackwardOptions& options) const;
  void backward(const Tensor& gradient, bool retain_graph = false, bool create_graph = false) const;
  Tensor to(DType dtype) const;                  // itself if nothing changes
  Tensor to(Device device) const;                // itself if it is there already
  Tensor to(MemoryFormat format) const;          // as contiguous(format)
  Tensor cpu() const, cuda() const;              // to(Device::cpu()), to(Device::cuda())
  Tensor half() const, bfloat16() const;         // to(f16), to(bf16)
  Tensor clone() const;                          // a row-major copy
  Tensor contiguous() const;                     // itself if it is row-major, else a copy
  Tensor contiguous(MemoryFormat format) const;  // itself if it is in that order, else a copy
  Tensor reshape(const Shape& shape) const;      // a view where strides allow; one size may be -1
  Tensor flatten(int from = 0, int to = -1) const;  // joins these dimensions, both included
  Tensor t() const;                       // the last two dimensions swapped; of fewer, itself
  Tensor view(const Shape& shape) const;  // reshape(), but throws Error if it would copy
  // The same with sizes as arguments: x.reshape(4, -1).
  Tensor reshape(std::integral auto size, std::integral auto... more) const {
    return reshape(Shape{int64_t(size), int64_t(more)...});
  }
  Tensor view(std::integral auto size, std::integral auto... more) const {  // x.view(4, -1)
    return view(Shape{int64_t(size), int64_t(more)...});
  }
  // The dimensions in another order: x.permute(0, 2, 1). A view, like all results down to narrow().
  Tensor permute(std::same_as<int> auto first, std::same_as<int> auto... more) const {
    return permute(Dims{first, more...});
  }
  Tensor permute(const Dims& order) const;
  Tensor expand(const Shape& shape) const;  // broadcasts; -1 keeps a size
  Tensor expand(std::integral auto size, std::integral auto... more) const {  // x.expand(2, -1)
    return expand(Shape{int64_t(size), int64_t(more)...});
  }
  Tensor transpose(int a, int b) const;         // swaps a and b
  Tensor select(int dim, int64_t index) const;  // drops dim
  Tensor squeeze(const Dims& dims = {}) const;  // drops those of these dimensions that have size 1
  Tensor unsqueeze(int dim) const;              // inserts a size of 1 there
  std::vector<Tensor> chunk(int64_t chunks, int dim = 0) const;  // the last may be smaller
  std::vector<Tensor> split(int64_t size, int dim = 0) const;    // chunks of that size
  std::vector<Tensor> split(const std::vector<int64_t>& sizes, int dim = 0) const;  // of these
  std::vector<Tensor> unbind(int dim = 0) const;                // select(dim, i) for each i
  Tensor narrow(int dim, int64_t start, int64_t length) const;  // indices start to start + length
  Tensor movedim(const Dims& from, const Dims& to) const;       // the others keep their order
  // Windows of `size` elements that start `step` apart, as a new last dimension.
  Tensor unfold(int dim, int64_t size, int64_t step) const;
  Tensor slice(int dim, int64_t start, int64_t stop = std::numeric_limits<int64_t>::max(),
               int64_t step = 1) const;  // x[start:stop:step] of dim
  Tensor expand_as(const Tensor& x) const { return expand(x.shape()); }  // to x's shape
  Tensor view_as(const Tensor& x) const { return view(x.shape()); }      // as expand_as()
  Tensor unflatten(int dim, const Shape& sizes) const;  // dim split; one size may be -1
  Tensor repeat(const Shape& times) const;              // tiles: [2] of [3] -> [6]
  Tensor repeat(std::integral auto times, std::integral auto... more) const {  // x.repeat(2, 1)
    return repeat(Shape{int64_t(times), int64_t(more)...});
  }
  Tensor repeat_interleave(int64_t times, int dim) const;           // each slice of dim, times over
  Tensor diagonal(int64_t offset = 0, int a = 0, int b = 1) const;  // i of a, i + offset of b
  Tensor flip(const Dims& dims) const;                              // backwards along dims
  Tensor roll(int64_t shift, int dim) const;                        // wraps around
  Tensor tril(int64_t diagonal = 0) const, triu(int64_t diagonal = 0) const;  // zeros above; below
  Tensor index_select(int dim, const Tensor& index) const;  // these indices of dim
  Tensor gather(int dim, const Tensor& index) const;        // an index along dim for each result
  // New tensors with source[i] at, or added to, x[index[i]], as the functions of ops.h say.
  Tensor scatter(int dim, const Tensor& index, const Tensor& source) const;
  Tensor scatter(int dim, const Tensor& index, double value) const;
  Tensor scatter_add(int dim, const Tensor& index, const Tensor& source) const;
  Tensor index_add(int dim, const Tensor& index, const Tensor& source) const;  // slices added
  // The sources of one element and, with include_self, itself: "sum", "prod", "mean", "amax",
  // "amin".
  Tensor scatter_reduce(int dim, const Tensor& index, const Tensor& source, std::string_view mode,
                        bool include_self = true) const;
  Tensor masked_select(const Tensor& mask) const, nonzero() const;  // wait for the device
  Tensor masked_fill(const Tensor& mask, double value) const;       // value where mask is true
  Sorted sort(int dim = -1, bool descending = false) const;         // values and their indices
  Sorted topk(int64_t k, int dim = -1, bool largest = true) const;  // the first k of them
  Tensor argsort(int dim = -1, bool descending = false) const;      // the indices of sort()
  Sorted sort(std::same_as<bool> auto) const = delete;              // the dimension comes first
  Tensor argsort(std::same_as<bool> auto) const = delete;
  Tensor neg() const, abs() const, square() const, sqrt() const, rsqrt() const;  // by element
  Tensor exp() const, log() const, sin() const, cos() const;                     // of each element
  Tensor log1p() const, log2() const, log10() const, exp2() const, expm1() const, tan() const,
      erf() const, reciprocal() const, sign() const;                   // by element
  Tensor floor() const, ceil() const, round() const, trunc() const;    // by element, as integers
  Tensor round(int decimals) const;                                    // to so many digits
  BoolTensor isnan() const, isinf() const, isfinite() const;           // by element
  Tensor add(const Tensor& y) const, add(double y) const;              // x + y
  Tensor sub(const Tensor& y) const, sub(double y) const;              // x - y
  Tensor mul(const Tensor& y) const, mul(double y) const;              // x * y
  Tensor div(const Tensor& y) const, div(double y) const;              // x / y
  Tensor remainder(const Tensor& y) const, remainder(double y) const;  // x % y
  Tensor floor_divide(const Tensor& y) const, floor_divide(double y) const;          // floor(x / y)
  Tensor maximum(const Tensor& y) const, minimum(const Tensor& y) const;             // of x and y
  BoolTensor logical_and(const Tensor& y) const, logical_or(const Tensor& y) const;  // of bools
  BoolTensor logical_not() const;                                                    // of bools
  BoolTensor eq(const Tensor& y) const, eq(double y) const;                          // x == y
  BoolTensor ne(const Tensor& y) const, ne(double y) const;                          // x != y
  BoolTensor lt(const Tensor& y) const, lt(double y) const;                          // x < y
  BoolTensor le(const Tensor& y) const, le(double y) const;                          // x <= y
  BoolTensor gt(const Tensor& y) const, gt(double y) const;                          // x > y
  BoolTensor ge(const Tensor& y) const, ge(double y) const;                          // x >= y
  Tensor relu() const, sigmoid() const, tanh() const;                                // by element
  Tensor softmax(int dim, std::optional<DType> dtype = {}) const;                    // over dim
  Tensor log_softmax(int dim, std::optional<DType> dtype = {}) const;  // log(softmax(x))
  Tensor pow(double b) const, pow(const Tensor& b) const;              // b broadcasts
  Tensor lerp(const Tensor& end, double weight) const;                 // x + weight (end - x)
  Tensor clamp(std::optional<double> low, std::optional<double> high = {}) const;  // {}: no bound
  Tensor sum(const Dims& dims = {}, bool keepdim = false) const;        // integers give i64
  Tensor mean(const Dims& dims = {}, bool keepdim = false) const;       // of floats
  Tensor prod(const Dims& dims = {}, bool keepdim = false) const;       // integers give i64
  Tensor logsumexp(const Dims& dims = {}, bool keepdim = false) const;  // log(sum(exp(x)))
  // The variance: the sum of squared deviations over n - correction.
  Tensor var(const Dims& dims = {}, bool keepdim = false, int correction = 1) const;
  // The root of the variance.
  Tensor stddev(const Dims& dims = {}, bool keepdim = false, int correction = 1) const;
  Tensor max(const Dims& dims = {}, bool keepdim = false) const;      // ties share the gradient
  Tensor min(const Dims& dims = {}, bool keepdim = false) const;      // as max()
  BoolTensor any(const Dims& dims = {}, bool keepdim = false) const;  // false if there are none
  BoolTensor all(const Dims& dims = {}, bool keepdim = false) const;  // true if there are none
  Tensor norm(double p = 2, const Dims& dims = {}, bool keepdim = false) const;  // (sum|x|^p)^(1/p)
  Tensor norm(std::initializer_list<int> dims, bool keepdim = false) const;  // the 2-norm over dims
  Tensor cumsum(int dim) const, cumprod(int dim) const;                      // integers give i64
  Tensor argmax() const, argmin() const;               // in row-major order, i64 []
  Tensor argmax(int dim, bool keepdim = false) const;  // along dim; i64; ties: the first
  Tensor argmin(int dim, bool keepdim = false) const;  // as argmax()
  Tensor matmul(const Tensor& other) const;            // [..., m, k] @ [..., k, n], which broadcast
  Tensor dot(const Tensor& other) const;               // [n] @ [n]
  Tensor mv(const Tensor& other) const;                // [m, k] @ [k]
  Tensor outer(const Tensor& other) const;             // [m], [n] -> [m, n]
  Tensor mm(const Tensor& other) const;                // [m, k] @ [k, n]
  Tensor bmm(const Tensor& other) const;               // [b, m, k] @ [b, k, n]
  Tensor fill_(double value) const, zero_() const, copy_(const Tensor& from) const;  // in place
  // clamp() in place.
  Tensor clamp_(std::optional<double> low, std::optional<double> high = {}) const;
  Tensor add_(const Tensor& y) const, add_(double y) const;  // in place, as x += y
  Tensor sub_(const Tensor& y) const, sub_(double y) const;  // in place, as x -= y
  Tensor mul_(const Tensor& y) const, mul_(double y) const;  // in place, as x *= y
  Tensor div_(const Tensor& y) const, div_(double y) const;  // in place, as x /= y
  // The functions without underscore in place; the rules of ops in place hold (autograd/ops.h).
  Tensor masked_fill_(const Tensor& mask, double value) const;
  Tensor scatter_(int dim, const Tensor& index, const Tensor& source) const,
      scatter_(int dim, const Tensor& index, double value) const;  // as above
  Tensor scatter_add_(int dim, const Tensor& index, const Tensor& source) const,
      index_add_(int dim, const Tensor& index, const Tensor& source) const;  // as above
  Tensor lerp_(const Tensor& end, double weight) const;  // a step of a moving average
  Tensor addcmul_(const Tensor& a, const Tensor& b, double value = 1) const,
      addcdiv_(const Tensor& a, const Tensor& b, double value = 1) const;  // as an optimizer's step
  Tensor abs_() const, neg_() const, square_() const, sqrt_() const, rsqrt_() const;  // by element
  Tensor exp_() const, log_() const, reciprocal_() const, pow_(double b) const;  // of each element
  Tensor floor_() const, ceil_() const, round_() const, relu_() const, sigmoid_() const,
      tanh_() const;  // by element

  // PyTorch's names.
  int dim() const { return rank(); }
  const Shape& sizes() const { return shape(); }  // shape()
  void* data_ptr() const { return raw(); }        // raw()
  // As set_requires_grad().
  const Tensor& requires_grad_(bool on = true) const { return set_requires_grad(on); }
  Tensor std(const Dims& dims = {}, bool keepdim = false, int correction = 1) const {  // stddev()
    return stddev(dims, keepdim, correction);
  }
  Tensor amax(const Dims& dims = {}, bool keepdim = false) const {  // max()
    return max(dims, keepdim);
  }
  Tensor amin(const Dims& dims = {}, bool keepdim = false) const {  // min()
    return min(dims, keepdim);
  }
  Tensor clamp_min(double low) const { return clamp(low); }                   // clamp(low)
  Tensor clamp_max(double high) const { return clamp({}, high); }             // clamp({}, high)
  Tensor clamp_min_(double low) const { return clamp_(low); }                 // in place
  Tensor clamp_max_(double high) const { return clamp_({}, high); }           // in place, too
  int64_t stride(int dim) const { return strides()[wrap_dim(dim, rank())]; }  // in elements
  bool is_floating_point() const { return is_float(dtype()); }  // f64, f32, f16 or bf16

  // libtorch's methods that have no such form here: the compiler shows these lines.
  template <class I = std::initializer_list<internal::Index>>
  void index(I) const = delete;  // x(i, Slice(1, 3))
  template <class I = std::initializer_list<internal::Index>, class V>
  void index_put_(I, V) const = delete;  // x(i, Slice(1, 3)) = v
  template <class F>
  void register_hook(F) const = delete;  // register_hook(x, f)
  void retain_grad() const = delete;     // retain_grad(x)

  // Indexing as in NumPy, for reading and assigning: x(Slice(1, 3), 0), x[i]. See core/index.h.
  template <class... I>
    requires(std::is_constructible_v<internal::Index, const I&> && ...)
  internal::Indexed operator()(const I&... indices) const;
  template <class I>
    requires std::is_constructible_v<internal::Index, const I&>
  internal::Indexed operator[](const I& index) const;

 private:
  Tensor like_in_order(DType dtype) const;
  struct Impl {
    Impl(const Shape& shape, DType dtype, Device device);
    Impl(const std::shared_ptr<Storage>& of, void* data, DType dtype,
         const internal::Layout& layout)
        : view{data, dtype, layout}, storage(of) {}
    internal::View view;
    std::shared_ptr<Storage> storage;
    bool requires_grad = false;
    std::atomic<bool> is_end = false;
    std::shared_ptr<internal::Node> grad_fn;
    std::shared_ptr<AutogradMetaInterface> autograd_meta;
  };
  static constexpr internal::View absent = {};
  friend class WeakTensor;
  Impl& impl() const {
    if (!impl_) [[unlikely]]
      refuse_none();
    return *impl_;
  }
  [[noreturn]] static void refuse_none();
  void require_dtype(DType wanted) const;

  std::shared_ptr<Impl> impl_;
};

// A handle that does not keep its tensor alive.
class WeakTensor {
 public:
  explicit WeakTensor(const Tensor& t) : impl_(t.impl_) {}  // `t` may be undefined
  Tensor lock() const {  // undefined once the last handle is gone
    Tensor t;
    t.impl_ = impl_.lock();
    return t;
  }

 private:
  std::weak_ptr<Tensor::Impl> impl_;
};

// A tensor from values in row-major order. Throws Error if the count does not fit.
Tensor from(std::span<const double> values, const Shape& shape, DType dtype = f32);
Tensor from(std::initializer_list<double> values, const Shape& shape, DType dtype = f32);
namespace detail {
struct Braces {  // numbers in nested braces
  Braces(double number) : numbers{number} {}
  Braces(std::initializer_list<Braces> rows);
  std::vector<double> numbers;
  Shape shape;
};
}  // namespace detail
// A tensor from numbers in nested braces: tensor({{1, 2}, {3, 4}}). Throws Error if rows differ in
// shape.
Tensor tensor(const detail::Braces& values, DType dtype = f32);
template <class T>
Tensor tensor(const std::vector<T>& values) = delete;  // from_data(values), of their dtype
namespace detail {
// `data` is the element at offset 0 of the layout.
Tensor from_memory(const std::shared_ptr<void>& data, const internal::Layout& layout, DType dtype,
                   Device device);
}  // namespace detail
// A tensor on dense memory of the caller, which is not copied. Throws Error for a null pointer,
// misaligned data, and bools other than 0 and 1. `deleter` frees the memory once no tensor and no
// work of the device uses it, or on Error. Without one, the memory must outlive the tensors.
template <class Deleter>
Tensor from_blob(void* data, const Shape& shape, DType dtype, Deleter deleter,
                 Device device = Device::cpu()) {
  const std::shared_ptr<void> owner(data, std::move(deleter));
  return detail::from_memory(owner, internal::Layout(shape), dtype, device);
}
inline Tensor from_blob(void* data, const Shape& shape, DType dtype,
                        Device device = Device::cpu()) {
  return from_blob(data, shape, dtype, [](void*) {}, device);
}
template <class T, class Deleter>
  requires(!std::is_void_v<T> && std::is_invocable_v<Deleter, T*>)
Tensor from_blob(T* data, const Shape& shape, Deleter deleter) {  // of T's dtype
  const std::shared_ptr<void> owner(data, std::move(deleter));
  return detail::from_memory(owner, internal::Layout(shape), dtype_of<T>(), Device::cpu());
}
template <class T>
  requires(!std::is_void_v<T>)
Tensor from_blob(T* data, const Shape& shape) {  // of T's dtype, without a deleter
  return from_blob(data, shape, dtype_of<T>());
}

template <detail::Number T = double>
std::vector<T> to_vector(const Tensor& x);  // row-major, converted as by item()

// PyTorch's and NumPy's options of printing. Throws Error unless sizes are positive.
struct PrintOptions {
  int precision = 4;  // digits after the point, at most
  int64_t threshold = 1000,
          edge_items = 3;  // with more elements, edge_items at either end of an axis
  int line_width = 75;     // characters
  bool scientific = true;  // 1.5e+09 where magnitudes require it
};
// A guard that sets the options with which this thread prints tensors.
class PrintWith : NoCopy {
 public:
  [[nodiscard]] explicit PrintWith(const PrintOptions& options);  // throws Error as above
  ~PrintWith();

 private:
  PrintOptions options_;
  const PrintOptions* outer_;
};

// As NumPy prints: nested brackets, aligned columns, long axes shortened; then shape and dtype.
std::string to_string(const Tensor& x);
std::string to_string(const Tensor& x, const PrintOptions& options);
std::ostream& operator<<(std::ostream& out, const Tensor& x);

namespace internal {
// Uninitialised. On a GPU long rows are padded to a multiple of 16 bytes (padded_rows()).
Tensor with_padded_rows(const Shape& shape, DType dtype, Device device);
inline bool has_padded_rows(const Tensor& t) {  // on a GPU, as with_padded_rows() makes them
  return !t.device().is_like_cpu() && has_padded_rows(t.layout());
}
}  // namespace internal

}  // namespace mixtape
