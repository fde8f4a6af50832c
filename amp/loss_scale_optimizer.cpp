// The training step with a scaled loss, in one call or two.
#include "amp/loss_scale_optimizer.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "kernels/kernels.h"
#include "optim/clip.h"
#include "optim/state_reader.h"

namespace mixtape::amp {
using namespace internal;

constexpr std::string_view of_optimizer = "optimizer.", of_scaler = "scaler.";

LossScaleOption::LossScaleOption(double fixed)
    : options{.init_scale = fixed,
              .min_scale = fixed,
              .max_scale = fixed,
              .hysteresis = std::numeric_limits<int32_t>::max()} {
  check(fixed > 0, "loss_scale must be > 0, got {}", fixed);
}

LossScaleOption LossScaleOption::named(std::string_view name) {
  check(name == "dynamic", "loss_scale must be \"dynamic\" or a number, got '{}'", name);
  return ScalerOptions();
}

LossScaleOptimizer::LossScaleOptimizer(std::unique_ptr<optim::Optimizer> inner,
                                       const MixedPrecisionOptions& options)
    : inner_(std::move(inner)), scaler_(options.loss_scale.options) {
  const Scope scope("enable_mixed_precision");
  check(inner_ != nullptr, "there is no optimizer");
  for (size_t group = 0; group < inner_->groups(); ++group)
    check(inner_->rescale_grad(group) == 1,
          "{} has a loss scale of its own: rescale_grad must be 1, got {}", inner_->name(),
          inner_->rescale_grad(group));
}

optim::Optimizer& LossScaleOptimizer::held() const {
  check(
      inner_ != nullptr,
      "there is no optimizer in here: it was moved from, for example by disable_mixed_precision()");
  return *inner_;
}

StepResult LossScaleOptimizer::minimize(const Tensor& loss, const StepOptions& options) {
  held().zero_grad();
  abandon();  // after an exception
  scaler_.scale(loss).backward();
  return step(options);
}

std::vector<Tensor> LossScaleOptimizer::compute_gradients(const Tensor& loss) {
  check(
      !held().sharing(),
      "compute_gradients() has those of whole parameters, which processes divide here: minimize()");
  const std::vector<Tensor> params = held().params();
  for (const Observer* o = thread_state.observer; o; o = o->outer)
    check(std::ranges::none_of(params, [&](const Tensor& p) { return o->exchanges(p); }),
          "compute_gradients() has this process's own, which no DataParallel adds up: minimize()");
  std::vector<Tensor> trained, gradients;
  std::ranges::copy_if(params, std::back_inserter(trained), &Tensor::requires_grad);
  const std::vector<Tensor> computed = grad({scaler_.scale(loss)}, trained, {.allow_unused = true});
  for (auto next = computed.begin(); const Tensor& p : params)
    gradients.push_back(p.requires_grad() ? *next++ : Tensor());
  const NoGrad off;
  const NoPolicy as_called;
  if (!scaler_.enabled()) {
    for (Tensor& g : gradients)
      if (g && is_half(g.dtype())) g = cast(g, f32);
    return gradients;
  }
  const Tensor inverse = 1.0 / scaler_.scale_tensor();
  const Tensor found({int64_t(gradients.size())}, f32, inverse.device());
  std::vector<View> views;
  for (Tensor& g : gradients) {
    const DType dtype = g ? accumulate_dtype(g.dtype()) : f32;
    if (g) g = cast(g, dtype) * cast(inverse, dtype);
    views.push_back(optim::gradient_view(g));
  }
  kernels::find_nonfinite(inverse.device(), views, View{}, found, View{});
  // Groups may have been added at the end since the last loss.
  if (overflow_)
    kernels::accumulate(found.device(), overflow_, found.with_layout({{overflow_.numel()}, {1}}));
  overflow_ = found;
  return gradients;
}

StepResult LossScaleOptimizer::apply_gradients(const std::vector<Tensor>& gradients,
                                               StepOptions options) {
  const std::vector<Tensor> params = held().params();
  check(gradients.size() == params.size(),
        "apply_gradients: {} parameters need as many gradients, got {}", params.size(),
        gradients.size());
  for (size_t i = 0; i < params.size(); ++i) params[i].set_grad(gradients[i]);
  options.unscaled = true;
  return step(options);
}

StepResult LossScaleOptimizer::step(const StepOptions& options) {
  const StepResult result = scaler_.step(held(), options, overflow_);
  overflow_ = {};  // kept if step() threw: it may be repeated
  held().zero_grad();
  if (!scaler_.enabled()) unscaled_ += result.state() == StepResult::State::Stepped;
  scaler_.update();
  return result;
}

void LossScaleOptimizer::abandon() {
  scaler_.abandon();
  overflow_ = {};
}

int64_t LossScaleOptimizer::iterations() const {
  const GradScaler::Counters c = scaler_.counters();
  return before_ + (scaler_.enabled() ? c.updates - c.skipped : unscaled_);
}

StateDict LossScaleOptimizer::state_dict() const {
  StateDict dict{{"iterations", from({double(iterations())}, {}, i64)}};
  dict.add(of_scaler, scaler_.state_dict());
  dict.add(of_optimizer, held().state_dict());
  return dict;
}

void LossScaleOptimizer::load_state_dict(const StateDict& dict) {
  const Scope scope("load_state_dict");
  optim::StateReader reader(dict);
  const int64_t iterations = reader.count("iterations");
  const StateDict scale = dict.under(of_scaler), rest = dict.under(of_optimizer);
  for (const auto& [name, t] : dict)
    check(name == "iterations" || name.starts_with(of_scaler) || name.starts_with(of_optimizer),
          "unexpected key '{}'", name);
  scaler_.check_state(scale);
  held().load_state_dict(rest);
  abandon();
  scaler_.load_state_dict(scale);
  before_ += iterations - this->iterations();
}

std::unique_ptr<optim::Optimizer> disable_mixed_precision(LossScaleOptimizer optimizer) {
  return std::move(optimizer.inner_);
}

}  // namespace mixtape::amp
