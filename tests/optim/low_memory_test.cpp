// States of 8 and 16 bits, and 16-bit parameters without masters: codes, roundings, resuming.
#include <fmt/format.h>

#include <set>

#include "autograd/ops.h"
#include "core/random.h"
#include "core/warn.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/kernels.h"
#include "optim/by_name.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
using namespace internal;
namespace optim_low_memory_test {

using kernels::StateCode;

// Large enough for codes, with a last block that is not full; one is too small for them. (Few rows
// make Muon's products cheap.)
const Shape shapes[] = {{2, 3150}, {4, 1024}, {5, 7}};

// All problems or, where each step is emulated, some.
std::map<std::string, Problem> some_problems() {
  if (DefaultDevice::current().is_host()) return problems;
  std::map<std::string, Problem> some;
  for (const char* name : {"sgd/momentum", "adam/amsgrad", "lion/decay", "lamb/decay"})
    some.emplace(name, problems.at(name));
  return some;
}

// Those of optimizers that take a state of another format than f32.
std::map<std::string, Problem> problems_of_moments() {
  std::map<std::string, Problem> some = some_problems();
  std::erase_if(some, [](const auto& problem) { return problem.first.starts_with("asgd/"); });
  return some;
}

Params parameters(DType dtype = f32) {
  Params all;
  for (const Shape& shape : shapes) {
    const Seed seed(7 + uint64_t(all.size()));
    all.push_back(randn(shape).to(dtype).set_requires_grad());
  }
  return all;
}
// Sizes differ by element, as those of real gradients do.
void set_random_grads(const Params& params, uint64_t step, DType dtype = f32) {
  for (const Tensor& p : params) {
    const Seed seed(1000 * step + uint64_t(p.numel()));
    const DefaultDevice cpu(Device::cpu());  // where it is quick
    p.set_grad((randn(p.shape()) * exp(randn(p.shape()))).to(dtype).copied_to(p.device()));
  }
}
void train(Optimizer& opt, const Params& params, uint64_t from, uint64_t to, DType dtype = f32) {
  for (uint64_t t = from; t <= to; ++t) {
    set_random_grads(params, t, dtype);
    opt.step();
  }
}
Params copies(const Params& params) {
  Params all;
  for (const Tensor& p : params) all.push_back(p.detach().clone().set_requires_grad());
  return all;
}
std::string bytes(const Tensor& there) {
  const Tensor t = there.copied_to(Device::cpu());
  return {static_cast<const char*>(t.raw()), t.nbytes()};
}
double squared(const Tensor& x) { return sum(x.to(f64) * x.to(f64)).item(); }

// --- codes ---

// The values of all codes, in order.
std::vector<double> values_of(StateFormat format, bool nonnegative) {
  std::vector<double> all;
  for (int i = 0; i < 256; ++i) all.push_back(i);
  const Tensor codes = from(all, {256}, u8), x({256}, f32), scale = ones({1});
  kernels::decode_blocks(x.device(), format.code(), nonnegative, codes, scale, x);
  return to_vector(x);
}

// As bitsandbytes.functional.create_dynamic_map makes it, in f64.
std::vector<double> dynamic_map(bool is_signed) {
  std::vector<double> all = {0, 1};
  for (int i = 0; i < 7; ++i) {
    const int steps = is_signed ? 1 << i : 2 << i;
    for (int j = 0; j < steps; ++j) {
      const double low = 0.1 + 0.9 * j / steps, high = 0.1 + 0.9 * (j + 1) / steps;
      const double mean = std::pow(10, i - 6) * (low + high) / 2;
      all.push_back(mean);
      if (is_signed) all.push_back(-mean);
    }
  }
  std::ranges::sort(all);
  return all;
}

TEST(StateCodes, DynamicOnesAreThoseOfBitsandbytes) {
  for (const bool nonnegative : {false, true}) {
    const std::vector<double> got = values_of(i8, nonnegative), want = dynamic_map(!nonnegative);
    ASSERT_EQ(want.size(), 256u);
    for (size_t i = 0; i < 256; ++i) EXPECT_NEAR(got[i], want[i], 2e-7 * std::abs(want[i])) << i;
  }
}

// The nearest code, but none of 0 for a square that is not 0.
TEST(StateCodes, AreTheNearest) {
  for (const StateFormat format : std::initializer_list<StateFormat>{i8, f8})
    for (const bool nonnegative : {false, true}) {
      const double largest = format == i8 ? 1 : 448;
      std::vector<double> values = values_of(format, nonnegative);
      std::erase_if(values, [&](double v) { return std::isnan(v) || (nonnegative && v < 0); });
      const Seed seed(5);
      const int64_t n = 8192;
      Tensor x = exp(rand({n}) * -25.0) * largest;
      if (!nonnegative) x = where(gt(rand({n}), 0.5), x, -x);
      const NoGrad off;
      for (int64_t i = 0; i < n; i += 256) x.set(i, largest);
      const Tensor codes({n}, u8), scale({n / 256}, f32), y({n}, f32);
      kernels::encode_blocks(x.device(), format.code(), nonnegative, x, codes, scale);
      kernels::decode_blocks(x.device(), format.code(), nonnegative, codes, scale, y);
      EXPECT_EQ(scale.at(3), 1);
      const std::vector<double> in = to_vector(x), out = to_vector(y);
      for (size_t i = 0; i < in.size(); ++i) {
        double best = inf;
        for (const double v : values) best = std::min(best, std::abs(v - in[i]));
        if (nonnegative && best >= in[i]) {  // nearest to 0
          EXPECT_EQ(out[i], values[1]) << in[i];
        } else {
          EXPECT_LE(std::abs(out[i] - in[i]), best * (1 + 1e-5) + 1e-6 * std::abs(in[i])) << in[i];
        }
      }
    }
}

TEST(StateCodes, BlocksStandAloneAndKeepTheirLargest) {
  for (const StateFormat format : std::initializer_list<StateFormat>{i8, f8})
    for (const bool nonnegative : {false, true}) {
      const Tensor ends = full({513}, 1), at({513}, u8), of({3}, f32), back({513}, f32);
      ends.set(3, inf);
      for (int64_t i = 256; i < 512; ++i) ends.set(i, 0x1p-101);
      kernels::encode_blocks(ends.device(), format.code(), nonnegative, ends, at, of);
      kernels::decode_blocks(ends.device(), format.code(), nonnegative, at, of, back);
      EXPECT_LT(back.at(0), 0x1p126 * 1e-5) << "a square that is not 0 gets the least code";
      EXPECT_EQ(back.at(3), 0x1p126);
      EXPECT_EQ(back.at(300), 0);
      EXPECT_EQ(back.at(512), 1);
      std::vector<double> v(700, 0.25);
      v[10] = 1e30;
      v[300] = nan;
      for (size_t i = 512; i < 700; ++i) v[i] = 0;
      const Tensor x = from(v, {700}), codes({700}, u8), scale({3}, f32), y({700}, f32);
      kernels::encode_blocks(x.device(), format.code(), nonnegative, x, codes, scale);
      kernels::decode_blocks(x.device(), format.code(), nonnegative, codes, scale, y);
      EXPECT_NEAR(y.at(10), 1e30, 1e24);
      EXPECT_TRUE(std::isnan(y.at(256)) && std::isnan(y.at(511)));
      EXPECT_EQ(y.at(512), 0);
      EXPECT_EQ(y.at(699), 0);
    }
}

// --- steps ---

// One step from the same numbers: what is stored in codes is what f32 states would become.
TEST(LowMemory, AStepIsThatOfF32BetweenTwoConversions) {
  for (const StateFormat format : std::initializer_list<StateFormat>{bf16, i8, f8})
    for (const auto& [name, make] : problems_of_moments()) {
      const Params a = parameters();
      const auto low = make(a, {.state = format});
      train(*low, a, 1, 2);
      const Params b = copies(a), c = copies(a);
      const auto plain = make(b, {});
      plain->load_state_dict(snapshot(low->state_dict()));
      train(*low, a, 3, 3);
      train(*plain, b, 3, 3);
      const auto again = make(c, {.state = format});
      again->load_state_dict(snapshot(plain->state_dict()));
      for (size_t i = 0; i < a.size(); ++i)
        if (name.starts_with("lamb/"))  // whose second pass reads the states
          EXPECT_LE(squared(a[i] - b[i]), 2e-3 * squared(b[i] - c[i])) << name;
        else
          EXPECT_EQ(bytes(a[i]), bytes(b[i])) << name << i;
      const StateDict states = low->state_dict(), same = again->state_dict();
      ASSERT_EQ(states.size(), same.size()) << name;
      for (size_t i = 0; i < states.size(); ++i)
        if (states[i].second.dtype() == bf16)  // rounded by chance, and to nearest
          EXPECT_LE(squared(states[i].second - same[i].second), 0x1p-14 * squared(same[i].second))
              << name << states[i].first;
        else
          EXPECT_EQ(bytes(states[i].second), bytes(same[i].second)) << name << states[i].first;
    }
}

// After some steps, parameters have moved about as with f32 states.
TEST(LowMemory, MovesParametersAsF32Does) {
  for (const auto& [format, most] :
       {std::pair<StateFormat, double>{bf16, 0.04}, {i8, 0.1}, {f8, 0.2}})
    for (const auto& [name, make] : problems_of_moments()) {
      // (v - a^2 of two rounded numbers is 0 or far off: see docs/low_memory.md.)
      if (name == "rmsprop/centered" || name == "rmsprop/all") continue;
      const Params start = parameters(), a = copies(start), b = copies(start);
      const auto plain = make(a, {}), low = make(b, {.state = format});
      train(*plain, a, 1, 6);
      train(*low, b, 1, 6);
      for (size_t i = 0; i < a.size(); ++i)
        EXPECT_LE(std::sqrt(squared(a[i] - b[i]) / squared(a[i] - start[i])), most)
            << name << " " << format.name();
    }
}

// Means of constant gradients reach them, though each step moves them by less than bf16 holds.
TEST(LowMemory, Bf16StatesDoNotStandStill) {
  const bool is_host = DefaultDevice::current().is_host();
  const Tensor p = zeros({256}).set_requires_grad();
  Adam opt({p}, {.lr = 0, .betas = {0.9, is_host ? 0.999 : 0.99}}, {.state = bf16});
  p.set_grad(ones({256}));
  const int steps = is_host ? 6000 : 600;
  for (int i = 0; i < steps; ++i) opt.step();
  EXPECT_NEAR(mean(opt.state_dict().at("state.0.exp_avg_sq").to(f32)).item(), 1, 0.02);
  p.set_grad(full({256}, 0.1));
  for (int i = 0; i < steps; ++i) opt.step();
  EXPECT_NEAR(mean(opt.state_dict().at("state.0.exp_avg_sq").to(f32)).item(), 0.0125, 0.003);
}

// --- rounding ---

// The mean of rounded numbers is exact, up to five of its standard deviations.
TEST(Rounding, ByChanceIsUnbiased) {
  const int64_t n = DefaultDevice::current().is_host() ? 1'000'000 : 100'000;
  struct Case {
    DType dtype;
    double start, gap, part;
  };
  for (const auto& [dtype, start, gap, part] :
       {Case{bf16, 1, 0x1p-7, 0.3}, Case{bf16, -3, 0x1p-6, 0.01}, Case{f16, 1, 0x1p-10, 0.7},
        Case{f16, 0x1p-15, 0x1p-24, 0.4}}) {
    const Tensor p = full({n}, start, dtype).set_requires_grad();
    SGD opt({p}, {.lr = 1}, {.rounding = kernels::Rounding::Stochastic, .seed = 3});
    p.set_grad(full({n}, (start > 0 ? -1 : 1) * gap * part));
    opt.step();
    const double part_f32 = p.grad().at(0) / gap * (start > 0 ? -1 : 1);
    const double up = std::abs(mean(p.to(f64) - start).item()) / gap;
    EXPECT_NEAR(up, part_f32, 5 * std::sqrt(part * (1 - part) / double(n))) << dtype << start;
    const std::vector<double> all = to_vector(p);
    EXPECT_EQ(std::set<double>(all.begin(), all.end()).size(), 2u);
  }
}

TEST(Rounding, ByChanceDependsOnSeedStepParameterAndElement) {
  const auto rounded = [](uint64_t seed, int steps, int before) {
    Params all;
    for (int i = 0; i <= before; ++i) all.push_back(full({64}, 1, bf16).set_requires_grad());
    SGD opt(all, {.lr = 1}, {.rounding = kernels::Rounding::Stochastic, .seed = seed});
    const Tensor& p = all.back();
    for (int i = 0; i < steps; ++i) {
      const NoGrad off;
      fill_(p, 1.0);
      p.set_grad(full({64}, -0x1p-8));
      opt.step();
    }
    return bytes(p);
  };
  EXPECT_EQ(rounded(1, 1, 0), rounded(1, 1, 0));
  const std::set<std::string> all = {rounded(1, 1, 0), rounded(2, 1, 0), rounded(1, 2, 0),
                                     rounded(1, 1, 1), rounded(1, 3, 0)};
  EXPECT_EQ(all.size(), 5u);
}

// Numbers that bf16 holds are kept, and infinities and NaN stay as they are.
TEST(Rounding, ByChanceKeepsWhatNeedsNone) {
  for (const DType dtype : {f16, bf16}) {
    const std::vector<double> kept = {0,   1,    -2.5,   largest(dtype), -largest(dtype),
                                      inf, -inf, 0x1p-24};
    const Tensor p = from(kept, {8}, dtype).set_requires_grad();
    SGD opt({p}, {.lr = 0}, {.rounding = kernels::Rounding::Stochastic});
    p.set_grad(ones({8}));
    for (int i = 0; i < 20; ++i) opt.step();
    EXPECT_EQ(to_vector(p), kept);
    p.set_grad(full({8}, nan));
    opt.step();
    EXPECT_TRUE(std::isnan(p.at(0)));
  }
}

// The last number and infinity are not two numbers to choose between.
TEST(Rounding, ByChanceMakesNoInfinityBeforeNearestDoes) {
  for (const DType dtype : {f16, bf16}) {
    const double last = largest(dtype), half = dtype == f16 ? 16 : 0x1p119;
    const auto moved = [&](double by) {
      const Tensor p = full({4096}, last, dtype).set_requires_grad();
      SGD opt({p}, {.lr = 1}, {.rounding = kernels::Rounding::Stochastic});
      p.set_grad(full({4096}, -by));
      opt.step();
      return to_vector(p);
    };
    EXPECT_EQ(moved(0.9 * half), std::vector<double>(4096, last)) << dtype;
    EXPECT_EQ(moved(half), std::vector<double>(4096, inf)) << dtype;
  }
}

// With either, updates far below the precision add up.
TEST(Rounding, KeepsSmallUpdates) {
  for (const auto rounding : {kernels::Rounding::Stochastic, kernels::Rounding::Kahan})
    for (const DType dtype : {f16, bf16}) {
      const Tensor p = ones({4096}, dtype).set_requires_grad();
      SGD opt({p}, {.lr = 1e-4}, {.rounding = rounding});
      for (int i = 0; i < 300; ++i) {
        p.set_grad(ones({4096}));
        opt.step();
      }
      Tensor all = p.to(f32);
      if (rounding == kernels::Rounding::Kahan)
        all = all + opt.state_dict().at("state.0.compensation").to(f32);
      EXPECT_NEAR(mean(all).item(), 0.97, 8e-4) << dtype;
    }
}

// The sum of the parameter and what was lost is an f32 step to 16 bits and more.
TEST(Rounding, KahanFollowsMasters) {
  for (const DType dtype : {f16, bf16})
    for (const auto& [name, make] : some_problems()) {
      if (name.starts_with("muon/") && dtype == bf16) continue;  // below
      const Params a = parameters(dtype), b = copies(a);
      const auto kahan = make(a, {.rounding = kernels::Rounding::Kahan});
      const auto masters = make(b, {.multi_precision = true});
      train(*kahan, a, 1, 5, dtype);
      train(*masters, b, 1, 5, dtype);
      const StateDict x = kahan->state_dict(), y = masters->state_dict();
      for (size_t i = 0; i < a.size(); ++i) {
        const Tensor rest = x.at(fmt::format("state.{}.compensation", i));
        const Tensor sum = a[i].to(f32) + rest.to(f32),
                     master = y.at(fmt::format("state.{}.master", i));
        EXPECT_EQ(bytes(sum.to(dtype)), bytes(a[i])) << name;
        EXPECT_LE(std::sqrt(squared(sum - master) / squared(master)), 1e-4) << name << dtype;
      }
    }
}

// A compensation belongs to the number that it was made for.
TEST(Rounding, KahanForgetsWhatWasWrittenOver) {
  const Tensor p = ones({2}, bf16).set_requires_grad();
  SGD opt({p}, {.lr = 1}, {.rounding = kernels::Rounding::Kahan});
  p.set_grad(full({2}, -0x1p-10));
  opt.step();
  EXPECT_EQ(state(opt, "state.0.compensation"), 0x1p-10);
  p.set(0, 0x1p-6);
  p.set_grad(zeros({2}));
  opt.step();
  EXPECT_EQ(all_state(opt, "state.0.compensation"), (std::vector<double>{0, 0x1p-10}));
}

// --- resuming, threads, memory ---

const std::pair<const char*, Common> modes[] = {
    {"i8", {.state = i8}},
    {"f8", {.state = f8}},
    {"stochastic", {.rounding = kernels::Rounding::Stochastic, .state = bf16, .seed = 9}},
    {"stochastic i8", {.rounding = kernels::Rounding::Stochastic, .state = i8}},
    {"kahan f8", {.rounding = kernels::Rounding::Kahan, .state = f8}},
};

// Parameters of 16 bits without either rounding are part of these tests.
const auto silent = [](const std::string&) {};

// The f32 weights of which 16-bit parameters keep the rest, as masters or compensations.
TEST(Rounding, TakesF32Weights) {
  const Tensor value = from({1.001, -3.3, 1e-3, 70.7}, {4});
  for (const CommonOptions& common :
       {CommonOptions{.multi_precision = true}, CommonOptions{.rounding = Rounding::Kahan},
        CommonOptions{.rounding = Rounding::Stochastic}}) {
    const Tensor p = value.to(bf16).set_requires_grad(), wide = value.clone().set_requires_grad();
    SGD opt({p, wide}, {.lr = 1}, common);
    opt.set_masters({value, value});
    EXPECT_FALSE(opt.masters()[1]);
    if (common.rounding == Rounding::Stochastic) {
      EXPECT_FALSE(opt.masters()[0]);
      continue;
    }
    EXPECT_TRUE(allclose(opt.masters()[0], value, 1e-5, 0));
    p.set_grad(from({1, 0, 0, 0}, {4}, bf16));
    opt.step();
    EXPECT_TRUE(allclose(opt.masters()[0], value - from({1, 0, 0, 0}, {4}), 1e-4, 1e-5));
    p.set(1, 0.25);
    EXPECT_EQ(opt.masters()[0].at(1), 0.25);
    EXPECT_NEAR(opt.masters()[0].at(3), value.at(3), 1e-3);
    EXPECT_EQ(error([&] { opt.set_masters({value}); }), "1 masters for 2 parameters");
    EXPECT_EQ(error([&] { opt.set_masters({ones({3}), Tensor()}); }),
              "the master of parameter 0 must have shape [4], got [3]");
  }
}

TEST(LowMemory, ResumingIsExact) {
  const OnWarning off(silent);
  for (const auto& [mode, common] : modes)
    for (const auto& [name, make] : problems_of_moments()) {
      const Params a = parameters(bf16);
      const auto whole = make(a, common);
      train(*whole, a, 1, 2, bf16);
      const Params b = copies(a);
      const auto resumed = make(b, common);
      resumed->load_state_dict(snapshot(whole->state_dict()));
      train(*whole, a, 3, 4, bf16);
      train(*resumed, b, 3, 4, bf16);
      EXPECT_EQ(bits(*whole), bits(*resumed)) << mode << " " << name;
    }
}

TEST(LowMemory, BitsDoNotDependOnThreads) {
  const OnWarning off(silent);
  const DefaultDevice cpu(Device::cpu());  // the threads are its own
  for (const auto& [mode, common] : modes)
    for (const auto& [name, make] : problems_of_moments()) {
      std::vector<std::string> results;
      for (const int threads : {1, 2}) {
        const kernels::cpu::ThreadLimit limit(threads);
        const Seed seed(3);
        const Params p = {randn({2, 9000}).to(bf16).set_requires_grad(),  // two chunks
                          randn({3, 1400}).to(bf16).set_requires_grad()};
        const auto opt = make(p, common);
        train(*opt, p, 1, 2, bf16);
        results.push_back(bits(*opt));
      }
      EXPECT_EQ(results[0], results[1]) << mode << " " << name;
    }
}

TEST(LowMemory, ASkippedStepChangesNoBit) {
  const OnWarning off(silent);
  for (const auto& [mode, common] : modes)
    for (const auto& [name, make] : problems_of_moments()) {
      const Params p = parameters(bf16);
      const auto opt = make(p, common);
      train(*opt, p, 1, 1, bf16);
      const std::string before = bits(*opt);
      set_random_grads(p, 2, bf16);
      opt->step({.skip = scalar(1)});
      EXPECT_EQ(bits(*opt), before) << mode << name;
    }
}

// The bytes of a parameter, its gradient and what AdamW keeps for it, per element.
TEST(LowMemory, BytesOfAParameter) {
  const OnWarning off(silent);
  constexpr int64_t n = 1 << 18;
  const auto cost = [](DType dtype, const Common& common, DType grad = bf16) {
    empty_cache();
    const int64_t before = memory_stats().in_use;
    const Tensor p = zeros({n}, dtype).set_requires_grad();
    AdamW opt({p}, {}, common);
    p.set_grad(zeros({n}, grad));
    opt.step();
    return double(memory_stats().in_use - before) / n;
  };
  const auto chance = kernels::Rounding::Stochastic;
  EXPECT_NEAR(cost(f32, {}, f32), 16, 0.01);
  EXPECT_NEAR(cost(bf16, {.multi_precision = true}, f32), 18, 0.01);
  EXPECT_NEAR(cost(bf16, {.multi_precision = true}), 16, 0.01);
  EXPECT_NEAR(cost(bf16, {.rounding = chance, .state = bf16}), 8, 0.01);
  EXPECT_LE(cost(bf16, {.rounding = chance, .state = i8}), 6.1);
  EXPECT_LE(cost(bf16, {.rounding = chance, .state = f8}), 6.1);
  EXPECT_LE(cost(bf16, {.rounding = kernels::Rounding::Kahan, .state = i8}), 8.1);
}

// --- at random ---

// Parameters of any dtypes and sizes together, with gradients that are missing, zero or strided in
// some steps, under skipped and scaled steps.
struct AnyTraining {
  explicit AnyTraining(uint64_t s) : seed(s) {
    const Seed seeded(seed);
    const std::vector<std::string> names = optimizer_names();
    name = names[size_t(any(int64_t(names.size())))];
    const StateFormat formats[] = {f32, bf16, i8, f8};
    const DType dtypes[] = {f16, bf16, f32, f64};
    common.state = formats[name == "asgd" ? 0 : any(4)];
    common.rounding = kernels::Rounding(any(3));
    common.multi_precision = common.rounding == kernels::Rounding::Nearest && any(2) == 1;
    common.flat_master = common.multi_precision && any(2) == 1;
    if (any(3) == 0) common.shadow = dtypes[any(2)];
    common.maximize = any(4) == 0;
    common.seed = seed;
    const Shape sizes[] = {{5, 7}, {},       {0},    {1},    {255},
                           {0, 4}, {64, 65}, {4096}, {4097}, {3, 5, 7, 41}};
    start.push_back(randn(sizes[0]).to(dtypes[any(4)]));  // a matrix, for Muon
    for (int64_t n = any(4); n > 0; --n)
      start.push_back(randn(sizes[name == "muon" ? any(6) : any(10)]).to(dtypes[any(4)]));
  }
  std::unique_ptr<Optimizer> optimizer(const Params& p) const {
    return optim::get(name, copies(p), {}, common);
  }
  void step(Optimizer& opt, uint64_t t) const {
    const Seed seeded(1000 * seed + t);
    for (const Tensor& p : opt.params()) {
      const int64_t kind = any(5);
      const bool alike = p.dtype() == f64 || any(2) == 0;
      Tensor g = randn(p.shape()).to(alike ? p.dtype() : f32);
      if (kind == 0) g = zeros(p.shape(), g.dtype());
      if (kind == 1 && p.rank() >= 2) g = g.transpose(0, 1).contiguous().transpose(0, 1);
      p.set_grad(kind == 2 ? Tensor() : g);
    }
    const Tensor skip = scalar(any(5) == 0), half = scalar(0.5);
    StepControl control{.skip = skip};
    if (any(2) == 0) control.grad_scale = half;
    opt.step(control);
  }
  static int64_t any(int64_t n) { return int64_t(randint(0, n, {}).item()); }

