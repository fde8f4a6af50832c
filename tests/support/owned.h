#pragma once
// The memory of a captured graph, as its ops show it.

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/dispatch.h"
#include "core/stream.h"
#include "core/tensor.h"

namespace mixtape::test {
using namespace internal;

// Notes the results of ops while it is alive: made just before a capture, those of the capture.
// Before a replay, nothing may depend on what is in their memory.
class Owned final : public Observer {
 public:
  explicit Owned(Device device) : device_(device), first_(Storage(1, device).id()) {}
  void after(const Call&, const Tensor& y) override { note(y); }
  void after_rule(const Node&, const Tensor&, std::span<const Tensor> dx) override {
    for (const Tensor& t : dx) note(t);
  }
  void poison() const {
#ifdef MIXTAPE_EMULATED
    synchronize(device_);
    for (const auto& [data, bytes] : blocks_) std::memset(data, 0xff, bytes);
#endif
  }

 private:
  void note(const Tensor& t) {
    if (t && t.storage()->id() > first_)
      blocks_.emplace_back(t.storage()->data(), t.storage()->bytes());
  }
  const Device device_;
  const uint64_t first_;
  std::vector<std::pair<void*, size_t>> blocks_;
  const Observe open_{*this};
};

}  // namespace mixtape::test
