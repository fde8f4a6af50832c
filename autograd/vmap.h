#pragma once
// vmap, a function of one example as one of many; and the gradient of each example's loss.
//
//   const Tensor norms = vmap([](const Tensor& row) { return norm(row); })(x);  // [n, k] -> [n]

#include <concepts>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/on_vectors.h"

namespace mixtape {

struct VmapOptions {
  // The dimension of examples in each input, or one for all. std::nullopt: all examples get the
  // whole input.
  std::vector<std::optional<int>> in_dims = {0};
  std::vector<int> out_dims = {0};  // in each result, or one for all
};
namespace detail {

std::vector<Tensor> vmap(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
                         const std::vector<Tensor>& inputs, const VmapOptions& options);

}  // namespace detail

// A function that is f(tensors...) for each example, its results stacked; f returns a tensor or a
// vector of tensors. f runs for the first example; its calls of ops are then made once for all
// examples, by batching rules (a loop for an op that has none), and compared with f's calls and
// results for the last. Where that can't be right, f runs for each example, in order: if there are
// fewer than three, or if f reads or checks elements, draws, writes in place, runs backward or a
// checkpoint, changes the policy, or differs on the last. So f may do anything, even call vmap() or
// grad(); but what only it can tell, such as a counter of its own that an example in the middle
// changes, must not decide what it computes. Recorded as the calls are. The function throws Error
// if in_dims or out_dims do not fit, if there is no example, or if examples differ in number, or
// their results in shape.
template <class F>
auto vmap(F f, VmapOptions options = {}) {
  return [f = std::move(f), options = std::move(options)](const std::same_as<Tensor> auto&... in) {
    const auto run = [&](const auto& call, const std::vector<Tensor>& all) {
      return detail::vmap(call, all, options);
    };
    return detail::on_vectors(std::cref(f), run, in...);
  };
}

struct PerSampleOptions {
  // Compares the gradient of the last example with that of f for it alone, which takes a call more.
  bool check = true;
};
// The gradient of each example's loss for each parameter, [n, shape], without history. f takes the
// inputs, whose dimension 0 are n examples, and returns their losses [n], none of which may depend
// on another example. One forward and one backward pass: products, convolutions, recurrent layers,
// embeddings, norms and what broadcasts give a gradient for each example; any other op that takes a
// parameter runs its rule n times, on the whole batch. Changes no grad(). Throws Error if a
// parameter is no leaf that requires a gradient, if the losses are not [n], or if the check fails:
// examples must follow each other along dimension 0 of every op that takes a parameter, and f must
// not draw.
std::vector<Tensor> per_sample_gradients(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                                         const std::vector<Tensor>& params,
                                         const std::vector<Tensor>& inputs,
                                         const PerSampleOptions& options = {});

}  // namespace mixtape
