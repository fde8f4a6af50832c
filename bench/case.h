#pragma once
// An op at a size that networks have, timed forward and backward beside a peer's.

#include <string>
#include <vector>

#include "bench/interleave.h"
#include "core/tensor.h"

namespace mixtape::bench {

struct CaseInput {
  Shape shape;
  int64_t classes = 0;  // above zero: indices below it
};

struct Case {
  std::string name;  // of the lines
  std::string op;    // peers know it by this
  std::vector<CaseInput> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  std::vector<int64_t> options = {};  // what peers must know besides
  double operations = 0;              // forward; backward twice that
  bool backward = true;
};

// Lines NAME/forward and NAME/backward in f32, f16 and bf16, and those of the peer.
void add(const Case& c);

// What one call moves at least: inputs and result, or backward the gradients of both.
double moved_bytes(const std::vector<Tensor>& inputs, const Tensor& y, bool backward);
// The op by itself, or the gradients of those inputs that are leaves.
Call forward(std::function<Tensor(const std::vector<Tensor>&)> run, std::vector<Tensor> inputs);
Call backward(const std::function<Tensor(const std::vector<Tensor>&)>& run,
              const std::vector<Tensor>& inputs);

}  // namespace mixtape::bench