  uint64_t seed;
  std::string name;
  Common common;
  Params start;
};

TEST(LowMemory, AnyTrainingResumesAtAnyStepWithAnyThreads) {
  const OnWarning off(silent);
  const DefaultDevice cpu(Device::cpu());  // the threads are its own
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const AnyTraining training(seed);
    constexpr uint64_t steps = 4;
    std::vector<std::string> ends;
    std::vector<std::pair<Params, StateDict>> saved;
    for (const int threads : {1, 2}) {
      const kernels::cpu::ThreadLimit limit(threads);
      const auto opt = training.optimizer(training.start);
      for (uint64_t t = 0; t < steps; ++t) {
        if (threads == 1) saved.emplace_back(copies(opt->params()), snapshot(opt->state_dict()));
        training.step(*opt, t);
      }
      ends.push_back(bits(*opt));
    }
    for (uint64_t from = 0; from < steps; ++from) {
      const auto opt = training.optimizer(saved[from].first);
      opt->load_state_dict(saved[from].second);
      for (uint64_t t = from; t < steps; ++t) training.step(*opt, t);
      ends.push_back(bits(*opt));
    }
    for (const std::string& end : ends) EXPECT_EQ(end, ends[0]) << training.name << " " << seed;
  }
}

// --- state dicts ---

