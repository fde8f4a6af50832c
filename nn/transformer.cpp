#include "nn/transformer.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/format.h"
#include "nn/init.h"

namespace mixtape::nn {
using namespace internal;
namespace {

// The masks of a call, combined.
struct Mask {
  Tensor blocked;  // bool, true where a query must not attend; or none
  Tensor added;    // float, or none

  void add(const Tensor& t) {
    check(t.dtype() == boolean || is_float(t.dtype()), "a mask is {}, not bool or a float",
          t.dtype());
    Tensor& part = t.dtype() == boolean ? blocked : added;
    part = !part ? t : t.dtype() == boolean ? logical_or(part, t) : part + t;
  }
  // Both masks as one, for scaled_dot_product_attention: true where a query may attend.
  Tensor joined() const {
    if (!blocked) return added;
    if (!added) return logical_not(blocked);
    return where(blocked, full({}, -INFINITY, added.dtype(), added.device()), added);
  }
};

Tensor above_diagonal(int64_t rows, int64_t columns, Device device) {  // true above it
  const auto count = [&](int64_t n, const Shape& shape) {
    return reshape(arange(0, double(n), 1, i64, device), shape);
  };
  return lt(count(rows, {rows, 1}), count(columns, {1, columns}));
}

Mask combine(const AttentionMasks& masks, int64_t b, int64_t heads, int64_t queries, int64_t keys) {
  Mask mask;
  if (const Tensor& t = masks.attn_mask) {
    const Shape all{b * heads, queries, keys}, one{queries, keys};
    check(t.shape() == all || t.shape() == one, "attn_mask has shape {}, not {} or {}", t.shape(),
          one, all);
    mask.add(t.rank() == 3 ? reshape(t, {b, heads, queries, keys}) : t);
  }
  if (const Tensor& t = masks.key_padding_mask) {
    check(t.numel() == b * keys && t.size(-1) == keys && t.rank() <= 2,
          "key_padding_mask has shape {}, not {}", t.shape(), Shape{b, keys});
    mask.add(reshape(t, {b, 1, 1, keys}));
  }
  return mask;
}

// Runs attention for all modules here.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Mask& mask, bool causal,
              double dropout) {
  Mask all = mask;
  const bool masked = mask.blocked || mask.added;
  if (causal && masked) all.add(above_diagonal(q.size(-2), k.size(-2), q.device()));
  return scaled_dot_product_attention(
      q, k, v, {.mask = all.joined(), .causal = causal && !masked, .dropout = dropout});
}

// The weights of the values; zeros for a query that may attend to no key. Scores are f32, as in the
// attention op, since they may overflow f16 and an added mask may be f32.
Tensor weights_of(const Tensor& q, const Tensor& k, Mask mask, bool causal) {
  if (causal) mask.add(above_diagonal(q.size(-2), k.size(-2), q.device()));
  if (k.size(-2) == 0) return zeros({q.size(0), q.size(1), q.size(2), 0}, q.dtype(), q.device());
  const DType wide = accumulate_dtype(q.dtype());
  const double alpha = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  Tensor scores = matmul(q, k.t(), {.out = wide, .alpha = alpha});
  if (mask.added) scores = scores + cast(mask.added, wide);
  if (mask.blocked) scores = masked_fill(scores, mask.blocked, -INFINITY);
  const Tensor top = max(scores.detach(), {-1}, true), no_key = eq(top, -INFINITY);
  const Tensor below_top = cast(masked_fill(scores - top, no_key, 0), q.dtype());
  return masked_fill(softmax(below_top), no_key, 0);
}

// x + dropout(f(x)), normalised before f or after the sum. If nothing is dropped, f adds x itself:
// it takes a residual, which may be absent. `reader` is the module that reads the normalised x.
struct Residual {
  const TransformerEncoderLayerOptions& options;
  bool training;

