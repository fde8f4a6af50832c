#pragma once
// The host's part of flash attention: operands in the form that its kernels take.

#include "kernels/common/batch.h"
#include "kernels/common/draw.h"
#include "kernels/cuda/nn/flash.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {
using namespace internal;

// Calls f<T, d>() for a dtype and a number of features.
template <class F>
void visit_flash(DType dtype, int64_t features, F f) {
  const auto with_features = [&]<class T>() {
    switch (features) {
      case 32:
        return f.template operator()<T, 32>();
      case 64:
        return f.template operator()<T, 64>();
      case 80:
        return f.template operator()<T, 80>();
      case 96:
        return f.template operator()<T, 96>();
      default:
        return f.template operator()<T, 128>();
    }
  };
  if (dtype == f16)
    with_features.template operator()<Half>();
  else
    with_features.template operator()<BFloat16>();
}

// x, or a dense copy of it, with features side by side and positions at multiples of 16 bytes.
inline View flash_operand(Launch& launch, const View& x) {
  bool fits = x.strides()[-1] == 1 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  for (int d = 0; d < x.layout.rank() - 1; ++d)
    fits = fits && (x.shape()[d] == 1 || x.strides()[d] % 8 == 0);
  if (fits) return x;
  const View copy{launch.scratch<uint16_t>(x.size()), x.dtype, Layout(x.shape())};
  convert(launch, x, copy);
  return copy;
}
template <class T>
Positions<T> positions(const View& x) {
  return {x.as<T>(), x.strides()[-2]};
}

// The offsets of heads in views [.., positions, ..]; 0 in absent ones.
template <int n>
Walk<n> walk_heads(const View* const (&views)[n]) {
  Layout layouts[n];
  Layout* pointers[n];
  const Layout* collapsed[n];
  for (int i = 0; i < n; ++i) {
    layouts[i] = views[i]->layout;
    if (!*views[i]) {
      layouts[i] = views[0]->layout;
      std::fill_n(layouts[i].strides.dim, max_rank, 0);
    }
    layouts[i] = leading(layouts[i]);
    collapsed[i] = pointers[i] = &layouts[i];
  }
  collapse(pointers);
  return walk_of<n>(collapsed);
}
inline int64_t heads_of(const View& x) { return x.size() / (x.shape()[-1] * x.shape()[-2]); }

inline FlashRule flash_rule(const AttentionRule& rule, In q, In k) {
  constexpr double log2_e = 1.4426950408889634;
  FlashRule f{};
  if (rule.mask) {
    f.mask = rule.mask.as<const bool>();
    f.mask_down = rule.mask.strides()[-2];
    f.mask_right = rule.mask.strides()[-1];
  }
  f.causal = rule.causal;
  f.queries = int(q.shape()[-2]);
  f.keys = int(k.shape()[-2]);
  f.scale = float(rule.scale * log2_e);
  f.draw = rule.draw;
  f.threshold = dropout_threshold(rule.dropped);
  f.kept = rule.dropped < 1 ? float(1 / (1 - rule.dropped)) : 0;
  return f;
}

}  // namespace mixtape::kernels::cuda
