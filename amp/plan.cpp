// Plans run the steps twice: once to find the peak and the op at which it is reached, and once more
// to count what the tensors of that moment are for.
#include "amp/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "autograd/autograd_meta.h"
#include "core/allocator.h"
#include "core/check.h"
#include "core/dispatch.h"
#include "core/format.h"
#include "core/random.h"
#include "core/scope.h"

namespace mixtape::amp {
using namespace internal;
namespace {

// The bytes of some tensors, counting each storage once.
class Held {
 public:
  void add(const Tensor& t) {
    if (t) add(*t.storage());
  }
  void add(const Storage& s) {
    if (seen_.insert(s.id()).second) bytes += int64_t(s.counted_bytes());
  }

  int64_t bytes = 0;

 private:
  std::set<uint64_t> seen_;
};

struct Observed {
  int64_t peak = 0, event = -1;  // the most bytes, and when they were first seen
  Plan found = {};
};

// Watches the steps of a training, and numbers the events that it sees.
class PlannedSteps final : Observer {
 public:
  // Given the event at which the peak is first reached, counts what was there.
  explicit PlannedSteps(Device device, std::optional<int64_t> counted = {})
      : device_(device), counted_(counted), before_(memory_stats(device).in_use) {
    reset_peak(device);
  }
  Observed run(const TrainingMaker& make, int64_t batch_size, int64_t steps);

 private:
  void after(const Call& call, const Tensor& y) override;
  void after_rule(const Node&, const Tensor&, std::span<const Tensor>) override;
  void after_accumulate(const Node&, const Tensor&) override;
  void after_backward(bool) override { see(); }
  bool reads_values() const override { return false; }
  void see();
  void count();

  const Device device_;
  const std::optional<int64_t> counted_;
  const int64_t before_;
  int64_t events_ = 0;
  int64_t rules_ = 0;  // that ended since the peak
  Observed result_;
  PlannedTraining training_;
  std::vector<Tensor> params_;
  std::set<uint64_t> weights_;                 // storages of params_
  std::vector<std::weak_ptr<Storage>> casts_;  // of weights
};

Observed PlannedSteps::run(const TrainingMaker& make, int64_t batch_size, int64_t steps) {
  training_ = make(batch_size);
  check(!training_.optimizers.empty() && training_.step,
        "a planned training needs an optimizer and a step");
  for (const auto& optimizer : training_.optimizers) {
    check(optimizer != nullptr, "an optimizer of a planned training is null");
    const std::vector<Tensor> own = optimizer->params();
    params_.insert(params_.end(), own.begin(), own.end());
  }
  for (const Tensor& p : params_) {
    check(p.device() == device_, "a planned training must be on {}, but has a parameter on {}",
          device_, p.device());
    weights_.insert(p.storage()->id());
  }
  if (counted_) count();
  // All other categories have been counted, or are 0.
  result_.found.weights = memory_stats(device_).in_use - before_ - result_.found.peak();
  see();
  const Observe watching(*this);
  for (int64_t i = 0; i < steps; ++i) {
    training_.step();
    see();
  }
  return result_;
}

void PlannedSteps::after(const Call& call, const Tensor& y) {
  if (counted_ && call.op.name == "cast" && weights_.contains((*call.inputs[0]).storage()->id()))
    casts_.push_back(y.storage());
  see();
}

void PlannedSteps::see() {
  const int64_t now = memory_stats(device_).peak - before_;
  if (now > result_.peak) {
    result_.peak = now;
    result_.event = events_;
  }
  if (counted_ && (events_ == *counted_ || events_ == *counted_ - 1)) count();
  ++events_;
}

// Gradients that a rule makes reach their parameters before the next rule has run.
void PlannedSteps::after_rule(const Node&, const Tensor&, std::span<const Tensor>) {
  see();
  rules_ += counted_ && events_ > *counted_;
}
void PlannedSteps::after_accumulate(const Node&, const Tensor&) {
  see();
  if (counted_ && events_ > *counted_ && rules_ <= 1) count();
}

// Tensors that existed before the event or exist after it existed during it.
void PlannedSteps::count() {
  const auto at_least = [](int64_t& bytes, const Held& held) {
    bytes = std::max(bytes, held.bytes);
  };
  Held gradients, masters, state, copies;
  for (const Tensor& p : params_) {
    gradients.add(p.grad());
    gradients.add(p.autograd_meta().wide_grad());
    copies.add(p.autograd_meta().half.data);
  }
  for (const auto& cast : casts_)
    if (const auto storage = cast.lock()) copies.add(*storage);
  const DefaultDevice aside(Device::cpu());  // for the numbers among the options
  for (const auto& optimizer : training_.optimizers)
    for (const auto& [name, tensor] : optimizer->state_dict())
      if (name.starts_with("state.")) (name.ends_with(".master") ? masters : state).add(tensor);
  at_least(result_.found.gradients, gradients);
  at_least(result_.found.masters, masters);
  at_least(result_.found.state, state);
  at_least(result_.found.copies, copies);
}

// Runs the steps as they would on a training of their own.
Observed observed(const TrainingMaker& make, int64_t batch_size, const PlanOptions& options,
                  std::optional<int64_t> counted = {}) {
  check(make != nullptr, "there is no training to plan");
  check(batch_size > 0, "batch_size must be > 0, got {}", batch_size);
  check(options.steps > 0, "steps must be > 0, got {}", options.steps);
  const DefaultDevice there(options.device);
  const Seed seed(0);
  return PlannedSteps(options.device, counted).run(make, batch_size, options.steps);
}

}  // namespace

Plan plan(const TrainingMaker& make, int64_t batch_size, const PlanOptions& options) {
  const Scope scope("plan");
  const Observed first = observed(make, batch_size, options);
  const Observed again = observed(make, batch_size, options, first.event);
  check(first.peak == again.peak, "the steps are not the same each time: {} bytes, then {}",
        first.peak, again.peak);
  Plan plan = again.found;
  plan.gradients -= std::max<int64_t>(0, plan.peak() - first.peak);  // made a moment later
  plan.activations = first.peak - plan.peak();
  return plan;
}

int64_t largest_batch(const TrainingMaker& make, int64_t bytes, const PlanOptions& options) {
  const Scope scope("largest_batch");
  constexpr int64_t most = int64_t{1} << 30;
  const int64_t least = observed(make, 1, options).peak;
  if (least > bytes) return 0;
  const auto fits = [&](int64_t batch_size) {
    return observed(make, batch_size, options).peak <= bytes;
  };
  int64_t low = 1, high = 2;  // low fits, high does not
  try {
    while (low < most && fits(high)) low = std::exchange(high, 2 * high);
  } catch (const Error& e) {
    throw Error(fmt::format("a batch of {} fits into {} bytes, and a step can take none of {}: {}",
                            low, bytes, high, e.what()));
  }
  if (low == most) {
    check(observed(make, most, options).peak > least,
          "batches of 1 and of {} take {} bytes alike: does the step use its batch size?", most,
          least);
    return most;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace mixtape::amp
