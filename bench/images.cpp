// Images from files: decoding, transforms and a loader's batches, beside the step of ResNet-18 at
// 64 x 64 that consumes them. CPU time is that of all threads.

#include <benchmark/benchmark.h>

#include <filesystem>

#include "autograd/ops.h"
#include "io/file.h"
#include "io/jpeg.h"
#include "nn/models/resnet.h"
#include "optim/optimizers.h"
#include "train/data/folder.h"
#include "train/data/image_ops.h"
#include "train/data/images.h"
#include "train/data/loader.h"

namespace mixtape {
namespace {

using namespace train;

// A photograph in size and detail, about 70 kB as JPEG.
Tensor photograph(int64_t height = 375, int64_t width = 500) {
  const Seed seed(1);
  const NoGrad off;
  const Tensor coarse = rand({1, 3, height / 6, width / 6});
  const Tensor smooth = interpolate(coarse, {height, width}, {.mode = Interpolation::Bilinear});
  return clamp(squeeze(smooth, 0) * 200 + 25 * randn({3, height, width}) + 28, 0, 255).to(u8);
}

std::string folder_of_photographs() {
  const std::string folder = std::filesystem::temp_directory_path() / "mixtape_bench_images";
  for (int64_t i = 0; i < 64; ++i) {
    const std::string name = folder + (i % 2 ? "/odd" : "/even");
    std::filesystem::create_directories(name);
    io::save_jpeg(name + "/" + std::to_string(i) + ".jpg", photograph(300 + i * 2, 550 - i * 2));
  }
  return folder;
}

void decode(benchmark::State& state) {
  const std::string folder = std::filesystem::temp_directory_path();
  io::save_jpeg(folder + "/mixtape_bench.jpg", photograph());
  const auto file = io::read_file(folder + "/mixtape_bench.jpg");
  for (auto _ : state)
    benchmark::DoNotOptimize(io::parse_jpeg(file, "photograph", {.min_side = state.range(0)}));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(decode)->ArgName("min_side")->Arg(0)->Arg(128)->Arg(64)->Unit(benchmark::kMillisecond);

void resize(benchmark::State& state) {
  const Tensor image = photograph();
  for (auto _ : state)
    benchmark::DoNotOptimize(images::resized(image, state.range(0), state.range(0)));
}
BENCHMARK(resize)->Arg(64)->Arg(224)->Unit(benchmark::kMillisecond);

// Images per second of CPU, as training sees them.
void loader(benchmark::State& state) {
  const auto all = from_folder(folder_of_photographs(), {.valid_fraction = 0.25});
  const auto crop = images::compose({images::random_resized_crop(64), images::random_flip()});
  DataLoader batches(Mapped(all.train, crop), {.batch_size = 48, .workers = int(state.range(0))});
  for (auto _ : state)
    for (const auto& [x, y] : batches) benchmark::DoNotOptimize(x.host());
  state.SetItemsProcessed(state.iterations() * 48);
}
BENCHMARK(loader)->ArgName("workers")->Arg(0)->Arg(2)->MeasureProcessCPUTime()->Unit(
    benchmark::kMillisecond);

void resnet18_step(benchmark::State& state) {
  const Seed seed(1);
  models::ResNet net = models::resnet18({.num_classes = 10});
  optim::SGD opt(net.parameters(), {.lr = 0.01, .momentum = 0.9});
  const Tensor x = randn({64, 3, 64, 64}), y = randint(0, 10, {64});
  for (auto _ : state) {
    opt.zero_grad();
    cross_entropy(net(x), y).backward();
    opt.step();
  }
  state.SetItemsProcessed(state.iterations() * 64);
}
BENCHMARK(resnet18_step)->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mixtape

BENCHMARK_MAIN();
