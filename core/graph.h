#pragma once
// Graph: the work that a step queues on a device, captured once and then launched as one. A replay
// repeats kernels and copies, without the ops, the tape and the C++ around them.

#include "core/device.h"
#include "core/no_copy.h"

namespace mixtape {

namespace internal {
class GraphState;
}

//   Graph graph(device);
//   { Capture on(graph); step(); }  // runs nothing yet
//   for (...) { x.copy_(batch); graph.replay(); }
// A replay reads and writes the tensors of the capture. Those made before the capture must stay
// alive. Memory allocated during it belongs to the graph; tensors that still refer to that memory
// hold the results of the last replay.
class Graph : NoCopy {
 public:
  explicit Graph(Device device);  // throws Error on the CPU and on meta, which queue nothing
  ~Graph();

  // Queues the work on this thread's stream. Throws Error if nothing was captured, if a tensor that
  // the work uses was freed, or if a check of an earlier replay failed.
  void replay();
  Device device() const;     // the device whose work it captures
  bool is_captured() const;  // a Capture of it has succeeded

 private:
  friend class Capture;
  // Owned. (A unique_ptr would cost every program 1 MB to compile.)
  internal::GraphState* const state_;
};

// While one is alive, this thread's work for the graph's device is captured instead of run. Ops
// that read values throw Error. If an exception ends the scope, the capture is dropped.
class Capture : NoCopy {
 public:
  // Throws Error inside another capture, or if the graph has one.
  [[nodiscard]] explicit Capture(Graph& graph);
  ~Capture();

 private:
  internal::GraphState& state_;
  const int exceptions_;
};

}  // namespace mixtape
