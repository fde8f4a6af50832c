#pragma once
// Examples on their way into a batch: rows of one shape, and errors that name theirs.

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "core/tensor.h"

namespace mixtape::train {

// Copies rows of one shape and dtype into a tensor [n, ...], which the first row makes.
class Stack {
 public:
  Stack(std::string what, int64_t n) : what_(std::move(what)), n_(n) {}
  void put(int64_t row, const Tensor& from);  // throws Error if it is not like the first
  const Tensor& all() const { return all_; }

 private:
  std::string what_;
  int64_t n_;
  Shape row_;
  Tensor all_;
};

// Runs f; an exception from it becomes an Error that begins with name(), of the example.
template <class Name, class F>
void about(const Name& name, const F& f) {
  try {
    f();
  } catch (const std::exception& e) {
    throw Error(name() + ": " + e.what());
  }
}

}  // namespace mixtape::train
