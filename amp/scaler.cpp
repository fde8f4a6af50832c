#include "amp/scaler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>

#include "amp/policy.h"
#include "amp/trace.h"
#include "autograd/autograd_meta.h"
#include "autograd/backward_state.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/warn.h"
#include "kernels/kernels.h"
#include "optim/clip.h"

namespace mixtape::amp {
namespace {

using kernels::ScalerCount;

constexpr int64_t remembered = 16;  // scales, for the diagnosis of a collapse

// What a resumed training goes on with, and its names.
constexpr std::array<std::pair<std::string_view, ScalerCount>, 3> saved_counts{
    {{"growth_tracker", ScalerCount::Growth},
     {"hysteresis_tracker", ScalerCount::Bad},
     {"consecutive_skips", ScalerCount::Skips}}};

// "scale", or of another loss than the first "scale.1"
std::string of_loss(std::string_view name, int id) {
  return id == 0 ? std::string(name) : fmt::format("{}.{}", name, id);
}

void set_counts(const Tensor& counts, std::span<const int64_t> values) {
  for (size_t k = 0; k < saved_counts.size(); ++k)
    counts.set(int64_t(saved_counts[k].second), double(values[k]));
  counts.set(int64_t(ScalerCount::Longest), 0);
}

bool is_scale(double value) {
  const float s = static_cast<float>(value);
  return std::isfinite(s) && s > 0;
}

void check_options(const ScalerOptions& o) {
  check(is_scale(o.init_scale), "init_scale is {}, not a positive number that f32 holds",
        o.init_scale);
  check(o.growth_factor > 1 && std::isfinite(o.growth_factor), "growth_factor is {}, not above 1",
        o.growth_factor);
  check(o.backoff_factor > 0 && o.backoff_factor < 1, "backoff_factor is {}, not between 0 and 1",
        o.backoff_factor);
  check(o.growth_interval >= 1, "growth_interval is {}, not at least 1", o.growth_interval);
  check(o.min_scale >= 0 && o.min_scale <= o.init_scale,
        "min_scale is {}, not between 0 and the initial scale of {}", o.min_scale, o.init_scale);
  check(o.max_scale >= o.init_scale, "max_scale is {}, below the initial scale of {}", o.max_scale,
        o.init_scale);
  check(o.hysteresis >= 1, "hysteresis is {}, not at least 1", o.hysteresis);
  check(o.max_consecutive_skips >= 0, "max_consecutive_skips is {}, not at least 0",
        o.max_consecutive_skips);
}

Tensor element(const Tensor& t, int64_t i) { return t.with_layout(Layout({}, {}, i)); }
Tensor scale_of(const Tensor& state) { return element(state, 0); }
Tensor inverse_of(const Tensor& state) { return element(state, 1); }

void set_scale(const Tensor& state, double value) {
  const double rounded = static_cast<float>(value);
  kernels::fill(state.device(), rounded, scale_of(state));
  kernels::fill(state.device(), 1 / rounded, inverse_of(state));
  state.storage()->bump_version();
}

std::vector<View> views(const std::vector<Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

// Whether what backward passes made of the gradients is what is about to be done with them: to
// divide by the scale of that number, or (0) nothing.
void check_carried(const optim::Optimizer& opt, uint64_t number) {
  const std::vector<Tensor> params = opt.params();
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].has_grad()) continue;
    const LossScaleTag g = params[i].autograd_meta().loss_scale();
    check(number || !g.number,
          "the gradient of parameter {} of {} is scaled: a scaled loss has added to it since "
          "unscale(), which belongs after the last backward()",
          i, opt.name());
    check(!g.number || (g.number == number && !g.mixed),
          "the gradient of parameter {} of {} carries {}: losses that add up share one, and "
          "gradients are dropped when a scale is set",
          i, opt.name(), g.mixed ? "several loss scales" : "another loss scale");
    if (g.moved)
      warn(fmt::format(
          "{}: gradients of losses before and after an update() are added up, though the scale may "
          "have moved in between: zero_grad() was left out, or update() came before the step",
          opt.name()));
    if (number && g.unscaled)
      warn(fmt::format(
          "{}: a gradient that is divided by the loss scale is, at least in part, not multiplied "
          "by it: a loss was not scaled, gradients were divided before, or zero_grad() was left "
          "out. Use scaler.scale(loss).backward(), or step with {{.unscaled = true}}.",
          opt.name()));
  }
}

