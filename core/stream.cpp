// The stream of each thread, and copies between devices.
#include "core/stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/check.h"
#include "core/format.h"
#include "core/pinned_blocks.h"
#include "core/readback.h"

namespace mixtape {
namespace {

struct Registered {
  Stream stream;
  Device device;
};

std::atomic<int64_t> waits{0}, orders{0};

// All streams ever made, passed on by ended threads; threads and storages may outlive any static.
class Streams {
 public:
  static Streams& all() {
    static Streams* const streams = new Streams;
    return *streams;
  }
  int take(Device device) {
    const std::lock_guard lock(mutex_);
    std::vector<int>& free = free_[device.slot()];
    if (!free.empty()) {
      const int number = free.back();
      free.pop_back();
      return number;
    }
    const auto last_of = [&](Device d) {
      int i = count_ - 1;
      while (i >= 0 && streams_[size_t(i)].device != d) --i;
      return i;
    };
    int kept = 0;  // one for each device without a stream
    for (const Device d : runtime::devices()) kept += d != device && last_of(d) < 0;
    const int last = last_of(device);
    if (last >= 0 && count_ + kept >= max_streams) return last;
    streams_[size_t(count_)] = {{count_, runtime::of(device.type).create_stream(device.index)},
                                device};
    return count_++;
  }
  void give(int number) {
    const std::lock_guard lock(mutex_);
    std::vector<int>& free = free_[streams_[size_t(number)].device.slot()];
    if (std::ranges::find(free, number) == free.end())  // shared streams are returned several times
      free.push_back(number);
  }
  const Registered& operator[](int number) const { return streams_[size_t(number)]; }

 private:
  std::mutex mutex_;
  std::array<Registered, max_streams> streams_;
  int count_ = 0;
  std::array<std::vector<int>, device_slots> free_;
};

// This thread's streams, given back when it ends.
struct OfThread {
  std::array<const Stream*, device_slots> of = {};
  ~OfThread() {
    for (const Stream* s : of)
      if (s) Streams::all().give(s->number);
  }
};
thread_local OfThread of_thread;

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void order(const Stream& waiting, const Stream& other) {
  const Streams& all = Streams::all();
  orders.fetch_add(1, std::memory_order_relaxed);
  const Device device = all[waiting.number].device, other_device = all[other.number].device;
  runtime::of(device.type).wait(waiting.handle, device.index, other.handle, other_device.index);
}

// Copies to a pinned block at once; from there the device copies in stream order.
void upload(void* to, const void* from, size_t bytes, const Stream& stream, Device device) {
  struct Blocks {
    PinnedBlocks small{size_t{64} << 10, 64}, large{size_t{4} << 20, 16};
  };
  static auto* const all = new std::array<Blocks, device_slots>;
  Blocks& own = (*all)[device.slot()];
  // (Separate pools, so that the upload of a number need not wait for that of a batch.)
  PinnedBlocks& blocks = bytes > own.small.size ? own.large : own.small;
  for (size_t done = 0; done < bytes; done += blocks.size) {
    const size_t now = std::min(blocks.size, bytes - done);
    const PinnedBlock block = blocks.take(device);
    std::memcpy(block.data, static_cast<const char*>(from) + done, now);
    const runtime::Runtime& runtime = runtime::of(device.type);
    runtime.copy(static_cast<char*>(to) + done, block.data, now, stream.handle, device.index);
    runtime.record(block.mark, stream.handle, device.index);
    blocks.give(block);
  }
}

}  // namespace

const Stream& Stream::current(Device device) {
  static const Stream none;
  if (device.is_host()) return none;
  device.require();
  const Stream*& mine = of_thread.of[device.slot()];
  if (!mine) [[unlikely]] {
    Streams& all = Streams::all();
    mine = &all[all.take(device)].stream;
  }
  return *mine;
}

const Stream& Stream::numbered(int number) { return Streams::all()[number].stream; }

void Stream::wait_for(const Stream& other) const {
  if (number != other.number) order(*this, other);
}

void synchronize(Device device) {
  if (device.is_host()) return;
  count_synchronization();
  runtime::of(device.type).synchronize(Stream::current(device).handle, device.index);
  poll_checks(true);
}

void count_synchronization() { waits.fetch_add(1, std::memory_order_relaxed); }
int64_t orders_between_streams() { return orders.load(std::memory_order_relaxed); }
int64_t synchronizations() { return waits.load(std::memory_order_relaxed); }

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  if (bytes == 0) return;
  if (to_device.is_host() && from_device.is_host()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const Device where = to_device.is_host() ? from_device : to_device;
  const Stream& stream = Stream::current(where);
  if (to_device.is_host()) {
    runtime::of(where.type).copy(to, from, bytes, stream.handle, where.index);
    return synchronize(where);
  }
  if (from_device.is_host()) return upload(to, from, bytes, stream, where);
  const Stream& source = Stream::current(from_device);
  stream.wait_for(source);  // the source must be written
  runtime::of(where.type).copy(to, from, bytes, stream.handle, where.index);
  source.wait_for(stream);  // and stay until it is copied
}

namespace runtime {

Event::Event(Device device) : device_(device) {
  if (!device.is_host()) mark_ = runtime::of(device.type).create_mark(device.index, true);
  record();
}
Event::~Event() {
  if (mark_) runtime::of(device_.type).destroy_mark(mark_);
}
void Event::record() {
  if (mark_)
    runtime::of(device_.type).record(mark_, Stream::current(device_).handle, device_.index);
  else
    nanoseconds_ = now();
}
bool Event::has_passed() const { return !mark_ || runtime::of(device_.type).has_passed(mark_); }
void Event::synchronize() const {
  if (!mark_) return;
  count_synchronization();
  runtime::of(device_.type).wait_for(mark_);
}
double Event::milliseconds_until(const Event& later) const {
  check(device_ == later.device_, "one event is on {}, the other on {}", device_, later.device_);
  if (!mark_) return double(later.nanoseconds_ - nanoseconds_) * 1e-6;
  later.synchronize();
  return runtime::of(device_.type).milliseconds_between(mark_, later.mark_);
}

}  // namespace runtime
}  // namespace mixtape
