// Vector clocks and the last accesses of each byte of shared memory.
#include "emulator/simt/order.h"

#include <algorithm>
#include <cstring>

namespace mixtape::simt {

void Order::begin(int threads, size_t bytes) {
  threads_ = threads;
  knowledge_.assign(size_t(threads), Knowledge(size_t(threads), Known{1, 0}));
  time_.assign(size_t(threads), 2);
  cells_.assign(bytes, {});
  more_.clear();
}

void Order::add_write(size_t at, int thread, bool known) {
  cells_[at].writer = int16_t(thread);
  cells_[at].written = known ? 1 : 2;
}

void Order::add_read(size_t at, int thread) {
  cells_[at].reader[0] = int16_t(thread);
  cells_[at].read[0] = 2;
}

int Order::add_agent() {
  for (Knowledge& k : knowledge_) k.emplace_back();
  return int(knowledge_[0].size()) - 1;
}

const Order::Knowledge& Order::publish(int thread) {
  Knowledge& mine = knowledge_[size_t(thread)];
  mine[size_t(thread)].all = time_[size_t(thread)]++;
  return mine;
}

void Order::merge(Knowledge& into, const Knowledge& from) {
  if (into.size() < from.size()) into.resize(from.size());
  // The largest of each number. (As vectors, for builds that do not optimise.)
  using Four [[gnu::vector_size(16)]] = uint32_t;
  size_t i = 0;
  for (; i + 2 <= from.size(); i += 2) {
    Four a, b;
    std::memcpy(&a, &into[i], sizeof a);
    std::memcpy(&b, &from[i], sizeof b);
    const Four larger = Four(a > b);
    a = (a & larger) | (b & ~larger);
    std::memcpy(static_cast<void*>(&into[i]), &a, sizeof a);
  }
  for (; i < from.size(); ++i) {
    into[i].all = std::max(into[i].all, from[i].all);
    into[i].shown = std::max(into[i].shown, from[i].shown);
  }
}

void Order::learn(int thread, int agent, uint32_t time) {
  uint32_t& all = knowledge_[size_t(thread)][size_t(agent)].all;
  all = std::max(all, time);
}

void Order::meet(std::span<const int> threads) {
  common_.clear();
  for (const int t : threads) merge(common_, publish(t));
  for (const int t : threads) knowledge_[size_t(t)] = common_;
}

void Order::fence(int thread) {
  publish(thread);
  for (Known& k : knowledge_[size_t(thread)]) k.shown = k.all;
}

void Order::set_landing(size_t begin, size_t bytes, bool landing) {
  for (size_t i = begin; i < begin + bytes; ++i) cells_[i].landing = landing;
}

bool Order::Accesses::known(int agent, uint32_t time, Seen& last) const {
  if (agent == last.agent && time <= last.time) return true;
  for (const int t : starters_)
    if (!order_.knows(t, agent, time)) return false;
  return true;
}

bool Order::Accesses::shown(int agent, uint32_t time) {
  if (agent == shown_.agent && time <= shown_.time) return true;
  for (const int t : starters_)
    if (order_.knowledge_[size_t(t)][size_t(agent)].shown < time) return false;
  shown_ = {agent, time};
  return true;
}

// True if the starters know of all reads of a byte; otherwise sets the reader of one they do not.
bool Order::Accesses::all_read(size_t at, int& reader) {
  const Cell& cell = order_.cells_[at];
  for (int i = 0; i < 2; ++i) {
    reader = cell.reader[i];
    if (reader < 0) continue;
    if (!known(reader, cell.read[i], reader_)) return false;
    reader_ = {reader, cell.read[i]};
  }
  if (cell.more)
    for (const auto& [by, time] : order_.more_[at])
      if (reader = by; !known(by, time, reader_)) return false;
  return true;
}

// A read replaces earlier ones: a thread ordered after it is ordered after those, too.
void Order::Accesses::add_read(size_t at) {
  Cell& cell = order_.cells_[at];
  for (int i = 0; i < 2; ++i)
    if (cell.reader[i] == agent_) {
      cell.read[i] = time_;
      return;
    }
  for (int i = 0; i < 2; ++i)
    if (cell.reader[i] < 0 || known(cell.reader[i], cell.read[i], reader_)) {
      cell.reader[i] = int16_t(agent_);
      cell.read[i] = time_;
      return;
    }
  auto& others = order_.more_[at];
  cell.more = true;
  const auto mine = std::ranges::find(others, agent_, &std::pair<int, uint32_t>::first);
  if (mine == others.end())
    others.emplace_back(agent_, time_);
  else
    mine->second = time_;
}

std::optional<Order::Conflict> Order::Accesses::operator()(size_t begin, size_t bytes, bool write) {
  const bool beside = !order_.is_thread(agent_);
  for (size_t i = begin; i < begin + bytes; ++i) {
    Cell& cell = order_.cells_[i];
    if (last_ && !cell.more && !after_.more && std::memcmp(&cell, &before_, sizeof cell) == 0) {
      cell = after_;
      continue;
    }
    last_ = false;
    before_ = cell;
    const int writer = cell.writer;
    if (cell.landing) return Conflict{Conflict::Landing, writer, begin};
    if (writer >= 0) {
      if (!known(writer, cell.written, writer_)) return Conflict{Conflict::Written, writer, begin};
      writer_ = {writer, cell.written};
      if (beside && order_.is_thread(writer) && !shown(writer, cell.written))
        return Conflict{Conflict::NotShown, writer, begin};
    }
    if (write) {
      int reader = -1;
      if (!all_read(i, reader)) return Conflict{Conflict::Read, reader, begin};
      if (cell.more) order_.more_.erase(i);
      cell = {.written = time_, .writer = int16_t(agent_)};
    } else {
      add_read(i);
    }
    after_ = cell;
    last_ = true;
  }
  return {};
}

}  // namespace mixtape::simt
