#pragma once
// StandIns: other values that tensors show while a guard is alive.

#include <vector>

#include "core/no_copy.h"
#include "core/tensor.h"

namespace mixtape::optim {

// The tensors' own storages stay as they are and return at the end, so masters and 16-bit copies
// notice nothing.
class StandIns : NoCopy {
 public:
  StandIns();  // shows no other values yet
  ~StandIns();
  void put(const Tensor& t, const Tensor& value);  // all handles to `t` see `value`
  // put() for a parameter or this process's piece of one. All processes must call it.
  void put_joined(const Tensor& t, const Tensor& value);
  void keep();  // leaves the values for good

 private:
  std::vector<Tensor> tensors_, values_;  // the tensors and their former values
};

}  // namespace mixtape::optim
