#pragma once
// StandIns: other values that tensors show while a guard is alive.

#include <utility>
#include <vector>

#include "core/no_copy.h"
#include "core/tensor.h"

namespace mixtape::optim {

// The storages of the tensors themselves, and so what masters and 16-bit copies know of them, stay
// as they are, and come back at the end.
class StandIns : NoCopy {
 public:
  StandIns() = default;
  // In reverse, so that a tensor listed twice gets its first value back.
  ~StandIns() {
    for (auto each = replaced_.rbegin(); each != replaced_.rend(); ++each)
      each->first.set_data(each->second);
  }
  // All handles to `t` see `value`.
  void put(const Tensor& t, const Tensor& value) {
    replaced_.emplace_back(t, t.detach());
    t.set_data(value);
  }
  void keep() { replaced_.clear(); }  // leaves the values for good

 private:
  std::vector<std::pair<Tensor, Tensor>> replaced_;  // tensors, and their former values
};

}  // namespace mixtape::optim
