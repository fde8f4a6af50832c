// The PTX interpreter with clusters of blocks: boxes for several blocks give right results, and
// each planted fault is reported.

#include "tests/emulator/planted_hopper.h"

namespace {

enum class Plant {
  None,
  NoStart,  // the blocks do not meet before they send
  NoEnd,    // nor before they end
  OwnReaders,
  FewBytes,
  ManyBytes,
  NotToOther,
  NoArrival,
  OtherRank,
  OtherBlock,
  NoBlock,
  MappedTwice,
  ArrivesTwice,
  NoWaitAtEnd,
  NoArrivalAtEnd,
  OneBlockAtEnd,
};
constexpr int blocks = 2, rounds = 5, half = 16 * 64;

// Each block asks for half of the boxes that both read, round after round, and copies all of it to
// y.
template <Plant plant>
__global__ void __launch_bounds__(128) share(const __grid_constant__ TensorMap from, uint32_t* y) {
  const auto is = [](Plant p) { return plant == p; };
  auto* const full = reinterpret_cast<Barrier*>(bytes + 4 * half);
  Barrier* const empty = full + 1;
  const int t = int(threadIdx.x), rank = cluster_rank();
  if (t == 0) {
    barrier_init(full, 1);
    barrier_init(empty, is(Plant::OwnReaders) ? 4 : 8);
    fence_barrier_init();
  }
  sync_block();
  if (!is(Plant::NoStart)) cluster_arrive();
  if (!is(Plant::NoStart)) cluster_wait();
  for (int round = 0; round < rounds; ++round) {
    if (t == 0) {
      barrier_wait(empty, uint32_t(round + 1) % 2);
      const int wrong = is(Plant::FewBytes) ? -2 * half : is(Plant::ManyBytes) ? 128 : 0;
      barrier_expect(full, 4 * half + wrong);
      const unsigned all = is(Plant::NoBlock)                   ? 0
                           : is(Plant::OtherBlock)              ? 7
                           : is(Plant::NotToOther) && rank == 1 ? 2
                                                                : 3;
      load_box(bytes + rank * 2 * half, from, full, {0, (2 * round + rank) * 16}, all);
    }
    barrier_wait(full, uint32_t(round) % 2);
    for (int i = t; i < half; i += 128)
      y[(int(blockIdx.x) * rounds + round) * half + i] = reinterpret_cast<uint32_t*>(bytes)[i];
    sync_warp();
    if (is(Plant::OwnReaders)) {
      if (lane() == 0) barrier_arrive(empty);
    } else if (!is(Plant::NoArrival) || round != 2 || t / 32 != 3) {
      if (lane() < blocks) barrier_arrive(empty, lane() + is(Plant::OtherRank));
    }
  }
  if (is(Plant::MappedTwice) && t == 0) {
    unsigned there = 0;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(there) : "r"(0));
    asm volatile("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(there) : "r"(there));
    y[0] = there;
  }
  if (is(Plant::NoEnd) || (is(Plant::OneBlockAtEnd) && rank == 1)) return;
  if (!is(Plant::NoArrivalAtEnd)) cluster_arrive();
  if (is(Plant::ArrivesTwice)) cluster_arrive();
  if (!is(Plant::NoWaitAtEnd)) cluster_wait();
}
template <Plant plant>
void expect_shared() {
  std::vector<uint16_t> x(size_t(rounds * 2 * half));
  for (size_t i = 0; i < x.size(); ++i) x[i] = uint16_t(7 * i);
  auto* const y = on_device(std::vector<uint32_t>(2 * x.size()));
  const TensorMap map = map_of({.type = CU_TENSOR_MAP_DATA_TYPE_UINT16,
                                .address = on_device(x),
                                .size = {64, cuuint64_t(rounds * 2 * 16)},
                                .box = {64, 16}});
  EXPECT_EQ(run({128, 4, blocks}, 5120, share<plant>, map, y), cudaSuccess);
  const std::vector<uint32_t> got = read(y, 2 * x.size());
  for (size_t i = 0; i < 4 * x.size(); ++i) {
    const size_t place = i % x.size(), row = place / 64;
    const auto v = uint16_t(got[i / 2] >> (16 * (i % 2)));
    ASSERT_EQ(v, x[row * 64 + ((place / 8 % 8) ^ row % 8) * 8 + place % 8]) << i;
  }
}
TEST(PtxCluster, BlocksShareBoxes) { expect_shared<Plant::None>(); }

__global__ void count_ranks(int* y) { y[blockIdx.x * 128 + threadIdx.x] += 1 + cluster_rank(); }
TEST(PtxCluster, RunsInGraphs) {
  int* const y = on_device(std::vector<int>(512));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(start({128, 4, 2}, 0, count_ranks, y), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(ready, stream()), cudaSuccess);
  const std::vector<int> got = read(y, 512);
  for (int i = 0; i < 512; ++i) EXPECT_EQ(got[size_t(i)], i / 128 % 2 == 0 ? 3 : 6) << i;
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
}
TEST(PtxCluster, FindsBlocksThatDoNotMeet) {
  if (races) EXPECT_FAULT(expect_shared<Plant::NoStart>(), "the mbarrier at 0x100[08] may be new");
  EXPECT_FAULT(expect_shared<Plant::NoEnd>(),
               races ? "an arrival of another block may be under way|has ended" : "has ended");
}
TEST(PtxCluster, FindsSlotsThatAreGivenBackTooEarly) {
  if (races)
    EXPECT_FAULT(expect_shared<Plant::OwnReaders>(), "shared memory that (is read|was written) by");
}
TEST(PtxCluster, FindsWrongNumbersOfBytes) {
  EXPECT_FAULT(expect_shared<Plant::ManyBytes>(),
               "waits for what never comes: block .0, 0, 0.: .* and 128 bytes.* block .1, 0, 0.:");
  EXPECT_FAULT(expect_shared<Plant::NotToOther>(),
               "waits for what never comes: block .*2048 bytes");
  if (races)
    EXPECT_FAULT(expect_shared<Plant::FewBytes>(), "a box that is under way|was written by a box");
}
TEST(PtxCluster, FindsMissingArrivals) {
  EXPECT_FAULT(expect_shared<Plant::NoArrival>(),
               "waits for what never comes: block .0, 0, 0.:.* block .1, 0, 0.: warp 0 at ");
}
TEST(PtxCluster, RefusesBlocksThatAreNotThere) {
  EXPECT_FAULT(expect_shared<Plant::OtherRank>(), "block 2 of a cluster of 2");
  EXPECT_FAULT(expect_shared<Plant::OtherBlock>(), "block 2 of a cluster of 2");
  EXPECT_FAULT(expect_shared<Plant::NoBlock>(), "a box for no block");
  EXPECT_FAULT(expect_shared<Plant::MappedTwice>(), "is not in this block's shared memory");
}
TEST(PtxCluster, RefusesWrongStepsOfItsBarrier) {
  EXPECT_FAULT(expect_shared<Plant::ArrivesTwice>(), "arrives again, and did not wait");
  EXPECT_FAULT(expect_shared<Plant::NoArrivalAtEnd>(), "waits, and did not arrive");
  EXPECT_FAULT(expect_shared<Plant::NoWaitAtEnd>(), "did not wait at the cluster's barrier");
}

__global__ void arrive_there(int far) {
  auto* const b = reinterpret_cast<Barrier*>(bytes + far);
  if (cluster_rank() == 0 && threadIdx.x == 0) barrier_arrive(b, 1);
}
__global__ void wait_alone() {
  if (cluster_rank() == 1 && threadIdx.x % 64 == 0) sync_threads(1, 96);
  cluster_arrive();
  cluster_wait();
}
TEST(PtxCluster, RefusesWhatADeviceRefuses) {
  EXPECT_FAULT(run({128, 3, 2}, 0, wait_alone), "clusters of 2 of 3 blocks of 128 threads");
  EXPECT_FAULT(run({128, 16, 16}, 0, wait_alone), "clusters of 16 of 16 blocks");
  EXPECT_FAULT(run({96, 2, 2}, 0, wait_alone), "clusters of 2 of 2 blocks of 96 threads");
  EXPECT_FAULT(run({128, 2, 2}, 0, wait_alone), "waits for");
  EXPECT_FAULT(run({128, 2, 2}, 1024, arrive_there, 2048), "8 bytes of another block, at 0x800");
  EXPECT_FAULT(run({128, 2, 2}, 1024, arrive_there, 4), "8 bytes of another block, at 0x4");
  if (races) EXPECT_FAULT(run({512, 4, 4}, 0, wait_alone), "at most 32 warps of a cluster");
}

}  // namespace
