// The emulator of clusters of blocks: fibers, and barriers at which they wait for each other.
#include "emulator/simt/machine.h"

#include <fmt/format.h>

#include <errno.h>  // program_invocation_short_name
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/asan.h"
#include "core/check.h"
#include "emulator/simt/record.h"
#include "kernels/cpu/loops/parallel.h"

#if MIXTAPE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" const char __executable_start __attribute__((weak));  // by the linker of a program

// Saves the callee-saved registers, stores the stack pointer in *from, and resumes `to`.
extern "C" void mixtape_simt_switch(void** from, void* to);
asm(R"(
.text
.globl mixtape_simt_switch
.type mixtape_simt_switch,@function
mixtape_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mixtape_simt_switch, .-mixtape_simt_switch
)");

namespace mixtape::simt {
namespace {

// No multiple of a page, or the ends of all stacks would share a few lines of the caches.
constexpr size_t stack_bytes = (size_t{64} << 10) + 11 * 64;
constexpr int max_threads = 1024;
constexpr unsigned most_cluster = 8;  // that every device of capability 9.0 runs
// The least of all devices that run sm_80 code, that of 8.6 and 8.9, and that of 9.0.
constexpr size_t most_shared = size_t{99} << 10, most_shared_90 = size_t{227} << 10;

// The addresses of launched functions, relative to the program. With MIXTAPE_LAUNCHED=FOLDER in the
// environment they are written there at exit, for script/check_kernels.py.
class Launched {
 public:
  static Launched& all() {
    static Launched launched;
    return launched;
  }
  void add(const void* function) {
    const std::lock_guard lock(lock_);
    addresses_.insert(static_cast<const char*>(function) - &__executable_start);
  }
  ~Launched() {
    const char* const folder = std::getenv("MIXTAPE_LAUNCHED");
    if (!folder) return;
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    std::ofstream file(fmt::format("{}/{}-{}", folder, program_invocation_short_name, getpid()));
    for (const ptrdiff_t address : addresses_) file << std::hex << address << '\n';
  }

 private:
  std::mutex lock_;
  std::set<ptrdiff_t> addresses_;
};

thread_local Machine machine;

}  // namespace

std::string text(const Index3& i) { return fmt::format("({}, {}, {})", i.x, i.y, i.z); }
std::string text(const SourceLocation& w) {
  const std::string_view path = w.file;
  return fmt::format("{}:{}", path.substr(path.rfind('/') + 1), w.line);
}

Machine::~Machine() {
  if (stacks_) munmap(stacks_, stack_bytes * size_t(stacks_held_));
}

// The next ready lane of the warp whose turn it is, or -1.
inline int Machine::next_lane() {
  while (turn_.next < warp_size) {
    const int l = turn_.next++ ^ turn_.order;
    if (l < turn_.lanes && fibers_[size_t(turn_.first + l)].state == State::Ready)
      return turn_.first + l;
  }
  return -1;
}

void Machine::wait(State state, SourceLocation where) {
  Fiber& f = fiber();
  f.state = state;
  f.where = where;
  leave(f, next_lane());
  if (cancelled_) throw Cancelled();
}

void Machine::fault(const std::string& what) {
  raise(fmt::format("kernel {}, block {}, thread {}: {}", config.kernel, text(block(rank())),
                    text(fiber().index), what));
}

void Machine::fail(int thread, const std::string& what) {
  if (failure_) return;
  current_ = thread;
  try {
    fault(what);
  } catch (...) {
    failure_ = std::current_exception();
    cancelled_ = true;
  }
}

// The first function on a stack. A thread that ends leaves it to the next lane, if that has not
// begun, so that a kernel without barriers is a loop on one stack.
void Machine::enter() {
  Machine& m = *running;
#if MIXTAPE_ASAN
  m.finish_switch(nullptr);
#endif
  for (;;) {
    m.run_thread();
    Fiber& ended = m.fiber();
    const int next = m.next_lane();
    if (next < 0 || m.fiber(next).stack_pointer) {
      m.leave(ended, next);
      std::abort();  // a finished fiber is never resumed
    }
    m.current_ = next;
    m.fiber().stack = ended.stack;
  }
}

void Machine::run_thread() {
  try {
    if (!cancelled_) {
      body_(context_);
      if (async.active()) async.end_thread();
    }
  } catch (const Cancelled&) {
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
    cancelled_ = true;
  }
  fiber().state = State::Done;
  --live_[size_t(rank())];
  if (async.active()) async.left();
}

#if MIXTAPE_ASAN
void Machine::start_switch(void** fake_stack, int next) {
  if (next < 0) return __sanitizer_start_switch_fiber(fake_stack, main_bottom_, main_size_);
  const int stack = fiber(next).stack_pointer ? fiber(next).stack : next;
  __sanitizer_start_switch_fiber(fake_stack, stacks_ + size_t(stack) * stack_bytes, stack_bytes);
}
void Machine::finish_switch(void* fake_stack) {
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &size);
  if (!std::exchange(from_main_, false)) return;
  main_bottom_ = bottom;
  main_size_ = size;
}
#endif

