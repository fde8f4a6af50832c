// Recipes: products of operands rounded to 8 and 4 bits, beside values computed here in double.

#include "amp/recipe.h"

#include <fmt/format.h>

#include <bit>

#include "autograd/checkpoint.h"
#include "autograd/function.h"
#include "nn/nn.h"
#include "tests/support/amp.h"

namespace mixtape::amp {
using namespace internal;
namespace recipe_test {

double power_above(double x) { return x == 0 ? 1 : std::exp2(std::ceil(std::log2(x))); }

using Matrix = std::vector<std::vector<double>>;
Matrix matrix(const Tensor& t) {
  const Tensor rows = t.detach().to(Device()).contiguous();
  Matrix m(size_t(t.size(0)), std::vector<double>(size_t(t.size(1))));
  for (size_t i = 0; i < m.size(); ++i)
    for (size_t j = 0; j < m[i].size(); ++j) m[i][j] = rows.at(int64_t(i * m[i].size() + j));
  return m;
}
Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j) t[j][i] = a[i][j];
  return t;
}
double largest(const Matrix& a) {
  double most = 0;
  for (const auto& row : a)
    for (const double x : row) most = std::max(most, std::abs(x));
  return most;
}
// Rounds with one scale for all, or with one for each block of a row.
Matrix rounded(Matrix a, const Numbers& f, size_t block = 0) {
  const double all = largest(a), of_tensor = power_above(all / (6 * 448));
  for (auto& row : a)
    for (size_t begin = 0; begin < row.size(); begin += block ? block : row.size()) {
      const size_t end = block ? std::min(begin + block, row.size()) : row.size();
      double most = block ? 0 : all;
      for (size_t j = begin; j < end && block; ++j) most = std::max(most, std::abs(row[j]));
      double scale = power_above(most / f.largest);
      if (f.largest == 6) scale = nearest(most / 6 / of_tensor, e4m3) * of_tensor;
      for (size_t j = begin; j < end; ++j)
        row[j] = scale == 0 ? 0 : nearest(row[j] / scale, f) * scale;
    }
  return a;
}
Matrix times(const Matrix& a, const Matrix& b_transposed) {
  Matrix c(a.size(), std::vector<double>(b_transposed.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < c[i].size(); ++j)
      for (size_t k = 0; k < a[i].size(); ++k) c[i][j] += a[i][k] * b_transposed[j][k];
  return c;
}
void expect_equal(const Tensor& t, const Matrix& want, double tolerance, const char* what) {
  const Matrix got = matrix(t);
  ASSERT_EQ(got.size(), want.size());
  const double most = largest(want);
  for (size_t i = 0; i < got.size(); ++i)
    for (size_t j = 0; j < got[i].size(); ++j)
      ASSERT_NEAR(got[i][j], want[i][j], tolerance * most) << what << " " << i << " " << j;
}
// Numbers over several powers of two, of both signs.
Tensor spread(const Shape& shape, double seed) {
  const Tensor t = waves(shape, seed), s = waves(shape, 3 * seed + 1);
  return (t * exp(s * 3.0)).detach();
}

struct Case {
  Recipe recipe;
  Numbers operand, gradient;
  size_t block;
};
std::vector<Case> cases() {
  return {{Current{}, e4m3, e5m2, 0},
          {Delayed{.history = 4}, e4m3, e5m2, 0},  // whose first step is as Current
          {Mx{}, e4m3, e4m3, 32},
          {NvFp4{}, e2m1, e2m1, 16}};
}

TEST(Recipes, LinearIsTheProductOfRoundedFactors) {
  for (const Case& c : cases()) {
    // Blocks of 32 and of 16 end within every dimension.
    const Tensor x = spread({37, 41}, 1).set_requires_grad();
    const Tensor w = spread({35, 41}, 2).set_requires_grad(), b = zeros({35}).set_requires_grad();
    const Tensor dy = spread({37, 35}, 3);
    {
      const Autocast on({.low = f32, .recipe = c.recipe});
      linear(x, w, b).backward({.gradient = dy});
    }
    const auto round = [&](const Matrix& m, const Numbers& f) { return rounded(m, f, c.block); };
    const Matrix xs = matrix(x), ws = matrix(w), gs = matrix(dy);
    const NoGrad off;
    const Autocast on({.low = f32, .recipe = c.recipe});
    const std::string name(c.recipe.name());
    expect_equal(linear(x, w), times(round(xs, c.operand), round(ws, c.operand)), 1e-6,
                 name.c_str());
    expect_equal(x.grad(), times(round(gs, c.gradient), round(transposed(ws), c.operand)), 1e-6,
                 name.c_str());
    expect_equal(w.grad(),
                 times(round(transposed(gs), c.gradient), round(transposed(xs), c.operand)), 1e-6,
                 name.c_str());
    expect_near(b.grad(), sum(dy, {0}), 1e-6);
  }
}

TEST(Recipes, MatmulRoundsBothOperandsAlongTheSum) {
  for (const Case& c : cases()) {
    const Tensor a = spread({5, 50}, 1).set_requires_grad(), b = spread({50, 7}, 2);
    const Tensor dc = spread({5, 7}, 3);
    const Autocast on({.low = f32, .recipe = c.recipe});
    const Tensor y = matmul(a, b);
    const Matrix bt = transposed(matrix(b));
    expect_equal(y, times(rounded(matrix(a), c.operand, c.block), rounded(bt, c.operand, c.block)),
                 1e-6, "y");
    y.backward({.gradient = dc});
    expect_equal(a.grad(),
                 times(rounded(matrix(dc), c.gradient, c.block),
                       rounded(transposed(bt), c.operand, c.block)),
                 1e-6, "da");
  }
}

// bf16 holds the numbers of the formats times their scales: the product differs by its own
// rounding.
TEST(Recipes, NumbersAreExactInBf16) {
  for (const Case& c : cases()) {
    const Tensor x = spread({9, 70}, 1), w = spread({6, 70}, 2);
    const Autocast on({.recipe = c.recipe});
    const Tensor y = linear(x, w);
    EXPECT_EQ(y.dtype(), bf16);
    const Matrix want =
        times(rounded(matrix(x), c.operand, c.block), rounded(matrix(w), c.operand, c.block));
    const Matrix got = matrix(y);
    for (size_t i = 0; i < got.size(); ++i)
      for (size_t j = 0; j < got[i].size(); ++j)
        EXPECT_NEAR(got[i][j], want[i][j], 0x1p-8 * std::abs(want[i][j]) + 1e-5) << c.recipe.name();
  }
}

TEST(Recipes, ConvolutionsAreRoundedByTensor) {
  const Tensor x = spread({2, 3, 5, 5}, 1).set_requires_grad(), w = spread({4, 3, 3, 3}, 2);
  const Tensor dy = spread({2, 4, 5, 5}, 3);
  const auto by_tensor = [](const Tensor& t, const Numbers& f) {
    const Matrix m = rounded(matrix(t.detach().reshape({1, t.numel()})), f);
    Tensor r(t.shape(), f32);
    for (int64_t i = 0; i < t.numel(); ++i) r.set(i, m[0][size_t(i)]);
    return r.to(t.device());
  };
  const Tensor exact = by_tensor(x, e4m3).set_requires_grad();
  const Tensor want = conv2d(exact, by_tensor(w, e4m3), {}, {.padding = {1, 1}});
  want.backward({.gradient = by_tensor(dy, e5m2)});
  {
    const Autocast on({.low = f32, .recipe = Current{}});
    const Tensor y = conv2d(x, w, {}, {.padding = {1, 1}});
    expect_near(y, want, 1e-6);
    y.backward({.gradient = dy});
    expect_near(x.grad(), exact.grad(), 1e-6);
  }
  const Autocast on({.low = f32, .recipe = Mx{}});  // blocks have no dimension to lie along
  expect_near(
      conv2d(x, w),
      [&] {
        const NoPolicy off;
        return conv2d(x, w);
      }(),
      0);
}

TEST(Recipes, OtherOpsRunAsUnderBf16) {
  const Tensor x = leaf({4, 4});
  const Autocast on({.recipe = Current{}});
  EXPECT_EQ(softmax(x).dtype(), f32);
  EXPECT_EQ(relu(x).dtype(), f32);
  EXPECT_EQ(einsum("ij,kj->ik", {x, x}).dtype(), bf16);
  EXPECT_EQ(dtype_of_operand(x), bf16);
  const Tensor integers = from({1, 2}, {2}, i64);
  EXPECT_EQ((integers + 1).dtype(), i64);
  EXPECT_EQ(matmul(x.to(f64), x.to(f64)).dtype(), f64);
}

TEST(Recipes, OverridesDecideFirst) {
  const Tensor x = spread({4, 40}, 1), w = spread({3, 40}, 2);
  const auto under = [&](const AutocastOptions& o) {
    const Autocast on(o);
    return linear(x, w);
  };
  const Tensor f8 = under({.recipe = Current{}}), half = under({.low = bf16});
  EXPECT_NE(to_vector(f8), to_vector(half));
  EXPECT_EQ(to_vector(f8), to_vector(under({.low = f8_e4m3})));
  EXPECT_EQ(to_vector(under({.recipe = Mx{}})), to_vector(under({.low = f8_e4m3, .recipe = Mx{}})));
  EXPECT_EQ(to_vector(half),
            to_vector(under({.overrides = {{"linear", Precision::Low}}, .recipe = Current{}})));
  EXPECT_EQ(under({.overrides = {{"linear", Precision::Full}}, .recipe = Current{}}).dtype(), f32);
  const Autocast on({.recipe = Current{}});
  EXPECT_EQ(to_vector(f8), to_vector(under({}))) << "an inner region has the outer one's recipe";
  EXPECT_EQ(to_vector(half), to_vector(under({.low = bf16}))) << "unless it says its dtype";
}

struct Three : nn::Module<Three> {
  nn::Linear first{40, 40}, middle{40, 40}, last{40, 40};
  MIXTAPE_FIELDS(first, middle, last)
  Tensor forward(const Tensor& x) const { return last(middle(first(x))); }
};

TEST(Recipes, TheFirstAndTheLastWeightStayIn16Bits) {
  Three net;
  const Tensor x = spread({8, 40}, 1);
  const auto after = [&](const AutocastOptions& o) {
    const Autocast on(o);
    return to_vector(net(x));
  };
  const NoGrad off;
  const auto half = after({.low = bf16}), inner = after({.recipe = Current{}});
  EXPECT_NE(half, inner);
  const Overrides keep{{"middle", Precision::Low}};
  EXPECT_EQ(half, after({.overrides = keep, .recipe = Current{}})) << "no other layer is rounded";
  EXPECT_NE(inner, after({.recipe = Current{}, .ends = true}));
}

// A head that is the embedding, read as a view.
struct Tied : nn::Module<Tied> {
  nn::Linear first{40, 40}, middle{40, 40};
  MIXTAPE_FIELDS(first, middle)
  Tensor forward(const Tensor& x) const {
    return matmul(middle(matmul(x, first.weight.t())), first.weight.t());
  }
};

TEST(Recipes, AViewOfAnEndIsOne) {
  const Tensor x = spread({8, 40}, 1);
  const auto after = [&](const auto& net, const AutocastOptions& o) {
    const Autocast on(o);
    return to_vector(net(x));
  };
  Tied net;
  for (const bool trained : {true, false}) {
    net.first.weight.requires_grad_(trained);
    for (const bool recorded : {true, false}) {
      const ScopedValue<&ThreadState::recording> recording(recorded);
      EXPECT_EQ(after(net, {.low = bf16}), after(net, {.recipe = Current{}}))
          << trained << recorded;
      EXPECT_NE(after(net, {.low = bf16}), after(net, {.recipe = Current{}, .ends = true}));
    }
  }
  const Tensor plain = ones({2, 2});
  EXPECT_FALSE(plain.is_end());
  EXPECT_TRUE(net.first.weight.is_end());
  EXPECT_TRUE(net.first.weight.t().is_end());
  EXPECT_TRUE(net.first.weight.detach().is_end());
  EXPECT_FALSE(net.first.weight.clone().is_end());
}

TEST(Recipes, AnOverflowStaysOne) {
  for (const Case& c : cases()) {
    const Tensor x = ones({2, 64}), w = ones({3, 64});
    x.set(70, std::numeric_limits<double>::infinity());
    const Autocast on({.recipe = c.recipe});
    const Tensor y = linear(x, w);
    EXPECT_TRUE(std::isnan(y.at(3))) << c.recipe.name();
    if (c.block == 32) {
      EXPECT_EQ(y.at(0), 64);
    }
    EXPECT_EQ(sum(linear(zeros({2, 64}), w)).item(), 0) << c.recipe.name();
    EXPECT_EQ(linear(zeros({0, 64}), w).shape(), Shape({0, 3}));
  }
}

// The scale of a step is that of the largest number of the steps before.
TEST(Delayed, ScalesByTheHistory) {
  const Recipe recipe(Delayed{.history = 2});
  const Tensor w = ones({1, 1}).set_requires_grad();
  const auto step = [&](double x) {
    const Autocast on({.low = f32, .recipe = recipe});
    const double y = linear(full({1, 1}, x), w).item();
    const NoGrad off;
    EXPECT_EQ(linear(full({1, 1}, x), w).item(), y) << "evaluation notes nothing";
    return y;
  };
  EXPECT_EQ(step(448), 448);                 // scale 1, from the step itself
  EXPECT_EQ(step(7168), 448);                // beyond the largest number of the history
  EXPECT_EQ(step(7168), 7168);               // scale 16
  for (const double third_step : {0, 0, 1})  // a ring of two forgets 7168
    EXPECT_EQ(step(3.0 / 64), third_step ? 3.0 / 64 : 4.0 / 64) << "the least under 16 is 2/64";
}

// A region with the recipe begins a step wherever it stands, but for one within a step.
TEST(Delayed, AStepBeginsInAnInnerRegionToo) {
  const Tensor w = ones({1, 1}).set_requires_grad();
  const auto twice_after = [&](const Recipe& recipe, const auto& region) {
    for (const double x : {448, 7168}) region([&] { linear(full({1, 1}, x), w); });
    double y = 0;
    region([&] { y = linear(full({1, 1}, 7168), w).item(); });
    EXPECT_EQ(y, 7168);
    EXPECT_EQ(recipe.state_dict().at("linear.steps").at(0), 3);
  };
  const Recipe a(Delayed{.history = 4}), b(Delayed{.history = 4}), c(Delayed{.history = 4}),
      d(Delayed{.history = 4});
  twice_after(a, [&](const auto& run) {
    const Autocast outer({.low = bf16});
    const Autocast inner({.low = f32, .recipe = a});
    run();
  });
  twice_after(b, [&](const auto& run) {
    const NoGrad off;
    const Autocast outer({.low = f32, .recipe = b});
    const ScopedValue<&ThreadState::recording> on(true);
    const Autocast inner({.low = f32, .recipe = b});
    run();
  });
  twice_after(c, [&](const auto& run) {
    const Autocast outer({.enabled = false, .recipe = c});
    const Autocast inner({.low = f32, .enabled = true, .recipe = c});
    run();
  });
  twice_after(d, [&](const auto& run) {
    const Autocast outer({.low = f32, .recipe = d});
    const Autocast half({.low = bf16});
    {
      const Autocast inner({.low = f32, .recipe = d});
      run();
    }
    const Autocast inner({.low = f32, .recipe = d});  // the same step
    run();
  });
}

// Regions of a common step scale alike, and its number is the largest of all.
TEST(Delayed, AStepOfSeveralRegions) {
  const Recipe recipe(Delayed{.history = 2});
  const auto run = [&](double x) {
    const Autocast on({.low = f32, .recipe = recipe});
    return matmul(full({1, 1}, x), ones({1, 1})).item();
  };
  const auto sizes = [&] {
    const Tensor amax = recipe.state_dict().at("matmul.amax");
    return std::pair(amax.at(0), amax.at(1));
  };
  std::string said;
  const auto alone = [&](const std::string& own) { return std::vector{said = own}; };
  run(3);  // a step of its own
  {
    Recipe::Steps steps;
    EXPECT_FALSE(steps.begun());
    EXPECT_EQ(run(448), 3.5);  // by 3, a scale of 2^-7
    EXPECT_TRUE(steps.begun());
    EXPECT_EQ(run(100), 3.5);
    EXPECT_EQ(sizes(), std::pair(3.0, 448.0));
    steps.end(alone);
    EXPECT_FALSE(steps.begun());
    EXPECT_EQ(said, fmt::format("0 {} {} {} matmul\n", std::bit_cast<uint32_t>(448.0f),
                                std::bit_cast<uint32_t>(1.0f), std::bit_cast<uint32_t>(-1.0f)));
    EXPECT_EQ(run(448), 448);
    // Another process has seen a larger number, and what this one has not.
    steps.end([&](const std::string& own) {
      const uint32_t large = std::bit_cast<uint32_t>(900.0f);
      return std::vector{own, fmt::format("0 {0} 0 0 matmul\n0 {0} 0 0 of_others\n", large)};
    });
    EXPECT_EQ(sizes(), std::pair(900.0, 448.0));
    EXPECT_EQ(recipe.state_dict().at("of_others.steps").at(0), 1);
  }
  run(5);  // and again
  EXPECT_EQ(sizes(), std::pair(900.0, 5.0));
}

// Where nothing is known, each scales by its own numbers.
TEST(Delayed, RegionsOfAFirstStepScaleAlone) {
  const Recipe recipe(Delayed{.history = 2});
  Recipe::Steps steps;
  for (const double x : {1024.0, 3.0 / 512}) {  // the least under a scale of 4 is 4 / 512
    const Autocast on({.low = f32, .recipe = recipe});
    EXPECT_EQ(matmul(full({1, 1}, x), ones({1, 1})).item(), x);
  }
}

// A scale of 1 would make zeros of these.
TEST(Delayed, SmallNumbersAfterZerosAreSeen) {
  const Recipe recipe(Delayed{.history = 4});
  const Tensor w = ones({1, 1}).set_requires_grad();
  const double small = 0x1p-20;
  const auto at = [&](double x) {
    const Autocast on({.low = f32, .recipe = recipe});
    return linear(full({1, 1}, x), w).item();
  };
  EXPECT_EQ(at(0), 0);
  {
    const NoGrad off;
    EXPECT_EQ(at(small), small) << "evaluation scales by x then";
  }
  EXPECT_EQ(at(0), 0);
  EXPECT_EQ(at(small), small) << "and a step by its own";
  EXPECT_EQ(at(small), small);
}

TEST(Delayed, TheFirstStepScalesEachCallByAllSoFar) {
  const Recipe recipe(Delayed{.history = 4});
  const Tensor w = ones({1, 1}).set_requires_grad();
  const auto product = [&](double x) { return linear(full({1, 1}, x), w).item(); };
  {
    const Autocast on({.low = f32, .recipe = recipe});
    EXPECT_EQ(product(0), 0);
    EXPECT_EQ(product(448), 448);
    EXPECT_EQ(product(7168), 7168);
    EXPECT_EQ(product(3.0 / 64), 4.0 / 64) << "the least under 16 is 2/64";
  }
  const Autocast on({.low = f32, .recipe = recipe});
  EXPECT_EQ(product(2 * 7168), 7168) << "later steps by those before";
  EXPECT_EQ(product(2 * 7168), 7168);
}

// A checkpoint's second call counts for nothing.
TEST(Delayed, ASecondCallNotesNothing) {
  const auto run = [](bool twice) {
    const Recipe recipe(Delayed{.history = 4});
    const Tensor w = full({1, 1}, 3).set_requires_grad();
    const auto f = [&](const Tensor& t) {
      const Autocast on({.low = f32, .recipe = recipe});
      return linear(t, w);
    };
    std::vector<double> all;
    std::vector<Tensor> results;
    for (const double x : {7168, 448}) {
      const Tensor in = full({1, 1}, x).set_requires_grad();
      results.push_back(twice ? checkpoint(f, in) : f(in));
    }
    for (const Tensor& y : results) y.backward();
    all.push_back(w.grad().item());
    for (const auto& [name, t] : recipe.state_dict())
      for (const double v : to_vector(t.to(f32).to(Device()))) all.push_back(v);
    return all;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(Delayed, EvaluatesOnAnotherDevice) {
  if (DefaultDevice::current() == Device::cpu()) GTEST_SKIP() << "one device";
  const Recipe recipe(Delayed{.history = 4});
  const auto product = [&](double x, Device device) {
    const Autocast on({.low = f32, .recipe = recipe});
    return linear(full({1, 1}, x).to(device), ones({1, 1}).to(device)).item();
  };
  const Device here = DefaultDevice::current();
  product(448, Device::cpu());
  {
    const NoGrad off;
    EXPECT_EQ(product(7168, here), 448);
  }
  EXPECT_EQ(product(7168, here), 448) << "a step there, too";
  EXPECT_EQ(product(7168, Device::cpu()), 7168);
}

TEST(Delayed, MarginLeavesRoom) {
  const Recipe recipe(Delayed{.history = 1, .margin = 2});
  const Tensor w = ones({1, 1});
  const auto step = [&](double x) {
    const Autocast on({.low = f32, .recipe = recipe});
    return linear(full({1, 1}, x), w).item();
  };
  step(448);
  EXPECT_EQ(step(1792), 1792);
}

TEST(Delayed, AHistoryResumes) {
  const auto run = [](const Recipe& recipe, const Tensor& w, double x) {
    const Autocast on({.low = f32, .recipe = recipe});
    const Tensor y = linear(full({1, 1}, x), w);
    y.backward();
    return y.item();
  };
  const Tensor w = ones({1, 1}).set_requires_grad();
  Recipe one(Delayed{.history = 3}), other(Delayed{.history = 3});
  run(one, w, 448);
  run(one, w, std::numeric_limits<double>::infinity());  // not noted
  const StateDict state = one.state_dict();
  EXPECT_EQ(state.at("linear.steps").at(0), 2);
  EXPECT_EQ(state.at("linear.steps").at(2), 2);
  EXPECT_EQ(to_vector(state.at("linear.amax").to(Device())),
            (std::vector<double>{448, 0, 0, 1, 1, 0, 1, 1, 0}));
  StateDict copy;
  for (const auto& [name, t] : state) copy.emplace_back(name, t.clone());
  other.load_state_dict(copy);
  EXPECT_EQ(run(one, w, 1000), run(other, w, 1000));
  EXPECT_EQ(run(one, w, 1000), run(other, w, 1000));
}

TEST(Delayed, ALoadedHistoryScalesEvaluation) {
  const Recipe recipe(Delayed{.history = 3});
  Recipe other(Delayed{.history = 3});
  const Tensor w = ones({1, 1}).set_requires_grad();
  const auto run = [&](const Recipe& r, double x) {
    const Autocast on({.low = f32, .recipe = r});
    return linear(full({1, 1}, x), w).item();
  };
  run(recipe, 448);
  other.load_state_dict(recipe.state_dict());
  const NoGrad off;
  EXPECT_EQ(run(recipe, 7168), 448);
  EXPECT_EQ(run(other, 7168), 448);
}

// A history of shapes has no numbers, and one of numbers is not lost to shapes.
TEST(Delayed, AHistoryIsNotOfAPlanAndOfATraining) {
  const auto step = [](const Recipe& recipe, Device device) {
    const DefaultDevice here(device);
    const Autocast on({.recipe = recipe});
    matmul(ones({4, 8}), ones({8, 4}).set_requires_grad());
  };
  for (const bool plans_first : {true, false}) {
    const Recipe recipe(Delayed{.history = 4});
    const Device first = plans_first ? Device::meta() : Device::cpu(),
                 second = plans_first ? Device::cpu() : Device::meta();
    step(recipe, first);
    EXPECT_ERROR(step(recipe, second),
                 fmt::format("the recipe's history is on {}, and a product's operand on {}: make a "
                             "recipe for each model, a planned one too",
                             first, second));
    step(recipe, first);
  }
}

TEST(Recipes, NoneHasNoState) {
  Recipe none;
  EXPECT_EQ(none.name(), "none");
  EXPECT_TRUE(none.state_dict().empty());
  none.load_state_dict({});
  EXPECT_ERROR(none.load_state_dict({{"linear.amax", ones({3, 1})}}),
               "a recipe without a history (none) has no state");
}

// An operand that bf16 alone refuses is refused.
TEST(Recipes, OtherDtypesAreNotRounded) {
  const Tensor x = ones({2, 4}), w = ones({3, 4});
  const auto message = [](const AutocastOptions& o, const Tensor& a, const Tensor& b) {
    const Autocast on(o);
    try {
      linear(a, b);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  for (const DType t : {f64, i64})
    for (const Case& c : cases()) {
      const std::string half = message({.low = bf16}, x, w.to(t));
      EXPECT_NE(half, "");
      EXPECT_EQ(half, message({.recipe = c.recipe}, x, w.to(t))) << c.recipe.name();
    }
}

TEST(Recipes, BlocksOfOperandsOfEightDimensions) {
  for (const Case& c : cases()) {
    const Tensor a = spread({1, 2, 1, 1, 1, 1, 5, 50}, 1), b = spread({1, 2, 1, 1, 1, 1, 50, 7}, 2);
    const Autocast on({.low = f32, .recipe = c.recipe});
    expect_near(matmul(a, b).reshape({2, 5, 7}),
                matmul(a.reshape({2, 5, 50}), b.reshape({2, 50, 7})), 0);
  }
}

TEST(Recipes, SayWhatTheyNeed) {
  EXPECT_ERROR(Recipe(Delayed{.history = 0}), "history must be from 1 to 65536, got 0");
  EXPECT_ERROR(Recipe(Delayed{.margin = -1}), "margin must be from 0 to 64, got -1");
  EXPECT_ERROR(Autocast({.low = f16, .recipe = Mx{}}), "the recipe mx needs low = bf16 or f32");
  EXPECT_ERROR(Recipe(Mx{}).load_state_dict({{"linear.amax", ones({3, 1})}}),
               "a recipe without a history (mx) has no state");
  Recipe delayed(Delayed{.history = 4});
  EXPECT_ERROR(delayed.load_state_dict({{"linear.other", ones({3})}}), "has no 'linear.other'");
  EXPECT_ERROR(delayed.load_state_dict({{"linear.amax", ones({3, 5})}}),
               "linear.amax must have shape [3, 4], got [3, 5]");
  const Tensor amax = ones({3, 4}), steps = ones({3}, i64);
  delayed.load_state_dict({{"linear.amax", amax}, {"linear.steps", steps}});
  EXPECT_ERROR(delayed.load_state_dict({{"linear.steps", steps}}), "lacks linear.amax");
  EXPECT_ERROR(delayed.load_state_dict({{"other.amax", amax}}), "lacks other.steps");
  for (const double bad : {-1.0, double(NAN), double(INFINITY)}) {
    const Tensor one = ones({3, 4});
    one.set(5, bad);
    EXPECT_ERROR(delayed.load_state_dict({{"other.amax", one}, {"other.steps", steps}}),
                 "other.amax must be finite and >= 0");
  }
  EXPECT_ERROR(
      delayed.load_state_dict({{"other.amax", amax}, {"other.steps", from({1, -1, 0}, {3})}}),
      "other.steps must be whole numbers >= 0, got -1");
  EXPECT_TRUE(delayed.state_dict().contains("linear.amax")) << "nothing was replaced";
  const Tensor x = leaf({2, 32}), w = leaf({3, 32});
  const Autocast on({.recipe = Mx{}});
  EXPECT_ERROR(grad({sum(linear(x, w))}, {x}, {.create_graph = true}),
               "gradients of products in blocks (mx) can't be differentiated again");
}

}  // namespace recipe_test
}  // namespace mixtape::amp
