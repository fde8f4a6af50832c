#pragma once
// Trained models as files of llama.cpp.

#include <string>

#include "nn/models/gpt.h"
#include "nn/models/llama.h"

namespace mixtape::train {

struct GgufOptions {
  DType dtype = f16;           // of matrices: f32, f16 or bf16; vectors and positions stay f32
  std::string tokenizer = {};  // tokenizer.json, or vocab.json beside merges.txt; none: no tokens
  std::string end_of_text = "<|endoftext|>";  // of the tokenizer's added tokens; none: left out
  std::string begin_of_text = {};             // likewise; none: end_of_text
  std::string name = {};                      // of the model; none: its architecture
};
// Writes a GPT made with `config` for llama.cpp, with its names, its order of weights (that of
// nn::Linear) and the metadata of architecture gpt2; biases that are missing are zeros. Throws
// Error if net is of another size, or if the tokenizer has more tokens or is none that llama.cpp
// knows.
void save_gguf(const std::string& path, const models::Gpt& net, const models::GptConfig& config,
               const GgufOptions& options = {});
// Likewise a Llama, of architecture llama. The rows of q_proj and k_proj are in the order of
// llama.cpp, which rotates neighbours and not halves: row i and row i + size / 2 of a head become
// 2 i and 2 i + 1.
void save_gguf(const std::string& path, const models::Llama& net, const models::LlamaConfig& config,
               const GgufOptions& options = {});

}  // namespace mixtape::train
