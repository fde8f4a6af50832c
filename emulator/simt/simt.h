#pragma once
// An emulator of CUDA's execution model: the kernels, compiled by g++, run on the CPU. A block runs
// on one thread of the CPU kernels' pool, each of its CUDA threads on a fiber; a barrier is a
// rendezvous of fibers. Bugs that make a GPU return a wrong number now and then are Errors here
// that name the kernel, block, thread and source line: a divergent barrier, a race in shared
// memory, a read before the wait for its cp.async, an index out of bounds, a misaligned access. The
// ordering of global memory is not checked.

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
#define __grid_constant__

namespace mixtape::simt {

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};
struct Config {
  const char* kernel;  // its name, for errors
  Index3 grid = {}, block = {};
  size_t shared_bytes = 0;
  const void* function = nullptr;  // the kernel, for script/check_kernels.py
  unsigned cluster = 1;            // neighbours along x that run together; they divide the grid
};

// Queues work on a stream (emulator/simt/runtime.h).
void in_stream(void* stream, std::function<void()> work);
// Queues a kernel: body runs once for every thread of the grid, with a copy of the `bytes` at
// `context`. Throws the first Error of a block.
void launch(const Config& config, void* stream, void (*body)(const void* context),
            const void* context, size_t bytes);
// As above, for a functor that is plain data.
template <class Body>
void launch(const Config& config, void* stream, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>, "a device copies arguments as bytes");
  launch(
      config, stream, [](const void* context) { (*static_cast<const Body*>(context))(); }, &body,
      sizeof body);
}

// --- for threads of a kernel only ---
const Index3& thread_index();
Index3 block_index();
const Index3& block_size();
const Index3& grid_size();
int lane();  // the index in its warp

// Barriers of the block or the warp. All of its threads must reach the same source line.
void sync_block(SourceLocation where = SourceLocation::here());
void sync_warp(SourceLocation where = SourceLocation::here());

// Replaces a value of at most 64 bytes by that of lane `from`.
void exchange(void* value, size_t bytes, int from, SourceLocation where);
// Passes a value of at most 64 bytes to the other lanes, and returns where those of all 32 are.
// They stay until this lane exchanges the next.
using Slot = unsigned char[64];
const Slot* gather(const void* value, size_t bytes, SourceLocation where);
template <class T>
class Gathered {
 public:
  Gathered(const T& mine, SourceLocation where) : slots_(gather(&mine, sizeof mine, where)) {}
  T operator[](int lane) const {
    T v;
    std::memcpy(static_cast<void*>(&v), slots_[lane], sizeof v);
    return v;
  }

 private:
  const Slot* slots_;
};

// --- shared memory: filled with NaN before each block ---
void* shared_memory(size_t offset, size_t bytes);
enum class Access { Read, Write };
// Checks an access: bounds, alignment, races and pending copies; records it for bank conflicts.
void touch(const void* at, size_t bytes, Access access);

void cp_async(void* to, const void* from, size_t bytes,
              size_t valid);  // bytes beyond `valid` become 0
void cp_async_commit();
void cp_async_wait(int still_pending);
int64_t cp_asyncs();  // the number so far, on all threads
void check_aligned(const void* p, size_t bytes);
void require(bool holds, const char* otherwise);  // an Error with the kernel's place otherwise

// Counts the passes that bank conflicts add to accesses of shared memory, over all launches while
// one is alive.
class BankConflicts {
 public:
  BankConflicts();
  ~BankConflicts();
  BankConflicts(const BankConflicts&) = delete;
  int64_t count(Access access) const;
};

// A checked pointer into shared memory; a plain pointer on a GPU.
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

// A reference to any function Y(X...), which must outlive it.
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
