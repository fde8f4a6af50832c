// The thread pool where processes fork, end, or cannot have another thread.
#include "kernels/cpu/loops/parallel.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/child.h"
#include "tests/support/errors.h"

namespace mixtape::kernels::cpu {
namespace kernels_parallel_test {

using test::NoNewThreads;
using test::status_of_child;

// True if a region runs every chunk exactly once.
bool region_works(int threads) {
  const ThreadLimit limit(threads);
  std::atomic<int64_t> sum = 0;
  parallel_for(1000, [&](int64_t i) { sum += i; });
  return sum == 499500;
}

// Made before the pool, so destroyed after it has stopped.
struct Late {
  bool runs_region = false;
  ~Late() {
    if (runs_region && !region_works(4)) _exit(3);
  }
} late;

TEST(Pool, ChildrenOfAUsedPoolWorkAndEnd) {
  for (const int threads : {2, 4, 8}) {
    ASSERT_TRUE(region_works(threads));
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(region_works(threads));  // workers spin or fall asleep while the process forks
      if (i % 2) usleep(100);
      ASSERT_EQ(status_of_child([=] { return region_works(threads); }), 0) << threads << " " << i;
      ASSERT_EQ(status_of_child([] { return true; }), 0) << "without an op";
    }
  }
  EXPECT_TRUE(region_works(4));
}

TEST(Pool, ServesGrandchildren) {
  ASSERT_TRUE(region_works(4));
  const auto forks_again = [] {
    return region_works(4) && status_of_child([] { return region_works(3); }) == 0 &&
           region_works(8);
  };
  EXPECT_EQ(status_of_child(forks_again), 0);
}

TEST(Pool, WorksWhileStaticsAreDestroyed) {
  const auto ends = [] {
    late.runs_region = true;
    return region_works(4);
  };
  EXPECT_EQ(status_of_child(ends), 0);
}

TEST(Pool, LetsAProgramExitWithinARegion) {
  const auto exits = [] {
    const ThreadLimit limit(4);
    parallel_for(1000, [](int64_t i) {
      if (i == 900) std::exit(7);
    });
    return true;
  };
  const int status = status_of_child(exits);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

TEST(Pool, HasAThreadAtLeast) {
  EXPECT_ERROR(ThreadLimit(0), "the limit of threads must be >= 1, got 0");
}

TEST(Pool, WorksAloneWhereNoThreadCanStart) {
  const auto alone = [] {
    const NoNewThreads refused;
    return region_works(8) && region_works(2);
  };
  EXPECT_EQ(status_of_child(alone), 0);
  const auto later = [] {
    {
      const NoNewThreads refused;
      if (!region_works(8)) return false;
    }
    return region_works(8);
  };
  EXPECT_EQ(status_of_child(later), 0);
}

}  // namespace kernels_parallel_test
}  // namespace mixtape::kernels::cpu
