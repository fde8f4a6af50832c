#pragma once
// The ring of slots through which a producer hands boxes to its consumers: plain arithmetic, which
// a test explores for all interleavings (tests/kernels/cuda/ring_test.cpp).

namespace mixtape::kernels::cuda {

// A place in a ring of slots. Each slot has two barriers: `full` is over when its boxes have
// landed, `empty` when all consumers have given it back. Producer and consumers each walk their own
// Ring, through all tiles: it is never reset. In a cluster each block fills slots of all, so that a
// slot is empty when the consumers of all blocks have given it back.
template <int stages>
struct Ring {
  int slot = 0;
  unsigned round = 0;  // that of the walk, modulo 2

  constexpr void next() {
    if (++slot < stages) return;
    slot = 0;
    round ^= 1;
  }
  // The parities to wait for: a consumer's, before it reads the slot, and the producer's, before it
  // fills it. The first round of `empty` counts as over.
  constexpr unsigned full_parity() const { return round; }
  constexpr unsigned empty_parity() const { return round ^ 1; }
};

}  // namespace mixtape::kernels::cuda
