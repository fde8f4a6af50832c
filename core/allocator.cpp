// Size classes with free lists: a block is at most an eighth larger than the request. Blocks of a
// device are cut from segments, since its system calls are slow: small ones in sequence, large ones
// by best fit. A pool's spin lock is held for tens of instructions, never during a system call.
#include "core/allocator.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/asan.h"
#include "core/capture.h"
#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "core/stream.h"
#include "core/thread_state.h"

namespace mixtape {
using namespace internal;
namespace {

constexpr size_t alignment = 64;
constexpr size_t huge_page = size_t{2} << 20;
constexpr size_t largest = size_t{1} << 47;  // the address space
constexpr size_t device_alignment = 256;
constexpr size_t smallest_segment = size_t{2} << 20, largest_segment = size_t{32} << 20;

// Blocks of a device of more than `small` bytes are pieces of arenas.
constexpr size_t small = size_t{1} << 20;
struct Kind {
  size_t largest;  // block
  size_t unit;     // its size is a multiple
  size_t segment;  // bytes of a segment (the first has half), or of one block
  size_t least;    // bytes that must remain to be worth another block
};
constexpr Kind kinds[] = {{size_t{16} << 20, size_t{128} << 10, size_t{64} << 20, small},
                          {largest, size_t{2} << 20, 0, size_t{16} << 20}};
constexpr size_t kind_of(size_t bytes) { return bytes > kinds[0].largest; }
// AddressSanitizer sees blocks in a free list, and the padding between blocks, as freed memory.
constexpr size_t gap = MIXTAPE_ASAN ? device_alignment : 0;

// The only two functions that call a device's system.
void* system_allocate(size_t bytes, Device device) {
  if (!device.is_host()) return runtime::of(device.type).allocate(bytes, device.index);
  void* block = nullptr;
  const bool huge = bytes >= huge_page;
  if (posix_memalign(&block, huge ? huge_page : alignment, bytes) != 0) return nullptr;
  if (huge) madvise(block, bytes, MADV_HUGEPAGE);  // a hint: failure costs only speed
  return block;
}
void system_release(void* block, Device device) noexcept {
  if (device.is_host())
    std::free(block);
  else
    runtime::of(device.type).release(block, device.index);
}

class SpinLock {
 public:
  void lock() noexcept {
    for (int tries = 0; taken_.exchange(true, std::memory_order_acquire); ++tries)
      if (tries > 64) std::this_thread::yield();
  }
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

// Multiples of 64 bytes up to 512, then eight sizes per power of two.
struct SizeClass {
  size_t index, bytes;

  static constexpr SizeClass of(size_t bytes) {
    const size_t last = bytes > 0 ? bytes - 1 : 0;
    if (last < 512) return {last / 64, (last / 64 + 1) * 64};
    const int power = std::bit_width(last) - 1;
    const size_t eighth = last >> (power - 3);  // 8..15
    return {size_t(power - 9) * 8 + eighth, (eighth + 1) << (power - 3)};
  }
};
static_assert(SizeClass::of(512).index == 7 && SizeClass::of(513).index == 8);
static_assert(SizeClass::of(1024).index == 15 && SizeClass::of(1025).index == 16);

// Device memory from which blocks are cut in sequence.
struct Segment {
  char* begin = nullptr;
  size_t bytes = 0, used = 0, blocks = 0;

  static constexpr size_t room_for(size_t block) { return round_up(block, device_alignment) + gap; }
  void* cut(size_t block) {
    if (bytes - used < room_for(block)) return nullptr;
    ++blocks;
    return begin + std::exchange(used, used + room_for(block));
  }
  bool holds(const void* block) const { return begin <= block && block < begin + bytes; }
};

// The memory of one device, with a shelf of free blocks per stream.
class Pool {
 public:
  explicit Pool(Device device) : device_(device) {}

