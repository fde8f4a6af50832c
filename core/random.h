#pragma once
// RandomGenerator: random numbers from a seed and a position in its stream. Each draw reserves the
// blocks that it needs, so the numbers depend only on the order of draws.

#include <cstdint>

#include "core/draw.h"
#include "core/no_copy.h"

namespace mixtape {

class RandomGenerator {  // for one thread at a time
 public:
  explicit RandomGenerator(uint64_t seed = 0) : seed_(seed) {}  // at the beginning of its stream
  uint64_t seed() const { return seed_; }                       // the number of the stream
  uint64_t offset() const { return offset_; }  // blocks of four 32-bit numbers drawn so far
  void set_offset(uint64_t offset) { offset_ = offset; }  // continues from there
  // Reserves blocks for `count` 32-bit numbers and returns the first.
  uint64_t reserve(int64_t count) {
    const uint64_t first = offset_;
    offset_ += (static_cast<uint64_t>(count) + 3) / 4;
    return first;
  }
  // The same for a kernel. In a capture, each replay begins where the generator is at that time.
  Draw draw(int64_t count) {
    const uint64_t first = reserve(count);
    return place_ ? Draw{0, first - begin_, place_} : Draw{seed_, first};
  }
  void begin_capture(const uint64_t* place) {  // until the end, draws refer to `place`, as in Draw
    place_ = place;
    begin_ = offset_;
  }
  uint64_t end_capture() {  // returns the number of blocks reserved, and gives them back
    place_ = nullptr;
    const uint64_t drawn = offset_ - begin_;
    offset_ = begin_;
    return drawn;
  }
  uint32_t next();           // one 32-bit number (a whole block)
  double uniform();          // [0, 1), 53 bits
  int64_t below(int64_t n);  // [0, n), without bias; n > 0

 private:
  uint64_t seed_;
  uint64_t offset_ = 0;
  const uint64_t* place_ = nullptr;  // see Draw
  uint64_t begin_ = 0;               // offset_ when the capture began
};

// The generator of this thread's random ops: that of the innermost Seed, else the thread's own. The
// main thread's has seed 0; other threads get streams of their own in the order of their first
// draw.
RandomGenerator& generator();

// While one is alive, this thread draws from a fresh stream of the given seed.
class Seed : NoCopy {
 public:
  [[nodiscard]] explicit Seed(uint64_t seed) : Seed(RandomGenerator(seed)) {}  // from its beginning
  [[nodiscard]] explicit Seed(const RandomGenerator& at);  // continues where `at` is
  ~Seed();
  RandomGenerator& operator*() { return mine_; }

 private:
  RandomGenerator mine_;
  RandomGenerator* outer_;
};

void manual_seed(uint64_t seed) = delete;  // a guard instead: Seed seed(1);

}  // namespace mixtape
