#include "autograd/autograd_meta.h"

#include <algorithm>

#include "core/check.h"
#include "core/format.h"

namespace mixtape {

std::shared_ptr<AutogradMetaInterface> detail::new_autograd_meta() {
  return std::make_shared<AutogradMeta>();
}
Tensor Tensor::grad() const { return impl().autograd_meta ? autograd_meta().grad : Tensor(); }
bool Tensor::has_grad() const { return impl().autograd_meta && autograd_meta().grad; }
void Tensor::set_grad(const Tensor& g) const {
  if (g) {
    check(g.shape() == shape(), "the gradient must have shape {1}, got {0}", g.shape(), shape());
    check(g.device() == device(), "the gradient must be on {1}, got {0}", g.device(), device());
    check(is_float(g.dtype()), "the gradient must be floats, got {}", g.dtype());
  }
  if (g || impl().autograd_meta) autograd_meta().replace_grad(g);
}

DType Tensor::grad_dtype() const {
  return impl().autograd_meta ? autograd_meta().grad_dtype(dtype()) : dtype();
}
void Tensor::set_grad_dtype(DType t) const {
  check(is_leaf(), "set_grad_dtype() of a tensor that is not a leaf which requires a gradient");
  check(t == dtype() || (t == f32 && is_half(dtype())),
        "the gradient of a tensor of {0} must be {0}{1}, got {2}", dtype(),
        is_half(dtype()) ? " or f32" : "", t);
  AutogradMeta& meta = autograd_meta();
  meta.keeps_f32_grad = t != dtype();
  if (meta.grad) meta.replace_grad(meta.grad.to(t));
}

Tensor Tensor::shadow() const {
  if (!impl().autograd_meta) return {};
  const HalfCopy& half = autograd_meta().half;
  const bool agrees =
      half.data && half.of_version == version() && half.own_version == half.data.version();
  return agrees ? half.data : Tensor();
}
void Tensor::set_shadow(const Tensor& copy) const {
  if (copy || impl().autograd_meta)
    autograd_meta().half = {copy, version(), copy ? copy.version() : 0};
}

namespace detail {
namespace {

struct Noted {
  WeakTensor leaf;
  const std::string* module;
};
thread_local std::vector<Noted> noted;

}  // namespace

void mark_listed(const Tensor& t, AutogradMeta::Listing as) {
  if (!t || t.grad_fn()) return;
  auto& listing = t.autograd_meta().listing;
  const bool constant = listing == AutogradMeta::Listing::Plain && !t.requires_grad();
  if (!constant) listing = std::max(listing, as);
}

void note_forgotten(const Tensor& leaf, const std::string* module) {
  leaf.autograd_meta().listing = AutogradMeta::Listing::Forgotten;
  noted.push_back({WeakTensor(leaf), module});
}

std::vector<Forgotten> take_forgotten() {
  std::vector<Forgotten> result;
  for (const auto& [weak, module] : std::exchange(noted, {}))
    if (const Tensor t = weak.lock();
        t && t.is_leaf() && t.autograd_meta().listing == AutogradMeta::Listing::Forgotten)
      result.push_back({t, module});
  return result;
}

}  // namespace detail

}  // namespace mixtape