void check_used(bool used) {
  check(
      used,
      "no loss was scaled since the last update(), so that dividing the gradients would be wrong: "
      "call scale(loss).backward(), or step with {{.unscaled = true}} if they are the true ones");
}

}  // namespace

StepResult::State StepResult::state() const {
  if (!has_grads_) return State::NoGrads;
  return cause() == Cause::None ? State::Stepped : State::Skipped;
}
StepResult::Cause StepResult::cause() const {
  if (!skip_reason_) return Cause::None;
  if (!skip_reason_->has_arrived()) skip_reason_->wait();
  const float skip_reason = *skip_reason_->as<float>();
  return skip_reason == 0 ? Cause::None : skip_reason == 1 ? Cause::Gradients : of_loss_;
}

GradScaler::GradScaler(const ScalerOptions& options) : options_(options) {
  const Scope scope("GradScaler");
  if (!enabled()) return;
  check_options(options_);
  loss_scale(0);
}
GradScaler::GradScaler(DType low, const ScalerOptions& options)
    : GradScaler([&] {
        const Scope scope("GradScaler");
        check(is_float(low) && low != f64, "scales for {}: low is f16, bf16 or f32", low);
        ScalerOptions o = options;
        o.enabled = o.enabled && low == f16;
        return o;
      }()) {}

GradScaler::ScaleState& GradScaler::loss_scale(int id) {
  ScaleState& s = scales_[id];
  if (!s.scale) {
    s.scale = Tensor({2}, f32, Device::cpu());
    set(s, options_.init_scale);
    s.counts = optim::filled({int64_t(ScalerCount::Total)}, 0, i32, Device::cpu());
    s.history = optim::filled({remembered}, 0, f32, Device::cpu());
  }
  return s;
}

void GradScaler::set(ScaleState& s, double value) {
  static std::atomic<uint64_t> last = 0;
  if (std::exchange(s.value, value) != value) s.number = ++last;
  set_scale(s.scale, value);
}

const GradScaler::ScaleState& GradScaler::scaled(int id, std::string_view hint) const {
  const auto entry = scales_.find(id);
  check(entry != scales_.end() && entry->second.has_scaled, "loss {} was never scaled: {}", id,
        hint);
  return entry->second;
}

Tensor GradScaler::scale(const Tensor& loss, int id) {
  if (!enabled()) {
    // Disabling a scaler is a choice, so its loss draws no warning.
    if (loss.grad_fn())
      register_hook(loss, [](const Tensor&) {
        backward_state.loss_scale->declined = true;
        return Tensor();
      });
    return loss;
  }
  const Scope scope("scale");
  check(is_float(loss.dtype()), "a loss of {} elements (convert it to a float dtype)",
        loss.dtype());
  const NoPolicy as_called;
  const Device device = loss.device();
  ScaleState& s = loss_scale(id);
  if (s.scale.device() != device) {  // the first, or the model has moved
    check(s.iteration.flags.empty(), "a loss on {}, after one on {} since the last update()",
          device, s.scale.device());
    for (Tensor* t : {&s.scale, &s.counts, &s.history}) *t = t->copied_to(device);
  }
  s.has_scaled = s.iteration.used = true;
  if (std::exchange(s.iteration.had_nonfinite_loss, false))
    s.iteration.flags.push_back(full({1}, 1, f32, device));
  if (std::exchange(s.iteration.stepped, false))
    s.iteration.consumed_losses = s.iteration.flags.size();
  const Tensor wide = is_half(loss.dtype()) ? cast(loss, f32) : loss;
  if (wide.requires_grad()) {  // else no gradient comes of it
    s.last_loss = contiguous(wide.detach());
    const View value = s.last_loss;
    kernels::find_nonfinite(device, std::span(&value, 1), View{},
                            s.iteration.flags.emplace_back(Shape{1}, f32, device));
  }
  const Tensor scaled = mul(wide, cast(scale_of(s.scale), wide.dtype()));
  if (scaled.requires_grad())
    register_hook(scaled, [number = s.number, moves = s.moves](const Tensor&) {
      tag_loss_scale(number, moves);
      return Tensor();
    });
  return scaled;
}

