#include "nn/norm.h"

namespace mixtape::nn {
using namespace internal;

void check_eps(double eps) { check(eps >= 0, "eps must be >= 0, got {}", eps); }

LayerNorm::LayerNorm(const Shape& shape, const LayerNormOptions& o) : shape_(shape), eps_(o.eps) {
  const Scope scope("LayerNorm");
  check(shape.rank > 0 && shape.size() > 0, "normalising over {}", shape);
  check_eps(eps_);
  if (o.affine) weight = parameter(ones(shape));
  if (o.affine && o.bias) bias = parameter(zeros(shape));
}

RMSNorm::RMSNorm(const Shape& shape, const RMSNormOptions& o) : shape_(shape), eps_(o.eps) {
  const Scope scope("RMSNorm");
  check(shape.rank > 0 && shape.size() > 0, "normalising over {}", shape);
  check_eps(eps_.value_or(0));
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