  void* allocate(size_t bytes, int stream, MemoryOf use) {
    const bool possible = bytes <= largest;
    if (possible && is_large(bytes)) return piece(bytes, stream, use);
    const SizeClass size = SizeClass::of(possible ? bytes : largest);
    {
      const std::lock_guard lock(lock_);
      make_shelf(stream);
      std::vector<void*>& free = shelf(stream).of[size.index].free;
      if (!free.empty()) {
        void* block = free.back();
        free.pop_back();
        count(bytes, use);
        unpoison(block, bytes);
        return block;
      }
    }
    void* block = nullptr;
    if (possible) block = device_.is_host() ? ask(size.bytes) : cut(size, stream);
    if (!block) out_of_memory(bytes);
    adopt(block, size, bytes, stream, use);
    return block;
  }

  void release(void* block, size_t bytes, int stream, MemoryOf use) noexcept {
    const SizeClass size = SizeClass::of(bytes);
    if (device_.is_host()) poison(block, size.bytes);  // a device may not be done with it
    const std::lock_guard lock(lock_);
    if (is_large(bytes))
      shelf(stream).arenas[kind_of(bytes)].give(block);
    else
      shelf(stream).of[size.index].free.push_back(block);  // never grows: adopt() made room
    held_by(use) -= static_cast<int64_t>(bytes);
  }

  void empty_cache() noexcept {
    if (captured_graph) return;  // a device cannot free during a capture
    for (int stream = -1; stream < max_streams; ++stream) {
      if (!has_shelf(stream) || (stream >= 0 && held_ >> stream & 1)) continue;
      each_unused(
          stream, [&](const Segment& s) { give_back(s.begin, s.bytes); },
          [&](size_t, const Arena::Segment& s) { give_back(s.begin, s.bytes); });
      for (size_t i = 0; i < classes && device_.is_host(); ++i) {
        for (std::unique_lock lock(lock_);; lock.lock()) {
          Class& c = shelf(stream).of[i];
          if (c.free.empty()) break;
          void* const block = c.free.back();
          const size_t bytes = c.bytes;
          c.free.pop_back();
          --c.blocks;
          lock.unlock();
          give_back(block, bytes);
        }
      }
    }
  }

  void hold(int stream) noexcept { held_ |= uint64_t{1} << stream; }
  void let_go(int stream, int home) noexcept {
    held_ &= ~(uint64_t{1} << stream);
    if (!has_shelf(stream) || !has_shelf(home)) return;
    each_unused(
        stream,
        [&](const Segment& s) {
          move(s, [&] { shelf(home).segments.push_back({s.begin, s.bytes}); });
        },
        [&](size_t kind, const Arena::Segment& s) {
          move(s, [&] { shelf(home).arenas[kind].add(s); });
        });
  }

  void lock() noexcept { lock_.lock(); }
  void unlock() noexcept { lock_.unlock(); }

  MemoryStats stats() {
    const std::lock_guard lock(lock_);
    return stats_;
  }
  void reset_peak() {
    const std::lock_guard lock(lock_);
    stats_.peak = stats_.in_use;
    stats_.peak_total = stats_.in_use + scratch_;
  }

 private:
  static constexpr size_t classes = SizeClass::of(largest).index + 1;
  struct Class {
    std::vector<void*> free;
    size_t blocks = 0;  // free or in use
    size_t bytes = 0;
  };
  struct Shelf {
    std::array<Class, classes> of;
    std::vector<Segment> segments;
    std::array<Arena, std::size(kinds)> arenas;
  };

  bool has_shelf(int stream) noexcept {
    const std::lock_guard lock(lock_);
    return stream < 0 || shelves_[static_cast<size_t>(stream)];
  }
  Shelf& shelf(int stream) {
    return stream < 0 ? without_stream_ : *shelves_[static_cast<size_t>(stream)];
  }

  int64_t& held_by(MemoryOf use) { return use == MemoryOf::Tensors ? stats_.in_use : scratch_; }
  void count(size_t bytes, MemoryOf use) {
    held_by(use) += static_cast<int64_t>(bytes);
    stats_.peak = std::max(stats_.peak, stats_.in_use);
    stats_.peak_total = std::max(stats_.peak_total, stats_.in_use + scratch_);
    ++stats_.allocations;
  }

