#pragma once
// expect_precision: a test that an edit changes no precision, by a file that Report::lock() wrote.

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace mixtape::amp {

namespace detail {
void run_both_ways(const Tensor& y, const std::vector<Tensor>& parameters);
}  // namespace detail

// Throws Error that shows the lines which differ, unless the ops that `run` calls have the
// precisions in the file.
void expect_precision(const std::string& path, const std::function<void()>& run);
// The same for net(x) and its gradients. No grad() changes, but running statistics do.
template <class Net>
void expect_precision(Net& net, const Tensor& x, const std::string& path) {
  expect_precision(path, [&] { detail::run_both_ways(net(x), net.parameters()); });
}

}  // namespace mixtape::amp
