#pragma once
// Adapters of nn/lora.h in folders, as Hugging Face's PEFT has them.

#include <string>
#include <string_view>

#include "nn/lora.h"

namespace mixtape::train {

// Writes adapter_model.safetensors and adapter_config.json, which
// PeftModel.from_pretrained reads; `options` are those of add_lora.
void save_lora(const std::string& folder, nn::ModuleBase& net, const nn::LoraOptions& options);

// Options from the text of an adapter_config.json. Throws Error that begins with `name` if it is
// invalid or is of another kind than LoRA.
nn::LoraOptions parse_lora_config(std::string_view json, const std::string& name);

// Gives `net` the adapters of a folder, with their options, which are returned, and in their
// dtype. Throws Error, before the net changes, if they are of another kind than LoRA or do not fit.
nn::LoraOptions load_lora(const std::string& folder, nn::ModuleBase& net);

}  // namespace mixtape::train
