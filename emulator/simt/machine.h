#pragma once
// The state of a cluster of blocks under emulation, which is mostly one block: its fibers, its
// shared memory and the accesses to it.

#include <array>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "core/asan.h"
#include "emulator/simt/async.h"
#include "emulator/simt/simt.h"

namespace mixtape::simt {

constexpr int warp_size = 32;

enum class State : uint8_t {
  Ready,
  AtWarp,
  AtBlock,
  AtPhase,
  AtSome,
  AtGroup,
  AtRegisters,
  AtCluster,
  Done
};

struct Copy {
  void* to;
  const void* from;
  size_t bytes, valid;
  int group;
};

struct Fiber {
  void* stack_pointer = nullptr;  // null before its thread begins
  int stack = 0;
  int rank = 0;  // of its block
  State state = State::Ready;
  SourceLocation where = {};  // the barrier at which it waits
  std::string barrier = {};   // its name, unless it is the block's or the warp's
  Index3 index = {}, block = {};
  std::vector<Copy> copies = {};  // cp.async in flight
  int group = 0;                  // the open cp.async group
#if MIXTAPE_ASAN
  void* fake_stack = nullptr;
#endif
};

struct Warp {
  uint32_t met = 0;  // the time of its last barrier
  int buffer = 0;
  alignas(16) unsigned char slot[2][warp_size][64];
  // The accesses of each lane since the last barrier, in order: for bank conflicts.
  struct Touched {
    uint32_t offset, bytes;
    Access access;
  };
  std::array<std::vector<Touched>, warp_size> touched = {};
  bool any_touched = false;
};

// The last accesses of a word of shared memory, or of a byte. Their times are the barriers of
// blocks and warps before them, which an OS thread counts through all blocks, so that none is
// cleared between blocks.
struct Shadow {
  struct Write {
    uint32_t time = 0;
    uint16_t thread = 0;
    bool pending = false;  // a cp.async to it is in flight
    bool split = false;    // the bytes of this word have shadows of their own
    bool operator==(const Write&) const = default;
  } write;
  // The time and the thread of the last read, and whether many warps read since the block's last
  // barrier, and many lanes since that of the thread's warp: one number, to be compared and stored
  // at once.
  struct Read {
    uint64_t bits = 0;

    Read() = default;
    Read(uint32_t time, int thread, bool many_warps, bool many_lanes)
        : bits(uint64_t{time} << 32 | uint64_t(thread) << 16 | uint64_t(many_warps) << 1 |
               uint64_t(many_lanes)) {}
    uint32_t time() const { return uint32_t(bits >> 32); }
    int thread() const { return uint16_t(bits >> 16); }
    bool many_warps() const { return (bits & 2) != 0; }
    bool many_lanes() const { return (bits & 1) != 0; }
    bool operator==(const Read&) const = default;
  } read;
  bool operator==(const Shadow&) const = default;
};

// A thread's place among all accesses: itself, its warp, the time, and those of the last barriers.
struct Vantage {
  int thread, warp;
  uint32_t now, block_met, warp_met;

  // True if no barrier separates this thread from an access of thread `other` at that time.
  bool unordered(int other, uint32_t at) const {
    return at >= block_met && other != thread && (other / warp_size != warp || at >= warp_met);
  }
  bool may_read(const Shadow& s) const {
    return !s.write.pending && !unordered(s.write.thread, s.write.time);
  }
  bool may_write(const Shadow& s) const {
    const Shadow::Read r = s.read;
    return may_read(s) &&
           (r.time() < block_met ||
            !(r.many_warps() || unordered(r.thread(), r.time()) ||
              (r.many_lanes() && r.thread() / warp_size == warp && r.time() >= warp_met)));
  }
  Shadow::Read read_after(Shadow::Read r) const {
    if (r.time() < block_met) return {now, thread, false, false};
    if (r.thread() / warp_size != warp) return {now, thread, true, r.many_lanes()};
    const bool others = r.many_lanes() || r.thread() != thread;
    return {now, thread, r.many_warps(), others && r.time() >= warp_met};
  }
};

// The shadow of shared memory: one for a word of four bytes, which most accesses take whole, and
// one for each of its bytes from the first access to a part of it until all four are alike again.
class ShadowMemory {
 public:
  static constexpr size_t word = 4;