std::vector<Tensor> GradScaler::scale(const std::vector<Tensor>& losses, int id) {
  std::vector<Tensor> scaled;
  for (const Tensor& loss : losses) scaled.push_back(scale(loss, id));
  return scaled;
}

// One view per parameter, empty where there is no gradient; none at all if there is none anywhere.
std::vector<View> GradScaler::gradients(const optim::Optimizer& opt, Device device) const {
  std::vector<View> grads;
  bool any = false;
  for (size_t group = 0; group < opt.groups(); ++group) {
    for (const Tensor& p : opt.params(group)) {
      const Tensor g = optim::dense_grad(p);
      check(!enabled() || !g || g.dtype() != f16 || p.dtype() != f16 || opt.multi_precision(group),
            "parameter {} of {} is f16 and so is its gradient: keep parameters in f32 and use "
            "Autocast, or let the optimizer keep f32 copies with {{.multi_precision = true}}",
            grads.size(), opt.name());
      check(p.device() == device, "parameter {} of {} is on {}, others or the loss on {}",
            grads.size(), opt.name(), p.device(), device);
      grads.push_back(optim::gradient_view(g));
      any = any || g;
    }
  }
  if (!any) grads.clear();
  return grads;
}

void GradScaler::unscale(optim::Optimizer& opt, int id) {
  if (!enabled()) return;
  const Scope scope("unscale");
  const ScaleState& s = scaled(id);
  OptimizerState& r = optimizers_[opt.id()];
  check(r.stage != Stage::Unscaled,
        "the gradients of {} were unscaled already since the last update()", opt.name());
  check(r.stage != Stage::Stepped, "{} has already stepped since the last update()", opt.name());
  const Device device = s.scale.device();
  if (gradients(opt, device).empty()) return;
  check_used(s.iteration.used);
  check_carried(opt, s.number);
  for (const Tensor& p : opt.params())
    if (const Tensor g = p.grad(); g && g.dtype() == f16) p.set_grad(cast(g.detach(), f32));

  const std::vector<View> grads = gradients(opt, device);
  r.loss = id;
  r.found = Tensor({int64_t(grads.size())}, f32, device);
  // (A copy, for update() moves the scale.)
  optim::multiply_grads(opt.params(), optim::dense_copy(inverse_of(s.scale), f32, device), r.found);
  for (const Tensor& p : opt.params())
    if (p.has_grad()) p.autograd_meta().set_loss_scale({.unscaled = true});
  r.stage = Stage::Unscaled;
}

