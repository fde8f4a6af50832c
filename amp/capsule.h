#pragma once
// Capsules: the op in which an overflow began, with all that it takes to run it again, in a file.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dispatch.h"
#include "core/state_dict.h"

namespace mixtape::amp {

// A call of an op, or of its backward rule. The file is safetensors, with all but tensors in its
// metadata. It can be replayed by programs of the same sources and compiler. Replay only capsules
// of those whose programs you would run: the op takes its attributes as they are in the file.
// Roundings of a Recipe are no part of it, so that a backward rule under one may not be reproduced.
struct Capsule {
  struct Input {         // an argument of the op
    Tensor tensor = {};  // without one: an optional input that was absent
    bool requires_grad = false;
    DType grad_dtype = f32;  // of its gradient
  };
  std::string op, module, types;  // types: of the call's arguments
  std::string finding;            // BadOp::text()
  std::string device, instruction_set, compiler;
  uint64_t seed = 0, offset = 0;  // of the thread's random numbers, after the op
  std::vector<Input> inputs = {};
  std::vector<int64_t> lists = {};  // sizes of lists of inputs
  std::string attributes = {};      // their bytes
  std::optional<DType> out = {};    // the dtype asked for
  Tensor gradient = {};             // of the result; if there is one, the backward rule failed
  std::string checksum = {};        // of what came of it

  static Capsule load(const std::string& path);  // throws Error if the file is no capsule
  void save(const std::string& path) const;      // atomically; throws Error as io::save() does

  // On the DefaultDevice: the result, or the gradients of inputs that require one, with float
  // inputs in another dtype if given. Throws Error if this program has no such call.
  std::vector<Tensor> replay(std::optional<DType> dtype = {}) const;
  bool reproduces() const;     // every bit of it
  std::string report() const;  // of replays in f16, bf16, f32 and f64, and which of them cure it
  std::string test(const std::string& path) const;  // that one of those stays finite, as C++
};

namespace detail {
// FNV-1a, 64 bits: continues the checksum `before` with more bytes.
uint64_t checksum(const void* data, size_t bytes, uint64_t before = 0xcbf29ce484222325);
}  // namespace detail

// While one is alive, looks at the results of this thread's ops, forward and backward, and writes
// the first that made infinities or NaN of finite numbers to a file. Waits for each op and keeps
// its inputs while a backward may come, until the graph goes: open one for the few steps in
// question. Infinities of masked_fill and pad do not count, nor do sums of gradients.
class OverflowCapsule final : public internal::Observer {
 public:
  // Throws Error if the path cannot be written, or is that of another format, such as x.pt.
  [[nodiscard]] explicit OverflowCapsule(std::string path);
  bool found() const { return found_; }  // the file is written

 private:
  struct Kept {
    Capsule capsule;
    std::vector<uint64_t> versions;
    std::weak_ptr<internal::Node> node;
  };
  void after(const internal::Call& call, const Tensor& result) override;
  void after_rule(const internal::Node& node, const Tensor& dy,
                  std::span<const Tensor> gradients) override;
  bool examine(Capsule& c, int kind, std::span<const Tensor> inputs,
               std::span<const Tensor> results);

  const std::string path_;
  bool found_ = false, went_back_ = false;  // a rule ran since the last op
  std::map<uint64_t, Kept> kept_;           // by the order of their nodes
  const Observe watching_{*this};
};

}  // namespace mixtape::amp
