// The emulator's runtime: two devices in host memory. Work runs when it is queued or, with late
// streams, when it is waited for.
#include "emulator/simt/runtime.h"

#include "core/runtime.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "emulator/simt/simt.h"

namespace mixtape::simt {
namespace {

using Clock = std::chrono::steady_clock;

// A point in a stream.
struct Queued;
struct Point {
  Queued* stream = nullptr;
  std::atomic<bool> passed{false};
  std::atomic<int> asked{0};
  Clock::time_point when = {};
};

using Work = std::vector<std::function<void()>>;

// The queued work of a late stream. One lock guards all of them while they run. (Never destroyed:
// tensors may be older than any static, and outlive it.)
std::recursive_mutex& lock() {
  static auto* const all = new std::recursive_mutex;
  return *all;
}
struct Queued {
  std::deque<std::function<void()>> work;
  std::unique_ptr<Work> captured = nullptr;  // during a capture

  void do_next() {
    const auto next = std::move(work.front());
    work.pop_front();
    next();
  }
  void catch_up() {
    const std::lock_guard locked(lock());
    while (!work.empty()) do_next();
  }
};
std::deque<Queued>& streams() {
  static auto* const all = new std::deque<Queued>;
  return *all;
}
void catch_up_all() {
  const std::lock_guard locked(lock());
  for (Queued& stream : streams()) stream.catch_up();
}
void pass(Point& point) {
  const std::lock_guard locked(lock());
  while (!point.passed) point.stream->do_next();
}

}  // namespace

std::atomic<int> LateStreams::alive_{std::getenv("MIXTAPE_LATE") ? 1 : 0};
LateStreams::~LateStreams() noexcept(false) {
  if (--alive_ == 0) catch_up_all();
}

namespace {

struct FullMemory {
  std::set<const void*> loaded;
  int releases = 0;
};
std::unique_ptr<FullMemory> full;

}  // namespace

FullDevice::FullDevice() {
  const std::lock_guard locked(lock());
  full = std::make_unique<FullMemory>();
}
FullDevice::~FullDevice() {
  const std::lock_guard locked(lock());
  full.reset();
}
bool FullDevice::can_load(const void* kernel) {
  const std::lock_guard locked(lock());
  if (!full || full->loaded.contains(kernel)) return true;
  if (full->releases == 0) return false;
  full->loaded.insert(kernel);
  return true;
}

void in_stream(void* stream, std::function<void()> work) {
  if (!stream) return work();
  auto& queued = *static_cast<Queued*>(stream);
  if (queued.captured) {
    queued.captured->push_back(std::move(work));
  } else if (LateStreams::any()) {
    const std::lock_guard locked(lock());
    queued.work.push_back(std::move(work));
  } else {
    work();
  }
}

}  // namespace mixtape::simt

namespace mixtape::runtime {
namespace {

using simt::Point;
using simt::Queued;

void* host_memory(size_t bytes) noexcept {
  return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
}

// The devices' blocks of memory, by address.
struct Allocation {
  size_t bytes;
  int device;
};
std::map<const std::byte*, Allocation>& blocks() {
  static auto* const all = new std::map<const std::byte*, Allocation>;
  return *all;
}

using Marked = std::shared_ptr<Point>;  // null until recorded
Marked& marked(Mark mark) { return *static_cast<Marked*>(mark); }

// A device refuses these during a capture.
thread_local bool capturing = false;
[[noreturn]] void refuse(const char* what) {
  raise(std::string("the emulator: ") + what + " during a capture");
}
Queued* queue(Handle stream, const char* what) {
  auto* const queued = static_cast<Queued*>(stream);
  if (queued->captured) refuse(what);
  return queued;
}

class Emulated final : public Runtime {
 public:
  int device_count() const override { return 2; }
  std::string no_device_reason() const override { return {}; }
  // The second device is of capability 9.0, and so runs kernels that use gpu_hopper.cuh.
  const Properties& properties(int device) const override {
    static const char* const set = std::getenv("MIXTAPE_SIMT_PROCESSORS");
    static const Properties emulated{"the emulator", 8, 0, set ? std::atoi(set) : 2,
                                     int64_t{8} << 30},
        hopper = [] {
          Properties p = emulated;
          p.major = 9;
          return p;
        }();
    return device == 1 ? hopper : emulated;
  }
  void select(int) const override {}
  void* allocate(size_t bytes, int device) const override {
    if (bytes > size_t(properties(0).memory)) return nullptr;
    void* const block = host_memory(bytes);
    const std::lock_guard locked(simt::lock());
    blocks()[static_cast<std::byte*>(block)] = {bytes, device};
    return block;
  }
  void release(void* block, int) const noexcept override {
    simt::catch_up_all();
    const std::lock_guard locked(simt::lock());
    blocks().erase(static_cast<std::byte*>(block));
    if (simt::full) ++simt::full->releases;
    std::free(block);
  }
  void* allocate_pinned(size_t bytes) const noexcept override { return host_memory(bytes); }

