#include "nn/models/language.h"

#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/readback.h"

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
  check_later(any(isnan(logits)).raw(), 1, logits.device(), [](const void* is_nan) {
    return *static_cast<const bool*>(is_nan) ? "logits must not be NaN" : "";
  });
  // Dividing by less could make f32 logits infinite.
  if (o.temperature < 1e-30) return argmax(logits, -1);
  // The argmax of logits plus Gumbel noise is distributed as their softmax. (Uniform numbers are
  // above 0, since noise of -inf could rule out the only token with a finite logit.)
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

}  // namespace mixtape::models
