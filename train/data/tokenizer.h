#pragma once
// Tokenizer: byte-level byte-pair encoding, from GPT-2's files or tokenizer.json.

#include <memory>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace mixtape::train {

struct EncodeOptions {
  bool added = true;  // names of added tokens, such as <|endoftext|>, become tokens, not text
};

class Tokenizer {
 public:
  // Reads Hugging Face's tokenizer.json, or GPT-2's vocab.json (or encoder.json) with the
  // merges.txt (or vocab.bpe) beside it. Throws Error that names the file if it is invalid, or if
  // its model, normalizer or pre_tokenizer is none of those of GPT-2, Llama 3 and Qwen 2 without
  // NFC.
  static Tokenizer load(const std::string& path);
  // Parses such files in memory, which errors call `name`. Without merges, `json` is a
  // tokenizer.json.
  static Tokenizer parse(std::string_view json, std::string_view merges, const std::string& name);

  // Tokens i64 [n] of any bytes; invalid UTF-8 is read as U+FFFD. Adds no tokens at beginning and
  // end.
  Tensor encode(std::string_view text, const EncodeOptions& options = {}) const;
  // The bytes of tokens; a token may end within a character. Throws Error on an unknown token.
  std::string decode(const Tensor& tokens) const;

  int64_t size() const;  // the largest token plus one
  // The token with these bytes, as in id("<|endoftext|>"). Throws Error if there is none.
  int64_t id(std::string_view token) const;

 private:
  struct Data;
  explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

  std::shared_ptr<const Data> data_;  // shared by copies
};

}  // namespace mixtape::train