  Handle create_stream(int) const override {
    const std::lock_guard locked(simt::lock());
    return &simt::streams().emplace_back();
  }
  void wait(Handle waiting, int, Handle other, int) const override {
    const auto point = std::make_shared<Point>();
    point->stream = queue(other, "waiting for a stream");
    queue(waiting, "a wait");
    simt::in_stream(other, [point] { point->passed = true; });
    simt::in_stream(waiting, [point] { simt::pass(*point); });
  }
  void synchronize(Handle stream, int) const override {
    queue(stream, "waiting for a stream")->catch_up();
  }
  void finish(int) const noexcept override { simt::catch_up_all(); }
  void copy(void* to, const void* from, size_t bytes, Handle stream, int) const override {
    simt::in_stream(stream, [=] { std::memcpy(to, from, bytes); });
  }

  Mark create_mark(int, bool) const override { return new Marked; }
  void destroy_mark(Mark mark) const noexcept override { delete &marked(mark); }
  void record(Mark mark, Handle stream, int) const override {
    const auto point = std::make_shared<Point>();
    point->stream = queue(stream, "an event");
    marked(mark) = point;
    simt::in_stream(stream, [point] {
      point->when = simt::Clock::now();
      point->passed = true;
    });
  }
  bool has_passed(Mark mark, int) const override {
    if (capturing) refuse("asking for an event");
    const Marked& point = marked(mark);
    // A device goes on while a program asks again and again.
    if (point && !point->passed && ++point->asked > 1000) simt::pass(*point);
    return !point || point->passed;
  }
  void wait_for(Mark mark, int) const override {
    if (marked(mark)) simt::pass(*marked(mark));
  }
  double milliseconds_between(Mark first, Mark second, int device) const override {
    wait_for(first, device);
    wait_for(second, device);
    return std::chrono::duration<double, std::milli>(marked(second)->when - marked(first)->when)
        .count();
  }

  void begin_capture(Handle stream, int) const override {
    static_cast<Queued*>(stream)->captured = std::make_unique<simt::Work>();
    capturing = true;
  }
  Captured end_capture(Handle stream, int) const override {
    capturing = false;
    return new std::shared_ptr<simt::Work>(std::move(static_cast<Queued*>(stream)->captured));
  }
  void launch(Captured work, Handle stream, int) const override {
    simt::in_stream(stream, [all = *static_cast<std::shared_ptr<simt::Work>*>(work)] {
      for (const auto& each : *all) each();
    });
  }
  void destroy(Captured work) const noexcept override {
    delete static_cast<std::shared_ptr<simt::Work>*>(work);
  }

  void begin_range(const char*) const override {}
  void end_range() const override {}
};

}  // namespace

const Runtime& cuda() {
  static const Emulated runtime;
  return runtime;
}

}  // namespace mixtape::runtime

int mixtape::simt::owner(const void* memory) {
  const std::lock_guard locked(lock());
  const auto* const at = static_cast<const std::byte*>(memory);
  auto after = runtime::blocks().upper_bound(at);
  if (after == runtime::blocks().begin()) return -1;
  const auto& [begin, block] = *--after;
  return at < begin + block.bytes ? block.device : -1;
}
