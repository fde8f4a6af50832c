// The PTX interpreter with Hopper's additions: boxes, mbarriers and wgmma give right results, and
// each planted fault is reported. A fault makes its program fail, so each runs in its own process.

#include <cmath>

#include "tests/emulator/planted_hopper.h"

namespace {

TEST(PtxHopper, RefusesMapsThatTheDriverRefuses) {
  char* const data = on_device(std::vector<char>(8192));
  map_of({.address = data});
  EXPECT_FAULT(map_of({.address = data + 8}), "an address that is not aligned to 16");
  EXPECT_FAULT(map_of({.address = data, .stride = 136}), "a stride of 136 in dimension 1");
  EXPECT_FAULT(map_of({.address = data, .size = {0, 64}}), "a size of 0 in dimension 0");
  EXPECT_FAULT(map_of({.address = data, .box = {64, 257}}), "a box of 257 in dimension 1");
  EXPECT_FAULT(map_of({.address = data, .box = {128, 64}}), "rows of a box of 256 bytes, swizzled");
  EXPECT_FAULT(map_of({.address = data, .box = {4, 64}, .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE}),
               "rows of a box of 8 bytes");
  void* function = nullptr;
  EXPECT_FAULT(cudaGetDriverEntryPointByVersion("cuTensorMap", &function, 12000, 0, nullptr),
               "there is no driver function cuTensorMap");
}

// --- products ---

enum class Plant {
  None,
  NoFence,     // of the new barriers
  NoWait,      // for the boxes
  WrongBytes,  // expected of them
  NoProducer,
  OverwrittenBarrier,
  EarlyRelease,  // of a slot
  NoProductFence,
  NoProductWait,
  OneWarpLess,   // in a product
  BeginsAtRow4,  // an operand
  ReadsSums,     // before the wait
  NoAsyncFence,  // before a store
  NoStoreWait,
  OverwrittenStore,
  MissingWarp,  // at a barrier of warps
};

// y = a b^T, 64 x 64, by a ring of two slots.
template <class T, bool ta, bool tb, Plant plant = Plant::None>
__global__ void __launch_bounds__(256)
    product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* y,
            int steps) {
  constexpr int deep = 128 / int(sizeof(T)), box = 64 * 128;
  auto* const full = reinterpret_cast<Barrier*>(bytes + 4 * box);
  Barrier* const empty = full + 2;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) barrier_init(full + s, 1), barrier_init(empty + s, 1);
    if (plant != Plant::NoFence) fence_barrier_init();
    if (plant == Plant::OverwrittenBarrier) full[1].state = 0;
  }
  sync_block();
  const int t = int(threadIdx.x) % 128;
  if (threadIdx.x < 128) {
    for (int k = 0; k < steps && t == 0 && plant != Plant::NoProducer; ++k) {
      const int s = k % 2;
      barrier_wait(empty + s, k / 2 % 2 ^ 1);
      barrier_expect(full + s, 2 * box + (plant == Plant::WrongBytes ? 16 : 0));
      load_box(bytes + 2 * s * box, a, full + s, ta ? BoxAt{0, k * deep} : BoxAt{k * deep, 0});
      load_box(bytes + (2 * s + 1) * box, b, full + s,
               tb ? BoxAt{0, k * deep} : BoxAt{k * deep, 0});
    }
    return;
  }
  float d[32];
  for (int k = 0; k < steps; ++k) {
    const int s = k % 2;
    if (plant != Plant::NoWait) barrier_wait(full + s, k / 2 % 2);
    if (plant != Plant::NoProductFence) group_fence();
    if (plant == Plant::OneWarpLess && t >= 96) break;
    const char* const at_a = bytes + 2 * s * box + (plant == Plant::BeginsAtRow4 ? 512 : 0);
    for (int j = 0; j < 4; ++j)
      multiply_group<T, 64, ta, tb>(d, make_operand(at_a + (ta ? j * 2048 : j * 32), ta, box),
                                    make_operand(at_a + box + (tb ? j * 2048 : j * 32), tb, box),
                                    k > 0 || j > 0);
    group_commit();
    if (plant == Plant::EarlyRelease && t == 0) barrier_arrive(empty + s);
    if (plant == Plant::ReadsSums) y[t] = d[t % 32];
    if (plant != Plant::NoProductWait) group_wait<0>();
    if (plant != Plant::EarlyRelease && t == 0) barrier_arrive(empty + s);
  }
  for (int i = 0; i < 32; ++i) {
    const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8,
              column = i / 4 * 8 + t % 4 * 2 + i % 2;
    if (plant != Plant::ReadsSums) y[row * 64 + column] = d[i];
  }
}

