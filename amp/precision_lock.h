#pragma once
// expect_precision: tests that an edit changed no precision, by comparison with a file written by
// Report::lock().

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace mixtape::amp {

namespace detail {
void run_both_ways(const Tensor& y, const std::vector<Tensor>& parameters);
}  // namespace detail

// Throws Error with the lines that differ unless the ops that `run` calls have the precisions in
// the file.
void expect_precision(const std::string& path, const std::function<void()>& run);
// The same for net(x) and a backward pass of ones. No grad() changes, but running statistics do.
template <class Net>
void expect_precision(Net& net, const Tensor& x, const std::string& path) {
  expect_precision(path, [&] { detail::run_both_ways(net(x), net.parameters()); });
}

}  // namespace mixtape::amp
