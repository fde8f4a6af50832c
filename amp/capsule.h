#pragma once
// Capsules: files with the op in which an overflow began and everything needed to run it again.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "amp/trace.h"
#include "core/state_dict.h"

namespace mixtape::amp {

// A call of an op or of its backward rule. The file is safetensors; everything but tensors is in
// its metadata. Programs of the same sources and compiler can replay it. Replay only capsules from
// people whose programs you would run, since the op takes its attributes from the file unchecked.
// Roundings of a Recipe are not included, so a backward rule under a recipe may not be reproduced.
struct Capsule {
  struct Input {         // an argument of the op
    Tensor tensor = {};  // empty for an absent optional input
    bool requires_grad = false;
    DType grad_dtype = f32;  // of its gradient
  };
  std::string op, module, types;  // types: a checksum of those of the call's arguments
  std::string finding;            // BadOp::text()
  std::string device, instruction_set, compiler;
  uint64_t seed = 0, offset = 0;  // of the thread's random numbers, after the op
  bool tf32 = false;              // Tf32::allowed()
  std::vector<Input> inputs = {};
  std::vector<int64_t> lists = {};  // sizes of lists of inputs
  std::string attributes = {};      // their bytes
  std::optional<DType> out = {};    // the requested dtype
  Tensor gradient = {};             // of the result, if it is the backward rule that failed
  std::string checksum = {};        // of the results

  static Capsule load(const std::string& path);  // throws Error if the file is not a capsule
  void save(const std::string& path) const;      // atomically; throws Error as io::save() does

  // Runs the call on the DefaultDevice, with float inputs in another dtype if given. Returns the
  // result, or the gradients of inputs that require one. Throws Error if this program has no such
  // call.
  std::vector<Tensor> replay(std::optional<DType> dtype = {}) const;
  bool reproduces() const;  // true if a replay gives every bit of the results
  // A text on replays in f16, bf16, f32 and f64, and which of them stay finite.
  std::string report() const;
  std::string test(const std::string& path) const;  // C++ of a test that one of them stays finite
};

// A guard that looks at the results of this thread's ops, forward and backward, and writes the
// first op that made infinities from finite numbers, or NaN from numbers, to a file. Waits for each
// op, and keeps its inputs as long as the graph, so open it only for the steps in question.
// Infinities of masked_fill and pad do not count, nor do sums of gradients.
class OverflowCapsule final : public detail::KeepingObserver {
 public:
  // Throws Error if the path cannot be written or has another format's name, such as x.pt.
  [[nodiscard]] explicit OverflowCapsule(std::string path);
  bool found() const { return found_; }  // true once the file is written

 private:
  struct Kept {
    Capsule capsule;
    std::vector<uint64_t> versions;
    std::weak_ptr<internal::Node> node;
  };
  void after(const internal::Call& call, const Tensor& result) override;
  void after_rule(const internal::Node& node, const Tensor& dy,
                  std::span<const Tensor> gradients) override;
  void count(const Kept& kept, long by);  // its handles, as of now (1) or no longer (-1)
  bool examine(Capsule& c, BadOp bad, std::span<const Tensor> inputs,
               std::span<const Tensor> results);

  const std::string path_;
  bool found_ = false, went_back_ = false;  // a rule ran since the last op
  std::map<uint64_t, Kept> kept_;           // by the order of their nodes
  const Observe watching_{*this};
};

}  // namespace mixtape::amp
