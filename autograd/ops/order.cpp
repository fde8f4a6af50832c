// Order: kernels sort and select positions, which have no gradient; values are gathered from there,
// so that gradients follow them.

#include "autograd/ops/checks.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace ops;
namespace {

struct Argsort {  // along the last dimension
  static constexpr OpInfo info{"argsort"};
  static Tensor forward(Ctx& ctx, const Tensor& x, bool descending) {
    const Tensor y = ctx.output(x.shape(), i64), xc = x.contiguous();
    ctx.run(kernels::argsort, descending, xc, y);
    return y;
  }
};

struct TopK {  // along the last dimension
  static constexpr OpInfo info{"topk"};
  static Tensor forward(Ctx& ctx, const Tensor& x, int64_t k, bool largest) {
    const Tensor y = ctx.output(with_size(x.shape(), -1, k), i64), xc = x.contiguous();
    ctx.run(kernels::topk, largest, xc, y);
    return y;
  }
};

// The op applied with dimension dim as the last one.
template <class Op, class... A>
Tensor along(int dim, const Tensor& x, const A&... args) {
  check_counted("rows", {x.size(dim)});
  if (dim == x.rank() - 1) return call<Op>(x, args...);
  return transpose(call<Op>(transpose(x, dim, -1), args...), dim, -1);
}

}  // namespace

Tensor argsort(const Tensor& x, int dim, bool descending) {
  const Scope scope(Argsort::info.name);
  return along<Argsort>(wrap_dim(dim, x.rank()), x, descending);
}

Sorted sort(const Tensor& x, int dim, bool descending) {
  const Scope scope("sort");
  const Tensor indices = argsort(x, dim, descending);
  return {gather_unchecked(x, dim, indices), indices};
}

Sorted topk(const Tensor& x, int64_t k, int dim, bool largest) {
  const Scope scope(TopK::info.name);
  const int d = wrap_dim(dim, x.rank());
  check(k >= 0 && k <= x.size(d), "k must be from 0 to {}, got {}", x.size(d), k);
  const Tensor indices = along<TopK>(d, x, k, largest);
  return {gather_unchecked(x, d, indices), indices};
}

}  // namespace mixtape
