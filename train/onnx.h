#pragma once
// save_onnx: writes networks as ONNX files, which onnxruntime and other programs run.

#include <array>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace mixtape::train {

struct OnnxOptions {
  int opset = 18;  // up to 23; later ones have single ops for GELU (20), bf16 (22), RMS norm (23)
  // The first dimension of the first input, and of others in which it is equal, may have any size;
  // for this the network runs with batches of three sizes, one of them twice as large as given, or
  // a little more. If false, sizes are as given.
  bool dynamic_batch = true;
  bool external_data = false;  // weights go to a second file, `path` + ".data", for over 2 GiB
  // Names; none: input, or input_0, input_1, ... No weight may have one of them.
  std::vector<std::string> inputs = {}, outputs = {};
};

namespace detail {
using OnnxRun = std::function<nn::Tensors(const nn::Tensors& inputs)>;
void save_onnx(const std::string& path, nn::ModuleBase& net, const nn::Tensors& inputs,
               const OnnxRun& run, const OnnxOptions& options);
}  // namespace detail

// Writes the computation of net(inputs...) in evaluation, in the dtypes in which it runs (under an
// Autocast with its casts). Weights have the names of net's state_dict(). Throws Error, with the
// module, for an op without a counterpart in ONNX, if ops or their sizes depend on the batch in a
// way that a graph cannot express, and for a name that is not UTF-8 or that something else has.
// Values that depend on inputs through C++, such as an if on item(), are those of this run.
//   save_onnx("net.onnx", net, {x}, {.opset = 20});
template <class M, size_t count>
void save_onnx(const std::string& path, M& net, const Tensor (&inputs)[count],
               const OnnxOptions& options = {}) {
  const detail::OnnxRun run = [&net](const nn::Tensors& x) {
    auto y = [&]<size_t... i>(std::index_sequence<i...>) {
      return net(x[i]...);
    }(std::make_index_sequence<count>());
    static_assert(nn::HoldsTensors<decltype(y)>,
                  "forward must return tensors; a struct of them needs tensors(), as nn::RnnOutput "
                  "has");
    nn::Tensors all;
    nn::for_each_tensor(y, [&](const Tensor& t) { all.push_back(t); });
    return all;
  };
  if constexpr (std::is_base_of_v<nn::ModuleBase, M>)
    detail::save_onnx(path, net, {inputs, inputs + count}, run, options);
  else  // nn::Any
    detail::save_onnx(path, *net.module(), {inputs, inputs + count}, run, options);
}

}  // namespace mixtape::train
