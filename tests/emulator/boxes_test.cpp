// Boxes and barriers of the emulator: boxes arrive, and each planted bug is found and named.

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/emulator/hopper.h"

namespace mixtape::hopper_test {
namespace boxes {

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
};

// --- boxes ---

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
TEST(Boxes, BoxesGoThereAndBack) {
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
TEST(Boxes, BoxesAreSwizzledAndZeroBeyondTheTensor) {
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
TEST(Boxes, FindsBoxesThatAreNotWaitedFor) {
  expect_either(NoFullWait, "is touched before load_box in boxes_test.cpp:",
                "is touched with no barrier_wait for load_box in boxes_test.cpp:");
  expect_found(WrongParity, "is touched ");
  expect_found(NoReadWait, "is overwritten while store_box in boxes_test.cpp:");
  expect_found(NoStoreWait, "ends with no store_wait for store_box in boxes_test.cpp:");
  expect_found(NoCommit, "store_wait with no store_commit for store_box in boxes_test.cpp:");
}
TEST(Boxes, FindsWrongBarriers) {
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
    EXPECT_NE(
        what.find("kernel k, block (0, 0, 0), thread (0, 0, 0): waits for a box that no thread "
                  "sends: 32 threads wait at barrier_wait in boxes_test.cpp:"),
        std::string::npos)
        << what;
    EXPECT_NE(
        what.find("for parity 0 of the barrier at 2048, which lacks 0 arrivals and 128 bytes"),
        std::string::npos)
        << what;
  });
}
TEST(Boxes, FindsStoresThatTheCopyEngineMayNotSee) {
  expect_found(NoFence, "with no fence_async since");
  expect_found(NoBarrier, "was written by thread ");
  expect_found(Misaligned, "misaligned: a box at 128 of shared memory, no multiple of 1024");
}
TEST(Boxes, RefusesTensorMapsThatADeviceRefuses) {
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

// --- wrong arguments, and barriers of some threads ---

template <class F>
__global__ void call(F f) {
  f(int(thread().x));
}
template <class F>
void expect_fault(unsigned threads, const std::string& words, F f) {
  EXPECT_ERROR(run(threads, 4096, call<F>, f), words);
}
Shared<Barrier> barrier() { return shared_memory<Barrier>(2048); }
template <int n = 64, bool transposed = false>
void multiply(Operand a) {
  float d[n / 2];
  group_fence();
  multiply_group<Half, n, transposed, transposed>(d, a, a, false);
}
Operand some_operand() { return make_operand(shared_memory<Half>(), false, 0); }

TEST(Boxes, RefusesWrongArguments) {
  expect_fault(1, "misaligned: a barrier at 2052",
               [](int) { barrier_init(shared_memory<Barrier>(2052), 1); });
  expect_fault(1, "barrier_init with 0 arrivals, not 1 to 1048575",
               [](int) { barrier_init(barrier(), 0); });
  expect_fault(1, "barrier_expect of 1048576 bytes, not 0 to 1048575", [](int) {
    barrier_init(barrier(), 1);
    barrier_expect(barrier(), 1 << 20);
  });
  expect_fault(1, "barrier_wait for parity 2", [](int) {
    barrier_init(barrier(), 1);
    barrier_wait(barrier(), 2);
  });
  expect_fault(64, "sync_threads with id 0, not 1 to 15", [](int) { sync_threads(0, 64); });
  expect_fault(64, "sync_threads of 48 threads, no number of whole warps of the block's 64",
               [](int) { sync_threads(1, 48); });
  expect_fault(1, "misaligned: an operand at 8, no multiple of 16",
               [](int) { make_operand(shared_memory<Half>(8), false, 0); });
  expect_fault(96, " outside a group of four whole warps", [](int) { multiply(some_operand()); });
  expect_fault(128, "lower_registers from 40 to 48", [](int) {
    lower_registers<40>();
    lower_registers<48>();
  });
}
TEST(Boxes, RefusesWrongOperands) {
  expect_fault(128, "has eight rows every 512 bytes, no multiple of 1024",
               [](int) { multiply(some_operand() ^ uint64_t{(1024 ^ 512) >> 4} << 32); });
  expect_fault(128, "operand a begins at byte 112 of a row",
               [](int) { multiply(some_operand() + (112 >> 4)); });
  expect_fault(128, "operand b has 64 lines every 512 bytes, no multiple of 1024",
               [](int) { multiply<128, true>(make_operand(shared_memory<Half>(), true, 512)); });
  expect_fault(128, "operand a reaches byte 4112 of 4096", [](int) { multiply(some_operand()); });
}
template <bool fenced>
__global__ void multiply_stores() {
  const Shared<Half> x = shared_memory<Half>();
  for (int i = int(thread().x); i < 4096; i += 128) x[i] = Half(1.0f);
  if (fenced) fence_async();
  sync_block();
  float d[32];
  group_fence();
  multiply_group<Half, 64, false, false>(d, some_operand(), some_operand(), false);
  group_commit();
  group_wait<0>();
  EXPECT_EQ(d[7], 16);
}
TEST(Boxes, ProductsSeeStoresBehindAFence) {
  run(128, 8192, multiply_stores<true>);
  EXPECT_ERROR(run(128, 8192, multiply_stores<false>), "with no fence_async since");
}
TEST(Boxes, SomeThreadsMeet) {
  run(
      128, 1024, call<void (*)(int)>, +[](int t) {
        const Shared<int> x = shared_memory<int>();
        x[t] = t;
        sync_threads(1 + t / 64, 64);
        EXPECT_EQ(x[t ^ 63], t ^ 63);
        if (t >= 64) sync_threads(3, 64);  // the others do not take part
      });
  expect_fault(128, "race: shared memory at ", [](int t) {
    const Shared<int> x = shared_memory<int>();
    x[t] = t;
    sync_threads(1 + t / 64, 64);
    x[t ^ 64] = 0;  // of the other half
  });
  expect_fault(128, "while 64 threads wait there for 96",
               [](int t) { sync_threads(1, t < 64 ? 96 : 64); });
  expect_fault(128, "divergent barrier: 96 threads wait at sync_threads(1, 128) in boxes_test.cpp:",
               [](int t) {
                 if (t < 96) sync_threads(1, 128);
               });
}
TEST(Boxes, FindsACopyThatIsNotWaitedForBesideBoxes) {
  alignas(16) static const int x[4] = {};
  expect_fault(1, "is touched before its cp.async was waited for", [](int) {
    barrier_init(barrier(), 1);
    copy_async(shared_memory<int>(), x);
    shared_memory<int>()[0] = 1;
  });
}
TEST(Boxes, FindsABoxWithoutAWait) {
  const BoxTiming timing(BoxTiming::Late);
  static Cube cube;
  static const TensorMap map = cube.map();
  expect_fault(1, "the block ends with no barrier_wait for load_box in boxes_test.cpp:", [](int) {
    barrier_init(barrier(), 1);
    fence_barrier_init();
    barrier_expect(barrier(), 2048);
    load_box(shared_memory<Half>(), map, barrier(), {});
  });
}

}  // namespace boxes
}  // namespace mixtape::hopper_test