  void begin(size_t bytes);
  void clear();
  const Shadow& of(size_t byte) const {
    const Shadow& all = words_[byte / word];
    return all.write.split ? bytes_[byte] : all;
  }
  // The shadows of these bytes, to be changed: of words where they suffice.
  std::span<Shadow> of(size_t begin, size_t bytes) {
    if ((begin | bytes) % word == 0 && (split_.empty() || join(begin, bytes)))
      return {&words_[begin / word], bytes / word};
    return split(begin, bytes);
  }

 private:
  std::span<Shadow> split(size_t begin, size_t bytes);
  bool join(size_t begin, size_t bytes);

  std::vector<Shadow> words_, bytes_;
  std::vector<size_t> split_;  // words since begin(); some have been joined again
};

// Reads of the same bytes that tell nothing new: since the block's last barrier many warps have
// read them, or many lanes of this warp since its own, so that a write by any thread would be a
// race.
class RepeatedReads {
 public:
  bool has(size_t begin, size_t bytes, const Vantage& by) const {
    const Entry& e = entry(begin);
    return e.begin == begin && e.bytes == bytes &&
           (e.block_met == by.block_met || (e.now == by.now && e.warp == by.warp));
  }
  void add(size_t begin, size_t bytes, const Vantage& by, bool of_block) {
    all_[begin / 16 % all_.size()] = {uint32_t(begin), by.now, of_block ? by.block_met : 0,
                                      uint16_t(bytes), uint16_t(by.warp)};
  }
  void clear() { all_.fill({}); }

 private:
  struct Entry {
    uint32_t begin = 0, now = 0, block_met = 0;
    uint16_t bytes = 0, warp = 0;
  };
  const Entry& entry(size_t begin) const { return all_[begin / 16 % all_.size()]; }
  std::array<Entry, 1024> all_ = {};
};

// The state of one OS thread for running clusters of blocks, reused from launch to launch. Threads
// are numbered through all blocks of the cluster, and so is shared memory: that of the block of
// rank r begins at base(r).
class Machine {
 public:
  ~Machine();
  static Machine& here();  // that of this OS thread, which runs a kernel

  // `block` is the cluster's first.
  void run_cluster(const Config& config, const Index3& block, void (*body)(const void*),
                   const void* context);

  // Suspends the fiber until something sets its state to Ready.
  void wait(State state, SourceLocation where);
  void wait(State state, SourceLocation where, std::string barrier) {
    fiber().barrier = std::move(barrier);
    wait(state, where);
  }
  void release(int thread) { fibers_[size_t(thread)].state = State::Ready; }
  Fiber& fiber() { return fibers_[size_t(current_)]; }
  const Fiber& fiber(int thread) const { return fibers_[size_t(thread)]; }
  Warp& warp() { return warps_[size_t(current_ / warp_size)]; }
  int current() const { return current_; }
  int threads() const { return threads_; }  // of a block
  int blocks() const { return int(config.cluster); }
  int all_threads() const { return threads_ * blocks(); }
  int rank_of(int thread) const { return fiber(thread).rank; }
  int rank() const { return blocks() == 1 ? 0 : fiber(current_).rank; }
  bool has_ended(int rank) const { return live_[size_t(rank)] == 0; }
  int live() const;  // threads of the cluster that have not ended
  int lanes(int warp) const { return std::min(warp_size, all_threads() - warp * warp_size); }

  Config config = {};
  Index3 block(int rank) const { return {first_.x + unsigned(rank), first_.y, first_.z}; }
  Async async{*this};