template <class T>
CUtensorMapDataType type_of() {
  return std::is_same_v<T, Half>       ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
         : std::is_same_v<T, BFloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
}
// Small numbers, exact in every type; products and sums of them are too.
int number(int i, int k) { return (i * 7 + k * 5) % 11 - 5; }

// A map of 64 lines of `depth` numbers, dense along k or, transposed, along lines.
template <class T>
TensorMap operand(int depth, bool transposed, int factor) {
  std::vector<T> all(size_t(64) * depth);
  for (int i = 0; i < 64; ++i)
    for (int k = 0; k < depth; ++k)
      all[size_t(transposed ? k * 64 + i : i * depth + k)] = T(float(factor * number(i, k)));
  const auto across = cuuint64_t(transposed ? 64 : depth),
             down = cuuint64_t(transposed ? depth : 64);
  return map_of({.type = type_of<T>(),
                 .address = on_device(all),
                 .size = {across, down},
                 .stride = across * sizeof(T),
                 .box = {128 / sizeof(T), 64}});
}
constexpr int depth = 200;  // the last box is partly beyond it

template <class T, bool ta, bool tb, Plant plant = Plant::None>
cudaError_t multiply(float* y) {
  return run(256, 4 * 8192 + 64, product<T, ta, tb, plant>, operand<T>(depth, ta, 1),
             operand<T>(depth, tb, 2), y, (depth * int(sizeof(T)) + 127) / 128);
}
template <class T, bool ta, bool tb>
void expect_product() {
  float* const y = on_device(std::vector<float>(64 * 64));
  EXPECT_EQ((multiply<T, ta, tb>(y)), cudaSuccess);
  const std::vector<float> got = read(y, 64 * 64);
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < 64; ++j) {
      int sum = 0;
      for (int k = 0; k < depth; ++k) sum += 2 * number(i, k) * number(j, k);
      ASSERT_EQ(got[size_t(i * 64 + j)], float(sum)) << i << ' ' << j << ' ' << ta << tb;
    }
}
TEST(PtxHopper, MultipliesInEveryLayout) {
  expect_product<Half, false, false>();
  expect_product<Half, false, true>();
  expect_product<Half, true, false>();
  expect_product<Half, true, true>();
  expect_product<BFloat16, false, true>();
  expect_product<BFloat16, true, false>();
  expect_product<float, false, false>();
}

template <Plant plant>
cudaError_t planted() {
  return multiply<Half, false, true, plant>(on_device(std::vector<float>(64 * 64)));
}
TEST(PtxHopper, FindsFaultsOfBarriers) {
  EXPECT_FAULT(planted<Plant::NoFence>(), "the mbarrier is new, and no fence");
  EXPECT_FAULT(planted<Plant::OverwrittenBarrier>(), "the mbarrier at 0x8008 was overwritten");
  EXPECT_FAULT(planted<Plant::WrongBytes>(),
               "warp 4 at mbarrier.try_wait.*: phase 0 of the mbarrier at 0x8000 lacks 0 of 1 "
               "arrivals and 16 bytes");
  EXPECT_FAULT(planted<Plant::NoProducer>(),
               "waits for what never comes: warp 4 at mbarrier.try_wait"
               ".*of the mbarrier at 0x8000 lacks 1 of 1 arrivals and 0 bytes");
}
TEST(PtxHopper, FindsFaultsOfProducts) {
  EXPECT_FAULT(planted<Plant::NoWait>(), "shared memory (that|changed)");
  EXPECT_FAULT(planted<Plant::EarlyRelease>(),
               "shared memory (that (a box is still written to|is read by wgmma)|changed)");
  EXPECT_FAULT(planted<Plant::NoProductFence>(),
               "no wgmma.fence since its sums were plain registers");
  EXPECT_FAULT(planted<Plant::NoProductWait>(),
               "exits while wgmma is under way|that is read by wgmma");
  EXPECT_FAULT(planted<Plant::OneWarpLess>(), "waits for what never comes.* at wgmma.wait_group");
  EXPECT_FAULT(planted<Plant::BeginsAtRow4>(), "is not where the swizzle begins");
  float* const y = on_device(std::vector<float>(64 * 64));
  EXPECT_EQ((multiply<Half, false, true, Plant::ReadsSums>(y)), cudaSuccess);
  for (const float v : read(y, 128)) EXPECT_TRUE(std::isnan(v));
}

