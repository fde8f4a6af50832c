// The cache of keys and values, attention to it, and the loops over blocks and over next tokens.

#include <algorithm>

#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "nn/models/language.h"

namespace mixtape::models {

void KeyValues::append(const Tensor& new_k, const Tensor& new_v, int64_t room) {
  check(!new_k.requires_grad() && !new_v.requires_grad(),
        "keys and values are recorded: a cache needs NoGrad");
  const auto fits = [&](const Tensor& all, const Tensor& more) {
    if (tokens == 0) return;
    check(all.shape() == internal::with_size(more.shape(), 2, all.size(2)),
          "the cache has keys and values {}, the next tokens {}", all.shape(), more.shape());
  };
  fits(k, new_k);
  fits(v, new_v);
  const int64_t end = tokens + new_k.size(2);
  const auto put = [&](Tensor& all, const Tensor& more) {
    if (tokens == 0 || all.size(2) < end) {
      const int64_t most = std::max({end, room, tokens > 0 ? 2 * all.size(2) : 0});
      const Tensor larger =
          empty(internal::with_size(more.shape(), 2, most), more.dtype(), more.device());
      if (tokens > 0) copy_(narrow(larger, 2, 0, tokens), narrow(all, 2, 0, tokens));
      all = larger;
    }
    copy_(narrow(all, 2, tokens, more.size(2)), more);
  };
  const NoGrad off;
  put(k, new_k);
  put(v, new_v);
  tokens = end;
}

void KeyValueCache::begin(size_t layers) {
  check(tokens == 0 || blocks.size() == layers, "the cache has {} layers, the model {}",
        blocks.size(), layers);
  blocks.resize(layers);
  for (KeyValues& block : blocks) block.tokens = tokens;
}

int64_t first_position(const Tensor& tokens, const KeyValueCache* cache, int64_t context) {
  const int64_t begin = cache ? cache->tokens : 0, t = tokens.size(-1);
  check(tokens.rank() == 2 && t > 0 && begin + t <= context,
        "tokens of shape {} after {}, not [b, t] with at most {} in all", tokens.shape(), begin,
        context);
  return begin;
}

Tensor run_blocks(
    size_t count, Tensor x, KeyValueCache* cache, bool checkpointed,
    const std::function<Tensor(size_t i, const Tensor& x, KeyValues* past, int64_t room)>& block) {
  if (cache) cache->begin(count);
  for (size_t i = 0; i < count; ++i)
    x = cache ? block(i, x, &cache->blocks[i], cache->room)
        : checkpointed
            ? checkpoint([block, i](const Tensor& in) { return block(i, in, nullptr, 0); }, x)
            : block(i, x, nullptr, 0);
  if (!cache) return x;
  cache->tokens += x.size(1);
  return narrow(x, 1, x.size(1) - 1, 1);
}

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, KeyValues* past,
                        int64_t room, double dropout) {
  const int64_t before = past ? past->tokens : 0, t = q.size(2);
  AttentionOptions o{
      .causal = t > 1 && before == 0, .dropout = dropout, .enable_gqa = q.size(1) != k.size(1)};
  if (!past) return scaled_dot_product_attention(q, k, v, o);
  past->append(k, v, room);
  if (t > 1 && before > 0) {
    const auto count = [&](int64_t from, const Shape& shape) {
      return reshape(arange(double(from), double(before + t), 1, i64, q.device()), shape);
    };
    o.mask = le(count(0, {1, before + t}), count(before, {t, 1}));
  }
  const auto all = [&](const Tensor& x) { return narrow(x, 2, 0, past->tokens); };
  return scaled_dot_product_attention(q, all(past->k), all(past->v), o);
}

Tensor generate(const std::function<Tensor(const Tensor& tokens, KeyValueCache& cache)>& read,
                Tensor tokens, int64_t count, int64_t context, const SampleOptions& o) {
  const NoGrad off;
  const int64_t room = std::min(tokens.size(-1) + count, context);
  KeyValueCache cache{.room = room};
  Tensor unread = tokens, ended;
  for (int64_t i = 0; i < count; ++i) {
    if (cache.tokens + unread.size(-1) > context) {
      cache = {.room = room};
      unread = narrow(tokens, -1, tokens.size(-1) - context, context);
    }
    unread = sample(read(unread, cache), o);
    tokens = cat({tokens, unread}, -1);
    if (o.stop.empty()) continue;
    for (const int64_t token : o.stop) {
      const Tensor is = eq(unread, double(token));
      ended = ended ? Tensor(logical_or(ended, is)) : is;
    }
    if (all(ended).item<bool>()) break;
  }
  return tokens;
}

}  // namespace mixtape::models
