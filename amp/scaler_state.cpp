// The state of a GradScaler: loss scales on their device, the diagnosis of overflow, state dicts.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>

#include "amp/scaler.h"
#include "amp/trace.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "core/warn.h"
#include "kernels/kernels.h"
#include "optim/state_reader.h"

namespace mixtape::amp {
using namespace internal;

using detail::ScaleState;
using kernels::ScalerCount;

namespace {

constexpr int64_t remembered_scales = 16;  // for the diagnosis of a collapse
constexpr int64_t many_skips = 50;         // more than any search takes: 65536 / 2^50 is 6e-11

// The last finding of this thread's trace, or "".
std::string first_bad_op() {
  OverflowTrace* const trace = OverflowTrace::innermost();
  return !trace || trace->found().empty() ? "" : trace->found().back().text();
}

constexpr std::array<std::pair<std::string_view, ScalerCount>, 3> saved_counts{
    {{"growth_tracker", ScalerCount::Growth},
     {"hysteresis_tracker", ScalerCount::Bad},
     {"consecutive_skips", ScalerCount::Skips}}};

// "scale" for loss 0, "scale.1" for loss 1.
std::string name_for_loss(std::string_view name, int id) {
  return id == 0 ? std::string(name) : fmt::format("{}.{}", name, id);
}

}  // namespace

namespace detail {
struct SavedScale {
  double value = 0;
  bool had_nonfinite_loss = false, uncalibrated = false;
  std::array<int64_t, 3> counts = {};  // saved_counts
};
}  // namespace detail
using detail::SavedScale;

namespace {

SavedScale read_scale(optim::StateReader& reader, int id, const ScalerOptions& options) {
  SavedScale s;
  const double value = reader.number(name_for_loss("scale", id));
  check(detail::is_scale(value), "the scale of loss {} must be positive and finite in f32, got {}",
        id, value);
  s.value = std::clamp(value, options.min_scale, options.max_scale);
  s.had_nonfinite_loss = reader.find(name_for_loss("had_nonfinite_loss", id));
  s.uncalibrated = reader.find(name_for_loss("uncalibrated", id));
  for (size_t k = 0; k < saved_counts.size(); ++k) {
    const std::string name = name_for_loss(saved_counts[k].first, id);
    // PyTorch has only the first, under another name.
    const bool from_torch = k == 0 && id == 0 && reader.find("_growth_tracker");
    if (k == 0 || reader.find(name))  // PyTorch's is i32
      s.counts[k] = reader.count(from_torch ? "_growth_tracker" : name, int64_t(1) << 30);
  }
  return s;
}

}  // namespace

bool detail::is_scale(double value) {
  const float s = static_cast<float>(value);
  return std::isfinite(s) && s > 0;
}

std::span<const Tensor> ScaleState::Iteration::pending_flags() const {
  return std::span(flags).subspan(consumed_losses);
}

ScaleState::ScaleState(double value)
    : values({2}, f32, Device::cpu()),
      counts(optim::filled({int64_t(ScalerCount::Total)}, 0, i32, Device::cpu())),
      history(optim::filled({remembered_scales}, 0, f32, Device::cpu())) {
  set(value);
}

void ScaleState::set(double value) {
  static std::atomic<uint64_t> last_number = 0;
  if (std::exchange(known_value, value) != value) number = ++last_number;
  write(value);
}

void ScaleState::write(double value) {
  const double rounded = static_cast<float>(value);
  values.storage()->begin_write();
  kernels::fill(values.device(), rounded, this->value());
  kernels::fill(values.device(), 1 / rounded, inverse());
  values.storage()->bump_version();
}

void ScaleState::move_to(Device device) {
  for (Tensor* t : {&values, &counts, &history}) *t = t->copied_to(device);
}

void ScaleState::update(std::vector<View> found, const Iteration& ended,
                        const ScalerOptions& options, int id) {
  std::vector<View> losses(ended.flags.begin(), ended.flags.end());
  // A loss that contains unscaled gradients is not finite if these overflowed.
  if (ended.inverse_taken) {
    found.insert(found.end(), losses.begin(), losses.end());
    losses.clear();
  }
  known_value = 0;
  moves += options.min_scale < options.max_scale;
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  kernels::ScalePolicy policy{options.growth_factor, options.backoff_factor,  options.min_scale,
                              options.max_scale,     options.growth_interval, options.hysteresis};
  if (options.policy) policy.interval = policy.hysteresis = never;
  for (const Tensor& t : {values, counts, history}) t.storage()->begin_write();
  kernels::scaler_update(values.device(), found, losses, policy, values, counts, history);
  for (const Tensor& t : {values, counts, history}) t.storage()->bump_version();
  if (options.policy) ask_policy(found, losses, options, id);
}

void ScaleState::ask_policy(const std::vector<View>& found, const std::vector<View>& losses,
                            const ScalerOptions& options, int id) {
  check_no_capture("a policy of the scale runs on the host");
  const Device device = values.device();
  if (device.is_meta()) return;  // in a plan
  bool overflow = false, bad_loss = false;
  for (const View& f : found) {
    const Tensor reason({}, f32, device), copy({f.size()}, f32, device);
    kernels::scaler_skip_reason(device, f, losses, reason, copy);
    overflow |= reason.item() == 1;
    bad_loss |= reason.item() == 2;
  }
  const int64_t updates = counts.at<int64_t>(int64_t(ScalerCount::Ended));
  const double next = options.policy->next({values.at(0), overflow && !bad_loss, bad_loss, updates,
                                            counts.at<int64_t>(int64_t(ScalerCount::Skipped)), id});
  check(detail::is_scale(next), "the policy's scale must be positive and finite in f32, got {}",
        next);
  if (next < options.min_scale) counts.set(int64_t(ScalerCount::AtFloor), 1);
  write(std::clamp(next, options.min_scale, options.max_scale));
  history.set((updates - 1) % history.numel(), values.at(0));
}

detail::OptimizerHistory& GradScaler::history_of(const optim::Optimizer& opt, size_t parameters,
                                                 Device device) {
  detail::OptimizerHistory& h = histories_[opt.id()];
  h.kind = opt.name();
  const int64_t n = static_cast<int64_t>(parameters);
  if (!h.last || h.last.numel() != n || h.last.device() != device)
    h.last = optim::filled({n}, 0, f32, device);
  return h;
}

// The counters of a device arrive some updates later, when a streak of skips may be over.
void GradScaler::poll(ScaleState& s) {
  if (!s.pending_counters) {
    const View counts = s.counts;  // after this thread's earlier work
    s.pending_counters =
        Readback(counts.data, size_t(ScalerCount::Total) * sizeof(int32_t), s.counts.device());
  }
  if (!s.pending_counters.has_arrived()) return;
  const auto* const counts = s.pending_counters.as<int32_t>();
  const int32_t skips = counts[int(ScalerCount::Longest)],
                at_floor = counts[int(ScalerCount::AtFloor)];
  s.pending_counters = {};
  const int64_t most = options_.max_consecutive_skips;
  std::string what;
  if (at_floor != 0)
    what = fmt::format("the loss scale would fall below {}", s.values.at(0));
  else if (skips >= (most > 0 ? most : many_skips))
    what = fmt::format("{} steps in a row were skipped", skips);
  else
    return;
  if (at_floor == 0 && most == 0) {
    if (!std::exchange(s.warned, true))
      warn(what + ", and nothing was learned (with max_consecutive_skips this is an error)" +
           diagnosis(s));
    return;
  }
  for (const ScalerCount reported :
       {ScalerCount::Skips, ScalerCount::Longest, ScalerCount::AtFloor})
    s.counts.set(int64_t(reported), 0);
  throw ScaleCollapse(what + diagnosis(s));
}

std::string GradScaler::diagnosis(const ScaleState& s) const {
  std::string text = "\n  last loss: ";
  if (!s.last_loss) {
    text += "none";
  } else if (s.last_loss.numel() == 1) {
    text += fmt::format("{}", s.last_loss.item());
    if (!std::isfinite(s.last_loss.item()))
      text += ": it is the forward pass that fails, and no scale can help";
  } else {
    text += fmt::format("of shape {}", s.last_loss.shape());
  }
  text += "\n  recent scales:";
  const int64_t updates = s.counts.at<int64_t>(int64_t(ScalerCount::Ended));
  const std::vector<double> scales = to_vector(s.history);
  for (int64_t i = std::max<int64_t>(0, updates - remembered_scales); i < updates; ++i)
    text += fmt::format(" {}", scales[size_t(i % remembered_scales)]);
  text += "\n  gradients last not finite:";
  const std::vector<Overflow> overflow = last_overflow();
  for (const Overflow& o : overflow)
    text += fmt::format("\n    {} parameter {}{}{}", o.optimizer, o.parameter,
                        o.name.empty() ? "" : ": ", o.name);
  if (overflow.empty()) text += " none";
  const std::string bad = first_bad_op();
  return bad.empty() ? text : text + "\n  first bad op: " + bad;
}

std::vector<GradScaler::Overflow> GradScaler::last_overflow() const {
  std::vector<Overflow> all;
  const std::string bad = first_bad_op();
  for (const auto& [optimizer, h] : histories_) {
    const auto found = h.last ? to_vector(h.last) : std::vector<double>();
    for (size_t i = 0; i < found.size(); ++i)
      if (found[i] != 0) all.push_back({h.kind, i < h.names.size() ? h.names[i] : "", i, bad});
  }
  return all;
}

void GradScaler::name_parameters(const optim::Optimizer& opt, std::vector<std::string> names) {
  const Scope scope("name_parameters");
  const size_t n = opt.params().size();
  check(names.size() == n, "{} parameters need as many names, got {}", n, names.size());
  history_of(opt, n, opt.params()[0].device()).names = std::move(names);
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
    add(name_for_loss("scale", id), scale_value(id), f32);
    for (const auto& [name, which] : saved_counts)
      add(name_for_loss(name, id), double(count(id, which)), i32);
    if (s.iteration.had_nonfinite_loss ||
        std::ranges::any_of(s.iteration.pending_flags(),
                            [](const Tensor& flag) { return flag.item() != 0; }))
      add(name_for_loss("had_nonfinite_loss", id), 1, i32);
    if (options_.calibrate && !s.calibrated) add(name_for_loss("uncalibrated", id), 1, i32);
  }
  if (options_.policy) dict.add("policy.", options_.policy->state_dict());
  return dict;
}

