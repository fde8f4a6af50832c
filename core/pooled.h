#pragma once
// PooledAllocator<T>: memory for the small objects of every op (handles, storages, nodes). Freed
// blocks go to a list of the freeing thread, so an allocation takes a few instructions.

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "core/asan.h"

namespace mixtape {
namespace detail {

// Lists of free blocks in steps of 64 bytes; a list is never longer than `most`.
class Pool {
 public:
  static constexpr size_t step = 64, largest = 2048;
  static constexpr int most = 4096;
  static constexpr std::align_val_t alignment{step};

  static void* take(size_t bytes) {
    List* const l = list(bytes);
    if (!l || !l->first)  // rounded, since another thread's list may keep it
      return ::operator new(bytes > largest ? bytes : rounded(bytes), alignment);
    --l->length;
    return std::exchange(l->first, l->first->next);
  }
  static void give(void* block, size_t bytes) noexcept {
    List* const l = lists ? list(bytes) : nullptr;  // making lists could fail
    if (!l || l->length == most) return ::operator delete(block, alignment);
    l->first = new (block) Block{l->first};
    ++l->length;
  }

 private:
  struct Block {
    Block* next;
  };
  struct List {
    Block* first = nullptr;
    int length = 0;
  };
  struct Lists {
    std::array<List, largest / step> of;
  };
  // Frees the lists when the thread ends; objects that die later go straight to the system.
  struct Guard {
    ~Guard() {
      Lists* const mine = std::exchange(lists, nullptr);
      ended = true;
      for (List& l : mine->of)
        while (l.first) ::operator delete(std::exchange(l.first, l.first->next), alignment);
      delete mine;
    }
  };

  static size_t rounded(size_t bytes) { return (bytes + step - 1) / step * step; }
  static List* list(size_t bytes) {
    if (MIXTAPE_ASAN || bytes > largest) return nullptr;  // reuse would hide a use after free
    if (!lists && !make_lists()) [[unlikely]]
      return nullptr;
    return &lists->of[rounded(bytes) / step - 1];
  }
  [[gnu::noinline, gnu::cold]] static bool make_lists() {
    if (ended) return false;
    lists = new Lists;
    static thread_local Guard guard;
    (void)guard;
    return true;
  }
  static inline thread_local constinit Lists* lists = nullptr;
  static inline thread_local constinit bool ended = false;
};

}  // namespace detail

template <class T>
struct PooledAllocator {
  using value_type = T;
  PooledAllocator() = default;
  template <class U>
  PooledAllocator(const PooledAllocator<U>&) {}

  static_assert(alignof(T) <= detail::Pool::step);
  T* allocate(size_t n) { return static_cast<T*>(detail::Pool::take(n * sizeof(T))); }
  void deallocate(T* p, size_t n) noexcept { detail::Pool::give(p, n * sizeof(T)); }
  friend bool operator==(PooledAllocator, PooledAllocator) { return true; }
};

// std::make_shared with pooled memory.
template <class T, class... A>
std::shared_ptr<T> make_pooled(A&&... args) {
  return std::allocate_shared<T>(PooledAllocator<T>(), std::forward<A>(args)...);
}

}  // namespace mixtape
