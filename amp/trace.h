#pragma once
// Where an overflow began: while a trace is alive, what goes into each op and comes out of it is
// counted on its device, and the counts are read later, many ops at once.

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/dispatch.h"
#include "kernels/common/tensor_stats.h"

namespace mixtape::amp {

// An op that made infinities or NaN of finite numbers, or NaN of infinities.
struct BadOp {
  enum class Kind {
    Forward,   // in its result
    Backward,  // in a gradient that its backward rule made
    Sum,       // in the gradient that arrived at it: a sum of several, or given by the program
    Input,     // in what it was given and no op had made: NaN in data or in a weight
  };
  Kind kind;
  std::string op, module;          // "cast for linear"; the module's path, empty if there is none
  std::vector<DType> inputs = {};  // those of floats; of a backward rule, the gradient it was given
  double input_absmax = 0;         // of those elements that are finite
  DType dtype = f32;               // of what it made
  Shape shape = {};
  int64_t infinities = 0, nans = 0;

  // "backward of softmax in layer3.attn: 12 inf in f16 [8, 64], from f32 with absmax 6.1e+04"
  std::string text() const;
};

// While one is alive, it watches the ops of this thread, forward and backward, and throws nothing:
// under a GradScaler an overflow now and then is normal. Each op costs three small kernels more;
// the device is waited for only when somebody asks, or a thousand tensors were counted.
//
// Infinities on purpose do not count: those of masked_fill and pad. Neither do the steps that a
// backward rule takes, if its gradients are finite.
class OverflowTrace final : public Observer {
 public:
  [[nodiscard]] OverflowTrace() = default;
  static OverflowTrace* innermost();  // of this thread, or null

  // The first bad op of each iteration that had one, oldest first. Waits for the device.
  const std::vector<BadOp>& found();
  void next_iteration() { ++iteration_; }  // GradScaler::update() does

  // What of an op's f16 and bf16 gradients was too small for its dtype.
  struct Underflow {
    std::string op, module;
    DType dtype;
    int64_t elements = 0, zeros = 0, subnormals = 0;
    double fraction() const { return double(zeros + subnormals) / double(elements); }
  };
  std::vector<Underflow> underflow();  // largest fraction first; waits for the device

 private:
  struct Counted {
    DType dtype;
    Shape shape;
    int64_t copies;  // of each element that was counted
  };
  struct Entry {  // an op that ran
    BadOp::Kind kind;
    bool is_rule;
    std::string op;
    const std::string* module;
    int64_t iteration;
    size_t inputs = 0;  // the first of the tensors
    std::vector<Counted> tensors = {};
    int64_t row = 0;  // of surveys_, where theirs begin
  };
  void after(const Call& call, const Tensor& result) override;
  void after_rule(const Node& node, const Tensor& dy, std::span<const Tensor> gradients) override;
  void after_accumulate(const Node& leaf, const Tensor& grad) override;
  void enter(Entry entry, std::span<const Tensor> inputs, std::span<const Tensor> outputs);
  void read();
  void judge(const Entry& entry, const kernels::TensorStats* rows);

  int64_t iteration_ = 0;
  Tensor surveys_;  // of the entries' tensors, on their device
  int64_t rows_ = 0;
  std::vector<Entry> entries_;
  std::vector<BadOp> found_;
  struct Judged {  // what is known of the iteration whose entries are being judged
    int64_t iteration = -1;
    bool found = false, bad_gradient = false;
    std::optional<BadOp> outside = {};  // of Kind::Input: the first
  } judged_;
  std::map<std::tuple<std::string, std::string, DType>, Underflow> underflow_;
  const Observe watching_{*this};
};

}  // namespace mixtape::amp
