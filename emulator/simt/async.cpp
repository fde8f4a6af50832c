// Barriers that count, barriers of some threads, and those of a cluster.
#include "emulator/simt/async.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "emulator/simt/machine.h"
#include "emulator/simt/runtime.h"
#include "emulator/simt/tensor.h"

namespace mixtape::simt {

namespace {

constexpr int most_bytes = 1 << 20;
constexpr int barriers = 16;  // of a block, for some of its threads

}  // namespace

// --- for the machine ---

void Async::begin() {
  active_ = false;
  counters_.clear();
  boxes_.clear();
  groups_.clear();
  threads_.clear();
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
  some_.assign(size_t(barriers * m_.blocks()), {});
  cluster_ = {};
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

// Before a block ends, one of its threads must know that all sent by other blocks has arrived.
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
