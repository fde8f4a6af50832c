#pragma once
// Indexing as in NumPy: x(Slice(1, 3), 0), x(Ellipsis, mask), x[i] = v. Integers, slices (also with
// a negative step), None and Ellipsis give a view. Integer tensors and bool masks give a copy;
// masks wait for the device. Dimensions indexed by tensors stay where the first of them is, or come
// first of all if a Slice, None or Ellipsis separates such indices (integers beside them count,
// too).

#include <concepts>
#include <initializer_list>
#include <memory>
#include <optional>
#include <type_traits>

#include "core/tensor.h"

namespace mixtape {

inline constexpr std::nullopt_t None = std::nullopt;  // a new dimension, or a bound left out
inline constexpr struct EllipsisType {
} Ellipsis;  // whole dimensions, as many as the other indices leave

// Python's start:stop:step; Slice() is a whole dimension.
struct Slice {
  std::optional<int64_t> start, stop;
  int64_t step = 1;

  Slice() = default;
  Slice(std::optional<int64_t> first, std::optional<int64_t> end, int64_t by = 1)
      : start(first), stop(end), step(by) {}    // a negative bound counts from the end
  explicit Slice(std::integral auto) = delete;  // x[1:] is x(Slice(1, None)), x[:1] Slice(None, 1)
};

namespace internal {

// One index: an integer, a Slice, None, Ellipsis or a tensor.
struct Index {
  enum class Kind : uint8_t { Integer, Slice, None, Ellipsis, Tensor };
  Kind kind;
  mixtape::Slice slice;  // or, in `start` alone, the integer
  mixtape::Tensor tensor;

  // Implicit, so that x(0, None, Slice(1, 3), mask) takes all of them.
  template <class I>
    requires(std::is_integral_v<I> && !std::is_same_v<I, bool>)
  Index(I i) : kind(Kind::Integer), slice(static_cast<int64_t>(i), None) {}
  Index(const mixtape::Slice& s) : kind(Kind::Slice), slice(s) {}
  Index(std::nullopt_t) : kind(Kind::None) {}
  Index(EllipsisType) : kind(Kind::Ellipsis) {}
  Index(const mixtape::Tensor& t) : kind(Kind::Tensor), tensor(t) {}
};

// The result of x(...) and x[...]: a tensor like any other. But assigning to the temporary, as in
// x(...) = v and x(...) += v, writes to those elements of x, by the rules of ops in place.
class Indexed : public Tensor {
 public:
  Indexed(const Tensor& x, std::initializer_list<Index> indices);  // throws Error unless they fit x
  Indexed(Indexed&& x, std::initializer_list<Index> indices);      // of a temporary
  Indexed(const Indexed&) = default;

  // v broadcasts to the elements, and is converted to their dtype.
  const Tensor& operator=(const Tensor& v) && { return put(v), v; }
  const Tensor& operator=(const Indexed& v) && { return put(v), v; }
  double operator=(double v) && { return put(v), v; }
  void operator+=(const Tensor& v) &&;
  void operator-=(const Tensor& v) &&;
  void operator*=(const Tensor& v) &&;
  void operator/=(const Tensor& v) &&;
  void operator+=(double v) &&;
  void operator-=(double v) &&;
  void operator*=(double v) &&;
  void operator/=(double v) &&;

  // Assignment to a variable of this type replaces its value, as of any Tensor.
  Indexed& operator=(const Tensor& v) & {
    Tensor::operator=(v);
    plan_ = nullptr;
    return *this;
  }
  Indexed& operator=(const Indexed&) & = default;

  template <class... I>
  Indexed operator()(const I&... indices) const& {
    return {*this, {Index(indices)...}};
  }
  template <class... I>
  Indexed operator()(const I&... indices) && {
    return {std::move(*this), {Index(indices)...}};
  }
  template <class I>
  Indexed operator[](const I& index) const& {
    return {*this, {Index(index)}};
  }
  template <class I>
  Indexed operator[](const I& index) && {
    return {std::move(*this), {Index(index)}};
  }

 private:
  bool is_written_itself(bool history) const;
  void put(const Tensor& values);
  void put(double value);
  template <class F>
  void update(bool history, const F& f);

  std::shared_ptr<void> plan_;  // the parsed indices; null once a variable has another value
};

}  // namespace internal

template <class... I>
  requires(std::is_constructible_v<internal::Index, const I&> && ...)
internal::Indexed Tensor::operator()(const I&... indices) const {
  return {*this, {internal::Index(indices)...}};
}
template <class I>
  requires std::is_constructible_v<internal::Index, const I&>
internal::Indexed Tensor::operator[](const I& index) const {
  return {*this, {internal::Index(index)}};
}

}  // namespace mixtape