TEST(LowMemory, NamesOfStates) {
  for (const auto& [format, scale] :
       {std::pair<StateFormat, std::string>{i8, "i8_scale"}, {f8, "f8_scale"}}) {
    const Params p = parameters(bf16);
    SGD opt(p, {.momentum = 0.9}, {.rounding = kernels::Rounding::Kahan, .state = format});
    train(opt, p, 1, 1, bf16);
    const StateDict dict = opt.state_dict();
    EXPECT_EQ(dict.at("state.0.momentum_buffer").dtype(), u8);
    EXPECT_EQ(dict.at("state.0.momentum_buffer").shape(), (Shape{2, 3150}));
    EXPECT_EQ(dict.at("state.0.momentum_buffer." + scale).shape(), (Shape{25}));
    EXPECT_EQ(dict.at("state.0.compensation").dtype(), bf16);
    EXPECT_EQ(dict.at("state.2.momentum_buffer").dtype(), f32) << "small ones keep f32";
    EXPECT_FALSE(dict.contains("state.2.momentum_buffer." + scale));
  }
}

// Any kind of state goes into any other, as near as that holds it.
TEST(LowMemory, LoadsStatesOfAnyFormat) {
  const StateFormat formats[] = {f32, bf16, i8, f8};
  for (const StateFormat from : formats)
    for (const StateFormat to : formats) {
      const Params p = parameters();
      AdamW first(p, {}, {.state = from}), second(p, {}, {.state = to}), back(p, {});
      train(first, p, 1, 3);
      second.load_state_dict(snapshot(first.state_dict()));
      AdamW exact(p, {});
      exact.load_state_dict(snapshot(first.state_dict()));
      back.load_state_dict(snapshot(second.state_dict()));
      const StateDict x = exact.state_dict(), y = back.state_dict();
      for (const std::string name : {"state.0.exp_avg", "state.1.exp_avg_sq", "state.2.exp_avg"})
        EXPECT_LE(squared(x.at(name) - y.at(name)), 2e-3 * squared(x.at(name)))
            << from.name() << to.name();
      EXPECT_EQ(state(second, "state.0.step"), 3);
    }
}

