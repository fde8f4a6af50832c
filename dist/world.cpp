#include "dist/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "core/parse.h"
#include "core/runtime.h"
#include "core/scope.h"
#include "core/warn.h"
#include "dist/bucket.h"
#include "dist/exchange.h"
#include "dist/mpi_engine.h"
#include "dist/nccl_engine.h"
#include "dist/tcp_engine.h"
#include "kernels/common/instruction_set.h"
#include "kernels/kernels.h"

namespace mixtape::dist {
using namespace internal;
namespace {

using Kind = Place::Kind;

thread_local const World* world = nullptr;

// A rank's last line on stderr if something is wrong, with the rank's number.
std::string with_rank(const Exchange& exchange, const std::string& text) {
  const std::string rank = fmt::format("rank {} of {}", exchange.rank(), exchange.size());
  return text.starts_with(rank) ? text : rank + ": " + text;
}

// The exchange of a World that has not ended. If the process ends before it, the other processes
// are ended, too, since they would wait for it. Kept until the process ends, since transfers may be
// under way.
class Unfinished {
 public:
  static Unfinished& instance() {
    static auto* const unfinished = new Unfinished;
    return *unfinished;
  }

  void begin(const std::shared_ptr<Exchange>& exchange) {
    exchange_ = exchange;
    constexpr auto end = [] { instance().end_others("ends before the others, which end with it"); };
    [[maybe_unused]] static const int registered[] = {std::atexit(end), std::at_quick_exit(end)};
    outer_ = std::set_terminate(at_terminate);
  }
  void finish() {
    if (std::get_terminate() == at_terminate) std::set_terminate(outer_);
    exchange_.reset();
  }

  // Prints only the first cause.
  void say(const std::string& text) {
    if (!has_said_.exchange(true)) std::fputs((with_rank(*exchange_, text) + "\n").c_str(), stderr);
  }
  // Prints the reason and ends all processes. Returns if nothing has to end.
  void end_others(const std::string& reason) {
    if (!exchange_ || !exchange_->is_of_this_process() || exchange_->is_in_job()) return;
    thread_local bool has_begun = false;  // engines may call exit(), which comes back here
    if (std::exchange(has_begun, true)) return;
    std::fflush(stdout);
    say(reason);
    exchange_->end_all();
    std::_Exit(1);
  }

 private:
  [[noreturn]] static void at_terminate() {
    std::string what = "ends by std::terminate()";
    try {
      if (std::current_exception()) std::rethrow_exception(std::current_exception());
    } catch (const std::exception& e) {
      what = e.what();
    } catch (...) {
      what = "ends by an exception";
    }
    instance().end_others(what);
    std::abort();
  }

  std::shared_ptr<Exchange> exchange_;
  std::terminate_handler outer_ = nullptr;
  std::atomic<bool> has_said_ = false;
};

// The number of processes that a launcher gives; 0 if it gives none.
int64_t number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  if (!text) return 0;
  const auto number = parse_number<int64_t>(text);
  check(number && *number > 0, "{} must be a number >= 1, got \"{}\"", variable, text);
  return *number;
}

struct Started {
  std::string engine;  // the engine that the launcher expects
  int64_t processes;   // 0: unknown
};
// Reads the variables that launchers of MPI set.
Started started_by_mpi() {
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"})
    if (number_of(size) > 0) return {"mpi", number_of(size)};
  if (std::getenv("SLURM_PROCID") && number_of("SLURM_STEP_NUM_TASKS") > 0)
    return {"mpi", number_of("SLURM_STEP_NUM_TASKS")};
  if (std::getenv("PMIX_RANK")) return {"mpi", 0};
  return {"none", 1};
}
// One launcher may start another, for example torchrun in the only task of a Slurm step.
Started started(const std::string& wanted) {
  const Started mpi = started_by_mpi();
  const int64_t processes = std::getenv("RANK") ? number_of("WORLD_SIZE") : 0;
  if (processes <= 1 || wanted == "mpi" || wanted == "none") return mpi;
  check(mpi.processes == 1 || wanted == "tcp",
        "a launcher of MPI has started processes, and RANK and WORLD_SIZE tell of {} others: "
        "MIXTAPE_ENGINE must say which count, mpi or tcp",
        processes);
  return {"tcp", processes};
}

std::string wanted_engine(const WorldOptions& options) {
  const char* const wanted = std::getenv("MIXTAPE_ENGINE");
  return options.engine.empty() && wanted ? wanted : options.engine;
}

// The engine for the memory of the host, or null.
std::unique_ptr<Engine> open_engine(const WorldOptions& options) {
  std::string name = wanted_engine(options);
  const Started by = started(name);
  check(name.empty() || name == "none" || name == "mpi" || name == "tcp" || name == "nccl",
        "the engine must be mpi, tcp, nccl or none, got \"{}\"", name);
  if (name.empty() || name == "nccl") name = by.processes == 1 ? "none" : by.engine;
  if (name == "none") return nullptr;
  if (name == "tcp") return open_tcp(options.timeout);
  std::unique_ptr<Engine> engine = open_mpi();
  if (by.engine != "mpi" || by.processes == 0 || engine->size() == by.processes) return engine;
  const Engine& other = *engine.release();  // destroying it might wait for others
  fail(
      "{} processes were started, but {} connects {}: it is not the MPI that started them, whose "
      "plug-in MIXTAPE_MPI_PLUGIN must name",
      by.processes, other.name(), other.size());
}

// The GPU of a rank, or the CPU if there are no GPUs.
Device device_of(int local_rank) {
  const std::vector<Device>& gpus = runtime::devices();
  return gpus.empty() ? Device::cpu() : gpus[size_t(local_rank) % gpus.size()];
}

// Ranks with different tensors are out of step.
Place place_of(Kind kind, DType dtype, int64_t numbers) { return {kind, int64_t(dtype), numbers}; }

int64_t bytes_in(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& t : tensors) bytes += int64_t(t.nbytes());
  return bytes;
}

