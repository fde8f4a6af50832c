#pragma once
// picture(): draws networks.

#include <functional>
#include <string>
#include <type_traits>

#include "nn/module.h"

namespace mixtape::train {

// The picture for the forward pass that `run` makes.
std::string picture_of(nn::ModuleBase& net, const std::function<void()>& run);

// nn::summary() as SVG: each module is a box inside its parent's, with its type, the shape of its
// output and its number of parameters. A mark has the color of the output's dtype, so a picture
// made under Autocast shows where f32 begins and ends. Runs net(inputs...) in evaluation,
// unrecorded.
//   io::write_file("net.svg", train::picture(net, x));
template <class M, class... Inputs>
std::string picture(M& net, const Inputs&... inputs) {
  const auto run = [&] { net(inputs...); };
  if constexpr (std::is_base_of_v<nn::ModuleBase, M>)
    return picture_of(net, run);
  else  // nn::Any
    return picture_of(*net.module(), run);
}

}  // namespace mixtape::train

namespace mixtape::io {

// train::picture() under another name: io::write_file("net.svg", io::graph(net, x)).
template <class M, class... Inputs>
std::string graph(M& net, const Inputs&... inputs) {
  return train::picture(net, inputs...);
}

}  // namespace mixtape::io
