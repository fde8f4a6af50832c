// A program for several processes: "ranks sums" proves that they connect, other words name what
// breaks on rank 1 in the middle of barriers. Run by ranks_test.py under each MPI.

#include <dlfcn.h>
#include <fmt/format.h>
#include <mixtape.h>
#include <mixtape/dist/dist.h>
#include <mixtape/dist/exchange.h>
#include <mixtape/train/data/data.h>
#include <mixtape/train/learner.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

using namespace mixtape;

#ifdef MIXTAPE_EMULATED
namespace mixtape::simt {
void in_stream(void* stream, std::function<void()> work);
}
#endif

namespace {

void expect(bool holds, const char* what) {
  if (!holds) throw Error(fmt::format("wrong: {}", what));
}

void check_sums(const dist::World& world) {
  const int n = world.size();
  const double rank = world.rank(), all = n * (n - 1) / 2.0;
  for (const DType dtype : {f32, bf16, f16, f64})
    expect(world.sum(full({1000}, rank, dtype)).at(999) == all, "a sum");
  const auto names = world.gather(fmt::format("rank {}", world.rank()));
  expect(int(names.size()) == n && names.back() == fmt::format("rank {}", n - 1), "a gather");
  const Tensor large = arange(1 << 20).to(f32) + rank;
  world.broadcast({large}, n - 1);
  expect(large.at(7) == 7 + n - 1, "a broadcast");
  expect(world.sum(large).at(1 << 19) == n * (double(1 << 19) + n - 1), "a large sum");
}

// As a program does that uses MPI itself, without that MPI's headers.
void begin_mpi(const char* library, int threads) {
  void* const mpi = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  expect(mpi, "the name of MPI's library");
  int provided = 0;
  reinterpret_cast<int (*)(int*, char***, int, int*)>(dlsym(mpi, "MPI_Init_thread"))(
      nullptr, nullptr, threads, &provided);
}
void end_mpi() { reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "MPI_Finalize"))(); }

void fork_within(const dist::World& world) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      world.barrier();
    } catch (const Error& e) {
      std::exit(
          std::string(e.what()).starts_with("a World belongs to the process that made it") ? 7 : 8);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 7, "a forked process");
}

// Returns if this rank's World shall end here, before those of the others.
void break_by(const std::string& what, const dist::World& world) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  fmt::print("breaks at {}\n", std::chrono::duration<double>(now).count());
  std::fflush(stdout);
  if (what == "throw" || what == "goes_on") throw Error("something is wrong");
  if (what == "uncaught") std::thread([] { throw Error("something is wrong"); }).join();
  if (what == "exit") std::exit(0);
  if (what == "quick_exit") std::quick_exit(0);
  if (what == "kill") kill(getpid(), SIGKILL);
  if (what == "term") kill(getpid(), SIGTERM);
  if (what == "stuck") std::this_thread::sleep_for(std::chrono::hours(1));
  if (what == "apart") world.sum(ones({3}));
  if (what == "second") const dist::World second;
}

// Has NCCL's stand-in queue its work in the emulator's streams.
void use_streams() {
#ifdef MIXTAPE_EMULATED
  const char* const library = std::getenv("MIXTAPE_NCCL");
  void* const stand_in = library && *library ? dlopen(library, RTLD_NOW) : nullptr;
  using InStream = void (*)(void* stream, void (*work)(void*), void* with);
  if (void* const set = stand_in ? dlsym(stand_in, "stand_in_streams") : nullptr)
    reinterpret_cast<void (*)(InStream)>(set)([](void* stream, void (*work)(void*), void* with) {
      simt::in_stream(stream, [=] { work(with); });
    });
#endif
}

// Prints what a short training gives: the same bits however its gradients travel.
void train_a_net() {
  const Device device = Device::best();  // the emulator's second one has other kernels
  const dist::World world(
      {.timeout = std::getenv("STAND_IN_SILENT") ? 2.0 : 60.0, .device = device});
  const DefaultDevice here(device);
  nn::Sequential net(nn::Linear(16, 64), nn::ReLU(), nn::Linear(64, 8));
  dist::DataParallel parallel(net, {.chunks = 4, .bucket_mb = 2e-3});
  optim::AdamW opt(net.parameters(), {.lr = 1e-2});
  for (int step = 0; step < 5; ++step) {
    const Seed seed(step + 1);
    const Tensor x = randn({32, 16});
    struct {
      Tensor x, y;
      std::vector<Tensor> more;
      int64_t of_step = 32;
    } const batch{narrow(x, 0, parallel.part().begin(32), 32 / world.size()), {}, {}};
    for (const auto& [part, y, weight] : parallel.chunks(batch))
      (mean(square(net(part))) * weight).backward();
    opt.step();
    opt.zero_grad();
  }
  double sum = 0;
  for (const Tensor& p : net.parameters()) sum += mixtape::sum(p * p).item();
  if (world.is_first()) fmt::print("trained by {}: {}\n", world.engine(), sum);
}

