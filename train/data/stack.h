#pragma once
// Helpers for assembling a batch: stacking rows of one shape, random numbers of each row, and
// errors that name the example.

#include <exception>

#include "core/tensor.h"

namespace mixtape::train {

// Copies rows of one shape and dtype into a tensor [n, ...], allocated at the first row.
class Stack {
 public:
  Stack(std::string what, int64_t n) : what_(std::move(what)), n_(n) {}
  void put(int64_t row, const Tensor& from);  // throws Error unless it is like the first row
  const Tensor& all() const { return all_; }

 private:
  std::string what_;
  int64_t n_;
  Shape row_;
  Tensor all_;
};

// The offset of the random numbers for a position in an epoch. Each example, which may occur more
// than once, has a million blocks (four million numbers), and so has each row in a gather().
inline uint64_t offset_at(int64_t position) { return uint64_t(position) << 20; }

// Runs f, and turns an exception into an Error that begins with name().
template <class Name, class F>
void about(const Name& name, const F& f) {
  try {
    f();
  } catch (const std::exception& e) {
    throw Error(name() + ": " + e.what());
  }
}

}  // namespace mixtape::train
