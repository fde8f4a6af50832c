// The emulator: correct kernels give correct results, and each planted bug is found and named.

#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <set>
#include <vector>

#include "core/runtime.h"
#include "emulator/simt/runtime.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cuda/gpu_wmma.cuh"
#include "tests/support/errors.h"

namespace mixtape {
namespace simt_test {

using namespace gpu;

template <class... P, class... A>
void run(unsigned blocks, unsigned threads, size_t shared, void (*kernel)(P...), A... args) {
  launch({"k", {blocks, 1, 1}, {threads, 1, 1}, shared}, nullptr, kernel, args...);
}

// --- what works ---

__global__ void identify(int* out) {
  const unsigned i = block().x * block_size().x + thread().x;
  out[i] = int(i * 10 + unsigned(lane()));
}
TEST(Simt, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> out(5 * 70, -1);
  run(5, 70, 0, identify, out.data());
  for (unsigned i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], int(i * 10 + i % 70 % 32));
}

__global__ void number_lanes(int* out) { out[thread().y * block_size().x + thread().x] = lane(); }
TEST(Simt, LanesAreNumberedAlongX) {  // as they are on a device: in narrower blocks they repeat
  std::vector<int> out(32);
  launch({"k", {1, 1, 1}, {8, 4, 1}}, nullptr, number_lanes, out.data());
  for (unsigned i = 0; i < 32; ++i) EXPECT_EQ(out[i], int(i % 8));
}

__global__ void block_sum(const float* x, float* y, int n) {
  const Shared<float> part = shared_memory<float>();
  float sum = 0;
  for (int i = int(thread().x); i < n; i += int(block_size().x)) sum += x[i];
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane() == 0) part[thread().x / 32] = sum;
  sync_block();
  if (thread().x < 32) {
    sum = unsigned(lane()) < block_size().x / 32 ? float(part[lane()]) : 0.0f;
    for (int by = 16; by > 0; by /= 2) sum += shuffle(sum, lane() + by);
    if (lane() == 0) y[block().x] = sum;
  }
}
TEST(Simt, ShufflesAndBarriersGiveASum) {
  std::vector<float> x(1000), y(7);
  std::iota(x.begin(), x.end(), 0.0f);
  run(7, 256, 8 * sizeof(float), block_sum, x.data(), y.data(), 1000);
  for (float s : y) EXPECT_EQ(s, 499500);
}

// --- tensor cores ---

// Words of 16 lines of 32 bytes, in the lanes that ldmatrix gives them to.
__global__ void fragments(const uint32_t* x, uint32_t* y, int transposed) {
  const Shared<uint32_t> room = shared_memory<uint32_t>();
  for (int i = lane(); i < 128; i += 32) room[i] = x[i];
  sync_warp();
  const Shared<uint32_t> row = room + (lane() % 16 * 8 + lane() / 16 * 4);
  const Fragment f = transposed ? load_matrices<true>(row) : load_matrices<false>(row);
  for (int i = 0; i < 4; ++i) y[lane() * 4 + i] = f.part[i];
}
TEST(Simt, LoadsMatricesAsDocumented) {
  std::vector<uint32_t> x(128), y(128);
  const auto element = [](unsigned line, unsigned column) { return line * 16 + column; };
  for (unsigned i = 0; i < 128; ++i)
    x[i] = element(i / 8, i % 8 * 2) | element(i / 8, i % 8 * 2 + 1) << 16;
  for (const bool transposed : {false, true}) {
    run(1, 32, 512, fragments, x.data(), y.data(), int(transposed));
    for (unsigned l = 0; l < 32; ++l)
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned top = i % 2 * 8, left = i / 2 * 8, a = l / 4, b = l % 4 * 2;
        const unsigned first = transposed ? element(top + b, left + a) : element(top + a, left + b),
                       second = transposed ? element(top + b + 1, left + a)
                                           : element(top + a, left + b + 1);
        ASSERT_EQ(y[l * 4 + i], first | second << 16) << transposed << " " << l << " " << i;
      }
  }
}