  // (Meta's addresses are not the process's.)
  void poison(void* memory, size_t bytes) const noexcept {
    if (!device_.is_meta()) mixtape::poison(memory, bytes);
  }
  void unpoison(void* memory, size_t bytes) const noexcept {
    if (!device_.is_meta()) mixtape::unpoison(memory, bytes);
  }
  bool is_large(size_t bytes) const { return !device_.is_host() && bytes > small; }
  void make_shelf(int stream) {
    if (stream >= 0 && !shelves_[size_t(stream)])
      shelves_[size_t(stream)] = std::make_unique<Shelf>();
  }

  // Memory from the system. If there is none left, empties the cache and tries once more.
  void* ask(size_t bytes) {
    void* memory = system_allocate(bytes, device_);
    if (!memory) {
      empty_cache();
      memory = system_allocate(bytes, device_);
    }
    if (memory) took(bytes);
    return memory;
  }
  template <class S, class Add>
  void move(const S& segment, Add add) noexcept {
    try {
      const std::lock_guard lock(lock_);
      add();
    } catch (const std::bad_alloc&) {
      give_back(segment.begin, segment.bytes);
    }
  }
  void give_back(void* memory, size_t bytes) noexcept {
    {
      const std::lock_guard lock(lock_);
      stats_.reserved -= static_cast<int64_t>(bytes);
    }
    unpoison(memory, bytes);
    system_release(memory, device_);
  }

  void* piece(size_t bytes, int stream, MemoryOf use) {
    const size_t kind = kind_of(bytes);
    const Kind& k = kinds[kind];
    const size_t size = round_up(bytes + gap, k.unit);
    size_t wanted = k.segment;
    const auto take = [&](Arena& arena) {
      void* const block = arena.take(size, k.least);
      if (block) {
        count(bytes, use);
        unpoison(block, bytes);
      }
      return block;
    };
    {
      const std::lock_guard lock(lock_);
      make_shelf(stream);
      Arena& arena = shelf(stream).arenas[kind];
      if (void* const block = take(arena)) return block;
      if (arena.is_empty()) wanted /= 2;
    }
    Arena::Segment segment = borrow(kind, size);
    if (!segment.begin) segment = ask_for(std::max(wanted, size), round_up(size, huge_page));
    if (!segment.begin) out_of_memory(bytes);
    const std::lock_guard lock(lock_);
    Arena& arena = shelf(stream).arenas[kind];
    arena.add(segment);
    return take(arena);
  }
  // A new segment. If that fails, one of `least` bytes, for which the cache may be emptied.
  Arena::Segment ask_for(size_t bytes, size_t least) {
    Arena::Segment s{nullptr, bytes};
    s.begin = static_cast<char*>(system_allocate(s.bytes, device_));
    if (s.begin)
      took(s.bytes);
    else
      s = {static_cast<char*>(ask(least)), least};
    if (s.begin) poison(s.begin, s.bytes);
    return s;
  }
  void took(size_t bytes) {
    const std::lock_guard lock(lock_);
    stats_.reserved += static_cast<int64_t>(bytes);
    ++stats_.system_calls;
  }