StepResult GradScaler::step(optim::Optimizer& opt, const StepOptions& options) {
  return step(opt, options, Tensor());
}
StepResult GradScaler::step(optim::Optimizer& opt, const StepOptions& options, const Tensor& seen) {
  const Scope scope("step");
  check(!options.clip_norm || *options.clip_norm >= 0, "clip_norm is {}, not a number from 0",
        options.clip_norm.value_or(0));
  StepResult result;
  if (!enabled() && !options.clip_norm) {  // passes through, on however many devices
    result.has_grads_ = std::ranges::any_of(opt.params(), &Tensor::has_grad);
    if (result.has_grads_) opt.step();
    return result;
  }
  OptimizerState* r = nullptr;
  const ScaleState* s = nullptr;
  if (enabled()) {
    r = &optimizers_[opt.id()];
    check(r->stage != Stage::Stepped, "{} has already stepped since the last update()", opt.name());
    check(r->stage == Stage::Ready || options.loss.value_or(r->loss) == r->loss,
          "the gradients of {} were unscaled as those of loss {}, not {}", opt.name(), r->loss,
          options.loss.value_or(0));
    const int id = options.loss.value_or(r->loss);
    s = &scaled(id);
    r->loss = id;
  }

  const Device device = s ? s->scale.device() : opt.params()[0].device();
  const std::vector<View> grads = gradients(opt, device);
  if (grads.empty()) {
    if (r) r->stage = Stage::Stepped;
    result.has_grads_ = false;
    return result;
  }

  if (r && r->stage == Stage::Unscaled)
    check(r->found.numel() == int64_t(grads.size()),
          "{} has {} parameters, of which {} were unscaled: add groups before unscale()",
          opt.name(), grads.size(), r->found.numel());
  else if (r && !options.unscaled)
    check_used(s->iteration.used);
  if (r && !options.unscaled) check_carried(opt, r->stage == Stage::Ready ? s->number : 0);
  Tensor factor;
  if (r && r->stage == Stage::Ready) {
    if (!options.unscaled) factor = inverse_of(s->scale);
    r->found = Tensor({int64_t(grads.size())}, f32, device);
    optim::find_nonfinite(opt.params(), factor, r->found);
    // (Of the first parameters: groups may have joined since.)
    if (seen) kernels::accumulate(device, seen, r->found.with_layout({{seen.numel()}, {1}}));
  }
  if (options.clip_norm) {
    const Tensor total({}, f64, device), clipped({}, f32, device);
    result.norm_ = Tensor({}, f32, device);
    kernels::grad_norm(device, grads, 2, total);
    kernels::clip_factor(device, total, factor, *options.clip_norm, result.norm_, clipped);
    factor = clipped;
  }
  Tensor skip_reason;
  if (r) {
    skip_reason = Tensor({}, f32, device);
    const std::vector<View> losses = views(s->iteration.flags);
    kernels::scaler_skip_reason(device, r->found,
                                std::span(losses).subspan(s->iteration.consumed_losses),
                                skip_reason, history_of(opt, grads.size(), device).last);
    result.skip_reason_ = std::make_shared<Readback>(skip_reason.raw(), sizeof(float), device);
    result.deferred_ = !device.is_host();
    if (s->iteration.inverse_taken)
      result.of_loss_ = StepResult::Cause::Gradients;  // as update() has it
  }
  opt.step({.skip = skip_reason, .grad_scale = factor});
  if (r) {
    r->stage = Stage::Stepped;
    loss_scale(r->loss).iteration.stepped = true;
  }
  return result;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (OverflowTrace* const trace = OverflowTrace::innermost()) trace->next_iteration();
  if (!enabled()) return;
  const Scope scope("update");
  check(std::ranges::any_of(scales_, [](const auto& s) { return s.second.has_scaled; }),
        "no loss was ever scaled: call scale(loss).backward() first");
  check(!new_scale || is_scale(*new_scale), "new_scale is {}, not a positive number that f32 holds",
        new_scale.value_or(0));
  const bool scaled =
      std::ranges::any_of(scales_, [](const auto& s) { return !s.second.iteration.flags.empty(); });
  // (A record that is ready is of a step that failed.)
  const bool stepped = std::ranges::any_of(
      optimizers_, [](const auto& r) { return r.second.stage != Stage::Ready; });
  check(
      new_scale || !scaled || stepped,
      "a loss was scaled, but no optimizer has stepped since the last update(): call the scaler's "
      "step(optimizer), which divides the gradients, not the optimizer's step()");
  const auto records = std::exchange(optimizers_, {});
  const kernels::ScalePolicy rule{options_.growth_factor,   options_.backoff_factor,
                                  options_.min_scale,       options_.max_scale,
                                  options_.growth_interval, options_.hysteresis};
  for (auto& [id, s] : scales_) {
    if (!s.has_scaled) continue;
    std::vector<View> found;
    for (const auto& [optimizer, r] : records)
      if (r.found && r.loss == id) found.push_back(r.found);
    const ScaleState::Iteration ended = std::exchange(s.iteration, {});
    std::vector<View> losses = views(ended.flags);
    // A loss that contains gradients, divided by the scale, is not finite where those overflowed.
    if (ended.inverse_taken && !found.empty())
      found.insert(found.end(), losses.begin(), losses.end()), losses.clear();
    if (new_scale) {
      set(s, *new_scale);
    } else if (!found.empty()) {
      s.value = 0;
      s.moves += options_.min_scale < options_.max_scale;
      kernels::scaler_update(s.scale.device(), found, losses, rule, s.scale, s.counts, s.history);
      for (const Tensor& t : {s.scale, s.counts, s.history}) t.storage()->bump_version();
    }
  }
  for (auto& [id, s] : scales_)
    if (s.has_scaled && !new_scale) poll(s);
}

void GradScaler::abandon() {
  optimizers_.clear();
  for (auto& [id, s] : scales_) s.iteration = {};
}

