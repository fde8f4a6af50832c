#pragma once
// The state of a cluster of blocks under emulation, which is mostly one block: its fibers, its
// shared memory and the accesses to it.

#include <array>
#include <cstdint>
#include <exception>
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
  uint32_t epoch = 0;  // barriers of this warp so far
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

// The last accesses of a word of shared memory, or of a byte. Epochs never repeat on an OS thread,
// so nothing but `pending` is cleared between blocks.
struct Shadow {
  uint32_t written_at = 0, read_at = 0;      // block epoch
  uint32_t written_warp = 0, read_warp = 0;  // the warp's epoch then
  uint16_t writer = 0, reader = 0;
  bool many_warps = false, many_lanes = false;  // among readers in this epoch
  bool pending = false;                         // a cp.async to it is in flight
  bool operator==(const Shadow&) const = default;
};

// The shadow of shared memory: one for a word of four bytes, which most accesses take whole, and
// one for each of its bytes from the first access to a part of it until all four are alike again.
class ShadowMemory {
 public:
  static constexpr size_t word = 4;

  void begin(size_t bytes);
  const Shadow& of(size_t byte) const {
    return is_split_[byte / word] ? bytes_[byte] : words_[byte / word];
  }
  // Calls f for each shadow of these bytes.
  template <class F>
  void visit(size_t begin, size_t bytes, const F& f) {
    if ((begin | bytes) % word == 0) {
      for (size_t w = begin / word; w < (begin + bytes) / word; ++w)
        if (is_split_[w]) {
          for (size_t i = w * word; i < (w + 1) * word; ++i) f(bytes_[i]);
          join(w);
        } else {
          f(words_[w]);
        }
    } else {
      for (size_t i = begin; i < begin + bytes; ++i) {
        split(i / word);
        f(bytes_[i]);
      }
    }
  }
  void mark_pending(size_t begin, size_t bytes, bool pending);

 private:
  void split(size_t w);
  void join(size_t w);

  std::vector<Shadow> words_, bytes_;
  std::vector<uint8_t> is_split_;
  bool any_pending_ = false;
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
  void wait(State state, SourceLocation where, std::string barrier = {});
  void release(int thread) { fibers_[size_t(thread)].state = State::Ready; }
  Fiber& fiber() { return fibers_[size_t(current_)]; }
  const Fiber& fiber(int thread) const { return fibers_[size_t(thread)]; }
  Warp& warp() { return warps_[size_t(current_ / warp_size)]; }
  int current() const { return current_; }
  int threads() const { return threads_; }  // of a block
  int blocks() const { return int(config.cluster); }
  int all_threads() const { return threads_ * blocks(); }
  int rank_of(int thread) const { return fiber(thread).rank; }
  int rank() const { return fiber(current_).rank; }
  bool has_ended(int rank) const { return live_[size_t(rank)] == 0; }
  int live() const;  // threads of the cluster that have not ended
  int lanes(int warp) const { return std::min(warp_size, all_threads() - warp * warp_size); }

  Config config = {};
  Index3 block(int rank) const { return {first_.x + unsigned(rank), first_.y, first_.z}; }
  Async async{*this};

  unsigned char* shared() {  // aligned as boxes need
    return shared_.data() + (-reinterpret_cast<uintptr_t>(shared_.data()) & 1023);
  }
  size_t base(int rank) const { return size_t(rank) * per_block_; }
  int block_of(size_t at) const { return int(at / per_block_); }  // the rank
  // "1024" or, in a cluster, "1024 of block (1, 0, 0)".
  std::string place(size_t at) const;
  // The offset of bytes in the block's shared memory; an Error if they are not in it.
  size_t offset(const void* at, size_t bytes);
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
  void check_barriers(size_t begin, size_t bytes, Access access);
  bool unordered(int other, uint32_t at, uint32_t warp_at) const;

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  ShadowMemory shadow_;
  unsigned char* stacks_ = nullptr;
  void (*body_)(const void*) = nullptr;
  const void* context_ = nullptr;
  void* main_ = nullptr;
  std::exception_ptr failure_;
  uint32_t epoch_ = 1, first_epoch_ = 1;  // now, and when the block began
  Index3 first_ = {};                     // block of the cluster
  size_t per_block_ = 0;                  // bytes of shared memory, with a gap
  std::vector<int> live_ = {};            // threads of each block that have not ended
  std::vector<bool> ended_ = {};          // blocks of which that was looked at
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

// The address of a byte of a box whose chunks of 16 bytes are swizzled among those of its row of
// 128.
constexpr size_t swizzled(size_t at) { return at ^ (at / 128 % 8 * 16); }

std::string text(const Index3& i);  // "(1, 0, 2)"
// "gemm.cuh:12"
std::string text(const SourceLocation& where);
inline bool same(const SourceLocation& a, const SourceLocation& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

}  // namespace mixtape::simt
