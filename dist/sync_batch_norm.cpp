#include "dist/sync_batch_norm.h"

#include <algorithm>

#include "autograd/function.h"
#include "autograd/ops/gradients.h"
#include "core/format.h"
#include "core/scope.h"
#include "dist/world.h"

namespace mixtape::dist {
using namespace internal;
namespace {

// The sum over ranks of a tensor and of a number. Each rank's loss depends on every rank's x, so dx
// is a sum as well.
struct SumOverRanks : Function<SumOverRanks> {
  static constexpr OpInfo info{"sum_over_ranks"};
  static Tensor forward(Ctx&, const Tensor& x, double* number) {
    return World::current()->sum(x, number);
  }
  static Grads backward(const Ctx&, const Tensor& dy, double*) {
    return {SumOverRanks::apply(dy, nullptr)};
  }
};

Tensor synced(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
              const Tensor& weight, const Tensor& bias, const BatchNormOptions& o) {
  const Scope scope("batch_norm");
  check(x.rank() >= 2, "the input has shape {}, not [n, c, ...]", x.shape());
  const NoPolicy as_called;
  const Tensor wide = is_half(x.dtype()) ? cast(x, f32) : x;
  Dims over{0};
  Shape channels{1, x.size(1)};
  for (int d = 2; d < x.rank(); ++d) {
    over.push_back(d);
    channels.push_back(1);
  }
  const auto spread = [&](const Tensor& t) { return reshape(t, channels); };
  double n = double(x.numel() / std::max<int64_t>(1, x.size(1)));  // below the sum over ranks
  const Tensor total = SumOverRanks::apply(sum(wide, over), &n);
  check(n > 1, "training needs more than one value per channel: shape {}", x.shape());
  const Tensor mean = total / n, off = wide - spread(mean);
  const Tensor var = SumOverRanks::apply(sum(square(off), over), nullptr) / n;
  Tensor y = off * spread(rsqrt(var + o.eps));
  if (weight) y = y * spread(cast(weight, wide.dtype()));
  if (bias) y = y + spread(cast(bias, wide.dtype()));
  if (running_mean) {
    const NoGrad off_the_tape;
    ops::update_running(running_mean, mean, o.momentum);
    ops::update_running(running_var, var * (n / (n - 1)), o.momentum);
  }
  return cast(y, x.dtype());
}

}  // namespace

SyncBatchNorm::SyncBatchNorm()
    : on_(World::current() && World::current()->size() > 1 ? &synced : nullptr) {}

}  // namespace mixtape::dist
