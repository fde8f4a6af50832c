#pragma once
// trace() turns one run of a network into an ONNX graph; merge() joins the graphs for several batch
// sizes.

#include <array>
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

// Traces of three batch sizes: what two of them have in common may be chance.
using Traces = std::array<Trace, 3>;
// The graph for any batch size. Throws Error if the traces differ in more than sizes that are
// linear in the batch, the first size of the first input.
io::OnnxGraph merge(const Traces& traces);

}  // namespace onnx
}  // namespace mixtape::train
