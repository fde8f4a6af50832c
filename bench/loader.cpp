// Examples per second: a DataLoader of IDX-like images, plain and with random crops and flips, for
// several numbers of workers; and the demo's training step, which uses all cores.

#include <benchmark/benchmark.h>

#include "bench/models.h"
#include "train/data/data.h"

namespace mixtape {
namespace {

constexpr int64_t images = 8000, batch = 64;

const train::TensorDataset& digits() {
  static const train::TensorDataset data = train::make_digits(1, images, 0).train;
  return data;
}

// One epoch per iteration.
void load(benchmark::State& state, const train::Transform& transform) {
  train::DataLoader loader(digits(), {.batch_size = batch,
                                      .shuffle = true,
                                      .drop_last = true,
                                      .workers = int(state.range(0)),
                                      .transform = transform});
  for (auto _ : state)
    for (const auto& [x, y] : loader) benchmark::DoNotOptimize(x.raw());
  state.SetItemsProcessed(state.iterations() * images);
}

void normalised(benchmark::State& state) { load(state, train::transforms::normalize(0.13, 0.31)); }
void augmented(benchmark::State& state) {
  load(state, train::transforms::compose({train::transforms::random_crop(2),
                                          train::transforms::random_flip(),
                                          train::transforms::normalize(0.13, 0.31)}));
}
BENCHMARK(normalised)->Arg(0)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(augmented)->Arg(0)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

// Training steps on one batch or on a loader's batches, with that many workers.
void train_on(benchmark::State& state, bool loading) {
  const Seed seed(1);
  bench::Cnn net(bench::demo_cnn);
  optim::Adam opt(net.parameters(), {.lr = 1e-3});
  train::DataLoader loader(digits(), {.batch_size = batch,
                                      .shuffle = true,
                                      .drop_last = true,
                                      .workers = loading ? int(state.range(0)) : 0,
                                      .transform = train::transforms::normalize(0.13, 0.31)});
  const train::Batch same = loader.batch(0);
  const auto step = [&](const train::Batch& b) {
    opt.zero_grad();
    cross_entropy(net(b.x), b.y).backward();
    opt.step();
  };
  if (!loading) {
    for (auto _ : state) step(same);
    state.SetItemsProcessed(state.iterations() * batch);
    return;
  }
  for (auto _ : state)
    for (const auto& b : loader) step(b);
  state.SetItemsProcessed(state.iterations() * loader.batches() * batch);
}
void step(benchmark::State& state) { train_on(state, false); }
void epoch(benchmark::State& state) { train_on(state, true); }
BENCHMARK(step)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(epoch)->Arg(0)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mixtape

BENCHMARK_MAIN();
