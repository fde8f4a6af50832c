#pragma once
// Shards: lets an optimizer keep masters and moments of only this rank's piece of the parameters.

#include <memory>

#include "optim/optimizer.h"

namespace mixtape::dist {

class Division;

struct ShardsOptions {
  double bucket_mb = 4;  // gradients that travel together, in MiB
};

// A guard: the ranks of World::current() divide an optimizer's training parameters and its state.
// The optimizer's params() are then this rank's pieces. A DataParallel of the model puts the
// gradients there (without one, a step throws Error), and each step ends with all ranks' new values
// in the parameters. Training gives the same bits as without Shards. In a world of one it does
// nothing.
//   optim::AdamW opt(net.parameters(), {.lr = 1e-3});
//   dist::Shards shards(opt);
//   dist::DataParallel parallel(net);
// All ranks must call its functions at the same place, except load_state_dict().
class Shards : NoCopy {
 public:
  // The optimizer must not move. Once it is gone, the functions throw Error, as does a step after
  // the World has ended. With optimizers that read whole parameters, such as Adafactor and Muon,
  // each parameter belongs to one rank. Throws Error if other Shards divide some of the parameters.
  explicit Shards(optim::Optimizer& optimizer, const ShardsOptions& options = {});
  ~Shards();  // leaves an optimizer that cannot step; see join()

  // The state dict that the optimizer would have without Shards, on the CPU.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);
  // Gives the optimizer whole parameters, with their state, again.
  void join();
  // True if it was made for this optimizer, wherever that has moved.
  bool divides(const optim::Optimizer& optimizer) const { return optimizer_.is(optimizer); }

 private:
  struct StateOf {                      // the parameter to which a state in a dict belongs
    const Tensor* parameter = nullptr;  // null if it is not divided
    bool uncut = false;                 // true if one rank has all of it
    int64_t block = 1;                  // elements that share a number of the state
    Shape shape() const;                // of whole parameters
  };
  StateOf divided(const std::string& name) const;

  optim::OptimizerRef optimizer_;
  const std::vector<Tensor> whole_;
  std::shared_ptr<Division> division_;  // null if there is nothing to divide
};

}  // namespace mixtape::dist
