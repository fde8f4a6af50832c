#include "train/mixed_precision.h"

#include <map>
#include <utility>

#include "amp/loss_scale_optimizer.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "train/learner.h"

namespace mixtape::train {
namespace {

// The names of the optimizer's parameters in the model.
std::vector<std::string> parameter_names(const Learner& learner) {
  std::map<const void*, std::string> known;
  for (const auto& [name, p] : learner.model().named_parameters()) known.emplace(p.id(), name);
  std::vector<std::string> names;
  for (const Tensor& p : learner.optimizer->params()) names.push_back(known[p.id()]);
  return names;
}

// True if its parameters do without masters. Throws Error if only some do.
bool rounds(const optim::Optimizer& optimizer) {
  const auto plain = [&](size_t g) { return optimizer.rounding(g) == optim::Rounding::Nearest; };
  for (size_t g = 1; g < optimizer.groups(); ++g)
    check(plain(g) == plain(0),
          "all groups must round to nearest, with masters, or none: groups 0 and {} differ", g);
  return !plain(0);
}

}  // namespace

MixedPrecision::MixedPrecision(const AmpOptions& o)
    : low_(o.enabled ? o.amp_mode.dtype : f32),
      scaler_{.init_scale = o.init_scale,
              .growth_factor = o.growth_factor,
              .backoff_factor = o.backoff_factor,
              .growth_interval = o.growth_interval,
              .enabled = low_ == f16},
      recipe_(o.enabled ? o.recipe : amp::Recipe()) {
  check(!recipe_ || low_ != f16, "a recipe needs amp_mode = bf16 or f32, got {}", low_);
  check(is_half(low_) || low_ == f32, "amp_mode must be f16, bf16 or f32, got {}", low_);
  (void)amp::GradScaler(scaler_);  // throws now, before anything changes
}

MixedPrecision::MixedPrecision(const MasterOptions& o) : low_(o.dtype), masters_(o) {
  check(is_half(low_), "dtype must be f16 or bf16, got {}", low_);
  check(o.loss_scale >= 0, "loss_scale must be >= 0, got {}", o.loss_scale);
  const double scale = o.loss_scale > 0 ? o.loss_scale : o.dynamic ? 65536 : 512;
  scaler_ = o.dynamic ? amp::ScalerOptions{.init_scale = scale,
                                           .growth_interval = o.max_noskip,
                                           .max_scale = o.max_scale}
                      : amp::LossScaleOption(scale).options;
  scaler_.enabled = low_ == f16;
  check(o.clip >= 0, "clip must be >= 0, got {}", o.clip);
  (void)amp::GradScaler(scaler_);
}

MixedPrecision::MixedPrecision(const amp::ScalerOptions& o) : low_(f16), scaler_(o) {
  (void)amp::GradScaler(scaler_);
}

void MixedPrecision::begin(Learner& learner) {
  optim::Optimizer& optimizer = *learner.optimizer;
  const bool has_masters = masters_ && !rounds(optimizer);
  check(has_masters || !masters_ || !masters_->flat_master,
        "flat_master with an optimizer that rounds without masters: there are none to flatten");
  learner.scaler = amp::GradScaler(scaler_);
  if (learner.scaler.enabled()) learner.scaler.name_parameters(optimizer, parameter_names(learner));
  learner.autocast.reset();
  if (masters_) {
    if (masters_->clip > 0)
      clip_before_ = std::exchange(learner.step_options.clip_norm, masters_->clip);
    std::vector<Tensor> originals;
    for (const Tensor& p : optimizer.params())
      originals.push_back(p.dtype() == f32 ? p.detach() : Tensor());
    learner.model().to(low_);
    if (has_masters) optimizer.set_multi_precision(true, masters_->flat_master);
    optimizer.set_masters(originals);  // instead of the weights' 16-bit values
  } else if (low_ != f32 || recipe_) {
    learner.autocast = amp::AutocastOptions{.low = low_, .recipe = recipe_};
    if (low_ != f32) optimizer.set_shadow(low_);  // avoids casts of weights between steps
  }
}

void MixedPrecision::end(Learner& learner) {
  if (masters_ && masters_->clip > 0) learner.step_options.clip_norm = clip_before_;
  if (!learner.optimizer && masters_) learner.model().to(f32);
  if (!learner.optimizer) return;
  optim::Optimizer& optimizer = *learner.optimizer;
  optimizer.set_shadow({});
  if (!masters_) return;
  const std::vector<Tensor> masters = optimizer.masters(), params = optimizer.params();
  learner.model().to(f32);
  const NoGrad off;
  for (size_t i = 0; i < params.size(); ++i)
    if (masters[i]) copy_(params[i], masters[i]);
  optimizer.set_multi_precision(false);
}

// Weights loaded or replaced after begin() may be f32.
void MixedPrecision::on_train_begin(Learner& learner) {
  if (masters_) learner.model().to(low_);
}

void MixedPrecision::on_batch_begin(Learner& learner) {
  const auto to_half = [&](Tensor& t) {
    if (masters_ && is_float(t.dtype()) && t.dtype() != f64) t = t.to(low_);
  };
  to_half(learner.state.x);
  for (Tensor& t : learner.state.more) to_half(t);
}

void MixedPrecision::on_loss_begin(Learner& learner) {
  if (masters_ && masters_->loss_fp32 && learner.state.output)
    learner.state.output = learner.state.output.to(f32);
}

void MixedPrecision::on_backward_begin(Learner& learner) {
  learner.state.objective = learner.scaler.scale(learner.state.objective);
}

// Unscales, so that later callbacks see true gradients. The optimizer's kernel clips them.
void MixedPrecision::on_backward_end(Learner& learner) {
  learner.scaler.unscale(*learner.optimizer);
}

void MixedPrecision::on_step_end(Learner& learner) { learner.scaler.update(); }

}  // namespace mixtape::train