// The top of a stack that is as if it had just been left, with enter() as its return address.
void* Machine::new_stack(int thread) {
  unsigned char* const end = stacks_ + size_t(thread + 1) * stack_bytes;
#if MIXTAPE_ASAN
  __asan_unpoison_memory_region(end - 4096, 4096);  // the frame of an enter() that never returned
#endif
  void** top = reinterpret_cast<void**>(end);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Machine::enter);
  for (int k = 0; k < 6; ++k) *--top = nullptr;
  return top;
}

// Saves the place of the running stack and goes on with a thread, on a stack of its own if it has
// not begun.
inline void Machine::go_on(void** from, int thread) {
  current_ = thread;
  Fiber& f = fibers_[size_t(thread)];
  if (!f.stack_pointer) {
    f.stack = thread;
    f.stack_pointer = new_stack(thread);
  }
  mixtape_simt_switch(from, f.stack_pointer);
}

// Goes on with that lane or, after the warp's last, with the scheduler.
void Machine::leave(Fiber& f, int next) {
#if MIXTAPE_ASAN
  start_switch(f.state == State::Done ? nullptr : &f.fake_stack, next);
#endif
  if (next < 0)
    mixtape_simt_switch(&f.stack_pointer, main_);
  else
    go_on(&f.stack_pointer, next);
#if MIXTAPE_ASAN
  finish_switch(f.fake_stack);
#endif
}

