#include "bench/case.h"

#include "autograd/ops.h"
#include "core/random.h"
#ifdef MIXTAPE_TORCH
#include "bench/peers/torch.h"
#endif

namespace mixtape::bench {
namespace {

using Tensors = std::vector<Tensor>;

Tensors make(const Case& c, DType dtype, bool leaves) {
  const Seed seed(1);
  Tensors made;
  for (const CaseInput& in : c.inputs)
    if (in.classes > 0)
      made.push_back(randint(0, in.classes, in.shape));
    else
      made.push_back(randn(in.shape).to(dtype).set_requires_grad(leaves));
  return made;
}

}  // namespace

double moved_bytes(const Tensors& inputs, const Tensor& y, bool backward) {
  double sum = double(y.nbytes());
  for (const Tensor& x : inputs)
    if (!backward || x.requires_grad()) sum += double(x.nbytes());
  return sum;
}

Call forward(std::function<Tensor(const Tensors&)> run, Tensors inputs) {
  return [run = std::move(run), inputs = std::move(inputs)] {
    const NoGrad off;
    run(inputs);
  };
}

Call backward(const std::function<Tensor(const Tensors&)>& run, const Tensors& inputs) {
  Tensors leaves;
  for (const Tensor& x : inputs)
    if (x.requires_grad()) leaves.push_back(x);
  const Tensor y = run(inputs);
  const Seed seed(2);
  const Tensor dy = randn(y.shape()).to(y.dtype());
  return
      [=] { grad({y}, leaves, {.gradients = {dy}, .retain_graph = true, .allow_unused = true}); };
}

void add(const Case& c) {
  for (const bool back : {false, true}) {
    if (back && !c.backward) continue;
    std::vector<Variant> variants;
    const auto moved = [&](DType dtype) {
      return [=] {
        const Tensors inputs = make(c, dtype, back);
        return moved_bytes(inputs, c.run(inputs), back);
      };
    };
    const double operations = c.operations * (back ? 2 : 1);
    for (const DType dtype : {f32, f16, bf16})
      variants.push_back({dtype, "", operations, moved(dtype), [=] {
                            const Tensors inputs = make(c, dtype, back);
                            return back ? backward(c.run, inputs) : forward(c.run, inputs);
                          }});
#ifdef MIXTAPE_TORCH
    for (const DType dtype : {f32, bf16})
      if (peers::has(c, dtype))
        variants.push_back({dtype, "libtorch", operations, moved(dtype),
                            [=] { return peers::op(c, dtype, back); }});
#endif
    compare(c.name + (back ? "/backward" : "/forward"), variants);
  }
}

}  // namespace mixtape::bench