// a b^T for lines of 32 bytes, in the register layout of mma.sync.
template <class T>
__global__ void tile_product(const T* a, const T* b, float* c) {
  constexpr int length = 32 / int(sizeof(T)), n = 4 / int(sizeof(T));
  const auto load = [&](const T* x) {
    Fragment f;
    for (int i = 0; i < 4; ++i)
      std::memcpy(&f.part[i],
                  x + (i % 2 * 8 + lane() / 4) * length + i / 2 * length / 2 + lane() % 4 * n, 4);
    return f;
  };
  float sum[2][4];
  for (int e = 0; e < 8; ++e) sum[e / 4][e % 4] = 1;
  multiply<T>(sum, load(a), load(b));
  for (int h = 0; h < 2; ++h)
    for (int e = 0; e < 4; ++e)
      c[(lane() / 4 + e / 2 * 8) * 16 + 8 * h + lane() % 4 * 2 + e % 2] = sum[h][e];
}
template <class T>
void expect_tile_product() {
  constexpr int length = 32 / int(sizeof(T));
  std::vector<T> a(16 * length), b(16 * length);
  for (int i = 0; i < 16 * length; ++i) {
    a[size_t(i)] = T(float(i * 7 % 19 - 9));
    b[size_t(i)] = T(float(i * 5 % 23 - 11));
  }
  std::vector<float> c(256);
  run(1, 32, 0, tile_product<T>, static_cast<const T*>(a.data()), static_cast<const T*>(b.data()),
      c.data());
  for (int r = 0; r < 16; ++r)
    for (int n = 0; n < 16; ++n) {
      float want = 1;
      for (int k = 0; k < length; ++k)
        want += float(a[size_t(r * length + k)]) * float(b[size_t(n * length + k)]);
      ASSERT_EQ(c[size_t(r * 16 + n)], want) << r << " " << n;
    }
}
TEST(Simt, TensorCoresMultiply) {
  expect_tile_product<Half>();
  expect_tile_product<BFloat16>();
  expect_tile_product<float>();
}
// a b + a b by wmma: operands from shared and from global memory.
template <class T, bool a_by_rows, bool b_by_rows>
__global__ void wmma_product(const T* a, const T* b, float* c) {
  constexpr int depth = matrix_depth<T>, count = 16 * depth;
  const int lda = a_by_rows ? depth : 16, ldb = b_by_rows ? 16 : depth;
  const Shared<T> room = shared_memory<T>();
  for (int i = lane(); i < 2 * count; i += 32) room[i] = i < count ? a[i] : b[i - count];
  sync_warp();
  Matrix<Use::A, T, a_by_rows> x;
  Matrix<Use::B, T, b_by_rows> y;
  MatrixSum<T> sum = {};
  load_matrix(x, room, lda);
  load_matrix(y, room + count, ldb);
  multiply(sum, x, y);
  load_global_matrix(x, a, lda);
  load_global_matrix(y, b, ldb);
  multiply(sum, x, y);
  store_global_matrix(c, 16, sum);
  const Shared<float> out = shared_memory<float>(2048);
  store_matrix(out, 16, sum);
  sync_warp();
  for (int i = lane(); i < 256; i += 32) c[256 + i] = out[i];
}
template <class T, bool a_by_rows, bool b_by_rows>
void expect_wmma_product() {
  constexpr int depth = matrix_depth<T>;
  alignas(32) T a[16 * depth], b[16 * depth];
  for (int i = 0; i < 16 * depth; ++i) {
    a[i] = T(float(i * 7 % 19 - 9));
    b[i] = T(float(i * 5 % 23 - 11));
  }
  alignas(32) float c[512];
  run(1, 32, 4096, wmma_product<T, a_by_rows, b_by_rows>, static_cast<const T*>(a),
      static_cast<const T*>(b), static_cast<float*>(c));
  for (int r = 0; r < 16; ++r)
    for (int n = 0; n < 16; ++n) {
      float want = 0;
      for (int k = 0; k < depth; ++k)
        want += 2 * float(a[a_by_rows ? r * depth + k : k * 16 + r]) *
                float(b[b_by_rows ? k * 16 + n : n * depth + k]);
      ASSERT_EQ(c[r * 16 + n], want) << r << " " << n;
      ASSERT_EQ(c[256 + r * 16 + n], want) << r << " " << n;
    }
}
template <class T>
void expect_wmma_products() {
  expect_wmma_product<T, true, true>();
  expect_wmma_product<T, true, false>();
  expect_wmma_product<T, false, true>();
  expect_wmma_product<T, false, false>();
}
TEST(Simt, WmmaMultiplies) {
  expect_wmma_products<Half>();
  expect_wmma_products<BFloat16>();
  expect_wmma_products<float>();
}

