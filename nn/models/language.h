#pragma once
// What language models share: their loss, and the choice of a next token.

#include "core/tensor.h"

namespace mixtape::models {

// The mean cross-entropy in nats. logits [b, t, vocabulary], targets i64 [b, t]: the tokens that
// should have come next; those that are -100 do not count.
Tensor next_token_loss(const Tensor& logits, const Tensor& targets);

struct SampleOptions {
  double temperature = 1;  // divides the logits; 0: the likeliest token
  int64_t top_k = 0;       // only of that many likeliest; 0: of all
  double top_p = 1;        // of those, only of the likeliest that together reach this probability
};
// A token by softmax(logits / temperature): [..., vocabulary] -> i64 [...]. Drawn from generator(),
// so a Seed makes it repeatable.
Tensor sample(const Tensor& logits, const SampleOptions& o = {});

}  // namespace mixtape::models
