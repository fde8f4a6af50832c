#pragma once
// save_gguf: writes trained models as files of llama.cpp.

#include <string>

#include "nn/models/gpt.h"
#include "nn/models/llama.h"

namespace mixtape::train {

struct GgufOptions {
  DType dtype = f16;           // of matrices: f32, f16 or bf16; vectors and positions stay f32
  std::string tokenizer = {};  // tokenizer.json, or vocab.json beside merges.txt; "": no tokens
  std::string end_of_text = "<|endoftext|>";  // one of the tokenizer's added tokens; "": left out
  std::string begin_of_text = {};             // another; "": end_of_text
  std::string name = {};                      // of the model; "": its architecture
};
// Writes a GPT made with `config` for llama.cpp, with that program's names, weights in the order of
// nn::Linear, and the metadata of architecture gpt2; missing biases become zeros. Throws Error if
// net has another size, or if the tokenizer has more tokens or is unknown to llama.cpp.
void save_gguf(const std::string& path, const models::Gpt& net, const models::GptConfig& config,
               const GgufOptions& options = {});
// The same for a Llama, of architecture llama. llama.cpp rotates neighbours instead of halves, so
// rows of q_proj and k_proj are reordered: rows i and i + size / 2 of a head become 2 i and 2 i
// + 1.
void save_gguf(const std::string& path, const models::Llama& net, const models::LlamaConfig& config,
               const GgufOptions& options = {});

}  // namespace mixtape::train
