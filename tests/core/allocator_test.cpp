// The allocator: alignment, statistics, reuse without system calls, and blocks that change threads.
#include "core/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/pooled.h"
#include "core/random.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "tests/support/child.h"
#include "tests/support/out_of_memory.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

// Allocations beyond all memory must fail as in a build without sanitizers.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace mixtape {
namespace core_allocator_test {

// Destroyed last in this program: release must still work then.
const Tensor last_to_go({3}, f32);

struct Block {
  void* data;
  size_t bytes;
  unsigned char mark;

  Block(size_t bytes, int seed)
      : data(allocate(bytes, {})), bytes(bytes), mark(static_cast<unsigned char>(seed)) {
    std::memset(data, mark, bytes);
  }
  bool intact() const {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; ++i)
      if (p[i] != mark) return false;
    return true;
  }
  void free() const { release(data, bytes, {}); }
};

TEST(Allocator, BlocksAreAlignedAndApart) {
  std::vector<Block> blocks;
  int seed = 0;
  for (size_t bytes = 0; bytes < 2000; bytes += 7) blocks.emplace_back(bytes, ++seed);
  for (size_t bytes : {4096u, 4097u, 1u << 20, (1u << 21) - 1, 1u << 21, 5u << 20})
    blocks.emplace_back(bytes, ++seed);
  for (const Block& b : blocks) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data) % 64, 0u);
    EXPECT_TRUE(b.intact()) << b.bytes;
  }
  for (const Block& b : blocks) b.free();
}

TEST(Allocator, ZeroBytesGiveDistinctPointers) {
  void *a = allocate(0, {}), *b = allocate(0, {});
  EXPECT_TRUE(a && b && a != b);
  release(a, 0, {});
  release(b, 0, {});
}

TEST(Allocator, BooksBalance) {
  const MemoryStats before = memory_stats();
  reset_peak();
  void* a = allocate(1000, {});
  void* b = allocate(500, {});
  release(b, 500, {});
  MemoryStats now = memory_stats();
  EXPECT_EQ(now.in_use, before.in_use + 1000);
  EXPECT_EQ(now.peak, before.in_use + 1500);
  EXPECT_EQ(now.allocations, before.allocations + 2);
  EXPECT_GE(now.reserved, now.in_use);
  reset_peak();
  EXPECT_EQ(memory_stats().peak, before.in_use + 1000);
  release(a, 1000, {});
  EXPECT_EQ(memory_stats().in_use, before.in_use);
}

TEST(Allocator, MemoryOfKernelsIsCountedApart) {
  const MemoryStats before = memory_stats();
  reset_peak();
  void* const scratch = allocate(1000, {}, -1, MemoryOf::Kernels);
  void* const block = allocate(500, {});
  release(scratch, 1000, {}, -1, MemoryOf::Kernels);
  MemoryStats now = memory_stats();
  EXPECT_EQ(now.in_use, before.in_use + 500);
  EXPECT_EQ(now.peak, before.in_use + 500);
  EXPECT_EQ(now.peak_total, before.in_use + 1500);
  EXPECT_EQ(now.allocations, before.allocations + 2);
  reset_peak();
  EXPECT_EQ(memory_stats().peak_total, before.in_use + 500);
  release(block, 500, {});
}

