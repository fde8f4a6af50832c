#include "train/mixed_precision.h"

#include <map>

#include "amp/loss_scale_optimizer.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "train/learner.h"

namespace mixtape::train {
namespace {

// Of the optimizer's parameters, as the model calls them.
std::vector<std::string> names_of(const optim::Optimizer& opt, nn::ModuleBase& model) {
  std::map<const void*, std::string> known;
  for (const auto& [name, p] : model.named_parameters()) known.emplace(p.id(), name);
  std::vector<std::string> names;
  for (const Tensor& p : opt.params()) names.push_back(known[p.id()]);
  return names;
}

}  // namespace

MixedPrecision::MixedPrecision(const AmpOptions& o)
    : low_(o.enabled ? o.amp_mode.dtype : f32),
      scaler_{.init_scale = o.init_scale,
              .growth_factor = o.growth_factor,
              .backoff_factor = o.backoff_factor,
              .growth_interval = o.growth_interval,
              .enabled = low_ == f16} {
  check(is_half(low_) || low_ == f32, "trained in {}, not f16, bf16 or f32", low_);
  (void)amp::GradScaler(scaler_);  // throws here what it would throw halfway through a change
}

MixedPrecision::MixedPrecision(const MasterOptions& o) : low_(f16), masters_(o) {
  check(o.loss_scale >= 0, "a loss scale of {}", o.loss_scale);
  const double scale = o.loss_scale > 0 ? o.loss_scale : o.dynamic ? 65536 : 512;
  scaler_ = o.dynamic ? amp::ScalerOptions{.init_scale = scale,
                                           .growth_interval = o.max_noskip,
                                           .max_scale = o.max_scale}
                      : amp::LossScalePolicy(scale).options;
  check(o.clip >= 0, "gradients clipped to a norm of {}", o.clip);
  (void)amp::GradScaler(scaler_);
}

void MixedPrecision::begin(Learner& l) {
  l.scaler = amp::GradScaler(scaler_);
  if (l.scaler.enabled()) l.scaler.name_parameters(*l.optimizer, names_of(*l.optimizer, l.model()));
  l.autocast.reset();
  l.step_options.clip_norm.reset();
  if (masters_ && masters_->clip > 0) l.step_options.clip_norm = masters_->clip;
  if (masters_) {
    const std::vector<Tensor> params = l.optimizer->params();
    std::vector<Tensor> wide;
    for (const Tensor& p : params) wide.push_back(p.detach());
    l.model().to(low_);
    l.optimizer->set_multi_precision(true, masters_->flat_master);
    // Masters begin as the weights are, not as f16 has them.
    StateDict state = l.optimizer->state_dict();
    for (size_t i = 0; i < params.size(); ++i)
      if (is_half(params[i].dtype()) && wide[i].dtype() == f32)
        state.emplace_back(fmt::format("state.{}.master", i), wide[i]);
    l.optimizer->load_state_dict(state);
  } else if (low_ != f32) {
    l.autocast = amp::AutocastOptions{.low = low_};
    l.optimizer->set_shadow(low_);  // steady state casts no weights
  }
}

void MixedPrecision::end(Learner& l) {
  l.optimizer->set_shadow({});
  if (!masters_) return;
  const std::vector<Tensor> masters = l.optimizer->masters(), params = l.optimizer->params();
  l.model().to(f32);
  const NoGrad off;
  for (size_t i = 0; i < params.size(); ++i)
    if (masters[i]) copy_(params[i], masters[i]);
  l.optimizer->set_multi_precision(false);
}

// Weights that were loaded or replaced since begin() may be f32 again.
void MixedPrecision::on_train_begin(Learner& l) {
  if (masters_) l.model().to(low_);
}

void MixedPrecision::on_batch_begin(Learner& l) {
  const auto narrow = [&](Tensor& t) {
    if (masters_ && is_float(t.dtype()) && t.dtype() != f64) t = t.to(low_);
  };
  narrow(l.state.x);
  for (Tensor& t : l.state.more) narrow(t);
}

void MixedPrecision::on_loss_begin(Learner& l) {
  if (masters_ && masters_->loss_fp32 && l.state.output) l.state.output = l.state.output.to(f32);
}

void MixedPrecision::on_backward_begin(Learner& l) {
  l.state.objective = l.scaler.scale(l.state.objective);
}

// From here on other callbacks see true gradients. Clipping is left to the step's own kernel.
void MixedPrecision::on_backward_end(Learner& l) { l.scaler.unscale(*l.optimizer); }

void MixedPrecision::on_step_end(Learner& l) { l.scaler.update(); }

}  // namespace mixtape::train