  Tensor drop(const Tensor& x) const { return dropout(x, options.dropout, training); }
  template <class F>
  Tensor add(const Tensor& x, const LayerNorm& norm, const ModuleBase& reader, const F& f) const {
    const Tensor in = options.norm_first ? norm(x, dtype_of_operand(reader, x)) : x;
    const Tensor y = training && options.dropout > 0 ? x + drop(f(in, Tensor())) : f(in, x);
    return options.norm_first ? y : norm(y);
  }
  Tensor add_network(const Tensor& x, const LayerNorm& norm, const Linear& up,
                     const Linear& down) const {
    return add(x, norm, up, [&](const Tensor& t, const Tensor& residual) {
      return down(drop(options.activation(up(t))), residual);
    });
  }
};

// Self-attention as an f for Residual, the first part of both layers.
auto self_attention(const MultiheadAttention& attention, const AttentionMasks& masks) {
  return [&](const Tensor& t, const Tensor& residual) {
    return attention(t, t, t, masks, AttentionWeights::None, residual).output;
  };
}

void check_heads(int64_t size, int64_t heads) {
  check(size > 0 && heads > 0 && size % heads == 0, "a size of {} does not divide into {} heads",
        size, heads);
}

}  // namespace

void check_num_layers(const std::type_info& stack, int64_t num_layers) {
  const std::string name = type_name(stack);
  const Scope scope(name);
  check(num_layers > 0, "num_layers must be > 0, got {}", num_layers);
}

MultiheadAttention::MultiheadAttention(int64_t size, int64_t heads,
                                       const MultiheadAttentionOptions& o)
    : out_proj(size, size, {.bias = o.bias}), size_(size), heads_(heads), options_(o) {
  const Scope scope("MultiheadAttention");
  check_heads(size, heads);
  check(0 <= o.dropout && o.dropout <= 1, "dropout must be from 0 to 1, got {}", o.dropout);
  const int64_t kdim = o.kdim.value_or(size), vdim = o.vdim.value_or(size);
  check(kdim > 0 && vdim > 0, "sizes must be positive: kdim {}, vdim {}", kdim, vdim);
  const auto weight = [](int64_t out, int64_t in) {
    return parameter(init::xavier_uniform_(empty({out, in})));
  };
  if (kdim == size && vdim == size) {
    in_proj_weight = weight(3 * size, size);
  } else {
    q_proj_weight = weight(size, size);
    k_proj_weight = weight(size, kdim);
    v_proj_weight = weight(size, vdim);
  }
  if (!o.bias) return;
  in_proj_bias = parameter(zeros({3 * size}));
  init::zeros_(out_proj.bias);
}

// Projects with as few products as possible: one for neighbouring inputs that are the same tensor.
std::array<Tensor, 3> MultiheadAttention::projected(const Tensor& query, const Tensor& key,
                                                    const Tensor& value) const {
  const Tensor inputs[] = {query, key, value};
  const Tensor apart[] = {q_proj_weight, k_proj_weight, v_proj_weight};
  std::array<Tensor, 3> all;
  for (int i = 0, n = 1; i < 3; i += n, n = 1) {
    while (in_proj_weight && i + n < 3 && inputs[i].is_same(inputs[i + n])) ++n;
    const auto rows = [&](const Tensor& t) {
      return t && n < 3 ? narrow(t, 0, i * size_, n * size_) : t;
    };
    const Tensor weight = in_proj_weight ? rows(in_proj_weight) : apart[i];
    Tensor y = linear(inputs[i], weight, rows(in_proj_bias));
    if (y.rank() == 2) y = unsqueeze(y, options_.batch_first ? 0 : 1);
    std::ranges::copy(split_heads(y, heads_, {.parts = n, .batch_first = options_.batch_first}),
                      all.begin() + i);
  }
  return all;
}

Tensor MultiheadAttention::joined(const Tensor& x) const {
  const Tensor y = permute(x, options_.batch_first ? Dims{0, 2, 1, 3} : Dims{2, 0, 1, 3});
  return reshape(y, {y.size(0), y.size(1), size_});
}

