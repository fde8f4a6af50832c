#pragma once
// DetectAnomaly: checks each op's result and each gradient as it is made; throws at the first NaN.

#include <memory>

#include "core/dispatch.h"

namespace mixtape {

struct AnomalyOptions {
  bool inf = false;     // infinities count as well
  bool forward = true;  // checks results of ops, not only gradients
};

// A guard: an op of this thread whose result or gradients hold NaN throws Error with the op, the
// module's path, shapes, and the op's number since the guard was made; for a gradient also the
// forward call, if that was under the guard. Source lines come from SourceScope, since an op does
// not know its caller's. Ops take several times as long.
class DetectAnomaly final : internal::Observer {
 public:
  [[nodiscard]] explicit DetectAnomaly(const AnomalyOptions& options = {});
  ~DetectAnomaly();

 private:
  struct Calls;
  void after(const internal::Call& call, const Tensor& result) override;
  void after_rule(const internal::Node& node, const Tensor& dy,
                  std::span<const Tensor> gradients) override;

  const AnomalyOptions options_;
  const std::unique_ptr<Calls> calls_;
  const Observe watching_{*this};
};

}  // namespace mixtape
