#pragma once
// Engine: what moves bytes between the processes (ranks) of a World.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/no_copy.h"

namespace mixtape::dist {

// Bytes to or from another rank. The memory belongs to the engine until the request is done.
struct Transfer {
  int rank;
  void* data;
  size_t bytes;
};

// Transfers on their way.
class Request : NoCopy {
 public:
  virtual ~Request() = default;
  virtual bool done() = 0;  // moves things on; throws Error if the engine fails
  // True once what this thread does next on the engine's device comes after the transfers.
  virtual bool is_queued() { return done(); }
  virtual std::vector<int> missing() const = 0;  // ranks whose bytes have not come or gone
  // Those of them whose connection has ended, if the engine knows.
  virtual std::vector<int> lost() const { return {}; }
};

// A World calls its engine from one thread at a time, and in the same order on all ranks: the k-th
// bytes that a rank sends to another are the k-th that the other receives from it.
class Engine : NoCopy {
 public:
  virtual ~Engine() = default;  // after the last request is done, on all ranks
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;   // among the ranks of this machine
  virtual std::string machine() const;  // where this rank is; empty if that is not known
  virtual Device device() const { return Device::cpu(); }  // whose memory it moves
  // The transfers begin after what this thread has queued on the device.
  virtual std::unique_ptr<Request> start(std::span<const Transfer> sends,
                                         std::span<const Transfer> receives) = 0;
  virtual void abort(int code) noexcept = 0;  // ends all ranks
  // True once another rank has ended all, where that does not end this process by itself.
  virtual bool was_aborted() const { return false; }
};

}  // namespace mixtape::dist
