// Which stream a thread has, and copies between places.
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
#include "core/readback.h"

namespace mixtape {
namespace {

struct Registered {
  Stream stream;
  int device = 0;
};

std::atomic<int64_t> waits{0}, orders{0};

// All streams ever made; those of threads that ended are given to later threads. Never destroyed:
// threads and storages may outlive any static.
class Streams {
 public:
  static Streams& all() {
    static Streams* const streams = new Streams;
    return *streams;
  }
  int take(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<int>& free = free_[size_t(device)];
    if (!free.empty()) {
      const int number = free.back();
      free.pop_back();
      return number;
    }
    const auto last_of = [&](int d) {
      int i = count_ - 1;
      while (i >= 0 && streams_[size_t(i)].device != d) --i;
      return i;
    };
    int kept = 0;  // one for each device that has none
    for (int d = 0; d < runtime::device_count(); ++d) kept += d != device && last_of(d) < 0;
    const int last = last_of(device);
    if (last >= 0 && count_ + kept >= max_streams) return last;
    streams_[size_t(count_)] = {{count_, runtime::create_stream(device)}, device};
    return count_++;
  }
  void give(int number) {
    const std::lock_guard lock(mutex_);
    std::vector<int>& free = free_[size_t(streams_[size_t(number)].device)];
    if (std::ranges::find(free, number) == free.end())  // each of several that share it gives it
      free.push_back(number);
  }
  const Registered& operator[](int number) const { return streams_[size_t(number)]; }

 private:
  std::mutex mutex_;
  std::array<Registered, max_streams> streams_;
  int count_ = 0;
  std::array<std::vector<int>, runtime::max_devices> free_;
};

// This thread's streams, given back when it ends.
struct OfThread {
  std::array<const Stream*, runtime::max_devices> of = {};
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
  runtime::wait(waiting.handle, all[waiting.number].device, other.handle, all[other.number].device);
}

// Host memory on its way to a device: bytes are copied into a pinned block at once, and from there
// by the device when it comes to them.
void upload(void* to, const void* from, size_t bytes, const Stream& stream, int device) {
  struct Blocks {
    PinnedBlocks small{size_t{64} << 10, 64}, large{size_t{4} << 20, 16};
  };
  static auto* const all = new std::array<Blocks, runtime::max_devices>;
  Blocks& own = (*all)[size_t(device)];
  // (Who uploads a batch and must wait keeps nobody from uploading a number.)
  PinnedBlocks& blocks = bytes > own.small.size ? own.large : own.small;
  for (size_t done = 0; done < bytes; done += blocks.size) {
    const size_t now = std::min(blocks.size, bytes - done);
    const PinnedBlocks::Block block = blocks.take(device);
    std::memcpy(block.data, static_cast<const char*>(from) + done, now);
    runtime::copy(static_cast<char*>(to) + done, block.data, now, stream.handle, device);
    runtime::record(block.mark, stream.handle, device);
    blocks.give(block);
  }
}

}  // namespace

const Stream& Stream::current(Device device) {
  static const Stream none;
  if (device.is_host()) return none;
  device.require();
  const Stream*& mine = of_thread.of[size_t(device.index)];
  if (!mine) [[unlikely]] {
    Streams& all = Streams::all();
    mine = &all[all.take(device.index)].stream;
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
  runtime::synchronize(Stream::current(device).handle, device.index);
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
    runtime::copy(to, from, bytes, stream.handle, where.index);
    return synchronize(where);
  }
  if (from_device.is_host()) return upload(to, from, bytes, stream, where.index);
  const Stream& source = Stream::current(from_device);
  stream.wait_for(source);  // what is copied must be there
  runtime::copy(to, from, bytes, stream.handle, where.index);
  source.wait_for(stream);  // and stay until it is copied
}

Event::Event(Device device) : device_(device) {
  if (!device.is_host()) mark_ = runtime::create_mark(device.index, true);
  record();
}
Event::~Event() {
  if (mark_) runtime::destroy_mark(mark_);
}
void Event::record() {
  if (mark_)
    runtime::record(mark_, Stream::current(device_).handle, device_.index);
  else
    nanoseconds_ = now();
}
bool Event::has_passed() const { return !mark_ || runtime::has_passed(mark_); }
void Event::synchronize() const {
  if (!mark_) return;
  count_synchronization();
  runtime::wait_for(mark_);
}
double Event::milliseconds_until(const Event& later) const {
  check(device_ == later.device_, "one event is on {}, the other on {}", device_, later.device_);
  if (!mark_) return double(later.nanoseconds_ - nanoseconds_) * 1e-6;
  later.synchronize();
  return runtime::milliseconds_between(mark_, later.mark_);
}

}  // namespace mixtape
