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

// A mask, or a dense copy, in f32 and with an even number of keys, of one that is added. What
// repeats is not copied.
inline View flash_mask(Launch& launch, const View& mask) {
  if (!mask || mask.dtype == boolean) return mask;
  Shape shape = mask.shape(), strides = mask.strides();
  bool fits = mask.dtype == f32 && strides[-1] == 1 && shape[-1] % 2 == 0 &&
              reinterpret_cast<uintptr_t>(mask.data) % 8 == 0;
  for (int d = 0; d < shape.rank - 1; ++d) {
    if (strides[d] == 0) shape[d] = 1;
    fits = fits && strides[d] % 2 == 0;
  }
  if (fits) return mask;
  Shape padded = shape;
  padded[-1] = round_up(shape[-1], 2);
  const View all{launch.scratch<float>(padded.size()), f32, Layout(padded)};
  if (padded[-1] != shape[-1]) fill(launch, 0, all);
  convert(launch, {mask.data, mask.dtype, Layout(shape, strides)},
          {all.data, f32, Layout(shape, all.strides())});
  for (int d = 0; d < shape.rank - 1; ++d)
    strides[d] = shape[d] == mask.shape()[d] ? all.strides()[d] : 0;
  strides[-1] = 1;
  return {all.data, f32, Layout(mask.shape(), strides)};
}
inline FlashRule flash_rule(const AttentionRule& rule, const View& mask, In q, In k) {
  FlashRule f{};
  if (mask) {
    f.mask = mask.data;
    f.adds = mask.dtype != boolean;
    f.mask_down = mask.strides()[-2];
    f.mask_right = mask.strides()[-1];
  }
  f.causal = rule.causal;
  f.queries = int(q.shape()[-2]);
  f.keys = int(k.shape()[-2]);
  f.scale = float(rule.scale * 1.4426950408889634);
  f.draw = rule.draw;
  f.threshold = dropout_threshold(rule.dropped);
  f.kept = rule.dropped < 1 ? float(1 / (1 - rule.dropped)) : 0;
  return f;
}

}  // namespace mixtape::kernels::cuda