enum WmmaBug : int { Right, Misaligned, UnalignedLines, ApartLanes, Unsynchronised, ReadAtOnce };

__global__ void wmma_copy(float* y, int bug) {
  const Shared<Half> room = shared_memory<Half>();
  for (int i = lane(); i < 512; i += 32) room[i] = Half(float(i % 16 == i / 16));
  if (bug != Unsynchronised) sync_warp();
  Matrix<Use::A, Half, true> a;
  Matrix<Use::B, Half, true> b;
  load_matrix(a,
              room + (bug == Misaligned   ? 8
                      : bug == ApartLanes ? lane() % 2 * 16
                                          : 0),
              bug == UnalignedLines ? 20 : 16);
  load_matrix(b, room, 16);
  MatrixSum<Half> sum = {};
  multiply(sum, a, b);
  const Shared<float> out = shared_memory<float>(1024);
  store_matrix(out, 16, sum);
  if (bug != ReadAtOnce) sync_warp();
  for (int i = lane(); i < 256; i += 32) y[i] = out[i];
}
TEST(Simt, FindsMisusesOfWmma) {
  std::vector<float> y(256);
  run(1, 32, 2048, wmma_copy, y.data(), int(Right));
  for (int i = 0; i < 256; ++i) EXPECT_EQ(y[size_t(i)], float(i % 16 == i / 16));
  const auto planted = [&](WmmaBug bug) { run(1, 32, 2048, wmma_copy, y.data(), int(bug)); };
  EXPECT_ERROR(planted(Misaligned), "misaligned: 32 bytes");
  EXPECT_ERROR(planted(UnalignedLines), "lines of a wmma matrix are not 16-byte aligned");
  EXPECT_ERROR(planted(ApartLanes), "lanes of a warp name different wmma matrices");
  EXPECT_ERROR(planted(Unsynchronised), "race: shared memory at ");
  EXPECT_ERROR(planted(ReadAtOnce), "race: shared memory at ");
}
TEST(Simt, RoundsToTf32) {
  EXPECT_EQ(std::bit_cast<float>(rounded_to_tf32(1 + 0x1p-11f)), 1 + 0x1p-10f);
  EXPECT_EQ(std::bit_cast<float>(rounded_to_tf32(-1 - 0x1p-12f)), -1);
}

// --- asynchronous copies; the bugs that may be planted in them ---

enum Bug : int { None, NoWait, NoBarrier };

__global__ void through_shared(const float* x, float* y, int bug) {
  const Shared<float> room = shared_memory<float>();
  const int t = int(thread().x);
  copy_async(room + 4 * t, x + 4 * t);
  copy_commit();
  if (bug != NoWait) copy_wait<0>();
  if (bug != NoBarrier) sync_block();
  const int from = (4 * t + 37) % int(4 * block_size().x);
  for (int i = 0; i < 4; ++i) y[4 * t + i] = room[(from + i) % int(4 * block_size().x)];
}
TEST(Simt, CopiesArriveWhenTheyAreWaitedFor) {
  alignas(16) float x[256];
  std::vector<float> y(256);
  std::iota(x, x + 256, 0.0f);
  run(1, 64, sizeof x, through_shared, x, y.data(), int(None));
  for (int i = 0; i < 256; ++i) EXPECT_EQ(y[size_t(i)], float((i + 37) % 256));
}
TEST(Simt, FindsAMissingWait) {
  alignas(16) float x[256] = {};
  std::vector<float> y(256);
  EXPECT_ERROR(run(1, 64, sizeof x, through_shared, x, y.data(), int(NoWait)),
               "is touched before its cp.async was waited for");
}
TEST(Simt, FindsAMissingBarrierAfterACopy) {
  alignas(16) float x[256] = {};
  std::vector<float> y(256);
  EXPECT_ERROR(run(1, 64, sizeof x, through_shared, x, y.data(), int(NoBarrier)),
               "shared memory at ");
}

