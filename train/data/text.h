#pragma once
// CharText: a text as numbers of characters, for models that predict the next one.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "train/data/dataset.h"

namespace mixtape::train {

// Stretches of a sequence of tokens: x is `context` of them, i64 [context], and y the same moved on
// by one. Example i begins at token i * stride; tokens at the end that fill none are left out.
class Windows final : public Dataset {
 public:
  Windows() = default;  // none
  // Throws Error unless tokens are i64 [n] on the CPU, and both sizes positive.
  Windows(Tensor tokens, int64_t context, int64_t stride, std::string name = "tokens");

  std::string name() const override { return name_; }
  int64_t size() const override;
  Example get(int64_t i) const override;

  const Tensor& tokens() const { return tokens_; }

 private:
  Tensor tokens_;
  int64_t context_ = 1, stride_ = 1;
  std::string name_;
};

struct CharTextOptions {
  int64_t context = 64;         // characters that a model sees
  int64_t stride = 0;           // from one window to the next; 0: context, so that none overlap
  double valid_fraction = 0.1;  // at the end of the text
};

class CharText {
 public:
  // Throws Error if the text is not UTF-8, or either part is shorter than a window and one more.
  explicit CharText(std::string_view text, const CharTextOptions& options = {},
                    const std::string& name = "text");
  static CharText load(const std::string& path, const CharTextOptions& options = {});

  // The different characters (code points) of the text, sorted; a token is a place in it.
  const std::vector<std::string>& vocabulary() const { return vocabulary_; }
  // i64 [n]. Throws Error that names a character which the text does not have.
  Tensor encode(std::string_view text) const;
  std::string decode(const Tensor& tokens) const;  // throws Error on a number that is no token

  const Windows& train() const { return parts_.train; }
  const Windows& valid() const { return parts_.valid; }

 private:
  std::vector<std::string> vocabulary_;
  std::map<std::string, int64_t, std::less<>> tokens_;
  Split<Windows> parts_;
};

}  // namespace mixtape::train
