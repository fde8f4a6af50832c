#pragma once
// InlineVector: a vector with inline storage for N elements, so that the few inputs of an op cost
// no allocation. Beyond N it grows onto the heap. A minimal interface.

#include <cstddef>
#include <initializer_list>
#include <new>
#include <type_traits>
#include <utility>

#include "core/cxx20.h"

namespace mixtape {

template <class T, size_t N>
class InlineVector {
 public:
  InlineVector() {}  // (If it were defaulted, `= {}` would fill the inline storage with zeros.)
  InlineVector(std::initializer_list<T> values) {
    for (const T& v : values) emplace_back(v);
  }
  InlineVector(const InlineVector& other) {
    for (const T& v : other) emplace_back(v);
  }
  InlineVector(InlineVector&& other) noexcept { take(other); }
  InlineVector& operator=(InlineVector other) noexcept {
    clear();
    take(other);
    return *this;
  }
  // Inlined, so that an empty one costs a comparison.
  [[gnu::always_inline]] ~InlineVector() {
    if (heap_ || (size_ != 0 && !std::is_trivially_destructible_v<T>)) free();
  }

  T& push_back(T value) { return emplace_back(std::move(value)); }
  template <class... A>
  T& emplace_back(A&&... args) {  // args must not refer to elements
    if (size_ == capacity_) grow();
    return *new (begin() + size_++) T{std::forward<A>(args)...};
  }
  void pop_back() { begin()[--size_].~T(); }
  void clear() {
    free();
    size_ = 0;
    heap_ = nullptr;
    capacity_ = N;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return begin(); }
  const T* data() const { return begin(); }
  T* begin() { return heap_ ? heap_ : reinterpret_cast<T*>(inline_); }
  T* end() { return begin() + size_; }
  const T* begin() const { return heap_ ? heap_ : reinterpret_cast<const T*>(inline_); }
  const T* end() const { return begin() + size_; }
  T& operator[](size_t i) { return begin()[i]; }
  const T& operator[](size_t i) const { return begin()[i]; }
  T& back() { return begin()[size_ - 1]; }

 private:
  [[gnu::noinline, gnu::cold]] void grow() {
    T* wider =
        static_cast<T*>(::operator new(2 * capacity_ * sizeof(T), std::align_val_t(alignof(T))));
    move_to(wider);
    free();
    heap_ = wider;
    capacity_ *= 2;
  }
  void move_to(T* to) noexcept {
    for (T& v : *this) new (to++) T(std::move(v));
  }
  [[gnu::noinline]] void free() {
    for (T& v : *this) v.~T();
    if (heap_) ::operator delete(heap_, std::align_val_t(alignof(T)));
  }
  void take(InlineVector& other) noexcept {
    if (other.heap_) {
      heap_ = std::exchange(other.heap_, nullptr);
      capacity_ = std::exchange(other.capacity_, N);
      size_ = std::exchange(other.size_, 0);
    } else {
      other.move_to(begin());
      size_ = other.size_;
      other.clear();
    }
  }

  alignas(T) unsigned char inline_[N * sizeof(T)];
  T* heap_ = nullptr;
  size_t size_ = 0, capacity_ = N;
};

}  // namespace mixtape