// Tensors in one contiguous buffer on the host, padded to a multiple of `alignment` bytes.
Tensor packed(const std::vector<Tensor>& tensors, int64_t alignment) {
  const int64_t bytes = bytes_in(tensors);
  const Tensor all({round_up(bytes, alignment)}, u8, Device::cpu());
  char* at = static_cast<char*>(all.raw());
  std::memset(at + bytes, 0, size_t(all.numel() - bytes));
  for (const Tensor& t : tensors) {
    const Tensor host = t.detach().copied_to(Device::cpu()).contiguous();
    if (t.nbytes()) std::memcpy(at, host.raw(), t.nbytes());
    at += t.nbytes();
  }
  return all;
}

void unpack(const Tensor& all, const std::vector<Tensor>& tensors) {
  const char* at = static_cast<const char*>(all.raw());
  for (const Tensor& t : tensors) {
    const Tensor host(t.shape(), t.dtype(), Device::cpu());
    if (t.nbytes()) std::memcpy(host.raw(), at, t.nbytes());
    at += t.nbytes();
    detail::write(host.copied_to(t.device()), t);
  }
}

}  // namespace

World::World(const WorldOptions& options) : exceptions_(std::uncaught_exceptions()) {
  const Scope scope("World");
  require_first(options);
  if (std::unique_ptr<Engine> engine = open_engine(options)) {
    exchange_ = std::make_shared<Exchange>(std::move(engine), options.timeout);
    owns_process_ = true;
    Unfinished::instance().begin(exchange_);
    exchange_->at_loss([](const auto& text) { Unfinished::instance().end_others(text); });
  }
  begin(options);
}

World::World(std::unique_ptr<Engine> engine, const WorldOptions& options)
    : exceptions_(std::uncaught_exceptions()) {
  const Scope scope("World");
  require_first(options);
  exchange_ = std::make_shared<Exchange>(std::move(engine), options.timeout);
  begin(options);
}

void World::require_first(const WorldOptions& options) {
  check(options.timeout > 0, "the time limit must be > 0 seconds, got {}", options.timeout);
  check(!world, "this thread has a World: a program makes one, at its beginning");
}

void World::begin(const WorldOptions& options) {
  world = this;
  try {
    device_ = options.device ? *options.device : device_of(local_rank());
    device_.require();
    if (exchange_) meet();
    if (exchange_ && owns_process_ && wanted_engine(options) == "nccl")
      exchange_->add([&](Engine& host) { return open_nccl(host, device_); });
  } catch (const std::exception& e) {
    world = nullptr;
    leave(e.what());
    throw;
  }
}

