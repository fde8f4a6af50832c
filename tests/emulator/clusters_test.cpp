// Clusters of blocks on the emulator: boxes for several blocks arrive in each, and each planted bug
// is found and named.

#include <gtest/gtest.h>

#include <vector>

#include "tests/emulator/hopper.h"

namespace mixtape::hopper_test {
namespace clusters {

enum Bug : int {
  None,
  NoStart,
  NoEnd,
  OwnReaders,
  FewBytes,
  ManyBytes,
  NotToOther,
  NoArrival,
  OtherRank,
  NoBlock,
  EarlyArrival,
};

constexpr int blocks = 2, rounds = 5, half = 16 * 64;  // elements of a box

template <class K, class... A>
void run_cluster(unsigned count, unsigned threads, K kernel, const A&... args) {
  launch({"k", {count, 1, 1}, {threads, 1, 1}, 5120, blocks}, nullptr, kernel, args...);
}

// Each block asks for half of the boxes that both read, round after round, and copies all of it to
// y.
__global__ void share(const __grid_constant__ TensorMap from, uint16_t* y, int bug) {
  const Shared<uint16_t> box = shared_memory<uint16_t>();
  const Shared<Barrier> full = shared_memory<Barrier>(4 * half), empty = full + 1;
  const int t = int(thread().x), rank = cluster_rank();
  if (t == 0) {
    barrier_init(full, 1);
    barrier_init(empty, bug == OwnReaders ? 4 : 8);
    fence_barrier_init();
  }
  sync_block();
  if (bug != NoStart) cluster_arrive();
  if (bug != NoStart) cluster_wait();
  for (int round = 0; round < rounds; ++round) {
    if (t == 0) {
      barrier_wait(empty, uint32_t(round + 1) % 2);
      barrier_expect(full, bug == FewBytes ? 2 * half : 4 * half + (bug == ManyBytes ? 128 : 0));
      const unsigned all = bug == NoBlock ? 0 : bug == NotToOther && rank == 1 ? 2 : 3;
      load_box(box + rank * half, from, full, {0, (2 * round + rank) * 16}, all);
    }
    barrier_wait(full, uint32_t(round) % 2);
    const auto give_back = [&] {
      sync_warp();
      if (bug == OwnReaders && lane() == 0) barrier_arrive(empty);
      if (bug == OwnReaders || (bug == NoArrival && round == 2 && t / 32 == 3)) return;
      if (lane() < blocks) barrier_arrive(empty, lane() + (bug == OtherRank));
    };
    if (bug == EarlyArrival) give_back();
    for (int i = t; i < 2 * half; i += 128)
      y[(int(block().x) * rounds + round) * 2 * half + i] = box[i];
    if (bug != EarlyArrival) give_back();
  }
  if (bug != NoEnd) cluster_arrive();
  if (bug != NoEnd) cluster_wait();
}
std::string shared_by(int bug) {
  std::vector<uint16_t> x(size_t(rounds * 2 * half)), y(4 * x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = uint16_t(7 * i);
  BoxedTensor t;
  t.data = x.data();
  t.size[0] = 64;
  t.size[1] = rounds * 2 * 16;
  t.stride[1] = 64;
  t.rows = 16;
  const std::string what =
      test::full_error([&] { run_cluster(4, 128, share, make_tensor_map(t), y.data(), bug); });
  for (size_t i = 0; i < y.size() && bug == None; ++i) {
    const size_t place = i % x.size(), row = place / 64;
    EXPECT_EQ(y[i], x[row * 64 + ((place / 8 % 8) ^ row % 8) * 8 + place % 8]) << i;
    if (testing::Test::HasFailure()) break;
  }
  return what;
}

// One of these words is in the message, as the order of threads decides.
void expect_found(Bug bug, const std::vector<std::string>& words) {
  in_all_timings([&] {
    const std::string what = shared_by(bug);
    bool found = false;
    for (const std::string& w : words) found = found || what.find(w) != std::string::npos;
    EXPECT_TRUE(found) << bug << ": " << what;
  });
}
TEST(Clusters, BlocksShareBoxes) {
  in_all_timings([] { EXPECT_EQ(shared_by(None), "no error"); });
}
TEST(Clusters, ABoxForTwoBlocksIsReadOnce) {
  const int64_t before = simt::bytes_of_boxes();
  shared_by(None);
  EXPECT_EQ(simt::bytes_of_boxes() - before, 2 * rounds * 4 * half);
}
TEST(Clusters, FindsBlocksThatDoNotMeet) {
  expect_found(NoStart, {"no barrier_init for a barrier at 4096 of block (",
                         "is used with no cluster_wait since its barrier_init"});
  expect_found(NoEnd, {"0) may have ended before the barrier_arrive in clusters_test.cpp:",
                       "0), which has ended"});
}
TEST(Clusters, FindsSlotsThatAreGivenBackTooEarly) {
  expect_found(OwnReaders, {"is touched before load_box", "race: shared memory at "});
  expect_found(EarlyArrival, {"is touched ", "race: shared memory at "});
}
TEST(Clusters, FindsWrongNumbersOfBytes) {
  expect_found(FewBytes, {"is touched before load_box in clusters_test.cpp:",
                          " brings 2048 bytes more than barrier_expect said",
                          "is touched with no barrier_wait for load_box"});
  const std::string both = "wait at barrier_wait in clusters_test.cpp:";
  for (const Bug bug : {ManyBytes, NotToOther})
    in_all_timings([&] {
      const std::string what = shared_by(bug);
      EXPECT_NE(what.find("waits for a box that no thread sends: block ("), std::string::npos)
          << what;
      EXPECT_NE(what.find("0 arrivals and " + std::string(bug == ManyBytes ? "128" : "2048")),
                std::string::npos)
          << what;
      EXPECT_NE(what.find("of block (0, 0, 0)") == std::string::npos,
                what.find("of block (2, 0, 0)") == std::string::npos)
          << what;
      EXPECT_NE(what.find("; block ("), std::string::npos) << what;
    });
}
TEST(Clusters, FindsMissingArrivals) {
  expect_found(NoArrival, {"waits for an arrival that no thread makes: block ("});
}
TEST(Clusters, RefusesBlocksThatAreNotThere) {
  expect_found(OtherRank, {"names block 2 of a cluster of 2"});
  expect_found(NoBlock, {"load_box in clusters_test.cpp:"});
}

template <class F>
__global__ void call(F f) {
  f(cluster_rank());
}
template <class F>
void expect_fault(const std::string& words, F f) {
  EXPECT_ERROR(run_cluster(2, 128, call<F>, f), words);
}
TEST(Clusters, RefusesWrongStepsOfTheirBarrier) {
  expect_fault("cluster_arrive with no cluster_wait since that in clusters_test.cpp:", [](int) {
    cluster_arrive();
    cluster_arrive();
  });
  expect_fault("cluster_wait with no cluster_arrive", [](int) { cluster_wait(); });
  expect_fault("ends with no cluster_wait for cluster_arrive in clusters_test.cpp:",
               [](int) { cluster_arrive(); });
  expect_fault("waits for threads of the cluster that never come: block (0, 0, 0): 128 threads",
               [](int rank) {
                 if (rank == 0) cluster_arrive();
                 if (rank == 0) cluster_wait();
                 if (rank == 1 && thread().x < 64) sync_block();
               });
}
TEST(Clusters, ThreadsThatHaveEndedAreNotWaitedFor) {
  run_cluster(
      2, 128, call<void (*)(int)>, +[](int rank) {
        const Shared<int> x = shared_memory<int>();
        x[int(thread().x)] = rank;  // each block has its own
        if (thread().x >= 32) return;
        for (int i = 0; i < 3; ++i) {
          cluster_arrive();
          cluster_wait();
        }
        EXPECT_EQ(x[int(thread().x)], rank);
      });
}
TEST(Clusters, RefusesSizesThatADeviceRefuses) {
  const auto nothing = +[](int) {};
  const auto with = [&](unsigned count, unsigned threads, unsigned size) {
    return test::error([&] {
      launch({"k", {count, 1, 1}, {threads, 1, 1}, 0, size}, nullptr, call<void (*)(int)>, nothing);
    });
  };
  EXPECT_EQ(with(4, 128, 4), "no error");
  EXPECT_EQ(with(4, 128, 3), "kernel k: clusters of 3 blocks, not 1 to 8 that divide 4");
  EXPECT_EQ(with(16, 128, 16), "kernel k: clusters of 16 blocks, not 1 to 8 that divide 16");
  EXPECT_EQ(with(4, 96, 2), "kernel k: blocks of 96 threads in a cluster, no multiple of 128");
}

}  // namespace clusters
}  // namespace mixtape::hopper_test
