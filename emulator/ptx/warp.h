#pragma once
// A warp while it runs, as ops see it.

#include <cmath>

#include "emulator/ptx/ptx.h"

namespace mixtape::ptx {

constexpr uint64_t shared_window = uint64_t{1} << 56, local_window = uint64_t{1} << 57,
                   param_window = uint64_t{1} << 58, window_size = uint64_t{1} << 32;

struct Copy {  // a cp.async that has not been waited for
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
  Range recent[2] = {};                        // where global accesses were
  uint64_t launch = 0, number = 0, epoch = 0;  // epoch: barriers so far
};

class Warp {
 public:
  enum class Stop { Done, Barrier };

  void start(Block& block, int number, uint32_t live);
  Stop run();  // until its end or a barrier of the block

  template <class T>
  T* at(Slot s) {
    return reinterpret_cast<T*>(s >= 0 ? registers_.get() + s : constants_ + ~s);
  }
  uint32_t& predicate(Slot s) { return *at<uint32_t>(s); }
  const Slot* list(const Code& c) const { return block->kernel->lists.data() + c.list; }

  // The lanes' addresses, of `bytes` each, as pointers of the host.
  void locate(const Code& c, Slot address, int bytes, uint32_t mask, char* (&to)[lanes]);
  [[noreturn]] void fault(int lane, const std::string& what);

  // Finds races: what another warp, not ordered by a barrier, or another block did to these bytes.
  // `same`: a write changes nothing.
  void touch(int lane, const char* at, int bytes, Access access, bool same = false) {
    if (watch_races) note(lane, at, bytes, access, same);
  }

  Block* block = nullptr;
  std::array<std::vector<Copy>, lanes> copies;
  std::array<int, lanes> group;  // of copies, being filled

 private:
  struct Group {  // lanes that are at the same place
    int32_t place;
    uint32_t mask;
    bool waits;
  };
  bool pick();
  uint32_t meet(const Code& c, uint32_t mask);
  void split(int32_t place, uint32_t mask, bool waits = false) {
    groups_.push_back({place, mask, waits});
  }
  void note(int lane, const char* at, int bytes, Access access, bool same);
  char* resolve(Space space, uint64_t address, int bytes, int lane);

  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> registers_;
  char* constants_ = nullptr;  // which nothing writes
  std::vector<char> local_;
  std::vector<Group> groups_;
  size_t room_ = 0;
  uint32_t live_ = 0, active_ = 0;
  int32_t place_ = 0, next_ = 0;
  int number_ = 0;
  bool at_barrier_ = false;
};

// d[l] = f(l) for the lanes of the mask. (d may be an operand of f: lane by lane.)
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