TEST(LowMemory, AnInitialStateIsExact) {
  for (const StateFormat format : std::initializer_list<StateFormat>{bf16, i8, f8}) {
    const Tensor p = zeros({5000}).set_requires_grad(), q = zeros({5000}).set_requires_grad();
    const AdagradOptions options{.lr = 0.1, .initial_accumulator_value = 0.5, .eps = 0};
    Adagrad opt({p}, options, {.state = format}), plain({q}, options);
    for (const Tensor& t : {p, q}) t.set_grad(full({5000}, 1e-3));
    opt.step();
    plain.step();
    EXPECT_NEAR(p.at(4999) / q.at(4999), 1, 1e-6) << format.name();
  }
}

TEST(LowMemory, Errors) {
  const Params p = parameters(bf16);
  EXPECT_EQ(error([&] { AdamW(p, {}, {.state = f16}); }),
            "state must be f32, bf16, i8 or f8, got f16");
  EXPECT_EQ(error([&] { StateFormat::parse("i4"); }),
            "state must be f32, bf16, i8 or f8, got 'i4'");
  EXPECT_TRUE(StateFormat::parse("f8") == f8 && StateFormat::parse("bf16") == StateFormat(bf16));
  EXPECT_EQ(error([&] { parse_rounding("up"); }),
            "rounding must be nearest, stochastic or kahan, got 'up'");
  EXPECT_EQ(parse_rounding("kahan"), kernels::Rounding::Kahan);
  EXPECT_EQ(parse_rounding("stochastic"), kernels::Rounding::Stochastic);
  EXPECT_EQ(parse_rounding("nearest"), kernels::Rounding::Nearest);
  const Common both{.multi_precision = true, .rounding = kernels::Rounding::Kahan};
  EXPECT_EQ(error([&] { AdamW(p, {}, both); }),
            "adamw: rounding is kahan and multi_precision true: with masters, parameters are "
            "rounded to nearest");
  AdamW opt(p, {}, {.rounding = kernels::Rounding::Stochastic, .state = i8});
  EXPECT_EQ(error([&] { opt.set_multi_precision(true); }),
            "rounding is stochastic and multi_precision true: with masters, parameters are rounded "
            "to nearest");
  train(opt, p, 1, 1, bf16);
  const auto load = [&](auto change) {
    StateDict dict = snapshot(opt.state_dict());
    change(dict);
    return error([&] { opt.load_state_dict(dict); });
  };
  const std::string before = bits(opt);
  EXPECT_EQ(load([](StateDict& d) {
              std::erase_if(d, [](const auto& e) { return e.first == "state.0.exp_avg.i8_scale"; });
            }),
            "adamw: state.0.exp_avg are codes of 8 bits, but state.0.exp_avg.i8_scale or "
            "state.0.exp_avg.f8_scale is missing");
  EXPECT_EQ(load([](StateDict& d) {
              for (auto& [name, t] : d)
                if (name == "state.0.exp_avg.i8_scale") t = zeros({3});
            }),
            "adamw: state.0.exp_avg.i8_scale must have shape [25], got [3]");
  EXPECT_EQ(load([](StateDict& d) {
              for (auto& [name, t] : d)
                if (name == "state.0.exp_avg") t = zeros({3}, u8);
            }),
            "adamw: state.0.exp_avg must have shape [2, 3150], got [3]");
  EXPECT_EQ(bits(opt), before);
  AdamW plain(p);
  EXPECT_EQ(
      load([](StateDict& d) { d.emplace_back("state.0.compensation", zeros({2, 3150}, bf16)); }),
      "adamw: unexpected key 'state.0.compensation'");
}

