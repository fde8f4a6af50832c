// Order between the streams that use one storage.
#include "core/storage.h"

#include <bit>
#include <mutex>

#include "core/capture.h"
#include "core/error.h"

namespace mixtape {
using namespace internal;

void Storage::hand_over() {
  if (thread_state.capture) return thread_state.capture->use(*this);
  static std::mutex mutex;  // a stream that sees this one as the last must wait for its waits too
  const Stream& mine = Stream::current(device_);
  if (mine.number != stream_) used_.fetch_or(uint64_t{1} << mine.number);
  const std::lock_guard lock(mutex);
  mine.wait_for(Stream::numbered(last_.exchange(mine.number)));
}

void Storage::join_graph() { thread_state.capture->use(*this); }
void Storage::leave_graphs() noexcept { GraphMembers::remove(*this); }

void Storage::collect() noexcept try {
  const Stream& owner = Stream::numbered(stream_);
  for (uint64_t left = used_.load(); left != 0; left &= left - 1)
    owner.wait_for(Stream::numbered(std::countr_zero(left)));
} catch (const Error&) {
  // The device has failed: its next use throws.
}

}  // namespace mixtape
