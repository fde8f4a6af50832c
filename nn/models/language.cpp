#include "nn/models/language.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape::models {
using namespace internal;

Tensor next_token_loss(const Tensor& logits, const Tensor& targets) {
  const Scope scope("next_token_loss");
  check(logits.rank() == 3 && targets.shape() == Shape{logits.size(0), logits.size(1)},
        "logits of shape {} and targets of {}, not [b, t, vocabulary] and [b, t]", logits.shape(),
        targets.shape());
  return cross_entropy(flatten(logits, 0, 1), flatten(targets));
}

Tensor sample(const Tensor& given, const SampleOptions& o) {
  const Scope scope("sample");
  check(0 <= o.tokens && o.tokens <= given.size(-1), "tokens must be from 0 to {}, got {}",
        given.size(-1), o.tokens);
  const NoGrad off;
  const Tensor logits = o.tokens > 0 ? slice(given, -1, 0, o.tokens) : given;
  const int64_t vocabulary = logits.size(-1);
  check(o.temperature >= 0, "temperature must be >= 0, got {}", o.temperature);
  check(0 <= o.top_k && o.top_k <= vocabulary, "top_k must be from 0 to {}, got {}", vocabulary,
        o.top_k);
  check(0 < o.top_p && o.top_p <= 1, "top_p must be above 0 and at most 1, got {}", o.top_p);
  // (Division by less would make f32 logits infinite.)
  if (o.temperature < 1e-30) return argmax(logits, -1);
  // The argmax of logits plus Gumbel noise is distributed as their softmax. (Uniform numbers above
  // 0: noise of -inf could rule out the only token with a finite logit.)
  const auto drawn = [&](const Tensor& x) {
    const Tensor noise = -log(-log(uniform(x.shape(), 0x1p-33, 1, f32, x.device())));
    return argmax(cast(x, f32) / o.temperature + noise, -1, true);
  };
  if (o.top_k == 0 && o.top_p == 1) return squeeze(drawn(logits), -1);
  auto [values, tokens] = o.top_k ? topk(logits, o.top_k) : sort(logits, -1, true);
  if (o.top_p < 1) {
    const Tensor p = softmax(cast(values, f32) / o.temperature);
    values = masked_fill(values, ge(cumsum(p, -1) - p, o.top_p), -INFINITY);
  }
  return squeeze(gather(tokens, -1, drawn(values)), -1);
}

void KeyValues::append(const Tensor& new_k, const Tensor& new_v, int64_t room) {
  check(!new_k.requires_grad() && !new_v.requires_grad(),
        "keys and values are recorded: a cache needs NoGrad");
  const int64_t end = tokens + new_k.size(2);
  const auto put = [&](Tensor& all, const Tensor& more) {
    if (!all || all.size(2) < end) {
      Shape shape = more.shape();
      shape[2] = std::max({end, room, all ? 2 * all.size(2) : 0});
      const Tensor larger = empty(shape, more.dtype(), more.device());
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
