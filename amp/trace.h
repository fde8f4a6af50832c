#pragma once
// OverflowTrace: finds the op where an overflow began. Each op's infinities and NaNs, in inputs and
// outputs, are counted on its device and read later, many ops at once.

#include <memory>
#include <string>
#include <vector>

#include "core/dispatch.h"

namespace mixtape::kernels {
struct TensorStats;
}

namespace mixtape::amp {

// An op that made infinities or NaN from finite numbers, or NaN from infinities.
struct BadOp {
  enum class Kind {
    Forward,   // in its result
    Backward,  // in a gradient from its backward rule
    Sum,       // in its incoming gradient: a sum of several, or given by the program
    Input,     // in an input that no op made: NaN in data or in a weight
  };
  Kind kind;
  std::string op, module;          // "cast for linear"; the module's path, empty if there is none
  std::vector<DType> inputs = {};  // of float inputs; for a backward rule, of the incoming gradient
  double input_absmax = 0;         // of the finite elements
  DType dtype = f32;               // of the result
  Shape shape = {};
  int64_t infinities = 0, nans = 0;
  // "backward of softmax in layer3.attn: 12 inf in f16 [8, 64], from f32 with absmax 6.1e+04"
  std::string text() const;
};

namespace detail {
bool is_counted(const Tensor& t);  // has numbers that can be infinite or NaN
// Infinities that an op writes are the program's intention: masked_fill and pad.
bool writes_infinities(const OpInfo& op);
// The numbers of t, contiguous, broadcast ones once, and the layout that makes t of them.
struct Numbers {
  Tensor all;
  internal::Layout layout;
};
Numbers numbers_of(const Tensor& t);
}  // namespace detail

// Watches the ops of this thread, forward and backward, and throws nothing: under a GradScaler an
// occasional overflow is normal. An op costs three small kernels more; reading results, or every
// thousand tensors, waits for the device. Infinities of masked_fill and pad do not count, nor do
// steps inside a backward rule with finite gradients.
class OverflowTrace final : public internal::Observer {
 public:
  [[nodiscard]] OverflowTrace();  // begins to watch
  ~OverflowTrace();
  static OverflowTrace* innermost();  // of this thread, or null

  // The first bad op of each iteration that had one, oldest first. Waits for the device.
  const std::vector<BadOp>& found();
  void next_iteration() { ++iteration_; }  // called by GradScaler::update()

  struct Underflow {  // elements of an op's f16 or bf16 gradients that were too small for the dtype
    std::string op, module;
    DType dtype;
    int64_t elements = 0, zeros = 0, subnormals = 0;
    // The part of all elements that became zero or subnormal.
    double fraction() const { return double(zeros + subnormals) / double(elements); }
  };
  std::vector<Underflow> underflow();  // largest fraction first; waits for the device

 private:
  struct Entry;
  struct State;
  void after(const internal::Call& call, const Tensor& result) override;
  void after_rule(const internal::Node& node, const Tensor& dy,
                  std::span<const Tensor> gradients) override;
  void after_accumulate(const internal::Node& leaf, const Tensor& grad) override;
  void enter(Entry entry, std::span<const Tensor> inputs, std::span<const Tensor> outputs);
  void read();
  void examine(const Entry& entry, const kernels::TensorStats* rows);

  int64_t iteration_ = 0;
  const std::unique_ptr<State> state_;
  const Observe watching_{*this};
};

}  // namespace mixtape::amp
