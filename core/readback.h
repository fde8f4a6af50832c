#pragma once
// Pinned memory that copies from and to a device pass through; values on their way to the host,
// asked for in the order of the device's work and read when they have arrived, so that nothing
// waits; and checks of such values, whose errors come late.

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "core/stream.h"

namespace mixtape {

// Blocks of one size, for one device. One that was given back is used again when the device has
// passed its mark.
class PinnedBlocks {
 public:
  struct Block {
    void* data = nullptr;
    runtime::Mark mark = nullptr;  // recorded before the block is given back
  };

  // Once `enough` (at least 1) were given back, waits for the device rather than making more.
  PinnedBlocks(size_t bytes, size_t enough) : size(bytes), enough_(enough) {}
  Block take(Device device);  // throws Error if no pinned memory is left
  void give(const Block& block);

  const size_t size;

 private:
  const size_t enough_;
  std::mutex mutex_;
  std::deque<Block> given_;  // the oldest first
};

// A copy of at most `most` bytes. On the CPU it is there at once.
class Readback {
 public:
  static constexpr size_t most = 256;

  Readback() = default;
  // Asks for them now. Throws Error if they are more than `most`, or if no pinned memory is left.
  Readback(const void* from, size_t bytes, Device device);
  ~Readback();
  Readback(Readback&& other) noexcept { swap(other); }
  Readback& operator=(Readback&& other) noexcept {
    swap(other);
    return *this;
  }

  explicit operator bool() const { return block_.data != nullptr; }  // something was asked for
  bool has_arrived() const;
  void wait() const;
  template <class T>
  const T* as() const {  // once they have arrived
    return static_cast<const T*>(block_.data);
  }

 private:
  void swap(Readback& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(block_, other.block_);
  }

  Device device_;
  PinnedBlocks::Block block_;  // on the CPU just memory, without a mark
};

// A check that the device's values decide. `problem` gets them and returns what is wrong with them,
// or nothing. On the CPU it throws Error here. On a device the Error comes where this thread next
// asks or waits for the device (another check, item(), synchronize()), and names the op and module
// of this call.
void check_later(Readback values, std::function<std::string(const void*)> problem,
                 SourceLocation where = SourceLocation::here());

// Throws the Error of the first failed check whose values have arrived; with `all`, waits for them.
void poll_checks(bool all = false);

}  // namespace mixtape
