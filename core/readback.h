#pragma once
// Readback: an asynchronous copy of a few bytes from a device to the host, through pinned memory;
// and checks of such values, whose errors are raised later.

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "core/stream.h"

namespace mixtape {

// Pinned memory for a copy; data is null for none.
struct PinnedBlock {
  void* data = nullptr;
  runtime::Mark mark = nullptr;  // recorded in the stream before the block is given back
  int stream = -1;
};

// A copy of at most `most` bytes. From the CPU it is immediate. From meta it brings zeros at once,
// which in the library's flags and counters mean that nothing went wrong.
class Readback {
 public:
  static constexpr size_t most = 256;

  Readback() = default;
  // Starts the copy. Throws Error if bytes > most, or if pinned memory runs out.
  Readback(const void* from, size_t bytes, Device device);
  ~Readback();
  Readback(Readback&& other) noexcept { swap(other); }
  Readback& operator=(Readback&& other) noexcept {
    swap(other);
    return *this;
  }

  explicit operator bool() const { return block_.data != nullptr; }  // a copy was started
  bool has_arrived() const;
  void wait() const;
  template <class T>
  const T* as() const {  // once has_arrived()
    return static_cast<const T*>(block_.data);
  }

 private:
  void swap(Readback& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(block_, other.block_);
  }

  Device device_;
  PinnedBlock block_;  // on the CPU, without a mark
};

// Returns what is wrong with the values, or "".
using Problem = std::function<std::string(const void*)>;

// Checks values on a device. Throws Error at once on the CPU or with `wait`; else the Error comes
// when this thread next polls or waits for the device (another check, item(), synchronize()). It
// names the op and module of this call. After a capture, every replay checks; meta checks nothing.
void check_later(const void* values, size_t bytes, Device device, Problem problem,
                 SourceLocation where = SourceLocation::here(), bool wait = false);

// Throws the Error of the first failed check whose values have arrived; with `all`, waits for them.
void poll_checks(bool all = false);

}  // namespace mixtape
