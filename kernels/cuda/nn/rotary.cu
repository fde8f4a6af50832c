// Rotation of the halves of each row by the angles of its position: both halves are operands of one
// elementwise kernel, and so are the angles, which repeat from head to head.

#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

template <class V, bool back>
struct Rotate {
  MIXTAPE_HD Values<V, 2> operator()(V a, V b, V c, V s) const {
    if (back) s = -s;
    return {{c * a - s * b, c * b + s * a}};
  }
};

// The first or the second half of the last dimension.
View half_of(const View& x, int which) {
  View half = x;
  half.layout.shape[-1] /= 2;
  half.data = x.as<char>() + which * half.shape()[-1] * int64_t(size_of(x.dtype));
  return half;
}

}  // namespace

void rotate_halves(Launch& launch, bool back, In x, In c, In s, Out y) {
  const View from[] = {half_of(x, 0), half_of(x, 1)}, to[] = {half_of(y, 0), half_of(y, 1)};
  View angles[] = {c, s};
  for (View& v : angles) v.layout = expand(v.layout, from[0].shape());
  visit_float_math(x.dtype, [&]<class V>() {
    const View* const out[] = {&to[0], &to[1]};
    const Argument in[] = {{&from[0]}, {&from[1]}, {&angles[0]}, {&angles[1]}};
    if (back)
      map_numbers<V>(launch, "rotate_halves", Rotate<V, true>(), out, in);
    else
      map_numbers<V>(launch, "rotate_halves", Rotate<V, false>(), out, in);
  });
}

}  // namespace mixtape::kernels::cuda
