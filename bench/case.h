#pragma once
// An op at a size from networks, timed forward and backward and compared with a peer's.

#include <string>
#include <vector>

#include "bench/interleave.h"
#include "core/tensor.h"

namespace mixtape::bench {

struct CaseInput {
  Shape shape;
  int64_t classes = 0;  // if > 0, integers below it
};

struct Case {
  std::string name;  // of the output lines
  std::string op;    // the peers' name
  std::vector<CaseInput> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  std::vector<int64_t> options = {};  // further arguments for peers
  double operations = 0;              // forward; backward does twice as many
  bool backward = true;
};

// Adds the lines NAME/forward and NAME/backward in f32, f16 and bf16, and the peer's.
void add(const Case& c);

// Bytes that one call moves at least: inputs and result, or backward the gradients of both.
double moved_bytes(const std::vector<Tensor>& inputs, const Tensor& y, bool backward);
// The op, or the gradients of the inputs that are leaves.
Call forward(std::function<Tensor(const std::vector<Tensor>&)> run, std::vector<Tensor> inputs);
Call backward(const std::function<Tensor(const std::vector<Tensor>&)>& run,
              const std::vector<Tensor>& inputs);

}  // namespace mixtape::bench
