#pragma once
// Helpers for the tests of several ranks: their errors, bytes to compare, and parts of a batch.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/ops.h"
#include "core/state_dict.h"
#include "dist/part.h"
#include "tests/support/threads_engine.h"

namespace mixtape::dist {

// The errors that run_ranks() returns: no rank has one.
inline void expect_fine(const std::vector<std::string>& errors) {
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
}

inline std::string bytes_of(const StateDict& dict) {
  std::string all;
  for (const auto& [name, t] : dict) {
    const Tensor c = t.contiguous().copied_to(Device::cpu());
    all += name;
    all.append(static_cast<const char*>(c.raw()), c.nbytes());
  }
  return all;
}

// A batch as DataParallel::chunks() takes it.
struct Batch {
  Tensor x, y;
  std::vector<Tensor> more = {};
  int64_t of_step = 0;
};

// The rows of a step's batch of n that a rank has.
inline Batch own_part(const Part& part, const Tensor& x, const Tensor& y) {
  const int64_t n = x.size(0), first = part.begin(n), own = part.end(n) - first;
  return {narrow(x, 0, first, own), narrow(y, 0, first, own), {}, n};
}

}  // namespace mixtape::dist
