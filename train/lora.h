#pragma once
// Adapters of nn/lora.h in folders, in the format of Hugging Face's PEFT.

#include <string>
#include <string_view>

#include "nn/lora.h"

namespace mixtape::train {

// Writes adapter_model.safetensors and adapter_config.json, which
// PeftModel.from_pretrained reads; `options` are those of add_lora.
void save_lora(const std::string& folder, nn::ModuleBase& net, const nn::LoraOptions& options);

// The options in the text of an adapter_config.json. Throws Error that begins with `name` if it is
// invalid or describes another kind of adapter than LoRA.
nn::LoraOptions parse_lora_config(std::string_view json, const std::string& name);

// Gives `net` the adapters of a folder, in their dtype, and returns their options. If they are of
// another kind than LoRA or do not fit, or if a save was interrupted between the two files and
// changed r or lora_alpha, throws Error before the net changes.
nn::LoraOptions load_lora(const std::string& folder, nn::ModuleBase& net);

}  // namespace mixtape::train