// Watches the other processes, learns their machines, and warns if results may depend on which rank
// computes what.
void World::meet() {
  const std::vector<std::string> all = gather(fmt::format(
      "{} with instructions of {}",
      device_.is_host() ? "the CPU" : runtime::of(device_.type).properties(device_.index).name,
      kernels::instruction_set()));
  for (int r = 1; r < size(); ++r)
    if (all[size_t(r)] != all[0] && is_first())
      warn(
          fmt::format("rank 0 computes on {}, rank {} on {}: results depend on which rank computes "
                      "what (MIXTAPE_ISA makes them alike)",
                      all[0], r, all[size_t(r)]));
  exchange_->add_levels(gather(exchange_->engine().machine()));
  if (!owns_process_) return;
  auto peers = std::make_unique<Peers>();
  peers->watch(gather(peers->introduction()), rank());
  exchange_->run([&] { exchange_->watch(std::move(peers)); });
}

// Gives up, while others may wait for this rank. The program should report the error and end; if it
// does not, the exchange's thread ends it.
void World::leave(const std::string& why) {
  if (!exchange_) return;
  if (!owns_process_) {
    exchange_->end_all();
    return;
  }
  Unfinished::instance().say(why);
  exchange_->abandon([e = exchange_.get()] {
    std::fputs(with_rank(*e, "is still running after its World ended, and is ended\n").c_str(),
               stderr);
    Unfinished::instance().end_others("");
  });
}

World::~World() {
  world = nullptr;
  if (!exchange_) return;
  if (!exchange_->is_of_this_process()) {
    [[maybe_unused]] static auto* const kept = new std::shared_ptr<Exchange>(exchange_);
    return;
  }
  if (std::uncaught_exceptions() > exceptions_) {
    const std::string error = exchange_->error();
    leave(error.empty() ? "leaves its World by an exception" : error);
    return;
  }
  try {
    exchange_->run([this] {
      exchange_->meet({Kind::End});
      exchange_->at_loss({});  // from now on processes may end
    });
  } catch (const std::exception& e) {
    if (owns_process_) Unfinished::instance().end_others(e.what());
    std::fputs((with_rank(*exchange_, e.what()) + "\n").c_str(), stderr);
    exchange_->end_all();
  }
  if (owns_process_) Unfinished::instance().finish();
}

const World* World::current() { return world; }

int World::rank() const { return exchange_ ? exchange_->rank() : 0; }
int World::size() const { return exchange_ ? exchange_->size() : 1; }
int World::local_rank() const { return exchange_ ? exchange_->engine().local_rank() : 0; }
std::string World::engine() const { return exchange_ ? exchange_->engine().name() : "none"; }

Part World::part(int64_t chunks) const {
  const int64_t ranks = size(), all = chunks == 0 ? ranks : chunks, each = all / ranks;
  check(all > 0 && all % ranks == 0 && (ranks == 1 || (each & (each - 1)) == 0),
        "{} chunks cannot be spread over {} ranks: each must have 1, 2, 4, 8 ... of them", chunks,
        ranks);
  return {rank(), size(), all};
}

void World::barrier() const {
  if (exchange_) exchange_->run([&] { exchange_->meet({Kind::Barrier}); });
}

void World::broadcast(const std::vector<Tensor>& tensors, int from) const {
  const Scope scope("broadcast");
  check(0 <= from && from < size(), "rank {} of {} does not exist", from, size());
  if (!exchange_) return;
  const Tensor all = packed(tensors, exchange_->alignment());
  exchange_->run(
      [&] { exchange_->broadcast(place_of(Kind::Broadcast, u8, bytes_in(tensors)), all, from); });
  if (rank() != from) unpack(all, tensors);
}

Tensor World::sum(const Tensor& x, double* number) const {
  const Scope scope("sum");
  check(is_float(x.dtype()) || is_integer(x.dtype()),
        "sums over ranks are of floats or integers, got {}", x.dtype());
  if (!exchange_) return x.detach().clone();
  if (is_integer(x.dtype())) {
    if (number) *number = sum(*number);
    Tensor total;
    for (const Tensor& t : gather(x)) total = total ? add(total, t) : t;
    return total;
  }
  const Device there = exchange_->exchanges(x.device());
  const Tensor flat({round_up(x.numel(), exchange_->alignment())}, x.dtype(), there);
  kernels::fill(there, 0, flat);
  const Tensor used = flat.with_layout(Layout(x.shape()));
  kernels::convert(there, x.detach().copied_to(there), used);
  const std::span<const double> words(number, number ? 1 : 0);
  exchange_->run([&] {
    const auto all =
        exchange_->sum(place_of(Kind::Sum, x.dtype(), x.numel()), flat, 1, flat, words);
    if (number) *number = Exchange::total(all)[0];
  });
  return used.copied_to(x.device());
}

