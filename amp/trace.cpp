// Surveys wait on the device with what is known of their ops, and are judged in the order of these.
#include "amp/trace.h"

#include <algorithm>

#include "autograd/ops.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape::amp {
namespace {

using kernels::Survey;
using kernels::survey_size;

constexpr int64_t rows_at_once = 1024;

bool is_counted(const Tensor& t) { return t && is_float(t.dtype()) && t.numel() > 0; }

// The numbers of t, one behind the other in any order; what is repeated, once.
Tensor dense(const Tensor& t) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride and size
  for (int d = 0; d < t.rank(); ++d)
    if (t.strides()[d] != 0 && t.shape()[d] > 1) dims.emplace_back(t.strides()[d], t.shape()[d]);
  std::ranges::sort(dims, std::greater());
  Shape shape, strides;
  for (const auto& [stride, size] : dims) {
    shape.push_back(size);
    strides.push_back(stride);
  }
  const Tensor numbers = t.with_layout(Layout(shape, strides));
  return numbers.is_contiguous() ? numbers : contiguous(numbers);
}

// `count` surveys from `first` on.
Tensor rows(const Tensor& surveys, int64_t first, int64_t count) {
  return surveys.with_layout(Layout({count, survey_size}, {survey_size, 1}, first * survey_size));
}

}  // namespace

std::string BadOp::text() const {
  std::string from, what;
  for (const DType t : inputs) from += fmt::format("{}{}", from.empty() ? "" : ", ", t);
  if (infinities > 0) what = fmt::format("{} inf", infinities);
  if (nans > 0) what += fmt::format("{}{} nan", what.empty() ? "" : " and ", nans);
  std::string text = fmt::format("{} {}",
                                 kind == Kind::Forward    ? "forward of"
                                 : kind == Kind::Backward ? "backward of"
                                                          : "gradient that arrived at",
                                 op);
  if (!module.empty()) text += " in " + module;
  text += fmt::format(": {} in {} {}", what, dtype, shape);
  if (kind != Kind::Sum) text += fmt::format(", from {} with absmax {:.3g}", from, input_absmax);
  return text;
}

OverflowTrace* OverflowTrace::innermost() {
  for (Observer* o = thread_state.observer; o; o = o->outer)
    if (auto* const trace = dynamic_cast<OverflowTrace*>(o)) return trace;
  return nullptr;
}

void OverflowTrace::after(const Call& call, const Tensor& result) {
  if (thread_state.in_rule || call.op.name == "masked_fill" || call.op.name == "pad") return;
  std::vector<Tensor> inputs;
  for (const Tensor* t : call.inputs) {
    if (!is_counted(*t)) continue;
    // Nothing new: a view of an input, or its copy from another device.
    if (t->storage() == result.storage() || t->device() != result.device()) return;
    inputs.push_back(*t);
  }
  std::string op(call.op.name);
  if (op == "cast" && !Scope::caller().empty()) op += fmt::format(" for {}", Scope::caller());
  const auto kind = call.backward ? BadOp::Kind::Backward : BadOp::Kind::Forward;
  enter({kind, false, std::move(op), Scope::module_path(), iteration_}, inputs, {&result, 1});
}

void OverflowTrace::after_rule(const Node& node, const Tensor& dy,
                               std::span<const Tensor> gradients) {
  std::vector<Tensor> made;
  for (const Tensor& g : gradients)
    if (g && g.storage() != dy.storage()) made.push_back(g);
  enter({BadOp::Kind::Backward, true, std::string(node.name()), node.module, iteration_}, {&dy, 1},
        made);
}

void OverflowTrace::enter(Entry entry, std::span<const Tensor> inputs,
                          std::span<const Tensor> outputs) {
  const During<&ThreadState::observer> unseen(nullptr);
  const During<&ThreadState::policy> as_called(nullptr);
  const NoGrad off;
  std::vector<Tensor> all;
  const auto add = [&](std::span<const Tensor> some) {
    for (const Tensor& t : some) {
      if (!is_counted(t)) continue;
      const Tensor& counted = all.emplace_back(dense(t));
      entry.tensors.push_back({t.dtype(), t.shape(), t.numel() / counted.numel()});
    }
  };
  add(inputs);
  entry.inputs = all.size();
  add(outputs);
  if (all.empty()) return;

  const Device device = all.back().device();
  const int64_t n = int64_t(all.size());
  if (surveys_ && (surveys_.device() != device || rows_ + n > surveys_.size(0))) read();
  if (!surveys_) surveys_ = Tensor({std::max(n, rows_at_once), survey_size}, f64, device);
  const std::vector<View> views(all.begin(), all.end());
  kernels::Launch launch(device);
  kernels::survey(launch, views, rows(surveys_, rows_, n));
  entry.row = std::exchange(rows_, rows_ + n);
  entries_.push_back(std::move(entry));
}

void OverflowTrace::read() {
  if (!surveys_) return;
  const Tensor here = rows(surveys_, 0, rows_).copied_to(Device::cpu());
  surveys_ = {};
  rows_ = 0;
  const auto* const first = static_cast<const Survey*>(here.host());
  for (const Entry& e : std::exchange(entries_, {})) judge(e, first + e.row);
}

void OverflowTrace::judge(const Entry& e, const Survey* rows) {
  const std::span all(rows, e.tensors.size()), in = all.first(e.inputs),
                                               out = all.subspan(e.inputs);
  const auto bad = [](const Survey& s) { return !s.is_finite(); };
  const auto made = std::ranges::find_if(out, bad);
  const bool given = std::ranges::any_of(in, bad), anew = made != out.end() && !given;
  // A bad gradient that no rule made came of adding up finite ones, or from outside.
  const bool arrived = e.is_rule && given && bad_gradient_in_ != e.iteration;
  const std::string module = e.module ? *e.module : "";
  if ((anew || arrived) && found_in_ != e.iteration) {
    BadOp found{anew ? e.kind : BadOp::Kind::Sum, e.op, module};
    for (size_t i = 0; i < in.size(); ++i) {
      found.inputs.push_back(e.tensors[i].dtype);
      found.input_absmax = std::max(found.input_absmax, in[i].largest);
    }
    const Survey& s = anew ? *made : in[0];
    const Counted& t = e.tensors[size_t(&s - rows)];
    found.dtype = t.dtype;
    found.shape = t.shape;
    found.infinities = int64_t(s.infinities) * t.copies;
    found.nans = int64_t(s.nans) * t.copies;
    found_.push_back(std::move(found));
    found_in_ = e.iteration;
  }
  if (e.kind == BadOp::Kind::Backward && (given || made != out.end()))
    bad_gradient_in_ = e.iteration;
  for (size_t i = e.inputs; e.is_rule && i < all.size(); ++i) {
    const auto& [dtype, shape, copies] = e.tensors[i];
    if (!is_narrow(dtype)) continue;
    Underflow& u = underflow_[{e.op, module, dtype}];
    u.elements += shape.size();
    u.zeros += int64_t(all[i].zeros) * copies;
    u.subnormals += int64_t(all[i].subnormals) * copies;
  }
}

const std::vector<BadOp>& OverflowTrace::found() {
  read();
  return found_;
}

std::vector<OverflowTrace::Underflow> OverflowTrace::underflow() {
  read();
  std::vector<Underflow> all;
  for (const auto& [key, u] : underflow_) {
    all.push_back(u);
    std::tie(all.back().op, all.back().module, all.back().dtype) = key;
  }
  std::ranges::stable_sort(all, std::greater(), &Underflow::fraction);
  return all;
}

}  // namespace mixtape::amp