double GradScaler::scale_value(int id) const {
  if (!enabled()) return 1;
  const auto s = scales_.find(id);
  return s == scales_.end() ? options_.init_scale : s->second.scale.at(0);
}
int64_t GradScaler::count(int id, int which) const {
  const auto s = scales_.find(id);
  return s == scales_.end() ? 0 : s->second.counts.at<int64_t>(which);
}
int64_t GradScaler::growth_tracker(int id) const { return count(id, int(ScalerCount::Growth)); }
GradScaler::Counters GradScaler::counters(int id) const {
  return {count(id, int(ScalerCount::Ended)), count(id, int(ScalerCount::Skipped))};
}
Tensor GradScaler::scale_tensor(int id) const {
  if (!enabled()) return ones({});
  const Scope scope("scale_tensor");
  return scale_of(scaled(id).scale);
}
Tensor GradScaler::inverse_scale(int id) {
  if (!enabled()) return ones({});
  const Scope scope("inverse_scale");
  const ScaleState& s =
      scaled(id,
             "call scale(loss) first, in a statement before (within one, C++ may come here before "
             "it)");
  loss_scale(id).iteration.inverse_taken = true;
  return inverse_of(s.scale);
}

StateDict GradScaler::state_dict() const {
  StateDict dict;
  if (!enabled()) return dict;
  const auto add = [&](const std::string& name, double value, DType dtype) {
    dict.emplace_back(name, from({value}, {}, dtype));
  };
  add("growth_factor", options_.growth_factor, f64);
  add("backoff_factor", options_.backoff_factor, f64);
  add("growth_interval", double(options_.growth_interval), i64);
  for (const auto& [id, s] : scales_) {
    add(of_loss("scale", id), scale_value(id), f32);
    for (const auto& [name, which] : saved_counts)
      add(of_loss(name, id), double(count(id, int(which))), i32);
    if (s.iteration.had_nonfinite_loss ||
        std::any_of(s.iteration.flags.begin() + int64_t(s.iteration.consumed_losses),
                    s.iteration.flags.end(), [](const Tensor& flag) { return flag.item() != 0; }))
      add(of_loss("had_nonfinite_loss", id), 1, i32);
  }
  return dict;
}

void GradScaler::load_state_dict(const StateDict& dict) {
  if (!enabled()) return;
  const Scope scope("load_state_dict");
  check(!dict.empty(),
        "the state is empty: it was saved by a disabled scaler (without it, this one starts anew)");
  optim::StateReader reader(dict);
  ScalerOptions options = options_;
  options.growth_factor = reader.number("growth_factor");
  options.backoff_factor = reader.number("backoff_factor");
  options.growth_interval = reader.count("growth_interval");
  check_options(options);
  struct Saved {
    double scale;
    bool had_nonfinite_loss;
    std::array<int64_t, saved_counts.size()> counts;
  };
  std::map<int, Saved> loaded;
  const auto load = [&](int id) {
    Saved& s = loaded[id];
    const double scale = reader.number(of_loss("scale", id));
    check(is_scale(scale), "the scale of loss {} is {}, not a positive number that f32 holds", id,
          scale);
    s.scale = std::clamp(scale, options.min_scale, options.max_scale);
    s.had_nonfinite_loss = reader.find(of_loss("had_nonfinite_loss", id));
    for (size_t k = 0; k < saved_counts.size(); ++k) {
      const std::string name = of_loss(saved_counts[k].first, id);
      // (Files of before have the first only, and PyTorch calls it so.)
      const bool theirs = k == 0 && id == 0 && reader.find("_growth_tracker");
      if (k == 0 || reader.find(name))  // which goes on in 32 bits
        s.counts[k] = reader.count(theirs ? "_growth_tracker" : name, int64_t(1) << 30);
    }
  };
  load(0);
  for (const auto& [name, tensor] : dict)
    if (int id = 0; std::sscanf(name.c_str(), "scale.%d", &id) == 1) load(id);
  reader.check_all_read();
  abandon();  // a state is one between iterations
  options_ = options;
  for (const auto& [id, from] : loaded) {
    ScaleState& s = loss_scale(id);
    set(s, from.scale);
    set_counts(s.counts, from.counts);
    s.pending_counters = {};  // of the counters before
    s.iteration.had_nonfinite_loss = from.had_nonfinite_loss;
  }
}

}  // namespace mixtape::amp