// --- boxes ---

// Negates a box of 64 x 64 halves on its way from one tensor to another.
template <Plant plant>
__global__ void negate(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to,
                       BoxAt at) {
  auto* const full = reinterpret_cast<Barrier*>(bytes + 8192);
  auto* const words = reinterpret_cast<uint32_t*>(bytes);
  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    fence_barrier_init();
    barrier_expect(full, 8192);
    load_box(bytes, from, full, at);
  }
  sync_block();
  if (plant != Plant::NoWait) barrier_wait(full, 0);
  for (unsigned i = threadIdx.x; i < 2048; i += 128) words[i] ^= 0x80008000;
  if (plant != Plant::NoAsyncFence) fence_async();
  if (plant != Plant::MissingWarp || threadIdx.x < 96) sync_threads(1, 128);
  if (threadIdx.x == 0) {
    store_box(to, bytes, at);
    store_commit();
  }
  if (plant == Plant::OverwrittenStore) {
    sync_threads(1, 128);
    if (threadIdx.x == 127) words[100] = 0;
  }
  if (threadIdx.x == 0 && plant != Plant::NoStoreWait) store_wait_read<0>();
}
template <Plant plant>
void expect_negated(BoxAt at) {
  std::vector<Half> x(40 * 48);
  for (size_t i = 0; i < x.size(); ++i) x[i] = Half(float(i));
  Half *const from = on_device(x), *const to = on_device(x);
  const auto map = [](Half* data) {
    return map_of({.address = data, .size = {40, 48}, .stride = 80});
  };
  EXPECT_EQ(run(128, 8192 + 64, negate<plant>, map(from), map(to), at), cudaSuccess);
  const std::vector<Half> got = read(to, x.size());
  for (int r = 0; r < 48; ++r)
    for (int c = 0; c < 40; ++c) {
      const bool inside = c >= at.x && r >= at.y;
      const float v = float(40 * r + c);
      EXPECT_EQ(float(got[size_t(40 * r + c)]), inside ? -v : v) << r << ' ' << c;
    }
}
TEST(PtxHopper, BoxesEndAtTheEdgesOfATensor) {
  expect_negated<Plant::None>({0, 0});
  expect_negated<Plant::None>({-8, -5});
  expect_negated<Plant::None>({24, 40});
}
TEST(PtxHopper, FindsFaultsOfBoxes) {
  EXPECT_FAULT(expect_negated<Plant::NoStoreWait>({}), "exits while a box is stored");
  EXPECT_FAULT(expect_negated<Plant::OverwrittenStore>({}),
               "shared memory changed while a box was stored from it");
  EXPECT_FAULT(expect_negated<Plant::MissingWarp>({}), "at bar.sync 1 with 96 of 128 threads");
  if (races) {
    EXPECT_FAULT(expect_negated<Plant::NoWait>({}), "that was written by a box");
    EXPECT_FAULT(expect_negated<Plant::NoAsyncFence>({}), "and no fence.proxy.async followed");
  }
}

// Copies 256 bytes without a tensor map, each way.
__global__ void copy_row(const char* from, char* to) {
  auto* const full = reinterpret_cast<Barrier*>(bytes + 256);
  const auto at = unsigned(__cvta_generic_to_shared(bytes));
  barrier_init(full, 1);
  fence_barrier_init();
  barrier_expect(full, 256);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::
          "r"(at),
      "l"(from), "r"(at + 256)
      : "memory");
  barrier_wait(full, 0);
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" ::"l"(to), "r"(at)
               : "memory");
  store_commit();
  store_wait<0>();
}
TEST(PtxHopper, CopiesRowsWithoutAMap) {
  std::vector<char> x(256);
  for (int i = 0; i < 256; ++i) x[size_t(i)] = char(i);
  char* const to = on_device(std::vector<char>(256));
  EXPECT_EQ(run(1, 512, copy_row, on_device(x), to), cudaSuccess);
  EXPECT_EQ(read(to, 256), x);
}

