#pragma once
// World: the processes that train together, each a rank. mpirun, srun or torchrun starts them.

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
  // "mpi", "tcp", or "none": each process is a world of its own. "nccl": NCCL between GPUs, and mpi
  // or tcp for the rest. Empty: MIXTAPE_ENGINE or, without it, by what started this process.
  std::string engine = {};
  double timeout = 600;  // seconds to wait for other ranks, until an Error says which are missing
  std::optional<Device> device = {};  // of this rank; default: a GPU for each rank of a machine
};

namespace detail {
// A line of text for each tensor, "dtype rank sizes name", and tensors like those, on the CPU.
std::string described(const StateDict& dict);
StateDict tensors_of(std::string_view text);
}  // namespace detail

// A guard: while it lives, this process is a rank of those that were started together, all of which
// make one; or a world of one, which needs nothing and costs nothing. It begins and ends on all
// ranks. Where a rank leaves it by an exception, or its process ends within it, all processes end.
class World : NoCopy {
 public:
  // Throws Error if several processes were started and no engine connects them, and if this thread
  // has a World.
  [[nodiscard]] explicit World(const WorldOptions& options = {});
  // For ranks that another engine connects: threads of one process, in tests.
  World(std::unique_ptr<Engine> engine, const WorldOptions& options);
  ~World();

  static const World* current();  // this thread's, or null

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks of this machine
  bool is_first() const { return rank() == 0; }
  Device device() const { return device_; }
  std::string engine() const;  // "none", or the name of what connects the ranks
  // This rank's part of a step, for a data loader. Throws Error unless chunks is a multiple of
  // size(), by a power of two; 0 is one for each rank.
  Part part(int64_t chunks = 0) const;

  // These are called by all ranks, in the same order. Throw Error where ranks have run apart or do
  // not come within the time limit.
  void barrier() const;
  void broadcast(const std::vector<Tensor>& tensors, int from = 0) const;  // in place
  // Over ranks: of x's dtype, added in f32 or wider. `number` becomes its sum, on the way.
  Tensor sum(const Tensor& x, double* number = nullptr) const;
  double sum(double x) const;
  std::vector<Tensor> gather(const Tensor& x) const;  // every rank's; all of one shape and dtype
  std::vector<std::string> gather(const std::string& text) const;
  // `items` end in "; ". Throws Error on all ranks if one has others than rank 0: "rank 1 of 2 has
  // other settings than rank 0: 2 epochs, there 1 epochs", where `has` is "has other settings".
  void check_alike(const std::string& items, std::string_view has) const;
  StateDict of_rank(int from, const StateDict& dict) const;  // that of one rank, on the CPU

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
