// The stream of each thread, and copies between devices.
#include "core/stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/capture.h"
#include "core/check.h"
#include "core/format.h"
#include "core/pinned_blocks.h"
#include "core/readback.h"

namespace mixtape {
using namespace internal;
namespace {

struct Registered {
  Stream stream;
  Device device;
  bool captures = false;
  int users = 0;             // threads
  int home = stream.number;  // where its work runs; of a stream that captures, the last home
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
    int number;
    if (free.empty()) {
      number = make(device, /*alone=*/false);
    } else {
      number = free.back();
      free.pop_back();
    }
    ++streams_[size_t(number)].users;
    return number;
  }
  // A stream for captures alone, since threads may share theirs. If there is no new one, one of an
  // ended thread.
  int take_for_capture(Device device) {
    const std::lock_guard lock(mutex_);
    std::vector<int>& free = free_for_captures_[device.slot()];
    if (std::vector<int>& ended = free_[device.slot()];
        free.empty() && is_full(device) && !ended.empty()) {
      free.push_back(ended.back());
      ended.pop_back();
      streams_[size_t(free.back())].captures = true;
    }
    if (free.empty()) return make(device, /*alone=*/true);
    const int number = free.back();
    free.pop_back();
    return number;
  }
  void give_from_capture(int number) {
    const std::lock_guard lock(mutex_);
    free_for_captures_[streams_[size_t(number)].device.slot()].push_back(number);
  }
  void set_home(int number, int home) { streams_[size_t(number)].home = home; }
  const Registered& home(int number) const { return (*this)[(*this)[number].home]; }
  void give(int number) {
    const std::lock_guard lock(mutex_);
    if (--streams_[size_t(number)].users > 0) return;  // others share it
    free_[streams_[size_t(number)].device.slot()].push_back(number);
  }
  const Registered& operator[](int number) const { return streams_[size_t(number)]; }

 private:
  // The last stream that threads on a device use, or -1.
  int last_of(Device device) const {
    int i = count_ - 1;
    while (i >= 0 && (streams_[size_t(i)].device != device || streams_[size_t(i)].captures)) --i;
    return i;
  }
  // True if the streams left are reserved: one for each other device without any, also for the meta
  // devices.
  bool is_full(Device device) const {
    int kept = 0;
    const auto keep_for = [&](Device d) { kept += d != device && last_of(d) < 0; };
    for (const Device d : runtime::devices()) keep_for(d);
    for (int type = 0; type < int(DeviceType::meta); ++type)
      keep_for(Device::meta(DeviceType(type)));
    return count_ + kept >= max_streams;
  }
  int make(Device device, bool alone) {
    const int last = last_of(device);
    if (is_full(device) && (alone || last >= 0)) {
      check(!alone, "all {} streams are taken, by threads and graphs", max_streams);
      return last;
    }
    streams_[size_t(count_)] = {
        {count_, runtime::of(device.type).create_stream(device.index)}, device, alone, 0, count_};
    return count_++;
  }

  std::mutex mutex_;
  std::array<Registered, max_streams> streams_;
  int count_ = 0;
  std::array<std::vector<int>, device_slots> free_, free_for_captures_;
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
  const Registered &later = all.home(waiting.number), &earlier = all.home(other.number);
  if (later.stream.number == earlier.stream.number) return;
  orders.fetch_add(1, std::memory_order_relaxed);
  runtime::of(later.device.type)
      .wait(later.stream.handle, later.device.index, earlier.stream.handle, earlier.device.index);
}

// Copies into a pinned block at once. From there the device copies in stream order.
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
    check(!captured_graph, "{} cannot be used during a capture for another device", device);
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
  if (device.is_host() || device.is_meta()) return;
  check_no_capture("nothing has run that could be waited for");
  count_synchronization();
  runtime::of(device.type).synchronize(Stream::current(device).handle, device.index);
  poll_checks(true);
}

void count_synchronization() { waits.fetch_add(1, std::memory_order_relaxed); }
int64_t orders_between_streams() { return orders.load(std::memory_order_relaxed); }
int64_t synchronizations() { return waits.load(std::memory_order_relaxed); }

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes) {
  if (bytes == 0 || to_device.is_meta()) return;
  check(!from_device.is_meta(), "a tensor on {} has a shape, but no values to read", from_device);
  if (to_device.is_host() && from_device.is_host()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const Device where = to_device.is_host() ? from_device : to_device;
  const Stream& stream = Stream::current(where);
  if (to_device.is_host()) {
    check_no_capture("nothing has run that the host could read: it can after a replay");
    runtime::of(where.type).copy(to, from, bytes, stream.handle, where.index);
    return synchronize(where);
  }
  if (from_device.is_host()) {
    check_no_capture(
        "a copy from the host would always bring the same values: copy into a tensor before it");
    return upload(to, from, bytes, stream, where);
  }
  const Stream& source = Stream::current(from_device);
  stream.wait_for(source);  // the source must have been written
  runtime::of(where.type).copy(to, from, bytes, stream.handle, where.index);
  source.wait_for(stream);  // and must stay until it was copied
}

CaptureStream::CaptureStream(Device device)
    : device_(device), stream_(&Streams::all()[Streams::all().take_for_capture(device)].stream) {}
CaptureStream::~CaptureStream() { Streams::all().give_from_capture(stream_->number); }
void CaptureStream::begin() {
  home_ = &Stream::current(device_);
  order(*home_, *stream_);  // it reuses memory of earlier graphs
  Streams::all().set_home(stream_->number, home_->number);
  outer_ = std::exchange(of_thread.of, {});
  of_thread.of[device_.slot()] = stream_;
}
void CaptureStream::end() { of_thread.of = outer_; }

namespace runtime {

constexpr const char* late_event = "an event would be of the capture, not of a replay";

Event::Event(Device device) : device_(device) {
  if (!device.is_host()) {
    check_no_capture(late_event);
    mark_ = runtime::of(device.type).create_mark(device.index, true);
  }
  record();
}
Event::~Event() {
  if (mark_) runtime::of(device_.type).destroy_mark(mark_);
}
void Event::record() {
  if (!mark_) return void(nanoseconds_ = now());
  check_no_capture(late_event);
  runtime::of(device_.type).record(mark_, Stream::current(device_).handle, device_.index);
}
bool Event::has_passed() const {
  return !mark_ || runtime::of(device_.type).has_passed(mark_, device_.index);
}
void Event::synchronize() const {
  if (!mark_) return;
  count_synchronization();
  runtime::of(device_.type).wait_for(mark_, device_.index);
}
double Event::milliseconds_until(const Event& later) const {
  check(device_ == later.device_, "one event is on {}, the other on {}", device_, later.device_);
  if (!mark_) return double(later.nanoseconds_ - nanoseconds_) * 1e-6;
  later.synchronize();
  return runtime::of(device_.type).milliseconds_between(mark_, later.mark_, device_.index);
}

}  // namespace runtime
}  // namespace mixtape
