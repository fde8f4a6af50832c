#include "autograd/anomaly.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape {
using namespace internal;
namespace {

struct Anomaly {
  int64_t element;
  const char* what;
};

// The first anomalous element. Made of ops, so that it works on every device.
std::optional<Anomaly> find(const Tensor& t, bool inf) {
  if (!t || !is_float(t.dtype()) || t.numel() == 0) return {};
  const Unobserved aside;
  const Tensor x = reshape(t.detach(), {t.numel()});
  const Tensor probe = inf ? x - x : x;  // inf - inf is NaN, which differs from itself
  const Tensor found = ne(probe, probe).to(i32);
  if (sum(found).item() == 0) return {};
  const int64_t at = argmax(found, 0).item<int64_t>();
  const double value = x.at(at);
  return Anomaly{at, std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"};
}

std::string describe(const Tensor& t) {
  return t ? fmt::format("{} {}", t.dtype(), t.shape()) : "none";
}

std::string describe(std::span<const Tensor* const> inputs) {
  std::string text;
  for (const Tensor* t : inputs) text += (text.empty() ? "" : ", ") + describe(*t);
  return text.empty() ? "nothing" : text;
}

}  // namespace

void DetectAnomaly::after(const Call& call, const Tensor& result) {
  if (call.backward) return;  // a rule's own steps may hold NaN: its gradients are checked
  ++count_;
  if (result.grad_fn() && grad_enabled())
    made_[result.grad_fn().get()] = {result.grad_fn()->order, count_, Scope::trail(),
                                     describe(call.inputs)};
  if (!options_.forward) return;
  const auto bad = find(result, options_.inf);
  if (!bad) return;
  std::string cause;
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (const auto already = find(*call.inputs[i], options_.inf); already && cause.empty())
      cause = fmt::format("; input {} held {} before", i, already->what);
  fail("{} in element {} of its result {}, from {}, as op {} under DetectAnomaly{}", bad->what,
       bad->element, describe(result), describe(call.inputs), count_, cause);
}

void DetectAnomaly::after_rule(const Node& node, const Tensor& dy,
                               std::span<const Tensor> gradients) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto bad = find(gradients[i], options_.inf);
    if (!bad) continue;
    const auto before = find(dy, options_.inf);
    const auto made = made_.find(&node);
    fail("{} in element {} of the gradient {} of input {}{}; its forward call was {}", bad->what,
         bad->element, describe(gradients[i]), i,
         before ? fmt::format(", the gradient it was given held {} before", before->what) : "",
         made == made_.end() || made->second.order != node.order
             ? "not under DetectAnomaly"
             : fmt::format("op {} under DetectAnomaly, {}from {}", made->second.number,
                           made->second.trail, made->second.inputs));
  }
}

}  // namespace mixtape
