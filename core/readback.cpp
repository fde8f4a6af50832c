// Pinned blocks, copies into them, and the pending checks of a thread.
#include "core/readback.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "core/capture.h"
#include "core/check.h"
#include "core/effects.h"
#include "core/pinned_blocks.h"
#include "core/scope.h"

namespace mixtape {
using namespace internal;
namespace {

PinnedBlocks& blocks(Device device) {
  struct Small : PinnedBlocks {
    Small() : PinnedBlocks(Readback::most, std::numeric_limits<size_t>::max()) {}
  };
  static auto* const all = new std::array<Small, device_slots>;
  return (*all)[device.slot()];
}

struct Waiting {
  Readback values;
  std::shared_ptr<const std::vector<ValueCheck>> checks;
};
thread_local constinit bool ended = false;  // true while destructors of statics run
struct Queue : std::vector<Waiting> {
  ~Queue() { ended = true; }
};
thread_local Queue waiting;

}  // namespace

std::optional<PinnedBlock> PinnedBlocks::take_given(Device device) {
  const runtime::Runtime& runtime = runtime::of(device.type);
  std::unique_lock lock(mutex_);
  const auto own = given_.find(Stream::current(device).number);
  auto from = given_.end();
  const auto passed = [&](auto& blocks) {
    return !blocks.empty() && runtime.has_passed(blocks.front().mark, device.index);
  };
  if (own != given_.end() && passed(own->second)) from = own;
  size_t returned = 0;
  for (auto i = given_.begin(); i != given_.end(); ++i) {
    returned += i->second.size();
    if (from == given_.end() && i != own && passed(i->second)) from = i;
  }
  const bool waits = from == given_.end();
  if (waits && returned < enough_) return {};
  if (waits)
    from = own != given_.end() && !own->second.empty()
               ? own
               : std::ranges::find_if(given_, [](auto& of) { return !of.second.empty(); });
  const PinnedBlock block = from->second.front();
  from->second.pop_front();
  lock.unlock();  // other threads need not wait
  if (waits) {
    count_synchronization();
    runtime.wait_for(block.mark, device.index);
  }
  return block;
}

PinnedBlock PinnedBlocks::take(Device device) {
  std::optional<PinnedBlock> block = take_given(device);
  if (!block) {
    const runtime::Runtime& runtime = runtime::of(device.type);
    runtime.select(device.index);  // else the allocation would open the thread's first device
    void* const data = runtime.allocate_pinned(size);
    check(data != nullptr, "out of pinned memory: {} bytes requested", size);
    block = {data, runtime.create_mark(device.index, false)};
  }
  block->stream = Stream::current(device).number;
  return *block;
}

void PinnedBlocks::give(const PinnedBlock& block) {
  const std::lock_guard lock(mutex_);
  given_[block.stream].push_back(block);
}

// (Delegates, so that the destructor runs even if this constructor throws.)
Readback::Readback(const void* from, size_t bytes, Device device) : Readback() {
  check(bytes <= most, "at most {} bytes can be read back, got {}", most, bytes);
  check_no_capture("nothing has run that the host could read: it can after a replay");
  device_ = device;
  if (device.is_host() || device.is_meta()) {
    block_.data = operator new(bytes);
    if (device.is_host())
      std::memcpy(block_.data, from, bytes);
    else
      std::memset(block_.data, 0, bytes);
    return;
  }
  block_ = blocks(device).take(device);
  const Stream& stream = Stream::current(device);
  const runtime::Runtime& runtime = runtime::of(device.type);
  runtime.copy(block_.data, from, bytes, stream.handle, device.index);
  runtime.record(block_.mark, stream.handle, device.index);
}
Readback::~Readback() {
  if (block_.mark)
    blocks(device_).give(block_);
  else
    operator delete(block_.data);
}
bool Readback::has_arrived() const {
  return !block_.mark || runtime::of(device_.type).has_passed(block_.mark, device_.index);
}
void Readback::wait() const {
  if (has_arrived()) return;
  count_synchronization();
  runtime::of(device_.type).wait_for(block_.mark, device_.index);
}

void check_later(const void* values, size_t bytes, Device device, Problem problem,
                 SourceLocation where, bool wait) {
  ++effects.reads;
  if (device.is_meta()) return;
  if (capture() && !wait && !device.is_host())
    return capture()->check_values(values, bytes, {0, std::move(problem), Scope::trail(), where});
  Readback copy(values, bytes, device);
  poll_checks();
  if (ended || wait) copy.wait();
  if (copy.has_arrived()) {
    const std::string what = problem(copy.as<void>());
    if (!what.empty()) raise(what, where);
    return;
  }
  internal::check_later(std::move(copy),
                        std::make_shared<std::vector<ValueCheck>>(
                            1, ValueCheck{0, std::move(problem), Scope::trail(), where}));
}

void internal::check_later(Readback values, std::shared_ptr<const std::vector<ValueCheck>> checks) {
  if (!ended) waiting.push_back({std::move(values), std::move(checks)});
}

void poll_checks(bool all) {
  while (!ended && !waiting.empty() && (all || waiting.front().values.has_arrived())) {
    const Waiting first = std::move(waiting.front());
    waiting.erase(waiting.begin());
    if (all) first.values.wait();
    for (const ValueCheck& c : *first.checks) {
      const std::string what = c.problem(first.values.as<std::byte>() + c.at);
      if (what.empty()) continue;
      waiting.clear();  // later failures follow from it, or will be found again
      throw Error(fmt::format("{}{}\n  at {}:{}, found when the device came to it", c.trail, what,
                              c.where.file, c.where.line));
    }
  }
}

}  // namespace mixtape
