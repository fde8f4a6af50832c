#pragma once
// Part: a rank's share of a step's batch.

#include <cstdint>

namespace mixtape::dist {

// A step's batch is cut into chunks, contiguous and of sizes that differ by at most 1. Rank r of n
// has the chunks [r c / n, (r + 1) c / n).
struct Part {
  int rank = 0, ranks = 1;
  int64_t chunks = 1;  // of the step, a multiple of ranks

  int64_t own_chunks() const { return chunks / ranks; }        // the number of this rank's chunks
  int64_t first_chunk() const { return rank * own_chunks(); }  // its first, among those of all
  // The first of the step's examples in chunk `i`; i may be `chunks`, which gives the end.
  int64_t begin(int64_t i, int64_t examples) const { return i * examples / chunks; }
  // The first example of this rank.
  int64_t begin(int64_t examples) const { return begin(first_chunk(), examples); }
  int64_t end(int64_t examples) const { return begin(first_chunk() + own_chunks(), examples); }
};

}  // namespace mixtape::dist
