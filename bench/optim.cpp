// An optimizer's step alone, for the parameters of the character GPT (0.8 million): in f32, and in
// 16 bits with f32 masters; beside libtorch's.

#include "bench/interleave.h"
#include "bench/models.h"
#include "nn/models/gpt.h"
#ifdef MIXTAPE_TORCH
#include "bench/peers/torch.h"
#endif

namespace mixtape::bench {
namespace {

using Parameters = std::vector<Tensor>;

std::vector<Shape> shapes() {
  const models::Gpt net({.vocabulary = gpt.vocabulary,
                         .context = gpt.context,
                         .layers = pick(gpt.layers, 1),
                         .heads = gpt.heads,
                         .width = pick(gpt.width, 8)});
  std::vector<Shape> all;
  for (const Tensor& p : net.parameters()) all.push_back(p.shape());
  return all;
}

// `states`: the buffers that a step reads and writes.
template <class Optimizer>
void add(const std::string& name, int states, const typename Optimizer::Options& options) {
  double count = 0;
  for (const Shape& s : shapes()) count += double(s.size());
  const auto bytes = [=](DType dtype) {  // with those of the gradient and the parameter
    const double rest = dtype == f32 ? 3 * 4 : 2 * 2 + 2 * 4;  // reads the master, writes both
    return [=] { return count * (rest + 2 * 4 * states); };
  };
  std::vector<Variant> variants;
  for (const DType dtype : {f32, f16, bf16})
    variants.push_back({dtype, "", 0, bytes(dtype), [=] {
                          const Seed seed(1);
                          Parameters parameters;
                          for (const Shape& s : shapes()) {
                            const Tensor p = randn(s).to(dtype).set_requires_grad();
                            p.set_grad(randn(s).to(dtype));
                            parameters.push_back(p);
                          }
                          const auto opt = std::make_shared<Optimizer>(
                              parameters, options,
                              optim::CommonOptions{.multi_precision = dtype != f32});
                          return [=] { opt->step(); };
                        }});
#ifdef MIXTAPE_TORCH
  if (name == "adamw" || name == "sgd")
    variants.push_back(
        {f32, "libtorch", 0, bytes(f32), [=] { return peers::optimizer(name, shapes()); }});
#endif
  compare("optim/" + name, variants);
}

void declare() {
#ifdef MIXTAPE_TORCH
  on_threads(peers::set_threads);
#endif
  add<optim::AdamW>("adamw", 2, {.lr = 1e-4});
  add<optim::SGD>("sgd", 1, {.lr = 1e-4, .momentum = 0.9});
  add<optim::Lion>("lion", 1, {.lr = 1e-5});
  add<optim::Lamb>("lamb", 2, {.lr = 1e-4});
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) { return mixtape::bench::run(argc, argv, mixtape::bench::declare); }
