#pragma once
// Shards: an optimizer that keeps masters and moments of this rank's piece of the parameters alone.

#include <memory>

#include "optim/optimizer.h"

namespace mixtape::dist {

class Division;

struct ShardsOptions {
  double bucket_mb = 4;  // gradients that travel together, in MiB
};

// A guard: while it lives, the ranks of World::current() divide the parameters of an optimizer that
// train, and its state. params() of the optimizer are then this rank's pieces; a DataParallel of
// the model leaves the gradients there (without one a step is an Error), and each step ends with
// all ranks' new values in the parameters. Training has the bits that it has without. In a world of
// one it does nothing.
//   optim::AdamW opt(net.parameters(), {.lr = 1e-3});
//   dist::Shards shards(opt);
//   dist::DataParallel parallel(net);
// All functions but load_state_dict() are called by all ranks, at the same place.
class Shards : NoCopy {
 public:
  // The optimizer must outlive it, and stay where it is. A step after its World has ended is an
  // Error. A rule that reads whole parameters, as Adafactor's and Muon's do, has each on one rank.
  // Throws Error if other Shards divide some of them.
  explicit Shards(optim::Optimizer& optimizer, const ShardsOptions& options = {});
  ~Shards();  // leaves an optimizer that cannot step: see join()

  // As the optimizer's would be without Shards, with state of whole parameters, on the CPU.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);
  // Gives the optimizer whole parameters and their state again.
  void join();

 private:
  struct StateOf {                      // what a state in a dict belongs to
    const Tensor* parameter = nullptr;  // null if it is not divided
    bool uncut = false;                 // one rank has it
    int64_t block = 1;                  // elements that share a number of it
    Shape shape() const;                // of whole parameters
  };
  StateOf divided(const std::string& name) const;

  optim::Optimizer& optimizer_;
  const std::vector<Tensor> whole_;
  std::shared_ptr<Division> division_;  // null if there is nothing to divide
};

}  // namespace mixtape::dist