TEST(Allocator, ABlockIsAtMostAnEighthTooLarge) {
  for (size_t bytes : {65u, 513u, 1025u, 5000u, 100'000u, 1'000'001u, 33'000'000u}) {
    empty_cache();
    const int64_t before = memory_stats().reserved;
    void* p = allocate(bytes, {});
    const int64_t taken = memory_stats().reserved - before;
    EXPECT_GE(taken, int64_t(bytes));
    EXPECT_LE(taken, int64_t(bytes + std::max<size_t>(bytes / 8, 63)));
    release(p, bytes, {});
  }
}

TEST(Allocator, SteadyStateAsksTheSystemForNothing) {
  const auto step = [] {
    std::vector<Block> blocks;
    for (int i = 0; i < 50; ++i) blocks.emplace_back(size_t(i) * 977, i);
    for (const Block& b : blocks) b.free();
  };
  step();
  const MemoryStats before = memory_stats();
  for (int i = 0; i < 10; ++i) step();
  const MemoryStats after = memory_stats();
  EXPECT_EQ(after.system_calls, before.system_calls);
  EXPECT_EQ(after.reserved, before.reserved);
  EXPECT_EQ(after.allocations, before.allocations + 500);
}

TEST(Allocator, EmptyCacheKeepsOnlyWhatIsInUse) {
  const Block kept(3 << 20, 9), dropped(3 << 20, 8);
  dropped.free();
  const int64_t before = memory_stats().reserved;
  empty_cache();
  EXPECT_LE(memory_stats().reserved, before - (3 << 20));
  EXPECT_GE(memory_stats().reserved, memory_stats().in_use);
  EXPECT_TRUE(kept.intact());
  kept.free();
}

TEST(Allocator, FailureEmptiesTheCacheAndSaysWhatIsHeld) {
  const Block kept(1000, 1), cached(1 << 20, 2);
  cached.free();
  const int64_t reserved = memory_stats().reserved;
  for (size_t bytes : {size_t{1} << 47, size_t{1} << 60}) {  // the whole address space, and more
    std::string text;
    try {
      allocate(bytes, {});
    } catch (const Error& e) {
      text = e.what();
    }
    const MemoryStats s = memory_stats();
    EXPECT_EQ(text.substr(0, text.find('\n')),
              "out of memory on cpu: " + std::to_string(bytes) + " bytes requested, " +
                  std::to_string(s.in_use) + " in use, " + std::to_string(s.reserved) +
                  " reserved, " + std::to_string(s.peak_total) + " at peak");
    EXPECT_LE(s.reserved, reserved - (1 << 20));
  }
  EXPECT_TRUE(kept.intact());
  kept.free();
}

TEST(Allocator, ServesChildrenForkedWhileItsLockIsHeld) {
  std::atomic<bool> done = false;
  const auto work = [&] {
    while (!done) release(allocate(64, {}), 64, {});
  };
  std::thread busy(work), busy_too(work);
  int failed = 0;
  for (int i = 0; i < 60 && !failed; ++i)
    failed = test::status_of_child([] {
      release(allocate(64, {}), 64, {});
      return true;
    });
  done = true;
  busy.join();
  busy_too.join();
  EXPECT_EQ(failed, 0);
}

TEST(Pooled, AThreadWithoutMemoryMayFreeFirst) {
  void* const block = detail::Pool::take(64);
  std::thread([=] {
    const test::OutOfMemory none;
    detail::Pool::give(block, 64);
    EXPECT_THROW((void)detail::Pool::take(64), std::bad_alloc);
  }).join();
}

TEST(Allocator, BlocksMayBeFreedOnAnotherThread) {
  const MemoryStats before = memory_stats();
  std::vector<std::vector<Block>> made(4);
  const auto all = [](auto work) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) threads.emplace_back(work, t);
    for (std::thread& t : threads) t.join();
  };
  for (int round = 0; round < 20; ++round) {
    all([&](size_t t) {
      for (int i = 0; i < 200; ++i) {
        const Block brief(size_t(i) * 13, i);
        EXPECT_TRUE(brief.intact());
        brief.free();
        made[t].emplace_back(size_t(i) * 13, int(t) * 50 + i);
      }
    });
    all([&](size_t t) {
      std::vector<Block>& others = made[(t + 1) % 4];
      for (const Block& b : others) {
        EXPECT_TRUE(b.intact());
        b.free();
      }
      others.clear();
    });
  }
  const MemoryStats after = memory_stats();
  EXPECT_EQ(after.in_use, before.in_use);
  EXPECT_EQ(after.allocations, before.allocations + 20 * 4 * 400);
}

// Blocks of this thread's stream on the first CUDA device.
class Segments : public testing::Test {
 protected:
  void SetUp() override {
    if (runtime::devices().empty()) GTEST_SKIP() << runtime::cuda().no_device_reason();
    stream_ = Stream::current(device_).number;
    empty_cache(device_);
    before_ = memory_stats(device_);
  }
  char* take(size_t bytes) { return static_cast<char*>(allocate(bytes, device_, stream_)); }
  void give(void* block, size_t bytes) { release(block, bytes, device_, stream_); }
  int64_t system_calls() const { return memory_stats(device_).system_calls - before_.system_calls; }
  int64_t reserved() const { return memory_stats(device_).reserved - before_.reserved; }

  static constexpr Device device_ = Device::cuda();
  int stream_ = -1;
  MemoryStats before_;
};

