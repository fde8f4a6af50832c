#include "optim/sharing.h"

#include "autograd/autograd_meta.h"
#include "core/check.h"

namespace mixtape::optim {

std::shared_ptr<Sharing> sharing_of(const Tensor& t) {
  return std::static_pointer_cast<Sharing>(t.autograd_meta().sharing);
}

std::shared_ptr<Sharing> sharing_of(const std::vector<Tensor>& tensors) {
  std::shared_ptr<Sharing> all;
  for (const Tensor& t : tensors) {
    const std::shared_ptr<Sharing> sharing = sharing_of(t);
    if (!all) all = sharing;
    check(!sharing || sharing == all, "parameters of several Shards have no norm in common");
  }
  return all;
}

std::vector<Tensor> own_pieces(std::vector<Tensor> params) {
  for (Tensor& p : params)
    if (const auto sharing = sharing_of(p)) p = sharing->piece_of(p);
  return params;
}

}  // namespace mixtape::optim
