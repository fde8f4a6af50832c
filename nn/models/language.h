#pragma once
// The loss of language models, and sampling of the next token.

#include "core/tensor.h"

namespace mixtape::models {

// The mean cross-entropy in nats: logits [b, t, vocabulary], targets i64 [b, t] (-100: ignored).
Tensor next_token_loss(const Tensor& logits, const Tensor& targets);

struct SampleOptions {
  double temperature = 1;  // divides the logits; 0: the most likely token
  int64_t top_k = 0;       // sample from the k most likely tokens; 0: from all
  double top_p = 1;        // of those, only the most likely that reach this probability together
  int64_t tokens = 0;      // the first so many can be drawn, where logits are padded; 0: all
};
// Samples a token from softmax(logits / temperature): [..., vocabulary] -> i64 [...]. Draws from
// generator(), so a Seed makes it reproducible.
Tensor sample(const Tensor& logits, const SampleOptions& o = {});

}  // namespace mixtape::models