__global__ void zero_filled(const float* x, float* y) {
  const Shared<float> room = shared_memory<float>();
  copy_async(room, x, 8);
  copy_commit();
  copy_wait<0>();
  for (int i = 0; i < 4; ++i) y[i] = room[i];
}
TEST(Simt, CopiesFillWhatIsNotValidWithZeros) {
  alignas(16) float x[4] = {1, 2, 3, 4};
  float y[4] = {9, 9, 9, 9};
  run(1, 1, 16, zero_filled, x, y);
  EXPECT_EQ((std::vector<float>(y, y + 4)), (std::vector<float>{1, 2, 0, 0}));
}

__global__ void two_groups(const float* x, float* y) {
  const Shared<float> room = shared_memory<float>();
  copy_async(room, x);
  copy_commit();
  copy_async(room + 4, x + 4);
  copy_commit();
  copy_wait<1>();
  y[0] = room[0];
  y[1] = room[4];
}
TEST(Simt, WaitingLeavesTheNewestGroupsPending) {
  alignas(16) float x[8] = {};
  float y[2];
  EXPECT_ERROR(run(1, 1, 32, two_groups, x, y), "shared memory at 16 is touched before");
}

// --- barriers ---

__global__ void half_at_the_barrier(float* y) {
  if (thread().x < 40)
    sync_block();
  else
    sync_warp();
  y[thread().x] = 1;
}
TEST(Simt, FindsADivergentBarrier) {
  std::vector<float> y(64);
  const std::string what = test::full_error([&] { run(1, 64, 0, half_at_the_barrier, y.data()); });
  EXPECT_NE(what.find("kernel k, block (0, 0, 0), thread (63, 0, 0): divergent barrier: 40 threads "
                      "wait at sync_block in "
                      "simt_test.cpp:"),
            std::string::npos)
      << what;
  EXPECT_NE(what.find("24 threads wait at sync_warp in simt_test.cpp:"), std::string::npos) << what;
}
__global__ void early_exit(float* y) {
  if (thread().x == 5) return;
  sync_block();
  y[thread().x] = 1;
}
TEST(Simt, FindsABarrierThatSomeHaveLeft) {
  std::vector<float> y(64);
  EXPECT_ERROR(run(1, 64, 0, early_exit, y.data()), "63 threads wait at sync_block");
  EXPECT_ERROR(run(1, 64, 0, early_exit, y.data()), "1 threads have ended");
}
__global__ void two_barriers(float* y) {
  if (thread().x % 2)
    sync_block();
  else
    sync_block();
  y[thread().x] = 1;
}
TEST(Simt, FindsBarriersAtDifferentPlaces) {
  std::vector<float> y(32);
  EXPECT_ERROR(run(1, 32, 0, two_barriers, y.data()), "divergent barrier: 16 threads wait");
}

// --- races ---

