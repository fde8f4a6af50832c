// Captures and replays.
#include "core/graph.h"

#include <atomic>
#include <exception>
#include <utility>

#include "core/allocator.h"
#include "core/capture.h"
#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "core/scope.h"

namespace mixtape {
namespace internal {
namespace {

constexpr size_t room = size_t{1} << 15;  // bytes for numbers, and for values to check

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

Device check_queues(Device device) {
  check(!device.is_host() && !device.is_meta(),
        "{} runs its work at once and queues none that a graph could repeat", device);
  return device;
}

}  // namespace

void check_no_capture(const char* reason) {
  check(!capture(), "impossible during a capture: {}", reason);
}

void GraphMembers::add(const std::shared_ptr<GraphMembers>& graph, Storage& storage,
                       bool is_outside) {
  static std::mutex mutex;  // several threads may capture
  const std::lock_guard lock(graph->mutex);
  if (!graph->all.emplace(&storage, is_outside).second) return;
  const std::lock_guard lock_of_lists(mutex);
  storage.member_ = new GraphMember{graph, storage.member_};
}
void GraphMembers::remove(Storage& storage) noexcept {
  GraphMember* member = storage.member_;
  for (; member; delete std::exchange(member, member->next)) {
    const std::lock_guard lock(member->graph->mutex);
    const auto entry = member->graph->all.find(&storage);
    if (entry == member->graph->all.end()) continue;  // its graph was destroyed
    member->graph->lost |= entry->second;
    member->graph->all.erase(entry);
  }
}

GraphState::GraphState(Device on) : device(check_queues(on)), id(next_id()), stream_(on) {}

GraphState::~GraphState() { forget(); }

void GraphState::begin() {
  check(!capture(), "a capture inside another");
  check(!is_captured(), "this graph was captured before: make another");
  members_ = std::make_shared<GraphMembers>();
  found_ = std::make_unique<Storage>(room, device);
  on_device_ = std::make_unique<Storage>(room, device);  // made last, since forget() tests for it
  hold_cache(device, stream_.stream().number);
  stream_.begin();
  try {
    runtime::of(device.type).begin_capture(stream_.stream().handle, device.index);
  } catch (...) {
    stream_.end();
    forget();
    throw;
  }
  captured_graph = this;
  generator_ = &generator();
  generator_->begin_capture(static_cast<const uint64_t*>(
      number(2 * sizeof(uint64_t), [this](void* position) { draw(position); })));
}

void GraphState::end(bool complete) noexcept {
  captured_graph = nullptr;
  drawn_ = std::exchange(generator_, nullptr)->end_capture();
  stream_.end();
  try {
    work_ = runtime::of(device.type).end_capture(stream_.stream().handle, device.index);
    failure_ = complete ? "" : "its capture was left by an exception";
  } catch (const Error& e) {
    failure_ = e.what();
  }
  if (!failure_.empty()) forget();
}

// (The work has run, or is queued on the one stream that may reuse the memory.)
void GraphState::forget() noexcept {
  if (work_) runtime::of(device.type).destroy(std::exchange(work_, nullptr));
  numbers_.clear();
  values_.clear();
  kept_.clear();
  checks_.clear();
  if (members_) {
    const std::lock_guard lock(members_->mutex);
    members_->all.clear();
  }
  if (!on_device_) return;
  on_device_.reset();
  found_.reset();
  let_cache_go(device, stream_.stream().number, home());
}

void GraphState::use(Storage& s) {
  const int mine = stream_.stream().number;
  const bool is_outside = s.stream_ != mine;
  if (is_outside && s.last_.load() != stream_.home().number) s.hand_over_to(stream_.home(), false);
  GraphMembers::add(members_, s, is_outside);
}

const void* GraphState::number(size_t bytes, std::function<void(void*)> write) {
  const size_t at = values_.size();
  check(at + bytes <= room, "a graph has room for {} bytes of numbers that change", room);
  values_.resize(at + round_up(bytes, size_t{8}));
  numbers_.push_back({at, std::move(write)});
  return static_cast<const std::byte*>(on_device_->data()) + at;
}

void GraphState::check_values(const void* from, size_t bytes, ValueCheck check_of) {
  if (checks_.empty() || checks_.back()->bytes + bytes > Readback::most) {
    check((checks_.size() + 1) * Readback::most <= room, "a graph has room for {} bytes to check",
          room);
    checks_.push_back(std::make_shared<Checks>());
  }
  Checks& checks = *checks_.back();
  std::byte* const place = static_cast<std::byte*>(found_->data()) +
                           (checks_.size() - 1) * Readback::most + checks.bytes;
  runtime::of(device.type).copy(place, from, bytes, stream_.stream().handle, device.index);
  check_of.at = std::exchange(checks.bytes, checks.bytes + round_up(bytes, size_t{8}));
  checks.all.push_back(std::move(check_of));
}

// Writes the position of the replaying thread's generator, which replays draw from.
void GraphState::draw(void* position) {
  if (drawn_ == 0) return;
  RandomGenerator& g = generator();
  static_cast<uint64_t*>(position)[0] = g.seed();
  static_cast<uint64_t*>(position)[1] = g.offset();
  g.set_offset(g.offset() + drawn_);
}

void GraphState::write_numbers() {
  for (const Number& n : numbers_) n.write(values_.data() + n.at);
  if (values_ == sent_) return;
  on_device_->touch();
  copy_bytes(on_device_->data(), device, values_.data(), Device::cpu(), values_.size());
  sent_ = values_;
}

void GraphState::replay() {
  check(!capture(), "a replay during a capture");
  check(failure_.empty(), "there is no graph to replay: {}", failure_);
  check(is_captured(), "there is no graph to replay: nothing was captured");
  poll_checks();
  {
    const std::lock_guard lock(members_->mutex);
    check(!members_->lost, "a tensor from before the capture is gone, though the graph uses it");
    for (const auto& [storage, is_outside] : members_->all) {
      storage->begin_write();  // every storage may be written
      storage->touch();
    }
  }
  write_numbers();
  const Stream& mine = Stream::current(device);
  stream_.home().wait_for(mine);
  runtime::of(device.type).launch(work_, stream_.home().handle, device.index);
  mine.wait_for(stream_.home());
  for (size_t i = 0; i < checks_.size(); ++i)
    check_later(Readback(static_cast<std::byte*>(found_->data()) + i * Readback::most,
                         checks_[i]->bytes, device),
                {checks_[i], &checks_[i]->all});
}

}  // namespace internal

Graph::Graph(Device device)
    : state_([&] {
        const internal::Scope scope("Graph");
        return new internal::GraphState(device);
      }()) {}
Graph::~Graph() { delete state_; }
void Graph::replay() {
  const internal::Scope scope("replay");
  state_->replay();
}
Device Graph::device() const { return state_->device; }
bool Graph::is_captured() const { return state_->is_captured(); }

Capture::Capture(Graph& graph) : state_(*graph.state_), exceptions_(std::uncaught_exceptions()) {
  const internal::Scope scope("Capture");
  state_.begin();
}
Capture::~Capture() { state_.end(std::uncaught_exceptions() == exceptions_); }

}  // namespace mixtape
