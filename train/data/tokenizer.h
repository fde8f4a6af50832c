#pragma once
// Tokenizer: byte-level byte-pair encoding, of GPT-2's files and of tokenizer.json.

#include <memory>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace mixtape::train {

struct EncodeOptions {
  bool added =
      true;  // the name of an added token, such as <|endoftext|>, becomes it; else plain text
};

class Tokenizer {
 public:
  // Reads Hugging Face's tokenizer.json, or GPT-2's vocab.json (or encoder.json) with the
  // merges.txt (or vocab.bpe) beside it. Throws Error that names the file if it is invalid, or has
  // a model, a normalizer or a pre_tokenizer other than those of GPT-2, Llama 3 and Qwen 2 without
  // NFC.
  static Tokenizer load(const std::string& path);
  // Parses such files in memory; errors call them `name`. Without merges, `json` is a
  // tokenizer.json.
  static Tokenizer parse(std::string_view json, std::string_view merges, const std::string& name);

  // Tokens i64 [n], of any bytes: what is no UTF-8 is read as U+FFFD. Adds no tokens at begin and
  // end.
  Tensor encode(std::string_view text, const EncodeOptions& options = {}) const;
  // The bytes of tokens; a token may end within a character. Throws Error on an unknown token.
  std::string decode(const Tensor& tokens) const;

  int64_t size() const;  // the largest token plus one
  // The token with these bytes: id("<|endoftext|>"). Throws Error if there is none.
  int64_t id(std::string_view token) const;

 private:
  struct Data;
  explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

  std::shared_ptr<const Data> data_;  // shared by copies
};

}  // namespace mixtape::train
