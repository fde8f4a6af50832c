#pragma once
// Optimizer state of PyTorch, to resume a training that it began.

#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace mixtape::optim {

// Loads torch's optimizer.state_dict(), flattened to names: "state.0.exp_avg", with parameters
// counted over all groups, and "param_groups.0.lr". With `names`, PyTorch's names of params() in
// order, these may stand for numbers, as in "state.layer.weight.exp_avg" and
// "param_groups.layer.weight.lr" (torch.distributed.checkpoint with flatten_optimizer_state_dict).
// "betas" is one tensor of two, or "betas.0" and "betas.1". Missing options stay as they are;
// options that only PyTorch has
// ("foreach", "params") are ignored. Throws Error, and changes nothing, if anything else does not
// fit, or if parameters of one group have different options.
void load_torch_state_dict(Optimizer& optimizer, const StateDict& dict,
                           const std::vector<std::string>& names = {});

}  // namespace mixtape::optim
