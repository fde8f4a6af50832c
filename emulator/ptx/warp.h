#pragma once
// The state of a running warp, and its interface for ops.

#include <cmath>
#include <cstdlib>
#include <deque>

#include "emulator/ptx/block.h"

namespace mixtape::ptx {

// mapa puts the rank of a block, plus 1, into these bits of an address.
constexpr int rank_bits = 24;
constexpr uint64_t shared_window = uint64_t{1} << 56, local_window = uint64_t{1} << 57,
                   param_window = uint64_t{1} << 58, window_size = uint64_t{1} << 32;

struct Copy {  // a cp.async in flight
  char* to;
  char from[16];
  int group;
};

// AsyncRead: by copy engine or tensor cores, which see plain writes only after a fence.
enum class Access : uint8_t { Read, Write, Atomic, AsyncRead };

// A box that is being stored. Its bytes must stay as they are until they are read, when a wait says
// so, which is as late as possible.
struct Store {
  Box box;
  int lane, group;
  bool is_awaited = false, is_read = false;
  std::vector<char> contents = {};
};

// Sums of wgmma that are under way; their registers hold tags, which are NaN.
struct Sums {
  uint32_t id;
  int columns;
  std::vector<Slot> slots = {};
  std::vector<float> values = {};  // 16 rows
  int steps = 0;                   // not yet added
};
struct Product {
  uint64_t a, b;  // descriptors; a: 0 if in registers
  uint32_t sums;
  const Code* code;
  bool add;
  int group;
  size_t number;  // among those of the warp
  bool is_awaited = false, is_made = false;
  std::vector<char> operands = {};  // their bytes, which must not change
};

class Warp {
 public:
  enum class Stop { Done, Barrier, Yield };

  void start(Block& block, int number, uint32_t live);
  Stop run();  // up to its end, a barrier of the block, or a pause

  template <class T>
  T* at(Slot s) {
    return reinterpret_cast<T*>(s >= 0 ? registers_.get() + s : constants_ + ~s);
  }
  uint32_t& predicate(Slot s) { return *at<uint32_t>(s); }
  const Slot* list(const Code& c) const { return block->kernel->lists.data() + c.list; }

  // Translates the lanes' addresses, for accesses of `bytes`, to host pointers.
  void locate(const Code& c, Slot address, int bytes, uint32_t mask, char* (&to)[lanes]);
  [[noreturn]] void fault(int lane, const std::string& what);

  // Addresses of instructions with Form::operands, of which `s` are the slots.
  uint64_t address(const Slot* s, int lane);
  uint32_t shared_address(const Slot* s, int bytes, int alignment, int lane);
  char* generic(uint64_t address, int bytes, int alignment, int lane);
  // The block of an address of .shared::cluster, and where it is in its shared memory.
  struct Place {
    Block& block;
    uint32_t at;
  };
  Place cluster_address(const Slot* s, int bytes, int alignment, int lane);
  Block& peer(uint32_t rank, int lane);  // which has not ended

  // For ops with Flow::Pause or Together: other warps run before the next instruction, or this one
  // again.
  void pause(bool again = false) { pause_ = again ? Pause::Again : Pause::After; }
  // For the report if nothing moves any more.
  void wait_for(int lane, uint32_t barrier, uint64_t phase) {
    waits_ = {pc_, lane, barrier, phase};
  }
  std::string waiting() const;
  [[noreturn]] void stuck(const std::string& everyone);

  // Reports races: accesses of these bytes by another block, or by a warp without a barrier since.
  // same: the write changes no value.
  void touch(int lane, const char* at, int bytes, Access access, bool same = false) {
    if (watch_races) note(lane, at, bytes, access, same);
  }
  // Tells `to` what this warp knows to have happened; learns what others told.
  void release(Clock& to);
  void acquire(const Clock& from);
  void fence();  // shows what happened to copy engine and tensor cores
  int number() const { return number_; }
  int actor() const { return block->first_actor + number_; }
  uint32_t live() const { return live_; }
  Clock& clock() { return block->clocks[size_t(number_)]; }
  bool knows(int actor_then, uint32_t done) const {
    return !watch_races || actor_then == block->first_actor + number_ ||
           block->clocks[size_t(number_)].seen[size_t(actor_then)] >= done;
  }
  std::span<uint32_t> registers() {  // as words
    return {at<uint32_t>(0), size_t(block->kernel->register_bytes) / 4};
  }

  Block* block = nullptr;
  std::array<std::vector<Copy>, lanes> copies;
  std::array<int, lanes> group;  // the open cp.async group

 private:
  struct Group {  // lanes at the same instruction
    int32_t pc;
    uint32_t mask;
    bool waits, paused;
  };
  enum class Pause : uint8_t { None, After, Again };
  struct Waits {
    int32_t pc;
    int lane;
    uint32_t barrier;  // or all ones, for registers
    uint64_t phase;
  };
  bool pick();
  uint32_t converge(const Code& c, uint32_t mask);
  bool execute(const Code& c, uint32_t mask);
  void branch_indirect(const Code& c, uint32_t mask);
  void split(int32_t pc, uint32_t mask, bool waits = false, bool paused = false) {
    groups_.push_back({pc, mask, waits, paused});
  }
  void leave(uint32_t mask);
  bool meet_at_gate(const Code& c, uint32_t mask);
  bool go_on(uint32_t mask);
  void note(int lane, const char* at, int bytes, Access access, bool same);
  char* resolve(Space space, uint64_t address, int bytes, int lane);

  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> registers_;
  char* constants_ = nullptr;  // read-only
  std::vector<char> local_;
  std::vector<Group> groups_;
  size_t room_ = 0;
  uint32_t live_ = 0, active_ = 0;
  int32_t pc_ = 0, next_pc_ = 0;
  int number_ = 0;
  bool at_barrier_ = false;
  Pause pause_ = Pause::None;
  Waits waits_ = {};

 public:
  // Boxes that are stored, products that are made, and the group of each that is open.
  std::vector<Store> stores;
  std::array<int, lanes> store_group;  // the open group
  std::vector<Sums> sums;
  std::deque<Product> products;
  int product_group = 0;  // the open group
  size_t products_begun = 0;
  bool sums_fenced = false;

  uint32_t gate = 0, gate_needed = 0;  // of the last bar.sync
  uint32_t at_cluster = 0;             // lanes between arrival and wait at the cluster's barrier
  uint64_t cluster_phase = 0;          // of that arrival
};

// d[l] = f(l) for the lanes of the mask. (d may be an operand of f.)
template <class D, class F>
inline void each(uint32_t mask, D* d, F f) {
  if (mask == ~0u) {
#pragma GCC ivdep
    for (int l = 0; l < lanes; ++l) d[l] = f(l);
  } else {
#pragma GCC ivdep
    for (int l = 0; l < lanes; ++l) d[l] = mask >> l & 1 ? f(l) : d[l];
  }
}
template <class F>
inline void each_bit(uint32_t mask, F f) {
  for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}
inline float flush(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.f, x) : x; }
inline uint16_t to_bf16_bits(float x) {
  uint32_t u = 0;
  std::memcpy(&u, &x, 4);
  return x != x ? uint16_t(0x7fff) : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline void need_all(Warp& w, uint32_t mask) {
  if (mask != ~0u) w.fault(__builtin_ctz(mask), "needs all lanes of a warp");
}
inline void set_bits(uint32_t& d, uint32_t mask, uint32_t bits) { d = (d & ~mask) | (bits & mask); }

}  // namespace mixtape::ptx
