#pragma once
// Compare: runs the same step in f32 and under Autocast, and shows op by op where errors begin and
// how they grow.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "amp/autocast.h"
#include "core/no_copy.h"
#include "core/random.h"
#include "core/state_dict.h"

namespace mixtape::amp {

struct CompareOptions {
  AutocastOptions region = {};  // of the step to examine
  // A model's net.named_buffers(), which are reset before each run and restored at the end.
  StateDict buffers = {};
};

// Runs a step twice with the same random numbers: as called, and in a region. `step` opens that
// region with the options it is given, and clears the gradients if it goes backward:
//   Compare compare([&](const AutocastOptions& region) {
//     opt.zero_grad();
//     Tensor loss;
//     {
//       const Autocast on(region);
//       loss = cross_entropy(net(x), y);
//     }
//     loss.backward();
//   }, {.region = {.low = bf16}});
// The step must not change parameters. An error is |y - y32| / max(|y|, |y32|), by the 2-norm of a
// result or of all gradients that a rule makes; it is infinity if y is not finite and y32 is. The
// results of the f32 step are kept as long as the Compare.
class Compare final : NoCopy {
 public:
  using Step = std::function<void(const AutocastOptions& region)>;
  explicit Compare(Step step, CompareOptions options = {});  // runs it twice
  ~Compare();

  // The calls of an op in a module, forward or of its backward rule; the numbers are those of the
  // call that added the largest error.
  struct Row {
    std::string op, module;
    bool backward = false;
    DType dtype = f32;    // of the result
    double error_in = 0;  // the largest error of the inputs (in backward, also of saved tensors)
    double error = 0;     // of the result, which is passed on
    int64_t calls = 0;
    // The part of the error that the op itself added.
    double added() const { return error > error_in ? error - error_in : 0; }
  };
  const std::vector<Row>& rows() const;  // the largest added errors first
  // The error of all gradients of leaves together or, if the step does not go backward, of the last
  // result.
  double error() const;
  int64_t unmatched() const;  // results that only one step has, or that differ in shape

  // Overrides that bring error() down to `budget`: added one at a time, then reduced to those that
  // are needed. Each try runs the step.
  struct Remedy {
    Overrides overrides;
    double error;
    double seconds_before, seconds;  // of a step
    int64_t peak_before, peak;       // in bytes, above those held before
    std::string text() const;        // in the format of load_overrides()
  };
  // Throws Error if overriding every op that adds an error is not enough.
  Remedy overrides(double budget);

  std::string text(size_t most = 20) const;  // a table of rows()
  std::string json() const;  // error(), unmatched() and rows(); infinity is the text "inf"
  std::string svg() const;   // the error of each op, in the order in which they ran

 private:
  struct Run;
  std::unique_ptr<Run> run(const AutocastOptions& region, const Run* reference) const;
  void run_step(const AutocastOptions& region) const;
  std::pair<double, int64_t> cost(const AutocastOptions& region) const;

  const Step step_;
  const CompareOptions options_;
  const RandomGenerator random_;     // the state with which each run begins
  const StateDict start_, history_;  // initial values of the buffers, and of the recipe
  std::unique_ptr<Run> reference_, run_;
};

}  // namespace mixtape::amp
