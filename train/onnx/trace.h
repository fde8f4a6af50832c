#pragma once
// trace: one run of a network as a graph of ONNX; merge: the graphs of two sizes of a batch as one.

#include <set>
#include <string>

#include "io/onnx.h"
#include "train/onnx.h"

namespace mixtape::train {
namespace [[gnu::visibility("hidden")]] onnx {

struct Trace {
  io::OnnxGraph graph;
  std::set<std::string> number_lists;  // initializers that are shapes or positions
};
Trace trace(nn::ModuleBase& net, const nn::Tensors& inputs, const detail::OnnxRun& run,
            const OnnxOptions& options);

// The graph for any batch, from those of two sizes. Throws Error if they differ in more than sizes
// that are multiples of it.
io::OnnxGraph merge(const Trace& one, const Trace& other, int64_t batch, int64_t other_batch);

}  // namespace onnx
}  // namespace mixtape::train
