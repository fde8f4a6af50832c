// The diagnosis of gradients that are not finite, and the decision to give up.
#include <algorithm>
#include <cmath>
#include <utility>

#include "amp/scaler.h"
#include "amp/trace.h"
#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "core/warn.h"
#include "kernels/kernels.h"
#include "optim/state.h"

namespace mixtape::amp {
namespace {

using kernels::ScalerCount;

// More than any search for a scale takes: halved 50 times, 65536 is 6e-11.
constexpr int64_t many_skips = 50;

// The last finding of this thread's trace, or "".
std::string first_bad_op() {
  OverflowTrace* const trace = OverflowTrace::innermost();
  return !trace || trace->found().empty() ? "" : trace->found().back().text();
}

}  // namespace

detail::OptimizerHistory& GradScaler::history_of(const optim::Optimizer& opt, size_t parameters,
                                                 Device device) {
  detail::OptimizerHistory& h = histories_[opt.id()];
  h.kind = opt.name();
  const int64_t n = static_cast<int64_t>(parameters);
  if (!h.last || h.last.numel() != n || h.last.device() != device)
    h.last = optim::filled({n}, 0, f32, device);
  return h;
}

// The counters of a device arrive some updates later: a streak of skips may be over by then.
void GradScaler::poll(detail::ScaleState& s) {
  if (!s.pending_counters) {
    const View counts = s.counts;  // in the order of this thread's work
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

std::string GradScaler::diagnosis(const detail::ScaleState& s) const {
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
  const int64_t updates = s.count(ScalerCount::Ended);
  const int64_t remembered = s.history.numel();
  for (int64_t i = std::max<int64_t>(0, updates - remembered); i < updates; ++i)
    text += fmt::format(" {}", s.history.at(i % remembered));
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
  for (const auto& [optimizer, h] : histories_)
    for (int64_t i = 0; h.last && i < h.last.numel(); ++i)
      if (h.last.at(i) != 0)
        all.push_back(
            {h.kind, size_t(i) < h.names.size() ? h.names[size_t(i)] : "", size_t(i), bad});
  return all;
}

void GradScaler::name_parameters(const optim::Optimizer& opt, std::vector<std::string> names) {
  const Scope scope("name_parameters");
  const size_t n = opt.params().size();
  check(names.size() == n, "{} names for {} parameters", names.size(), n);
  history_of(opt, n, opt.params()[0].device()).names = std::move(names);
}

}  // namespace mixtape::amp
