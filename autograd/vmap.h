#pragma once
// vmap, which maps a function of one example over many, and the gradient of each example's loss.
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
  // The dimension of examples in each input, or one for all inputs. std::nullopt: every example
  // gets the whole input.
  std::vector<std::optional<int>> in_dims = {0};
  std::vector<int> out_dims = {0};  // in each result, or one for all
};
namespace detail {

std::vector<Tensor> vmap(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
                         const std::vector<Tensor>& inputs, const VmapOptions& options);

}  // namespace detail

// A function that applies f(tensors...) to each example and stacks the results; f returns a tensor
// or a vector of tensors. f runs for the first example. Its calls of ops are then replayed once for
// all examples, by batching rules (or a loop, for an op without one), and compared with f's calls
// and results for the last example. f runs for each example in order if a replay could be wrong: if
// there are fewer than three examples, or if f reads or checks elements, draws, writes in place,
// runs backward or a checkpoint, changes the policy, or calls other ops for the last example. So f
// may do anything, even call vmap() or grad(), except that state of its own, such as a counter,
// must not change what it computes for an example in the middle. The calls are recorded as usual.
// The function throws Error if in_dims or out_dims do not fit, if there is no example, if inputs
// differ in their number of examples, or results of examples in shape.
template <class F>
auto vmap(F f, VmapOptions options = {}) {
  return [f = std::move(f),
          options = std::move(options)](const std::derived_from<Tensor> auto&... in) {
    const auto run = [&](const auto& call, const std::vector<Tensor>& all) {
      return detail::vmap(call, all, options);
    };
    return detail::on_vectors(std::cref(f), run, in...);
  };
}

struct PerSampleOptions {
  // Compares the last example's gradient with that of f called for it alone, which is one more
  // call.
  bool check = true;
};
// The gradient of each example's loss for each parameter, [n, shape], without history. f takes the
// inputs, with n examples along dimension 0, and returns their losses [n]; no loss may depend on
// another example. Takes one forward and one backward pass: products, convolutions, recurrent
// layers, embeddings, norms and ops that broadcast give a gradient for each example; any other op
// that takes a parameter runs its rule n times on the whole batch. Changes no grad(). Examples must
// follow each other along dimension 0 of every op that takes a parameter, and f must not draw.
// Throws Error if that check fails, if a parameter is not a leaf that requires a gradient, or if
// the losses are not [n].
std::vector<Tensor> per_sample_gradients(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                                         const std::vector<Tensor>& params,
                                         const std::vector<Tensor>& inputs,
                                         const PerSampleOptions& options = {});

}  // namespace mixtape
