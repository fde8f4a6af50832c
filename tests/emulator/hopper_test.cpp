// The emulator of compute capability 9.0: boxes arrive, products are right, and each
// planted bug is found and named.

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "emulator/simt/runtime.h"
#include "kernels/cuda/gemm/ring.h"
#include "kernels/cuda/gpu_hopper.cuh"
#include "tests/support/errors.h"

namespace mixtape {
namespace hopper_test {

using namespace gpu;
using simt::BoxTiming;

template <class... P, class... A>
void run(unsigned threads, size_t shared, void (*kernel)(P...), const A&... args) {
  launch({"k", {1, 1, 1}, {threads, 1, 1}, shared}, nullptr, kernel, args...);
}

// Both ways in which boxes are late, and several orders.
template <class F>
void in_all_timings(const F& f) {
  for (uint32_t seed = 0; seed < 4; ++seed) {
    const BoxTiming timing(seed == 0 ? BoxTiming::Late : BoxTiming::Random, seed);
    f();
  }
}

// --- boxes ---

enum Bug : int {
  None,
  NoFullWait,
  NoInit,
  NoInitBarrier,
  NoInitFence,
  FewBytes,
  ManyBytes,
  NoFence,
  NoBarrier,
  NoCommit,
  NoStoreWait,
  NoReadWait,
  Misaligned,
  OnBarrier,
  TouchBarrier,
  TwoArrivals,
  WrongParity,
  EarlyRelease,
  NoGroupWait,
  NoGroupFence,
  NoGroupCommit,
  WrongSwizzle,
  WrongRow,
  Divergent,
  OtherOperand,
  OtherLine,
  Restart,
  TouchSums,
  GreedyRegisters,
  OddRegisters,
};

// Loads a box, adds 1 to its elements, and stores it.
__global__ void through_box(const __grid_constant__ TensorMap from,
                            const __grid_constant__ TensorMap to, BoxAt at, int bug) {
  constexpr int elements = 16 * 64;
  const Shared<uint16_t> box = shared_memory<uint16_t>();
  const Shared<Barrier> b = shared_memory<Barrier>(2 * elements);
  const int t = int(thread().x);
  if (t == 0 && bug != NoInit) {
    barrier_init(b, 1);
    if (bug != NoInitFence) fence_barrier_init();
  }
  if (bug != NoInitBarrier) sync_block();
  if (t == 0) {
    barrier_expect(b, 2 * elements + (bug == FewBytes ? -128 : bug == ManyBytes ? 128 : 0));
    load_box(bug == Misaligned ? box + 64 : bug == OnBarrier ? box + 512 : box, from, b, at);
    if (bug == TwoArrivals) barrier_arrive(b);
  }
  if (bug != NoInitBarrier) sync_block();
  if (bug != NoFullWait || t != 5) barrier_wait(b, bug == WrongParity);
  for (int i = t; i < elements; i += 32) box[i] = uint16_t(box[i] + 1);
  if (bug != NoFence) fence_async();
  if (bug != NoBarrier) sync_block();
  if (t == 0) {
    store_box(to, box, at);
    if (bug == NoCommit) store_wait_read<0>();
    store_commit();
    if (bug == NoReadWait) box[0] = 0;
    if (bug != NoStoreWait) store_wait<0>();
    if (bug == TouchBarrier) shared_memory<uint16_t>(2 * elements)[1] = 0;
  }
}
struct Cube {
  std::vector<uint16_t> x = std::vector<uint16_t>(3 * 20 * 72);
  TensorMap map() {
    BoxedTensor t;
    t.data = x.data();
    for (int d = 0; d < 3; ++d) {
      t.size[d] = std::array{70, 19, 3}[size_t(d)];
      t.stride[d] = std::array{1, 72, 20 * 72}[size_t(d)];
    }
    t.rows = 16;
    return make_tensor_map(t);
  }
};
void through(BoxAt at, int bug = None) {
  Cube from, to;
  for (size_t i = 0; i < from.x.size(); ++i) from.x[i] = uint16_t(7 * i);
  run(32, 3072, through_box, from.map(), to.map(), at, bug);
  for (int z = 0; z < 3; ++z)
    for (int y = 0; y < 20; ++y)
      for (int x = 0; x < 72; ++x) {
        const size_t i = size_t((z * 20 + y) * 72 + x);
        const bool moved = z == at.z && at.y <= y && y < at.y + 16 && y < 19 && at.x <= x &&
                           x < at.x + 64 && x < 70;
        ASSERT_EQ(to.x[i], moved ? uint16_t(from.x[i] + 1) : 0) << x << " " << y << " " << z;
      }
}
TEST(Hopper, BoxesGoThereAndBack) {
  in_all_timings([] {
    through({0, 0, 0});
    through({3, 2, 1});
    through({-5, -3, 2});
    through({40, 10, 2});
    through({0, 30, 1});  // nothing of it
  });
}

// A box as shared memory holds it.
__global__ void show_box(const __grid_constant__ TensorMap from, BoxAt at, uint32_t* y) {
  const Shared<uint32_t> box = shared_memory<uint32_t>();
  const Shared<Barrier> b = shared_memory<Barrier>(1024);
  if (thread().x == 0) {
    barrier_init(b, 1);
    fence_barrier_init();
    barrier_expect(b, 1024);
    load_box(box, from, b, at);
  }
  sync_block();
  barrier_wait(b, 0);
  for (int i = lane(); i < 256; i += 32) y[i] = box[i];
}
TEST(Hopper, BoxesAreSwizzledAndZeroBeyondTheTensor) {
  std::vector<uint32_t> x(8 * 32), y(256);
  for (size_t i = 0; i < x.size(); ++i) x[i] = uint32_t(0x3f800000 + 0x1000 * i);
  BoxedTensor t;
  t.data = x.data();
  t.element = BoxElement::Tf32;
  t.size[0] = 30;
  t.size[1] = 8;
  t.stride[1] = 32;
  t.rows = 8;
  run(32, 2048, show_box, make_tensor_map(t), BoxAt{0, 0}, y.data());
  for (size_t r = 0; r < 8; ++r)
    for (size_t c = 0; c < 32; ++c) {
      const uint32_t rounded = (x[r * 32 + c] + 0x1000) & ~0x1fffu;
      ASSERT_EQ(y[r * 32 + ((c / 4) ^ r) * 4 + c % 4], c < 30 ? rounded : 0) << r << " " << c;
    }
}

void expect_found(Bug bug, const std::string& words) {
  in_all_timings([&] { EXPECT_ERROR(through({0, 0, 0}, bug), words); });
}
// As the order of two threads decides.
void expect_either(Bug bug, const std::string& words, const std::string& or_else) {
  in_all_timings([&] {
    const std::string what = test::full_error([&] { through({0, 0, 0}, bug); });
    EXPECT_TRUE(what.find(words) != std::string::npos || what.find(or_else) != std::string::npos)
        << what;
  });
}
TEST(Hopper, FindsBoxesThatAreNotWaitedFor) {
  expect_either(NoFullWait, "is touched before load_box in hopper_test.cpp:",
                "is touched with no barrier_wait for load_box in hopper_test.cpp:");
  expect_found(WrongParity, "is touched ");
  expect_found(NoReadWait, "is overwritten while store_box in hopper_test.cpp:");
  expect_found(NoStoreWait, "ends with no store_wait for store_box in hopper_test.cpp:");
  expect_found(NoCommit, "store_wait with no store_commit for store_box in hopper_test.cpp:");
}
TEST(Hopper, FindsWrongBarriers) {
  expect_found(NoInit, "no barrier_init for a barrier at 2048");
  expect_either(NoInitBarrier, "no barrier_init for a barrier at 2048",
                "the barrier at 2048 is used with no sync_block since its barrier_init");
  expect_found(NoInitFence, "no fence_barrier_init has shown the barrier at 2048");
  expect_found(FewBytes, "brings 128 bytes more than barrier_expect said");
  expect_found(TwoArrivals, "too many arrivals at the barrier at 2048: this phase has had its 1");
  expect_found(TouchBarrier, "shared memory at 2048 is touched, which is a barrier");
  expect_found(OnBarrier, "shared memory at 2048 is touched, which is a barrier");
  in_all_timings([&] {
    const std::string what = test::full_error([] { through({0, 0, 0}, ManyBytes); });
    EXPECT_NE(what.find("kernel k, block (0, 0, 0), thread (0, 0, 0): waits for a box that nobody "
                        "sends: 32 threads wait at barrier_wait in hopper_test.cpp:"),
              std::string::npos)
        << what;
    EXPECT_NE(
        what.find("for parity 0 of the barrier at 2048, which lacks 0 arrivals and 128 bytes"),
        std::string::npos)
        << what;
  });
}
TEST(Hopper, FindsStoresThatTheCopyEngineMayNotSee) {
  expect_found(NoFence, "with no fence_async since");
  expect_found(NoBarrier, "was written by thread ");
  expect_found(Misaligned, "misaligned: a box at 128 of shared memory, no multiple of 1024");
}
TEST(Hopper, RefusesTensorMapsThatADeviceRefuses) {
  alignas(16) static uint16_t x[64];
  const auto with = [](auto change) {
    return test::error([&] {
      BoxedTensor t;
      t.data = x;
      change(t);
      make_tensor_map(t);
    });
  };
  EXPECT_EQ(with([](BoxedTensor&) {}), "no error");
  EXPECT_EQ(with([](BoxedTensor& t) { t.data = x + 1; }),
            "a tensor map's data must be aligned to 16 bytes");
  EXPECT_EQ(with([](BoxedTensor& t) { t.rows = 257; }),
            "a tensor map's box has 1 to 256 rows, not 257");
  EXPECT_EQ(with([](BoxedTensor& t) { t.size[2] = 0; }),
            "a tensor map's sizes are 1 to 2^32, not 0");
  EXPECT_EQ(with([](BoxedTensor& t) { t.stride[0] = 2; }),
            "a tensor map's first stride is 1, not 2");
  EXPECT_EQ(with([](BoxedTensor& t) { t.stride[1] = 9; }),
            "a tensor map's strides are multiples of 16 bytes below 2^40, not 18");
}

// --- products ---

// c = a b^T, 64 x n, for one row of boxes along k: 64 steps, or 32 of TF32.
template <class T, int n, bool ta, bool tb>
__global__ void product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
                        float* c, int bug) {
  constexpr int per_row = 128 / int(sizeof(T));
  const Shared<T> room_a = shared_memory<T>(), room_b = room_a + 64 * per_row;
  const Shared<Barrier> full = shared_memory<Barrier>((64 + n) * 128);
  const int t = int(thread().x);
  if (t == 0) {
    barrier_init(full, 1);
    fence_barrier_init();
    barrier_expect(full, (64 + n) * 128);
    load_box(room_a, a, full, {0, 0});
    for (int i = 0; i < (tb ? n / 64 : 1); ++i)
      load_box(room_b + i * 64 * per_row, b, full, {64 * i, 0});
  }
  sync_block();
  barrier_wait(full, 0);
  float d[n / 2];
  group_fence();
  for (int j = 0; j < 4; ++j) {
    const auto at = [&](Shared<T> room, bool transposed) {
      return room + (transposed ? j * 2048 : j * 32) / int(sizeof(T));
    };
    multiply_group<T, n, ta, tb>(d, make_operand(at(room_a, ta), ta, 8192),
                                 make_operand(at(room_b, tb), tb, 8192), j > 0);
  }
  group_commit();
  if (bug != NoGroupWait) group_wait<0>();
  for (int i = 0; i < n / 2; ++i)
    c[(16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2)) * n + 8 * (i / 4) + t % 4 * 2 + i % 2] = d[i];
}
template <class T>
TensorMap matrix_map(const std::vector<T>& x, int rows, int columns, int box_rows) {
  BoxedTensor t;
  t.data = x.data();
  t.element = sizeof(T) == 2 ? BoxElement::Bits16 : BoxElement::Tf32;
  t.size[0] = columns;
  t.size[1] = rows;
  t.stride[1] = columns;
  t.rows = box_rows;
  return make_tensor_map(t);
}
template <class T, int n, bool ta, bool tb>
void expect_product(int bug = None) {
  constexpr int k = 128 / int(sizeof(T));
  const auto fill = [](int count, int by) {
    std::vector<T> x(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) x[size_t(i)] = T(float(i * by % 31 - 15) / 8);
    return x;
  };
  const std::vector<T> a = fill(64 * k, 7), b = fill(n * k, 11);
  std::vector<float> c(64 * n);
  run(128, (64 + n) * 128 + 64, product<T, n, ta, tb>,
      ta ? matrix_map(a, k, 64, k) : matrix_map(a, 64, k, 64),
      tb ? matrix_map(b, k, n, k) : matrix_map(b, n, k, n), c.data(), bug);
  const std::vector<float> x(a.begin(), a.end()), y(b.begin(), b.end());
  for (int r = 0; r < 64; ++r)
    for (int col = 0; col < n; ++col) {
      const float *const p = &x[size_t(ta ? r : r * k)], *const q = &y[size_t(tb ? col : col * k)];
      double want = 0;
      for (int i = 0; i < k; ++i) want += double(p[ta ? i * 64 : i]) * double(q[tb ? i * n : i]);
      ASSERT_EQ(c[size_t(r * n + col)], want) << r << " " << col << " " << n << ta << tb;
    }
}
template <class T, int n>
void expect_products() {
  expect_product<T, n, false, false>();
  expect_product<T, n, false, true>();
  expect_product<T, n, true, false>();
  expect_product<T, n, true, true>();
}
TEST(Hopper, GroupsMultiply) {
  expect_products<Half, 64>();
  expect_products<Half, 256>();
  expect_products<BFloat16, 128>();
  expect_products<BFloat16, 256>();
  expect_product<float, 64, false, false>();
  expect_product<float, 256, false, false>();
}
TEST(Hopper, FindsAProductThatIsNotWaitedFor) {
  EXPECT_ERROR((expect_product<Half, 64, false, false>(NoGroupWait)),
               "ends with no group_wait for multiply_group in hopper_test.cpp:");
}

