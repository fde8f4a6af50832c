#include "autograd/anomaly.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <unordered_map>

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

// Finds the first anomalous element, by ops, so that it works on every device.
std::optional<Anomaly> find(const Tensor& t, bool inf) {
  if (!t || !(is_float(t.dtype()) || is_f8(t.dtype())) || t.numel() == 0) return {};
  const Unobserved aside;
  const Tensor flat = reshape(t.detach(), {t.numel()}), x = is_f8(t.dtype()) ? flat.to(f32) : flat;
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

struct DetectAnomaly::Calls {  // in the forward pass
  // One of them. `order` is its node's, since the node's address may be reused.
  struct Made {
    uint64_t order;
    int64_t number;
    std::string trail, inputs;
  };
  int64_t count = 0;
  std::unordered_map<const Node*, Made> made;
};

DetectAnomaly::DetectAnomaly(const AnomalyOptions& options)
    : options_(options), calls_(std::make_unique<Calls>()) {}
DetectAnomaly::~DetectAnomaly() = default;

void DetectAnomaly::after(const Call& call, const Tensor& result) {
  if (call.backward)
    return;  // a rule's intermediate results may hold NaN; its gradients are checked
  ++calls_->count;
  if (result.grad_fn() && grad_enabled())
    calls_->made[result.grad_fn().get()] = {result.grad_fn()->order, calls_->count, Scope::trail(),
                                            describe(call.inputs)};
  if (!options_.forward) return;
  const auto bad = find(result, options_.inf);
  if (!bad) return;
  std::string cause;
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (const auto already = find(*call.inputs[i], options_.inf); already && cause.empty())
      cause = fmt::format("; input {} held {} before", i, already->what);
  fail("{} in element {} of its result {}, from {}, as op {} under DetectAnomaly{}", bad->what,
       bad->element, describe(result), describe(call.inputs), calls_->count, cause);
}

void DetectAnomaly::after_rule(const Node& node, const Tensor& dy,
                               std::span<const Tensor> gradients) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto bad = find(gradients[i], options_.inf);
    if (!bad) continue;
    const auto before = find(dy, options_.inf);
    const auto made = calls_->made.find(&node);
    fail("{} in element {} of the gradient {} of input {}{}; its forward call was {}", bad->what,
         bad->element, describe(gradients[i]), i,
         before ? fmt::format(", the gradient it was given held {} before", before->what) : "",
         made == calls_->made.end() || made->second.order != node.order
             ? "not under DetectAnomaly"
             : fmt::format("op {} under DetectAnomaly, {}from {}", made->second.number,
                           made->second.trail, made->second.inputs));
  }
}

}  // namespace mixtape
