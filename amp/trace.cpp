// Statistics stay on the device until they are read, and are then examined in the order of the ops.
#include "amp/trace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "autograd/backward_state.h"
#include "autograd/ops.h"
#include "core/format.h"
#include "kernels/common/tensor_stats.h"
#include "kernels/kernels.h"

namespace mixtape::amp {
using namespace internal;
namespace {

using detail::is_counted;
using kernels::stats_size;
using kernels::TensorStats;

constexpr int64_t rows_at_once = 1024;

Tensor rows(const Tensor& stats, int64_t first, int64_t count) {
  return stats.with_layout(Layout({count, stats_size}).at_offset(first * stats_size));
}

}  // namespace

bool detail::is_counted(const Tensor& t) {
  return t && (is_float(t.dtype()) || is_f8(t.dtype())) && t.numel() > 0;
}
bool detail::makes_numbers(const Call& call, const Tensor& result) {
  const bool moves = std::ranges::any_of(call.inputs, [&](const Tensor* t) {
    return *t && (t->storage() == result.storage() || t->device() != result.device());
  });
  return !moves && call.op.name != "masked_fill" && call.op.name != "pad";
}

detail::Numbers detail::numbers_of(const Tensor& t) {
  Layout layout(t.shape(), Shape(t.shape()));
  std::ranges::fill_n(layout.strides.dim, t.rank(), 0);
  if (t.numel() == 0) return {Tensor({0}, t.dtype(), t.device()), layout};
  std::vector<int> order;
  for (int d = 0; d < t.rank(); ++d)
    if (t.strides()[d] != 0 && t.shape()[d] > 1) order.push_back(d);
  std::ranges::sort(order, std::greater(),
                    [&](int d) { return std::pair(t.strides()[d], t.shape()[d]); });
  Shape shape, strides;
  for (const int d : order) {
    shape.push_back(t.shape()[d]);
    strides.push_back(t.strides()[d]);
  }
  const Layout dense(shape);
  for (int i = 0; i < dense.shape.rank; ++i) layout.strides[order[size_t(i)]] = dense.strides[i];
  return {contiguous(t.with_layout(Layout(shape, strides))), layout};
}

Tensor detail::counted_numbers(const Tensor& t) {
  const Tensor all = numbers_of(t).all;
  return is_f8(t.dtype()) ? all.to(f32) : all;
}

Tensor detail::stats_of(const Tensor& dense) {
  const View view = dense;
  const Tensor stats({1, kernels::stats_size}, f64, dense.device());
  kernels::tensor_stats(dense.device(), std::span(&view, 1), stats);
  return stats;
}

std::pair<BadOp::Kind, std::string> detail::described(const Call& call) {
  std::string op(call.op.name);
  if ((op == "cast" || call.backward) && !Scope::caller().empty())  // such as a hook
    op += fmt::format(" for {}", Scope::caller());
  return {call.backward ? BadOp::Kind::Backward : BadOp::Kind::Forward, std::move(op)};
}

std::string BadOp::text() const {
  std::string what;
  if (infinities > 0) what = fmt::format("{} inf", infinities);
  if (nans > 0) what += fmt::format("{}{} nan", what.empty() ? "" : " and ", nans);
  constexpr std::string_view where[] = {"forward of", "backward of", "incoming gradient of",
                                        "input of"};
  std::string text = fmt::format("{} {}", where[int(kind)], op);
  if (!module.empty()) text += " in " + module;
  text += fmt::format(": {} in {} {}", what, dtype, shape);
  if (kind == Kind::Forward || kind == Kind::Backward)
    text += fmt::format(", from {} with absmax {:.3g}", fmt::join(inputs, ", "), input_absmax);
  return text;
}

struct OverflowTrace::Entry {  // an op that ran
  struct Counted {
    DType dtype;
    Shape shape;
    int64_t copies;  // of each counted element
  };
  BadOp::Kind kind;
  bool is_rule;
  std::string op;
  const std::string* module;
  int64_t iteration;
  size_t inputs = 0;  // the number of inputs, which come first in `tensors`
  std::vector<Counted> tensors = {};
  int64_t row = 0;  // their first row in `stats`
};

struct OverflowTrace::State {
  Tensor stats;  // the counts of the entries' tensors, on their device
  int64_t rows = 0;
  std::vector<Entry> entries;
  std::vector<BadOp> found;
  struct Examined {  // the iteration whose entries are being examined
    int64_t iteration = -1;
    bool found = false, bad_gradient = false;
    std::optional<BadOp> outside = {};  // the first of Kind::Input
  } examined;
  std::map<std::tuple<std::string, std::string, DType>, Underflow> underflow;
};

OverflowTrace::OverflowTrace() : state_(std::make_unique<State>()) {}
OverflowTrace::~OverflowTrace() = default;

OverflowTrace* OverflowTrace::innermost() {
  for (Observer* o = thread_state.observer; o; o = o->outer)
    if (auto* const trace = dynamic_cast<OverflowTrace*>(o)) return trace;
  return nullptr;
}

void OverflowTrace::after(const Call& call, const Tensor& result) {
  if (backward_state.in_rule || !detail::makes_numbers(call, result)) return;
  std::vector<Tensor> inputs;
  for (const Tensor* t : call.inputs) inputs.push_back(*t);
  auto [kind, op] = detail::described(call);
  enter({kind, false, std::move(op), Scope::module_path(), iteration_}, inputs, {&result, 1});
}

void OverflowTrace::after_rule(const Node& node, const Tensor& dy,
                               std::span<const Tensor> gradients) {
  std::vector<Tensor> made;
  for (const Tensor& g : gradients) {
    if (!g || g.storage() == dy.storage()) continue;
    if (g.device() != dy.device()) return;  // copied to another device
    made.push_back(g);
  }
  enter({BadOp::Kind::Backward, true, std::string(node.name()), node.module, iteration_}, {&dy, 1},
        made);
}

void OverflowTrace::after_accumulate(const Node& leaf, const Tensor& grad) {
  enter({BadOp::Kind::Sum, true, std::string(leaf.name()), leaf.module, iteration_}, {},
        {&grad, 1});
}

void OverflowTrace::enter(Entry entry, std::span<const Tensor> inputs,
                          std::span<const Tensor> outputs) {
  const Unobserved aside;
  std::vector<Tensor> all;
  const auto add = [&](std::span<const Tensor> some) {
    for (const Tensor& t : some) {
      if (!is_counted(t)) continue;
      const Tensor& counted = all.emplace_back(detail::counted_numbers(t));
      entry.tensors.push_back({t.dtype(), t.shape(), t.numel() / counted.numel()});
    }
  };
  add(inputs);
  entry.inputs = all.size();
  add(outputs);
  if (all.empty()) return;

  const Device device = all.back().device();
  const int64_t n = int64_t(all.size());
  if (state_->stats &&
      (state_->stats.device() != device || state_->rows + n > state_->stats.size(0)))
    read();
  if (!state_->stats) state_->stats = Tensor({std::max(n, rows_at_once), stats_size}, f64, device);
  const std::vector<View> views(all.begin(), all.end());
  kernels::tensor_stats(device, views, rows(state_->stats, state_->rows, n));
  entry.row = std::exchange(state_->rows, state_->rows + n);
  state_->entries.push_back(std::move(entry));
}

void OverflowTrace::read() {
  if (!state_->stats) return;
  const Tensor here = rows(state_->stats, 0, state_->rows).copied_to(Device::cpu());
  state_->stats = {};
  state_->rows = 0;
  const auto* const first = static_cast<const TensorStats*>(here.host());
  for (const Entry& e : std::exchange(state_->entries, {})) examine(e, first + e.row);
}

void OverflowTrace::examine(const Entry& e, const TensorStats* rows) {
  State::Examined& examined = state_->examined;
  if (examined.iteration != e.iteration) examined = {e.iteration};
  const std::span all(rows, e.tensors.size()), in = all.first(e.inputs),
                                               out = all.subspan(e.inputs);
  const auto bad = [](const TensorStats& s) { return !s.is_finite(); };
  const auto nan = [](const TensorStats& s) { return s.nans > 0; };
  const auto made = std::ranges::find_if(out, bad), made_nan = std::ranges::find_if(out, nan),
             given_nan = std::ranges::find_if(in, nan);
  const bool given = std::ranges::any_of(in, bad);
  const std::string module = Scope::path_text(e.module);
  const auto finding = [&](BadOp::Kind kind, const TensorStats& s) {
    BadOp found{kind, e.op, module};
    for (size_t i = 0; i < in.size(); ++i) {
      found.inputs.push_back(e.tensors[i].dtype);
      found.input_absmax = std::max(found.input_absmax, in[i].largest);
    }
    const Entry::Counted& t = e.tensors[size_t(&s - rows)];
    found.dtype = t.dtype;
    found.shape = t.shape;
    found.infinities = int64_t(s.infinities) * t.copies;
    found.nans = int64_t(s.nans) * t.copies;
    return found;
  };
  std::optional<BadOp> found;
  if (!given && made != out.end())
    found = finding(e.kind, *made);
  else if (!e.is_rule && given_nan == in.end() && made_nan != out.end())
    found = finding(e.kind, *made_nan);
  else if (e.is_rule && given && !examined.bad_gradient)
    // No rule made it: it is a sum of finite gradients, or the program gave it.
    found = finding(BadOp::Kind::Sum, in[0]);
  // NaN that no op made, perhaps deliberate in data. NaN gradients are then not the rules' fault.
  if (e.kind == BadOp::Kind::Forward && given_nan != in.end() && made_nan != out.end() &&
      !examined.found && !examined.outside)
    examined.outside = finding(BadOp::Kind::Input, *given_nan);
  if (found && !examined.found) {
    const bool only_nan = found->nans > 0 && found->infinities == 0,
               excused = e.is_rule && only_nan && examined.outside;
    state_->found.push_back(excused ? *examined.outside : *found);
    examined.found = true;
  }
  examined.bad_gradient |= e.kind != BadOp::Kind::Forward && (given || made != out.end());
  for (size_t i = e.inputs; e.is_rule && e.kind != BadOp::Kind::Sum && i < all.size(); ++i) {
    const auto& [dtype, shape, copies] = e.tensors[i];
    if (!is_half(dtype)) continue;
    Underflow& u = state_->underflow[{e.op, module, dtype}];
    u.elements += shape.size();
    u.zeros += int64_t(all[i].zeros) * copies;
    u.subnormals += int64_t(all[i].subnormals) * copies;
  }
}

const std::vector<BadOp>& OverflowTrace::found() {
  read();
  return state_->found;
}

std::vector<OverflowTrace::Underflow> OverflowTrace::underflow() {
  read();
  std::vector<Underflow> all;
  for (const auto& [key, u] : state_->underflow) {
    all.push_back(u);
    std::tie(all.back().op, all.back().module, all.back().dtype) = key;
  }
  std::ranges::stable_sort(all, std::greater(), &Underflow::fraction);
  return all;
}

}  // namespace mixtape::amp
