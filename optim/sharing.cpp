#include "optim/sharing.h"

#include "autograd/autograd_meta.h"
#include "core/check.h"
#include "core/int_math.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"

namespace mixtape::optim {
using namespace internal;

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

bool Optimizer::Group::is_elsewhere(const Tensor& p) const {
  return algorithm->reads() == Reads::Parameter && p.numel() == 0 && sharing_of(p);
}

// A step on pieces that needs norms of whole parameters: between its two passes, processes join the
// squares of their blocks.
void Optimizer::update_by_norms(const Group& group, const std::vector<Tensor>& params,
                                Sharing& sharing, StepControl control) {
  const Device device = params[0].device();
  const auto blocks = [](const Tensor& t) { return ceil_div(t.numel(), kernels::norm_block); };
  const auto pass = [&](kernels::Pass pass, const Tensor& squares, auto blocks_of) {
    int64_t first = 0;
    for (size_t i = 0; i < params.size(); ++i) {
      const int64_t n = blocks_of(params[i]);
      updates_[i].norms = squares.with_layout(Layout({n, 2}, {2, 1}, 2 * first));
      first += n;
    }
    control.pass = pass;
    group.algorithm->update(device, updates_, control);
  };
  int64_t own = 0;
  for (const Tensor& p : params) own += blocks(p);
  const Tensor squares = filled({own, 2}, 0, f64, device);
  pass(kernels::Pass::Measure, squares, blocks);
  const Tensor all = sharing.join(params, squares, {}, /*steps=*/true);
  pass(kernels::Pass::Move, all,
       [&](const Tensor& p) { return blocks(sharing_of(p) ? sharing.whole_of(p) : p); });
}

}  // namespace mixtape::optim
