#pragma once
// Resample: an image of another size with weighted sums over rectangles as elements, for mean pools
// and interpolation. It is linear; its gradient is its transpose, the same op in the other
// direction.

#include <array>

#include "autograd/ops/checks.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

using Samplings = std::array<kernels::Sampling, 2>;  // of rows, of columns

// Name: a struct with the names of the op and of its transpose.
template <class Name, bool transposed = false>
struct Resample {  // x [n, c, h, w]
  static constexpr OpInfo info{transposed ? Name::gradient : Name::forward, Precision::Native};

  static Tensor forward(Ctx& ctx, const Tensor& x, const Samplings& s) {
    check_real(x);
    check_counted("planes", {s[0].from, s[1].from});
    check_counted("planes", {s[0].to, s[1].to});
    const auto length = [&](int d) { return transposed ? s[d].from : s[d].to; };
    Tensor y = ctx.output({x.size(0), x.size(1), length(0), length(1)});
    const Tensor xc = x.contiguous();
    ctx.run(kernels::resample, xc, s[0], s[1], transposed, y);
    return y;
  }
  static Grads backward(const Ctx&, const Tensor& dy, const Samplings& s) {
    return {call<Resample<Name, !transposed>>(dy, s)};
  }
};

}  // namespace ops
}  // namespace mixtape
