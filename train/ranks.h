#pragma once
// Tools to train a Learner on several ranks: agreement among them, and chunks of a batch.

#include <functional>

#include "core/random.h"
#include "dist/part.h"
#include "optim/state.h"
#include "train/data/dataset.h"

namespace mixtape::train {

bool is_first_rank();  // of this thread's World; true without one
// A number of each rank's, by rank.
std::vector<double> of_all_ranks(double x);
// Runs f on the first rank. All ranks throw what it throws.
void on_first_rank(const std::function<void()>& f);
// The first rank's dict, on all; the tensors are on the CPU.
StateDict of_first_rank(const StateDict& dict);

// Sums over the chunks of all ranks, in the order of kernels::sum_tree(). own: this rank's f64
// tensors, of one shape in all chunks; a chunk may have none.
std::vector<Tensor> sum_of_chunks(const std::vector<std::vector<Tensor>>& own);

// Chunk i of the step's batch, of which `batch` is this rank's part; no x if it has no examples.
Batch chunk_of(const Batch& batch, const dist::Part& part, int64_t i);

// Guard: a chunk of an evaluation draws the same random numbers whichever rank has it.
class ChunkSeed : NoCopy {
 public:
  // `step` is the thread's generator when the step began.
  ChunkSeed(const RandomGenerator& step, int64_t chunk);

 private:
  const Seed seed_;
};

}  // namespace mixtape::train
