#pragma once
// ONNX: a network as a graph of named values, written and not read. Its files are protobuf
// messages, which are written here without protobuf.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/state_dict.h"

namespace mixtape::io {

using OnnxAttribute =
    std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>>;

// One op of ONNX. Its inputs and outputs are names of values; an absent input is "".
struct OnnxNode {
  std::string op;
  std::vector<std::string> inputs, outputs;
  std::vector<std::pair<std::string, OnnxAttribute>> attributes = {};
};

// An input or output of a graph. A size is a number or the name of one that only a run knows.
struct OnnxValue {
  std::string name;
  DType dtype;
  std::vector<std::variant<int64_t, std::string>> shape;
};

struct OnnxGraph {  // nodes that follow from inputs and initializers
  std::string name = {};
  int opset = 18;                    // 18 to 23
  std::vector<OnnxNode> nodes = {};  // each after those whose outputs it reads
  std::vector<OnnxValue> inputs = {}, outputs = {};
  StateDict initializers = {};  // values that the file contains, from any device
};

int64_t onnx_type(DType dtype);  // its number there, which the attribute of Cast has, too

// Writes the graph atomically. A protobuf message ends at 2 GiB; with `external`, initializers go
// to a second file, named `path` + ".data", which has no such limit. Throws Error for an opset that
// is not known here, for a duplicate initializer, and beyond that limit.
void save_onnx(const std::string& path, const OnnxGraph& graph, bool external = false);

}  // namespace mixtape::io