// --- what operations refuse ---

enum class Misuse {
  NoBarrier,
  NoArrivals,
  TwoBarriers,
  ManyBarriers,
  ExpectingBarrier,
  ManyBytes,
  ManyArrivals,
  Parity,
  CopiedMap,
  NoMap,
  OtherRank,
  OddCopy,
  LoadWithoutBarrier,
  BaseOffset,
  BeyondShared,
  WrittenSums,
  OtherLanesAdd,
  OtherLanes,
  OtherWarps,
  FewerProducts,
  ManyThreads,
  OtherCount,
  GateNumber,
  LeftAtGate,
  LeftBox,
};

__device__ void multiply_some(float (&d)[4], uint64_t a, uint64_t b, unsigned add) {
  asm volatile(
      "{.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b), "r"(add));
}
template <Misuse how>
__global__ void __launch_bounds__(128)
    misuse(const __grid_constant__ TensorMap map, TensorMap copied, float* y) {
  const auto is = [](Misuse m) { return how == m; };
  auto* const barrier = reinterpret_cast<Barrier*>(bytes + 16384);
  const auto at = unsigned(__cvta_generic_to_shared(bytes));
  const unsigned t = threadIdx.x;
  if (t == 0 && !is(Misuse::NoBarrier) && !is(Misuse::LoadWithoutBarrier)) {
    barrier_init(barrier, is(Misuse::NoArrivals) ? 0 : 1);
    if (is(Misuse::TwoBarriers)) barrier_init(barrier, 1);
    for (int i = 1; i < 100 && is(Misuse::ManyBarriers); ++i) barrier_init(barrier + i, 1);
    fence_barrier_init();
  }
  __syncthreads();
  if (t == 0) {
    if (is(Misuse::NoBarrier)) barrier_arrive(barrier);
    if (is(Misuse::ManyBytes)) barrier_expect(barrier, 1 << 20);
    if (is(Misuse::ExpectingBarrier) || is(Misuse::ManyArrivals) || is(Misuse::LeftBox))
      barrier_expect(barrier, 8192);
    if (is(Misuse::ManyArrivals)) barrier_arrive(barrier);
    if (is(Misuse::ExpectingBarrier))
      asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(at + 16384) : "memory");
    if (is(Misuse::Parity)) barrier_wait(barrier, 2);
    if (is(Misuse::CopiedMap)) load_box(bytes, copied, barrier, {});
    if (is(Misuse::NoMap) || is(Misuse::LoadWithoutBarrier) || is(Misuse::LeftBox))
      load_box(bytes, map, barrier, {});
    if (is(Misuse::OtherRank))
      asm volatile(
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
          " [%0], [%1, {%2, %2}], [%3];" ::"r"(at),
          "l"(&map), "r"(0), "r"(at + 16384)
          : "memory");
    if (is(Misuse::OddCopy))
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(y), "r"(at),
                   "r"(t + 8)
                   : "memory");
  }
  // 64 and 8 lines of 16 halves, eight lines of 16 bytes after the other.
  constexpr uint64_t shape = uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
  uint64_t a = at >> 4 | shape, b = a;
  if (is(Misuse::BaseOffset)) a |= uint64_t(1) << 49;
  if (is(Misuse::BeyondShared)) a += 0x1000;
  if (is(Misuse::OtherLanes) && t % 32 == 5) b += 16;
  if (is(Misuse::OtherWarps) && t / 32 == 2) b += 16;
  if (how >= Misuse::BaseOffset && how <= Misuse::FewerProducts) {
    float d[4] = {};
    group_fence();
    multiply_some(d, a, b, !is(Misuse::OtherLanesAdd) || t % 32 > 3);
    if (is(Misuse::WrittenSums)) d[2] = y[0], multiply_some(d, a, b, 1);
    if (is(Misuse::FewerProducts) && t < 32) {
      group_commit();
      multiply_some(d, a, b, 1);
    }
    group_commit();
    if (is(Misuse::FewerProducts) && t < 32)
      group_wait<1>();
    else
      group_wait<0>();
    y[t] = d[0] + d[1] + d[2] + d[3];
  }
  if (is(Misuse::ManyThreads)) sync_threads(1, 96);
  if (is(Misuse::OtherCount)) sync_threads(1, t < 64 ? 64 : 96);
  if (is(Misuse::GateNumber)) sync_threads(16, 128);
  if (is(Misuse::LeftAtGate) && t < 32) asm volatile("bar.arrive 3, 64;" ::: "memory");
}
template <Misuse how>
cudaError_t misused() {
  char* const data = on_device(std::vector<char>(8192));
  const TensorMap map = map_of({.address = data});
  return run(128, 16384 + 1024, misuse<how>, how == Misuse::NoMap ? TensorMap{} : map, map,
             on_device(std::vector<float>(128)));
}
TEST(PtxHopper, RefusesMisusedBarriers) {
  EXPECT_FAULT(misused<Misuse::NoBarrier>(), "there is no mbarrier at 0x4000");
  EXPECT_FAULT(misused<Misuse::NoArrivals>(), "an mbarrier of 0 arrivals");
  EXPECT_FAULT(misused<Misuse::TwoBarriers>(), "there is an mbarrier at 0x4000 already");
  EXPECT_FAULT(misused<Misuse::ManyBarriers>(), "too many mbarriers");
  EXPECT_FAULT(misused<Misuse::ExpectingBarrier>(), "bytes are on their way to the mbarrier");
  EXPECT_FAULT(misused<Misuse::ManyBytes>(), "an mbarrier cannot expect 1048576 bytes");
  EXPECT_FAULT(misused<Misuse::ManyArrivals>(),
               "at the mbarrier at 0x4000, whose phase 0 has all of its 1 arrivals");
  EXPECT_FAULT(misused<Misuse::Parity>(), "a parity of 2");
  EXPECT_FAULT(misused<Misuse::ManyThreads>(), "more threads than the barrier is for");
  EXPECT_FAULT(misused<Misuse::OtherCount>(), "a barrier of (64|96) threads, and of (64|96) for");
  EXPECT_FAULT(misused<Misuse::GateNumber>(), "barrier 16 of 128 threads");
  EXPECT_FAULT(misused<Misuse::LeftAtGate>(), "ends while 32 threads wait at a barrier");
}
TEST(PtxHopper, RefusesMisusedBoxes) {
  EXPECT_FAULT(misused<Misuse::CopiedMap>(), "must be a __grid_constant__ parameter");
  EXPECT_FAULT(misused<Misuse::NoMap>(), "this is no tensor map");
  EXPECT_FAULT(misused<Misuse::OtherRank>(), "a tensor map of 4 dimensions");
  EXPECT_FAULT(misused<Misuse::OddCopy>(), "a copy of 8 bytes");
  EXPECT_FAULT(misused<Misuse::LoadWithoutBarrier>(), "there is no mbarrier at 0x4000");
  EXPECT_FAULT(misused<Misuse::LeftBox>(), "the block ends while boxes are under way");
}
TEST(PtxHopper, RefusesMisusedProducts) {
  EXPECT_FAULT(misused<Misuse::BaseOffset>(), "a base offset in a descriptor is not known");
  EXPECT_FAULT(misused<Misuse::BeyondShared>(), "shared memory of 17408 bytes, at 65536: 16");
  EXPECT_FAULT(misused<Misuse::WrittenSums>(), "sums of wgmma were written while");
  EXPECT_FAULT(misused<Misuse::OtherLanesAdd>(), "its lanes differ in whether to add");
  EXPECT_FAULT(misused<Misuse::OtherLanes>(), "its lanes differ in their descriptors");
  EXPECT_FAULT(misused<Misuse::OtherWarps>(), "warps of a group multiply different matrices");
  EXPECT_FAULT(misused<Misuse::FewerProducts>(), "exits while wgmma is under way");
}

