#pragma once
// Engine: moves bytes between the processes (ranks) of a World.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/no_copy.h"

namespace mixtape::dist {

// Bytes to or from another rank. The engine uses the memory until the request is done.
struct Transfer {
  int rank;
  void* data;
  size_t bytes;
};

// Transfers under way.
class Request : NoCopy {
 public:
  virtual ~Request() = default;
  virtual bool done() = 0;  // makes progress; throws Error if the engine fails
  // True once later work of this thread on the engine's device runs after the transfers.
  virtual bool is_queued() { return done(); }
  virtual std::vector<int> missing() const = 0;  // ranks with bytes still to send or receive
  // The missing ranks whose connection has ended, if the engine knows.
  virtual std::vector<int> lost() const { return {}; }
};

// A World calls its engine from one thread at a time, and in the same order on all ranks: the k-th
// transfer that a rank sends to another is the k-th that the other receives from it.
class Engine : NoCopy {
 public:
  virtual ~Engine() = default;  // destroyed after the last request is done, on all ranks
  virtual std::string name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;   // among the ranks of this machine
  virtual std::string machine() const;  // where this rank is; empty if that is not known
  virtual Device device() const { return Device::cpu(); }  // the device whose memory it moves
  // Starts transfers, which begin after the work that this thread has queued on the device.
  virtual std::unique_ptr<Request> start(std::span<const Transfer> sends,
                                         std::span<const Transfer> receives) = 0;
  virtual void abort(int code) noexcept = 0;  // ends all ranks
  // True once another rank has ended all, if that does not end this process by itself.
  virtual bool was_aborted() const { return false; }
};

}  // namespace mixtape::dist
