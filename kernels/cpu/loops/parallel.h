#pragma once
// The thread pool of the process. Work is cut into chunks whose size does not depend on the number
// of threads, and free threads take the next chunk, so results are always the same.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/int_math.h"
#include "core/no_copy.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {

// Threads of a parallel region, including the caller: MIXTAPE_NUM_THREADS, by default the cores
// this process may use. Throws Error if that variable is not a number from 1 to 1024.
int num_threads();

// Limits the regions of this thread to `limit` threads while alive, for tests and for callers with
// their own threads; a limit above the pool's size grows the pool. Throws Error below 1.
class ThreadLimit : NoCopy {
 public:
  explicit ThreadLimit(int limit);
  ~ThreadLimit();

 private:
  int outer_;
};

// Calls body(context, i) for i in [0, count); parallel_for() without templates.
void run_chunks(int64_t count, void (*body)(void* context, int64_t i), void* context);

// Calls f(i). Out of line, so that f is compiled once, for a single chunk and for many.
template <class F>
[[gnu::noinline]] void call_chunk(void* f, int64_t i) {
  (*static_cast<F*>(f))(i);
}

// Calls f(i) for every i in [0, count), in any order and on any thread. Rethrows the first
// exception once all threads have stopped. A single chunk, and a call from within f, run on this
// thread.
template <class F>
void parallel_for(int64_t count, F&& f) {
  using Body = std::remove_reference_t<F>;
  void* const context = const_cast<void*>(static_cast<const void*>(&f));
  if (count == 1) return call_chunk<Body>(context, 0);
  if (count > 0) run_chunks(count, &call_chunk<Body>, context);
}

// The least work of a chunk: in elements, and in rows of n elements.
inline constexpr int64_t grain = 16384;
constexpr int64_t grain_of(int64_t n) {
  return std::max<int64_t>(1, grain / std::max<int64_t>(n, 1));
}

// Calls f(begin, end) for [0, n) in chunks of `each`; the last may be shorter.
template <class F>
void parallel_ranges(int64_t n, int64_t each, F&& f) {
  parallel_for(ceil_div(n, each), [&](int64_t i) { f(i * each, std::min(n, (i + 1) * each)); });
}

}  // namespace cpu
}  // namespace mixtape::kernels