__global__ void neighbour(float* y, int barrier) {
  const Shared<float> room = shared_memory<float>();
  const unsigned t = thread().x, n = block_size().x;
  room[t] = float(t);
  if (barrier == 1) sync_warp();
  if (barrier == 2) sync_block();
  y[t] = room[(t + 1) % n];
}
TEST(Simt, FindsAReadThatRacesAWrite) {
  std::vector<float> y(64);
  EXPECT_ERROR(run(1, 64, 256, neighbour, y.data(), 0), "race: shared memory at ");
  EXPECT_ERROR(run(1, 64, 256, neighbour, y.data(), 1), "race: shared memory at ");  // across warps
  run(1, 64, 256, neighbour, y.data(), 2);
  EXPECT_EQ(y[63], 0);
  run(1, 32, 256, neighbour, y.data(), 1);  // within one warp its barrier is enough
  EXPECT_EQ(y[0], 1);
}
__global__ void overwrite(float* y, int barrier) {
  const Shared<float> room = shared_memory<float>();
  const unsigned t = thread().x;
  room[t] = float(t);
  sync_block();
  y[t] = room[(t + 5) % block_size().x];
  if (barrier) sync_block();
  room[t] = -1;
}
TEST(Simt, FindsAWriteThatRacesARead) {
  std::vector<float> y(64);
  EXPECT_ERROR(run(1, 64, 256, overwrite, y.data(), 0), "race: shared memory at ");
  run(1, 64, 256, overwrite, y.data(), 1);
}
__global__ void all_write_one(float*) {
  const Shared<float> room = shared_memory<float>();
  room[0] = float(thread().x);
}
TEST(Simt, FindsWritesThatRace) {
  EXPECT_ERROR(run(1, 2, 64, all_write_one, static_cast<float*>(nullptr)),
               "was written by thread ");
}

// Four warps write the bytes of a word that one thread wrote and reads whole.
enum ByteBug {
  BytesRight,
  BytesAtOnce,
  WordAtOnce,
  BytesBeforeWordIsRead,
  NextWordAtOnce,
  SameByte
};
__global__ void bytes_of_words(uint32_t* y, int bug) {
  const Shared<uint32_t> words = shared_memory<uint32_t>();
  const Shared<uint8_t> bytes = shared_memory<uint8_t>();
  const unsigned t = thread().x, word = t % 32, part = t / 32;
  if (part == 0) words[word] = ~0u;
  if (bug != BytesAtOnce) sync_block();
  bytes[4 * word + (bug == SameByte ? part / 2 : part)] = uint8_t(part);
  if (bug != WordAtOnce) sync_block();
  if (part == 0) y[word] = words[word];
  if (bug != BytesBeforeWordIsRead) sync_block();
  bytes[4 * word + part] = uint8_t(part);
  sync_block();
  if (part == 0) words[word] = 7;
  if (bug != NextWordAtOnce) sync_block();
  if (part == 1) y[32 + word] = words[word];
}
TEST(Simt, FindsRacesOfWordsWithTheirBytes) {
  std::vector<uint32_t> y(64);
  run(1, 128, 128, bytes_of_words, y.data(), int(BytesRight));
  EXPECT_EQ(y[31], 0x03020100u);
  EXPECT_EQ(y[63], 7u);
  for (const ByteBug bug : {BytesAtOnce, WordAtOnce, NextWordAtOnce, SameByte})
    EXPECT_ERROR(run(1, 128, 128, bytes_of_words, y.data(), int(bug)), "was written by thread");
  EXPECT_ERROR(run(1, 128, 128, bytes_of_words, y.data(), int(BytesBeforeWordIsRead)),
               "was read by thread");
}

enum ReadingBug : int { Ordered, WrittenBeside, ReadTooEarly };

