#include "train/mixed_precision.h"

#include <map>

#include "amp/loss_scale_optimizer.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "train/learner.h"

namespace mixtape::train {
namespace {

// The optimizer's parameters by their names in the model.
std::vector<std::string> parameter_names(const optim::Optimizer& opt, nn::ModuleBase& model) {
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
  check(is_half(low_) || low_ == f32, "amp_mode must be f16, bf16 or f32, got {}", low_);
  (void)amp::GradScaler(scaler_);  // throws now, before anything changes
}

MixedPrecision::MixedPrecision(const MasterOptions& o) : low_(f16), masters_(o) {
  check(o.loss_scale >= 0, "loss_scale must be >= 0, got {}", o.loss_scale);
  const double scale = o.loss_scale > 0 ? o.loss_scale : o.dynamic ? 65536 : 512;
  scaler_ = o.dynamic ? amp::ScalerOptions{.init_scale = scale,
                                           .growth_interval = o.max_noskip,
                                           .max_scale = o.max_scale}
                      : amp::LossScalePolicy(scale).options;
  check(o.clip >= 0, "clip must be >= 0, got {}", o.clip);
  (void)amp::GradScaler(scaler_);
}

void MixedPrecision::begin(Learner& l) {
  l.scaler = amp::GradScaler(scaler_);
  if (l.scaler.enabled())
    l.scaler.name_parameters(*l.optimizer, parameter_names(*l.optimizer, l.model()));
  l.autocast.reset();
  l.step_options.clip_norm.reset();
  if (masters_ && masters_->clip > 0) l.step_options.clip_norm = masters_->clip;
  if (masters_) {
    const std::vector<Tensor> params = l.optimizer->params();
    std::vector<Tensor> originals;
    for (const Tensor& p : params) originals.push_back(p.detach());
    l.model().to(low_);
    l.optimizer->set_multi_precision(true, masters_->flat_master);
    // Masters start from the original f32 weights, not from their f16 values.
    StateDict state = l.optimizer->state_dict();
    for (size_t i = 0; i < params.size(); ++i)
      if (is_half(params[i].dtype()) && originals[i].dtype() == f32)
        state.emplace_back(fmt::format("state.{}.master", i), originals[i]);
    l.optimizer->load_state_dict(state);
  } else if (low_ != f32) {
    l.autocast = amp::AutocastOptions{.low = low_};
    l.optimizer->set_shadow(low_);  // no casts of weights between steps
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

// Weights loaded or replaced after begin() may be f32.
void MixedPrecision::on_train_begin(Learner& l) {
  if (masters_) l.model().to(low_);
}

void MixedPrecision::on_batch_begin(Learner& l) {
  const auto to_half = [&](Tensor& t) {
    if (masters_ && is_float(t.dtype()) && t.dtype() != f64) t = t.to(low_);
  };
  to_half(l.state.x);
  for (Tensor& t : l.state.more) to_half(t);
}

void MixedPrecision::on_loss_begin(Learner& l) {
  if (masters_ && masters_->loss_fp32 && l.state.output) l.state.output = l.state.output.to(f32);
}

void MixedPrecision::on_backward_begin(Learner& l) {
  l.state.objective = l.scaler.scale(l.state.objective);
}

// Later callbacks see true gradients. The optimizer's kernel clips them.
void MixedPrecision::on_backward_end(Learner& l) { l.scaler.unscale(*l.optimizer); }

void MixedPrecision::on_step_end(Learner& l) { l.scaler.update(); }

}  // namespace mixtape::train
