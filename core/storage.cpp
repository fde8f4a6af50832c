// Orders the streams that use one storage.
#include "core/storage.h"

#include <bit>
#include <mutex>

#include "core/capture.h"
#include "core/error.h"

namespace mixtape {
using namespace internal;

void Storage::hand_over(bool to_write) {
  if (captured_graph) return captured_graph->use(*this);
  hand_over_to(Stream::current(device_), to_write);
}

void Storage::hand_over_to(const Stream& stream, bool to_write) {
  // A stream that finds this one as the last must also wait for what it waits for.
  static std::mutex mutex;
  const uint64_t me = uint64_t{1} << stream.number;
  if (stream.number != stream_) used_.fetch_or(me);
  const std::lock_guard lock(mutex);
  const int last = last_.exchange(stream.number);
  uint64_t before = to_write ? readers_ : uint64_t{1} << last;
  readers_ = to_write ? me : readers_ | me;
  for (; before != 0; before &= before - 1)
    stream.wait_for(Stream::numbered(std::countr_zero(before)));
}

void Storage::join_graph() { captured_graph->use(*this); }
void Storage::leave_graphs() noexcept { GraphMembers::remove(*this); }

void Storage::collect() noexcept try {
  const Stream& owner = Stream::numbered(stream_);
  for (uint64_t left = used_.load(); left != 0; left &= left - 1)
    owner.wait_for(Stream::numbered(std::countr_zero(left)));
} catch (const Error&) {
  // The device has failed; its next use throws.
}

}  // namespace mixtape
