#pragma once
// CharText: a text as character tokens, for models that predict the next one.

#include "train/data/dataset.h"

namespace mixtape::train {

// Windows into a sequence of tokens: x is i64 [context], and y is the same shifted by one. Example
// i begins at token i * stride. An incomplete last window is left out.
class Windows final : public Dataset {
 public:
  Windows() = default;  // empty
  // Throws Error unless tokens are integers [n] on the CPU and both sizes are positive.
  Windows(Tensor tokens, int64_t context, int64_t stride, std::string name = "tokens");

  std::string name() const override { return name_; }
  int64_t size() const override;
  Example get(int64_t i) const override;

  const Tensor& tokens() const { return tokens_; }  // i64 or another integer, [n]

 private:
  Tensor tokens_;
  int64_t context_ = 1, stride_ = 1;
  std::string name_;
};

struct CharTextOptions {
  int64_t context = 64;         // characters per window
  int64_t stride = 0;           // between starts of windows; 0: context, without overlaps
  double valid_fraction = 0.1;  // the validation part at the end of the text
  uint64_t max_memory = 0;      // bytes that load() may take; 0: see io::memory_limit
};

class CharText {
 public:
  // Throws Error if the text is not UTF-8, or a part is shorter than a window plus one character.
  explicit CharText(std::string_view text, const CharTextOptions& options = {},
                    const std::string& name = "text");
  // Reads a file as UTF-8; errors name it.
  static CharText load(const std::string& path, const CharTextOptions& options = {});

  // The distinct characters (code points) of the text, sorted; a token is an index into them.
  const std::vector<std::string>& vocabulary() const { return vocabulary_; }
  // Tokens i64 [n]. Throws Error that names a character outside the vocabulary.
  Tensor encode(std::string_view text) const;
  std::string decode(const Tensor& tokens) const;  // throws Error on an invalid token

  const Windows& train() const { return parts_.train; }  // all but the end of the text
  const Windows& valid() const { return parts_.valid; }  // the end of the text

 private:
  std::vector<std::string> vocabulary_;
  Split<Windows> parts_;
};

}  // namespace mixtape::train
