#pragma once
// Compare: the same step in f32 and under Autocast, op by op: where errors begin and how they grow.

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
  AutocastOptions region = {};  // of the step that is examined
  // A model's net.named_buffers(): they begin each run with the same numbers, and end with these.
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
// It must leave parameters as they are. An error is |y - y32| / max(|y|, |y32|), by the 2-norm of a
// result, or of all gradients that a rule makes; infinity where y is not finite and y32 is. The
// results of the f32 step are kept while this lives.
class Compare final : NoCopy {
 public:
  using Step = std::function<void(const AutocastOptions& region)>;
  explicit Compare(Step step, CompareOptions options = {});  // runs it twice
  ~Compare();

  // Calls of one op in one module, forward or of its backward rule; the call that added most.
  struct Row {
    std::string op, module;
    bool backward = false;
    DType dtype = f32;    // of the result
    double error_in = 0;  // the largest of the inputs (in backward, also of what was saved)
    double error = 0;     // of the result: what is passed on
    int64_t calls = 0;
    // The op's own part of its error, without its inputs'.
    double added() const { return error > error_in ? error - error_in : 0; }
  };
  const std::vector<Row>& rows() const;  // those that add most first
  // The error of all gradients of leaves together; of the last result, if the step does not go
  // backward.
  double error() const;
  int64_t unmatched() const;  // results that one of the steps alone has, or in another shape

  // The fewest overrides found, one more at a time and then without those that others make
  // needless, by which error() is at most `budget`; each try runs the step.
  struct Remedy {
    Overrides overrides;
    double error;
    double seconds_before, seconds;  // of a step
    int64_t peak_before, peak;       // bytes above those held before
    std::string text() const;        // a file for load_overrides()
  };
  // Throws Error if no overrides of ops that add an error are enough.
  Remedy overrides(double budget);

  std::string text(size_t most = 20) const;  // a table of rows()
  std::string json() const;  // error(), unmatched() and rows(); "inf" is no number there
  std::string svg() const;   // the error of each op, in the order in which they ran

 private:
  struct Run;
  std::unique_ptr<Run> run(const AutocastOptions& region, const Run* reference) const;
  void run_step(const AutocastOptions& region) const;
  std::pair<double, int64_t> cost(const AutocastOptions& region) const;

  const Step step_;
  const CompareOptions options_;
  const RandomGenerator random_;  // where each run begins
  StateDict start_;               // of the buffers
  std::unique_ptr<Run> reference_, run_;
};

}  // namespace mixtape::amp
