// A function for each example: by vmap, in a loop, and as a batch. The gradient of each example's
// loss: in one pass, in a loop, and for comparison the gradient of all together.

#include <benchmark/benchmark.h>

#include "autograd/vmap.h"
#include "bench/models.h"
#include "mixtape.h"

namespace mixtape::bench {
namespace {

using Tensors = std::vector<Tensor>;

template <class Net>
struct Problem {
  Net net;
  Tensor x, target;

  Tensor losses(const Tensors& in) const {
    const Tensor logits = net(in[0]);  // of images [n, classes], of text [n, t, classes]
    const Tensor y = cross_entropy(logits.rank() == 2 ? logits : transpose(logits, 1, 2), in[1],
                                   {.reduction = Reduction::None});
    return y.rank() == 1 ? y : mean(y, {1});
  }
};

Problem<Mlp> mlp_problem() {
  const int64_t n = mlp.batch;
  return {Mlp(mlp), randn({n, mlp.in}), randint(0, mlp.classes, Shape{n})};
}
Problem<Cnn> cnn_problem() {
  const CnnSize& s = demo_cnn;
  return {Cnn(s), randn({s.batch, 1, 28, 28}), randint(0, 10, Shape{s.batch})};
}
Problem<models::Gpt> gpt_problem() {
  const Shape tokens{gpt.batch, gpt.context};
  return {models::Gpt(models::GptConfig{.vocabulary = gpt.vocabulary,
                                        .context = gpt.context,
                                        .layers = gpt.layers,
                                        .heads = gpt.heads,
                                        .width = gpt.width,
                                        .dropout = 0}),
          randint(0, gpt.vocabulary, tokens), randint(0, gpt.vocabulary, tokens)};
}

// The logits of each example, as a function of one.
template <auto make>
void forward_vmap(benchmark::State& state) {
  const Seed seed(1);
  const auto p = make();
  const NoGrad off;
  const auto each = vmap([&](const Tensor& x) { return squeeze(p.net(unsqueeze(x, 0)), 0); });
  for (auto _ : state) benchmark::DoNotOptimize(each(p.x));
}
template <auto make>
void forward_loop(benchmark::State& state) {
  const Seed seed(1);
  const auto p = make();
  const NoGrad off;
  for (auto _ : state) {
    Tensors all;
    for (int64_t b = 0; b < p.x.size(0); ++b)
      all.push_back(squeeze(p.net(unsqueeze(select(p.x, 0, b), 0)), 0));
    benchmark::DoNotOptimize(stack(all));
  }
}
template <auto make>
void forward_batch(benchmark::State& state) {
  const Seed seed(1);
  const auto p = make();
  const NoGrad off;
  for (auto _ : state) benchmark::DoNotOptimize(p.net(p.x));
}

template <auto make>
void one_pass(benchmark::State& state) {
  const Seed seed(1);
  const auto p = make();
  const Tensors params = p.net.parameters();
  for (auto _ : state)
    benchmark::DoNotOptimize(per_sample_gradients([&](const Tensors& in) { return p.losses(in); },
                                                  params, {p.x, p.target}, {.check = false}));
}
template <auto make>
void loop(benchmark::State& state) {
  const Seed seed(1);
  const auto p = make();
  const Tensors params = p.net.parameters();
  const auto gradients = vmap([&](const Tensor& x, const Tensor& target) {
    return grad({p.losses({unsqueeze(x, 0), unsqueeze(target, 0)})}, params,
                {.gradients = {ones({1})}});
  });
  for (auto _ : state) benchmark::DoNotOptimize(gradients(p.x, p.target));
}
template <auto make>
void all_together(benchmark::State& state) {
  const Seed seed(1);
  const auto p = make();
  const Tensors params = p.net.parameters();
  for (auto _ : state) benchmark::DoNotOptimize(grad({sum(p.losses({p.x, p.target}))}, params));
}

#define EACH(make)                                                                   \
  BENCHMARK(one_pass<make>)->Name("one_pass/" #make)->Unit(benchmark::kMillisecond); \
  BENCHMARK(loop<make>)->Name("loop/" #make)->Unit(benchmark::kMillisecond);         \
  BENCHMARK(all_together<make>)->Name("all/" #make)->Unit(benchmark::kMillisecond)
#define EACH_FORWARD(make)                                                                   \
  BENCHMARK(forward_vmap<make>)->Name("forward/vmap/" #make)->Unit(benchmark::kMillisecond); \
  BENCHMARK(forward_loop<make>)->Name("forward/loop/" #make)->Unit(benchmark::kMillisecond); \
  BENCHMARK(forward_batch<make>)->Name("forward/batch/" #make)->Unit(benchmark::kMillisecond)
EACH_FORWARD(mlp_problem);
EACH_FORWARD(cnn_problem);
EACH(mlp_problem);
EACH(cnn_problem);
EACH(gpt_problem);

}  // namespace
}  // namespace mixtape::bench

BENCHMARK_MAIN();
