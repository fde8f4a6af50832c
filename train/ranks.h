#pragma once
// Tools for a Learner on several ranks: agreement between them, and chunks of a batch.

#include <functional>

#include "core/random.h"
#include "dist/part.h"
#include "optim/state.h"
#include "train/data/dataset.h"

namespace mixtape::train {

bool is_first_rank();               // of this thread's World; true without one
double largest_of_ranks(double x);  // the largest number that a rank gives
// Runs f on the first rank. If it throws, all ranks throw.
void on_first_rank(const std::function<void()>& f);
// The first rank's dict, on all ranks, with tensors on the CPU.
StateDict of_first_rank(const StateDict& dict);

// Sums over the chunks of all ranks, in the order of kernels::sum_tree(). `own` are this rank's f64
// tensors by chunk, with the same shapes in all chunks; a chunk may have none.
std::vector<Tensor> sum_of_chunks(const std::vector<std::vector<Tensor>>& own);

// a * b, or INT64_MAX if that is less: as many batches or steps as there are.
inline int64_t bounded_product(int64_t a, int64_t b) {
  return __builtin_mul_overflow(a, b, &a) ? INT64_MAX : a;
}

// Chunk i of the step's batch, of which `batch` is this rank's part; without x if it has no
// examples.
Batch chunk_of(const Batch& batch, const dist::Part& part, int64_t i);

// A guard: a chunk of an evaluation draws the same random numbers on whichever rank it is.
class ChunkSeed : NoCopy {
 public:
  // `step` is the thread's generator at the beginning of the step.
  ChunkSeed(const RandomGenerator& step, int64_t chunk);

 private:
  const Seed seed_;
};

}  // namespace mixtape::train
