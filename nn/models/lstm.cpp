#include "nn/models/lstm.h"

#include "core/format.h"
#include "nn/init.h"

namespace mixtape::models {
using namespace internal;

LstmClassifier::LstmClassifier(int64_t vocabulary, int64_t classes, const LstmClassifierOptions& o)
    : embedding(vocabulary, o.embedding, {.padding_idx = o.padding_idx}),
      lstm(o.embedding, o.hidden,
           {.num_layers = o.num_layers,
            .batch_first = true,
            .dropout = o.dropout,
            .bidirectional = o.bidirectional}),
      dropout(o.dropout),
      fc(o.hidden * (o.bidirectional ? 2 : 1), classes),
      directions_(o.bidirectional ? 2 : 1) {}

Tensor LstmClassifier::forward(const Tensor& tokens) const {
  const Tensor h_n = lstm(embedding(tokens)).h_n;  // [layers directions, b, hidden]
  const Tensor last = narrow(h_n, 0, h_n.size(0) - directions_, directions_);
  return fc(dropout(flatten(transpose(last, 0, 1), 1)));
}

LstmLanguageModel::LstmLanguageModel(int64_t vocabulary, const LstmLanguageModelOptions& o)
    : drop(o.dropout),
      encoder(vocabulary, o.embedding),
      rnn(o.embedding, o.hidden,
          {.num_layers = o.num_layers, .batch_first = true, .dropout = o.dropout}),
      decoder(o.hidden, vocabulary) {
  const Scope scope("LstmLanguageModel");
  check(!o.tie_weights || o.embedding == o.hidden,
        "tied weights of embeddings of size {} and hidden states of {}", o.embedding, o.hidden);
  nn::init::uniform_(encoder.weight, -0.1, 0.1);
  nn::init::zeros_(decoder.bias);
  if (o.tie_weights)
    decoder.weight = encoder.weight;
  else
    nn::init::uniform_(decoder.weight, -0.1, 0.1);
}

LanguageModelOutput LstmLanguageModel::forward(const Tensor& tokens,
                                               const nn::LstmState& state) const {
  const auto [output, h_n, c_n] = rnn(drop(encoder(tokens)), state);
  return {decoder(drop(output)), {h_n, c_n}};
}

}  // namespace mixtape::models