// --- registers, lanes, matrices ---

template <int low, int high>
__global__ void __launch_bounds__(384, 1) share_registers(float* y) {
  if (threadIdx.x < 128)
    lower_registers<low>();
  else
    raise_registers<high>();
  y[threadIdx.x] = 1;
}
__global__ void raise_without_bounds() { raise_registers<232>(); }
__global__ void group_alone() { group_fence(); }

TEST(PtxHopper, RegistersMustFit) {
  float* const y = on_device(std::vector<float>(384));
  EXPECT_EQ(run(384, 0, share_registers<40, 232>, y), cudaSuccess);
  EXPECT_FAULT(run(384, 0, share_registers<40, 240>, y),
               "waits for what never comes: .*at setmaxnreg.inc");
  EXPECT_FAULT(run(384, 0, share_registers<176, 232>, y), "176 registers, and 168 before");
  EXPECT_FAULT(run(128, 0, raise_without_bounds), "the kernel has no __launch_bounds__");
  EXPECT_FAULT(run(64, 0, group_alone), "needs four warps");
  EXPECT_FAULT(run(24, 0, group_alone), "needs all lanes of a warp");
}

// The lane that was elected, and how matrices lie in shared memory.
__global__ void store_and_elect(uint16_t* y, int* elected) {
  const unsigned at = unsigned(__cvta_generic_to_shared(bytes)), l = threadIdx.x;
  const uint32_t part[4] = {l * 2 + (l * 2 + 1) * 65536, l * 2 + 1000, l * 2 + 2000, l * 2 + 3000};
  store_matrices(bytes + 16 * l, part);
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(at + 512 + 16 * l % 128),
      "r"(part[0])
      : "memory");
  __syncwarp();
  for (unsigned i = l; i < 320; i += 32) y[i] = reinterpret_cast<uint16_t*>(bytes)[i];
  if (l < 4) return;
  int first = 0;
  asm volatile("{.reg .pred p;\nelect.sync _|p, 0xfffffff0;\nselp.b32 %0, 1, 0, p;}" : "=r"(first));
  elected[l] = first;
}
TEST(PtxHopper, StoresMatrices) {
  uint16_t* const y = on_device(std::vector<uint16_t>(320));
  int* const elected = on_device(std::vector<int>(32));
  EXPECT_EQ(run(32, 640, store_and_elect, y, elected), cudaSuccess);
  for (int l = 0; l < 32; ++l) EXPECT_EQ(read(elected, 32)[size_t(l)], l == 4) << l;
  const std::vector<uint16_t> got = read(y, 320);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(got[size_t(i)], i);
    EXPECT_EQ(got[size_t(64 + i)], i % 2 ? 0 : 1000 + i);
    EXPECT_EQ(got[size_t(256 + i)], i % 8 * 8 + i / 8);
  }
}

