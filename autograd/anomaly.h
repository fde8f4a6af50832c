#pragma once
// Finds where NaN came from: every op's result and every gradient is looked at as it is made, and
// the first that holds one is an Error.

#include <memory>
#include <unordered_map>

#include "core/dispatch.h"

namespace mixtape {

struct AnomalyOptions {
  bool inf = false;     // infinities count as well
  bool forward = true;  // results of ops count, not only gradients
};

// While one is alive, an op of this thread whose result, or whose gradients, hold NaN throws an
// Error that names the op, the module's path, shapes, and which op it was since the scope opened;
// for a gradient also how the op was called in forward, if that was under this scope. Source lines
// are those of At scopes: an op does not know its caller's. Ops take several times as long.
class DetectAnomaly final : Observer {
 public:
  [[nodiscard]] explicit DetectAnomaly(const AnomalyOptions& options = {}) : options_(options) {}

 private:
  // A call in forward, by the order of its node, too: the address may be another's later.
  struct Made {
    uint64_t order;
    int64_t number;
    std::string trail, inputs;
  };
  void after(const Call& call, const Tensor& result) override;
  void after_rule(const Node& node, const Tensor& dy, std::span<const Tensor> gradients) override;

  const AnomalyOptions options_;
  int64_t count_ = 0;
  std::unordered_map<const Node*, Made> made_;
  const Observe watching_{*this};
};

}  // namespace mixtape
