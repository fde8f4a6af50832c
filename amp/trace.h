#pragma once
// OverflowTrace: finds the op in which an overflow began. Infinities and NaNs in each op's inputs
// and outputs are counted on the device and read later, for many ops at once.

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
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
    Sum,       // in its incoming gradient, which is a sum or was given by the program
    Input,     // in an input that no op made, such as data or a weight
  };
  Kind kind;
  std::string op, module;          // "cast for linear"; the module's path, empty if there is none
  std::vector<DType> inputs = {};  // of float inputs, or of a backward rule's incoming gradient
  double input_absmax = 0;         // of the finite elements
  DType dtype = f32;               // of the result
  Shape shape = {};
  int64_t infinities = 0, nans = 0;
  // "backward of softmax in layer3.attn: 12 inf in f16 [8, 64], from f32 with absmax 6.1e+04"
  std::string text() const;
};

namespace detail {
// An observer that keeps tensors, which programs may change in place all the same.
class KeepingObserver : public internal::Observer {
 public:
  long handles(const Storage& storage) const override {
    const auto at = handles_.find(storage.id());
    return at == handles_.end() ? 0 : at->second;
  }

 protected:
  std::unordered_map<uint64_t, long> handles_;  // that it keeps, by storage
};
bool is_counted(const Tensor& t);  // true if it has numbers that can be infinite or NaN
// The call's kind and op in findings: Forward and "cast for linear".
std::pair<BadOp::Kind, std::string> described(const internal::Call& call);
// False for views, copies to another device, and masked_fill and pad, which write infinities only
// because the program says so.
bool makes_numbers(const internal::Call& call, const Tensor& result);
// The numbers of t, contiguous and without repetitions, and the layout that turns them into t.
struct Numbers {
  Tensor all;
  internal::Layout layout;
};
Numbers numbers_of(const Tensor& t);
Tensor counted_numbers(const Tensor& t);  // of numbers_of(): as f32 if they have 8 bits
Tensor stats_of(const Tensor& dense);     // its TensorStats: f64 [1, stats_size], on its device
}  // namespace detail

// A guard that watches the ops of this thread, forward and backward. It throws nothing, since under
// a GradScaler an occasional overflow is normal. Each op takes three more small kernels; the device
// is waited for when results are read and every thousand tensors. Infinities of masked_fill and pad
// do not count, nor do ops inside a backward rule whose gradients are finite.
class OverflowTrace final : public internal::Observer {
 public:
  [[nodiscard]] OverflowTrace();  // begins to watch
  ~OverflowTrace();
  static OverflowTrace* innermost();  // of this thread, or null

  // For each iteration with a bad op, the first one; oldest first. Waits for the device.
  const std::vector<BadOp>& found();
  void next_iteration() { ++iteration_; }  // called by GradScaler::update()

  struct Underflow {  // counts elements of an op's f16 or bf16 gradients that were too small
    std::string op, module;
    DType dtype;
    int64_t elements = 0, zeros = 0, subnormals = 0;
    // The fraction of all elements that became zero or subnormal.
    double fraction() const { return double(zeros + subnormals) / double(elements); }
  };
  std::vector<Underflow> underflow();  // the largest fraction first; waits for the device

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
