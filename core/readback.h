#pragma once
// Values on their way from a device to the host: asked for in the order of the device's work, and
// read when they have arrived, so that nothing waits. And checks of such values, whose errors come
// late.

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "core/stream.h"

namespace mixtape {

// A copy of at most `most` bytes. On the CPU it is there at once.
class Readback {
 public:
  static constexpr size_t most = 256;

  Readback() = default;
  // Asks for them now. Throws Error if they are more than `most`, or if no pinned memory is left.
  Readback(const void* from, size_t bytes, Device device);
  ~Readback();
  Readback(Readback&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Readback& operator=(Readback&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }

  explicit operator bool() const { return slot_ != nullptr; }  // something was asked for
  bool has_arrived() const;
  void wait() const;
  template <class T>
  const T* as() const {  // once they have arrived
    return static_cast<const T*>(bytes());
  }

 private:
  struct Slot;
  const void* bytes() const;
  Slot* slot_ = nullptr;
};

// A check that the device's values decide. `problem` gets them and returns what is wrong with them,
// or nothing. On the CPU it throws Error here. On a device the Error comes where this thread next
// asks or waits for the device (another check, item(), synchronize()), and names the op and module
// of this call.
void check_later(Readback values, std::function<std::string(const void*)> problem,
                 Where where = Where::here());

// Throws the Error of the first failed check whose values have arrived; with `all`, waits for them.
void poll_checks(bool all = false);

}  // namespace mixtape