double World::sum(double x) const { return sum(from({x}, {}, f64)).item(); }

std::vector<Tensor> World::gather(const Tensor& x) const {
  const Scope scope("gather");
  if (!exchange_) return {x.detach().clone()};
  const Tensor own = x.detach().copied_to(exchange_->exchanges(x.device())).contiguous();
  Tensor all;
  exchange_->run(
      [&] { all = exchange_->gather(place_of(Kind::Gather, own.dtype(), own.numel()), own); });
  std::vector<Tensor> each;
  for (int r = 0; r < size(); ++r) each.push_back(all.select(0, r).copied_to(x.device()));
  return each;
}

std::string detail::described(const StateDict& dict) {
  std::string text;
  for (const auto& [name, t] : dict) {
    text += fmt::format("{} {}", int(t.dtype()), t.rank());
    for (int d = 0; d < t.rank(); ++d) text += fmt::format(" {}", t.size(d));
    text += " " + name + "\n";
  }
  return text;
}

StateDict detail::tensors_of(std::string_view text) {
  const auto number = [&] {
    int64_t n = 0;
    for (; text[0] != ' '; text.remove_prefix(1)) n = 10 * n + (text[0] - '0');
    text.remove_prefix(1);
    return n;
  };
  StateDict dict;
  while (!text.empty()) {
    const auto dtype = DType(number());
    Shape shape;
    for (int64_t rank = number(); rank > 0; --rank) shape.push_back(number());
    const size_t end = text.find('\n');
    dict.emplace_back(std::string(text.substr(0, end)), Tensor(shape, dtype, Device::cpu()));
    text.remove_prefix(end + 1);
  }
  return dict;
}

void World::check_alike(const std::string& items, std::string_view has) const {
  const std::vector<std::string> all = gather(items);
  const auto other = std::ranges::find_if(all, [&](const auto& text) { return text != all[0]; });
  if (other == all.end()) return;
  // The first item that differs begins after the last separator before the first difference.
  const size_t differs = size_t(std::ranges::mismatch(*other, all[0]).in1 - other->begin());
  const size_t before = other->rfind("; ", std::max<size_t>(differs, 1) - 1);
  const size_t at = before == std::string::npos ? 0 : before + 2;
  const auto item = [&](const std::string& text) {
    return at >= text.size() ? "nothing more" : text.substr(at, text.find("; ", at) - at);
  };
  fail("rank {} of {} {} than rank 0: {} (rank 0: {})", other - all.begin(), size(), has,
       item(*other), item(all[0]));
}

StateDict World::of_rank(int from, const StateDict& dict) const {
  const Scope scope("of_rank");
  check(0 <= from && from < size(), "rank {} of {} does not exist", from, size());
  const bool is_own = rank() == from;
  const std::string text = gather(is_own ? detail::described(dict) : "")[size_t(from)];
  StateDict all;
  if (!is_own) all = detail::tensors_of(text);
  if (is_own)
    for (const auto& [name, t] : dict)
      all.emplace_back(name, t.detach().copied_to(Device::cpu()).contiguous());
  std::vector<Tensor> tensors;
  for (const auto& [name, t] : all) tensors.push_back(t);
  broadcast(tensors, from);
  return all;
}

std::vector<std::string> World::gather(const std::string& text) const {
  if (!exchange_) return {text};
  std::vector<std::vector<double>> lengths;
  const double length = double(text.size());
  exchange_->run([&] { lengths = exchange_->meet({Kind::Gather}, {&length, 1}); });
  double longest = 1;
  for (const auto& l : lengths) longest = std::max(longest, l[0]);
  const Tensor padded({int64_t(longest)}, u8, Device::cpu());
  std::memset(padded.raw(), 0, size_t(longest));
  std::memcpy(padded.raw(), text.data(), text.size());
  const std::vector<Tensor> all = gather(padded);
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r)
    texts.emplace_back(static_cast<const char*>(all[size_t(r)].raw()),
                       size_t(lengths[size_t(r)][0]));
  return texts;
}

}  // namespace mixtape::dist
