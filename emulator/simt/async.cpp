// Barriers that count, boxes, barriers of some threads.
#include "emulator/simt/async.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "emulator/simt/machine.h"
#include "emulator/simt/runtime.h"
#include "emulator/simt/tensor.h"

namespace mixtape::simt {

std::atomic<bool> BoxTiming::late_{std::getenv("MIXTAPE_LATE_BOXES") != nullptr};
std::atomic<uint32_t> BoxTiming::seed_{0};

namespace {

constexpr int row_bytes = 128, most_bytes = 1 << 20;
constexpr int barriers = 16;  // of a block, for some of its threads
std::atomic<int64_t> box_bytes{0};

}  // namespace

// --- for the machine ---

void Async::begin() {
  active_ = false;
  counters_.clear();
  boxes_.clear();
  groups_.clear();
  threads_.clear();
  some_.assign(size_t(barriers * m_.blocks()), {});
  cluster_ = {};
  if (m_.blocks() > 1) use();
}

void Async::use() {
  if (active_) return;
  active_ = true;
  order.begin(m_.all_threads(), m_.base(m_.blocks()));
  m_.hand_over(order);
  threads_.resize(size_t(m_.all_threads()));
  groups_.resize(size_t(m_.all_threads() / group_threads));
  for (Group& g : groups_) {
    g.agent = order.add_agent();
    g.registers = std::min(65536 / m_.threads() / 8 * 8, 256);
  }
  free_registers_.assign(size_t(m_.blocks()), 0);
  sent_.assign(size_t(m_.blocks()), std::vector<Sent>(size_t(m_.all_threads())));
  random_ = (BoxTiming::seed() * 31 + m_.block(0).x) * 2654435761u + 1;
}

Async::Thread& Async::mine() {
  use();
  return threads_[size_t(m_.current())];
}

void Async::keep_off_barriers(size_t begin, size_t bytes) const {
  for (const Counter& c : counters_)
    if (begin < c.at + sizeof(Barrier) && c.at < begin + bytes)
      m_.fault(fmt::format("shared memory at {} is touched, which is a barrier", m_.place(c.at)));
}

void Async::touch(size_t begin, size_t bytes, Access access) {
  keep_off_barriers(begin, bytes);
  const int me = m_.current();
  check(Order::Accesses(order, {&me, 1}, me, order.time(me))(begin, bytes, access == Access::Write),
        "");
}

void Async::met(int first, int count) {
  if (!active_) return;
  std::vector<int> threads(static_cast<size_t>(count));
  std::iota(threads.begin(), threads.end(), first);
  order.meet(threads);
}

void Async::end_thread() {
  if (!active_) return;
  const Thread& t = mine();
  if (t.stores > 0 || t.awaited_stores < t.committed_stores)
    m_.fault(fmt::format("ends with no store_wait for store_box in {}", text(t.store)));
  const size_t g = size_t(m_.current() / group_threads);
  if (g < groups_.size() && !groups_[g].flights.empty())
    m_.fault(
        fmt::format("ends with no group_wait for multiply_group in {}", text(groups_[g].where)));
  if (t.at_cluster)
    m_.fault(fmt::format("ends with no cluster_wait for cluster_arrive in {}", text(t.arrived)));
}

void Async::left() { settle_cluster(); }

// All that others send to a block must have come before it ends: a thread of it knows that.
void Async::end_block(int rank) {
  if (!active_) return;
  const int first = rank * m_.threads();
  const auto known = [&](int agent, uint32_t time) {
    for (int t = first; t < first + m_.threads(); ++t)
      if (order.knows(t, agent, time)) return true;
    return false;
  };
  const std::string it = m_.blocks() == 1 ? "the block" : block_name(rank);
  for (const Counter& c : counters_)
    if (m_.block_of(c.at) == rank && !known(c.agent, c.landed))
      m_.fail(c.maker,
              fmt::format("{} ends with no barrier_wait for load_box in {}", it, text(c.box)));
  for (const Box& box : boxes_)
    if (m_.block_of(box.shared) == rank)
      m_.fail(box.thread,
              fmt::format("{} ends with no barrier_wait for load_box in {}", it, text(box.where)));
  for (int t = 0; t < m_.all_threads(); ++t)
    if (const Sent& sent = sent_[size_t(rank)][size_t(t)]; !known(t, sent.time))
      m_.fail(t, fmt::format("{} may have ended before the barrier_arrive in {}, for which nothing "
                             "there waits",
                             it, text(sent.where)));
}

std::pair<int, std::string> Async::what_never_comes() const {
  if (!active_) return {-1, "divergent barrier"};
  const auto find_thread = [&](State state, bool for_bytes) {
    for (int t = 0; t < m_.all_threads(); ++t)
      if (m_.fiber(t).state == state &&
          (!for_bytes || counters_[size_t(threads_[size_t(t)].counter)].bytes != 0))
        return t;
    return -1;
  };
  if (const int t = find_thread(State::AtPhase, true); t >= 0)
    return {t, "waits for a box that no thread sends"};
  if (const int t = find_thread(State::AtRegisters, false); t >= 0)
    return {t, "waits for registers that no thread gives back"};
  if (const int t = find_thread(State::AtGroup, false); t >= 0) return {t, "divergent group"};
  if (const int t = find_thread(State::AtPhase, false); t >= 0)
    return {t, "waits for an arrival that no thread makes"};
  if (const int t = find_thread(State::AtCluster, false); t >= 0)
    return {t, "waits for threads of the cluster that never come"};
  return {-1, "divergent barrier"};
}

std::string Async::awaits(int thread) const {
  if (m_.fiber(thread).state != State::AtPhase) return {};
  const Thread& t = threads_[size_t(thread)];
  const Counter& c = counters_[size_t(t.counter)];
  return fmt::format(" for parity {} of the barrier at {}, which lacks {} arrivals and {} bytes",
                     t.parity, m_.place(c.at), c.awaited, c.bytes);
}

std::string Async::what(int agent) const {
  for (const Counter& c : counters_)
    if (c.agent == agent) return "load_box in " + text(c.box);
  for (const Group& g : groups_)
    if (g.agent == agent) return "multiply_group in " + text(g.where);
  for (const Thread& t : threads_)
    if (t.store_agent == agent) return "store_box in " + text(t.store);
  if (m_.blocks() == 1) return fmt::format("thread {}", agent);
  return fmt::format("thread {} of {}", agent % m_.threads(), block_name(m_.rank_of(agent)));
}

std::string Async::block_name(int rank) const {
  const Index3 b = m_.block(rank);
  return fmt::format("block ({}, {}, {})", b.x, b.y, b.z);
}

void Async::check(const std::optional<Order::Conflict>& conflict, const std::string& who) const {
  if (!conflict) return;
  const auto& [kind, agent, at] = *conflict;
  const bool beside = !order.is_thread(agent);
  std::string why;
  switch (kind) {
    case Order::Conflict::Landing:
      why = beside ? fmt::format("is touched before {} has landed", what(agent))
                   : "is touched before its cp.async was waited for";
      break;
    case Order::Conflict::Written:
      why = beside ? fmt::format("is touched with no barrier_wait for {}", what(agent))
                   : fmt::format("was written by {} with no barrier since", what(agent));
      break;
    case Order::Conflict::Read:
      why = beside
                ? fmt::format("is overwritten while {} may read it: no wait, or no barrier since",
                              what(agent))
                : fmt::format("was read by {} with no barrier since", what(agent));
      break;
    case Order::Conflict::NotShown:
      why = fmt::format("was written by {} with no fence_async since", what(agent));
      break;
  }
  m_.fault(fmt::format("{}{}shared memory at {} {}", who,
                       kind == Order::Conflict::Landing ? "" : "race: ", m_.place(at), why));
}

// --- barriers that count ---

void Async::init(const void* b, int arrivals) {
  use();
  const size_t at = m_.offset(b, sizeof(Barrier));
  if (at % sizeof(Barrier) != 0) m_.fault(fmt::format("misaligned: a barrier at {}", at));
  if (arrivals < 1 || arrivals >= most_bytes)
    m_.fault(fmt::format("barrier_init with {} arrivals, not 1 to {}", arrivals, most_bytes - 1));
  touch(at, sizeof(Barrier), Access::Write);
  const int me = m_.current();
  Counter c{at, arrivals, arrivals};
  c.agent = order.add_agent();
  c.maker = me;
  c.made = order.time(me);
  counters_.push_back(c);
}

void Async::show_barriers() {
  use();
  for (Counter& c : counters_)
    if (c.maker == m_.current()) c.shown = true;
}

int Async::find(const void* b) { return find(b, m_.rank()); }

// The barrier at that place in the block of that rank.
int Async::find(const void* b, int rank) {
  use();
  const size_t at = m_.offset(b, sizeof(Barrier)) - m_.base(m_.rank()) + m_.base(rank);
  for (size_t i = 0; i < counters_.size(); ++i) {
    const Counter& c = counters_[i];
    if (c.at != at) continue;
    if (!order.knows(m_.current(), c.maker, c.made))
      m_.fault(fmt::format("the barrier at {} is used with no {} since its barrier_init",
                           m_.place(at), rank == m_.rank() ? "sync_block" : "cluster_wait"));
    return int(i);
  }
  m_.fault(fmt::format("no barrier_init for a barrier at {}", m_.place(at)));
}

void Async::check_peer(int rank, const std::string& who) const {
  if (rank < 0 || rank >= m_.blocks())
    m_.fault(fmt::format("{}names block {} of a cluster of {}", who, rank, m_.blocks()));
  if (m_.has_ended(rank))
    m_.fault(fmt::format("{}sends to {}, which has ended", who, block_name(rank)));
}

// Ends the phase if nothing is awaited.
void Async::settle(int counter) {
  Counter& c = counters_[size_t(counter)];
  if (c.awaited > 0 || c.bytes != 0) return;
  ++c.phase;
  c.awaited = c.arrivals;
  c.over = c.gathered;
  c.over.resize(std::max(c.over.size(), size_t(c.agent) + 1));
  c.over[size_t(c.agent)].all = c.phase;
  for (int t = 0; t < m_.all_threads(); ++t)
    if (m_.fiber(t).state == State::AtPhase && threads_[size_t(t)].counter == counter)
      m_.release(t);
}

void Async::arrive(const void* b) { arrive(find(b)); }

void Async::arrive(const void* b, int rank, SourceLocation where) {
  check_peer(rank, fmt::format("barrier_arrive in {}: ", text(where)));
  const int i = find(b, rank), me = m_.current();
  if (rank != m_.rank()) sent_[size_t(rank)][size_t(me)] = {order.time(me), where};
  arrive(i);
}

void Async::arrive(int i) {
  Counter& c = counters_[size_t(i)];
  if (c.awaited == 0)
    m_.fault(fmt::format("too many arrivals at the barrier at {}: this phase has had its {}",
                         m_.place(c.at), c.arrivals));
  --c.awaited;
  Order::merge(c.gathered, order.publish(m_.current()));
  settle(i);
}

void Async::expect(const void* b, int bytes) {
  if (bytes < 0 || bytes >= most_bytes)
    m_.fault(fmt::format("barrier_expect of {} bytes, not 0 to {}", bytes, most_bytes - 1));
  counters_[size_t(find(b))].bytes += bytes;
  arrive(b);
}

void Async::wait(const void* b, uint32_t parity, SourceLocation where) {
  const int i = find(b);
  if (parity > 1) m_.fault(fmt::format("barrier_wait for parity {}", parity));
  Thread& t = mine();
  t.counter = i;
  t.parity = parity;
  while ((counters_[size_t(i)].phase & 1) == parity) m_.wait(State::AtPhase, where, "barrier_wait");
  order.learn(m_.current(), counters_[size_t(i)].over);
}

// --- boxes ---

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

// --- barriers of some threads ---

void Async::sync_threads(int id, int count, SourceLocation where) {
  use();
  if (id < 1 || id > 15) m_.fault(fmt::format("sync_threads with id {}, not 1 to 15", id));
  if (count < 1 || count > m_.threads() || count % warp_size != 0)
    m_.fault(fmt::format("sync_threads of {} threads, no number of whole warps of the block's {}",
                         count, m_.threads()));
  Some& some = some_[size_t(m_.rank() * barriers + id)];
  if (!some.waiting.empty() && some.count != count)
    m_.fault(fmt::format("sync_threads({}, {}) in {} while {} threads wait there for {}", id, count,
                         text(where), some.waiting.size(), some.count));
  some.count = count;
  some.waiting.push_back(m_.current());
  if (int(some.waiting.size()) < count)
    return m_.wait(State::AtSome, where, fmt::format("sync_threads({}, {})", id, count));
  order.meet(some.waiting);
  for (const int t : some.waiting) m_.release(t);
  some.waiting.clear();
}

// --- the barrier of the cluster ---

void Async::cluster_arrive(SourceLocation where) {
  Thread& t = mine();
  if (t.at_cluster)
    m_.fault(fmt::format("cluster_arrive with no cluster_wait since that in {}", text(t.arrived)));
  t.at_cluster = true;
  t.arrived = where;
  t.cluster_phase = cluster_.phase;
  Order::merge(cluster_.gathered, order.publish(m_.current()));
  ++cluster_.arrived;
  settle_cluster();
}

// Ends the phase if all threads that have not ended are there.
void Async::settle_cluster() {
  if (cluster_.arrived == 0 || cluster_.arrived < m_.live()) return;
  cluster_.arrived = 0;
  ++cluster_.phase;
  cluster_.over = std::exchange(cluster_.gathered, {});
  for (int t = 0; t < m_.all_threads(); ++t)
    if (m_.fiber(t).state == State::AtCluster) m_.release(t);
}

void Async::cluster_wait(SourceLocation where) {
  Thread& t = mine();
  if (!t.at_cluster) m_.fault("cluster_wait with no cluster_arrive");
  while (t.cluster_phase == cluster_.phase) m_.wait(State::AtCluster, where, "cluster_wait");
  t.at_cluster = false;
  order.learn(m_.current(), cluster_.over);
}

// --- the functions of hopper.h ---

namespace {

Async& async() { return Machine::here().async; }

}  // namespace

void barrier_init(const void* b, int arrivals) { async().init(b, arrivals); }
void fence_barrier_init() { async().show_barriers(); }
void barrier_expect(const void* b, int bytes) { async().expect(b, bytes); }
void barrier_arrive(const void* b) { async().arrive(b); }
void barrier_arrive(const void* b, int rank, SourceLocation where) {
  async().arrive(b, rank, where);
}
void barrier_wait(const void* b, uint32_t parity, SourceLocation where) {
  async().wait(b, parity, where);
}
void load_box(const void* to, const TensorMap& from, const void* b, const BoxPlace& at,
              unsigned blocks, SourceLocation where) {
  async().load_box(to, from, b, at, blocks, where);
}
void store_box(const TensorMap& to, const void* from, const BoxPlace& at, SourceLocation where) {
  async().store_box(to, from, at, where);
}
void store_commit() { async().store_commit(); }
void store_wait(int pending) { async().store_wait(pending); }
void fence_async() { async().fence(); }
void sync_threads(int id, int count, SourceLocation where) {
  async().sync_threads(id, count, where);
}
int cluster_rank() { return Machine::here().rank(); }
void cluster_arrive(SourceLocation where) { async().cluster_arrive(where); }
void cluster_wait(SourceLocation where) { async().cluster_wait(where); }
void multiply_group(const Product& product, SourceLocation where) {
  async().multiply(product, where);
}
void group_fence() { async().group_fence(); }
void group_commit() { async().group_commit(); }
void group_wait(int pending, SourceLocation where) { async().group_wait(pending, where); }
void set_registers(int count, bool raise, SourceLocation where) {
  async().set_registers(count, raise, where);
}

}  // namespace mixtape::simt
