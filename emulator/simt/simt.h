#pragma once
// An emulator of CUDA's execution model: the text of the kernels, compiled by g++, runs on the CPU.
// A block runs on one thread of the kernels' pool, each of its CUDA threads on a fiber; a barrier
// is a rendezvous of fibers. What a GPU would answer with a wrong number now and then is an Error
// here that names the kernel, the block, the thread and the place: a divergent barrier, a race in
// shared memory, reading what cp.async has not delivered, an index out of bounds, a misaligned
// vector access. It cannot see the ordering of global memory.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "core/half.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace mixtape::simt {

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};
struct Config {
  const char* kernel;  // its name, for errors
  Index3 grid = {}, block = {};
  size_t shared_bytes = 0;
  const void* function = nullptr;  // for the list of what ran
};

// Does work when it is the stream's turn (emulator/simt/runtime.h).
void in_stream(void* stream, std::function<void()> work);
// Runs body, with a copy of what is at `context`, once for every thread of the grid, in the
// stream's turn. Throws the first Error of a block.
void launch(const Config& config, void* stream, void (*body)(const void* context),
            const void* context, size_t bytes);
// The same for a function of plain data.
template <class Body>
void launch(const Config& config, void* stream, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>, "a device copies arguments as bytes");
  launch(
      config, stream, [](const void* context) { (*static_cast<const Body*>(context))(); }, &body,
      sizeof body);
}

// --- what a thread may ask; only inside a kernel ---
const Index3& thread_index();
const Index3& block_index();
const Index3& block_size();
const Index3& grid_size();
int lane();  // in its warp

// All threads of the block, or of the warp, must come to the same place.
void sync_block(SourceLocation where = SourceLocation::here());
void sync_warp(SourceLocation where = SourceLocation::here());

// Each lane hands over at most 64 bytes and gets those of another.
void exchange(void* value, size_t bytes, int from, SourceLocation where);
// Each lane gets what all 32 hand over, in their order.
void gather(const void* value, size_t bytes, void* all, SourceLocation where);

// --- shared memory: filled with NaN before each block ---
void* shared_memory(size_t offset, size_t bytes);
enum class Access { Read, Write };
// Every access goes through here: bounds, alignment, races, pending copies, bank conflicts.
void touch(const void* at, size_t bytes, Access access);

void cp_async(void* to, const void* from, size_t bytes,
              size_t valid);  // what is not valid becomes zero
void cp_async_commit();
void cp_async_wait(int still_pending);
int64_t cp_asyncs();  // how many there were so far, on all threads
void check_aligned(const void* p, size_t bytes);

// Counts, over all launches while one is alive, the passes that bank conflicts add to shared memory
// accesses.
class BankConflicts {
 public:
  BankConflicts();
  ~BankConflicts();
  BankConflicts(const BankConflicts&) = delete;
  int64_t count(Access access) const;
};

// A pointer into shared memory whose accesses are checked. What is a plain pointer on a GPU.
template <class T>
class Shared {
 public:
  class Element {
   public:
    explicit Element(T* p) : p_(p) {}
    operator T() const {
      touch(p_, sizeof(T), Access::Read);
      return *p_;
    }
    const Element& operator=(T v) const {
      touch(p_, sizeof(T), Access::Write);
      *p_ = v;
      return *this;
    }
    const Element& operator=(const Element& other) const { return *this = T(other); }
    Element(const Element&) = default;
    const Element& operator+=(T v) const { return *this = T(T(*this) + v); }
    Shared operator&() const { return Shared(p_); }

   private:
    T* p_;
  };

  Shared() = default;
  explicit Shared(T* p) : p_(p) {}
  Element operator[](int64_t i) const { return Element(p_ + i); }
  Element operator*() const { return Element(p_); }
  Shared operator+(int64_t n) const { return Shared(p_ + n); }
  T* unchecked() const { return p_; }

 private:
  T* p_ = nullptr;
};

// A function Y(X...), whichever it is. It has to live on.
template <class Y, class... X>
class Function {
 public:
  template <class F>
  explicit Function(const F& f)
      : f_(&f),
        call_([](const void* g, X... x) -> Y { return (*static_cast<const F*>(g))(x...); }) {}
  Y operator()(X... x) const { return call_(f_, x...); }

 private:
  const void* f_;
  Y (*call_)(const void*, X...);
};

}  // namespace mixtape::simt
