#pragma once
// RunningOps: the ops that an observer saw begin, and that have not ended.

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "core/scope.h"

namespace mixtape::internal {

// For observers that take an op as a whole, with the ops that its forward calls. An op that throws
// has no after(), so a count of before() and after() would never be even again.
class RunningOps {
 public:
  void begin() {  // in before()
    forget_thrown();
    ops_.emplace_back(Scope::innermost(), Scope::innermost()->op);
  }
  bool end() {  // in after(); returns true if the op was in no other
    ops_.erase(std::ranges::find(ops_, Scope::innermost(), &Op::first), ops_.end());
    return none();
  }
  bool none() {  // in before() or after(): true if the op is in no other
    forget_thrown();
    return ops_.empty();
  }

 private:
  using Op = std::pair<const Scope*, std::string_view>;
  void forget_thrown() {
    std::erase_if(ops_, [](const Op& op) {
      const Scope* s = Scope::innermost()->outer;
      while (s && (s != op.first || s->op != op.second)) s = s->outer;
      return !s;
    });
  }

  std::vector<Op> ops_;  // outermost first
};

}  // namespace mixtape::internal
