// Draws for host code, each from its own blocks.
#include "core/random.h"

#include <unistd.h>

#include <atomic>

#include "core/capture.h"
#include "core/check.h"
#include "core/philox.h"

namespace mixtape {
using namespace internal;
namespace {

thread_local RandomGenerator* innermost_generator = nullptr;

// The seed of this thread's own generator: 0 on the main thread; on others a number per thread, in
// the order in which they ask, far from the small numbers that programs give to Seed.
uint64_t seed_of_thread() {
  static std::atomic<uint64_t> others = 0;
  return gettid() == getpid() ? 0 : ++others * 0x9e3779b97f4a7c15u;
}

// Reserves blocks for the host, which a replay would not run again.
uint64_t reserve_here(RandomGenerator& g, int64_t count) {
  check_no_capture("a random number for the host would be the same in every replay");
  return g.reserve(count);
}

uint64_t join(uint32_t high, uint32_t low) { return uint64_t(high) << 32 | low; }

}  // namespace

uint32_t RandomGenerator::next() { return Philox::bits(seed_, reserve_here(*this, 1))[0]; }

double RandomGenerator::uniform() {
  const Philox::Block b = Philox::bits(seed_, reserve_here(*this, 2));
  return static_cast<double>(join(b[1], b[0]) >> 11) * 0x1p-53;
}

int64_t RandomGenerator::below(int64_t n) {
  check(n > 0, "the bound must be > 0, got {}", n);
  const uint64_t bound = static_cast<uint64_t>(n);
  const uint64_t surplus = -bound % bound;  // 2^64 mod n: the number of rejected draws
  for (;;) {
    const Philox::Block b = Philox::bits(seed_, reserve_here(*this, 2));
    const uint64_t draw = join(b[1], b[0]);
    if (draw >= surplus) return static_cast<int64_t>(draw % bound);
  }
}

RandomGenerator& generator() {
  static thread_local RandomGenerator fallback(seed_of_thread());
  return innermost_generator ? *innermost_generator : fallback;
}

Seed::Seed(const RandomGenerator& at) : mine_(at), outer_(innermost_generator) {
  innermost_generator = &mine_;
}
Seed::~Seed() { innermost_generator = outer_; }

}  // namespace mixtape
