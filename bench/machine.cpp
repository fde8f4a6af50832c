#include "bench/machine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "core/device.h"
#include "kernels/cpu/loops/parallel.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mixtape::bench {
namespace {

using kernels::cpu::parallel_for;
using kernels::cpu::ThreadLimit;

// Seconds of f(i) on each of `threads` threads. All start together; otherwise the first thread to
// wake would also do the work of the others.
template <class F>
double together(int threads, const F& f) {
  const ThreadLimit limit(threads);
  std::atomic<int> missing = threads;
  double start = 0;
  parallel_for(threads, [&](int64_t i) {
    if (--missing == 0) start = now(threads);
    while (missing > 0) {
    }
    f(i);
  });
  return now(threads) - start;
}

// The best of several tries, to measure the machine without interference.
template <class F>
double best_rate(double work, int threads, const F& f) {
  double best = 1e30;
  for (int i = 0; i < 80; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    best = std::min(best, together(threads, f));
  }
  return work / best;
}

// Independent sums, which hide latency; all differ, or the compiler would merge them.
constexpr int sums = 16;
constexpr int64_t times = 200'000;
volatile float sink;

// Each returns its number of operations.
double portable_fma() {
  float a[sums * 4], x = 0.999f, y = 0.001f;
  asm volatile("" : "+m"(x), "+m"(y));
  for (int i = 0; i < sums * 4; ++i) a[i] = float(i);
  for (int64_t t = 0; t < times; ++t)
    for (float& v : a) v = v * x + y;
  for (const float v : a) sink = v;
  return 2.0 * sums * 4 * times;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double avx2_fma() {
  __m256 a[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (int i = 0; i < 12; ++i) a[i] = _mm256_set1_ps(float(i));
  for (int64_t t = 0; t < times; ++t)
    for (__m256& v : a) v = _mm256_fmadd_ps(v, x, y);
  for (const __m256& v : a) sink = _mm256_cvtss_f32(v);
  return 2.0 * 12 * 8 * times;
}
__attribute__((target("avx512f"))) double avx512_fma() {
  __m512 a[sums], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  for (int i = 0; i < sums; ++i) a[i] = _mm512_set1_ps(float(i));
  for (int64_t t = 0; t < times; ++t)
    for (__m512& v : a) v = _mm512_fmadd_ps(v, x, y);
  for (const __m512& v : a) sink = _mm512_cvtss_f32(v);
  return 2.0 * sums * 16 * times;
}
__attribute__((target("avx512f,avx512bf16"))) double avx512_bf16() {
  __m512 a[sums];
  for (int i = 0; i < sums; ++i) a[i] = _mm512_set1_ps(float(i));
  const __m512 one = _mm512_set1_ps(0.001f);
  const __m512bh x = _mm512_cvtne2ps_pbh(one, one), y = x;
  for (int64_t t = 0; t < times; ++t)
    for (__m512& v : a) v = _mm512_dpbf16_ps(v, x, y);
  for (const __m512& v : a) sink = _mm512_cvtss_f32(v);
  return 4.0 * sums * 16 * times;
}
#endif

using Loop = double (*)();

Loop f32_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return avx512_fma;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_fma;
#endif
  return portable_fma;
}
Loop bf16_loop() {  // null if bf16 is multiplied as f32
#if defined(__x86_64__)
  if (Device::cpu().supports_fast(bf16)) return avx512_bf16;
#endif
  return nullptr;
}

double rate(Loop loop, int threads) {
  const double work = loop() * threads;  // also raises the clock rate
  return best_rate(work, threads, [&](int64_t) { loop(); });
}

// Measured once per number of threads (and bytes).
template <class Key, class F>
auto once(const Key& key, const F& measure) {
  static std::map<Key, decltype(measure())> known;
  const auto it = known.find(key);
  return it != known.end() ? it->second : known.emplace(key, measure()).first->second;
}

}  // namespace

double fma_rate(int threads) {
  return once(threads, [&] { return rate(f32_loop(), threads); });
}

std::optional<double> bf16_rate(int threads) {
  return once(threads, [&]() -> std::optional<double> {
    if (!bf16_loop()) return {};
    return rate(bf16_loop(), threads);
  });
}

double multiply_add_rate(DType dtype, int threads) {
  const Loop loop = dtype == bf16 && bf16_loop() ? bf16_loop() : f32_loop();
  std::vector<double> operations(static_cast<size_t>(threads));
  const double seconds =
      together(threads, [&](int64_t i) { operations[static_cast<size_t>(i)] = loop(); });
  return std::accumulate(operations.begin(), operations.end(), 0.0) / seconds;
}

double now(int threads) {
  timespec t;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

double copy_rate(double bytes, int threads) {
  // Powers of two, from below any L1 cache to above almost any cache.
  const uint64_t size = std::clamp<uint64_t>(std::bit_floor(uint64_t(bytes)), 1 << 14, 1 << 28) / 2;
  return once(std::pair(size, threads), [&] {
    const uint64_t part = size / uint64_t(threads);
    const std::unique_ptr<char[]> from(new char[size]()), to(new char[size]());
    const auto repeats = std::max<uint64_t>(1, (1 << 20) / size);
    return best_rate(2.0 * double(size * repeats), threads, [&](int64_t i) {
      for (uint64_t r = 0; r < repeats; ++r) {
        std::memcpy(to.get() + uint64_t(i) * part, from.get() + uint64_t(i) * part, part);
        asm volatile("" : : "r"(to.get()) : "memory");
      }
    });
  });
}

}  // namespace mixtape::bench