// --- a ring: one producer, two groups that multiply 64 x 64, parts of k as tiles ---

constexpr int stages = 3, steps = 5, tiles = 3, deep = 64 * steps * tiles;
constexpr int box_bytes = 64 * 128;

struct Rings {
  Shared<Half> a = shared_memory<Half>(), b = shared_memory<Half>(stages * 2 * box_bytes),
               out = shared_memory<Half>(stages * 3 * box_bytes);
  Shared<Barrier> full = shared_memory<Barrier>((stages * 3 + 2) * box_bytes),
                  empty = full + stages;
  kernels::cuda::Ring<stages> at = {};
  static constexpr size_t bytes = (stages * 3 + 2) * box_bytes + 2 * stages * 8;
};
void produce(Rings r, const TensorMap& a, const TensorMap& b, int bug) {
  for (int k = 0; k < tiles * steps; ++k, r.at.next()) {
    barrier_wait(r.empty + r.at.slot,
                 bug == WrongParity ? r.at.full_parity() : r.at.empty_parity());
    barrier_expect(r.full + r.at.slot, 3 * box_bytes);
    load_box(r.a + r.at.slot * box_bytes, a, r.full + r.at.slot, {64 * k, 0});
    load_box(r.b + r.at.slot * box_bytes / 2, b, r.full + r.at.slot, {64 * k, 0});
  }
}
// Stores the sums as f16 through shared memory.
void put(const Rings& r, float (&d)[32], const TensorMap& c, int half, int tile, int bug) {
  const int t = int(thread().x) % 128, row = t / 32 * 16 + t % 16;
  const Shared<Half> out = r.out + half * box_bytes / 2;
  if (t == 0 && bug != NoReadWait) store_wait_read<0>();
  sync_threads(1 + half, 128);
  for (int j = 0; j < 4; ++j) {
    uint32_t part[4];
    for (int i = 0; i < 4; ++i) {
      const Half pair[] = {Half(d[8 * j + 2 * i]), Half(d[8 * j + 2 * i + 1])};
      std::memcpy(&part[i], pair, 4);
    }
    store_matrices(out + (row * 64 + ((2 * j + t % 32 / 16) ^ row % 8) * 8), part);
  }
  if (bug != NoFence) fence_async();
  if (bug != NoBarrier) sync_threads(1 + half, 128);
  if (t == 0) {
    store_box(c, out, {64 * tile, 64 * half});
    store_commit();
  }
}
// The products of one slot.
void multiply_slot(const Rings& r, float (&d)[32], int half, bool add, int bug) {
  for (int j = 0; j < 4; ++j) {
    Operand a =
        make_operand(r.a + (r.at.slot * box_bytes + half * box_bytes / 2 + j * 16), false, 0);
    if (bug == WrongSwizzle) a ^= uint64_t{3} << 62;
    if (bug == WrongRow) a += 128 >> 4;
    if (bug == OtherOperand && thread().x % 128 == 77) a += 32 >> 4;
    const Operand b = make_operand(r.b + (r.at.slot * box_bytes / 2 + j * 16), false, 0);
    if (bug == Divergent && thread().x % 128 >= 96) continue;
    if (bug == OtherLine && thread().x % 128 >= 96)
      multiply_group<Half, 64, false, false>(d, a, b, add || j > 0);
    else
      multiply_group<Half, 64, false, false>(d, a, b, (add || j > 0) && bug != Restart);
    if (bug == TouchSums) d[3] = 0;
  }
}
void consume(Rings r, const TensorMap& c, int half, int bug) {
  const int t = int(thread().x) % 128;
  float d[32];
  for (int tile = 0; tile < tiles; ++tile) {
    int last = -1;
    const auto give_back = [&] {
      if (last >= 0 && t == 0) barrier_arrive(r.empty + last);
    };
    for (int k = 0; k < steps; ++k, r.at.next()) {
      if (bug != NoFullWait) barrier_wait(r.full + r.at.slot, r.at.full_parity());
      if (bug != NoGroupFence) group_fence();
      multiply_slot(r, d, half, k > 0, bug);
      if (bug != NoGroupCommit) group_commit();
      if (bug == EarlyRelease) last = r.at.slot, give_back();
      if (bug != NoGroupWait) group_wait<1>();
      if (bug != EarlyRelease) give_back();
      last = r.at.slot;
    }
    if (bug != NoGroupWait) group_wait<0>();
    if (bug != EarlyRelease) give_back();
    put(r, d, c, half, tile, bug);
  }
  if (t == 0 && bug != NoStoreWait) store_wait<0>();
}
__global__ void ring_product(const __grid_constant__ TensorMap a,
                             const __grid_constant__ TensorMap b,
                             const __grid_constant__ TensorMap c, int bug) {
  const Rings r;
  if (thread().x == 0) {
    for (int i = 0; i < stages; ++i) {
      barrier_init(r.full + i, 1);
      barrier_init(r.empty + i, 2);
    }
    fence_barrier_init();
  }
  sync_block();
  if (thread().x < 128) {
    lower_registers<40>();
    if (thread().x == 0) produce(r, a, b, bug);
  } else {
    if (bug == GreedyRegisters)
      raise_registers<240>();
    else if (bug == OddRegisters)
      raise_registers<230>();
    else
      raise_registers<232>();
    consume(r, c, int(thread().x) / 128 - 1, bug);
  }
}
struct RingData {
  std::vector<Half> a = std::vector<Half>(128 * deep), b = std::vector<Half>(64 * deep),
                    want = std::vector<Half>(128 * 64 * tiles);
  RingData() {
    for (size_t i = 0; i < a.size(); ++i) a[i] = Half(float(i * 7 % 31) - 15);
    for (size_t i = 0; i < b.size(); ++i) b[i] = Half(float(i * 5 % 23) / 8 - 1);
    const std::vector<float> x(a.begin(), a.end()), y(b.begin(), b.end());
    for (int r = 0; r < 128; ++r)
      for (int c = 0; c < 64 * tiles; ++c) {
        const int first = c / 64 * 64 * steps;
        const float *const p = &x[size_t(r * deep + first)], *const q =
                                                                 &y[size_t(c % 64 * deep + first)];
        double sum = 0;
        for (int k = 0; k < 64 * steps; ++k) sum += double(p[k]) * double(q[k]);
        want[size_t(r * 64 * tiles + c)] = Half(float(sum));
      }
  }
};
void ring(int bug = None) {
  static const RingData data;
  std::vector<Half> c(data.want.size());
  run(384, Rings::bytes, ring_product, matrix_map(data.a, 128, deep, 128),
      matrix_map(data.b, 64, deep, 64), matrix_map(c, 128, 64 * tiles, 64), bug);
  for (size_t i = 0; i < c.size(); ++i) ASSERT_EQ(c[i].bits, data.want[i].bits) << i;
}
TEST(Hopper, ARingOfSlotsFeedsTwoGroups) {
  in_all_timings([] { ring(); });
}
TEST(Hopper, FindsBugsOfRings) {
  const std::pair<Bug, const char*> bugs[] = {
      {NoFullWait, "multiply_group in hopper_test.cpp:"},
      {WrongParity, "waits for an arrival that nobody makes"},
      {EarlyRelease, "is overwritten while multiply_group in hopper_test.cpp:"},
      {NoGroupWait, "is overwritten while multiply_group in hopper_test.cpp:"},
      {NoGroupFence, "no group_fence by thread "},
      {NoGroupCommit, "group_wait with no group_commit for multiply_group in hopper_test.cpp:"},
      {WrongSwizzle, "operand a is not swizzled as boxes are"},
      {WrongRow, "operand a begins inside eight rows of the swizzle"},
      {Divergent, "divergent group: "},
      {OtherOperand, "of a group call it for different products"},
      {OtherLine, "divergent group: multiply_group in hopper_test.cpp:"},
      {Restart, "starts new sums in registers whose product was not waited for"},
      {TouchSums, "sums of a multiply_group were written before its group_wait"},
      {NoReadWait, "is overwritten while store_box in hopper_test.cpp:"},
      {NoFence, "with no fence_async since"},
      {NoBarrier, "race: shared memory at "},
      {NoStoreWait, "ends with no store_wait for store_box in hopper_test.cpp:"},
      {GreedyRegisters, "waits for registers that nobody gives back"},
      {OddRegisters, "raise_registers to 230, no multiple of 8 from 24 to 256"},
  };
  for (const auto& [bug, words] : bugs) in_all_timings([&] { EXPECT_ERROR(ring(bug), words); });
}

}  // namespace hopper_test
}  // namespace mixtape
