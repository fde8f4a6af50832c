#pragma once
// The state of a running warp, and its interface for ops.

#include <cmath>

#include "emulator/ptx/ptx.h"

namespace mixtape::ptx {

constexpr uint64_t shared_window = uint64_t{1} << 56, local_window = uint64_t{1} << 57,
                   param_window = uint64_t{1} << 58, window_size = uint64_t{1} << 32;

struct Copy {  // a cp.async in flight
  char* to;
  char from[16];
  int group;
};

enum class Access : uint8_t { Read, Write, Atomic };
extern const bool watch_races;

struct Block {
  const Kernel* kernel;
  const Grid* grid;
  const char* parameters;
  int device;
  std::array<uint32_t, 3> index;
  char* shared;
  uint32_t shared_bytes;
  Range recent[2] = {};                        // the ranges of the last global accesses
  uint64_t launch = 0, number = 0, epoch = 0;  // epoch: barriers so far
};

class Warp {
 public:
  enum class Stop { Done, Barrier };

  void start(Block& block, int number, uint32_t live);
  Stop run();  // up to its end or a barrier of the block

  template <class T>
  T* at(Slot s) {
    return reinterpret_cast<T*>(s >= 0 ? registers_.get() + s : constants_ + ~s);
  }
  uint32_t& predicate(Slot s) { return *at<uint32_t>(s); }
  const Slot* list(const Code& c) const { return block->kernel->lists.data() + c.list; }

  // Translates the lanes' addresses, for accesses of `bytes`, to host pointers.
  void locate(const Code& c, Slot address, int bytes, uint32_t mask, char* (&to)[lanes]);
  [[noreturn]] void fault(int lane, const std::string& what);

  // Reports races: accesses of these bytes by another block, or by a warp without a barrier since.
  // same: the write changes no value.
  void touch(int lane, const char* at, int bytes, Access access, bool same = false) {
    if (watch_races) note(lane, at, bytes, access, same);
  }

  Block* block = nullptr;
  std::array<std::vector<Copy>, lanes> copies;
  std::array<int, lanes> group;  // the open cp.async group

 private:
  struct Group {  // lanes at the same instruction
    int32_t pc;
    uint32_t mask;
    bool waits;
  };
  bool pick();
  uint32_t converge(const Code& c, uint32_t mask);
  bool execute(const Code& c, uint32_t mask);
  void branch_indirect(const Code& c, uint32_t mask);
  void split(int32_t pc, uint32_t mask, bool waits = false) {
    groups_.push_back({pc, mask, waits});
  }
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
inline void set_bits(uint32_t& d, uint32_t mask, uint32_t bits) { d = (d & ~mask) | (bits & mask); }

}  // namespace mixtape::ptx
