#pragma once
// World: the processes that train together, each of which is a rank. mpirun, srun or torchrun
// starts them.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/state_dict.h"
#include "core/tensor.h"
#include "dist/engine.h"
#include "dist/part.h"

namespace mixtape::dist {

class Exchange;

struct WorldOptions {
  // "mpi", "tcp", "nccl" (NCCL between GPUs, and mpi or tcp for the rest), or "none" (each process
  // is a world of its own). Empty: the value of MIXTAPE_ENGINE or, without it, by what started the
  // process.
  std::string engine = {};
  double timeout = 600;  // seconds to wait for other ranks, before an Error names the missing ones
  std::optional<Device> device = {};  // of this rank; by default a GPU for each rank of a machine
};

namespace detail {
// A line of text for each tensor, "dtype rank sizes name", and uninitialised tensors from such a
// text, on the CPU.
std::string described(const StateDict& dict);
StateDict tensors_of(std::string_view text);
}  // namespace detail

// A guard: this process is a rank of the processes that were started together, each of which makes
// a World; or a world of one, which costs nothing. It begins and ends on all ranks together. If a
// rank leaves it by an exception, or a process ends within it, all processes end.
class World : NoCopy {
 public:
  // Throws Error if several processes were started and no engine connects them, or if this thread
  // has a World already.
  [[nodiscard]] explicit World(const WorldOptions& options = {});
  // For ranks that another engine connects, such as threads of one process in tests.
  World(std::unique_ptr<Engine> engine, const WorldOptions& options);
  ~World();

  static const World* current();  // this thread's, or null

  int rank() const;                              // from 0 to size() - 1
  int size() const;                              // the number of ranks
  int local_rank() const;                        // among the ranks of this machine
  bool is_first() const { return rank() == 0; }  // the rank that writes files and prints
  Device device() const { return device_; }      // this rank's
  std::string engine() const;  // the name of the engine that connects the ranks, or "none"
  // This rank's part of a step, for a data loader. `chunks` must be size() times a power of two
  // (else throws Error), or 0 for one chunk per rank.
  Part part(int64_t chunks = 0) const;

  // All ranks must call the following functions, in the same order. They throw Error if ranks are
  // out of step or do not come within the timeout.
  void barrier() const;
  void broadcast(const std::vector<Tensor>& tensors, int from = 0) const;  // in place
  // The sum of x over ranks, in x's dtype: floats are added in f32 or wider, integers wrap around.
  // `number`, if given, is replaced by its sum over ranks.
  Tensor sum(const Tensor& x, double* number = nullptr) const;
  double sum(double x) const;
  // Every rank's x, by rank. Shapes and dtypes must agree.
  std::vector<Tensor> gather(const Tensor& x) const;
  std::vector<std::string> gather(const std::string& text) const;  // every rank's, by rank
  // Compares texts of items that each end in "; ". If a rank's differ from rank 0's, throws Error
  // on all ranks: "rank 1 of 2 has other settings than rank 0: 2 epochs (rank 0: 1 epochs)", where
  // `has` is "has other settings".
  void check_alike(const std::string& items, std::string_view has) const;
  StateDict of_rank(int from, const StateDict& dict) const;  // one rank's dict, on the CPU

  const std::shared_ptr<Exchange>& exchange() const { return exchange_; }  // null in a world of one

 private:
  static void require_first(const WorldOptions& options);
  void begin(const WorldOptions& options);
  void meet();
  void leave(const std::string& why);

  std::shared_ptr<Exchange> exchange_;
  Device device_;
  bool owns_process_ = false;
  const int exceptions_;
};

}  // namespace mixtape::dist
