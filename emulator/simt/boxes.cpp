// Boxes, which the copy engine moves between a tensor and shared memory, some turns after the
// start.
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "emulator/simt/async.h"
#include "emulator/simt/machine.h"
#include "emulator/simt/runtime.h"
#include "emulator/simt/tensor.h"

namespace mixtape::simt {

std::atomic<bool> BoxTiming::late_{std::getenv("MIXTAPE_LATE_BOXES") != nullptr};
std::atomic<uint32_t> BoxTiming::seed_{0};

namespace {

constexpr int row_bytes = 128;
std::atomic<int64_t> box_bytes{0};

}  // namespace

void check_map(const TensorMap& map) {
  const int bytes = map.element_bytes;
  mixtape::check(map.data && reinterpret_cast<uintptr_t>(map.data) % 16 == 0,
                 "a tensor map's data must be aligned to 16 bytes");
  mixtape::check(map.rows >= 1 && map.rows <= 256, "a tensor map's box has 1 to 256 rows, not {}",
                 map.rows);
  for (int d = 0; d < 4; ++d) {
    mixtape::check(map.size[d] >= 1 && map.size[d] <= int64_t{1} << 32,
                   "a tensor map's sizes are 1 to 2^32, not {}", map.size[d]);
    const int64_t stride = map.stride[d] * bytes;
    if (d == 0)
      mixtape::check(stride == bytes, "a tensor map's first stride is 1, not {}", map.stride[0]);
    else
      mixtape::check(stride > 0 && stride < int64_t{1} << 40 && stride % 16 == 0,
                     "a tensor map's strides are multiples of 16 bytes below 2^40, not {}", stride);
  }
}

size_t Async::check_box(const void* shared, const TensorMap& map, const std::string& who) const {
  const size_t bytes = size_t(map.rows) * row_bytes, at = m_.offset(shared, bytes);
  if (at % 1024 != 0)
    m_.fault(
        fmt::format("{}misaligned: a box at {} of shared memory, no multiple of 1024", who, at));
  keep_off_barriers(at, bytes);
  return at;
}

void Async::load_box(const void* to, const TensorMap& from, const void* b, const BoxPlace& place,
                     unsigned blocks, SourceLocation where) {
  const std::string who = fmt::format("load_box in {}: ", text(where));
  const size_t mine = check_box(to, from, who), bytes = size_t(from.rows) * row_bytes;
  if (blocks == 0) m_.fault(who + "names no block");
  box_bytes.fetch_add(int64_t(bytes), std::memory_order_relaxed);
  for (int rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    check_peer(rank, who);
    const size_t at = mine - m_.base(m_.rank()) + m_.base(rank);
    keep_off_barriers(at, bytes);
    const int i = find(b, rank), me = m_.current();
    Counter& c = counters_[size_t(i)];
    if (!c.shown)
      m_.fault(fmt::format("{}no fence_barrier_init has shown the barrier at {} to the copy engine",
                           who, m_.place(c.at)));
    check(Order::Accesses(order, {&me, 1}, c.agent, c.phase + 1)(at, bytes, true), who);
    c.box = where;
    order.set_landing(at, bytes, true);
    std::memset(m_.shared() + at, 0xff, bytes);
    start({from, place, at, i, me, 0, where});
  }
}
int64_t bytes_of_boxes() { return box_bytes; }

void Async::store_box(const TensorMap& to, const void* from, const BoxPlace& place,
                      SourceLocation where) {
  Thread& t = mine();
  const std::string who = fmt::format("store_box in {}: ", text(where));
  const size_t at = check_box(from, to, who);
  const int me = m_.current();
  if (t.store_agent < 0) t.store_agent = order.add_agent();
  t.store = where;
  ++t.stores;
  check(Order::Accesses(order, {&me, 1}, t.store_agent, uint32_t(t.committed_stores) + 1)(
            at, size_t(to.rows) * row_bytes, false),
        who);
  start({to, place, at, -1, me, t.committed_stores, where});
}

void Async::store_commit() {
  Thread& t = mine();
  ++t.committed_stores;
  t.stores = 0;
}

void Async::store_wait(int pending) {
  Thread& t = mine();
  if (t.stores > 0)
    m_.fault(fmt::format("store_wait with no store_commit for store_box in {}", text(t.store)));
  const int done = t.committed_stores - pending, me = m_.current();
  if (done <= t.awaited_stores) return;
  t.awaited_stores = done;
  for (size_t i = boxes_.size(); i-- > 0;)
    if (boxes_[i].counter < 0 && boxes_[i].thread == me && boxes_[i].group < done) land(i);
  order.learn(me, t.store_agent, uint32_t(done));
}

void Async::fence() {
  use();
  order.fence(m_.current());
}

// Lets the box move after 0 to 3 turns.
void Async::start(Box box) {
  box.turns = int(next_random() >> 30);
  boxes_.push_back(box);
  if (box.turns == 0 && !BoxTiming::late()) land(boxes_.size() - 1);
}

bool Async::take_turn() {
  if (boxes_.empty() || BoxTiming::late()) return false;
  for (size_t i = boxes_.size(); i-- > 0;)
    if (--boxes_[i].turns <= 0) land(i);
  return true;
}

bool Async::land_one() {
  if (boxes_.empty()) return false;
  land((next_random() >> 16) % boxes_.size());
  return true;
}

void Async::land(size_t i) {
  const Box box = boxes_[i];
  boxes_.erase(boxes_.begin() + ptrdiff_t(i));
  move(box);
  if (box.counter < 0) return;
  const size_t bytes = size_t(box.map.rows) * row_bytes;
  Counter& c = counters_[size_t(box.counter)];
  order.set_landing(box.shared, bytes, false);
  c.bytes -= int64_t(bytes);
  c.landed = c.phase + 1;
  if (c.bytes < 0 && c.awaited == 0)
    m_.fail(box.thread, fmt::format("load_box in {} brings {} bytes more than barrier_expect said",
                                    text(box.where), -c.bytes));
  settle(box.counter);
}

void Async::move(const Box& box) {
  const TensorMap& map = box.map;
  const auto& at = box.place.at;
  const size_t element = size_t(map.element_bytes);
  const auto inside = [&](int d, int64_t i) { return 0 <= i && i < map.size[d]; };
  for (int r = 0; r < map.rows; ++r) {
    const int64_t y = int64_t{at[1]} + r;
    const bool row_inside = inside(1, y) && inside(2, at[2]) && inside(3, at[3]);
    const int64_t row = y * map.stride[1] + at[2] * map.stride[2] + at[3] * map.stride[3];
    for (size_t e = 0; e < row_bytes / element; ++e) {
      const int64_t x = at[0] + int64_t(e);
      unsigned char* const shared =
          m_.shared() + swizzled(box.shared + size_t(r) * row_bytes + e * element);
      auto* const global =
          static_cast<unsigned char*>(const_cast<void*>(map.data)) + (row + x) * map.element_bytes;
      const bool valid = row_inside && inside(0, x);
      if (box.counter < 0) {
        if (valid) std::memcpy(global, shared, element);
        continue;
      }
      if (!valid) {
        std::memset(shared, 0, element);
      } else if (map.tf32) {
        float number;
        std::memcpy(&number, global, sizeof number);
        const uint32_t rounded = rounded_to_tf32(number);
        std::memcpy(shared, &rounded, sizeof rounded);
      } else {
        std::memcpy(shared, global, element);
      }
    }
  }
}

}  // namespace mixtape::simt
