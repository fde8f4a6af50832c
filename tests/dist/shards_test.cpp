// Shards: the bits of training without them, and a piece of an optimizer's state on each rank.

#include "dist/shards.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <thread>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "dist/data_parallel.h"
#include "dist/exchange.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "optim/sam.h"
#include "tests/support/errors.h"
#include "tests/support/ranks.h"

namespace mixtape::dist {
namespace shards_test {
using namespace internal;

constexpr double infinity = std::numeric_limits<double>::infinity();

// It has 4.4 blocks of the norm, cut where none ends.
struct Net : nn::Module<Net> {
  nn::Linear unused{3, 3}, in{6, 150}, hidden{150, 210}, out{210, 4};
  nn::BatchNorm1d norm{150};
  nn::Dropout dropout{0.25};
  Tensor forward(const Tensor& x) const { return out(relu(hidden(dropout(relu(norm(in(x))))))); }
  MIXTAPE_FIELDS(unused, in, norm, dropout, hidden, out)
};

using Make = std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor>)>;
template <class O>
Make maker(const typename O::Options& options, const optim::CommonOptions& common = {}) {
  return [=](std::vector<Tensor> params) {
    return std::make_unique<O>(std::move(params), options, common);
  };
}
const Make adamw = maker<optim::AdamW>({.lr = 0.01});
const Make sgd = maker<optim::SGD>({.lr = 0.05, .momentum = 0.9});

struct Job {
  Make make = adamw;
  DType low = f32;
  bool half_model = false, masters = true;  // parameters in `low`, with masters
  bool sharded = true;
  DataParallelOptions options = {.chunks = 8};
  double bucket_mb = 0.05;
  int from = 0, steps = 5;
  bool unscale = false, clips_itself = false;
  double norm_type = 2;  // where it clips itself
  ThreadsOptions threads = {};
  int bad_step = -1;      // where the loss of the last chunk is infinite
  int bad_gradient = -1;  // where a gradient of the first chunk overflows
  StateDict start = {};
  bool joins = false;  // at the end
  double rho = 0;      // of sharpness-aware minimization, if it is not 0
};

struct Result {
  StateDict all;
  std::string bytes;
  std::vector<std::string> norms;  // all digits
};

std::string digits(const Tensor& x) {
  const double value = x.item();
  return std::isnan(value) ? "nan" : fmt::format("{:a}", value);
}

void pass(const Net& net, const Job& run, amp::GradScaler& scaler, int step, int64_t chunk,
          const Tensor& x, const Tensor& y, double weight) {
  Tensor loss;
  {
    const amp::Autocast on({.low = run.low});
    loss = cross_entropy(net(run.half_model ? x.to(run.low) : x), y);
  }
  if (step == run.bad_step && chunk == 7) loss = loss * infinity;
  Tensor objective = loss * weight;
  if (step == run.bad_gradient && chunk == 0)
    objective = objective + sum(net.hidden.bias) * 1e38 * 1e3;
  scaler.scale(objective).backward();
}

void step(const Net& net, const Job& run, amp::GradScaler& scaler, optim::Optimizer& opt,
          std::vector<std::string>& norms) {
  if (run.unscale) scaler.unscale(opt);
  if (run.clips_itself) {
    norms.push_back(
        digits(optim::clip_grad_norm(net.parameters(), 0.5, {.norm_type = run.norm_type})));
    scaler.step(opt);
  } else {
    norms.push_back(digits(scaler.step(opt, {.clip_norm = 0.5}).norm()));
  }
  scaler.update();
}

// Steps `from` to `steps` on every rank. The state is the same on all.
Result train(int ranks, const Job& run) {
  Result result;
  std::mutex mutex;
  expect_fine(run_ranks(
      ranks,
      [&](const World& world) {
        const Seed seed(world.rank() + 1);  // rank 0 decides
        Net net;
        if (run.half_model) net.to(run.low);
        const auto opt = run.make(net.parameters());
        if (run.half_model && run.masters) opt->set_multi_precision(true);
        std::optional<Shards> shards;
        if (run.sharded) shards.emplace(*opt, ShardsOptions{.bucket_mb = run.bucket_mb});
        amp::GradScaler scaler(run.low, {.init_scale = 1024, .growth_interval = 2});
        if (!run.start.empty()) {
          net.load_state_dict(run.start.under("net."));
          const StateDict of_opt = run.start.under("opt.");
          shards ? shards->load_state_dict(of_opt) : opt->load_state_dict(of_opt);
          scaler.load_state_dict(run.start.under("scaler."));
        }
        DataParallel parallel(net, run.options);
        std::vector<std::string> norms;
        for (int i = run.from; i < run.steps; ++i) {
          const int64_t n = i == 3 ? 21 : 64;
          const Seed of_step(100 + i);
          const Tensor x = randn({n, 6}), y = randint(0, 4, {n});
          opt->zero_grad();
          const auto pass_all = [&] {
            int64_t c = parallel.part().first_chunk();
            for (const auto& [cx, cy, weight] : parallel.chunks(own_part(parallel.part(), x, y)))
              pass(net, run, scaler, i, c++, cx, cy, weight);
          };
          pass_all();
          if (run.rho != 0) {
            const optim::Ascended worst(*opt, run.rho);
            opt->zero_grad();
            pass_all();
          }
          step(net, run, scaler, *opt, norms);
        }
        if (shards && run.joins) {
          shards->join();
          shards.reset();
        }
        StateDict all;
        all.add("net.", net.state_dict());
        all.add("opt.", shards ? shards->state_dict() : opt->state_dict());
        all.add("scaler.", scaler.state_dict());
        std::string overflow;
        for (const auto& o : scaler.last_overflow()) overflow += std::to_string(o.parameter) + " ";
        const std::lock_guard lock(mutex);
        if (result.bytes.empty()) {
          for (auto& [name, t] : all) result.all.emplace_back(name, t.clone());
          result.norms = norms;
          result.bytes = bytes_of(all) + overflow;
        }
        EXPECT_EQ(result.norms, norms);
        EXPECT_TRUE(result.bytes == bytes_of(all) + overflow) << "rank " << world.rank();
      },
      run.threads));
  return result;
}

// Replicated on one rank is what all are compared with.
void expect_same(Job run) {
  run.sharded = false;
  const Result one = train(1, run);
  run.sharded = true;
  for (const int ranks : {1, 2, 4, 8}) {
    const Result r = train(ranks, run);
    EXPECT_TRUE(r.bytes == one.bytes) << ranks;
    EXPECT_EQ(r.norms, one.norms) << ranks;
  }
}

TEST(Shards, HaveTheBitsOfTrainingWithout) {
  for (const Make& make : {adamw, sgd})
    for (const DType low : {f32, bf16, f16}) {
      expect_same({.make = make, .low = low});
      expect_same({.make = make, .low = low, .unscale = true});
    }
}

TEST(Shards, HaveTheBitsOfAnyNumberOfChunks) {
  for (const int ranks : {1, 3, 6}) {
    Job run{.low = f16, .sharded = false, .options = {.chunks = 6}, .steps = 3};
    const Result one = train(1, run);
    run.sharded = true;
    EXPECT_TRUE(train(ranks, run).bytes == one.bytes) << ranks;
  }
}

TEST(Shards, DivideMasters) {
  for (const DType low : {bf16, f16}) expect_same({.low = low, .half_model = true});
}

TEST(Shards, DivideWhatTakesLessMemory) {
  const auto make = maker<optim::AdamW>({.lr = 0.01}, {.rounding = optim::Rounding::Kahan});
  expect_same({.make = make, .low = bf16, .half_model = true, .masters = false});
}

// Random bits are those of an element of the whole parameter.
TEST(Shards, RoundByChance) {
  const optim::CommonOptions by_chance = {.rounding = optim::Rounding::Stochastic, .seed = 7};
  for (const Make& make : {maker<optim::AdamW>({.lr = 0.01}, by_chance),
                           maker<optim::SGD>({.lr = 0.05, .momentum = 0.9}, by_chance)})
    expect_same({.make = make, .low = bf16, .half_model = true, .masters = false});
}

// Some pieces have fewer elements than a parameter must have for codes of 8 bits.
TEST(Shards, DivideStatesOf8And16Bits) {
  for (const optim::StateFormat format : {optim::StateFormat(bf16), {i8}, {optim::f8}}) {
    const Make make = maker<optim::AdamW>({.lr = 0.01}, {.state = format});
    expect_same({.make = make});
    expect_same({.make = make, .low = bf16, .half_model = true, .joins = true});
  }
  expect_same({.make = maker<optim::AdamW>(
                   {.lr = 0.01}, {.rounding = optim::Rounding::Stochastic, .state = bf16}),
               .low = bf16,
               .half_model = true,
               .masters = false});
}

TEST(Shards, JoinTheNormsOfParameters) {
  for (const Make& make : {maker<optim::Lamb>({.lr = 0.01, .weight_decay = 0.1}),
                           maker<optim::Lars>({.lr = 0.5, .weight_decay = 0.1})}) {
    expect_same({.make = make});
    expect_same({.make = make, .low = f16, .bad_gradient = 1});
    expect_same({.make = make, .low = bf16, .half_model = true});
  }
  expect_same({.make = maker<optim::Lamb>({.lr = 0.01}, {.state = i8})});
}

// Matrices to Muon, all others to AdamW.
std::unique_ptr<optim::Optimizer> make_muon(std::vector<Tensor> params,
                                            const optim::CommonOptions& common) {
  std::vector<Tensor> matrices, others;
  for (const Tensor& p : params) (p.rank() == 2 ? matrices : others).push_back(p);
  auto muon = std::make_unique<optim::Muon>(matrices, optim::MuonOptions{.lr = 0.02}, common);
  muon->add_group(others, optim::AdamWOptions{.lr = 0.01});
  return muon;
}
// A rule of the program's own, which reads all of its parameters.
struct ToTheMean {
  static constexpr std::string_view name = "to_the_mean";
  double lr = 0.1;
  optim::Options options() { return {{"lr", lr}}; }
  void update(Device, optim::Updates updates, const optim::StepControl& control) const {
    if (control.skip && *control.skip.as<float>() != 0) return;
    for (const kernels::Update& u : updates) {
      float* const p = u.param.as<float>();
      double mean = 0;
      for (int64_t i = 0; i < u.param.size(); ++i) mean += double(p[i]) / double(u.param.size());
      for (int64_t i = 0; i < u.param.size(); ++i)
        p[i] += float(lr * (mean - double(p[i]))) - 0.01f * u.grad.as<float>()[i];
    }
  }
};

// Each of their parameters is on one rank.
TEST(Shards, OfRulesThatReadWholeParameters) {
  const auto adafactor = [](const optim::CommonOptions& common = {}) {
    return maker<optim::Adafactor>({.lr = 0.01}, common);
  };
  const auto muon = [](const optim::CommonOptions& common = {}) -> Make {
    return [=](std::vector<Tensor> params) { return make_muon(std::move(params), common); };
  };
  for (const Make& make : {adafactor(), muon(), maker<optim::OptimizerOf<ToTheMean>>({})}) {
    expect_same({.make = make});
    expect_same({.make = make, .joins = true});
    expect_same({.make = make, .bad_gradient = 1, .rho = 0.05});
  }
  for (const Make& make : {adafactor(), muon()}) {
    expect_same({.make = make, .low = f16, .half_model = true, .unscale = true, .bad_step = 2});
    expect_same({.make = make, .low = bf16, .half_model = true, .joins = true});
  }
}

// To the worst point nearby, which is not where the steps without it take the gradient.
TEST(Shards, AscendTogether) {
  for (const Make& make : {adamw, sgd}) {
    expect_same({.make = make, .rho = 0.05});
    expect_same({.make = make, .low = f16, .bad_step = 2, .rho = 0.05});
  }
  EXPECT_NE(train(2, {.rho = 0.05}).bytes, train(2, {}).bytes);
}

TEST(Shards, HaveNormsOfAnyKind) {
  for (const double p : {1.0, 3.0, infinity})
    expect_same({.steps = 2, .unscale = true, .clips_itself = true, .norm_type = p});
}

TEST(Shards, OneVerdict) {
  for (const bool unscale : {false, true})
    for (const bool clips : {false, true}) {
      if (clips && !unscale) continue;
      expect_same({.low = f16, .unscale = unscale, .clips_itself = clips, .bad_step = 2});
      expect_same({.low = f16, .unscale = unscale, .clips_itself = clips, .bad_gradient = 1});
    }
}

TEST(Shards, NeitherOrderNorDelayNorBucketsChangeBits) {
  Job run{.low = f16};
  run.sharded = false;
  const Result one = train(1, run);
  run.sharded = true;
  for (const double mb : {1e-6, 0.01, 100.0}) {
    run.bucket_mb = mb;
    for (const int of_machine : {0, 2}) {
      run.threads = {.delay = 1e-4, .shuffles = true, .of_machine = of_machine};
      EXPECT_TRUE(train(4, run).bytes == one.bytes) << mb << ' ' << of_machine;
    }
  }
}

TEST(Shards, ACheckpointGoesOnWithOtherRanksOrWithout) {
  const Make lamb8 = maker<optim::Lamb>({.lr = 0.01}, {.state = i8});
  for (const auto& [make, low] :
       {std::pair(adamw, f32), std::pair(adamw, f16), std::pair(lamb8, f32),
        std::pair(maker<optim::Adafactor>({.lr = 0.01}), f32),
        std::pair(Make([](auto params) { return make_muon(params, {}); }), f16)}) {
    Job run{.make = make, .low = low, .steps = 6};
    run.sharded = false;
    const Result whole = train(1, run);
    run.sharded = true;
    run.steps = 2;
    const Result four = train(4, run);
    run.from = 2;
    run.steps = 4;
    run.start = four.all;
    const Result two = train(2, run);
    run.from = 4;
    run.steps = 6;
    run.start = two.all;
    EXPECT_TRUE(train(1, run).bytes == whole.bytes);
    run.sharded = false;
    EXPECT_TRUE(train(2, run).bytes == whole.bytes);
  }
}

// --- what it saves, and what travels ---

// It has 258 blocks of the norm and some small parameters.
struct Wide : nn::Module<Wide> {
  nn::Linear in{1024, 1024}, out{1024, 1024}, head{1024, 10};
  Tensor forward(const Tensor& x) const { return head(relu(out(relu(in(x))))); }
  MIXTAPE_FIELDS(in, out, head)
};

double bytes_of_state(const optim::Optimizer& opt) {
  double bytes = 0;
  for (const auto& [name, t] : opt.state_dict())
    if (name.starts_with("state.")) bytes += double(t.nbytes());
  return bytes;
}

// Bytes and messages that a step sends, and the bytes of state that it leaves.
struct Cost {
  double bytes, messages, state;
};
template <class O = optim::AdamW>
Cost cost_of(int ranks, bool sharded, bool scaled = true, bool unscales = false,
             optim::StateFormat format = f32) {
  Cost cost = {};
  expect_fine(run_ranks(ranks, [&](const World& world) {
    Wide net;
    if (ranks == 8) net.to(bf16);
    O opt(net.parameters(), {.lr = 0.01}, {.multi_precision = ranks == 8, .state = format});
    std::optional<Shards> shards;
    if (sharded) shards.emplace(opt, ShardsOptions{.bucket_mb = 1});
    DataParallel parallel(net, {.bucket_mb = 1});
    amp::GradScaler scaler({.init_scale = 16, .enabled = scaled});
    Cost before = {};
    for (int i = 0; i < 2; ++i) {  // the second has learned the order
      before = {double(parallel.bytes_sent()), double(world.exchange()->messages_sent()), 0};
      opt.zero_grad();
      scaler.scale(sum(net(ones({2, 1024}, net.in.weight.dtype())))).backward();
      if (unscales) scaler.unscale(opt);
      scaler.step(opt, {.clip_norm = 1.0});
      scaler.update();
    }
    world.barrier();
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    cost.bytes = std::max(cost.bytes, double(parallel.bytes_sent()) - before.bytes);
    cost.messages =
        std::max(cost.messages, double(world.exchange()->messages_sent()) - before.messages);
    cost.state = std::max(cost.state, bytes_of_state(opt));
  }));
  return cost;
}

TEST(Shards, KeepOneOfEqualPartsOfTheState) {
  for (const int ranks : {2, 4, 8}) {
    const Cost whole = cost_of(ranks, false), part = cost_of(ranks, true);
    EXPECT_LE(part.state, whole.state * (1.0 / ranks + 0.01)) << ranks;
    EXPECT_GE(part.state, whole.state / ranks) << ranks;
  }
  const Cost codes = cost_of(4, false, true, false, i8), part = cost_of(4, true, true, false, i8);
  EXPECT_LE(part.state, codes.state * (1.0 / 4 + 0.01));
  // Each rank has one of two large matrices, with the sums of its rows and columns.
  EXPECT_LE(cost_of<optim::Adafactor>(2, true).state,
            cost_of<optim::Adafactor>(2, false).state - 2 * 1024 * 4);
}

TEST(Shards, SendTheBytesOfAStepWithout) {
  for (const int ranks : {2, 4}) {
    const Cost whole = cost_of(ranks, false), part = cost_of(ranks, true);
    const double share = 2.0 * (ranks - 1) / ranks * 4 * 1025 * (2 * 1024 + 10);
    EXPECT_NEAR(part.bytes / whole.bytes, 1, 0.01) << ranks;
    EXPECT_NEAR(part.bytes / share, 1, 0.01) << ranks;
  }
}

TEST(Shards, AStepIsOneMessageMore) {
  for (const bool scaled : {false, true})
    for (const bool unscales : {false, true})
      EXPECT_EQ(cost_of(2, true, scaled, unscales).messages,
                cost_of(2, false, scaled, unscales).messages + 1)
          << scaled << unscales;
  EXPECT_EQ(cost_of<optim::Lamb>(2, true).messages, cost_of(2, true).messages + 1);
  EXPECT_EQ(cost_of<optim::Adafactor>(2, true).messages, cost_of(2, true).messages);
}

// --- mistakes, and uses that only look like mistakes ---

struct Pair : nn::Module<Pair> {
  Tensor a = nn::parameter(ones({3, 2})), b = nn::parameter(ones({2}));
  Tensor forward(const Tensor& x) const { return a * x; }
  MIXTAPE_FIELDS(a, b)
};

// An overflow that one rank alone can see, without a step that asks.
TEST(Shards, ALeftOutStepLowersTheScaleOfAll) {
  expect_fine(run_ranks(2, [](const World&) {
    Pair net;
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    const Shards shards(opt);
    DataParallel parallel(net);
    amp::GradScaler scaler({.init_scale = 16});
    scaler.scale(sum(net.a) + sum(net.b) * 1e38).backward();
    scaler.unscale(opt);
    scaler.update();
    EXPECT_EQ(scaler.scale_value(), 8);
    EXPECT_EQ(scaler.counters().skipped, 1);
  }));
}

TEST(Shards, NeedBuckets) {
  Pair net;
  optim::SGD sgd(net.parameters());
  EXPECT_ERROR(Shards(sgd, {.bucket_mb = 0}), "bucket_mb must be > 0, got 0");
}

TEST(Shards, SayWhatIsWrong) {
  expect_fine(run_ranks(2, [](const World&) {
    Pair net, other;
    optim::SGD opt(net.parameters(), {.lr = 0.1}), again({net.b}, {.lr = 0.1}),
        second(other.parameters(), {.lr = 0.1});
    {
      Shards shards(opt);
      EXPECT_ERROR(Shards{again}, "parameter 0 of sgd is divided already");
      EXPECT_ERROR(shards.load_state_dict({{"state.0.momentum_buffer", ones({2})}}),
                   "state.0.momentum_buffer must have shape [3, 2], got [2]");
      EXPECT_ERROR(shards.load_state_dict({{"state.one.exp_avg", ones({2})}}), "group.0.lr");
      DataParallel parallel(other);
      EXPECT_ERROR(([&] {
                     const Shards of_both(second);
                     std::vector<Tensor> all = net.parameters();
                     all.push_back(other.a);
                     optim::clip_grad_norm(all, 1);
                   }()),
                   "parameters of several Shards have no norm in common");
      net.to(bf16);
      EXPECT_ERROR(opt.step(),
                   "a parameter of shape [2] was divided as f32 on cpu, and is now bf16 on cpu: "
                   "make Shards after a model is converted or moved");
    }
    EXPECT_ERROR(opt.step(), "the Shards of this optimizer have ended, so it has only pieces");
    EXPECT_ERROR(opt.replace_params({}, {}), "0 tensors for 2 parameters");
  }));
  expect_fine(run_ranks(2, [](const World&) {
    Pair net, other;
    std::vector<Tensor> both = net.parameters();
    both.push_back(other.a);
    auto scaled = amp::enable_mixed_precision(optim::SGD(both, {.lr = 0.1}));
    const Shards shards(scaled.inner());
    EXPECT_ERROR(scaled.compute_gradients(sum(net.a)),
                 "compute_gradients() has those of whole parameters, which processes divide here");
    EXPECT_ERROR(
        DataParallel{other},
        "Shards divide a parameter of shape [2] together with this model's, but the model does not "
        "have it");
  }));
  expect_fine(run_ranks(2, [](const World&) {
    Pair net;
    optim::Adafactor opt(net.parameters());
    const Shards shards(opt);
    std::thread([&] {
      EXPECT_ERROR(shards.state_dict(), "state is joined on the thread of the World");
    }).join();
  }));
  const auto errors = run_ranks(2, [](const World& world) {
    Pair net;
    net.b.set_requires_grad(world.is_first());
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    const Shards shards(opt);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 1 of 2 divides other parameters than rank 0: [2] of f32, frozen "
                         "(rank 0: [2] of f32)"),
              std::string::npos)
        << error;
}

TEST(Shards, DoNotOutliveTheirWorld) {
  struct Rank {
    Pair net;
    optim::SGD opt{net.parameters(), {.lr = 0.1, .momentum = 0.5}};
    std::optional<Shards> shards;
  };
  std::vector<Rank> ranks(2);
  expect_fine(run_ranks(2, [&](const World& world) {
    Rank& own = ranks[size_t(world.rank())];
    own.shards.emplace(own.opt);
    for (const Tensor& p : own.opt.params()) p.set_grad(ones(p.shape()));
    own.opt.step();
  }));
  for (Rank& own : ranks) {
    const std::string before = bytes_of(own.opt.state_dict());
    EXPECT_ERROR(own.opt.step(), "the World of these Shards has ended");
    EXPECT_ERROR(own.shards->state_dict(), "the World of these Shards has ended");
    EXPECT_ERROR(own.shards->join(), "the World of these Shards has ended");
    EXPECT_ERROR(optim::clip_grad_norm(own.opt.params(), 1), "the World of these Shards has ended");
    EXPECT_TRUE(bytes_of(own.opt.state_dict()) == before);
  }
}

TEST(Shards, NeedADataParallel) {
  expect_fine(run_ranks(2, [](const World&) {
    Pair net;
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    const Shards shards(opt);
    sum(net.a).backward();
    EXPECT_ERROR(
        opt.step(),
        "a parameter of shape [3, 2] has a gradient that its pieces do not have: Shards need "
        "a DataParallel of the model, made before backward()");
  }));
}

TEST(Shards, TakeNoMoreGroups) {
  expect_fine(run_ranks(2, [](const World&) {
    Pair net, other;
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    Shards shards(opt);
    EXPECT_ERROR(opt.add_group({other.a}, {.lr = 0.1}),
                 "processes divide the parameters of this optimizer: add groups before Shards");
    EXPECT_EQ(opt.groups(), 1u);
    shards.join();
    opt.add_group({other.a}, {.lr = 0.1});
    EXPECT_EQ(opt.groups(), 2u);
  }));
}

TEST(Shards, OfRanksWithOtherGradients) {
  const auto errors = run_ranks(2, [](const World& world) {
    Pair net, other;
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    const Shards shards(opt);
    for (const Tensor& p : opt.params()) p.set_grad(ones(p.shape()));
    if (world.is_first()) other.a.set_grad(ones({3, 2}));
    try {
      optim::clip_grad_norm({net.a, other.a, net.b}, 1);
    } catch (const Error& e) {
      world.barrier();
      throw;
    }
  });
  for (const size_t r : {0, 1})
    EXPECT_NE(errors[r].find(fmt::format("rank {} of 2 has gradients of other parameters than rank "
                                         "{}: ",
                                         1 - r, r)),
              std::string::npos)
        << errors[r];
}

// Each rank has sums of more than 2,047 blocks, and not equally many.
TEST(Shards, NormsOfManyParameters) {
  std::vector<Tensor> grads;
  for (int i = 0; i < 5000; ++i) grads.push_back(full({i < 4000 ? 1 : 4}, 0.25 + i % 7));
  const auto params = [&] {
    std::vector<Tensor> all;
    for (const Tensor& g : grads) all.push_back(nn::parameter(zeros(g.shape())));
    return all;
  };
  const std::vector<Tensor> whole = params();
  for (size_t i = 0; i < grads.size(); ++i) whole[i].set_grad(grads[i].clone());
  const std::string expected = digits(optim::clip_grad_norm(whole, 1));
  expect_fine(run_ranks(2, [&](const World& world) {
    const std::vector<Tensor> own = params();
    optim::SGD opt(own, {.lr = 1});
    const Shards shards(opt);
    const std::vector<Tensor> pieces = opt.params();
    for (size_t i = 0; i < pieces.size(); ++i)  // (all elements of one are equal)
      pieces[i].set_grad(full(pieces[i].shape(), grads[i].data<float>()[0]));
    const uint64_t before = world.exchange()->messages_sent();
    EXPECT_EQ(digits(optim::clip_grad_norm(own, 1)), expected);
    EXPECT_EQ(world.exchange()->messages_sent(), before + 2);
    opt.step();
    for (const size_t i : {0, 1234, 4999})
      EXPECT_EQ(bytes_of({{"", own[i]}}), bytes_of({{"", -whole[i].grad()}}));
  }));
}

TEST(Shards, AStepIsAPlaceWhereRanksMeet) {
  const auto errors = run_ranks(2, [](const World& world) {
    Pair net;
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    const Shards shards(opt);
    world.is_first() ? opt.step() : world.barrier();
  });
  EXPECT_NE((errors[0] + errors[1]).find("ranks are out of step"), std::string::npos);
  EXPECT_NE((errors[0] + errors[1]).find("the optimizer's step 0"), std::string::npos);
}

TEST(Shards, GiveTheOptimizerBack) {
  const auto train = [](bool divides, const optim::CommonOptions& common) {
    std::string values;
    expect_fine(run_ranks(2, [&](const World& world) {
      Pair net;
      if (common.rounding == optim::Rounding::Kahan) net.to(bf16);
      optim::AdamW opt(net.parameters(), {.lr = 0.1}, common);
      DataParallel parallel(net);
      std::optional<Shards> shards;
      for (int i = 0; i < 3; ++i) {
        if (divides && i == 1) shards.emplace(opt);
        if (divides && i == 2) {
          shards->join();
          EXPECT_TRUE(opt.params()[0].is_same(net.a));
        }
        (sum(square(net.a)) + sum(net.b) * (world.rank() + 1)).backward();
        opt.step();
        opt.zero_grad();
      }
      if (world.is_first()) values = bytes_of(opt.state_dict()) + bytes_of(net.state_dict());
    }));
    return values;
  };
  for (const optim::CommonOptions& common :
       {optim::CommonOptions{}, {.rounding = optim::Rounding::Kahan}})
    EXPECT_TRUE(train(true, common) == train(false, common));
}

// A parameter that is frozen where they are made stays whole; one frozen later keeps its piece.
TEST(Shards, FollowWhatIsFrozenAndThawed) {
  const auto train = [](int ranks, bool divides) {
    std::vector<double> values;
    expect_fine(run_ranks(ranks, [&](const World& world) {
      Pair net;
      optim::SGD opt(net.parameters(), {.lr = 0.1, .momentum = 0.5});
      net.b.set_requires_grad(false);
      std::optional<Shards> shards;
      if (divides) shards.emplace(opt);
      DataParallel parallel(net, {.chunks = 4});
      for (int i = 0; i < 4; ++i) {
        net.b.set_requires_grad(i > 0);
        net.a.set_requires_grad(i != 2);
        const Batch own{ones({4 / ranks}), {}, {}, 4};
        for (const auto& chunk : parallel.chunks(own))
          ((sum(square(net.a)) + sum(square(net.b))) * chunk.weight).backward();
        optim::clip_grad_norm(net.parameters(), 1);
        opt.step();
        opt.zero_grad();
      }
      if (!world.is_first()) return;
      for (const Tensor& p : net.parameters())
        for (const double x : to_vector(p)) values.push_back(x);
    }));
    return values;
  };
  for (const int ranks : {1, 2, 4}) EXPECT_EQ(train(ranks, true), train(1, false)) << ranks;
}

// An optimizer for each parameter steps when the gradient is there.
TEST(Shards, StepInHooks) {
  const auto train = [](int ranks, bool divides) {
    std::vector<double> values;
    expect_fine(run_ranks(ranks, [&](const World& world) {
      Pair net;
      std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
      std::vector<std::unique_ptr<Shards>> shards;
      for (const Tensor& p : net.parameters()) {
        optim::Optimizer& opt = *optimizers.emplace_back(sgd({p}));
        if (divides) shards.push_back(std::make_unique<Shards>(opt));
        register_post_accumulate_hook(p, [&opt](const Tensor&) {
          opt.step();
          opt.zero_grad();
        });
      }
      DataParallel parallel(net, {.chunks = 4});
      for (int i = 0; i < 3; ++i)
        for (const auto& chunk : parallel.chunks(Batch{ones({4 / ranks}), {}, {}, 4}))
          ((sum(square(net.a)) + sum(square(net.b))) * chunk.weight).backward();
      if (!world.is_first()) return;
      for (const Tensor& p : net.parameters())
        for (const double x : to_vector(p)) values.push_back(x);
    }));
    return values;
  };
  const std::vector<double> alone = train(1, false);
  EXPECT_LT(alone[0], 1);
  for (const int ranks : {1, 2, 4})
    for (const bool divides : {false, true}) EXPECT_EQ(train(ranks, divides), alone) << ranks;
}

}  // namespace shards_test
}  // namespace mixtape::dist
