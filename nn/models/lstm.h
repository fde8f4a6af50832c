#pragma once
// LSTMs for text: a classifier and a language model.

#include <array>
#include <optional>

#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/models/language.h"
#include "nn/rnn.h"

namespace mixtape::models {

struct LstmClassifierOptions {
  int64_t embedding = 128, hidden = 256;  // sizes
  int64_t num_layers = 1;
  bool bidirectional = false;
  double dropout = 0;                       // in training, between layers and before the last
  std::optional<int64_t> padding_idx = {};  // the padding token, if any
};
// tokens i64 [b, t] -> logits [b, classes], from the state after the last token (in the reverse
// direction, the first). Pad texts on the left.
struct LstmClassifier : nn::Module<LstmClassifier> {
  nn::Embedding embedding;
  nn::LSTM lstm;
  nn::Dropout dropout;
  nn::Linear fc;

  LstmClassifier(int64_t vocabulary, int64_t classes, const LstmClassifierOptions& o = {});
  Tensor forward(const Tensor& tokens) const;
  MIXTAPE_FIELDS(embedding, lstm, dropout, fc)

 private:
  int64_t directions_;
};

struct LstmLanguageModelOptions {
  int64_t embedding = 200, hidden = 200;  // sizes
  int64_t num_layers = 2;
  double dropout = 0.2;      // in training, around and between layers
  bool tie_weights = false;  // decoder and encoder share a weight; both sizes must be equal
};

struct LanguageModelOutput {
  Tensor logits;  // [b, t, vocabulary], of each next token
  nn::LstmState state;
  std::array<Tensor*, 3> tensors() { return {&logits, &state.h, &state.c}; }
};

// Takes tokens i64 [b, t] and the state after the preceding tokens, or none. In training, detach
// the state between pieces of a long text. Names and initial values are those of PyTorch's example
// word_language_model: encoder, rnn, decoder.
struct LstmLanguageModel : nn::Module<LstmLanguageModel> {
  nn::Dropout drop;
  nn::Embedding encoder;
  nn::LSTM rnn;
  nn::Linear decoder;

  explicit LstmLanguageModel(int64_t vocabulary, const LstmLanguageModelOptions& o = {});
  LanguageModelOutput forward(const Tensor& tokens, const nn::LstmState& state = {}) const;
  MIXTAPE_FIELDS(drop, encoder, rnn, decoder)
};

}  // namespace mixtape::models