struct Digits : nn::Module<Digits> {
  nn::Conv2d conv{1, 4, 5, {.stride = {3, 3}}};
  nn::BatchNorm2d norm{4};
  nn::Dropout drop{0.2};
  nn::Linear out{4 * 8 * 8, 10};
  Tensor forward(const Tensor& x) const { return out(drop(flatten(relu(norm(conv(x))), 1))); }
  MIXTAPE_FIELDS(conv, norm, drop, out)
};

// Leaves the files of a Learner's run in the folder: the same bytes on any number of ranks.
void train_digits(const std::string& folder, const std::string& dtype) {
  const dist::World world;
  const Seed seed(world.rank() + 5);  // the first one decides
  const auto digits = train::make_digits(1, 72, 24);
  const train::Transform scaled = train::transforms::normalize({0.13}, {0.31});
  train::Loaders data;
  data.train.emplace(digits.train,
                     train::DataLoaderOptions{.batch_size = 24,
                                              .shuffle = true,
                                              .transform = train::transforms::compose(
                                                  {train::transforms::random_crop(2), scaled})});
  data.valid.emplace(digits.valid, train::DataLoaderOptions{.batch_size = 12, .transform = scaled});
  Digits net;
  train::Learner learner(std::move(data), net,
                         {.metrics = {train::accuracy},
                          .folder = folder,
                          .device = Device::cpu(),
                          .chunks = 4,
                          .out = nullptr,
                          .progress = false});
  learner.to(parse_dtype(dtype)).fit_one_cycle(2, 1e-2);
}

void time_sums(int64_t elements, int count) {
  const dist::World world;
  const Tensor x = ones({elements});
  const dist::Exchange& exchange = *world.exchange();
  world.barrier();
  const uint64_t before = exchange.bytes_sent();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) expect(world.sum(x).at(7) == world.size(), "a sum");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("sent {} bytes in {} s\n", exchange.bytes_sent() - before, seconds.count());
}

void work(const std::string& what) {
  const dist::World world({.timeout = what == "stuck" ? 2.0 : 60.0});
  const DefaultDevice here(world.device());
  fmt::print("rank {} of {} by {}\n", world.rank(), world.size(), world.engine());
  std::fflush(stdout);
  check_sums(world);
  if (what == "fork") fork_within(world);
  const bool is_whole = what == "sums" || what == "fork" || what == "forever" || what == "again";
  for (int i = 0; i < 300 || what == "forever"; ++i) {
    if (i == 200 && what.starts_with("all_")) break_by(what.substr(4), world);
    if (i == 200 && world.rank() == 1 && !is_whole) return break_by(what, world);
    world.barrier();
  }
}

// Rank 1 breaks in its backward pass, while the first gradients of the others travel.
void break_in_backward() {
  const dist::World world;
  const DefaultDevice here(world.device());
  nn::Sequential net(nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 1));
  const dist::DataParallel parallel(net, {.bucket_mb = 1e-3});
  for (int i = 0; i < 10; ++i) {
    if (i == 5 && world.rank() == 1)
      register_hook(net.parameters().back(), [&](const Tensor& dx) {
        break_by("throw", world);
        return dx;
      });
    net.zero_grad();
    mean(net(ones({8, 64}))).backward();
  }
}

}  // namespace

int main(int count, char** arguments) try {
  const std::string what = count > 1 ? arguments[1] : "sums";
  if (what == "own_mpi") {
    begin_mpi(arguments[2], 2);
    work("sums");
    work("sums");
    end_mpi();
    return 0;
  }
  if (what == "one_thread") begin_mpi(arguments[2], 0);
  if (what == "again") work("sums");
  if (what == "late" || what == "net") {
    if (what == "late") use_streams();
    train_a_net();
    return 0;
  }
  if (what == "learner") {
    train_digits(arguments[2], arguments[3]);
    return 0;
  }
  if (what == "slow") {
    time_sums(std::atoll(arguments[2]), std::atoi(arguments[3]));
    return 0;
  }
  if (what == "in_backward") break_in_backward();
  if (what == "on_cpu") const dist::World world({.device = Device::cpu()});
  if (what == "elsewhere") {
    const dist::World world;
    world.sum(ones({3}).to(Device::cuda(0)));
  }
  try {
    work(what);
  } catch (const Error&) {
    if (what != "goes_on") throw;
    std::this_thread::sleep_for(std::chrono::hours(1));
  }
} catch (const std::exception& e) {
  fmt::print(stderr, "error: {}\n", e.what());
  return 1;
}
