// Single elements, views, and replacement of data. All computation is in ops, above core.
#include "core/tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/effects.h"
#include "core/element.h"
#include "core/float8.h"
#include "core/float_mode.h"
#include "core/format.h"
#include "core/pooled.h"
#include "core/runtime.h"
#include "core/stream.h"
#include "core/thread_state.h"

namespace mixtape {
using namespace internal;
namespace {

size_t bytes_of(const Shape& shape, DType dtype) {
  size_t bytes = 0;
  check(!__builtin_mul_overflow(static_cast<size_t>(shape.size()), size_of(dtype), &bytes) &&
            bytes <= size_t(std::numeric_limits<int64_t>::max()),
        "{} of {} has too many bytes", shape, dtype);
  return bytes;
}

template <class T>
constexpr bool is_whole = std::is_integral_v<T> && !std::is_same_v<T, bool>;
// The name that a dtype of those bits has or would have: "i64", "u16".
template <class T>
std::string name_of() {
  return (std::is_signed_v<T> ? "i" : "u") + std::to_string(8 * sizeof(T));
}

// Rounds to floats, truncates to integers. Throws Error where an integer cannot hold the value.
template <class T>
T convert(double value) {
  if constexpr (is_whole<T>) {
    const double whole = std::trunc(value), end = std::ldexp(1, std::numeric_limits<T>::digits);
    if (!(whole < end && whole >= (std::is_signed_v<T> ? -end : 0))) [[unlikely]]
      fail("{} does not fit {}", value, name_of<T>());
  }
  return static_cast<T>(value);
}

// Converts an element, without passing integers through double, which may have too few bits.
template <class T>
T value_of(const Element& element) {
  if (!element.whole) return convert<T>(element.real);
  if constexpr (is_whole<T>) {
    const int64_t value = element.integer;
    const bool fits = sizeof(T) == sizeof value
                          ? std::is_signed_v<T> || value >= 0
                          : value == static_cast<int64_t>(static_cast<T>(value));
    if (!fits) [[unlikely]]
      fail("{} does not fit {}", value, name_of<T>());
    return static_cast<T>(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(element.integer);
  } else {
    return static_cast<T>(element.real);
  }
}

void check_index(int64_t i, const Shape& shape) {
  check(0 <= i && i < shape.size(), "element {} is out of range for shape {}", i, shape);
}

}  // namespace

Element internal::read_element(const void* at, DType dtype) {
  return visit_stored(dtype, [&]<class E>() -> Element {
    const E value = *static_cast<const E*>(at);
    if constexpr (std::is_integral_v<E>) return {true, value, static_cast<double>(value)};
    return {false, 0, static_cast<double>(value)};
  });
}

double internal::rounded(double x, DType dtype) {
  return visit_stored(dtype, [&]<class E>() -> double {
    if constexpr (std::is_integral_v<E>) return x;
    return static_cast<double>(static_cast<E>(x));
  });
}

// Constructs the view in place: copying it just after its fields were written would stall on store
// forwarding.
inline Tensor::Impl::Impl(const Shape& shape, DType dtype, Device device)
    : view{nullptr, dtype, Layout(shape)},
      storage(make_pooled<Storage>(bytes_of(shape, dtype), device)) {
  view.data = storage->data();
}

Tensor::Tensor(const std::shared_ptr<Storage>& storage, const View& view)
    : impl_(make_pooled<Impl>(storage, view.data, view.dtype, view.layout)) {}

Dims::Dims(std::initializer_list<int> dims) : vector(dims) {}
Dims::Dims(std::vector<int> dims) : vector(std::move(dims)) {}

Tensor::Tensor(const Shape& shape, DType dtype, Device device)
    : impl_(make_pooled<Impl>(shape, dtype, device)) {}

void Tensor::refuse_none() { fail("the tensor is undefined: default-constructed or moved from"); }

void Tensor::require_dtype(DType wanted) const {
  check(dtype() == wanted, "the tensor is {}, not {}", dtype(), wanted);
}

template <detail::Number T>
T Tensor::item() const {
  check(numel() == 1, "item() needs one element, but {} has {}", shape(), numel());
  return at<T>(0);
}

void* Tensor::host() const {
  ++effects.reads;
  if (!device().is_host()) [[unlikely]]
    fail("the host cannot reach a tensor on {}; bring it with .to(Device::cpu())", device());
  return raw();
}

// Element i, which may lie on a device.
static Element element_of(const Tensor& x, int64_t i) {
  check_index(i, x.shape());
  ++effects.reads;
  const size_t size = size_of(x.dtype());
  const char* const p = static_cast<const char*>(x.raw()) + x.layout().at(i) * int64_t(size);
  if (x.device().is_host()) return read_element(p, x.dtype());
  alignas(8) char value[8];
  x.storage()->touch();
  copy_bytes(value, Device::cpu(), p, x.device(), size);
  return read_element(value, x.dtype());
}

template <detail::Number T>
T Tensor::at(int64_t i) const {
  const FloatMode mode;
  return value_of<T>(element_of(*this, i));
}

void Tensor::set(int64_t i, double value) const {
  check_index(i, shape());
  ++effects.writes;
  const FloatMode mode;
  check(!impl_->grad_fn || !thread_state.recording,
        "set() of the result of a recorded op, which would make its gradient wrong (make a new "
        "tensor by where or index_put, set() a detach(), or open a NoGrad)");
  visit_stored(dtype(), [&]<class T>() {
    T* const p = static_cast<T*>(raw()) + layout().at(i);
    const T converted = convert<T>(value);
    impl_->storage->begin_write();
    impl_->storage->touch();
    copy_bytes(p, device(), &converted, Device::cpu(), sizeof converted);
  });
  impl().storage->bump_version();
}

Tensor Tensor::detach() const {
  const Tensor t(impl().storage, impl().view);
  t.mark_end(is_end());
  return t;
}

bool Tensor::is_contiguous(MemoryFormat format) const {
  return format == MemoryFormat::ChannelsLast ? layout().is_channels_last() : is_contiguous();
}
Tensor Tensor::like_in_order(DType dtype) const {
  if (has_padded_rows(*this)) return with_padded_rows(shape(), dtype, device());
  const Tensor t(shape(), dtype, device());
  return format_of(layout()) == MemoryFormat::ChannelsLast ? t.with_layout(channels_last(shape()))
                                                           : t;
}
Tensor internal::with_padded_rows(const Shape& shape, DType dtype, Device device) {
  if (device.is_like_cpu() || !pads_rows(shape)) return Tensor(shape, dtype, device);
  const Layout rows = padded_rows(shape);
  Shape whole = shape;
  whole[-1] = rows.strides[-2];
  return Tensor(whole, dtype, device).with_layout(rows);
}
Tensor Tensor::with_layout(const Layout& layout) const {
  const auto [first, last] = extent(layout);
  const int64_t before = offset();
  const int64_t stored = static_cast<int64_t>(impl().storage->bytes() >> log2_size_of(dtype()));
  check((0 <= before + first && before + last < stored) || layout.shape.size() == 0,
        "elements {} to {} are out of range for a storage of {}", before + first, before + last,
        stored);
  Tensor view;
  view.impl_ = make_pooled<Impl>(
      impl_->storage, static_cast<char*>(raw()) + layout.offset * int64_t(size_of(dtype())),
      dtype(), layout);
  view.impl_->view.layout.offset = 0;
  view.mark_end(is_end());
  return view;
}

Tensor Tensor::copied_to(Device target) const {
  if (target == device()) return *this;
  ++effects.reads;
  const auto [first, last] = extent(layout());
  const Tensor copy({numel() == 0 ? 0 : last - first + 1}, dtype(), target);
  impl_->storage->touch();
  const auto size = int64_t(size_of(dtype()));
  copy_bytes(copy.raw(), target, static_cast<const char*>(raw()) + first * size, device(),
             size_t(copy.numel() * size));
  return copy.with_layout(layout().at_offset(-first));
}

void Tensor::set_data(const Tensor& other) const {
  check(shape() == other.shape(), "the data must have shape {1}, got {0}", other.shape(), shape());
  check(!is_leaf() || is_float(other.dtype()),
        "the data of a tensor that requires a gradient must be floats, got {}", other.dtype());
  ++effects.writes;
  if (impl().autograd_meta) impl().autograd_meta->on_set_data(other);
  const auto source = other.impl_;
  impl().storage = source->storage;
  impl().view = source->view;
}

const Tensor& Tensor::set_requires_grad(bool on) const {
  check(!impl().grad_fn, "set_requires_grad() of the result of an op (detach() it first)");
  check(!on || is_float(dtype()), "only float tensors can require a gradient, got {}", dtype());
  impl().requires_grad = on;
  return *this;
}

Tensor from(std::span<const double> values, const Shape& shape, DType dtype) {
  check(static_cast<int64_t>(values.size()) == shape.size(),
        "{} values for the shape {}, which needs {}", values.size(), shape, shape.size());
  const Tensor out(shape, dtype, Device::cpu());
  const FloatMode mode;
  visit_stored(dtype, [&]<class T>() {
    std::transform(values.begin(), values.end(), out.data<T>(), convert<T>);
  });
  return out.copied_to(DefaultDevice::current());
}

Tensor from(std::initializer_list<double> values, const Shape& shape, DType dtype) {
  return from(std::span(values.begin(), values.size()), shape, dtype);
}
detail::Braces::Braces(std::initializer_list<Braces> rows)
    : shape{static_cast<int64_t>(rows.size())} {
  for (const Braces& row : rows) {
    const Shape &first = rows.begin()->shape, &found = row.shape;
    check(found == first, "rows must have one shape, got {} and {}", first, found);
    numbers.insert(numbers.end(), row.numbers.begin(), row.numbers.end());
  }
  if (rows.size() > 0) shape = joined(shape, rows.begin()->shape);
}
Tensor tensor(const detail::Braces& values, DType dtype) {
  return from(values.numbers, values.shape, dtype);
}

Tensor detail::from_memory(const std::shared_ptr<void>& data, const Layout& layout, DType dtype,
                           Device device) {
  if (layout.shape.size() == 0) return Tensor(layout.shape, dtype, device);  // nothing to share
  check(data != nullptr, "data is a null pointer for {} of {}", layout.shape, dtype);
  const auto size = static_cast<int64_t>(size_of(dtype));
  const auto misfit =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(data.get()) % uintptr_t(size));
  check(misfit == 0, "{} elements must be aligned to {} bytes, got data {} bytes after a multiple",
        dtype, size, misfit);
  const auto* const bytes = static_cast<const unsigned char*>(data.get());
  for (int64_t i = 0; dtype == boolean && device.is_host() && i < layout.shape.size(); ++i) {
    const int byte = bytes[layout.at(i)];
    check(byte <= 1, "bool elements must be 0 or 1, got {} (element {})", byte, i);
  }
  device.require();
  const auto [first, last] = extent(layout);
  char* const begin = static_cast<char*>(data.get()) + first * size;
  std::shared_ptr<void> owner(data, begin);
  if (!device.is_host())  // the owner does not know its streams
    owner.reset(begin, [data, device](void*) {
      try {
        count_synchronization();
        runtime::of(device.type).finish(device.index);
      } catch (const Error&) {
        // The device has failed; its next use throws.
      }
    });
  const auto storage = make_pooled<Storage>(std::move(owner),
                                            static_cast<size_t>((last - first + 1) * size), device);
  return Tensor(storage, View{begin, dtype, Layout({last - first + 1})})
      .with_layout(layout.at_offset(layout.offset - first));
}

template <detail::Number T>
std::vector<T> to_vector(const Tensor& x) {
  ++effects.reads;
  const Tensor here = x.copied_to(Device::cpu());
  std::vector<T> out(static_cast<size_t>(x.numel()));
  const FloatMode mode;
  const auto* const data = static_cast<const char*>(here.raw());
  const auto size = static_cast<int64_t>(size_of(x.dtype()));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] =
        value_of<T>(read_element(data + x.layout().at(static_cast<int64_t>(i)) * size, x.dtype()));
  return out;
}

#define MIXTAPE_READ_AS(T)              \
  template T Tensor::item() const;      \
  template T Tensor::at(int64_t) const; \
  template std::vector<T> to_vector(const Tensor&);
MIXTAPE_NUMBERS(MIXTAPE_READ_AS)
#undef MIXTAPE_READ_AS

}  // namespace mixtape
