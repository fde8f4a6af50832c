#pragma once
// The leading dimensions of a matrix product, which are a batch, and vectors as other shapes.

#include "core/view.h"

namespace mixtape::kernels {

// Drops batch dimensions over which b repeats and the rows of a and c go on evenly: x @ w over a
// batch of x is one tall product.
inline void merge_batch(Layout& a, Layout& b, Layout& c) {
  const auto even = [](const Layout& l) {
    return l.shape[-3] == 1 || l.shape[-2] == 1 || l.strides[-3] == l.strides[-2] * l.shape[-2];
  };
  const auto merge = [](Layout& l, bool into_rows) {
    if (into_rows && l.shape[-2] == 1) l.strides[-2] = l.strides[-3];
    if (into_rows) l.shape[-2] *= l.shape[-3];
    for (Shape* s : {&l.shape, &l.strides}) {
      (*s)[-3] = (*s)[-2];
      (*s)[-2] = (*s)[-1];
      --s->rank;
    }
  };
  while (c.rank() > 2 && (b.strides[-3] == 0 || c.shape[-3] == 1) && even(a) && even(c)) {
    merge(a, true);
    merge(c, true);
    merge(b, false);
  }
}

// Without its last two dimensions.
inline Layout leading(Layout l) {
  l.shape.rank -= 2;
  l.strides.rank -= 2;
  return l;
}

// [n], seen as what images [b, n, h, w] are reduced to.
inline View per_channel(View v) {
  v.layout = Layout({1, v.shape()[0], 1, 1}, {0, v.strides()[0], 0, 0});
  return v;
}

// A vector [n] as a matrix [n, 1].
inline View column(View v) {
  v.layout = Layout({v.shape()[0], 1}, {v.strides()[0], 0});
  return v;
}

}  // namespace mixtape::kernels