void Machine::prepare() {
  if (const int needed = std::max(all_threads(), max_threads); stacks_held_ < needed) {
    if (stacks_) munmap(stacks_, stack_bytes * size_t(stacks_held_));
    void* const stacks = mmap(nullptr, stack_bytes * size_t(needed), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    stacks_ = stacks == MAP_FAILED ? nullptr : static_cast<unsigned char*>(stacks);
    stacks_held_ = stacks_ ? needed : 0;
    check(stacks_, "no memory for {} stacks", needed);
  }
  Fiber* f = fibers_.data();
  for (int rank = 0; rank < blocks(); ++rank)
    for (unsigned z = 0; z < config.block.z; ++z)
      for (unsigned y = 0; y < config.block.y; ++y)
        for (unsigned x = 0; x < config.block.x; ++x, ++f) {
          f->stack_pointer = nullptr;
          f->rank = rank;
          f->state = State::Ready;
          f->index = {x, y, z};
          f->block = block(rank);
          f->group = 0;
        }
}

void Machine::run_cluster(const Config& c, const Index3& at, void (*body)(const void*),
                          const void* context) {
  config = c;
  first_ = at;
  body_ = body;
  context_ = context;
  threads_ = int(c.block.x * c.block.y * c.block.z);
  current_ = 0;
  live_.assign(c.cluster, threads_);
  ended_.assign(c.cluster, false);
  warp_runs_ = at.x + at.y + at.z;
  fibers_.resize(size_t(all_threads()));
  warps_.resize(size_t((all_threads() + warp_size - 1) / warp_size));
  per_block_ = (c.shared_bytes + 1024) / 1024 * 1024;
  const size_t bytes = c.cluster * per_block_;
  shared_.resize(std::max(shared_.size(), bytes + 1024));
  shared_begin_ = shared_.data() + (-reinterpret_cast<uintptr_t>(shared_.data()) & 1023);
  std::memset(shared(), 0xff, bytes);
  shadow_.begin(bytes);
  if (now_ >> 31) {
    now_ = 0;
    shadow_.clear();
    repeated_.clear();
    for (Warp& w : warps_) w.met = 0;
  }
  began_ = block_met_ = ++now_;
  cancelled_ = false;
  failure_ = nullptr;
  async.begin();
  prepare();
  schedule();
  for (Fiber& f : fibers_) {  // copies that no thread waited for
    for (const Copy& c : f.copies) mark_pending(c.to, c.bytes, false);
    f.copies.clear();
  }
  if (!async.active() && c.shared_bytes > most_shared)
    fail(0, fmt::format("{} bytes of shared memory, of at most {} before 9.0", c.shared_bytes,
                        most_shared));
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Resumes the ready lanes of a warp, in an order that differs each time, since kernels must not
// depend on it.
void Machine::run_warp(int w) {
  turn_ = {w * warp_size, lanes(w), int(warp_runs_++ * 2654435761u >> 27), 0};
  const int first = next_lane();
  if (first < 0) return;
#if MIXTAPE_ASAN
  from_main_ = true;
  start_switch(&main_fake_, first);
#endif
  go_on(&main_, first);
#if MIXTAPE_ASAN
  __sanitizer_finish_switch_fiber(main_fake_, nullptr, nullptr);
#endif
}

void Machine::schedule() {
  const auto ready = [&] {
    return std::ranges::any_of(fibers_, [](const Fiber& f) { return f.state == State::Ready; });
  };
  for (int round = 0; live() > 0; ++round) {
    const int count = int(warps_.size());
    for (int i = 0; i < count; ++i) {
      const int w = round % 2 == 0 ? i : count - 1 - i;
      do run_warp(w);
      while (!cancelled_ && release_warp(w));
    }
    if (!cancelled_) end_blocks();
    bool released = false;
    for (int rank = 0; rank < blocks() && !cancelled_; ++rank)
      released = release_block(rank) || released;
    if (!cancelled_ && live() > 0 && !released && !async.take_turn() && !ready() &&
        !async.land_one())
      stuck();
    if (cancelled_)  // resume the others, to unwind them
      for (Fiber& f : fibers_)
        if (f.state != State::Done) f.state = State::Ready;
  }
  for (Warp& w : warps_) flush_banks(w);
}

// Releases the lanes of a warp if all of them wait at the same barrier.
bool Machine::release_warp(int w) {
  Fiber* const first = &fibers_[size_t(w * warp_size)];
  const int n = lanes(w);
  for (int l = 0; l < n; ++l)
    if (first[l].state != State::AtWarp || !same(first[l].where, first[0].where)) return false;
  for (int l = 0; l < n; ++l) first[l].state = State::Ready;
  Warp& warp = warps_[size_t(w)];
  warp.met = ++now_;
  async.met(w * warp_size, n);
  flush_banks(warp);
  return true;
}

bool Machine::release_block(int rank) {
  const std::span all(fibers_.data() + rank * threads_, size_t(threads_));
  for (const Fiber& f : all)
    if (f.state != State::AtBlock || !same(f.where, all[0].where)) return false;
  for (Fiber& f : all) f.state = State::Ready;
  block_met_ = ++now_;
  async.met(rank * threads_, threads_);
  for (Warp& w : warps_) flush_banks(w);
  return true;
}

void Machine::end_blocks() {
  for (int rank = 0; rank < blocks(); ++rank)
    if (has_ended(rank) && !ended_[size_t(rank)]) {
      ended_[size_t(rank)] = true;
      async.end_block(rank);
    }
}

int Machine::live() const { return std::reduce(live_.begin(), live_.end()); }

// No thread can go on.
void Machine::stuck() {
  int last = 0;
  for (int t = 0; t < all_threads(); ++t)
    if (fibers_[size_t(t)].state != State::Done) last = t;
  const auto [thread, what] = async.what_never_comes();
  fail(thread < 0 ? last : thread, fmt::format("{}: {}", what, describe()));
}

static std::string name_of_barrier(const Fiber& f) {
  return f.state == State::AtWarp    ? "sync_warp"
         : f.state == State::AtBlock ? "sync_block"
                                     : f.barrier;
}

// "32 threads at sync_block in a.cuh:7, 96 have ended"
std::string Machine::describe() const {
  if (blocks() == 1) return describe(0);
  std::string all;
  for (int rank = 0; rank < blocks(); ++rank)
    all += fmt::format("{}block {}: {}", rank == 0 ? "" : "; ", text(block(rank)), describe(rank));
  return all;
}
std::string Machine::describe(int rank) const {
  std::vector<std::pair<std::string, int>> groups;
  for (int t = rank * threads_; t < (rank + 1) * threads_; ++t) {
    const Fiber& f = fiber(t);
    const std::string key =
        f.state == State::Done
            ? "have ended"
            : fmt::format("wait at {} in {}{}", name_of_barrier(f), text(f.where), async.awaits(t));
    const auto known = std::ranges::find(groups, key, &std::pair<std::string, int>::first);
    if (known == groups.end())
      groups.emplace_back(key, 1);
    else
      ++known->second;
  }
  std::string all;
  for (const auto& [key, n] : groups)
    all += fmt::format("{}{} threads {}", all.empty() ? "" : ", ", n, key);
  return all;
}

namespace {

void run(const Config& config, void (*body)(const void*), const void* context) {
  const int64_t threads = int64_t(config.block.x) * config.block.y * config.block.z;
  check(threads > 0 && threads <= max_threads, "kernel {}: {} threads in a block, not 1 to {}",
        config.kernel, threads, max_threads);
  check(config.shared_bytes <= most_shared_90,
        "kernel {}: {} bytes of shared memory, of at most {}", config.kernel, config.shared_bytes,
        most_shared_90);
  const auto within = [](unsigned size, unsigned most) { return 0 < size && size <= most; };
  check(within(config.grid.x, 2147483647) && within(config.grid.y, 65535) &&
            within(config.grid.z, 65535),
        "kernel {}: a grid of {} x {} x {} blocks", config.kernel, config.grid.x, config.grid.y,
        config.grid.z);
  if (config.function) Launched::all().add(config.function);
  const unsigned size = config.cluster;
  check(0 < size && size <= most_cluster && config.grid.x % size == 0,
        "kernel {}: clusters of {} blocks, not 1 to {} that divide {}", config.kernel, size,
        most_cluster, config.grid.x);
  check(size == 1 || threads % Async::group_threads == 0,
        "kernel {}: blocks of {} threads in a cluster, no multiple of {}", config.kernel, threads,
        Async::group_threads);
  const int64_t clusters = int64_t(config.grid.x / size) * config.grid.y * config.grid.z;
  kernels::cpu::parallel_for(clusters, [&](int64_t i) {
    const unsigned x = config.grid.x / size, y = config.grid.y;
    const unsigned n = unsigned(clusters - 1 - i);  // a device promises no order
    running = &machine;
    running->run_cluster(config, {n % x * size, n / x % y, n / (x * y)}, body, context);
  });
}

}  // namespace

void launch(const Config& config, void* stream, void (*body)(const void*), const void* context,
            size_t bytes) {
  if (recording()) return record_launch(config, context, bytes);
  const auto* const from = static_cast<const std::byte*>(context);
  in_stream(stream, [config, body, copy = std::vector<std::byte>(from, from + bytes)] {
    run(config, body, copy.data());
  });
}

const Index3& thread_index() { return running->fiber().index; }
Index3 block_index() { return running->fiber().block; }
const Index3& block_size() { return running->config.block; }
const Index3& grid_size() { return running->config.grid; }
int lane() { return running->current() % warp_size; }

void sync_block(SourceLocation where) { running->wait(State::AtBlock, where); }
void sync_warp(SourceLocation where) { running->wait(State::AtWarp, where); }

void* shared_memory(size_t offset, size_t) {
  return running->shared() + running->base(running->rank()) + offset;
}

void check_aligned(const void* p, size_t bytes) {
  if ((reinterpret_cast<uintptr_t>(p) & (bytes - 1)) != 0)  // a power of two
    running->fault(fmt::format("misaligned: {} bytes at an address that ends in {:#x}", bytes,
                               reinterpret_cast<uintptr_t>(p) % 64));
}

void require(bool holds, const char* otherwise) {
  if (!holds) running->fault(otherwise);
}

}  // namespace mixtape::simt
