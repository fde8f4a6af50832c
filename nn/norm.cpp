#include "nn/norm.h"

#include "core/check.h"
#include "core/format.h"

namespace mixtape::nn {
using namespace internal;

void check_eps(double eps) { check(eps >= 0, "eps must be >= 0, got {}", eps); }
static void check_row_norm(const Shape& shape, double eps) {
  check(shape.rank > 0 && shape.size() > 0, "the shape must have elements, got {}", shape);
  check_eps(eps);
}
void check_channels(int64_t channels) {
  check(channels > 0, "channels must be > 0, got {}", channels);
}
void check_momentum(double momentum) {
  check(0 <= momentum && momentum <= 1, "momentum must be from 0 to 1, got {}", momentum);
}
void average(const Tensor& mean, const Tensor& var, const Tensor& count, const Tensor& batch_mean,
             const Tensor& batch_var) {
  const Tensor counts = all(ge(batch_var, 0));
  add_(count, counts.to(i64));
  for (const auto& [total, batch] : {std::pair(mean, batch_mean), std::pair(var, batch_var)})
    add_(total, where(counts, (batch - total) / count.to(total.dtype()), 0.0));
}
void check_normed(const Tensor& x, int min_rank, int max_rank, std::optional<int64_t> channels) {
  const char* const layout = min_rank == 2   ? "[n, c] or [n, c, length]"
                             : max_rank == 3 ? "[n, c, length]"
                             : max_rank == 4 ? "[n, c, h, w]"
                                             : "[n, c, d, h, w]";
  check(min_rank <= x.rank() && x.rank() <= max_rank, "the input has shape {}, not {}", x.shape(),
        layout);
  check(!channels || x.size(1) == *channels, "the input has shape {}, not {} with {} channels",
        x.shape(), layout, channels.value_or(0));
}

LayerNorm::LayerNorm(const Shape& shape, const LayerNormOptions& o) : shape_(shape), eps_(o.eps) {
  const Scope scope("LayerNorm");
  check_row_norm(shape, eps_);
  if (o.affine) weight = parameter(ones(shape));
  if (o.affine && o.bias) bias = parameter(zeros(shape));
}

RMSNorm::RMSNorm(const Shape& shape, const RMSNormOptions& o) : shape_(shape), eps_(o.eps) {
  const Scope scope("RMSNorm");
  check_row_norm(shape, eps_.value_or(0));
  if (o.affine) weight = parameter(ones(shape));
}

GroupNorm::GroupNorm(int64_t groups, int64_t channels, const GroupNormOptions& o)
    : groups_(groups), eps_(o.eps) {
  const Scope scope("GroupNorm");
  check(channels > 0 && groups > 0 && channels % groups == 0,
        "{} channels do not divide into {} groups", channels, groups);
  check_eps(eps_);
  if (!o.affine) return;
  weight = parameter(ones({channels}));
  bias = parameter(zeros({channels}));
}

}  // namespace mixtape::nn
