#pragma once
// A record of the ops that a function calls for one example, and its replay for all examples.

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/dispatch.h"
#include "core/effects.h"
#include "core/random.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] detail {

// A tensor in a replay: one per example, [n, shape], or one that all share.
struct Mapped {
  Tensor t = {};
  bool by_example = false;
};

// A call to be repeated with the inputs of all examples.
struct MappedCall {
  const internal::Repeat* how;
  const std::vector<int64_t>& lists;
  const std::optional<std::string>& attributes;
  const int64_t n;
  const Shape shape;  // of the result: [n, the shape for one]
  const DType dtype;
  std::vector<Mapped> inputs = {};

  // True if the op can be run with its own attributes.
  bool repeats() const { return attributes.has_value(); }
  Tensor run(const std::vector<Tensor>& with) const { return run(with, *attributes); }
  Tensor run(const std::vector<Tensor>& with, const std::string& other) const {
    return how->run(*how, with, lists, other);
  }
};

Shape of_all(const Shape& one, int64_t n);  // [n, one]

// Runs a call once for all examples. Returns an empty Tensor if it cannot with these inputs.
using BatchingRule = std::function<Tensor(const MappedCall&)>;
// The rule for an observed call, whose attributes it keeps; null if the op has none.
BatchingRule batching_rule(const internal::Call& call, const Tensor& result, int64_t n);

// Records the calls that a function makes for one example. Calls within an op's forward are not
// recorded: a rule takes an op as a whole, with its gradient.
class VmapTrace final : public internal::Observer {
 public:
  explicit VmapTrace(int64_t n);
  void add(const Tensor& one, const Mapped& all);  // an input, before the function runs

  bool reads_values() const override { return false; }
  void before(const internal::Call& call) override;
  void after(const internal::Call& call, const Tensor& y) override;
  void before_rule(const internal::Node&, const Tensor&) override { sound_ = false; }

  // The function's results for all examples, [n, shape] each. Empty if the function did what a
  // replay cannot do for each example: read elements, draw, write in place, run backward or
  // checkpoints, change the policy, or call an op that has no rule and cannot be repeated.
  std::optional<std::vector<Tensor>> replay(const std::vector<Tensor>& results);
  // True if the function got its results by the same calls as in another trace, with equal tensors
  // where examples share one. Otherwise something besides the example decides what it computes.
  bool is_like(const std::vector<Tensor>& results, VmapTrace& other,
               const std::vector<Tensor>& others);

 private:
  static constexpr size_t absent = size_t(-1);
  struct Step {
    const internal::Repeat* how;
    std::vector<size_t> inputs;  // values
    size_t result;
    Shape shape;
    DType dtype;
    internal::Policy* policy;
    bool recording;
    BatchingRule rule;
    std::vector<int64_t> lists = {};
    std::optional<std::string> attributes = {};  // none if they are not plain data
  };
  size_t add_step(Step step, const Tensor& y);
  std::optional<size_t> find(const Tensor& one);
  const Step* step_to(size_t value) const;  // null: an input, or shared
  bool is_sound() const;
  bool run(const Step& step);

  const int64_t n_;
  std::vector<Mapped> values_;
  std::vector<Step> steps_;
  std::vector<WeakTensor> seen_;  // so that no id is given twice
  std::unordered_map<const void*, size_t> by_id_;
  std::unordered_multimap<uint64_t, std::pair<internal::View, size_t>> by_storage_;  // by_example
  internal::Policy* const policy_;
  const internal::Effects effects_;
  RandomGenerator& generator_;
  const uint64_t drawn_;
  uint64_t reads_in_ops_ = 0, reads_before_op_ = 0;
  int depth_ = 0;
  bool sound_ = true;
};

}  // namespace detail
}  // namespace mixtape