AttentionOutput MultiheadAttention::forward(const Tensor& query, const Tensor& key,
                                            const Tensor& value, const AttentionMasks& masks,
                                            AttentionWeights weights,
                                            const Tensor& residual) const {
  const auto check_input = [&](std::string_view name, const Tensor& t, int64_t size) {
    check((t.rank() == 2 || t.rank() == 3) && t.size(-1) == size,
          "the {} has shape {}, not [{}, {}] or [t, {}]", name, t.shape(),
          options_.batch_first ? "b, t" : "t, b", size, size);
    check(t.rank() == query.rank(), "the query has shape {}, the {} {}: a batch, or none, of both",
          query.shape(), name, t.shape());
  };
  check_input("query", query, size_);
  check_input("key", key, options_.kdim.value_or(size_));
  check_input("value", value, options_.vdim.value_or(size_));
  check(std::equal(key.shape().begin(), key.shape().end() - 1, value.shape().begin()),
        "keys and values must differ in features alone, got shapes {} and {}", key.shape(),
        value.shape());
  const bool batched = query.rank() == 3;
  const int batch_dim = options_.batch_first ? 0 : 1;
  check(!batched || query.size(batch_dim) == key.size(batch_dim),
        "queries and keys must have one batch size, got shapes {} and {}", query.shape(),
        key.shape());

  const auto [q, k, v] = projected(query, key, value);
  const Mask mask = combine(masks, q.size(0), heads_, q.size(2), k.size(2));
  const Tensor y =
      joined(attend(q, k, v, mask, masks.causal, is_training() ? options_.dropout : 0));
  AttentionOutput result{out_proj(batched ? y : squeeze(y, batch_dim), residual), {}};
  if (weights == AttentionWeights::None) return result;
  Tensor w = weights_of(q, k, mask, masks.causal);
  if (weights == AttentionWeights::Averaged) w = mean(w, {1});
  result.weights = batched ? w : squeeze(w, 0);
  return result;
}

TransformerEncoderLayer::TransformerEncoderLayer(int64_t size, int64_t heads,
                                                 const TransformerEncoderLayerOptions& o)
    : self_attn(size, heads, {.dropout = o.dropout, .bias = o.bias, .batch_first = o.batch_first}),
      linear1(size, o.dim_feedforward, o.bias),
      linear2(o.dim_feedforward, size, o.bias),
      norm1(size, {.eps = o.layer_norm_eps, .bias = o.bias}),
      norm2(size, {.eps = o.layer_norm_eps, .bias = o.bias}),
      options_(o) {}

Tensor TransformerEncoderLayer::forward(const Tensor& x, const AttentionMasks& masks) const {
  const Residual layer{options_, is_training()};
  const Tensor h = layer.add(x, norm1, self_attn, self_attention(self_attn, masks));
  return layer.add_network(h, norm2, linear1, linear2);
}

TransformerDecoderLayer::TransformerDecoderLayer(int64_t size, int64_t heads,
                                                 const TransformerEncoderLayerOptions& o)
    : self_attn(size, heads, {.dropout = o.dropout, .bias = o.bias, .batch_first = o.batch_first}),
      multihead_attn(size, heads,
                     {.dropout = o.dropout, .bias = o.bias, .batch_first = o.batch_first}),
      linear1(size, o.dim_feedforward, o.bias),
      linear2(o.dim_feedforward, size, o.bias),
      norm1(size, {.eps = o.layer_norm_eps, .bias = o.bias}),
      norm2(size, {.eps = o.layer_norm_eps, .bias = o.bias}),
      norm3(size, {.eps = o.layer_norm_eps, .bias = o.bias}),
      options_(o) {}

Tensor TransformerDecoderLayer::forward(const Tensor& x, const Tensor& memory,
                                        const AttentionMasks& masks,
                                        const AttentionMasks& memory_masks) const {
  const Residual layer{options_, is_training()};
  const Tensor h = layer.add(x, norm1, self_attn, self_attention(self_attn, masks));
  const Tensor g =
      layer.add(h, norm2, multihead_attn, [&](const Tensor& t, const Tensor& residual) {
        return multihead_attn(t, memory, memory, memory_masks, AttentionWeights::None, residual)
            .output;
      });
  return layer.add_network(g, norm3, linear1, linear2);
}

Tensor TransformerEncoder::forward(const Tensor& x, const AttentionMasks& masks) const {
  return run(x, masks);
}

Tensor TransformerDecoder::forward(const Tensor& x, const Tensor& memory,
                                   const AttentionMasks& masks,
                                   const AttentionMasks& memory_masks) const {
  return run(x, memory, masks, memory_masks);
}

}  // namespace mixtape::nn
