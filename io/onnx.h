#pragma once
// ONNX: a network as a graph of named values. Files are protobuf messages, which are written
// without the protobuf library, and not read.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/state_dict.h"

namespace mixtape::io {

using OnnxAttribute =
    std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>>;

// An op of ONNX. Its inputs and outputs are names of values; an absent input is "".
struct OnnxNode {
  std::string op;
  std::vector<std::string> inputs, outputs;
  std::vector<std::pair<std::string, OnnxAttribute>> attributes = {};
};

// An input or output of a graph. A size is a number or, if it is known only at run time, a name.
struct OnnxValue {
  std::string name;
  DType dtype;
  std::vector<std::variant<int64_t, std::string>> shape;
};

struct OnnxGraph {  // nodes that compute outputs from inputs and initializers
  std::string name = {};
  int opset = 18;                    // 18 to 23
  std::vector<OnnxNode> nodes = {};  // each after the nodes whose outputs it reads
  std::vector<OnnxValue> inputs = {}, outputs = {};
  StateDict initializers = {};  // values stored in the file, from any device
};

int64_t onnx_type(DType dtype);  // ONNX's number of the dtype, also for the attribute of Cast

// Writes the graph atomically. A protobuf message is limited to 2 GiB; with `external`,
// initializers go to a second file, `path` + ".data", which has no such limit. It is replaced just
// before the graph, when both are complete; if `path` is a link, both are where it leads. Throws
// Error for an unknown opset, for a duplicate initializer, for a second file whose name is not
// UTF-8, and beyond the limit.
void save_onnx(const std::string& path, const OnnxGraph& graph, bool external = false);

}  // namespace mixtape::io
