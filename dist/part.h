#pragma once
// Part: the share of a rank in a step's batch.

#include <cstdint>

namespace mixtape::dist {

// A step's batch is cut into chunks, contiguous and of equal size but for the last ones. Rank r of
// n has the chunks [r c / n, (r + 1) c / n).
struct Part {
  int rank = 0, ranks = 1;
  int64_t chunks = 1;  // of the step, a multiple of ranks

  int64_t own_chunks() const { return chunks / ranks; }
  int64_t first_chunk() const { return rank * own_chunks(); }
  // The first of `examples` examples of a step that chunk `i` has; i may be chunks.
  int64_t begin(int64_t i, int64_t examples) const {
    const int64_t each = (examples + chunks - 1) / chunks, first = i * each;
    return first < examples ? first : examples;
  }
};

}  // namespace mixtape::dist
