#pragma once
// LoRA (Hu et al. 2021): instead of its weight W, a Linear (or a Conv1D of GPT-2) learns an
// adapter, the product of two small matrices, which is added to W. Names are those of Hugging
// Face's PEFT.
//
//   nn::add_lora(net, {.rank = 8, .alpha = 16, .targets = {"q_proj", "v_proj"}});
//   optim::AdamW opt(net.parameters(), {.lr = 1e-4});  // skips frozen parameters

#include <optional>
#include <string>
#include <vector>

#include "nn/module.h"

namespace mixtape::nn {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 8;    // the adapter's product is multiplied by alpha / rank
  double dropout = 0;  // of the adapter's inputs, in training
  // The layers that get an adapter, by last name or whole path; empty: every Linear and Conv1D.
  std::vector<std::string> targets = {};
  std::optional<DType> dtype = {};  // of the adapters; by default the weight's
};
// Freezes all parameters but adapters, and gives adapters to the target layers in `net`, whose
// paths it returns. B starts as zeros, so results do not change. Throws Error if a target is
// neither a Linear nor a Conv1D or shares its weight with another layer, or if there is no target.
std::vector<std::string> add_lora(ModuleBase& net, const LoraOptions& options = {});
// The same, with values under PEFT's names. Throws Error, before the net changes, if names or
// shapes differ.
std::vector<std::string> add_lora(ModuleBase& net, const LoraOptions& options,
                                  const StateDict& values);

// Adds each adapter to its weight and removes it. Results stay the same, up to rounding, and
// parameters stay frozen.
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