struct GradScaler::Saved {
  ScalerOptions options;
  std::map<int, SavedScale> scales = {};
};

GradScaler::Saved GradScaler::read_state(const StateDict& dict) const {
  const Scope scope("load_state_dict");
  check(!dict.empty(),
        "the state is empty: a disabled scaler saved it (skip loading to start anew)");
  StateDict own;
  for (const auto& entry : dict)
    if (!options_.policy || !entry.first.starts_with("policy.")) own.push_back(entry);
  optim::StateReader reader(own);
  Saved saved{options_};
  saved.options.growth_factor = reader.number("growth_factor");
  saved.options.backoff_factor = reader.number("backoff_factor");
  saved.options.growth_interval = reader.count("growth_interval");
  check_options(saved.options);
  saved.scales[0] = read_scale(reader, 0, saved.options);
  for (const auto& [name, tensor] : dict)
    if (int id = 0; std::sscanf(name.c_str(), "scale.%d", &id) == 1)
      saved.scales[id] = read_scale(reader, id, saved.options);
  reader.check_all_read();
  return saved;
}

void GradScaler::check_state(const StateDict& dict) const {
  if (enabled()) read_state(dict);
}

void GradScaler::load_state_dict(const StateDict& dict) {
  if (!enabled()) return;
  const Saved saved = read_state(dict);
  const Scope scope("load_state_dict");
  if (options_.policy) options_.policy->load_state_dict(dict.under("policy."));
  abandon();  // states belong between iterations
  options_ = saved.options;
  std::erase_if(scales_, [&](const auto& s) { return !saved.scales.contains(s.first); });
  for (const auto& [id, from] : saved.scales) {
    ScaleState& s = scale_state(id);
    s.set(from.value);
    for (size_t k = 0; k < saved_counts.size(); ++k)
      s.counts.set(int64_t(saved_counts[k].second), double(from.counts[k]));
    s.counts.set(int64_t(ScalerCount::Longest), 0);
    s.pending_counters = {};  // older than the state
    s.calibrated = from.uncalibrated ? std::nullopt : std::optional<int64_t>(0);
    s.iteration.had_nonfinite_loss = from.had_nonfinite_loss;
  }
}

}  // namespace mixtape::amp