TEST_F(Segments, ManySmallBlocksAskTheSystemAFewTimes) {
  std::vector<std::pair<char*, size_t>> blocks;
  size_t total = 0;
  for (size_t i = 0; i < 3000; ++i) {
    const size_t bytes = i * 37 % 40'000;
    blocks.emplace_back(take(bytes), bytes);
    total += bytes;
  }
  EXPECT_LE(system_calls(), 8);
  EXPECT_GE(reserved(), int64_t(total));
  EXPECT_LE(reserved(), int64_t(2 * total + (4 << 20)));
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks[i].first) % 256, 0u);
    if (i == 0) continue;
    EXPECT_LE(blocks[i - 1].first + blocks[i - 1].second, blocks[i].first);
  }
  for (const auto& [block, bytes] : blocks) give(block, bytes);
  const int64_t calls = system_calls();
  char* const again = take(20'000);
  EXPECT_EQ(system_calls(), calls);
  give(again, 20'000);
  empty_cache(device_);
  EXPECT_EQ(reserved(), 0);
}

TEST_F(Segments, OneGoesBackWhenAllItsBlocksAreFree) {
  constexpr size_t big = 1 << 20;
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(take(big));  // in several segments
  const int64_t all = reserved();
  for (size_t i = 1; i < blocks.size(); ++i) give(blocks[i], big);
  empty_cache(device_);
  EXPECT_LT(reserved(), all);
  EXPECT_GE(reserved(), int64_t(big));
  // Other free blocks of the segment that stays can still be allocated.
  char* const beside = take(big / 2);
  give(beside, big / 2);
  give(blocks[0], big);
  empty_cache(device_);
  EXPECT_EQ(reserved(), 0);
}

constexpr size_t mib = size_t{1} << 20;

TEST_F(Segments, LargeBlocksShareSegments) {
  std::vector<char*> blocks;
  for (int i = 0; i < 24; ++i) blocks.push_back(take(9 * mib / 8));  // as cudaMalloc would not
  EXPECT_EQ(system_calls(), 1);
  EXPECT_EQ(reserved(), int64_t(32 * mib));
  for (char* const b : blocks) give(b, 9 * mib / 8);
  char* const whole = take(16 * mib);  // of joined neighbours
  EXPECT_EQ(system_calls(), 1);
  give(whole, 16 * mib);
  empty_cache(device_);
  EXPECT_EQ(reserved(), 0);
}

TEST_F(Segments, VeryLargeBlocksAreServedByLargerOnes) {
  char* const first = take(100 * mib + 1);
  EXPECT_EQ(reserved(), int64_t(102 * mib));  // as the driver counts
  give(first, 100 * mib + 1);
  char *const a = take(40 * mib), *const b = take(50 * mib);
  EXPECT_EQ(a, first);
  EXPECT_GE(b, first + 40 * mib);
  EXPECT_EQ(system_calls(), 1);
  give(a, 40 * mib);
  EXPECT_EQ(take(30 * mib), first);  // the smallest that fits
  give(first, 30 * mib);
  give(b, 50 * mib);
  char* const again = take(100 * mib);
  EXPECT_EQ(again, first);
  give(again, 100 * mib);
  empty_cache(device_);
  EXPECT_EQ(reserved(), 0);
}

TEST_F(Segments, LengthsThatVaryAskTheSystemNoMore) {
  const auto step = [&](size_t length) {  // activations of a sequence's length
    std::vector<std::pair<char*, size_t>> blocks;
    for (size_t i = 1; i <= 6; ++i) blocks.emplace_back(take(i * length * 4096), i * length * 4096);
    for (const auto& [block, bytes] : blocks) give(block, bytes);
  };
  step(1024);
  const int64_t calls = system_calls();
  for (size_t length = 300; length <= 1024; length += 37) step(length);
  EXPECT_EQ(system_calls(), calls);
  empty_cache(device_);
}

TEST_F(Segments, BlocksOfAnySizesNeverOverlap) {
  RandomGenerator random(3);
  std::vector<std::pair<char*, size_t>> blocks;
  for (int i = 0; i < 2000; ++i) {
    if (blocks.size() < 20 || random.below(2) == 0) {
      const size_t bytes = mib + 1 + size_t(random.below(int64_t(6 * mib)));
      char* const block = take(bytes);
      for (const auto& [other, size] : blocks)
        ASSERT_TRUE(block + bytes <= other || other + size <= block) << "block " << i;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 256, 0u);
      blocks.emplace_back(block, bytes);
    } else {
      std::swap(blocks[size_t(random.below(int64_t(blocks.size())))], blocks.back());
      give(blocks.back().first, blocks.back().second);
      blocks.pop_back();
    }
  }
  for (const auto& [block, bytes] : blocks) give(block, bytes);
  empty_cache(device_);
  EXPECT_EQ(reserved(), 0);
}

TEST_F(Segments, ALackOfMemoryFreesWhatIsFree) {
  const size_t all = size_t(runtime::of(device_.type).properties(device_.index).memory);
  char *const kept = take(3 * mib), *const cached = take(20 * mib);
  give(cached, 20 * mib);
  EXPECT_THROW(take(all + mib), Error);
  EXPECT_EQ(reserved(), int64_t(32 * mib));  // the segment of `kept`
  give(kept, 3 * mib);
  empty_cache(device_);
}

#ifdef __SANITIZE_ADDRESS__
TEST(Allocator, AddressSanitizerSeesUseAfterReleaseAndOverruns) {
  char* p = static_cast<char*>(allocate(100, {}));
  EXPECT_FALSE(__asan_address_is_poisoned(p + 99));
  EXPECT_TRUE(__asan_address_is_poisoned(p + 100));
  release(p, 100, {});
  EXPECT_TRUE(__asan_address_is_poisoned(p));
}
#endif

}  // namespace core_allocator_test
}  // namespace mixtape
