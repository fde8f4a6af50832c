#pragma once
// Resuming a training that PyTorch began.

#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace mixtape::optim {

// Loads what torch's optimizer.state_dict() holds, flattened to names: "state.0.exp_avg", with the
// parameters counted over all groups, and "param_groups.0.lr". Names that a parameter is known by
// in PyTorch may stand for numbers, as in "state.layer.weight.exp_avg" and
// "param_groups.layer.weight.lr" (torch.distributed.checkpoint with flatten_optimizer_state_dict):
// `names`, in the order of params(). "betas" are beta1 and beta2, one tensor of two or "betas.0"
// and "betas.1". Options that are not there stay as they are; options that only PyTorch has
// ("foreach", "params") are passed over. Throws Error, and changes nothing, if something else does
// not fit, or if parameters of one group have options that differ.
void load_torch_state_dict(Optimizer& optimizer, const StateDict& dict,
                           const std::vector<std::string>& names = {});

}  // namespace mixtape::optim
