// The shadow of shared memory: who accessed each byte last, which finds races, copies that are on
// their way to it, and how accesses fall on its banks.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "emulator/simt/machine.h"

namespace mixtape::simt {
namespace {

std::atomic<int> counting_banks{0};
std::atomic<int64_t> bank_conflicts[2];  // by Access
std::atomic<int64_t> copies_so_far{0};

}  // namespace

void ShadowMemory::begin(size_t bytes) {
  const size_t words = (bytes + word - 1) / word;
  if (words > words_.size()) {
    words_.resize(words);
    bytes_.resize(words * word);
  }
  for (const size_t w : split_) words_[w].write.split = false;
  split_.clear();
}

void ShadowMemory::clear() {
  for (auto* const all : {&words_, &bytes_}) std::ranges::fill(*all, Shadow());
}

std::span<Shadow> ShadowMemory::split(size_t begin, size_t bytes) {
  for (size_t w = begin / word; w * word < begin + bytes; ++w) {
    if (words_[w].write.split) continue;
    std::fill_n(&bytes_[w * word], word, words_[w]);
    words_[w].write.split = true;
    split_.push_back(w);
  }
  return {&bytes_[begin], bytes};
}

// Joins the words whose bytes are alike; false if there are others.
bool ShadowMemory::join(size_t begin, size_t bytes) {
  bool all = true;
  for (size_t w = begin / word; w < (begin + bytes) / word; ++w) {
    if (!words_[w].write.split) continue;
    const Shadow* const part = &bytes_[w * word];
    if (std::all_of(part + 1, part + word, [&](const Shadow& s) { return s == *part; }))
      words_[w] = *part;
    else
      all = false;
  }
  return all;
}

void Machine::out_of_bounds(int64_t begin, size_t bytes) {
  fault(fmt::format("shared memory out of bounds: bytes {} to {} of {}", begin,
                    begin + int64_t(bytes), config.shared_bytes));
}

std::string Machine::place(size_t at) const {
  if (blocks() == 1) return fmt::format("{}", at);
  return fmt::format("{} of block {}", at % per_block_, text(block(block_of(at))));
}

inline size_t Machine::check_access(const void* at, size_t bytes, Access access) {
  const size_t begin = offset(at, bytes);
  const size_t at_least = bytes & (~bytes + 1);  // three words need the alignment of one
  if ((begin & (at_least - 1)) != 0) [[unlikely]]
    fault(fmt::format("misaligned: {} bytes of shared memory at {}", bytes, place(begin)));
  if (async.active())
    async.touch(begin, bytes, access);
  else
    check_barriers(begin, bytes, access);
  return begin;
}

inline void Machine::touch(const void* at, size_t bytes, Access access) {
  const size_t begin = size_t(static_cast<const unsigned char*>(at) - shared());
  if (access == Access::Write || async.active() || !repeated_.has(begin, bytes, vantage()))
    check_access(at, bytes, access);
  if (counting_banks.load(std::memory_order_relaxed) == 0) return;
  warp().touched[size_t(current_ % warp_size)].push_back(
      {uint32_t(begin), uint32_t(bytes), access});
  warp().any_touched = true;
}
void touch(const void* at, size_t bytes, Access access) { running->touch(at, bytes, access); }

// Checks an access where the block and its warps are all that meets, which is fast to check.
inline void Machine::check_barriers(size_t begin, size_t bytes, Access access) {
  const Vantage mine = vantage();
  if (access == Access::Write) {
    for (Shadow& s : shadow_.of(begin, bytes)) {
      if (!mine.may_write(s)) refuse(begin, s, mine);
      s.write.time = now_;
      s.write.thread = uint16_t(current_);
    }
    return;
  }
  Shadow::Read before, after = mine.read_after(before);  // neighbours are mostly alike
  bool many_warps = true, many = true;
  for (Shadow& s : shadow_.of(begin, bytes)) {
    if (!mine.may_read(s)) refuse(begin, s, mine);
    if (s.read != before) {
      before = s.read;
      after = mine.read_after(before);
    }
    s.read = after;
    many_warps &= after.many_warps();
    many &= after.many_warps() || after.many_lanes();
  }
  if (many) repeated_.add(begin, bytes, mine, many_warps);
}

void Machine::refuse(size_t begin, const Shadow& s, Vantage from) {
  if (s.write.pending)
    fault(fmt::format("shared memory at {} is touched before its cp.async was waited for", begin));
  const bool written = from.unordered(s.write.thread, s.write.time);
  fault(fmt::format("race: shared memory at {} was {} by thread {} with no barrier since", begin,
                    written ? "written" : "read", written ? s.write.thread : s.read.thread()));
}

void Machine::hand_over(Order& order) const {
  for (size_t i = 0; i < config.cluster * per_block_; ++i) {
    const Shadow& s = shadow_.of(i);
    // (Accesses that a warp's barrier ordered count as known to all.)
    const auto open = [&](uint32_t at, int thread) {
      return at >= block_met_ && at >= warps_[size_t(thread / warp_size)].met;
    };
    if (s.write.time >= began_)
      order.add_write(i, s.write.thread, !open(s.write.time, s.write.thread));
    if (open(s.read.time(), s.read.thread())) order.add_read(i, s.read.thread());
    if (s.write.pending) order.set_landing(i, 1, true);
  }
}

void Machine::mark_pending(const void* at, size_t bytes, bool pending) {
  const size_t begin = size_t(static_cast<const unsigned char*>(at) - shared());
  for (Shadow& s : shadow_.of(begin, bytes)) s.write.pending = pending;
  if (async.active()) async.order.set_landing(begin, bytes, pending);
}

// --- cp.async ---

// The target is poisoned at once and filled by the matching wait, so that a missing wait shows.
void cp_async(void* to, const void* from, size_t bytes, size_t valid) {
  check_aligned(from, bytes);
  copies_so_far.fetch_add(1, std::memory_order_relaxed);
  Machine::here().touch(to, bytes, Access::Write);
  std::memset(to, 0xff, bytes);
  Machine::here().mark_pending(to, bytes, true);
  Fiber& f = Machine::here().fiber();
  f.copies.push_back({to, from, bytes, valid, f.group});
}
int64_t cp_asyncs() { return copies_so_far; }
void cp_async_commit() { ++Machine::here().fiber().group; }
void cp_async_wait(int still_pending) {
  Fiber& f = Machine::here().fiber();
  std::erase_if(f.copies, [&](const Copy& c) {
    if (c.group >= f.group - still_pending) return false;
    Machine::here().mark_pending(c.to, c.bytes, false);
    std::memset(c.to, 0, c.bytes);
    std::memcpy(c.to, c.from, c.valid);
    Machine::here().check_access(c.to, c.bytes, Access::Write);
    return true;
  });
}

// --- banks ---

// The k-th accesses of all lanes since the last barrier count as one instruction. There are 32
// banks of 4 bytes; accesses of 16 bytes are served for 8 lanes at a time, those of 8 bytes for 16.
void Machine::flush_banks(Warp& w) {
  if (!std::exchange(w.any_touched, false)) return;
  size_t most = 0;
  for (const auto& list : w.touched) most = std::max(most, list.size());
  for (size_t k = 0; k < most; ++k) {
    std::array<std::vector<uint32_t>, 32> words;  // distinct ones, by bank
    size_t lanes_in_pass = 0;
    Access access = Access::Read;
    const auto end_pass = [&] {
      size_t deepest = 1;
      for (auto& bank : words) deepest = std::max(deepest, std::exchange(bank, {}).size());
      bank_conflicts[int(access)] += int64_t(deepest) - 1;
      lanes_in_pass = 0;
    };
    for (const auto& list : w.touched) {
      if (k >= list.size()) continue;
      const auto [offset, bytes, kind] = list[k];
      access = kind;
      for (uint32_t word = offset / 4; word <= (offset + bytes - 1) / 4; ++word) {
        auto& bank = words[word % 32];
        if (std::ranges::find(bank, word) == bank.end()) bank.push_back(word);
      }
      if (++lanes_in_pass == (bytes == 16 ? 8 : bytes == 8 ? 16 : 32)) end_pass();
    }
    if (lanes_in_pass) end_pass();
  }
  for (auto& list : w.touched) list.clear();
}

BankConflicts::BankConflicts() {
  if (counting_banks++ == 0) bank_conflicts[0] = bank_conflicts[1] = 0;
}
BankConflicts::~BankConflicts() { --counting_banks; }
int64_t BankConflicts::count(Access access) const { return bank_conflicts[int(access)]; }

}  // namespace mixtape::simt
