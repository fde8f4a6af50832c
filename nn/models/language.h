#pragma once
// Tools of language models: the loss, sampling of the next token, and a cache of keys and values.

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace mixtape::models {

// The mean cross-entropy in nats: logits [b, t, vocabulary], targets i64 [b, t] (-100: ignored).
Tensor next_token_loss(const Tensor& logits, const Tensor& targets);

struct SampleOptions {
  double temperature = 1;  // divides the logits; 0: the most likely token
  int64_t top_k = 0;       // sample from the k most likely tokens; 0: from all
  double top_p = 1;        // of those, only the likeliest that together reach this probability
  int64_t tokens = 0;      // only the first so many can be drawn, if logits are padded; 0: all
  // generate() ends once each text has drawn one of these tokens, which waits for the device.
  std::vector<int64_t> stop = {};
};
// Samples a token from softmax(logits / temperature): [..., vocabulary] -> i64 [...]. Draws from
// generator(), so a Seed makes it reproducible. Throws Error for NaN, on a device later.
Tensor sample(const Tensor& logits, const SampleOptions& o = {});

// Keys and values of earlier tokens, in memory with room for later ones, so that appending copies
// none of them.
struct KeyValues {
  Tensor k, v;  // [b, heads, room, d]
  int64_t tokens = 0;

  // Appends keys and values of the next tokens, [b, heads, t, d]. If memory is short, allocates for
  // at least `room` tokens, or twice as many as before. Throws Error, before writing, if k or v are
  // recorded or their b, heads or d differ from earlier ones.
  void append(const Tensor& new_k, const Tensor& new_v, int64_t room = 0);
};
// The keys and values of all layers of a model; initially empty. A model that uses it records
// nothing.
struct KeyValueCache {
  std::vector<KeyValues> blocks = {};
  int64_t tokens = 0;  // read so far
  int64_t room = 0;    // tokens to make memory for at first

  // Begins to read the next tokens, and forgets those of a reading that threw.
  void begin(size_t layers);
};
// The position of the first of tokens [b, t], which follow those in the cache. Throws Error unless
// all fit into the context.
int64_t first_position(const Tensor& tokens, const KeyValueCache* cache, int64_t context);
// x [b, t, width] after a model's blocks; with a cache, its last token alone, [b, 1, width].
// `checkpointed`: without one, recomputes activations inside blocks in backward.
Tensor run_blocks(
    size_t count, Tensor x, KeyValueCache* cache, bool checkpointed,
    const std::function<Tensor(size_t i, const Tensor& x, KeyValues* past, int64_t room)>& block);
// Attention of each of the t tokens of q, k and v [b, heads, t, d] to itself and those before it;
// with a past, also to the past's, to which k and v are appended. k and v may have fewer heads.
Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, KeyValues* past,
                        int64_t room = 0, double dropout = 0);

// Appends `count` sampled tokens to tokens i64 [b, t], each from the logits [b, 1, vocabulary] that
// `read` returns for those of the last `context` tokens that are not in the cache. Reads each token
// once; beyond `context` tokens, positions shift and all are read again for each new token. Records
// nothing.
Tensor generate(const std::function<Tensor(const Tensor& tokens, KeyValueCache& cache)>& read,
                Tensor tokens, int64_t count, int64_t context, const SampleOptions& o = {});

}  // namespace mixtape::models
