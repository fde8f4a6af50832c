#pragma once
// The loss of language models, sampling of the next token, and the memory of tokens that were read.

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace mixtape::models {

// The mean cross-entropy in nats: logits [b, t, vocabulary], targets i64 [b, t] (-100: ignored).
Tensor next_token_loss(const Tensor& logits, const Tensor& targets);

struct SampleOptions {
  double temperature = 1;  // divides the logits; 0: the most likely token
  int64_t top_k = 0;       // sample from the k most likely tokens; 0: from all
  double top_p = 1;        // of those, only the most likely that reach this probability together
  int64_t tokens = 0;      // the first so many can be drawn, where logits are padded; 0: all
  // generate() ends when each text has drawn one of these, which waits for the device.
  std::vector<int64_t> stop = {};
};
// Samples a token from softmax(logits / temperature): [..., vocabulary] -> i64 [...]. Draws from
// generator(), so a Seed makes it reproducible. Throws Error for NaN, on a device late.
Tensor sample(const Tensor& logits, const SampleOptions& o = {});

// Keys and values of earlier tokens, in memory with room for later ones: appending copies none.
struct KeyValues {
  Tensor k, v;  // [b, heads, room, d]
  int64_t tokens = 0;

  // Appends those of the next tokens [b, heads, t, d]; if memory is short, makes it for at least
  // `room` tokens, or twice as many as before. Throws Error, before it writes, if k or v are
  // recorded, or have another b, heads or d than those before.
  void append(const Tensor& new_k, const Tensor& new_v, int64_t room = 0);
};
// Those of all layers of a model; initially empty. A model that reads into it records nothing.
struct KeyValueCache {
  std::vector<KeyValues> blocks = {};
  int64_t tokens = 0;  // read so far
  int64_t room = 0;    // tokens to make memory for at first

  // Begins to read the next tokens: forgets those of a reading that threw.
  void begin(size_t layers);
};
// Attention of each of the t tokens of q, k and v [b, heads, t, d], of which k and v may have fewer
// heads, to itself and those before it; also to those of a past, to which it appends k and v.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, KeyValues* past,
                        int64_t room = 0, double dropout = 0);

// Appends `count` sampled tokens to tokens i64 [b, t], each from the logits [b, 1, vocabulary] that
// `read` gives for what the cache lacks of the last `context` tokens. Reads each token once; beyond
// `context` tokens, positions shift and all are read again for each new one. Records nothing.
Tensor generate(const std::function<Tensor(const Tensor& tokens, KeyValueCache& cache)>& read,
                Tensor tokens, int64_t count, int64_t context, const SampleOptions& o = {});

}  // namespace mixtape::models