// All threads read a word twice, which one of them changes.
__global__ void read_by_all(float* y, int bug) {
  const Shared<float> room = shared_memory<float>();
  const bool writes = thread().x == 40;
  if (writes) room[0] = 1;
  sync_block();
  const float twice = room[0] + room[0];
  if (writes && bug == WrittenBeside) room[0] = 2;
  sync_block();
  if (writes) room[0] = 3;
  if (bug != ReadTooEarly) sync_block();
  y[thread().x] = twice + room[0];
}
TEST(Simt, FindsRacesWithReadsByAll) {
  std::vector<float> y(96);
  run(1, 96, 4, read_by_all, y.data(), int(Ordered));
  EXPECT_EQ(y, std::vector<float>(96, 5));
  EXPECT_ERROR(run(1, 96, 4, read_by_all, y.data(), int(WrittenBeside)),
               "race: shared memory at 0");
  EXPECT_ERROR(run(1, 96, 4, read_by_all, y.data(), int(ReadTooEarly)), "race: shared memory at 0");
}
// The lane that reads last is any of them, by the order of its warp.
__global__ void read_again(float* y, int last) {
  const Shared<float> room = shared_memory<float>();
  if (lane() == 0) room[0] = 1;
  sync_warp();
  const float once = room[0];
  sync_warp();
  if (lane() == last) room[0] = room[0] + once;
  sync_warp();
  y[lane()] = room[0];
}
TEST(Simt, ReadsBeforeAWarpsBarrierAreNoRace) {
  std::vector<float> y(32);
  for (int last = 0; last < 32; ++last) {
    run(1, 32, 4, read_again, y.data(), last);
    EXPECT_EQ(y, std::vector<float>(32, 2));
  }
}

// --- order ---

__global__ void last_of_each(unsigned* lane_of_block, unsigned* block_of_all) {
  lane_of_block[block().x] = thread().x;
  *block_of_all = block().x;
}
TEST(Simt, RunsLanesAndBlocksInDifferentOrders) {
  const kernels::cpu::ThreadLimit one(1);
  std::vector<unsigned> lanes(16);
  unsigned last = 0;
  run(16, 32, 0, last_of_each, lanes.data(), &last);
  EXPECT_GT(std::set(lanes.begin(), lanes.end()).size(), 4u);
  EXPECT_EQ(last, 0u) << "the last block goes first";
}

// --- bounds and alignment ---

__global__ void write_at(int i) {
  const Shared<float> room = shared_memory<float>();
  room[i] = 1;
}
TEST(Simt, FindsSharedMemoryOutOfBounds) {
  run(1, 1, 64, write_at, 15);
  EXPECT_ERROR(run(1, 1, 64, write_at, 16), "shared memory out of bounds: bytes 64 to 68 of 64");
  EXPECT_ERROR(run(1, 1, 64, write_at, -1), "shared memory out of bounds: bytes -4 to 0 of 64");
}
struct alignas(16) Four {
  float v[4];
};
__global__ void wide_load(const float* x, float* y, int shared_offset) {
  const Shared<float> room = shared_memory<float>();
  if (shared_offset >= 0) {
    y[0] = load_as<Four>(room + shared_offset).v[0];
  } else {
    y[0] = load_as<Four>(x).v[1];
  }
}
TEST(Simt, FindsMisalignedVectorAccess) {
  alignas(16) float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float y = 0;
  run(1, 1, 64, wide_load, x, &y, -1);
  EXPECT_EQ(y, 2);
  EXPECT_ERROR(run(1, 1, 64, wide_load, x + 1, &y, -1),
               "misaligned: 16 bytes at an address that ends in");
  run(1, 1, 64, wide_load, x, &y, 4);
  EXPECT_TRUE(std::isnan(y)) << "shared memory starts as NaN";
  EXPECT_ERROR(run(1, 1, 64, wide_load, x, &y, 3), "misaligned: 16 bytes of shared memory at 12");
}

// --- bank conflicts ---

__global__ void strided_reads(float* y, int stride) {
  const Shared<float> room = shared_memory<float>();
  y[thread().x] = room[int(thread().x) * stride];
}
TEST(Simt, CountsBankConflicts) {
  std::vector<float> y(32);
  const auto conflicts = [&](int stride) {
    const simt::BankConflicts counted;
    run(1, 32, 32 * 32 * sizeof(float), strided_reads, y.data(), stride);
    return counted.count(simt::Access::Read);
  };
  EXPECT_EQ(conflicts(1), 0);
  EXPECT_EQ(conflicts(0), 0) << "one word for all is a broadcast";
  EXPECT_EQ(conflicts(2), 1);
  EXPECT_EQ(conflicts(32), 31);
  EXPECT_EQ(conflicts(31), 0);
}

