#pragma once
// The leading (batch) dimensions of a matrix product, and vectors viewed with other shapes.

#include "core/view.h"
#include "kernels/common/always_inline.h"

namespace mixtape::kernels {
using namespace internal;

// Merges batch dimensions into rows if b is constant along them and rows of a and c stay evenly
// spaced: x @ w over a batch of x is one tall product.
MIXTAPE_ALWAYS_INLINE void merge_batch(Layout& a, Layout& b, Layout& c) {
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

// A layout without its last two dimensions.
inline Layout leading(Layout l) {
  l.shape.rank -= 2;
  l.strides.rank -= 2;
  return l;
}

// A vector [n] as [1, n, 1, 1], the shape of a reduction of images [b, n, h, w].
inline View per_channel(View v) {
  v.layout = Layout({1, v.shape()[0], 1, 1}, {0, v.strides()[0], 0, 0});
  return v;
}

// A vector [n] as a matrix [1, n], and as [n, 1].
inline View row(View v) {
  v.layout = Layout({1, v.shape()[0]}, {0, v.strides()[0]});
  return v;
}
inline View column(View v) {
  v.layout = Layout({v.shape()[0], 1}, {v.strides()[0], 0});
  return v;
}

}  // namespace mixtape::kernels
