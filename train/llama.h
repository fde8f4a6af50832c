#pragma once
// load_llama: reads a Llama from a folder in Hugging Face's format.

#include <string>
#include <string_view>
#include <vector>

#include "nn/models/llama.h"

namespace mixtape::train {

// The content of a config.json.
struct LlamaFile {
  models::LlamaConfig config;
  std::vector<int64_t> begin_of_text = {};  // the token with which texts begin, or none
  std::vector<int64_t> end_of_text = {};    // tokens at which generation ends
};
// Throws Error that begins with `name` if the text is invalid or describes another model.
LlamaFile parse_llama_config(std::string_view json, const std::string& name);

struct LoadedLlama : LlamaFile {  // the model with its weights
  models::Llama net;
};
// Reads config.json and model.safetensors, or the files that model.safetensors.index.json names.
// The model is f32 on the default device.
LoadedLlama load_llama(const std::string& folder);

}  // namespace mixtape::train
