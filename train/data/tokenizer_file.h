#pragma once
// The contents of tokenizer files.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/data/pretokenizer.h"

namespace mixtape::train {

struct AddedToken {
  std::string text;
  int64_t id = -1;
  bool lstrip = false, rstrip = false;  // takes spaces before or after it
  bool special = true;                  // it is not text
};

struct TokenizerFile {
  std::vector<std::pair<std::string, int64_t>> vocabulary;  // in GPT-2's letters for bytes
  std::vector<std::pair<std::string, std::string>> merges;  // in order of priority
  std::vector<AddedToken> added;
  Pretokenizer pretokenizer;
  bool ignore_merges = false;  // a piece in the vocabulary is a token, whatever the merges
};

// Reads tokenizer.json, or vocab.json (or encoder.json) with the merges.txt (or vocab.bpe) beside
// it.
TokenizerFile load_tokenizer_file(const std::string& path);
// Parses a tokenizer.json, or a vocab.json and its merges.txt. Throws Error that begins with
// `name`.
TokenizerFile parse_tokenizer(std::string_view json, std::string_view merges,
                              const std::string& name);

// Sets the bytes of a token that is written in GPT-2's letters for bytes; false if it is not.
bool bytes_of_letters(std::string_view letters, std::string& bytes);

}  // namespace mixtape::train
