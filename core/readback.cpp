// Slots of pinned memory that values arrive in, and the checks that wait for theirs.
#include "core/readback.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "core/check.h"
#include "core/op.h"

namespace mixtape {

struct Readback::Slot {
  explicit Slot(Device device) : device(device) {}

  const Device device;
  alignas(16) std::byte here[most];  // on the CPU
  void* pinned = nullptr;
  runtime::Mark mark = nullptr;

  // A slot is used again when what was asked for has arrived, even if nobody looked.
  static std::mutex mutex;
  static std::deque<Slot*>& free(Device device) {
    static auto* const all = new std::deque<Slot*>[runtime::max_devices + 1];
    return all[device.is_cpu() ? runtime::max_devices : device.index];
  }
  bool has_arrived() const { return !mark || runtime::has_passed(mark); }

  static Slot* take(Device device) {
    {
      const std::lock_guard lock(mutex);
      std::deque<Slot*>& slots = free(device);
      if (!slots.empty() && slots.front()->has_arrived()) {
        Slot* const slot = slots.front();
        slots.pop_front();
        return slot;
      }
    }
    auto slot = std::make_unique<Slot>(device);
    if (!device.is_cpu()) {
      runtime::select(device.index);  // or the thread's first device would be opened for it
      slot->pinned = runtime::allocate_pinned(most);
      check(slot->pinned != nullptr, "out of pinned memory: {} bytes requested", most);
      slot->mark = runtime::create_mark(device.index, false);
    }
    return slot.release();
  }
};
std::mutex Readback::Slot::mutex;

// (Once the constructor that it calls is done, the destructor runs even if this one throws.)
Readback::Readback(const void* from, size_t bytes, Device device) : Readback() {
  check(bytes <= most, "{} bytes to read back, at most {} are possible", bytes, most);
  slot_ = Slot::take(device);
  if (device.is_cpu()) {
    std::copy_n(static_cast<const std::byte*>(from), bytes, slot_->here);
    return;
  }
  const Stream& stream = Stream::current(device);
  runtime::copy(slot_->pinned, from, bytes, stream.handle, device.index);
  runtime::record(slot_->mark, stream.handle, device.index);
}
Readback::~Readback() {
  if (!slot_) return;
  const std::lock_guard lock(Slot::mutex);
  Slot::free(slot_->device).push_back(slot_);
}
bool Readback::has_arrived() const { return slot_->has_arrived(); }
void Readback::wait() const {
  if (has_arrived()) return;
  count_synchronization();
  runtime::wait_for(slot_->mark);
}
const void* Readback::bytes() const { return slot_->device.is_cpu() ? slot_->here : slot_->pinned; }

namespace {

struct Waiting {
  Readback values;
  std::function<std::string(const void*)> problem;
  std::string trail;  // the op and the module of the call
  Where where;
};
thread_local std::vector<Waiting> waiting;

}  // namespace

void check_later(Readback values, std::function<std::string(const void*)> problem, Where where) {
  poll_checks();
  if (values.has_arrived()) {
    const std::string what = problem(values.as<void>());
    if (!what.empty()) raise(what, where);
    return;
  }
  waiting.push_back({std::move(values), std::move(problem), Scope::trail(), where});
}

void poll_checks(bool all) {
  while (!waiting.empty() && (all || waiting.front().values.has_arrived())) {
    const Waiting first = std::move(waiting.front());
    waiting.erase(waiting.begin());
    if (all) first.values.wait();
    const std::string what = first.problem(first.values.as<void>());
    if (what.empty()) continue;
    waiting.clear();  // what came after follows from it, or will be found again
    throw Error(fmt::format("{}{}\n  at {}:{}, found when the device came to it", first.trail, what,
                            first.where.file, first.where.line));
  }
}

}  // namespace mixtape