__global__ void copy_lines(const float* x, int stride) {  // 8 lines of 64 bytes
  const Shared<float> room = shared_memory<float>();
  copy_async(room + lane() / 4 * stride + lane() % 4 * 4, x + lane() * 4);
  copy_wait<0>();
}
TEST(Simt, CountsBankConflictsOfCopies) {  // once, for eight lanes at a time
  alignas(16) const float x[128] = {};
  const auto conflicts = [&](int stride) {
    const simt::BankConflicts counted;
    run(1, 32, 8 * 32 * sizeof(float), copy_lines, static_cast<const float*>(x), stride);
    return counted.count(simt::Access::Write);
  };
  EXPECT_EQ(conflicts(16), 0);
  EXPECT_EQ(conflicts(20), 4) << "two lines of 80 bytes share a chunk's banks";
  EXPECT_EQ(conflicts(32), 4);
}

// --- streams that are late ---

TEST(Simt, ALateStreamSeesWhatTheHostChangesTooEarly) {
  const runtime::Handle stream = runtime::cuda().create_stream(0);
  float x = 1, y = 0;
  const simt::LateStreams late;
  runtime::cuda().copy(&y, &x, sizeof x, stream, 0);
  EXPECT_EQ(y, 0) << "read too early";
  x = 2;
  runtime::cuda().synchronize(stream, 0);
  EXPECT_EQ(y, 2);
}
TEST(Simt, LateStreamsWaitOnlyWhereTheyAreTold) {
  const runtime::Handle first = runtime::cuda().create_stream(0),
                        second = runtime::cuda().create_stream(0);
  for (const bool ordered : {false, true}) {
    float x = 1, y = 0, z = -1;
    const simt::LateStreams late;
    runtime::cuda().copy(&y, &x, sizeof x, first, 0);
    if (ordered) runtime::cuda().wait(second, 0, first, 0);
    runtime::cuda().copy(&z, &y, sizeof y, second, 0);
    runtime::cuda().synchronize(second, 0);
    EXPECT_EQ(z, ordered ? 1 : 0);
  }
}
TEST(Simt, MarksOfLateStreamsPassInTheirOrder) {
  const runtime::Handle stream = runtime::cuda().create_stream(0);
  const runtime::Mark first = runtime::cuda().create_mark(0, true),
                      second = runtime::cuda().create_mark(0, true);
  EXPECT_TRUE(runtime::cuda().has_passed(first, 0)) << "never recorded";
  {
    const simt::LateStreams late;
    runtime::cuda().record(first, stream, 0);
    std::vector<int> out(32);
    launch({"k", {1, 1, 1}, {32, 1, 1}}, stream, number_lanes, out.data());
    runtime::cuda().record(second, stream, 0);
    EXPECT_FALSE(runtime::cuda().has_passed(first, 0));
    runtime::cuda().wait_for(first, 0);
    EXPECT_EQ(out[31], 0) << "the kernel comes after it";
    EXPECT_FALSE(runtime::cuda().has_passed(second, 0));
    EXPECT_GE(runtime::cuda().milliseconds_between(first, second, 0), 0);
    EXPECT_EQ(out[31], 31);
  }
  runtime::cuda().destroy_mark(first);
  runtime::cuda().destroy_mark(second);
}

// --- launches ---

TEST(Simt, RefusesImpossibleLaunches) {
  EXPECT_ERROR(run(1, 1025, 0, write_at, 0), "kernel k: 1025 threads in a block, not 1 to 1024");
  EXPECT_ERROR(run(1, 0, 0, write_at, 0), "kernel k: 0 threads in a block");
  EXPECT_ERROR(run(1, 1, 228 * 1024, write_at, 0),
               "kernel k: 233472 bytes of shared memory, of at most 232448");
  EXPECT_ERROR(run(1, 1, 100 * 1024, write_at, 0),
               "102400 bytes of shared memory, of at most 101376 before 9.0");
  EXPECT_ERROR(run(0, 1, 64, write_at, 0), "kernel k: a grid of 0 x 1 x 1 blocks");
}

}  // namespace simt_test
}  // namespace mixtape
