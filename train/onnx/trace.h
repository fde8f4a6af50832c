#pragma once
// trace() turns one run of a network into an ONNX graph; merge() joins the graphs for two batch
// sizes.

#include <set>
#include <string>

#include "io/onnx.h"
#include "train/onnx.h"

namespace mixtape::train {
namespace [[gnu::visibility("hidden")]] onnx {

struct Trace {
  io::OnnxGraph graph;
  std::set<std::string> number_lists;  // initializers that are shapes or positions
  std::set<std::string> taken;         // names of weights, inputs and outputs
};
Trace trace(nn::ModuleBase& net, const nn::Tensors& inputs, const detail::OnnxRun& run,
            const OnnxOptions& options);

// The graph for any batch size, from those for two. Throws Error if they differ in more than sizes
// that are multiples of the batch size.
io::OnnxGraph merge(const Trace& one, const Trace& other, int64_t batch, int64_t other_batch);

}  // namespace onnx
}  // namespace mixtape::train
