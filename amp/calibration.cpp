// The search for a loss scale: backward passes on the first loss's graph, which is retained, until
// the largest f16 gradient is where it should be. They add to no grad().
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "amp/scaler.h"
#include "amp/trace.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/warn.h"
#include "kernels/common/tensor_stats.h"

namespace mixtape::amp {
using namespace internal;
namespace {

using kernels::TensorStats;

constexpr int headroom = 4;     // in powers of two, since gradients may grow in training
constexpr int end_of_f16 = 16;  // 2^16 is the first power of two beyond f16
constexpr int most_passes = 24;
constexpr int first_stride = 16, far = 120;  // of exponents
constexpr double none_found = std::numeric_limits<double>::infinity();

// Watches the gradients that reach the ops of a backward pass, in the dtypes in which they travel.
class GradientRange final : public Observer {
 public:
  void add(const Tensor& g) {
    if (!g || g.numel() == 0) return;
    const Unobserved aside;
    all_.emplace_back(detail::stats_of(contiguous(g.detach())), g.dtype());
  }
  struct Result {
    bool finite = true, any_f16 = false;
    double largest = 0;  // of f16 gradients
  };
  Result result() const {
    Result r;
    for (const auto& [stats, dtype] : all_) {
      if (stats.device().is_meta()) continue;  // in a plan
      const Tensor here = stats.copied_to(Device::cpu());
      const auto& s = *static_cast<const TensorStats*>(here.host());
      r.finite &= s.is_finite();
      if (dtype != f16) continue;
      r.any_f16 = true;
      r.largest = std::max(r.largest, s.largest);
    }
    return r;
  }

 private:
  void before_rule(const Node&, const Tensor& dy) override { add(dy); }

  std::vector<std::pair<Tensor, DType>> all_;
  const Observe watching_{*this};
};

GradientRange::Result backward_at(int exponent, const Tensor& loss,
                                  const std::vector<Tensor>& leaves) {
  const ScopedValue<&ThreadState::observer> unseen(nullptr);
  GradientRange range;
  const Tensor gradient = full(loss.shape(), std::exp2(exponent), loss.dtype(), loss.device());
  for (const Tensor& g :
       grad({loss}, leaves, {.gradients = {gradient}, .retain_graph = true, .allow_unused = true}))
    range.add(g);
  return range.result();
}

// Narrows down the exponent of a scale.
class Search {
 public:
  Search(int start, int low, int high)
      : exponent(std::clamp(start, low, high)), low_(low), high_(high) {}

  // Takes the result for `exponent`; returns true once that is the exponent to use.
  bool take(const GradientRange::Result& r) {
    if (!r.finite) {
      bad_ = exponent;
      return is_known(good_) ? between() : go(exponent - stride());
    }
    good_ = exponent;
    saw_ |= r.largest > 0;
    if (r.largest == 0) return is_known(bad_) ? between() : go(exponent + stride());
    const int room = end_of_f16 - headroom - 1 - std::ilogb(r.largest);
    if (room <= 0) {  // a smaller scale only makes gradients smaller
      exponent = std::clamp(exponent + room, low_, high_);
      return true;
    }
    // With more, gradients that were zero may appear, so the search goes on.
    return is_known(bad_) && exponent + room >= bad_ ? between() : go(exponent + room);
  }
  bool has_good() const { return is_known(good_); }
  bool saw_gradients() const { return saw_; }  // true if any was not zero

  int exponent;

 private:
  static constexpr int unknown = 1 << 20;
  static bool is_known(int e) { return e != unknown; }
  int stride() { return std::exchange(stride_, 2 * stride_); }
  bool go(int to) {
    const int next = std::clamp(to, low_, high_);
    return next == std::exchange(exponent, next);
  }
  bool between() {
    exponent = good_ + (bad_ - good_) / 2;
    return exponent == good_;
  }

  const int low_, high_;
  int good_ = unknown, bad_ = unknown;  // the largest exponent without, the smallest with overflow
  int stride_ = first_stride;
  bool saw_ = false;
};

int exponent_of(double scale, int most) {
  return scale <= 0 ? -most : std::isinf(scale) ? most : std::clamp(std::ilogb(scale), -most, most);
}

}  // namespace

void GradScaler::start(detail::ScaleState& s, double scale, int64_t passes) const {
  if (options_.policy) scale = options_.policy->start(scale);
  check(detail::is_scale(scale),
        "the policy's first scale must be positive and finite in f32, got {}", scale);
  s.set(std::clamp(scale, options_.min_scale, options_.max_scale));
  s.calibrated = passes;
}

void GradScaler::calibrate(detail::ScaleState& s, const Tensor& loss) const {
  check_no_capture("calibrate finds the scale on the host: scale a loss before");
  auto [scale, passes] = search(s, loss);
  for (Observer* o = thread_state.observer; o; o = o->outer) scale = o->joined_scale(scale);
  if (scale != none_found) start(s, scale, passes);
}

// A scale and the backward passes that it took, or none_found.
std::pair<double, int64_t> GradScaler::search(const detail::ScaleState& s,
                                              const Tensor& loss) const {
  const Tensor nonfinite = s.iteration.flags.back();
  if (loss.is_leaf() || (!nonfinite.device().is_meta() && nonfinite.item() != 0))
    return {none_found, 0};  // such a loss says nothing, like that of a skipped chunk
  const std::vector<Tensor> leaves = leaves_of(loss);
  const bool has_least = options_.min_scale > 0 &&
                         std::exp2(exponent_of(options_.min_scale, far)) < options_.min_scale;
  const int low = exponent_of(options_.min_scale, far) + has_least,
            high = exponent_of(options_.max_scale, far);
  if (low > high) return {options_.init_scale, 0};  // no power of two is allowed
  Search search(exponent_of(options_.init_scale, far), low, high);
  int64_t passes = 0;
  bool any_f16 = true, found = false;
  while (!found && any_f16 && passes < most_passes) {
    ++passes;
    const GradientRange::Result r = backward_at(search.exponent, loss, leaves);
    any_f16 = r.any_f16;
    found = any_f16 && search.take(r);
  }
  if (any_f16 && search.has_good() && !search.saw_gradients()) {
    const GradientRange::Result r = backward_at(far, loss, leaves);  // beyond any max_scale
    if (r.finite && r.largest == 0)  // no scale would show a gradient; the next loss may
      return {none_found, passes};
  }
  if (any_f16 && !search.has_good())
    warn(fmt::format("no loss scale makes all gradients finite: {} were tried", passes));
  const bool has_scale = any_f16 && search.has_good();
  return {has_scale ? std::exp2(search.exponent) : options_.init_scale, passes};
}

std::optional<int64_t> GradScaler::calibration_passes(int id) const {
  const auto s = scales_.find(id);
  const bool none = s == scales_.end() || s->second.calibrated.value_or(0) == 0;
  return none ? std::nullopt : s->second.calibrated;
}

}  // namespace mixtape::amp