  // A new segment is as large as all others of its stream together, so that there are few.
  void* cut(SizeClass size, int stream) {
    size_t wanted = 0;
    {
      const std::lock_guard lock(lock_);
      for (Segment& s : shelf(stream).segments) {
        if (void* block = s.cut(size.bytes)) return block;
        wanted += s.bytes;
      }
    }
    Segment fresh = borrow();
    if (!fresh.begin) {
      const auto [begin, bytes] =
          ask_for(std::clamp(wanted, smallest_segment, largest_segment), smallest_segment);
      fresh = {begin, bytes};
    }
    if (!fresh.begin) return nullptr;
    const std::lock_guard lock(lock_);
    void* const block = fresh.cut(size.bytes);
    shelf(stream).segments.push_back(fresh);
    return block;
  }
  // An unused segment of a capture's home, the stream in which the work will run. (Every segment
  // has room for any small block.)
  Segment borrow() {
    if (!capture()) return {};
    const Segment unused = take_unused(capture()->home());
    return {unused.begin, unused.bytes};
  }
  Arena::Segment borrow(size_t kind, size_t bytes) {
    return capture() ? take_unused_of(kind, capture()->home(), bytes) : Arena::Segment();
  }
  Arena::Segment take_unused_of(size_t kind, int stream, size_t bytes = 0) noexcept {
    const std::lock_guard lock(lock_);
    return shelf(stream).arenas[kind].remove_unused(bytes);
  }
  // Removes all unused segments, and calls small(segment) and large(kind, segment) with them.
  template <class Small, class Large>
  void each_unused(int stream, Small small, Large large) noexcept {
    for (Segment s = take_unused(stream); s.begin; s = take_unused(stream)) small(s);
    for (size_t kind = 0; kind < std::size(kinds); ++kind)
      for (auto s = take_unused_of(kind, stream); s.begin; s = take_unused_of(kind, stream))
        large(kind, s);
  }
  // Removes a segment whose blocks are all free from the records; empty if there is none.
  Segment take_unused(int stream) noexcept {
    const std::lock_guard lock(lock_);
    Shelf& all = shelf(stream);
    for (size_t i = 0; i < all.segments.size(); ++i) {
      const Segment segment = all.segments[i];
      const auto inside = [&](const void* block) { return segment.holds(block); };
      size_t free = 0;
      for (const Class& c : all.of) free += size_t(std::ranges::count_if(c.free, inside));
      if (free != segment.blocks) continue;
      for (Class& c : all.of) c.blocks -= std::erase_if(c.free, inside);
      all.segments.erase(all.segments.begin() + std::ptrdiff_t(i));
      return segment;
    }
    return {};
  }

  // Records a new block and reserves room for its return.
  void adopt(void* block, SizeClass size, size_t bytes, int stream, MemoryOf use) {
    const std::lock_guard lock(lock_);
    Class& c = shelf(stream).of[size.index];
    if (c.free.capacity() <= c.blocks) c.free.reserve(2 * c.blocks + 8);
    ++c.blocks;
    c.bytes = size.bytes;
    count(bytes, use);
    poison(block, size.bytes);
    unpoison(block, bytes);
  }

  [[noreturn]] void out_of_memory(size_t bytes) {
    const MemoryStats now = stats();
    fail("out of memory on {}: {} bytes requested, {} in use, {} reserved, {} at peak", device_,
         bytes, now.in_use, now.reserved, now.peak_total);
  }

  const Device device_;
  SpinLock lock_;
  Shelf without_stream_;
  std::array<std::unique_ptr<Shelf>, max_streams> shelves_;
  std::atomic<uint64_t> held_{0};  // a bit per stream
  MemoryStats stats_;
  int64_t scratch_ = 0;  // bytes held by kernels
};

// Never destroyed, since tensors may outlive any static.
constinit std::array<std::atomic<Pool*>, device_slots> pools{};

Pool& host() { return *pools[Device::cpu().slot()]; }

Pool& first_use(std::atomic<Pool*>& pool, Device device) {
  device.require();
  Pool* none = nullptr;
  Pool* const mine = new Pool(device);
  if (pool.compare_exchange_strong(none, mine)) {
    // A forked child lacks the thread that would unlock. (Devices do not work in one anyway.)
    const auto unlock = [] { host().unlock(); };
    if (device.is_host()) pthread_atfork([] { host().lock(); }, unlock, unlock);
    return *mine;
  }
  delete mine;
  return *none;
}

Pool& pool(Device device) {
  if (static_cast<unsigned>(device.index) >= max_devices) [[unlikely]]
    device.require();  // throws
  auto& slot = pools[device.slot()];
  Pool* const made = slot.load(std::memory_order_acquire);
  return made ? *made : first_use(slot, device);
}

}  // namespace

void* allocate(size_t bytes, Device device, int stream, MemoryOf use) {
  return pool(device).allocate(bytes, stream, use);
}
void release(void* block, size_t bytes, Device device, int stream, MemoryOf use) noexcept {
  pool(device).release(block, bytes, stream, use);
}
MemoryStats memory_stats(Device device) { return pool(device).stats(); }
void reset_peak(Device device) { pool(device).reset_peak(); }
void internal::hold_cache(Device device, int stream) { pool(device).hold(stream); }
void internal::let_cache_go(Device device, int stream, int home) noexcept {
  pool(device).let_go(stream, home);
}
void empty_cache(Device device) { pool(device).empty_cache(); }

}  // namespace mixtape
