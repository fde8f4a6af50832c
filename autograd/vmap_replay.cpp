// The trace of one example's calls, and their replay.
#include "autograd/vmap_replay.h"

#include <algorithm>

#include "autograd/backward_state.h"
#include "autograd/ops.h"
#include "autograd/ops/rows.h"
#include "autograd/tape.h"

namespace mixtape {
using namespace internal;
namespace detail {
namespace {

// Loops over the examples for a single op.
Tensor call_for_each(const MappedCall& call) {
  std::vector<Tensor> all;
  for (int64_t b = 0; b < call.n; ++b) {
    std::vector<Tensor> one;
    for (const Mapped& x : call.inputs) one.push_back(x.by_example ? select(x.t, 0, b) : x.t);
    all.push_back(call.run(one));
  }
  return stack(all);
}

bool is_same(const Tensor& a, const Tensor& b) {
  const View &x = a, &y = b;
  const bool same_memory = x.data == y.data && x.dtype == y.dtype && x.layout == y.layout;
  return a.id() == b.id() || same_memory || equal(a, b);
}

}  // namespace

Shape of_all(const Shape& one, int64_t n) { return joined({n}, one); }

VmapTrace::VmapTrace(int64_t n)
    : n_(n),
      policy_(thread_state.policy),
      effects_(effects),
      generator_(generator()),
      drawn_(generator_.offset()) {}

void VmapTrace::add(const Tensor& one, const Mapped& all) {
  seen_.emplace_back(one);
  by_id_[one.id()] = values_.size();
  if (all.by_example)
    by_storage_.emplace(one.storage()->id(), std::pair<View, size_t>(one, values_.size()));
  values_.push_back(all);
}
size_t VmapTrace::add_step(Step step, const Tensor& y) {
  step.result = values_.size();
  add(y, {.by_example = true});
  steps_.push_back(std::move(step));
  return values_.size() - 1;
}

// The value that a tensor of the function stands for. Empty if it is a view of an example that no
// op made.
std::optional<size_t> VmapTrace::find(const Tensor& one) {
  if (const auto known = by_id_.find(one.id()); known != by_id_.end()) return known->second;
  const auto [begin, end] = by_storage_.equal_range(one.storage()->id());
  if (begin == end) {
    add(one, {one});
    return values_.size() - 1;
  }
  const View& view = one;
  for (auto at = begin; at != end; ++at) {
    const auto& [of, value] = at->second;
    if (of.data != view.data || of.dtype != view.dtype || !(of.layout == view.layout) ||
        one.requires_grad())
      continue;
    const auto detach = [](const MappedCall& c) { return c.inputs[0].t.detach(); };
    return add_step({nullptr, {value}, 0, one.shape(), one.dtype(), nullptr, false, detach}, one);
  }
  return std::nullopt;
}

void VmapTrace::before(const Call&) {
  if (depth_++ == 0) reads_before_op_ = effects.reads;
}

void VmapTrace::after(const Call& call, const Tensor& y) {
  if (--depth_ > 0) return;
  reads_in_ops_ += effects.reads - reads_before_op_;
  sound_ = sound_ && y.rank() < max_rank && !call.backward && !backward_state.saves_nothing &&
           !backward_state.recomputing;
  std::vector<size_t> inputs;
  bool by_example = false;
  for (size_t i = 0; sound_ && i < call.inputs.size(); ++i) {
    const Tensor& t = call.given(i);
    std::optional<size_t> value = t ? find(t) : absent;
    sound_ = value.has_value();
    // A policy casts a 0-d tensor to its partners' dtype, but not the [n] that replaces it.
    if (sound_ && t && t.rank() == 0 && call.inputs[i]->dtype() != t.dtype() &&
        values_[*value].by_example) {
      const auto convert = [](const MappedCall& c) { return cast(c.inputs[0].t, c.dtype); };
      value = add_step({nullptr,
                        {*value},
                        0,
                        t.shape(),
                        call.inputs[i]->dtype(),
                        thread_state.policy,
                        grad_enabled(),
                        convert},
                       *call.inputs[i]);
    }
    inputs.push_back(value.value_or(absent));
    by_example = by_example || (t && value && values_[*value].by_example);
  }
  if (!sound_) return;
  if (!by_example) return add(y, {y});
  const Repetition& own = *call.repetition;
  Step step{&own.how,       std::move(inputs),         0, y.shape(), y.dtype(), thread_state.policy,
            grad_enabled(), batching_rule(call, y, n_)};
  step.lists.assign(own.lists.begin(), own.lists.end());
  if (own.how.run) step.attributes = own.how.attributes(own.arguments);
  add_step(std::move(step), y);
}

bool VmapTrace::is_sound() const {
  return sound_ && depth_ == 0 && effects.writes == effects_.writes &&
         effects.reads - effects_.reads == reads_in_ops_ && generator_.offset() == drawn_;
}

bool VmapTrace::run(const Step& step) {
  MappedCall call{step.how, step.lists, step.attributes, n_, of_all(step.shape, n_), step.dtype};
  for (const size_t i : step.inputs) call.inputs.push_back(i == absent ? Mapped() : values_[i]);
  const ScopedValue<&ThreadState::recording> recording(step.recording);
  const ScopedValue<&ThreadState::policy> policy(step.policy);
  Tensor y = step.rule ? step.rule(call) : Tensor();
  if (!y && call.repeats()) y = call_for_each(call);
  if (!y || y.shape() != call.shape || y.dtype() != step.dtype) return false;
  values_[step.result].t = y;
  return true;
}

std::optional<std::vector<Tensor>> VmapTrace::replay(const std::vector<Tensor>& results) {
  if (!is_sound()) return std::nullopt;
  std::vector<size_t> wanted;
  for (const Tensor& y : results) {
    const std::optional<size_t> value = y && y.rank() < max_rank ? find(y) : std::nullopt;
    if (!value) return std::nullopt;
    wanted.push_back(*value);
  }
  // Calls that no result needs, such as a policy's casts, are not repeated.
  std::vector<bool> needed(values_.size());
  for (const size_t value : wanted) needed[value] = true;
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    if (!needed[step->result]) continue;
    if (step->policy && step->policy != policy_) return std::nullopt;
    for (const size_t value : step->inputs)
      if (value != absent) needed[value] = true;
  }
  for (const Step& step : steps_)
    if (needed[step.result] && !run(step)) return std::nullopt;
  std::vector<Tensor> all;
  for (const size_t i : wanted) {
    const auto& [t, by_example] = values_[i];
    all.push_back(by_example ? t : expand(t, of_all(t.shape(), n_)));
  }
  return all;
}

const VmapTrace::Step* VmapTrace::step_to(size_t value) const {
  const auto step = std::ranges::lower_bound(steps_, value, {}, &Step::result);
  return step != steps_.end() && step->result == value ? &*step : nullptr;
}

bool VmapTrace::is_like(const std::vector<Tensor>& results, VmapTrace& other,
                        const std::vector<Tensor>& others) {
  if (!other.is_sound() || results.size() != others.size()) return false;
  std::vector<std::pair<size_t, size_t>> open;
  for (size_t k = 0; k < results.size(); ++k) {
    const auto here = find(results[k]), there = others[k] ? other.find(others[k]) : std::nullopt;
    if (!here || !there) return false;
    open.emplace_back(*here, *there);
  }
  std::vector<size_t> known(values_.size(), absent);  // the value of the other trace
  while (!open.empty()) {
    const auto [here, there] = open.back();
    open.pop_back();
    if (known[here] == there) continue;
    if (std::exchange(known[here], there) != absent) return false;
    const Step *a = step_to(here), *b = other.step_to(there);
    const Mapped &x = values_[here], &y = other.values_[there];
    if (bool(a) != bool(b) || x.by_example != y.by_example) return false;
    if (!a) {
      if (x.by_example ? here != there : !is_same(x.t, y.t)) return false;
      continue;
    }
    if (a->how != b->how || a->dtype != b->dtype || a->shape != b->shape || a->lists != b->lists ||
        a->inputs.size() != b->inputs.size())
      return false;
    for (size_t i = 0; i < a->inputs.size(); ++i) {
      if ((a->inputs[i] == absent) != (b->inputs[i] == absent)) return false;
      if (a->inputs[i] != absent) open.emplace_back(a->inputs[i], b->inputs[i]);
    }
  }
  return true;
}

}  // namespace detail
}  // namespace mixtape
