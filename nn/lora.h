#pragma once
// LoRA (Hu et al. 2021): instead of its weight W, a Linear, or a Conv1D of GPT-2, learns an
// adapter, the product of two small matrices that is added to W. Names are those of Hugging Face's
// PEFT.
//
//   nn::add_lora(net, {.rank = 8, .alpha = 16, .targets = {"q_proj", "v_proj"}});
//   optim::AdamW opt(net.parameters(), {.lr = 1e-4});  // skips what is frozen

#include <optional>
#include <string>
#include <vector>

#include "nn/module.h"

namespace mixtape::nn {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 8;    // the adapter's product is multiplied by alpha / rank
  double dropout = 0;  // of the adapter's inputs, in training
  // The last names of layers that get one, or whole paths; empty: every Linear and Conv1D.
  std::vector<std::string> targets = {};
  std::optional<DType> dtype = {};  // of the adapters; none: that of the weight
};
// Freezes all parameters but adapters, and gives adapters to the target layers in `net`. B starts
// as zeros, so that results stay. Returns the paths of those layers. Throws Error if a target is no
// Linear or Conv1D, or its weight is another layer's, too, or if none is found.
std::vector<std::string> add_lora(ModuleBase& net, const LoraOptions& options = {});
// The same, with values under PEFT's names. Throws Error, before the net changes, if names or
// shapes differ.
std::vector<std::string> add_lora(ModuleBase& net, const LoraOptions& options,
                                  const StateDict& values);

// Adds each adapter to its weight, and removes it: results stay, up to rounding. Parameters stay
// frozen.
void merge_lora(ModuleBase& net);

// A layer with an adapter. Its weight is [out, in], or [in, out] (PEFT's fan_in_fan_out).
struct LoraLayer {
  std::string path;
  bool fan_in_fan_out;
  int64_t rank;
  double scale;  // alpha / rank
};
std::vector<LoraLayer> lora_layers(ModuleBase& net);

// The adapters under PEFT's names, base_model.model.PATH.lora_A.weight, sharing their storage.
StateDict lora_state_dict(ModuleBase& net);
// Copies values into the adapters that add_lora made. Throws Error, before writing anything, if
// names or shapes differ.
void load_lora_state_dict(ModuleBase& net, const StateDict& from);

}  // namespace mixtape::nn
