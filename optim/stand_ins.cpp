#include "optim/stand_ins.h"

#include "optim/sharing.h"

namespace mixtape::optim {

StandIns::StandIns() = default;
// In reverse, so that a tensor listed twice gets its first value back.
StandIns::~StandIns() {
  for (size_t i = tensors_.size(); i-- > 0;) tensors_[i].set_data(values_[i]);
}

void StandIns::put(const Tensor& t, const Tensor& value) {
  tensors_.push_back(t);
  values_.push_back(t.detach());
  t.set_data(value);
}

void StandIns::put_joined(const Tensor& t, const Tensor& value) {
  const auto sharing = sharing_of(t);
  if (!sharing) return put(t, value);
  put(sharing->whole_of(t), sharing->joined(t, value).copied_to(t.device()));
}

void StandIns::keep() {
  tensors_.clear();
  values_.clear();
}

}  // namespace mixtape::optim
