#include "nn/parametrize.h"

#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape::nn {
using namespace internal;
namespace {

std::string named(const char* what) { return std::string("parametrizations.weight.") + what; }

void check_rows(const Tensor& weight) {
  check(weight && weight.rank() > 1 && weight.numel() > 0, "a weight of shape {} has no rows",
        weight ? weight.shape() : Shape{});
}

// |v| over all dimensions but `dim`.
Tensor lengths(const Tensor& v, int dim) {
  Dims others;
  for (int d = 0; d < v.rank(); ++d)
    if (d != dim) others.push_back(d);
  return norm(v, 2, others, true);
}

}  // namespace

NormedWeight::NormedWeight(const Tensor& weight, int dim) {
  const Scope scope("WeightNorm");
  check_rows(weight);
  dim_ = wrap_dim(dim, weight.rank());
  v = weight;
  g = lengths(v.detach(), dim_);
  if (v.requires_grad()) g = parameter(g);  // a frozen layer stays frozen
}
// Computes in f32 if v is f16 or bf16, and rounds once.
Tensor NormedWeight::weight(bool) const {
  const DType dtype = accumulate_dtype(v.dtype());
  const Tensor w = cast(v, dtype);
  return cast(w * (cast(g, dtype) / lengths(w, dim_)), v.dtype());
}
void NormedWeight::list_fields(Fields& fields) {
  fields.add(named("original0"), g);
  fields.add(named("original1"), v);
}

SpectralWeight::SpectralWeight(const Tensor& weight, const SpectralNormOptions& o, int dim)
    : original(weight), iterations_(o.n_power_iterations), eps_(o.eps) {
  const Scope scope("SpectralNorm");
  check_rows(weight);
  check(iterations_ > 0, "n_power_iterations must be > 0, got {}", iterations_);
  check(eps_ >= 0, "eps must be >= 0, got {}", eps_);
  dim_ = wrap_dim(dim, weight.rank());
  const Tensor w = rows();
  const auto start = [&](int d) {
    return normalize(randn({w.size(d)}, weight.dtype(), weight.device()), 2, 0, eps_);
  };
  u = start(0);
  v = start(1);
  iterate(w, 15);
}

Tensor SpectralWeight::rows() const {
  Dims order{dim_};
  for (int d = 0; d < original.rank(); ++d)
    if (d != dim_) order.push_back(d);
  const Tensor w = is_half(original.dtype()) ? cast(original, f32) : original;
  return reshape(permute(w, order), {original.size(dim_), -1});
}

void SpectralWeight::iterate(const Tensor& rows, int64_t times) const {
  const NoGrad off;
  for (int64_t i = 0; i < times; ++i) {
    copy_(u, normalize(matmul(rows, cast(v, rows.dtype())), 2, 0, eps_));
    copy_(v, normalize(matmul(transpose(rows), cast(u, rows.dtype())), 2, 0, eps_));
  }
}

// u and v are constants in backward, so they are copied, since the next call updates them. A
// checkpoint's second call does not update them, so that it gets the same weight.
Tensor SpectralWeight::weight(bool training) const {
  const Tensor w = rows();
  if (training && !called_again()) iterate(w, iterations_);
  const auto fixed = [&](const Buffer& b) { return cast(b.detach(), w.dtype()).clone(); };
  const Tensor largest = dot(fixed(u), matmul(w, fixed(v)));
  return cast(cast(original, largest.dtype()) / largest, original.dtype());
}

void SpectralWeight::list_fields(Fields& fields) {
  fields.add(named("original"), original);
  fields.add(named("0._u"), u);
  fields.add(named("0._v"), v);
}

}  // namespace mixtape::nn