  unsigned char* shared() { return shared_begin_; }  // aligned as boxes need
  size_t base(int rank) const { return size_t(rank) * per_block_; }
  int block_of(size_t at) const { return int(at / per_block_); }  // the rank
  // "1024" or, in a cluster, "1024 of block (1, 0, 0)".
  std::string place(size_t at) const;
  // The offset of bytes in the block's shared memory; an Error if they are not in it.
  size_t offset(const void* at, size_t bytes) {
    const auto* const p = static_cast<const unsigned char*>(at);
    const unsigned char* const mine = shared() + base(rank());
    if (p < mine || p + bytes > mine + config.shared_bytes) [[unlikely]]
      out_of_bounds(p - mine, bytes);
    return size_t(p - shared());
  }
  size_t check_access(const void* at, size_t bytes, Access access);  // returns the offset
  void touch(const void* at, size_t bytes, Access access);           // and counts conflicts
  // Tells of the accesses to shared memory so far.
  void hand_over(Order& order) const;
  void mark_pending(const void* at, size_t bytes, bool pending);
  [[noreturn]] void fault(const std::string& what);
  // As fault() in a thread, but not thrown: for the scheduler.
  void fail(int thread, const std::string& what);
  std::string describe() const;  // where all threads wait

 private:
  struct Cancelled {};  // unwinds the fibers of a block in which another thread failed

  static void enter();
  void prepare();
  void* new_stack(int thread);
  void run_thread();
  int next_lane();
  void go_on(void** from, int thread);
  void leave(Fiber& f, int next);
  void schedule();
  void run_warp(int w);
  bool release_warp(int w);
  bool release_block(int rank);
  void end_blocks();
  std::string describe(int rank) const;
  void stuck();
  void flush_banks(Warp& w);
  Vantage vantage() const {
    const int w = current_ / warp_size;
    return {current_, w, now_, block_met_, warps_[size_t(w)].met};
  }
  void check_barriers(size_t begin, size_t bytes, Access access);
  [[noreturn]] void out_of_bounds(int64_t begin, size_t bytes);
  [[noreturn]] void refuse(size_t begin, const Shadow& s, Vantage from);

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  ShadowMemory shadow_;
  RepeatedReads repeated_;
  unsigned char* stacks_ = nullptr;
  unsigned char* shared_begin_ = nullptr;
  void (*body_)(const void*) = nullptr;
  const void* context_ = nullptr;
  void* main_ = nullptr;
  std::exception_ptr failure_;
  uint32_t now_ = 0;                    // barriers of blocks and warps so far
  uint32_t began_ = 0, block_met_ = 0;  // when the cluster began, and a block met last
  Index3 first_ = {};                   // block of the cluster
  size_t per_block_ = 0;                // bytes of shared memory, with a gap
  std::vector<int> live_ = {};          // threads of each block that have not ended
  std::vector<bool> ended_ = {};        // blocks of which that was looked at
  int threads_ = 0, current_ = 0, stacks_held_ = 0;
  struct {
    int first = 0, lanes = 0, order = 0, next = warp_size;
  } turn_;                  // of a warp: its lanes resume each other
  uint32_t warp_runs_ = 0;  // a counter that varies the order of lanes; differs between blocks
  bool cancelled_ = false;
#if MIXTAPE_ASAN
  void* main_fake_ = nullptr;
  const void* main_bottom_ = nullptr;
  size_t main_size_ = 0;
  bool from_main_ = false;
  void start_switch(void** fake_stack, int next);
  void finish_switch(void* fake_stack);
#endif
};

// That of this OS thread while it runs a kernel: a pointer is reached without the test that a
// thread_local with a constructor needs, and without a call.
[[gnu::tls_model("initial-exec")]] inline constinit thread_local Machine* running = nullptr;
inline Machine& Machine::here() { return *running; }

// The address of a byte of a box whose chunks of 16 bytes are swizzled among those of its row of
// 128.
constexpr size_t swizzled(size_t at) { return at ^ (at / 128 % 8 * 16); }

const float* halves();  // all 65536 numbers of f16

std::string text(const Index3& i);  // "(1, 0, 2)"
// "gemm.cuh:12"
std::string text(const SourceLocation& where);
inline bool same(const SourceLocation& a, const SourceLocation& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace mixtape::simt
