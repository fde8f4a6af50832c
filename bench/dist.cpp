// Steps of training on several ranks, and sums over ranks by size: started by mpirun, one thread a
// rank. Prints one JSON object on rank 0. script/bench dist runs it.
//
// usage: bench_dist plain DTYPE STEPS                    median milliseconds of a step without dist
//        bench_dist step DTYPE CHUNKS BUCKET_MB STEPS    the same with a DataParallel
//        bench_dist shards DTYPE BUCKET_MB STEPS         with AdamW, and with Shards of it by turns
//        bench_dist sums                                 median microseconds by bytes

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "dist/data_parallel.h"
#include "dist/exchange.h"
#include "dist/shards.h"
#include "nn/nn.h"
#include "optim/optim.h"

namespace mixtape {
namespace {

using Clock = std::chrono::steady_clock;

struct Batch {
  Tensor x, y;
  std::vector<Tensor> more = {};
  int64_t of_step = 0;
};

struct Mlp : nn::Module<Mlp> {
  nn::Linear a{784, 1024}, b{1024, 1024}, c{1024, 1024}, d{1024, 10};
  Tensor forward(const Tensor& x) const { return d(relu(c(relu(b(relu(a(x))))))); }
  MIXTAPE_FIELDS(a, b, c, d)
};

double median(std::vector<double> v) {
  std::ranges::sort(v);
  return v[v.size() / 2];
}
template <class F>
double seconds(F&& f) {
  const auto begin = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Runs body(loss of the batch) in each of `steps` steps, and some before; prints their time.
template <class Learn>
void time_steps(DType low, const Batch& batch, int steps, bool prints, Mlp& net, Learn learn) {
  optim::SGD opt(net.parameters(), {.lr = 0.01});
  const auto loss = [&](const Tensor& x, const Tensor& y) {
    const amp::Autocast on({.low = low});
    return cross_entropy(net(x), y);
  };
  std::vector<double> times;
  for (int i = 0; i < steps + 5; ++i)
    times.push_back(seconds([&] {
      opt.zero_grad();
      learn(batch, loss);
      opt.step();
    }));
  times.erase(times.begin(), times.begin() + 5);
  if (prints)
    fmt::print("{{\"ms\": {:.4f}, \"fastest\": {:.4f}}}\n", median(times) * 1e3,
               *std::ranges::min_element(times) * 1e3);
}

Batch examples(int64_t n, int64_t of_step) {
  return {randn({n, 784}), randint(0, 10, {n}), {}, of_step};
}

void plain(DType low, int steps) {
  Mlp net;
  time_steps(low, examples(128, 128), steps, true, net,
             [](const Batch& b, const auto& loss) { loss(b.x, b.y).backward(); });
}

// 128 examples a rank, or a chunk if there are more chunks than ranks.
void step(const dist::World& world, DType low, int64_t chunks, double bucket_mb, int steps) {
  Mlp net;
  dist::DataParallel parallel(net, {.chunks = chunks, .bucket_mb = bucket_mb});
  const int64_t own = 128 * parallel.part().own_chunks();
  time_steps(low, examples(own, own * world.size()), steps, world.is_first(), net,
             [&](const Batch& b, const auto& loss) {
               for (const auto& [x, y, weight] : parallel.chunks(b))
                 (loss(x, y) * weight).backward();
             });
}

// A model on all ranks, which may divide its optimizer's state.
struct Trained {
  Trained(bool divides, double bucket_mb) : parallel(net, {.bucket_mb = bucket_mb}) {
    if (divides) shards.emplace(opt, dist::ShardsOptions{.bucket_mb = bucket_mb});
  }
  void step(DType low, const Batch& batch) {
    opt.zero_grad();
    for (const auto& [x, y, weight] : parallel.chunks(batch)) {
      const amp::Autocast on({.low = low});
      (cross_entropy(net(x), y) * weight).backward();
    }
    opt.step();
  }
  Mlp net;
  optim::AdamW opt{net.parameters()};
  std::optional<dist::Shards> shards;
  dist::DataParallel parallel;
};

void shards(const dist::World& world, DType low, double bucket_mb, int steps) {
  Trained whole(false, bucket_mb), divided(true, bucket_mb);
  const Batch batch = examples(128, 128 * world.size());
  std::vector<double> times[2];
  for (int i = 0; i < steps + 5; ++i) {
    times[0].push_back(seconds([&] { whole.step(low, batch); }));
    times[1].push_back(seconds([&] { divided.step(low, batch); }));
  }
  for (auto& t : times) t.erase(t.begin(), t.begin() + 5);
  if (world.is_first())
    fmt::print(
        "{{\"ms\": {:.4f}, \"fastest\": {:.4f}, \"divided\": {:.4f}, \"fastest divided\": "
        "{:.4f}}}\n",
        median(times[0]) * 1e3, *std::ranges::min_element(times[0]) * 1e3, median(times[1]) * 1e3,
        *std::ranges::min_element(times[1]) * 1e3);
}

void sums(const dist::World& world) {
  std::string found;
  for (int64_t n = 64; n <= 4194304; n *= 4) {
    const Tensor x = ones({n});
    std::vector<double> times;
    for (int i = 0; i < 30; ++i) {
      world.barrier();
      times.push_back(seconds([&] { world.sum(x); }));
    }
    found += fmt::format("{}\"{}\": {:.1f}", found.empty() ? "" : ", ", 4 * n, median(times) * 1e6);
  }
  if (world.is_first()) fmt::print("{{{}}}\n", found);
}

}  // namespace
}  // namespace mixtape

int main(int count, char** arguments) {
  using namespace mixtape;
  try {
    if (count == 4 && !std::strcmp(arguments[1], "plain"))
      return plain(parse_dtype(arguments[2]), std::atoi(arguments[3])), 0;
    const dist::World world;
    if (count == 2 && !std::strcmp(arguments[1], "sums")) return sums(world), 0;
    if (count == 6 && !std::strcmp(arguments[1], "step"))
      return step(world, parse_dtype(arguments[2]), std::atoll(arguments[3]),
                  std::atof(arguments[4]), std::atoi(arguments[5])),
             0;
    if (count == 5 && !std::strcmp(arguments[1], "shards"))
      return shards(world, parse_dtype(arguments[2]), std::atof(arguments[3]),
                    std::atoi(arguments[4])),
             0;
    std::fputs(
        "usage: bench_dist plain DTYPE STEPS | step DTYPE CHUNKS BUCKET_MB STEPS | shards DTYPE "
        "BUCKET_MB STEPS | sums\n",
        stderr);
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