// Eight-bit numbers, without swizzle; and an operand in registers.
__global__ void small_products(float* y, float* z) {
  const unsigned t = threadIdx.x;
  // Chunks of 8 lines of 16 bytes follow each other: along k, then along lines. e4m3 of 1 is 0x38.
  for (unsigned i = t; i < 64 * 32; i += 128) bytes[i] = 0;
  for (unsigned i = t; i < 8 * 32; i += 128) bytes[2048 + i] = 0x38;
  __syncthreads();
  if (t < 64) bytes[t / 8 * 256 + t % 8 * 16] = t % 2 ? 0x38 : 0x40;  // k = 0: 1 or 2
  fence_async();
  __syncthreads();
  const uint64_t at = unsigned(__cvta_generic_to_shared(bytes)) >> 4;
  const uint64_t shape = uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
  float d[4] = {1, 1, 1, 1}, e[4] = {};
  group_fence();
  asm volatile(
      "{.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, p, -1, 1;}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(at | shape), "l"((at + 128) | shape));
  // Rows of 16 elements of f16 that are 1, and b: bytes 0x38, which are 0.52734375.
  asm volatile(
      "{.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %4, %4, %4}, %5, "
      "p, 1, "
      "1, 0;}"
      : "+f"(e[0]), "+f"(e[1]), "+f"(e[2]), "+f"(e[3])
      : "r"(0x3c003c00), "l"((at + 128) | shape));
  group_commit();
  group_wait<0>();
  for (int i = 0; i < 4; ++i) {
    y[(t / 32 * 16 + t % 32 / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[i];
    z[t * 4 + unsigned(i)] = e[i];
  }
}
TEST(PtxHopper, MultipliesEightBitsAndRegisters) {
  float *const y = on_device(std::vector<float>(512)), *const z =
                                                           on_device(std::vector<float>(512));
  EXPECT_EQ(run(128, 4096, small_products, y, z), cudaSuccess);
  const std::vector<float> got = read(y, 512);
  for (int i = 0; i < 512; ++i) EXPECT_EQ(got[size_t(i)], i / 8 % 2 ? 0 : -1) << i;
  for (const float v : read(z, 512)) EXPECT_EQ(v, 16 * 0.52734375f);
}

}  // namespace
