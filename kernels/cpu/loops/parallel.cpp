// The pool runs one region at a time; a thread that finds it taken works alone. Each thread begins
// with its own share of neighbouring chunks, the same in every region, so that it finds its results
// in its cache; then it helps the others. Workers spin before they sleep, since a training step
// opens hundreds of short regions.

#include "kernels/cpu/loops/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/parse.h"

namespace mixtape::kernels::cpu {
namespace {

using Body = void (*)(void* context, int64_t i);

int configured_threads() {
  if (const char* text = std::getenv("MIXTAPE_NUM_THREADS")) {
    const auto n = internal::parse_number<int>(text);
    check(n && *n >= 1 && *n <= 1024,
          "MIXTAPE_NUM_THREADS must be a number from 1 to 1024, got '{}'", text);
    return *n;
  }
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

thread_local int limit = 0;  // the innermost ThreadLimit; 0: none
thread_local bool in_region = false;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Polls `done` for a while; returns true once it holds.
template <class F>
bool spin(F done, std::chrono::microseconds patience) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() - start < patience);
  return false;
}

class Pool {
 public:
  explicit Pool(Pool* inherited) : inherited_(inherited) {}

  // Joins the workers; later regions run on their callers alone.
  void stop() {
    stop_ = true;
    announce();
    for (std::thread& t : workers_) t.join();
  }

  void run(int threads, int64_t count, Body body, void* context) {
    if (threads == 1 || in_region || stop_ || !owner_.try_lock()) {
      for (int64_t i = 0; i < count; ++i) body(context, i);
      return;
    }
    const std::lock_guard owner(owner_, std::adopt_lock);
    grow(threads - 1);
    if (static_cast<int>(shares_.size()) != threads) shares_ = std::vector<Share>(threads);
    body_ = body;
    context_ = context;
    max_workers_ = threads - 1;
    for (int64_t t = 0; t < threads; ++t) {
      shares_[t].next.store(t * count / threads, std::memory_order_relaxed);
      shares_[t].end = (t + 1) * count / threads;
    }
    open_ = true;
    announce();
    take_chunks(0);
    open_ = false;
    while (!spin([this] { return inside_ == 0; }, std::chrono::microseconds(100)))
      std::this_thread::yield();
    if (failed_.load(std::memory_order_relaxed)) {
      failed_ = false;
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
  }

 private:
  // Chunks [next, end).
  struct alignas(64) Share {
    std::atomic<int64_t> next = 0;
    int64_t end = 0;
  };

  // Starts workers until there are `count`, or as many as the system allows: those that run take
  // the shares of those that are missing.
  void grow(int count) try {
    while (static_cast<int>(workers_.size()) < count)
      workers_.emplace_back([this, self = static_cast<int>(workers_.size()) + 1] { work(self); });
  } catch (const std::exception&) {
  }

  void announce() {
    epoch_.fetch_add(1);
    if (sleeping_ > 0) {
      const std::lock_guard lock(sleep_);
      wake_.notify_all();
    }
  }

  void take_chunks(int self) {
    const int threads = static_cast<int>(shares_.size());
    in_region = true;
    try {
      for (int k = 0; k < threads; ++k) {
        Share& share = shares_[(self + k) % threads];
        for (int64_t i; (i = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;)
          body_(context_, i);
      }
    } catch (...) {
      for (Share& share : shares_) share.next.store(share.end, std::memory_order_relaxed);
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
    in_region = false;
  }

  void work(int self) {
    unsigned seen = 0;
    while (true) {
      const auto called = [&] { return epoch_ != seen; };
      if (!spin(called, std::chrono::microseconds(50))) {
        std::unique_lock lock(sleep_);
        ++sleeping_;
        wake_.wait(lock, called);
        --sleeping_;
      }
      seen = epoch_;
      if (stop_) return;
      // The owner leaves a region only when open_ is false and inside_ is 0. So a worker that
      // incremented inside_ and then found open_ true may read the region's fields (both are
      // sequentially consistent).
      if (inside_.fetch_add(1) < max_workers_ && open_) take_chunks(self);
      inside_.fetch_sub(1);
    }
  }

  std::mutex owner_;  // held by the thread that opened the region
  Body body_ = nullptr;
  void* context_ = nullptr;
  std::exception_ptr error_;
  std::atomic<bool> failed_ = false;
  std::atomic<int> max_workers_ = 0;
  std::atomic<bool> open_ = false;
  std::vector<Share> shares_;
  alignas(64) std::atomic<int> inside_ = 0;
  alignas(64) std::atomic<unsigned> epoch_ = 0;
  std::atomic<bool> stop_ = false;
  std::atomic<int> sleeping_ = 0;
  std::mutex sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
  // A forked child's: its parent's pool, whose workers and locks it cannot use. Leak checkers find
  // it here.
  [[maybe_unused]] Pool* const inherited_;
};

// Never destroyed, since destructors of other statics may open regions.
std::atomic<Pool*> pool_of_process = nullptr, pool_of_parent = nullptr;

struct StopsAtExit {
  ~StopsAtExit() {
    Pool* const pool = pool_of_process;
    if (pool && !in_region) pool->stop();  // (a worker that calls exit() cannot join itself)
  }
};

// A forked child has none of its parent's threads, which may have held locks: it makes a new pool.
void leave_to_parent() {
  if (Pool* const pool = pool_of_process.exchange(nullptr)) pool_of_parent = pool;
}

Pool& pool() {
  if (Pool* const made = pool_of_process) return *made;
  static const int registered = pthread_atfork(nullptr, nullptr, leave_to_parent);
  static const StopsAtExit at_exit;
  (void)registered, (void)at_exit;
  Pool* none = nullptr;
  Pool* const mine = new Pool(pool_of_parent);
  if (pool_of_process.compare_exchange_strong(none, mine)) return *mine;
  delete mine;
  return *none;
}

}  // namespace

int num_threads() {
  static const int configured = configured_threads();
  return limit > 0 ? limit : configured;
}

ThreadLimit::ThreadLimit(int n) : outer_(limit) {
  check(n >= 1, "the limit of threads must be >= 1, got {}", n);
  limit = n;
}
ThreadLimit::~ThreadLimit() { limit = outer_; }

void run_chunks(int64_t count, Body body, void* context) {
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), count));
  pool().run(threads, count, body, context);
}

}  // namespace mixtape::kernels::cpu
