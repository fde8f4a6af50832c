// Products of groups of warps on the emulator: they are right, and each planted bug is found and
// named.

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/gemm/ring.h"
#include "tests/emulator/hopper.h"

namespace mixtape::hopper_test {
namespace groups {

enum Bug : int {
  None,
  NoFullWait,
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
  NoReadWait,
  NoFence,
  NoBarrier,
  NoStoreWait,
  GreedyRegisters,
  OddRegisters,
};

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
TEST(Groups, GroupsMultiply) {
  expect_products<Half, 64>();
  expect_products<Half, 256>();
  expect_products<BFloat16, 128>();
  expect_products<BFloat16, 256>();
  expect_product<float, 64, false, false>();
  expect_product<float, 256, false, false>();
}
TEST(Groups, FindsAProductThatIsNotWaitedFor) {
  EXPECT_ERROR((expect_product<Half, 64, false, false>(NoGroupWait)),
               "ends with no group_wait for multiply_group in groups_test.cpp:");
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
TEST(Groups, ARingOfSlotsFeedsTwoGroups) {
  in_all_timings([] { ring(); });
}
TEST(Groups, FindsBugsOfRings) {
  const struct {
    Bug bug;
    const char* words;
  } planted[] = {
      {NoFullWait, "multiply_group in groups_test.cpp:"},
      {WrongParity, "waits for an arrival that no thread makes"},
      {EarlyRelease, "is overwritten while multiply_group in groups_test.cpp:"},
      {NoGroupWait, "is overwritten while multiply_group in groups_test.cpp:"},
      {NoGroupFence, "no group_fence by thread "},
      {NoGroupCommit, "group_wait with no group_commit for multiply_group in groups_test.cpp:"},
      {WrongSwizzle, "operand a is not swizzled as boxes are"},
      {WrongRow, "operand a begins inside eight rows of the swizzle"},
      {Divergent, "divergent group: "},
      {OtherOperand, "of a group call it for different products"},
      {OtherLine, "divergent group: multiply_group in groups_test.cpp:"},
      {Restart, "starts new sums in registers whose product was not waited for"},
      {TouchSums, "sums of a multiply_group were written before its group_wait"},
      {NoReadWait, "is overwritten while store_box in groups_test.cpp:"},
      {NoFence, "with no fence_async since"},
      {NoBarrier, "race: shared memory at "},
      {NoStoreWait, "ends with no store_wait for store_box in groups_test.cpp:"},
      {GreedyRegisters, "waits for registers that no thread gives back"},
      {OddRegisters, "raise_registers to 230, no multiple of 8 from 24 to 256"},
  };
  for (const auto& p : planted) in_all_timings([&] { EXPECT_ERROR(ring(p.bug), p.words); });
}

}  // namespace groups
}  // namespace mixtape::hopper_test
