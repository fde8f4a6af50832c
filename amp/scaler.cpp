// The protocol: scale, unscale, step and update, in this order.
#include "amp/scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "amp/trace.h"
#include "autograd/autograd_meta.h"
#include "autograd/backward_state.h"
#include "autograd/ops.h"
#include "core/capture.h"
#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "core/warn.h"
#include "kernels/kernels.h"
#include "optim/clip.h"
#include "optim/sharing.h"

namespace mixtape::amp {
using namespace internal;

using detail::OptimizerState;
using detail::ScaleState;
using kernels::ScalerCount;
using Stage = OptimizerState::Stage;

namespace {

// The state of a loss scale. If no loss was scaled, throws Error with a hint.
template <class Scales>
auto& scaled(Scales& scales, int id, std::string_view hint = "call scale(loss).backward() first") {
  const auto entry = scales.find(id);
  check(entry != scales.end() && entry->second.has_scaled, "loss {} was never scaled: {}", id,
        hint);
  return entry->second;
}

void check_used(const ScaleState& s) {
  check(
      s.iteration.used,
      "no loss was scaled since the last update(), so that dividing the gradients would be wrong: "
      "call scale(loss).backward(), or step with {{.unscaled = true}} if they are the true ones");
}

void check_not_stepped(const optim::Optimizer& opt, const OptimizerState& state) {
  check(state.stage != Stage::Stepped,
        "{} has already stepped since the last update(): call update() after the step", opt.name());
}

// Throws Error or warns unless the gradient carries the loss scale with that number (0: none).
void check_tag(const optim::Optimizer& opt, size_t parameter, const LossScaleTag& tag,
               uint64_t number) {
  check(number || !tag.number,
        "the gradient of parameter {} of {} is scaled: nothing divided it, or a scaled "
        "loss has added to it since unscale(), which belongs after the last backward(); after an "
        "exception, call abandon()",
        parameter, opt.name());
  check(!tag.number || (tag.number == number && !tag.mixed),
        "the gradient of parameter {} of {} carries {}: a loss is scaled once, losses that add up "
        "share a scale, and gradients are dropped when a scale is set",
        parameter, opt.name(), tag.mixed ? "several loss scales" : "another loss scale");
  if (tag.moved)
    warn(fmt::format(
        "{}: gradients of losses before and after an update() are added up, though the scale may "
        "have moved in between: zero_grad() was left out, or update() came before the step",
        opt.name()));
  if (number && tag.unscaled)
    warn(fmt::format(
        "{}: a gradient that is divided by the loss scale is, at least in part, not multiplied "
        "by it: a loss was not scaled, gradients were divided before, or zero_grad() was left "
        "out. Use scaler.scale(loss).backward(), or step with {{.unscaled = true}}.",
        opt.name()));
}

void refuse_f16(const optim::Optimizer& opt, size_t group, size_t parameter, const Tensor& p) {
  check(p.dtype() != f16 || p.grad().dtype() != f16 || opt.multi_precision(group),
        "parameter {} of {} is f16 and so is its gradient: keep parameters in f32 and use "
        "Autocast, or let the optimizer keep f32 copies with {{.multi_precision = true}}",
        parameter, opt.name());
}

// The place of a gradient, which identifies it.
std::pair<uint64_t, int64_t> place(const Tensor& grad) {
  return {grad.storage()->id(), grad.offset()};
}

// One view per parameter, without elements if it has no gradient, or no views at all if none has
// one. Calls check_gradient(group, index, parameter) for each gradient.
template <class Check>
std::vector<View> collect_gradients(const optim::Optimizer& opt, Device device,
                                    Check check_gradient) {
  std::vector<View> views;
  bool any = false;
  for (size_t group = 0; group < opt.groups(); ++group) {
    const std::vector<Tensor> params = opt.params(group);
    views.reserve(views.size() + params.size());
    for (const Tensor& p : params) {
      const size_t i = views.size();
      check(p.device() == device, "parameter {} of {} is on {}, others or the loss on {}", i,
            opt.name(), p.device(), device);
      if (p.has_grad()) check_gradient(group, i, p);
      any = any || p.has_grad();
      views.push_back(optim::gradient_view(optim::dense_grad(p)));
    }
  }
  if (!any) views.clear();
  return views;
}

// The factor (f64, 0-d) that unscales gradients and limits their norm, which it stores in `norm`.
// Combines `found` over processes if that has not been done.
Tensor clip(const optim::Optimizer& opt, const std::vector<View>& grads, const Tensor& unscale,
            double max_norm, Tensor& norm, const Tensor& found) {
  const Device device = opt.params()[0].device();
  const Tensor factor({}, f64, device);
  norm = Tensor({}, f32, device);
  kernels::clip_factor(device, optim::grad_norm(opt.params(), grads, 2, found, true), unscale,
                       max_norm, norm, factor);
  return factor;
}

// The parameters, if processes divide them.
std::vector<Tensor> shared_params(const optim::Optimizer& opt) {
  return opt.sharing() ? opt.params() : std::vector<Tensor>();
}

}  // namespace

StepResult::State StepResult::state() const {
  if (!has_grads_) return State::NoGrads;
  return cause() == Cause::None ? State::Stepped : State::Skipped;
}
StepResult StepResult::latest() const {
  StepResult kept = *this;
  if (const View decision = std::exchange(kept.decision_, {}))
    kept.skip_reason_ =
        std::make_shared<Readback>(decision.data, sizeof(float), decision_.device());
  return kept;
}
StepResult::Cause StepResult::cause() const {
  if (decision_) return latest().cause();
  if (!skip_reason_) return Cause::None;
  if (!skip_reason_->has_arrived()) skip_reason_->wait();
  const float reason = *skip_reason_->as<float>();  // see kernels::skip_reason
  return reason == 0 ? Cause::None : reason == 1 ? Cause::Gradients : nonfinite_loss_cause_;
}

void GradScaler::check_options(const ScalerOptions& o) {
  check(detail::is_scale(o.init_scale), "init_scale must be positive and finite in f32, got {}",
        o.init_scale);
  check(o.growth_factor > 1 && std::isfinite(o.growth_factor),
        "growth_factor must be finite and > 1, got {}", o.growth_factor);
  check(o.backoff_factor > 0 && o.backoff_factor < 1, "backoff_factor must be in (0, 1), got {}",
        o.backoff_factor);
  check(o.growth_interval >= 1, "growth_interval must be >= 1, got {}", o.growth_interval);
  check(o.min_scale >= 0 && o.min_scale <= o.init_scale,
        "min_scale must be from 0 to init_scale = {}, got {}", o.init_scale, o.min_scale);
  check(o.max_scale >= o.init_scale, "max_scale must be >= init_scale = {}, got {}", o.init_scale,
        o.max_scale);
  check(o.hysteresis >= 1, "hysteresis must be >= 1, got {}", o.hysteresis);
  check(o.max_consecutive_skips >= 0, "max_consecutive_skips must be >= 0, got {}",
        o.max_consecutive_skips);
  check(o.histogram >= 0, "histogram must be >= 0, got {}", o.histogram);
}

GradScaler::GradScaler(const ScalerOptions& options) : options_(options) {
  const Scope scope("GradScaler");
  if (!enabled()) return;
  check_options(options_);
  scale_state(0);
}
ScalerOptions GradScaler::options_for(DType low, ScalerOptions options) {
  const Scope scope("GradScaler");
  check(is_float(low) && low != f64, "low must be f16, bf16 or f32, got {}", low);
  options.enabled = options.enabled && low == f16;
  return options;
}

ScaleState& GradScaler::scale_state(int id) {
  return scales_.try_emplace(id, options_.init_scale).first->second;
}

Tensor GradScaler::scale(const Tensor& loss, int id) {
  if (!enabled()) {
    // Disabling a scaler is deliberate, so its loss draws no warning.
    if (loss.grad_fn())
      register_hook(loss, [](const Tensor&) {
        backward_state.loss_scale->declined = true;
        return Tensor();
      });
    return loss;
  }
  const Scope scope("scale");
  check(is_float(loss.dtype()), "the loss must be a float tensor, got {}", loss.dtype());
  const NoPolicy as_called;
  const Device device = loss.device();
  ScaleState& s = scale_state(id);
  ScaleState::Iteration& iteration = s.iteration;
  if (s.values.device() != device) {  // the first loss, or the model was moved
    check(iteration.flags.empty(), "a loss on {}, after one on {} since the last update()", device,
          s.values.device());
    s.move_to(device);
  }
  s.has_scaled = iteration.used = true;
  if (std::exchange(iteration.had_nonfinite_loss, false))
    iteration.flags.push_back(full({1}, 1, f32, device));
  if (std::exchange(iteration.stepped, false)) iteration.consumed_losses = iteration.flags.size();
  const Tensor wide = is_half(loss.dtype()) ? cast(loss, f32) : loss;
  if (wide.requires_grad()) {  // otherwise it has no gradients
    s.last_loss = contiguous(wide.detach());
    const View value = s.last_loss;
    kernels::find_nonfinite(device, std::span(&value, 1), View{},
                            iteration.flags.emplace_back(Shape{1}, f32, device), View{});
    // Later losses of an iteration add to the gradients of the first and share its scale.
    if (options_.calibrate && !s.calibrated && iteration.flags.size() == 1) calibrate(s, wide);
  }
  const Tensor scaled = mul(wide, cast(s.value(), wide.dtype()));
  if (scaled.requires_grad())
    register_hook(scaled, [number = s.number, moves = s.moves, id,
                           nonfinite = iteration.flags.back()](const Tensor&) {
      tag_loss_scale(number, moves, id, nonfinite);
      return Tensor();
    });
  return scaled;
}

std::vector<Tensor> GradScaler::scale(const std::vector<Tensor>& losses, int id) {
  std::vector<Tensor> scaled;
  for (const Tensor& loss : losses) scaled.push_back(scale(loss, id));
  return scaled;
}

void GradScaler::unscale(optim::Optimizer& opt, int id) {
  if (!enabled()) return;
  const Scope scope("unscale");
  const ScaleState& s = scaled(scales_, id);
  OptimizerState& state = optimizers_[opt.id()];
  check(
      state.stage != Stage::Unscaled,
      "the gradients of {} were unscaled already since the last update(): call step() and update() "
      "once for each unscale(), or abandon() to go on without a step",
      opt.name());
  check_not_stepped(opt, state);
  const Device device = s.values.device();
  std::vector<std::pair<size_t, Tensor>> with_grad;
  std::vector<size_t> shared;  // gradients shared with an optimizer that was unscaled
  std::vector<View> grads =
      collect_gradients(opt, device, [&](size_t group, size_t i, const Tensor& p) {
        refuse_f16(opt, group, i, p);
        const bool divided = is_divided(p);
        if (!divided) check_used(s);
        check_tag(opt, i, p.autograd_meta().loss_scale(), divided ? 0 : s.number);
        if (divided)
          shared.push_back(i);
        else
          with_grad.emplace_back(i, p);
      });
  if (grads.empty()) return;
  for (const auto& [i, p] : with_grad)
    if (p.grad().dtype() == f16) {
      p.set_grad(cast(p.grad().detach(), f32));
      grads[i] = p.grad();
    }
  std::vector<View> divided;
  if (!shared.empty()) divided.assign(grads.size(), optim::gradient_view({}));
  for (const size_t i : shared) std::swap(divided[i], grads[i]);
  state.loss = id;
  state.found = Tensor({int64_t(grads.size())}, f32, device);
  state.shared = shared_params(opt);
  for (const auto& [i, p] : with_grad) p.grad().storage()->begin_write();
  const View exponents = count_next(opt, grads.size(), device);
  kernels::unscale(device, grads, s.inverse(), state.found, exponents);
  if (exponents) find_underflow(opt, s);
  if (!shared.empty()) {
    const Tensor found(state.found.shape(), f32, device);
    kernels::find_nonfinite(device, divided, View{}, found, View{});
    kernels::accumulate(device, found, state.found);
  }
  for (const auto& [i, p] : with_grad) {
    p.grad().storage()->bump_version();
    p.autograd_meta().set_loss_scale({.unscaled = true});
    divided_.push_back(place(p.grad()));
  }
  std::ranges::sort(divided_);
  state.stage = Stage::Unscaled;
}

bool GradScaler::is_divided(const Tensor& p) const {
  return p.has_grad() && std::ranges::binary_search(divided_, place(p.grad())) &&
         p.autograd_meta().loss_scale().number == 0;
}

// True if another optimizer's unscale() has divided some of the gradients.
bool GradScaler::shares_divided(const optim::Optimizer& opt) const {
  const auto state = optimizers_.find(opt.id());
  if (divided_.empty() || (state != optimizers_.end() && state->second.stage != Stage::Ready))
    return false;
  return std::ranges::any_of(opt.params(), [&](const Tensor& p) { return is_divided(p); });
}

struct GradScaler::Step {
  optim::Optimizer& opt;
  OptimizerState& state;
  ScaleState& scale;
  Device device = {};
  std::vector<View> grads = {};  // see collect_gradients
  Tensor factor = {};            // multiplies the gradients as the optimizer reads them
};

StepResult GradScaler::step(optim::Optimizer& opt, const StepOptions& options,
                            const Tensor& earlier_overflow) {
  const Scope scope("step");
  check(!options.clip_norm || *options.clip_norm >= 0, "clip_norm must be >= 0, got {}",
        options.clip_norm.value_or(0));
  if (!enabled()) return step_disabled(opt, options);
  if (shares_divided(opt) && !options.unscaled) unscale(opt, options.loss.value_or(0));
  StepResult result;
  Step step = check_ready(opt, options);
  result.has_grads_ = !step.grads.empty();
  if (result.has_grads_) {
    find_overflow(step, options, earlier_overflow);
    if (options.clip_norm) {
      const bool joins = !step.state.shared.empty();
      step.factor = clip(opt, step.grads, step.factor, *options.clip_norm, result.norm_,
                         joins ? step.state.found : Tensor());
      step.state.shared.clear();
    }
    join_found(step.state, true);
    commit(step, result);
    step.scale.iteration.stepped = true;
  } else {
    opt.step();  // warns
  }
  step.state.stage = Stage::Stepped;
  return result;
}

StepResult GradScaler::step_disabled(optim::Optimizer& opt, const StepOptions& options) {
  StepResult result;
  result.has_grads_ = std::ranges::any_of(opt.params(), &Tensor::has_grad);
  Tensor factor;
  if (options.clip_norm && result.has_grads_) {
    const std::vector<View> grads =
        collect_gradients(opt, opt.params()[0].device(), [](auto&&...) {});
    factor = clip(opt, grads, {}, *options.clip_norm, result.norm_, {});
  }
  opt.step({.grad_scale = factor});
  return result;
}

GradScaler::Step GradScaler::check_ready(optim::Optimizer& opt, const StepOptions& options) {
  OptimizerState& state = optimizers_[opt.id()];
  check_not_stepped(opt, state);
  const bool is_ready = state.stage == Stage::Ready;
  const int id = options.loss.value_or(state.loss);
  check(is_ready || id == state.loss,
        "the gradients of {} were unscaled as those of loss {}, not {}", opt.name(), state.loss,
        id);
  Step step{opt, state, scaled(scales_, id)};
  state.loss = id;
  step.device = step.scale.values.device();
  const auto check_unscaled = [&](size_t parameters) {
    if (is_ready || state.found.numel() >= int64_t(parameters)) return;
    fail("{} has {} parameters, of which {} were unscaled: add groups before unscale()", opt.name(),
         opt.params().size(), state.found.numel());
  };
  step.grads = collect_gradients(opt, step.device, [&](size_t group, size_t i, const Tensor& p) {
    refuse_f16(opt, group, i, p);
    check_unscaled(i + 1);
    const bool is_scaled = is_ready && !options.unscaled;
    if (is_scaled) check_used(step.scale);
    check_tag(opt, i, p.autograd_meta().loss_scale(), is_scaled ? step.scale.number : 0);
  });
  check_unscaled(step.grads.size());
  return step;
}

void GradScaler::find_overflow(Step& step, const StepOptions& options,
                               const Tensor& earlier_overflow) {
  if (step.state.stage != Stage::Ready) return;  // unscale() did it
  if (!options.unscaled) step.factor = step.scale.inverse();
  const Tensor found({int64_t(step.grads.size())}, f32, step.device);
  const View exponents =
      options.unscaled ? View{} : count_next(step.opt, step.grads.size(), step.device);
  kernels::find_nonfinite(step.device, step.grads, step.factor, found, exponents);
  if (exponents) find_underflow(step.opt, step.scale);
  // Groups may have been added at the end since.
  if (earlier_overflow)
    kernels::accumulate(step.device, earlier_overflow,
                        found.with_layout({{earlier_overflow.numel()}, {1}}));
  step.state.found = found;
  step.state.shared = shared_params(step.opt);
}

// Also sets `found` where a gradient is not finite in another process's piece.
void GradScaler::join_found(OptimizerState& state, bool steps) {
  const std::vector<Tensor> params = std::exchange(state.shared, {});
  if (const auto sharing = optim::sharing_of(params)) sharing->join(params, {}, state.found, steps);
}

void GradScaler::commit(Step& step, StepResult& result) {
  const Device device = step.device;
  const Tensor reason({}, f32, device);
  const std::span<const Tensor> flags = step.scale.iteration.pending_flags();
  const std::vector<View> losses(flags.begin(), flags.end());
  kernels::scaler_skip_reason(device, step.state.found, losses, reason,
                              history_of(step.opt, step.grads.size(), device).last);
  result.decision_ = reason;
  if (!capture()) result = result.latest();
  result.deferred_ = !device.is_host();
  if (step.scale.iteration.inverse_taken)  // as update() has it
    result.nonfinite_loss_cause_ = StepResult::Cause::Gradients;
  step.opt.step({.skip = reason, .grad_scale = step.factor});
}

void GradScaler::update(std::optional<double> new_scale) {
  if (OverflowTrace* const trace = OverflowTrace::innermost()) trace->next_iteration();
  if (!enabled()) return;
  const Scope scope("update");
  check(std::ranges::any_of(scales_, [](const auto& s) { return s.second.has_scaled; }),
        "no loss was ever scaled: call scale(loss).backward() first");
  const double scale = new_scale.value_or(options_.init_scale);
  check(detail::is_scale(scale), "new_scale must be positive and finite in f32, got {}", scale);
  check(options_.min_scale <= scale && scale <= options_.max_scale,
        "new_scale must be from {} to {}, got {}", options_.min_scale, options_.max_scale, scale);
  const bool has_losses =
      std::ranges::any_of(scales_, [](const auto& s) { return !s.second.iteration.flags.empty(); });
  // A step that failed leaves an optimizer ready.
  const bool stepped = std::ranges::any_of(
      optimizers_, [](const auto& o) { return o.second.stage != Stage::Ready; });
  check(
      new_scale || !has_losses || stepped,
      "a loss was scaled, but no optimizer has stepped since the last update(): call the scaler's "
      "step(optimizer), which divides the gradients, not the optimizer's step()");
  auto optimizers = std::exchange(optimizers_, {});
  divided_.clear();
  for (auto& [id, s] : scales_) {
    if (!s.has_scaled) continue;
    std::vector<View> found;
    for (auto& [optimizer, state] : optimizers)
      if (state.found && state.loss == id) {
        join_found(state, false);  // its step was left out
        found.push_back(state.found);
      }
    const ScaleState::Iteration ended = std::exchange(s.iteration, {});
    if (new_scale)
      s.set(*new_scale);
    else if (!found.empty())
      s.update(std::move(found), ended, options_, id);
  }
  if (!new_scale && !capture()) poll();
}

void GradScaler::poll() {
  for (auto& [id, s] : scales_)
    if (s.has_scaled) poll(s);
  for (auto& [id, h] : histories_) warn_of_underflow(h);
}

void GradScaler::abandon() {
  optimizers_.clear();
  divided_.clear();
  for (auto& [id, s] : scales_) s.iteration = {};
}

double GradScaler::scale_value(int id) const {
  if (!enabled()) return 1;
  const auto s = scales_.find(id);
  return s == scales_.end() ? options_.init_scale : s->second.values.at(0);
}
int64_t GradScaler::count(int id, ScalerCount which) const {
  const auto s = scales_.find(id);
  return s == scales_.end() ? 0 : s->second.counts.at<int64_t>(int64_t(which));
}
int64_t GradScaler::growth_tracker(int id) const { return count(id, ScalerCount::Growth); }
GradScaler::Counters GradScaler::counters(int id) const {
  return {count(id, ScalerCount::Ended), count(id, ScalerCount::Skipped)};
}
Tensor GradScaler::scale_tensor(int id) const {
  if (!enabled()) return ones({});
  const Scope scope("scale_tensor");
  return scaled(scales_, id).value();
}
Tensor GradScaler::inverse_scale(int id) {
  if (!enabled()) return ones({});
  const Scope scope("inverse_scale");
  ScaleState& s = scaled(scales_, id,
                         "call scale(loss) first, in a statement before (within one, C++ may come "
                         "here before it)");
  s.iteration.inverse_taken = true;
  return s.inverse();
}

}  // namespace mixtape::amp