struct Own {
  static constexpr std::string_view name = "own";
  double lr = 1;
  Options options() { return {{"lr", lr}}; }
  void update(Device, Updates, const StepControl&) const {}
};
// Codes of weights, and even numbers of bf16, are further apart than those move.
TEST(LowMemory, KeepsWeightsAmongStatesWide) {
  for (const StateFormat format : std::initializer_list<StateFormat>{bf16, i8, f8}) {
    const Tensor w = ones({64, 64}).set_requires_grad();
    EXPECT_EQ(error([&] { ASGD({w}, {}, {.state = format}); }),
              fmt::format("asgd: state must be f32, got {}: ax is a mean of weights, which other "
                          "formats hold too coarsely",
                          format.name()));
    ScheduleFreeAdamW opt({w}, {.lr = 1e-6}, {.state = format});
    for (int t = 1; t <= 20; ++t) {
      w.set_grad(ones({64, 64}));
      opt.step();
    }
    const StateDict dict = opt.state_dict();
    EXPECT_NEAR(dict.at("state.0.z").at(0), 1 - 20e-6, 2e-6) << format.name();
    EXPECT_EQ(dict.at("state.0.exp_avg_sq").dtype(), format.dtype());
  }
}

TEST(LowMemory, IsNotForOptimizersOfOnesOwn) {
  const Tensor p = ones({2}).set_requires_grad();
  p.set_grad(ones({2}));
  OptimizerOf<Own> opt({p}, {}, {.state = i8});
  EXPECT_EQ(error([&] { opt.step(); }),
            "own: rounding and state are for the library's own optimizers: update() reads f32");
}

}  // namespace optim_low_memory_test
}  // namespace mixtape::optim
