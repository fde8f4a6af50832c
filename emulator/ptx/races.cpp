// Races: accesses of a byte of which neither happened before the other.
#include <algorithm>
#include <unordered_map>

#include "emulator/ptx/warp.h"

namespace mixtape::ptx {
namespace {

// The last accesses of a byte. (One of several readers.)
struct Touched {
  uint64_t writer = 0, reader = 0;
};
// In one word: the launch, its block, what the actor had done before, the actor, a bit for atomics.
uint64_t who(const Block& b, uint64_t done, int actor, bool is_atomic) {
  return (b.launch & 0x3ffff) << 46 | (b.number & 0xfffff) << 26 | (done & 0x3ffff) << 8 |
         uint64_t(actor) << 1 | uint64_t(is_atomic);
}
int actor_of(uint64_t w) { return int(w >> 1 & 127); }
uint64_t done_of(uint64_t w) { return w >> 8 & 0x3ffff; }

bool unordered(uint64_t a, uint64_t me, const Clock& now, bool is_shared) {
  if (a >> 46 != me >> 46 || (a & me & 1)) return false;
  if (a >> 26 != me >> 26) return !is_shared;  // (clusters have shared memory one after the other)
  if (actor_of(a) == Clock::in_flight) return true;
  return actor_of(a) != actor_of(me) && done_of(a) > now.seen[size_t(actor_of(a))];
}
Touched& touched(const char* at) {
  static std::unordered_map<uint64_t, std::unique_ptr<Touched[]>> pages;
  static uint64_t recent = 0;
  static Touched* there = nullptr;
  const auto address = reinterpret_cast<uint64_t>(at);
  if (address >> 12 != recent) {
    auto& page = pages[recent = address >> 12];
    if (!page) page = std::make_unique<Touched[]>(4096);
    there = page.get();
  }
  return there[address & 4095];
}
std::string describe(const Block& block, uint64_t w) {
  const int actor = actor_of(w), count = int(block.warps.size());
  if (actor == Clock::in_flight) return "a box that is under way";
  if (actor >= Clock::groups) return "wgmma";
  if (actor >= Clock::warps) return "a box";
  const auto number = (w >> 26 & 0xfffff) + uint64_t(actor / count);
  return "block " + std::to_string(number) + ", warp " + std::to_string(actor % count);
}

}  // namespace

const bool watch_races = std::getenv("MIXTAPE_PTX_RACES") != nullptr;

void Clock::join(const Clock& other) {
  for (size_t i = 0; i < actors; ++i) {
    seen[i] = std::max(seen[i], other.seen[i]);
    fenced[i] = std::max(fenced[i], other.fenced[i]);
  }
}
void Warp::release(Clock& to) {
  if (!watch_races) return;
  to.join(clock());
  ++clock().seen[size_t(actor())];
}
void Warp::acquire(const Clock& from) {
  if (watch_races) clock().join(from);
}
void Warp::fence() {
  if (!watch_races) return;
  clock().fenced = clock().seen;
  ++clock().seen[size_t(actor())];
}

void Warp::note(int lane, const char* at, int bytes, Access access, bool same) {
  if (at >= local_.data() && at < local_.data() + local_.size()) return;
  const Clock& now = clock();
  const uint64_t me = who(*block, now.seen[size_t(actor())], actor(), access == Access::Atomic);
  const bool is_shared = at >= block->cluster->begin && at < block->cluster->end;
  const std::string what = is_shared ? "shared memory" : "memory";
  for (int i = 0; i < bytes; ++i) {
    Touched& t = touched(at + i);
    if (!same && unordered(t.writer, me, now, is_shared))
      fault(lane, what + " that was written by " + describe(*block, t.writer));
    if (access == Access::AsyncRead && t.writer >> 26 == me >> 26 &&
        actor_of(t.writer) < Clock::warps &&
        done_of(t.writer) > now.fenced[size_t(actor_of(t.writer))])
      fault(lane, what + " that was written by " + describe(*block, t.writer) +
                      ", and no fence.proxy.async followed");
    if (access == Access::Read || access == Access::AsyncRead) {
      t.reader = me;
      continue;
    }
    if (!same && unordered(t.reader, me, now, is_shared))
      fault(lane, what + " that is read by " + describe(*block, t.reader));
    t.writer = me;
  }
}
void mark_in_flight(const Block& block, const char* at, int bytes) {
  for (int i = 0; i < bytes; ++i) touched(at + i).writer = who(block, 0, Clock::in_flight, false);
}
void mark_product(const Block& block, int group, size_t number, const char* at, int bytes) {
  for (int i = 0; i < bytes; ++i)
    touched(at + i).reader = who(block, number + 1, Clock::groups + group, false);
}
void mark_landed(const Block& block, const Barrier& b, const char* at, int bytes) {
  for (int i = 0; i < bytes; ++i)
    touched(at + i).writer = who(block, b.phase + 1, Clock::warps + b.number, false);
}

}  // namespace mixtape::ptx
