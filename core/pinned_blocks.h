#pragma once
// PinnedBlocks: a pool of pinned memory for copies between host and device.

#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "core/readback.h"

namespace mixtape {

// Blocks of one size for one device, each reused once the device has passed its mark.
class PinnedBlocks {
 public:
  // Once `enough` (at least 1) blocks were given back, take() waits for the device instead of
  // allocating; if possible for this thread's own stream, since another may be far behind.
  PinnedBlocks(size_t bytes, size_t enough) : size(bytes), enough_(enough) {}
  PinnedBlock take(Device device);  // throws Error if no pinned memory is left
  void give(const PinnedBlock& block);

  const size_t size;

 private:
  std::optional<PinnedBlock> take_given(Device device);

  const size_t enough_;
  std::mutex mutex_;
  std::map<int, std::deque<PinnedBlock>> given_;  // by stream, the oldest first
};

}  // namespace mixtape
