// Elementwise ops as users call them: PyTorch's edge cases, integers, errors, comparison operators,
// creation, writing in place.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "amp/autocast.h"
#include "autograd/function.h"
#include "core/allocator.h"
#include "core/format.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace elementwise_test {

void expect_close(const Tensor& got, const Values& want, double tolerance,
                  const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double x = got.at(int64_t(i)), w = want[i];
    const bool same = x == w || (std::isnan(x) && std::isnan(w));
    EXPECT_TRUE(same || std::abs(x - w) <= tolerance * std::max(1.0, std::abs(w)))
        << what << ", element " << i << ": " << x << ", PyTorch has " << w;
  }
}

// f and its gradients by fused kernels and by recorded rules, in f64 and f32.
void expect_edges(const std::string& name,
                  const std::function<Tensor(const std::vector<Tensor>&)>& f,
                  const std::vector<Values>& x, const Values& y, const std::vector<Values>& dx) {
  for (const DType dtype : {f64, f32})
    for (const bool recorded : {false, true}) {
      std::vector<Tensor> in;
      for (const Values& v : x) in.push_back(row(v, dtype).set_requires_grad());
      const Tensor out = f(in);
      const std::string what = fmt::format("{} in {}", name, dtype);
      expect_close(out, y, 1e-6, what);
      const auto g = grad({out}, in, {.gradients = {ones_like(out)}, .create_graph = recorded});
      for (size_t k = 0; k < in.size(); ++k)
        expect_close(g[k], dx[k], 1e-6, what + (recorded ? ", recorded gradient" : ", gradient"));
    }
}

// PyTorch 1.13, in f64. (Ours is the limit where PyTorch has NaN: the slopes of softsign and atan2
// at infinity; those of atan2 at (0, 0) are 0.)
const Values edges = {nan, inf, -inf, 0, 1, -2.5, 0.5, -3, 3, 6};
const struct {
  const char* name;
  Tensor (*f)(const Tensor&);
  Values y, dx;
} unary_edges[] = {
    {"log2",
     log2,
     {nan, inf, nan, -inf, 0, nan, -1, nan, 1.584962501, 2.584962501},
     {nan, 0, 0, inf, 1.442695041, -0.5770780164, 2.885390082, -0.480898347, 0.480898347,
      0.2404491735}},
    {"log10",
     log10,
     {nan, inf, nan, -inf, 0, nan, -0.3010299957, nan, 0.4771212547, 0.7781512504},
     {nan, 0, 0, inf, 0.4342944819, -0.1737177928, 0.8685889638, -0.1447648273, 0.1447648273,
      0.07238241365}},
    {"exp2",
     exp2,
     {nan, inf, 0, 1, 2, 0.1767766953, 1.414213562, 0.125, 8, 64},
     {nan, inf, 0, 0.6931471806, 1.386294361, 0.1225322679, 0.9802581435, 0.08664339757,
      5.545177444, 44.36141956}},
    {"tan",
     tan,
     {nan, nan, nan, 0, 1.557407725, 0.7470222972, 0.5463024898, 0.1425465431, -0.1425465431,
      -0.2910061914},
     {nan, nan, nan, 1, 3.425518821, 1.558042313, 1.29844641, 1.020319517, 1.020319517,
      1.084684603}},
    {"asin",
     asin,
     {nan, nan, nan, 0, 1.570796327, nan, 0.5235987756, nan, nan, nan},
     {nan, nan, nan, 1, inf, nan, 1.154700538, nan, nan, nan}},
    {"acos",
     acos,
     {nan, nan, nan, 1.570796327, 0, nan, 1.047197551, nan, nan, nan},
     {nan, nan, nan, -1, -inf, nan, -1.154700538, nan, nan, nan}},
    {"atan",
     atan,
     {nan, 1.570796327, -1.570796327, 0, 0.7853981634, -1.19028995, 0.463647609, -1.249045772,
      1.249045772, 1.405647649},
     {nan, 0, 0, 1, 0.5, 0.1379310345, 0.8, 0.1, 0.1, 0.02702702703}},
    {"sinh",
     sinh,
     {nan, inf, -inf, 0, 1.175201194, -6.050204481, 0.5210953055, -10.01787493, 10.01787493,
      201.7131574},
     {nan, inf, inf, 1, 1.543080635, 6.13228948, 1.127625965, 10.067662, 10.067662, 201.7156361}},
    {"cosh",
     cosh,
     {nan, inf, inf, 1, 1.543080635, 6.13228948, 1.127625965, 10.067662, 10.067662, 201.7156361},
     {nan, inf, -inf, 0, 1.175201194, -6.050204481, 0.5210953055, -10.01787493, 10.01787493,
      201.7131574}},
    {"sign", sign, {0, 1, -1, 0, 1, -1, 1, -1, 1, 1}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
    {"floor", floor, {nan, inf, -inf, 0, 1, -3, 0, -3, 3, 6}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
    {"ceil", ceil, {nan, inf, -inf, 0, 1, -2, 1, -3, 3, 6}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
    {"round", round, {nan, inf, -inf, 0, 1, -2, 0, -3, 3, 6}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
    {"trunc", trunc, {nan, inf, -inf, 0, 1, -2, 0, -3, 3, 6}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
    {"relu6", relu6, {nan, 6, 0, 0, 1, 0, 0.5, 0, 3, 6}, {0, 0, 0, 0, 1, 0, 1, 0, 1, 0}},
    {"hardsigmoid",
     hardsigmoid,
     {nan, 1, 0, 0.5, 0.6666666667, 0.08333333333, 0.5833333333, 0, 1, 1},
     {0, 0, 0, 0.1666666716, 0.1666666716, 0.1666666716, 0.1666666716, 0, 0, 0}},
    {"hardswish",
     hardswish,
     {nan, inf, nan, 0, 0.6666666667, -0.2083333333, 0.2916666667, 0, 3, 6},
     {nan, 1, 0, 0.5, 0.8333333333, -0.3333333333, 0.6666666667, -0.5, 1.5, 1}},
    {"selu",
     selu,
     {nan, inf, -1.758099341, 0, 1.050700987, -1.613785759, 0.5253504937, -1.670568729, 3.152102962,
      6.304205924},
     {nan, 1.050700987, 0, 1.758099341, 1.050700987, 0.144313582, 1.050700987, 0.08753061208,
      1.050700987, 1.050700987}},
    {"mish",
     mish,
     {nan, inf, nan, 0, 0.8650983883, -0.1968162039, 0.3752452113, -0.1456474613, 2.986535005,
      5.999926634},
     {nan, nan, nan, 0.6, 1.04903622, -0.1097435728, 0.8864243754, -0.09339311453, 1.021106911,
      1.000134141}},
    {"softsign",
     softsign,
     {nan, nan, nan, 0, 0.5, -0.7142857143, 0.3333333333, -0.75, 0.75, 0.8571428571},
     {nan, 0, 0, 1, 0.25, 0.08163265306, 0.4444444444, 0.0625, 0.0625, 0.02040816327}},
    {"log_sigmoid",
     log_sigmoid,
     {nan, 0, -inf, -0.6931471806, -0.3132616875, -2.578889734, -0.4740769842, -3.048587352,
      -0.04858735157, -0.002475685138},
     {nan, 0, 1, 0.5, 0.2689414214, 0.92414182, 0.3775406688, 0.9525741268, 0.04742587318,
      0.002472623157}},
    {"leaky_relu",
     [](const Tensor& x) { return leaky_relu(x, 0.1); },
     {nan, inf, -inf, 0, 1, -0.25, 0.5, -0.3, 3, 6},
     {0.1, 1, 0.1, 0.1, 1, 0.1, 1, 0.1, 1, 1}},
    {"elu",
     [](const Tensor& x) { return elu(x, 1.5); },
     {nan, inf, -1.5, 0, 1, -1.376872502, 0.5, -1.425319397, 3, 6},
     {nan, 1, 0, 1.5, 1, 0.1231274979, 1, 0.07468060255, 1, 1}},
    {"clamp",
     [](const Tensor& x) { return clamp(x, -2.5, 3); },
     {nan, 3, -2.5, 0, 1, -2.5, 0.5, -2.5, 3, 3},
     {0, 0, 0, 1, 1, 1, 1, 0, 1, 0}},
    {"clamp above",
     [](const Tensor& x) { return clamp(x, {}, 1); },
     {nan, 1, -inf, 0, 1, -2.5, 0.5, -3, 1, 1},
     {0, 0, 1, 1, 1, 1, 1, 1, 0, 0}},
    {"clamp crossed",
     [](const Tensor& x) { return clamp(x, 2, -2); },
     {nan, -2, -2, -2, -2, -2, -2, -2, -2, -2},
     {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
    {"remainder",
     [](const Tensor& x) { return remainder(x, -2); },
     {nan, nan, nan, 0, -1, -0.5, -1.5, -1, -1, 0},
     {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {"remainder by inf",
     [](const Tensor& x) { return remainder(x, inf); },
     {nan, nan, nan, 0, 1, inf, 0.5, inf, 3, 6},
     {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
    {"2^x",
     [](const Tensor& x) { return pow(2, x); },
     {nan, inf, 0, 1, 2, 0.1767766953, 1.414213562, 0.125, 8, 64},
     {nan, inf, 0, 0.6931471806, 1.386294361, 0.1225322679, 0.9802581435, 0.08664339757,
      5.545177444, 44.36141956}},
    {"0^x",
     [](const Tensor& x) { return pow(0, x); },
     {nan, 0, inf, 1, 0, inf, 0, inf, 0, 0},
     {nan, 0, -inf, 0, 0, -inf, 0, -inf, 0, 0}},
    {"(-2)^x",
     [](const Tensor& x) { return pow(-2, x); },
     {nan, inf, 0, 1, -2, nan, nan, -0.125, -8, 64},
     {nan, nan, nan, nan, nan, nan, nan, nan, nan, nan}},
    {"x^2",
     [](const Tensor& x) { return pow(x, 2); },
     {nan, inf, inf, 0, 1, 6.25, 0.25, 9, 9, 36},
     {nan, inf, -inf, 0, 2, -5, 1, -6, 6, 12}},
    {"x^3",
     [](const Tensor& x) { return pow(x, 3); },
     {nan, inf, -inf, 0, 1, -15.625, 0.125, -27, 27, 216},
     {nan, inf, inf, 0, 3, 18.75, 0.75, 27, 27, 108}},
    {"x^0.5",
     [](const Tensor& x) { return pow(x, 0.5); },
     {nan, inf, inf, 0, 1, nan, std::sqrt(0.5), nan, std::sqrt(3), std::sqrt(6)},
     {nan, 0, 0, inf, 0.5, nan, std::sqrt(0.5), nan, std::sqrt(1. / 12), std::sqrt(1. / 24)}},
    {"x^-0.5",
     [](const Tensor& x) { return pow(x, -0.5); },
     {nan, 0, 0, inf, 1, nan, std::sqrt(2), nan, std::sqrt(1. / 3), std::sqrt(1. / 6)},
     {nan, 0, 0, -inf, -0.5, nan, -std::sqrt(2), nan, -std::sqrt(1. / 108), -std::sqrt(1. / 864)}},
    {"x^0",
     [](const Tensor& x) { return pow(x, 0); },
     {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
     {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
};
const Values left = {nan, 1, 2, 0, 0, inf, -inf, 5, -5, 5},
             right = {1, nan, 2, 0, -1, inf, 3, -3, 3, 3};
const struct {
  const char* name;
  Tensor (*f)(const Tensor&, const Tensor&);
  Values y, da, db;
} binary_edges[] = {
    {"maximum",
     maximum,
     {nan, nan, 2, 0, 0, inf, 3, 5, 3, 5},
     {1, 1, 0.5, 0.5, 1, 0.5, 0, 1, 0, 1},
     {1, 1, 0.5, 0.5, 0, 0.5, 1, 0, 1, 0}},
    {"minimum",
     minimum,
     {nan, nan, 2, 0, -1, inf, -inf, -3, -5, 3},
     {1, 1, 0.5, 0.5, 0, 0.5, 1, 0, 1, 0},
     {1, 1, 0.5, 0.5, 1, 0.5, 0, 1, 0, 1}},
    {"remainder",
     remainder,
     {nan, nan, 0, nan, 0, nan, nan, -1, 1, 2},
     {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
     {nan, nan, -1, nan, 0, nan, nan, 2, 2, -1}},
    {"atan2",
     atan2,
     {nan, nan, 0.7853981634, 0, 3.141592654, 0.7853981634, -1.570796327, 2.111215827, -1.030376827,
      1.030376827},
     {nan, nan, 0.25, 0, -1, nan, 0, -0.08823529412, 0.08823529412, 0.08823529412},
     {nan, nan, -0.25, 0, 0, nan, 0, -0.1470588235, 0.1470588235, -0.1470588235}},
    {"div",
     div,
     {nan, nan, 1, nan, 0, nan, -inf, -1.666666667, -1.666666667, 1.666666667},
     {1, nan, 0.5, inf, -1, 0, 0.3333333333, -0.3333333333, 0.3333333333, 0.3333333333},
     {nan, nan, -0.5, nan, 0, nan, inf, -0.5555555556, 0.5555555556, -0.5555555556}},
    {"mul",
     mul,
     {nan, nan, 4, 0, 0, inf, -inf, -15, -15, 15},
     {1, nan, 2, 0, -1, inf, 3, -3, 3, 3},
     {nan, 1, 2, 0, 0, inf, -inf, 5, -5, 5}},
    {"pow",
     pow,
     {nan, 1, 4, 1, inf, inf, -inf, 0.008, -125, 125},
     {1, nan, 4, 0, -inf, inf, inf, -0.0048, 75, 75},
     {nan, 0, 2.772588722, 0, -inf, inf, nan, 0.0128755033, nan, 201.1797391}},
};

TEST(Elementwise, UnaryEdgesAreAsInPyTorch) {
  for (const auto& c : unary_edges)
    expect_edges(c.name, [&](const auto& x) { return c.f(x[0]); }, {edges}, c.y, {c.dx});
}
TEST(Elementwise, BinaryEdgesAreAsInPyTorch) {
  for (const auto& c : binary_edges)
    expect_edges(c.name, [&](const auto& x) { return c.f(x[0], x[1]); }, {left, right}, c.y,
                 {c.da, c.db});
}

// Selects as PyTorch does: 0 times a nonfinite number would be NaN.
TEST(Elementwise, NothingPassesWhereItIsFlat) {
  const auto all = [](double v) { return Values(20, v); };  // full vectors and a rest
  const Tensor dy = where(eq(remainder(arange(20), 2), 0.0), full({}, inf), full({}, nan));
  const auto expect_nothing = [&](const std::string& name,
                                  const std::function<Tensor(const Tensor&)>& f, double at) {
    for (const DType dtype : {f64, f32, f16})
      for (const bool recorded : {false, true}) {
        const Tensor x = row(all(at), dtype).set_requires_grad();
        const Tensor y = f(x);
        const auto g = grad({y}, {x}, {.gradients = {dy.to(dtype)}, .create_graph = recorded});
        EXPECT_EQ(to_vector(g[0]), all(0)) << fmt::format("{} at {} in {}", name, at, dtype);
      }
  };
  expect_nothing("relu", relu, -2);
  expect_nothing("relu6", relu6, 7);
  expect_nothing("hardsigmoid", hardsigmoid, 5);
  expect_nothing("hardswish", hardswish, -4);
  const auto within = [](const Tensor& x) { return clamp(x, 0.0, 1.0); };
  expect_nothing("clamp", within, -2);
  expect_nothing("clamp", within, 2);
  const auto beside = [](const Tensor& x) { return full({20}, 1, x.dtype()); };
  expect_nothing("maximum", [&](const Tensor& x) { return maximum(beside(x), x); }, 0);
  expect_nothing("minimum", [&](const Tensor& x) { return minimum(x, beside(x)); }, 2);
  expect_nothing(
      "linear",
      [](const Tensor& x) {
        return linear(unsqueeze(x, 1), full({1, 1}, 1, x.dtype()), {},
                      {.activation = Activation::Relu})
            .reshape({20});
      },
      -2);

  // A derivative that happens to be 0 has a derivative of its own.
  const auto second = [](const Tensor& y, const Tensor& x, const Tensor& by) {
    return grad({sum(grad({sum(y)}, {x}, {.create_graph = true})[0])}, {by})[0].item();
  };
  const Tensor a = row({-2, 3}, f64).set_requires_grad(), slope = row({0}, f64).set_requires_grad(),
               at = row({-1.5}, f64).set_requires_grad();
  EXPECT_EQ(second(prelu(a, slope), a, slope), 1);
  EXPECT_NEAR(second(hardswish(at), at, at), 1.0 / 3, 1e-12);

  const Tensor x = row({-1, 4}, f64).set_requires_grad();
  sum(sqrt(relu(x))).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0.25}));
  const Tensor w = row({0.5}, f64).set_requires_grad(), p = row({1, 2}, f64);
  const auto dw = grad({prelu(p, w)}, {w}, {.gradients = {row({inf, nan}, f64)}});
  EXPECT_EQ(to_vector(dw[0]), Values{0});
}

TEST(Elementwise, ZerosKeepTheirSign) {
  const Tensor zero = row({-0.0, -0.25}, f32);
  for (const auto f : {sin, tan, asin, atan, sinh, tanh, round, trunc, ceil, relu6, softsign})
    EXPECT_TRUE(std::signbit(f(zero).at(0)));
  for (const auto f : {round, trunc, ceil}) EXPECT_TRUE(std::signbit(f(zero).at(1)));
  EXPECT_TRUE(std::signbit(remainder(zero, 3).at(0)));
  EXPECT_EQ(atan2(zero, zero).at(0), -static_cast<double>(std::acos(-1.0f)));
}

TEST(Elementwise, IntegersDivideInF32) {
  const Tensor n = row({7, -7, 0}, i64), hits = eq(n, row({7, 7, 0}, i64));
  for (const Tensor& y : {n / 2.0, n / row({2, 2, 2}, u8), n.to(i32) / row({2, 2, 2}, i64)}) {
    EXPECT_EQ(y.dtype(), f32);
    EXPECT_EQ(to_vector(y), (Values{3.5, -3.5, 0}));
  }
  EXPECT_EQ(to_vector(7.0 / row({2, -4}, i32)), (Values{3.5, -1.75}));
  EXPECT_EQ((sum(hits) / 4.0).item(), 0.5);
  EXPECT_EQ(to_vector(hits / 2.0), (Values{0.5, 0, 0.5}));
  EXPECT_EQ(to_vector(n / row({0, 0, 1}, i64)), (Values{inf, -inf, 0}));
}

TEST(Elementwise, WholeQuotientsGoDown) {
  const Tensor n = row({7, -7, -8, 0}, i64), q = floor_divide(n, 4);
  EXPECT_EQ(q.dtype(), i64);
  EXPECT_EQ(to_vector(q), (Values{1, -2, -2, 0}));
  EXPECT_EQ(to_vector(floor_divide(n, -4)), (Values{-2, 1, 2, 0}));
  EXPECT_EQ(to_vector(floor_divide(row({255}, u8), 2)), (Values{127}));
  EXPECT_EQ(to_vector(floor_divide(row({7, -7}, f16), 2)), (Values{3, -4}));
  EXPECT_EQ(to_vector(floor_divide(n, row({-4, 2, 3, 0}, i64))), (Values{-2, -4, -3, 0}));
  EXPECT_EQ(floor_divide(n.reshape({2, 2}), row({5, 0}, i64)).at(1), 0) << "by zero";
  EXPECT_ERROR(floor_divide(row({1}, u8), 300),
               "floor_divide_scalar: 300 does not fit elements of u8");
  EXPECT_ERROR(floor_divide(n, row({2}, f32)),
               "floor_divide: inputs have different dtypes: i64 and f32");
  EXPECT_ERROR(floor_divide(n, 0), "floor_divide: division of i64 elements by zero");
  EXPECT_ERROR(floor_divide(n, 0.5), "floor_divide_scalar: cannot combine i64 elements with 0.5");
  EXPECT_ERROR(floor_divide(eq(n, 0), 2),
               "floor_divide_scalar: elements must be numbers, got bool");
}

// f64 has no odd numbers above 2^53.
TEST(Elementwise, WholeQuotientsAreExact) {
  using Numbers = std::vector<int64_t>;
  const int64_t odd = (int64_t{1} << 53) + 1, low = std::numeric_limits<int64_t>::min(),
                high = std::numeric_limits<int64_t>::max();
  const Tensor n = from_data(Numbers{odd, -odd, high, low, low, low}),
               by = from_data(Numbers{1, 3, high - 1, 3, -1, 0});
  EXPECT_EQ(to_vector<int64_t>(floor_divide(n, 1)), to_vector<int64_t>(n));
  EXPECT_EQ(to_vector<int64_t>(floor_divide(n, by)),
            (Numbers{odd, -odd / 3, 1, low / 3 - 1, low, 0}));
  const Tensor small = from_data(std::vector<int32_t>{7, -7, std::numeric_limits<int32_t>::min()});
  EXPECT_EQ(to_vector(floor_divide(small, -1)), (Values{-7, 7, -0x1p31})) << "wraps around";
}

TEST(Elementwise, HalvesGoToEven) {
  EXPECT_EQ(to_vector(round(row({-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e30}, f64))),
            (Values{-2, -2, 0, 0, 2, 2, 1e30}));
}

TEST(Elementwise, SmallResultsKeepTheirDigits) {
  EXPECT_NEAR(mish(row({-80}, f64)).item() / (-80 * std::exp(-80)), 1, 1e-12);
  EXPECT_NEAR(log_sigmoid(row({80}, f64)).item() / -std::exp(-80), 1, 1e-12);
  EXPECT_NEAR(sinh(row({1e-6}, f32)).item(), 1e-6, 1e-12);
  EXPECT_EQ(mish(row({1000}, f32)).item(), 1000);
}

TEST(Elementwise, IntegersWherePyTorchTakesThem) {
  const Tensor x = row({-7, 0, 7, 2}, i64);
  const auto give = [&](const Tensor& y, const Values& want) {
    EXPECT_EQ(y.dtype(), i64);
    EXPECT_EQ(to_vector(y), want);
  };
  give(abs(x), {7, 0, 7, 2});
  give(-x, {7, 0, -7, -2});
  give(square(x), {49, 0, 49, 4});
  give(sign(x), {-1, 0, 1, 1});
  for (const auto f : {floor, ceil, round, trunc}) give(f(x), {-7, 0, 7, 2});
  give(relu(x), {0, 0, 7, 2});
  give(clamp(x, -1, 1), {-1, 0, 1, 1});
  give(clamp(x, {}, 1), {-7, 0, 1, 1});
  give(clamp(x, -1), {-1, 0, 7, 2});
  give(remainder(x, 3), {2, 0, 1, 2});
  give(remainder(x, -3), {-1, 0, -2, -1});
  give(remainder(x, 0), {0, 0, 0, 0});
  give(pow(2, x), {0, 1, 128, 4});
  give(addcmul(x, x, x, 2), {91, 0, 105, 10});
  EXPECT_EQ(to_vector(abs(row({200}, u8))), Values{200});
  EXPECT_EQ(to_vector(-row({3}, u8)), Values{253});
  for (const DType t : {i64, i32, u8}) {
    const Tensor n = row({0, 3}, t);
    EXPECT_EQ(to_vector(isnan(n)), (Values{0, 0}));
    EXPECT_EQ(to_vector(isinf(n)), (Values{0, 0}));
    EXPECT_EQ(to_vector(isfinite(n)), (Values{1, 1}));
    EXPECT_EQ(to_vector(logical_not(n)), (Values{1, 0}));
    EXPECT_EQ(to_vector(logical_xor(n, row({3, 0}, t))), (Values{1, 1}));
  }
  EXPECT_EQ(to_vector(logical_not(row({0, 1}, boolean))), (Values{1, 0}));
}

TEST(Elementwise, DividesTowardZeroOrDown) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType t : {f32, f16, i64, i32}) {
    const Tensor a = row({7, -7, 7, -7, 0, 6}, t), b = row({2, 2, -2, -2, -3, 3}, t);
    EXPECT_EQ(to_vector(div(a, b, "trunc")), (Values{3, -3, -3, 3, 0, 2}));
    EXPECT_EQ(to_vector(div(a, b, "floor")), to_vector(floor_divide(a, b)));
    EXPECT_EQ(to_vector(div(a, -2, "trunc")), (Values{-3, 3, -3, 3, 0, -3}));
    EXPECT_EQ(div(a, b, "trunc").dtype(), t);
  }
  EXPECT_EQ(to_vector(div(row({200, 7}, u8), row({9, 0}, u8), "trunc")), (Values{22, 0}));
  EXPECT_EQ(div(row({2047.5}), row({1}), "trunc").item(), 2047);
  EXPECT_EQ(div(row({2046}, f16), row({1 - 0x1p-11}, f16), "trunc").item(), 2046)
      << "not rounded to f16 first";
  EXPECT_EQ(to_vector(div(row({1, -1}), row({0, 0}), "trunc")), (Values{inf, -inf}));
  EXPECT_EQ(to_vector(div(row({inf, -inf, 3}), row({2, 2, -inf}), "trunc")),
            (Values{inf, -inf, -0.0}));
  // Where a quotient is infinite, the result's slope is 0 as elsewhere.
  const Tensor a = row({1, 2, inf}).set_requires_grad(), b = row({0, 3, 2}).set_requires_grad();
  for (const auto mode : {"trunc", "floor"}) {
    for (const Tensor& slope : grad({sum(div(a, b, mode))}, {a, b}))
      EXPECT_EQ(to_vector(slope), (Values{0, 0, 0})) << mode;
    EXPECT_EQ(to_vector(grad({sum(div(a, 0, mode))}, {a})[0]), (Values{0, 0, 0})) << mode;
  }
  EXPECT_EQ(to_vector(div(row({-inf, inf}), -0.5, "trunc")), (Values{inf, -inf}));
  EXPECT_EQ(to_vector(div(row({1, 0}, boolean), row({-0.4, 2}), "trunc")), (Values{-2, 0}));
  EXPECT_EQ(div(row({-0x1p63}, i64), 2, "trunc").item(), -0x1p62) << "negated, it does not fit";
  EXPECT_EQ(div(row({-0x1p31}, i32), row({2}, i32), "trunc").item(), -0x1p30);
  EXPECT_ERROR(div(row({1}), row({2}), "ceil"),
               "div: rounding_mode must be \"floor\" or \"trunc\", got \"ceil\"");
}

TEST(Elementwise, RoundsToDecimals) {
  EXPECT_EQ(to_vector(round(row({1.25, -1.35, 2.675}, f64), 1)), (Values{1.2, -1.4, 2.7}));
  EXPECT_EQ(to_vector(round(row({1250, -1350, 49}, i64), -2)), (Values{1200, -1400, 0}));
  EXPECT_EQ(to_vector(round(row({7, -3}, i32), 2)), (Values{7, -3}));
  EXPECT_EQ(round(row({60000}, f16), 2).item(), row({60000}, f16).item()) << "within f16";
  EXPECT_EQ(round(row({1e300}, f64), 20).item(), 1e300) << "beyond f64";
  EXPECT_ERROR(round(row({1}), 301), "round: decimals must be from -300 to 300, got 301");
}

TEST(Elementwise, ComparesWholeTensors) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Tensor x = row({1, -2, inf, nan, 1000}, f32);
  EXPECT_EQ(to_vector(isclose(x, row({1.00002, -2, inf, nan, 1000.009}, f32))),
            (Values{0, 1, 1, 0, 1}));
  EXPECT_EQ(to_vector(isclose(x, row({1.1, -2.1, -inf, 0, inf}, f32), 0, 0.2)),
            (Values{1, 1, 0, 0, 0}));
  EXPECT_FALSE(allclose(x, x)) << "NaN is close to nothing";
  EXPECT_TRUE(allclose(x, x, 0, 0, true));
  EXPECT_FALSE(allclose(x, row({1, -2, inf, 0, 1000}), 0, 1e9, true));
  // In f64: f16 would round the tolerance to zero, and 2048 + 1 to 2048.
  EXPECT_TRUE(allclose(row({0.25}, f16), row({0.25006}, f32), 0, 1e-4));
  EXPECT_FALSE(allclose(row({2048}, f16), row({2049}, i64), 0, 0));
  EXPECT_TRUE(allclose(ones({2, 3}), ones({3}))) << "broadcasts";
  EXPECT_TRUE(allclose(zeros({0}), ones({0})) && allclose(row({1}, boolean), row({1}, u8)));

  EXPECT_TRUE(equal(ones({2, 3}), ones({2, 3})));
  EXPECT_FALSE(equal(x, x)) << "NaN";
  EXPECT_FALSE(equal(ones({3}), ones({1, 3})));
  EXPECT_FALSE(equal(ones({3}), ones({3}).to(f16)));
  EXPECT_TRUE(equal(row({}, i64), row({}, i64)));
  const Tensor w = ones({2}).set_requires_grad();
  EXPECT_TRUE(equal(w, ones({2})) && !isclose(w, w).requires_grad());
}

// A bool beside numbers is 0 or 1 of their dtype.
TEST(Elementwise, TakesBoolsAsNumbers) {
  const Tensor mask = row({1, 0, 1}, boolean), other = row({1, 1, 0}, boolean);
  for (const DType t : {f64, f32, f16, bf16, i64, i32, u8}) {
    const Tensor x = row({2, 3, 4}, t);
    const auto gives = [&](const Tensor& y, const Values& want) {
      EXPECT_EQ(y.dtype(), t);
      EXPECT_EQ(to_vector(y), want) << t;
    };
    gives(x * mask, {2, 0, 4});
    gives(mask * x, {2, 0, 4});
    gives(x + mask, {3, 3, 5});
    gives(x - mask, {1, 3, 3});
    gives(maximum(mask, x), {2, 3, 4});
    gives(pow(x, mask), {2, 1, 4});
    gives(where(other, mask, x), {1, 0, 4});
    gives(cat({mask, x}), {1, 0, 1, 2, 3, 4});
    gives(addcmul(x, mask, x), {4, 3, 8});
    gives(clone(x) *= mask, {2, 0, 4});
    gives(clone(x) += mask, {3, 3, 5});
    gives(scatter(x, 0, row({0}, i64), row({1}, boolean)), {1, 3, 4});
    EXPECT_EQ(to_vector(eq(mask, x / x)), (Values{1, 0, 1}));
    EXPECT_EQ(to_vector(logical_and(mask, x)), (Values{1, 0, 1}));
  }
  EXPECT_EQ(to_vector(row({6, 6, 6}, f64) / (mask + 1.0).to(f64)), (Values{3, 6, 3}));
  EXPECT_EQ(to_vector(matmul(ones({1, 3}), mask)), Values{2});
  EXPECT_EQ(mse_loss(row({1, 1, 1}, f32), mask).item<float>(), 1.0f / 3);
  EXPECT_EQ(binary_cross_entropy(row({1, 0, 1}, f32), mask).item(), 0);

  const Tensor w = row({2, 3, 4}, f32).set_requires_grad();
  sum(w * mask * w + mask).backward();
  EXPECT_EQ(to_vector(w.grad()), (Values{4, 0, 8}));
  const amp::Autocast on({.low = bf16});
  EXPECT_EQ((ones({3}, bf16) * mask).dtype(), bf16);

  // Bools alone, as in NumPy and PyTorch: sums and products are bools, differences errors.
  for (const Tensor& y : {mask + other, maximum(mask, other), clone(mask) += other}) {
    EXPECT_EQ(y.dtype(), boolean);
    EXPECT_EQ(to_vector(y), (Values{1, 1, 1}));
  }
  for (const Tensor& y : {mask * other, minimum(mask, other), clone(mask) *= other}) {
    EXPECT_EQ(y.dtype(), boolean);
    EXPECT_EQ(to_vector(y), (Values{1, 0, 0}));
  }
  EXPECT_ERROR(mask - other, "sub: elements must be numbers, got bool");
  EXPECT_EQ((mask / other).dtype(), f32);
  EXPECT_EQ(sum(mask).dtype(), i64);
  // Beside a number, f32.
  EXPECT_EQ(to_vector(1.0 - mask), (Values{0, 1, 0}));
  EXPECT_EQ(to_vector(mask * 2.5 + 1), (Values{3.5, 1, 3.5}));
  EXPECT_EQ((mask * 2.0).dtype(), f32);
}

TEST(Elementwise, BitsOfIntegersAndBools) {
  for (const DType t : {i64, i32, u8}) {
    const Tensor a = row({12, 7, 255}, t), b = row({10, 1, 15}, t);
    EXPECT_EQ(to_vector(bitwise_and(a, b)), (Values{8, 1, 15}));
    EXPECT_EQ(to_vector(bitwise_or(a, b)), (Values{14, 7, 255}));
    EXPECT_EQ(to_vector(bitwise_xor(a, b)), (Values{6, 6, 240}));
    EXPECT_EQ(to_vector(bitwise_not(a)), t == u8 ? (Values{243, 248, 0}) : (Values{-13, -8, -256}));
    EXPECT_EQ(to_vector(bitwise_right_shift(a, 2)), (Values{3, 1, 63}));
    EXPECT_EQ(bitwise_and(a, b).dtype(), t);
  }
  // As in PyTorch, shifts by too many bits leave none.
  const Tensor n = row({-5, 5}, i32);
  EXPECT_EQ(to_vector(bitwise_left_shift(n, 31)), (Values{-0x1p31, -0x1p31}));
  for (const double by : {32.0, 64.0, -1.0}) {
    EXPECT_EQ(to_vector(bitwise_left_shift(n, by)), (Values{0, 0})) << by;
    EXPECT_EQ(to_vector(bitwise_right_shift(n, by)), (Values{-1, 0})) << by;
  }
  const Tensor yes = row({1, 1, 0}, boolean), no = row({1, 0, 0}, boolean);
  EXPECT_EQ(to_vector(bitwise_and(yes, no)), (Values{1, 0, 0}));
  EXPECT_EQ(to_vector(bitwise_or(yes, no)), (Values{1, 1, 0}));
  EXPECT_EQ(to_vector(bitwise_xor(yes, no)), (Values{0, 1, 0}));
  EXPECT_EQ(to_vector(bitwise_not(yes)), (Values{0, 0, 1}));
  EXPECT_ERROR(bitwise_and(ones({1}), ones({1})),
               "bitwise_and: elements must be integers or bools, got f32");
  EXPECT_ERROR(bitwise_not(ones({1}, f16)),
               "bitwise_not: elements must be integers or bools, got f16");
  EXPECT_ERROR(bitwise_or(n, 0.5), "bitwise_or_scalar: cannot combine i32 elements with 0.5");
}

TEST(Elementwise, CommonDivisorsAndMultiples) {
  for (const DType t : {i64, i32, u8}) {
    const Tensor a = row({12, 0, 7, 0, 100}, t), b = row({18, 5, 7, 0, 75}, t);
    EXPECT_EQ(to_vector(gcd(a, b)), (Values{6, 5, 7, 0, 25}));
    EXPECT_EQ(to_vector(lcm(a, b)), (Values{36, 0, 7, 0, t == u8 ? 44.0 : 300.0}));
    EXPECT_EQ(lcm(a, b).dtype(), t);
  }
  EXPECT_EQ(to_vector(gcd(row({-12, 12, -4}, i64), row({18, -18, -6}, i64))), (Values{6, 6, 2}));
  EXPECT_EQ(to_vector(lcm(row({-4, 4}, i32), row({6, -6}, i32))), (Values{12, 12}));
  // Consecutive Fibonacci numbers take the most steps; products are not formed.
  const Tensor large = from_data(std::vector<int64_t>{4660046610375530309, 7540113804746346429});
  EXPECT_EQ(gcd(large[0], large[1]).item<int64_t>(), 1);
  EXPECT_TRUE(equal(lcm(large, large), large));
  EXPECT_EQ(gcd(full({}, -0x1p63, i64), full({}, -1, i64)).item<int64_t>(), 1);
  const Tensor yes = row({1, 1, 0}, boolean), no = row({1, 0, 0}, boolean);
  EXPECT_EQ(to_vector(gcd(yes, no)), (Values{1, 1, 0}));
  EXPECT_EQ(to_vector(lcm(yes, no)), (Values{1, 0, 0}));
  EXPECT_ERROR(gcd(ones({1}), ones({1})), "gcd: elements must be integers or bools, got f32");
  EXPECT_ERROR(lcm(ones({1}), ones({1})), "lcm: gcd: elements must be integers or bools, got f32");
}

TEST(Elementwise, SignsAndRemainders) {
  EXPECT_EQ(to_vector(copysign(row({1, -2, 3}, f32), row({-0.0, 1, -4}, f32))),
            (Values{-1, 2, -3}));
  EXPECT_EQ(to_vector(copysign(row({3, -4}, i64), -1)), (Values{-3, -4}));
  EXPECT_EQ(copysign(row({3}, i64), row({-1}, i64)).dtype(), f32);
  EXPECT_EQ(to_vector(fmod(row({-7, 7, 7}, i64), row({3, -3, 0}, i64))), (Values{-1, 1, 0}));
  EXPECT_EQ(to_vector(fmod(row({-7, 7}, f32), 3)), (Values{-1, 1}));
  EXPECT_EQ(to_vector(frac(row({-1.25, 2.5}, f32))), (Values{-0.25, 0.5}));
}

TEST(Elementwise, SumsOfEqualInfinitiesOfExponentials) {
  const Tensor a = row({inf, -inf, inf, -inf, 3}, f32).set_requires_grad(),
               b = row({inf, -inf, -inf, 2, 3}, f32);
  const Values natural = to_vector(logaddexp(a, b)), binary = to_vector(logaddexp2(a, b));
  for (const Values& y : {natural, binary}) {
    EXPECT_EQ(y[0], inf);
    EXPECT_EQ(y[1], -inf);
    EXPECT_EQ(y[2], inf);
    EXPECT_EQ(y[3], 2);
  }
  EXPECT_NEAR(natural[4], 3 + std::log(2), 1e-6);
  EXPECT_EQ(binary[4], 4);
  EXPECT_EQ(to_vector(grad({sum(logaddexp(a, b))}, {a})[0]), (Values{0.5, 0.5, 1, 0, 0.5}));
}

TEST(Elementwise, RefusesWhatHasNoAnswer) {
  const Tensor n = arange(0, 3), truth = ones({3}, boolean);
  EXPECT_ERROR(lgamma(n), "lgamma: elements must be floats, got i64");
  EXPECT_ERROR(exp2(n), "exp2: elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_ERROR(leaky_relu(n), "leaky_relu: elements must be floats, got i64");
  EXPECT_ERROR(lerp(n, n, 1), "lerp: elements must be floats, got i64");
  EXPECT_ERROR(atan2(n, n), "atan2: elements must be floats, got i64");
  EXPECT_ERROR(abs(truth),
               "abs: elements must be numbers, got bool (convert them to a number dtype)");
  EXPECT_ERROR(remainder(truth, 2), "remainder_scalar: elements must be numbers, got bool");
  EXPECT_ERROR(addcdiv(truth, truth, truth), "addcdiv: elements must be floats, got bool");
  EXPECT_ERROR(clamp(n, 0.5),
               "clamp: cannot combine i64 elements with 0.5 (convert them to a float dtype)");
  EXPECT_ERROR(clamp(n, nan, {}), "clamp: cannot combine i64 elements with nan");
  EXPECT_ERROR(addcmul(n, n, n, 1.5), "addcmul: cannot combine i64 elements with 1.5");
  EXPECT_ERROR(add(n, inf), "add_scalar: cannot combine i64 elements with inf");
  EXPECT_ERROR(mul(n, 1e30), "mul_scalar: cannot combine i64 elements with 1e+30");
  EXPECT_EQ(to_vector(clamp(n, 1, inf)), (Values{1, 1, 2}));
  EXPECT_ERROR(clamp(ones({2}), std::nullopt, {}), "clamp: no bound is given");
  EXPECT_ERROR(clamp(ones({2}), Tensor(), {}), "clamp: no bound is given");
  EXPECT_ERROR(clamp(ones({2}), nan, 1), "clamp: bounds must not be NaN, got nan and 1");
  EXPECT_ERROR(clamp(ones({2}), {}, nan), "clamp: bounds must not be NaN, got -inf and nan");
  EXPECT_ERROR(glu(ones({2, 3})), "glu: dimension -1 has 3 elements, which cannot be halved");
  EXPECT_ERROR(glu(ones({2, 3}), 2), "glu: dimension 2 is out of range for rank 2");
  EXPECT_ERROR(lerp(ones({2}), ones({2}, f64), 1),
               "lerp: inputs have different dtypes: f32 and f64");
  EXPECT_ERROR(addcmul(ones({2}), ones({3}), ones({2})), "addcmul");
}

TEST(Elementwise, ExpandKeepsSizesOfMinusOne) {
  EXPECT_EQ(expand(ones({2, 1, 3}), {4, -1, 5, -1}).shape(), (Shape{4, 2, 5, 3}));
  EXPECT_ERROR(expand(ones({2}), {-1, 2}), "expand");
}

TEST(Elementwise, AFillBeyondF32Saturates) {
  EXPECT_EQ(masked_fill(ones({1}), ones({1}, boolean), -1e300).item(), -0x1.fffffep127);
  EXPECT_EQ(masked_fill(ones({1}), ones({1}, boolean), -inf).item(), -inf);
}

TEST(Elementwise, VariancesDoNotFeelTheRoundingOfTheMean) {
  EXPECT_EQ(var(from({1e8, 1e8 + 8}, {2})).item(), 32);
  EXPECT_LT(stddev(full({10000}, 0.1)).item(), 1e-9);
  const Tensor x = from({1e8, 1e8 + 8, 1e8 + 16}, {3}).set_requires_grad();
  var(x).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{-8, 0, 8}));
}

TEST(Elementwise, IntegersAndNumbersThatTheyCannotHold) {
  const Tensor x = from({1, 2}, {2}, i32), bytes = from({1, 2}, {2}, u8);
  EXPECT_ERROR(x + 3e9, "3000000000 does not fit elements of i32");
  EXPECT_ERROR(bytes * 300.0, "300 does not fit elements of u8");
  EXPECT_ERROR(pow(x, -2.0), "pow: cannot raise i32 elements to the power -2");
  EXPECT_EQ(to_vector(pow(x, 2.0)), (std::vector<double>{1, 4}));
}

TEST(Elementwise, NamesTheOpOfAnUndefinedTensor) {
  const Tensor none, x = from({1, 2}, {2});
  EXPECT_ERROR(none * x, "mul: the tensor is undefined");
  EXPECT_ERROR(none * 2, "mul_scalar: the tensor is undefined");
  EXPECT_ERROR(none / x, "div: the tensor is undefined");
  EXPECT_ERROR(none / 2, "div_scalar: the tensor is undefined");
  EXPECT_ERROR(pow(none, 2), "pow_scalar: the tensor is undefined");
  EXPECT_ERROR(none += x, "add_: the tensor is undefined");
  EXPECT_ERROR(x += none, "add_: the tensor is undefined");
  EXPECT_ERROR(none -= 1, "sub_: the tensor is undefined");
}

// Squares and means of half numbers are not rounded to half in between.
TEST(Elementwise, VariancesOfNarrowNumbers) {
  const auto of = [](std::initializer_list<double> x, DType t) {
    return from(x, {int64_t(x.size())}, t).set_requires_grad();
  };
  const Tensor far = of({1000, -1000, 1000, -1000}, f16),
               near = of({1e-4, -1e-4, 1e-4, -1e-4}, f16);
  EXPECT_NEAR(stddev(far).item(), 1154.7, 0.5);
  EXPECT_NEAR(stddev(near).item(), 1.1547e-4, 1e-7);
  EXPECT_EQ(stddev(far).dtype(), f16);
  EXPECT_EQ(var(of({1000, 1000, 1000, 1004}, bf16)).item(), 4);
  EXPECT_EQ(var(of({2048, 2048, 2048, 2050}, f16)).item(), 1);
  stddev(far).backward();
  EXPECT_NEAR(far.grad().at(0), 0.2887, 1e-3);
}

TEST(Elementwise, ChoicesAreMadeByBools) {
  const Tensor x = ones({3});
  EXPECT_ERROR(where(x, x, x), "where: the mask must be bool, got f32");
  EXPECT_ERROR(masked_fill(x, ones({3}, i64), 0), "masked_fill: the mask must be bool, got i64");
}

TEST(Elementwise, IntegersAreNotFilledWithFractions) {
  const Tensor x = from({1, 2}, {2}, i64), one = from({1, 0}, {2}, boolean);
  EXPECT_ERROR(where(one, x, 0.5), "where: 0.5 does not fit elements of i64");
  EXPECT_ERROR(where(one, 0.5, x), "where: 0.5 does not fit elements of i64");
  EXPECT_ERROR(masked_fill(x, one, 0.5), "masked_fill: 0.5 does not fit elements of i64");
  const Tensor bytes = row({0, 200}, u8);
  EXPECT_ERROR(clamp(bytes, {}, -1), "clamp: -1 does not fit elements of u8");
  EXPECT_ERROR(clamp(bytes, 300, {}), "clamp: 300 does not fit elements of u8");
  EXPECT_EQ(to_vector(clamp(bytes, -1, 300)), (Values{0, 200}));
  EXPECT_EQ(to_vector(clamp(bytes, 300, 100)), (Values{100, 100}));
  EXPECT_EQ(to_vector(where(one, x, 7)), (Values{1, 7}));
  EXPECT_EQ(to_vector(masked_fill(x, one, 7)), (Values{7, 2}));
}

TEST(Elementwise, RemainderSlopesByTheQuotientItTook) {  // 1 / 0.1 rounds up to 10
  const Tensor a = row({1, -1, 5, -5, 5}, f32), b = row({0.1, 0.1, -inf, inf, inf}, f32);
  b.set_requires_grad();
  EXPECT_EQ(to_vector(grad({sum(remainder(a, b))}, {b})[0]), (Values{-9, 10, 1, 1, 0}));
  const Tensor far = row({3e38, -3e38}, f32), by = row({-2e38, 2e38}, f32).set_requires_grad();
  EXPECT_EQ(to_vector(grad({sum(remainder(far, by))}, {by})[0]), (Values{2, 2}));
}

TEST(Elementwise, LerpMeetsBothEnds) {
  const Tensor a = row({0.1, -7}, f32), b = row({0.3, 1e8}, f32);
  EXPECT_EQ(to_vector(lerp(a, b, 0)), to_vector(a));
  EXPECT_EQ(to_vector(lerp(a, b, 1)), to_vector(b));
}

TEST(Elementwise, NarrowCompositesRoundOnce) {
  const Tensor x = row({256}, bf16), a = row({1.0078125}, bf16), b = row({127}, bf16);
  EXPECT_EQ(addcmul(x, a, b).item(), full({}, 256 + 1.0078125 * 127, bf16).item());
}

TEST(Elementwise, FloorDivideIsExact) {  // 0.7f / 0.1f rounds up to 7
  EXPECT_EQ(to_vector(floor_divide(row({0.7, -0.7, 0.8}, f32), 0.1)), (Values{6, -7, 8}));
  EXPECT_EQ(to_vector(floor_divide(row({0.9, 1, -1}, f64), 0.1)), (Values{8, 9, -10}));
  EXPECT_EQ(to_vector(floor_divide(row({0.9, 1}, f64), -0.1)), (Values{-9, -10}));
  EXPECT_EQ(floor_divide(row({0.1}, f16), 0.1).item(), 0) << "f16's 0.1 is below";
  EXPECT_EQ(to_vector(floor_divide(row({-5, 5, 0}, f32), inf)), (Values{-1, 0, 0}));
  for (const DType dtype : {f64, f32, f16, bf16}) {
    const Tensor x = row({-inf, -5, 0, 5, inf}, dtype);
    EXPECT_EQ(to_vector(nan_to_num(floor_divide(x, inf), 7)), (Values{7, -1, 0, 0, 7}));
    EXPECT_EQ(to_vector(nan_to_num(floor_divide(x, -2), 7)), (Values{7, 2, 0, -3, 7}));
    EXPECT_EQ(to_vector(nan_to_num(floor_divide(x, 0), 7, inf, -inf)),
              (Values{-inf, -inf, 7, inf, inf}));
    EXPECT_EQ(floor_divide(row({100}, dtype), row({3}, dtype)).item(), 33) << name(dtype);
  }
  const Tensor a = row({0.7, -0.7, 5, -5}, f32), b = row({0.1, 0.1, -inf, 0}, f32);
  for (const Tensor& t : {a, b}) t.set_requires_grad();
  EXPECT_EQ(to_vector(floor_divide(a, b)), (Values{6, -7, -1, -inf}));
  for (const Tensor& g : grad({sum(floor_divide(a, b))}, {a, b}))
    EXPECT_EQ(to_vector(g), (Values{0, 0, 0, 0}));
}

TEST(Elementwise, StepsOfNarrowActivationsAreF32) {
  for (const DType dtype : {f16, bf16}) {
    const Tensor x = row({-1e-3, -0.5, 0.1003}, dtype).set_requires_grad();
    const auto expect_exact = [&](const auto& f) {
      const Tensor wide = x.to(f64).detach().clone().set_requires_grad(), y = f(x), exact = f(wide);
      EXPECT_EQ(to_vector(y), to_vector(exact.to(dtype)));
      EXPECT_EQ(to_vector(grad({sum(y)}, {x})[0]),
                to_vector(grad({sum(exact)}, {wide})[0].to(dtype)));
    };
    for (const double alpha : {0.3, 1e4})
      expect_exact([&](const Tensor& t) { return celu(t, alpha); });
    expect_exact([](const Tensor& t) { return softshrink(t, 0.1); });
  }
}

TEST(Elementwise, LerpAddsUnroundedGradients) {
  const Tensor a = zeros({2, 1}, f16), b = zeros({1}, f16).set_requires_grad(),
               dy = from({0.9375, -0.875}, {2, 1}, f16);
  const Tensor g = grad({lerp(a, b, 0.3)}, {b}, {.gradients = {dy}})[0];
  EXPECT_EQ(g.item(), full({}, 0.3 * 0.0625, f16).item());
}

TEST(Elementwise, SlopesOfNormsOfSmallOrders) {
  const auto slopes = [](const Values& x, double p, DType dtype) {
    const Tensor t = row(x, dtype).set_requires_grad();
    return to_vector(grad({norm(t, p)}, {t})[0]);
  };
  EXPECT_EQ(slopes({0, 1e-13, 2}, -2, f32), (Values{0, 0, 0}));
  EXPECT_EQ(slopes({0, 1e-200, 2}, -2, f64), (Values{0, 0, 0}));
  const Values half = slopes({1e30, 1e-20}, 0.5, f32);
  EXPECT_NEAR(half[0], 1, 1e-6);
  EXPECT_NEAR(half[1], 1e25, 1e19);
}

TEST(Elementwise, SlopesOfGeluFarOut) {
  for (const DType dtype : {f64, f32}) {
    const Tensor x = row({-inf, -2e19, -50, 50, 2e19, inf}, dtype).set_requires_grad();
    for (const auto form : {"none", "tanh"})
      for (const bool recorded : {false, true})
        EXPECT_EQ(to_vector(grad({sum(gelu(x, form))}, {x}, {.create_graph = recorded})[0]),
                  (Values{0, 0, 0, 1, 1, 1}))
            << name(dtype);
  }
}

// A derivative that is a constant where a == b has no derivative there.
TEST(Elementwise, CurvaturesOfEqualOperands) {
  const auto curvature = [](auto f, double x) {  // d^2 f / da^2 and d^2 f / da db at (x, x)
    const Tensor a = row({x}, f64).set_requires_grad(), b = row({x}, f64).set_requires_grad();
    const Tensor da = grad({sum(f(a, b))}, {a}, {.create_graph = true})[0];
    const std::vector<Tensor> second = grad({sum(da)}, {a, b});
    return Values{second[0].item(), second[1].item()};
  };
  using Two = Tensor(const Tensor&, const Tensor&);
  for (const double x : {0.0, -3.0}) {
    EXPECT_EQ(curvature(static_cast<Two*>(logaddexp), x), (Values{0.25, -0.25}));
    const double bits = 0.25 * 0.6931471805599453;
    EXPECT_EQ(curvature(static_cast<Two*>(logaddexp2), x), (Values{bits, -bits}));
  }
  const double along = 9 / std::pow(18, 1.5);  // b^2 / r^3
  for (const double x : {3.0, -3.0}) {
    const Values got = curvature(static_cast<Two*>(hypot), x);
    EXPECT_NEAR(got[0], along, 1e-15);
    EXPECT_NEAR(got[1], -along, 1e-15);
  }
  EXPECT_EQ(curvature(static_cast<Two*>(hypot), 0), (Values{0, 0}));
}

TEST(Elementwise, HypotKeepsTheRange) {
  EXPECT_TRUE(allclose(hypot(row({3e30, 3e-30}), row({4e30, 4e-30})), row({5e30, 5e-30}), 1e-6, 0));
  EXPECT_EQ(to_vector(hypot(row({300}, f16), row({400}, f16))), (Values{500}));
  EXPECT_EQ(to_vector(hypot(row({-inf, 0}), row({1, 0}))), (Values{inf, 0}));
  const Tensor a = row({0, 0, 3e38}).set_requires_grad(), b = row({0, -2, 0}).set_requires_grad();
  sum(hypot(a, b)).backward();
  EXPECT_EQ(to_vector(a.grad()), (Values{0, 0, 1}));
  EXPECT_EQ(to_vector(b.grad()), (Values{0, -1, 0}));
  const Tensor far = row({inf, 2, -inf}).set_requires_grad(),
               near = row({-1, -inf, 0}).set_requires_grad();
  sum(hypot(far, near)).backward();
  EXPECT_EQ(to_vector(far.grad()), (Values{1, 0, -1}));
  EXPECT_EQ(to_vector(near.grad()), (Values{0, -1, 0}));
  const Tensor nans = row({nan, 0, nan, inf}), others = row({0, nan, nan, nan});
  for (const Tensor& x : {nans, others}) x.set_requires_grad();
  sum(hypot(nans, others)).backward();
  for (const Tensor& x : {nans, others})
    EXPECT_TRUE(all(isnan(x.grad())).item()) << "as the value is";
  EXPECT_EQ(hypot(zeros({0, 3}), zeros({3})).shape(), (Shape{0, 3}));
  EXPECT_EQ(hypot(ones({1, 1, 1, 1, 1, 1, 1, 2}), ones({})).rank(), 8);
}

TEST(Elementwise, NanLosesInFmaxAndFmin) {
  const Tensor a = row({1, nan, nan, 3, -inf}).set_requires_grad(),
               b = row({nan, 2, nan, 3, inf}).set_requires_grad();
  const Tensor most = fmax(a, b), least = fmin(a, b);
  expect_near(most, {1, 2, nan, 3, inf}, 0);
  expect_near(least, {1, 2, nan, 3, -inf}, 0);
  sum(most).backward();
  EXPECT_EQ(to_vector(a.grad()), (Values{1, 0, 1, 1, 0}));
  EXPECT_EQ(to_vector(b.grad()), (Values{0, 1, 0, 0, 1}));
  EXPECT_EQ(to_vector(fmax(row({1, 5}, i64), row({4}, i64))), (Values{4, 5}));
}

TEST(Elementwise, SincIsExactNearWholeNumbersAndZero) {
  const double pi = 3.14159265358979323846;
  EXPECT_EQ(to_vector(sinc(row({0, 1, -2, 1e15, 0.5}, f64))), (Values{1, 0, 0, 0, 2 / pi}));
  EXPECT_EQ(sinc(row({4097})).item(), 0);
  EXPECT_NEAR(sinc(row({1e6 + 0.25}, f64)).item() * pi * (1e6 + 0.25), std::sqrt(0.5), 1e-15);
  for (const double x : {1e-30, 1e-9, 1e-3, 0.125}) {
    const Tensor t = row({x}, f64).set_requires_grad();
    const Tensor slope = grad({sinc(t)}, {t}, {.create_graph = true})[0];
    const double u = pi * pi * x * x;  // -pi^2 x / 3 (1 - u / 10 + u^2 / 280 - u^3 / 15120 + ...)
    const double rest = 1 - u / 10 + u * u / 280 - u * u * u / 15120 + u * u * u * u / 1330560;
    EXPECT_NEAR(slope.item() / (-pi * pi * x / 3 * rest), 1, 1e-9) << x;
    EXPECT_NEAR(grad({slope}, {t})[0].item(), -pi * pi / 3 * (1 - 0.3 * u), u * u + 1e-14) << x;
  }
  EXPECT_ERROR(sinc(arange(3)), "sinc: elements must be floats, got i64");
}

TEST(Elementwise, AnglesOfIntegersAreF32) {
  EXPECT_EQ(to_vector(rad2deg(deg2rad(row({180, 0}, i64)))), (Values{180, 0}));
  EXPECT_EQ(deg2rad(row({180}, u8)).dtype(), f32);
  EXPECT_EQ(deg2rad(row({180}, bf16)).item(), row({3.14159265}, bf16).item());
}

TEST(Elementwise, SoftplusIsTheIdentityAboveItsThreshold) {
  for (const DType dtype : {f32, f16}) {
    const Tensor x = row({-60000, 1, 60000}, dtype).set_requires_grad();
    const Tensor y = softplus(x, 2, 1);
    EXPECT_EQ(to_vector(y), (Values{0, 1, 60000})) << dtype;
    sum(y).backward();
    EXPECT_EQ(to_vector(x.grad()), (Values{0, 1, 1})) << dtype;
  }
}

TEST(Elementwise, LogitOfBoundsThatF32Rounds) {
  for (const DType dtype : {f32, bf16}) {
    const Tensor x = row({0, 1, 2, 0.5}, dtype).set_requires_grad();
    const Tensor y = logit(x, 1e-6), exact = row({-13.815509557963773, 13.815509557963773}, dtype);
    EXPECT_EQ(to_vector(y), (Values{exact.at(0), exact.at(1), exact.at(1), 0}));
    EXPECT_EQ(to_vector(grad({sum(y)}, {x})[0]), (Values{0, 0, 0, 4}));
  }
}

// Exponents are squares, the terms of others cancel.
TEST(Elementwise, TailsAreAsExactAsTheMiddle) {
  const struct {
    const char* name;
    Tensor (*f)(const Tensor&);
    double low, high;
  } functions[] = {
      {"gelu", gelu, -12.9, -1},
      {"erf", erf, -9, 9},
      {"erfc", erfc, -9, 9},
      {"hardswish", hardswish, -1.53, -1.47},
      {"logit", [](const Tensor& x) { return logit(x); }, 0.2, 0.8},
      {"log10", log10, 1.3e-39, 2e-39},
      {"gelu_tanh", gelu_tanh, -10.6, -1},
      {"silu", silu, -106, -2},
      {"mish", mish, -106, -2},
      {"glu", [](const Tensor& x) { return glu(stack({full_like(x, 1e30), x}, 1), 1); }, -170, 20},
      {"swiglu", [](const Tensor& x) { return swiglu(x, full_like(x, 1e30)); }, -170, -2}};
  for (const auto& f : functions) {
    const Tensor x = linspace(f.low, f.high, 1001);
    const auto both = [&](const Tensor& in) {
      const Tensor y = f.f(in.set_requires_grad());
      return std::array{to_vector(y), to_vector(grad({sum(y)}, {in})[0])};
    };
    const auto got = both(x.clone()), exact = both(x.to(f64));
    for (size_t k = 0; k < 2; ++k)
      for (size_t i = 0; i < got[k].size(); ++i)
        ASSERT_NEAR(got[k][i], exact[k][i], 8e-7 * std::abs(exact[k][i]) + 0x1p-149)
            << f.name << (k ? "'s slope at " : " at ") << x.at(int64_t(i));
  }
}

// Far out, where a result in f16 or bf16 (or f32) is 0, 1 or -1 and says nothing of the derivative.
TEST(Elementwise, SlopesOfNarrowNumbersAreThoseOfTheInput) {
  const struct {
    const char* name;
    Tensor (*f)(const Tensor&);
    double low = -20, high = 20;
  } functions[] = {{"sigmoid", sigmoid},
                   {"tanh", tanh},
                   {"expm1", expm1, -20, 10},
                   {"exp", exp, -20, 10},
                   {"exp2", exp2, -20, 15},
                   {"sqrt", sqrt, 1e-3, 6e4},
                   {"rsqrt", rsqrt, 0.01, 100},
                   {"reciprocal", reciprocal, 0.01, 100},
                   {"tan", tan, -1.5, 1.5},
                   {"silu", silu},
                   {"gelu_tanh", gelu_tanh, -5, 5},
                   {"glu", [](const Tensor& x) { return glu(stack({full_like(x, 3), x}, 1), 1); }},
                   {"1 / x", [](const Tensor& x) { return 1 / x; }, 0.01, 100},
                   {"0.7^x", [](const Tensor& x) { return pow(0.7, x); }, -20, 20},
                   {"1.5^x", [](const Tensor& x) { return pow(full_like(x, 1.5), x); }, -9, 9},
                   {"y / x", [](const Tensor& x) { return full_like(x, 100) / x; }, 0.1, 9}};
  for (const auto& f : functions)
    for (const DType dtype : {f16, bf16, f32}) {
      const Tensor x = linspace(f.low, f.high, 101, f64).to(dtype);
      const auto slopes = [&](DType t, bool recorded) {
        const Tensor in = x.to(t).detach().clone().set_requires_grad(), y = f.f(in);
        return grad({y}, {in}, {.gradients = {ones_like(y)}, .create_graph = recorded})[0];
      };
      const Tensor exact = slopes(f64, false);
      const double ulp = dtype == f16    ? 0x1p-10
                         : dtype == bf16 ? 0x1p-7
                                         : 0x1p-18,
                   least = dtype == f16 ? 0x1p-24 : 0;
      for (const bool recorded : {false, true}) {
        const Tensor got = slopes(dtype, recorded);
        for (int64_t i = 0; i < x.numel(); ++i)
          ASSERT_NEAR(got.at(i), exact.at(i), ulp * std::abs(exact.at(i)) + least)
              << f.name << " at " << x.at(i) << " in " << dtype << ", recorded " << recorded;
      }
    }
}

TEST(Softmax, SlopesOfNarrowNumbersAreThoseOfTheInput) {
  for (const DType dtype : {f16, bf16})
    for (const auto f : {softmax, log_softmax}) {
      const Tensor x = (rand({300, 70}, f64) * 8.0).to(dtype), dy = rand({300, 70}, f64).to(dtype);
      const auto slopes = [&](DType t, bool recorded) {
        const Tensor in = x.to(t).detach().clone().set_requires_grad(), y = f(in, 1, {});
        return grad({y}, {in}, {.gradients = {dy.to(t)}, .create_graph = recorded})[0].to(f64);
      };
      const Tensor exact = slopes(f64, false);
      for (const bool recorded : {false, true})
        EXPECT_LT(max(abs(slopes(dtype, recorded) - exact) / (abs(exact) + 0x1p-12)).item(),
                  dtype == f16 ? 0x1p-10 : 0x1p-7);
    }
}

TEST(Elementwise, ZeroGradientsAreRecorded) {
  const Tensor x = row({0.3, nan, inf}, f32).set_requires_grad();
  const Tensor y = floor(x);
  EXPECT_TRUE(y.requires_grad());
  y.backward({.gradient = row({1, nan, inf}, f32)});
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0, 0}));
}

// neg and floor save nothing, so their inputs may be written to.
TEST(Elementwise, ConstantDerivativesKeepNothing) {
  const Tensor x = row({1.5, -2}, f64).set_requires_grad();
  const Tensor y = -x;
  mul_(y, 3);
  const Tensor z = y + floor(x);
  sum(z).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{-3, -3}));
}

// Gradients of an op on half casts of f32 tensors arrive in f32.
TEST(Elementwise, WideGradientsOfNarrowOperands) {
  const Values v = {1.00390625, -0.3, 0.7, 2.1};
  const Tensor a = row(v, f32).set_requires_grad(), b = row({0.1, 0.2, 0.3, 0.4}, f32);
  const auto expect_wide = [&](const Tensor& y, const auto& derivative) {
    a.set_grad({});
    y.backward({.gradient = full({4}, 1.7265625, y.dtype())});
    EXPECT_EQ(a.grad().dtype(), f32);
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_NEAR(a.grad().at(i), 1.7265625 * derivative(i), 2e-7 * std::abs(derivative(i)) * 1.8);
  };
  const Tensor half = a.to(bf16), other = b.to(bf16);
  expect_wide(half * other, [&](int64_t i) { return other.at(i); });
  expect_wide(half / other, [&](int64_t i) { return 1 / other.at(i); });
  expect_wide(half * 0.3, [](int64_t) { return 0.3; });
}

// Neither a gradient nor its divisor is rounded before the cast to f32.
TEST(Reductions, DivideGradientsInF32) {
  const Tensor w = zeros({100'000}).set_requires_grad();
  mean(w.to(f16)).backward();
  EXPECT_EQ(w.grad().at(0), double(1e-5f));
  const Tensor x = ones({70'000}, f16).set_requires_grad();
  for (const auto& largest : {max(x), norm(x, inf)}) {
    x.set_grad({});
    largest.backward({.gradient = full({}, 60'000, f16)});
    EXPECT_NEAR(x.grad().at(7), 60'000.0 / 70'000, 1e-3) << "more winners than f16 counts";
  }
}

// Recorded rules compute in f32, like the fused kernels: terms of a derivative overflow f16 long
// before it does.
TEST(Elementwise, RecordedGradientsOfNarrowNumbers) {
  using F = Tensor (*)(const Tensor&);
  const std::map<std::string, F> ops = {
      {"mish", mish},
      {"silu", silu},
      {"gelu", gelu},
      {"gelu_tanh", gelu_tanh},
      {"softsign", softsign},
      {"tanh", tanh},
      {"sigmoid", sigmoid},
      {"elu", [](const Tensor& x) { return elu(x); }},
      {"selu", selu},
      {"atan", atan},
      {"atan2", [](const Tensor& x) { return atan2(x, x / 2); }},
      {"div", [](const Tensor& x) { return 3 / x + x / square(x); }},
      {"pow", [](const Tensor& x) { return pow(abs(x), abs(x) * 0 + 1.5); }},
      {"pow_scalar", [](const Tensor& x) { return pow(x, 3); }},
      {"glu", [](const Tensor& x) { return glu(cat({x, x * 20})); }},
      {"linear", [](const Tensor& x) {
         return linear(reshape(x, {-1, 1}), ones({1, 1}, x.dtype()), {},
                       {.activation = Activation::GeluTanh});
       }}};
  for (const auto& [name, f] : ops) {
    const Tensor x =
        row({-300, -88, -40, -16, -9, -3, -1, -0.01, -1e-3, 1e-3, 0.01, 1, 3, 9, 16, 40, 88, 300},
            f16)
            .set_requires_grad();
    const Tensor y = f(x);
    const GradOptions kept{.gradients = {ones_like(y)}, .retain_graph = true},
        recorded{.gradients = {ones_like(y)}, .create_graph = true};
    const Tensor fused = grad({y}, {x}, kept)[0], made = grad({y}, {x}, recorded)[0];
    EXPECT_EQ(made.dtype(), f16);
    for (int64_t i = 0; i < x.numel(); ++i) {
      if (!std::isfinite(fused.at(i))) continue;
      EXPECT_NEAR(made.at(i), fused.at(i), 2e-3 * std::max(1.0, std::abs(fused.at(i))))
          << name << " at " << x.at(i);
    }
  }
}

TEST(Elementwise, GradientsOfNarrowNumbersThatLeaveTheirRangeOnTheWay) {
  const auto of = [](const Tensor& y, const Tensor& x, double dy) {
    return grad({y}, {x}, {.gradients = {full(y.shape(), dy, y.dtype())}})[0];
  };
  const Tensor b = row({0.5}, f16).set_requires_grad();
  EXPECT_NEAR(of(addcdiv(row({0}, f16), row({60'000}, f16), b, 1e-4), b, 1).item(), -24, 0.05);
  const Tensor small = row({0.01, 0.01}, f16).set_requires_grad();
  EXPECT_NEAR(of(norm(small), small, 1000).at(0), 707.1, 0.5);
  const Tensor x = row({300, 300, 1e-3, 1e-3}, f16).set_requires_grad();
  EXPECT_NEAR(of(prod(x), x, 1).at(2), 90, 0.5);
}

// A branch that is not taken must stay finite, or its gradient is NaN, not 0.
TEST(Elementwise, SecondOrderFarOut) {
  using F = Tensor (*)(const Tensor&);
  for (const F f : {F([](const Tensor& x) { return elu(x); }), F(selu),
                    F([](const Tensor& x) { return glu(cat({x, x})); }), F([](const Tensor& x) {
                      return binary_cross_entropy_with_logits(x, full_like(x, 0.5));
                    })}) {
    const Tensor x = row({-1000, -100, 100, 1000}, f32).set_requires_grad();
    const Tensor dx = grad({sum(f(x))}, {x}, {.create_graph = true})[0];
    const Tensor ddx = grad({sum(dx)}, {x})[0];
    for (int64_t i = 0; i < x.numel(); ++i) EXPECT_NEAR(ddx.at(i), 0, 1e-6) << x.at(i);
  }
}

// The divisor of a branch that is not taken must not be 0.
TEST(Elementwise, SecondOrderOfAtanAtZero) {
  const Tensor x = row({0, 1, 1e10}, f32).set_requires_grad();
  const Tensor dx = grad({sum(atan(x))}, {x}, {.create_graph = true})[0];
  const Tensor ddx = grad({sum(dx)}, {x})[0];
  EXPECT_EQ(ddx.at(0), 0);
  EXPECT_EQ(ddx.at(1), -0.5);
  EXPECT_NEAR(ddx.at(2), -2e-30, 1e-35);
}

const Tensor made_before_main = full({2}, 3, f32, Device::cpu()) * 2.0;

TEST(Elementwise, TensorsMayBeGlobal) { EXPECT_EQ(to_vector(made_before_main), (Values{6, 6})); }

struct Copied : Function<Copied> {
  static constexpr OpInfo info{"test_copied"};
  static Tensor forward(Ctx&, const Tensor& x) { return clone(x); }
};

TEST(Comparison, OperatorsGiveTensors) {
  const Tensor a = row({1, 2, 3}, f32), b = row({3, 2, 1}, f32);
  EXPECT_EQ(to_vector(a < b), (Values{1, 0, 0}));
  EXPECT_EQ(to_vector(a <= b), (Values{1, 1, 0}));
  EXPECT_EQ(to_vector(a > b), (Values{0, 0, 1}));
  EXPECT_EQ(to_vector(a >= b), (Values{0, 1, 1}));
  EXPECT_EQ(to_vector(a < 2), (Values{1, 0, 0}));
  EXPECT_EQ(to_vector(a <= 2), (Values{1, 1, 0}));
  EXPECT_EQ(to_vector(a > 2), (Values{0, 0, 1}));
  EXPECT_EQ(to_vector(a >= 2), (Values{0, 1, 1}));
  EXPECT_EQ(to_vector(2 < a), (Values{0, 0, 1}));
  EXPECT_EQ(to_vector(2 <= a), (Values{0, 1, 1}));
  EXPECT_EQ(to_vector(2 > a), (Values{1, 0, 0}));
  EXPECT_EQ(to_vector(2 >= a), (Values{1, 1, 0}));
  EXPECT_EQ(to_vector(where(a < b, a, b)), (Values{1, 2, 1}));
  EXPECT_EQ(to_vector(where(a < b, a, 7)), (Values{1, 7, 7}));
  EXPECT_EQ(to_vector(where(a < b, 0.5, b)), (Values{0.5, 2, 1}));
  const Tensor mask = a < b;
  EXPECT_EQ(mask.dtype(), boolean);
  EXPECT_EQ(fmt::format("{}", a < b), fmt::format("{}", mask));
  EXPECT_EQ(Copied::apply(a < b).dtype(), boolean) << "an input, not an attribute";
  static_assert(std::is_constructible_v<bool, Tensor>);
}

// None of these converts to bool: in an `if` it would always be true.
template <class... T>
constexpr bool answers = (std::is_constructible_v<bool, T> || ...);

TEST(Comparison, IsNoCondition) {
  const Tensor a = row({1, 2, 3}, f32), b = row({3, 2, 1}, f32);
  static_assert(!answers<decltype(a < b), decltype(a <= b), decltype(a > b), decltype(a >= b),
                         decltype(a < 2), decltype(2 >= a)>);
  static_assert(!answers<decltype(eq(a, b)), decltype(ne(a, b)), decltype(lt(a, b)),
                         decltype(le(a, b)), decltype(gt(a, b)), decltype(ge(a, b))>);
  static_assert(!answers<decltype(eq(a, 2)), decltype(ne(a, 2)), decltype(lt(a, 2)),
                         decltype(le(a, 2)), decltype(gt(a, 2)), decltype(ge(a, 2))>);
  static_assert(
      !answers<decltype(logical_and(a, b)), decltype(logical_or(a, b)), decltype(logical_xor(a, b)),
               decltype(logical_not(a)), decltype(isnan(a)), decltype(isinf(a)),
               decltype(isfinite(a)), decltype(any(a)), decltype(all(a))>);
  const Tensor same = eq(a, b);
  EXPECT_EQ(same.dtype(), boolean);
  EXPECT_EQ(all(same).item(), 0);
  EXPECT_EQ(any(same).item(), 1);
}

TEST(Create, FromAVector) {
  const Tensor t = from_data(std::vector<int64_t>{3, -1, 1ll << 60});
  EXPECT_EQ(t.dtype(), i64);
  EXPECT_EQ(t.shape(), Shape{3});
  EXPECT_EQ(t.at(2), 0x1p60);
  EXPECT_EQ(from_data(std::vector<float>()).shape(), Shape{0});
}

template <class T>
DType dtype_of_numbers() {
  const Tensor x = from_data(std::vector<T>{T(0.0f), T(1.0f)});
  EXPECT_EQ(to_vector<T>(x), (std::vector<T>{T(0.0f), T(1.0f)}));
  return x.dtype();
}
TEST(Create, FromNumbersOfAnyType) {
  EXPECT_EQ(dtype_of_numbers<double>(), f64);
  EXPECT_EQ(dtype_of_numbers<float>(), f32);
  EXPECT_EQ(dtype_of_numbers<Half>(), f16);
  EXPECT_EQ(dtype_of_numbers<BFloat16>(), bf16);
  EXPECT_EQ(dtype_of_numbers<bool>(), boolean);
  EXPECT_EQ(dtype_of_numbers<unsigned char>(), u8);
  EXPECT_EQ(dtype_of_numbers<signed char>(), i32);
  EXPECT_EQ(dtype_of_numbers<short>(), i32);
  EXPECT_EQ(dtype_of_numbers<unsigned short>(), i32);
  EXPECT_EQ(dtype_of_numbers<int>(), i32);
  EXPECT_EQ(dtype_of_numbers<unsigned>(), i64);
  EXPECT_EQ(dtype_of_numbers<long>(), sizeof(long) == 8 ? i64 : i32);
  EXPECT_EQ(dtype_of_numbers<unsigned long>(), i64);
  EXPECT_EQ(dtype_of_numbers<long long>(), i64);
  EXPECT_EQ(dtype_of_numbers<size_t>(), i64);
  EXPECT_EQ(from_data(std::vector<signed char>{-128}).at(0), -128);
  EXPECT_EQ(from_data(std::vector<unsigned>{4000000000u}).at(0), 4e9);
  EXPECT_EQ(from_data(std::vector<long long>{-1ll << 63}).at<long long>(0), -1ll << 63);
  EXPECT_ERROR(from_data(std::vector<size_t>{1, ~size_t(0)}),
               "18446744073709551615 does not fit i64");
}

TEST(Create, NumbersThatAreOnlyStored) {
  for (const DType t : {i8, i16, u16, u32, f8_e4m3, f8_e5m2, f8_e8m0}) {
    const Tensor x = full({2}, 4, t);
    EXPECT_EQ(x.dtype(), t);
    EXPECT_EQ(to_vector(x), std::vector<double>(2, 4));
    EXPECT_EQ(ones_like(x).at(1), 1);
  }
  EXPECT_EQ(zeros({3}, i8).at(2), 0);
  EXPECT_EQ(full({}, 4294967295.0, u32).item(), 4294967295.0);
  EXPECT_ERROR(full({2}, 128, i8), "128 does not fit elements of i8");
  const Tensor x = zeros({3}, i8);
  x[1] = 5;
  x(Slice(2, None)) = -1;
  EXPECT_EQ(to_vector(x), (std::vector<double>{0, 5, -1}));
  EXPECT_ERROR(x + 1, "add_scalar: i8 elements are stored, but not computed with");
}

TEST(Create, PoissonHasTheMeanAndVarianceOfItsRate) {
  const Seed seed(5);
  for (const double rate : {0.0, 0.3, 4.0, 9.9, 10.0, 60.0, 1e6}) {
    constexpr int64_t n = 20000;
    const Tensor x = poisson(full({n}, rate, f64));
    EXPECT_EQ(x.dtype(), f64);
    EXPECT_TRUE(all(logical_and(ge(x, 0), eq(x, floor(x)))).item<bool>());
    EXPECT_NEAR(mean(x).item(), rate, 4 * std::sqrt(rate / n)) << rate;
    // The variance of the variance is (2 + 1 / rate) rate^2 / n.
    EXPECT_NEAR(var(x).item(), rate, 4 * std::sqrt((2 * rate * rate + rate) / n)) << rate;
    EXPECT_NEAR(mean(cast(eq(x, std::floor(rate)), f64)).item(),
                std::exp(std::floor(rate) * std::log(std::max(rate, 1e-300)) - rate -
                         std::lgamma(std::floor(rate) + 1)),
                4 * 0.5 / std::sqrt(n))
        << rate;
  }
  EXPECT_EQ(poisson(full({2, 3}, 5, f16)).dtype(), f16);
  EXPECT_EQ(poisson(zeros({0, 3})).shape(), (Shape{0, 3}));
  const auto drawn = [] {
    const Seed again(7);
    return poisson(full({50}, 20));
  };
  EXPECT_TRUE(equal(drawn(), drawn()));
  EXPECT_ERROR(poisson(ones({2}, i64)), "poisson: rates must be floats, got i64");
  EXPECT_ERROR(poisson(row({1, -1})), "poisson: rates must be from 0 to 2^31, got -1");
  EXPECT_ERROR(poisson(row({NAN})), "rates must be from 0 to 2^31, got nan");
}

TEST(Create, MultinomialDrawsByTheWeights) {
  const Seed seed(1);
  const Tensor weights = from({0, 1, 3, 0, 4, 0, 1, 1, 0, 0, 0, 0}, {2, 6}, f32);
  const int64_t n = 4000;
  const Tensor drawn = multinomial(weights, n, true);
  EXPECT_EQ(drawn.dtype(), i64);
  ASSERT_EQ(drawn.shape(), (Shape{2, n}));
  const Values wanted = to_vector(weights / sum(weights, {1}, true));
  const Tensor counts = sum(one_hot(drawn, 6), {1});
  for (int64_t i = 0; i < 12; ++i) {
    const double p = wanted[size_t(i)], sigma = std::sqrt(p * (1 - p) / double(n));
    EXPECT_NEAR(counts.at(i) / double(n), p, 5 * sigma) << i;
  }
  const Tensor halves = narrow(drawn, 1, 0, n / 2);  // must not be ordered
  EXPECT_NEAR(mean(select(halves, 0, 0).to(f32)).item(), mean(select(drawn, 0, 0).to(f32)).item(),
              0.1);
}

TEST(Create, MultinomialDrawsFromAnyNumberOfClasses) {
  const Seed seed(1);
  for (const int64_t classes : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33}) {
    const Tensor place = arange(classes), odd = remainder(place, 2),
                 weights = cast(where(eq(odd, 1), 0, place + 1), f32);  // of every other class
    const Tensor drawn = multinomial(expand(weights, {3, classes}), 4000, true),
                 counts = sum(one_hot(drawn, classes), {0, 1});
    for (int64_t i = 0; i < classes; ++i) EXPECT_EQ(counts.at(i) > 0, i % 2 == 0) << i;
  }
}

TEST(Create, MultinomialDrawsRareClasses) {
  const Seed seed(1);
  const int64_t classes = 1 << 17;
  const Tensor weights = full({classes}, 0x1p-26, f64, Device::cpu());
  weights.set(0, 1 - double(classes - 1) * 0x1p-26);
  const Tensor drawn = multinomial(weights, 1 << 20, true);
  const Tensor rare = masked_select(drawn, gt(drawn, 0)).to(f64);
  EXPECT_NEAR(double(rare.numel()), 0x1p11, 5 * 45);
  EXPECT_NEAR(mean(remainder(rare, 2)).item(), 0.5, 5 * 0.011);
}

TEST(Create, MultinomialOfTheLargestAndTheSmallestWeights) {
  const Seed seed(3);
  for (const auto& [weight, dtype] :
       {std::pair(3e38, f32), {3e38, bf16}, {1e-45, f32}, {6e4, f16}, {1e308, f64}})
    for (const bool replacement : {false, true}) {
      const Tensor drawn = multinomial(expand(full({4}, weight, dtype), {4000, 4}), 1, replacement);
      for (int c = 0; c < 4; ++c)
        EXPECT_NEAR(sum(cast(eq(drawn, double(c)), f32)).item(), 1000, 150)
            << weight << name(dtype);
    }
}

TEST(Create, MultinomialWithoutReplacementGivesEachOnce) {
  const Seed seed(1);
  const Tensor weights = expand(from({1, 0, 2, 5}, {4}, bf16), {4000, 4});
  const Tensor drawn = multinomial(weights, 3);
  EXPECT_EQ(sum(one_hot(drawn, 4), {0, 1}).at(1), 0);
  EXPECT_EQ(to_vector(sum(one_hot(drawn, 4), {0, 1})), (Values{4000, 0, 4000, 4000}));
  const Tensor first = mean(one_hot(select(drawn, 1, 0), 4), {0});
  EXPECT_NEAR(first.at(0), 0.125, 0.026);
  EXPECT_NEAR(first.at(3), 0.625, 0.038);
  // After 3 was drawn, 2 comes twice as often as 0.
  const Tensor second = masked_select(select(drawn, 1, 1), eq(select(drawn, 1, 0), 3));
  EXPECT_NEAR(mean(eq(second, 2).to(f32)).item(), 2.0 / 3, 0.047);
}

TEST(Create, MultinomialChecksItsWeights) {
  for (const bool replacement : {false, true}) {
    EXPECT_EQ(multinomial(ones({3, 2}), 0, replacement).shape(), (Shape{3, 0}));
    EXPECT_EQ(multinomial(ones({3, 0}), 0, replacement).shape(), (Shape{3, 0}));
  }
  EXPECT_EQ(multinomial(ones({0, 5}), 2).shape(), (Shape{0, 2}));
  EXPECT_ERROR(multinomial(from({1, -1}, {2}), 1), "must be >= 0 and finite, got -1 to 1");
  EXPECT_ERROR(multinomial(from({1, nan}, {2}), 1, true), "must be >= 0 and finite, got nan");
  EXPECT_ERROR(multinomial(from({1, 0}, {2}), 2),
               "cannot draw 2 of 1 classes whose weight is above zero");
  EXPECT_ERROR(multinomial(zeros({2}), 1, true),
               "cannot draw 1 of 0 classes whose weight is above zero");
  EXPECT_ERROR(multinomial(ones({2}, i64), 1),
               "weights must be floats [..., classes], got i64 [2]");
  EXPECT_ERROR(multinomial(ones({2}), -1), "-1 of 2 classes");
}

TEST(Clamp, ByTensors) {
  const Tensor x = row({-2, 1, 5, nan}, f64).set_requires_grad(),
               low = row({-1, 1, 0, 0}, f64).set_requires_grad(),
               high = row({1, 1, 2, 1}, f64).set_requires_grad();
  const Tensor y = clamp(x, low, high);
  EXPECT_EQ(to_vector(slice(y, 0, 0, 3)), (Values{-1, 1, 2}));
  EXPECT_TRUE(std::isnan(y.at(3)));
  const std::vector<Tensor> dx = grad({sum(y)}, {x, low, high});
  EXPECT_EQ(to_vector(dx[0]), (Values{0, 1, 0, 0})) << "all of it at a bound, none of NaN's";
  EXPECT_EQ(to_vector(dx[1]), (Values{1, 0, 0, 0}));
  EXPECT_EQ(to_vector(dx[2]), (Values{0, 0, 1, 0}));
  EXPECT_EQ(to_vector(clamp(row({0, 5}, f32), row({3, 3}, f32), row({1, 1}, f32))), (Values{1, 1}));
  EXPECT_TRUE(std::isnan(clamp(row({0}, f32), row({nan}, f32), {}).at(0)));
  EXPECT_TRUE(std::isnan(clamp(row({0}, f32), {}, row({nan}, f32)).at(0)));
  const Tensor n = clamp(row({-3, 9}, i64), row({0}, i64), row({4}, i64));
  EXPECT_EQ(n.dtype(), i64);
  EXPECT_EQ(to_vector(n), (Values{0, 4}));
  EXPECT_ERROR(clamp(row({1}, f32), row({1}, f64), {}), "different dtypes: f32 and f64");
}

TEST(Create, Bernoulli) {
  const Seed seed(1);
  const Tensor p = expand(from({0, 0.25, 1}, {3}, f16), {10000, 3}), drawn = bernoulli(p);
  EXPECT_EQ(drawn.dtype(), f16);
  EXPECT_EQ(sum(logical_and(ne(drawn, 0), ne(drawn, 1))).item(), 0);
  const Tensor share = mean(drawn.to(f32), {0});
  EXPECT_EQ(share.at(0), 0);
  EXPECT_NEAR(share.at(1), 0.25, 0.02);
  EXPECT_EQ(share.at(2), 1);
  const Seed zero(12121362);  // its first 24 bits are 0
  EXPECT_EQ(rand({1}).item(), 0);
  const Seed same(12121362);
  EXPECT_EQ(bernoulli(full({1}, 1e-9, f64)).item(), 0);
  EXPECT_ERROR(bernoulli(ones({2}, i64)), "probabilities must be floats, got i64");
  EXPECT_EQ(bernoulli(zeros({0, 3})).shape(), (Shape{0, 3}));
  const auto of = [](double p, DType dtype) {  // on a device the error may come late
    (void)bernoulli(from({p, 0.5}, {2}, dtype)).at(0);
    (void)bernoulli(from({0, 1}, {2}, dtype)).at(0);
  };
  for (const DType dtype : {f64, f32, f16, bf16}) {
    EXPECT_ERROR(of(1.5, dtype), "bernoulli: probabilities must be from 0 to 1, got 0.5 to 1.5");
    EXPECT_ERROR(of(-0.25, dtype),
                 "bernoulli: probabilities must be from 0 to 1, got -0.25 to 0.5");
    EXPECT_ERROR(of(nan, dtype), "bernoulli: probabilities must be from 0 to 1, got nan to nan");
  }
}

TEST(Create, Linspace) {
  EXPECT_EQ(to_vector(linspace(0, 1, 5)), (Values{0, 0.25, 0.5, 0.75, 1}));
  EXPECT_EQ(to_vector(linspace(3, -3, 7, i64)), (Values{3, 2, 1, 0, -1, -2, -3}));
  EXPECT_EQ(to_vector(linspace(0, 1, 5, i64)), (Values{0, 0, 0, 0, 1}));
  EXPECT_EQ(to_vector(linspace(7, 9, 1)), Values{7});
  EXPECT_EQ(linspace(7, 9, 0).shape(), Shape{0});
  EXPECT_EQ(linspace(0.1, 0.7, 1001, f64).at(1000), 0.7);
  EXPECT_ERROR(linspace(0, 1, -1),
               "n must be >= 0 and the range finite, got -1 numbers from 0 to 1");
  EXPECT_ERROR(linspace(0, inf, 3), "got 3 numbers from 0 to inf");
  EXPECT_ERROR(linspace(nan, 1, 3), "got 3 numbers from nan to 1");
}

TEST(Create, Logspace) {
  expect_near(logspace(-1, 2, 4), Values{0.1, 1, 10, 100});
  EXPECT_EQ(to_vector(logspace(0, 10, 3, 2, i32)), (Values{1, 32, 1024}));
  EXPECT_EQ(logspace(0, 1, 0).shape(), Shape{0});
  EXPECT_ERROR(logspace(0, 1, -1), "logspace: n must be >= 0");
}

TEST(Create, ArangeAndEyeCheckTheirSizes) {
  EXPECT_EQ(to_vector(arange(2, -3, -2)), (Values{2, 0, -2}));
  EXPECT_TRUE(equal(arange(3, f32), tensor({0, 1, 2})));
  EXPECT_EQ(arange(2, 1).shape(), Shape{0});
  const Tensor large = arange(0x1p53, 0x1p53 + 6), down = arange(-0x1p62, -0x1p62 - 1024, -255);
  for (int64_t i = 0; i < 5; ++i) {
    const auto at = [i](const Tensor& t) { return select(t, 0, i).item<int64_t>(); };
    EXPECT_EQ(at(large), (int64_t{1} << 53) + i);
    EXPECT_EQ(at(down), -(int64_t{1} << 62) - 255 * i);
  }
  EXPECT_ERROR(arange(0, 1, 0), "step and range must be finite and step not 0, got 0 to 1 by 0");
  EXPECT_ERROR(arange(0, inf), "step and range must be finite and step not 0, got 0 to inf by 1");
  EXPECT_ERROR(arange(0, 1e300), "0 to 1e+300 by 1 has too many elements: 1e+300");
  EXPECT_ERROR(arange(0, 1e300, 1e-300), "0 to 1e+300 by 1e-300 has too many elements: inf");
  EXPECT_EQ(to_vector(eye(2, i32)), (Values{1, 0, 0, 1}));
  EXPECT_EQ(eye(0).shape(), (Shape{0, 0}));
  EXPECT_EQ(to_vector(eye(2, 3)), (Values{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(to_vector(eye(3, 2, i32)), (Values{1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(eye(3, 0).shape(), (Shape{3, 0}));
  EXPECT_ERROR(eye(-1), "sizes cannot be negative: [-1, -1]");
}

TEST(Create, IntegersAreWhatTheyCanBe) {
  EXPECT_ERROR(arange(0, 1, 0.1),
               "start 0 and step 0.1 must be whole in i64 (give a float dtype after");
  EXPECT_ERROR(arange(0.5, 3), "start 0.5 and step 1 must be whole in i64 (give a float dtype");
  EXPECT_ERROR(full({2}, 0.5, i64), "0.5 does not fit elements of i64");
  EXPECT_ERROR(full({2}, inf, i64), "inf does not fit elements of i64");
  EXPECT_ERROR(full({2}, 0x1p63, i64), "9.223372036854776e+18 does not fit elements of i64");
  EXPECT_ERROR(full({2}, 300, u8), "300 does not fit elements of u8");
  EXPECT_ERROR(full({2}, -1, u8), "-1 does not fit elements of u8");
  EXPECT_ERROR(fill_(zeros({2}, i32), NAN), "nan does not fit elements of i32");
  EXPECT_ERROR(arange(0, 300, 1, u8), "299 does not fit elements of u8");
  EXPECT_EQ(to_vector(arange(2, -1, -1, u8)), (Values{2, 1, 0}));
  EXPECT_EQ(to_vector(full({1}, 2, boolean)), (Values{1}));
  EXPECT_EQ(full({}, -0x1p63, i64).item<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(arange(0, 1, 0.1, f32).numel(), 10);
  EXPECT_EQ(full({}, 2, i64).item(), 2);
}

TEST(Create, WhatFailsDrawsNothing) {
  const uint64_t before = generator().offset();
  EXPECT_ERROR(rand({-8}), "-8");
  EXPECT_ERROR(randint(0, 9, {-8}), "-8");
  EXPECT_EQ(generator().offset(), before);
}

TEST(Create, OneHotChecksItsIndices) {
  EXPECT_EQ(to_vector(one_hot(arange(0, 2), 3)), (Values{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(one_hot(zeros({0}, i64), 3).shape(), (Shape{0, 3}));
  EXPECT_ERROR(one_hot(arange(0, 3), 2), "one_hot: index 2 is out of range for 2 classes");
  EXPECT_ERROR(one_hot(arange(-1, 1), 2), "one_hot: indices must be >= 0, got -1");
  const Tensor most = from_data(std::vector{std::numeric_limits<int64_t>::max()});
  EXPECT_ERROR(one_hot(most), "one_hot: 9223372036854775807 is too large to be counted");
  EXPECT_ERROR(bincount(most), "bincount: 9223372036854775807 is too large to be counted");
  EXPECT_ERROR(one_hot(ones({2}), 2), "one_hot: indices must be integers, got f32");
}

TEST(Create, OneHotCountsTheClasses) {
  EXPECT_EQ(to_vector(one_hot(from({2, 0}, {2}, i64))), (Values{0, 0, 1, 1, 0, 0}));
  EXPECT_EQ(one_hot(from({1, 1}, {2}, i64), -1, f16).dtype(), f16);
  EXPECT_ERROR(one_hot(from({1, -2}, {2}, i64)), "one_hot: indices must be >= 0, got -2");
  EXPECT_ERROR(one_hot(zeros({0}, i64)),
               "one_hot: without indices, the number of classes must be given");
}

TEST(Create, IndicesOfTriangles) {
  EXPECT_TRUE(equal(tril_indices(2, 3), from({0, 1, 1, 0, 0, 1}, {2, 3}, i64)));
  EXPECT_TRUE(equal(triu_indices(2, 3, 1), from({0, 0, 1, 1, 2, 2}, {2, 3}, i64)));
  EXPECT_EQ(tril_indices(3, 3, -3).shape(), (Shape{2, 0}));
  EXPECT_EQ(triu_indices(0, 3).shape(), (Shape{2, 0}));
  const Tensor x = from({1, 2, 3, 4}, {2, 2}), at = triu_indices(2, 2);
  EXPECT_EQ(to_vector(index(x, {at[0], at[1]})), (Values{1, 2, 4}));
}

TEST(Create, LikeAnother) {
  const Tensor x = zeros({2, 3}, bf16);
  for (const auto f : {empty_like, zeros_like, ones_like, rand_like, randn_like}) {
    EXPECT_EQ(f(x, {}).shape(), x.shape());
    EXPECT_EQ(f(x, {}).dtype(), bf16);
    EXPECT_EQ(f(x, f32).dtype(), f32);
  }
  EXPECT_TRUE(equal(ones_like(x, boolean), full({2, 3}, 1, boolean)));
  EXPECT_TRUE(equal(full_like(x, 7, i64), full({2, 3}, 7, i64)));
  const Seed seed(3);
  const Tensor u = rand_like(zeros({1000}));
  EXPECT_TRUE(min(u).item() >= 0 && max(u).item() < 1);
  EXPECT_NEAR(stddev(randn_like(zeros({1000}))).item(), 1, 0.1);
  EXPECT_EQ(empty_like(arange(0, 3)).dtype(), i64);
  EXPECT_ERROR(rand_like(arange(0, 3)), "random real numbers need a float dtype, got i64");
}

template <class T>
void expect_copied() {
  const T data[] = {T(0.0f), T(1.0f), T(1.0f), T(0.0f), T(1.0f), T(1.0f)};
  const Tensor x = from_data(data, {2, 3});
  EXPECT_EQ(x.dtype(), dtype_of<T>());
  EXPECT_EQ(to_vector(x), (Values{0, 1, 1, 0, 1, 1}));
  EXPECT_NE(static_cast<const void*>(x.raw()), static_cast<const void*>(data));
}
TEST(Create, FromDataOfEveryType) {
  expect_copied<double>();
  expect_copied<float>();
  expect_copied<Half>();
  expect_copied<BFloat16>();
  expect_copied<int64_t>();
  expect_copied<int32_t>();
  expect_copied<uint8_t>();
  expect_copied<bool>();
  const float* const none = nullptr;
  EXPECT_EQ(from_data(none, {0, 2}).shape(), (Shape{0, 2}));
  EXPECT_ERROR(from_data(none, {2}), "the data is a null pointer for 2 elements");
}

TEST(Create, RandomNumbersCheckTheirRange) {
  const Seed seed(1);
  const Tensor x = randint(-2, 3, {1000});
  EXPECT_EQ(x.dtype(), i64);
  EXPECT_EQ(min(x).item(), -2);
  EXPECT_EQ(max(x).item(), 2);
  EXPECT_ERROR(randint(3, 3, {2}), "low must be < high, got 3 and 3");
  EXPECT_EQ(max(randint(256, {1000}, u8)).item(), 255);
  EXPECT_EQ(max(randint(257, {9000}, bf16)).item(), 256);
  EXPECT_EQ(sum(randint(2, {100}, boolean)).dtype(), i64);
  EXPECT_ERROR(randint(257, {2}, u8), "256 does not fit elements of u8");
  EXPECT_ERROR(randint(-4000, 9, {2}, f16), "f16 has all whole numbers up to 2048, got -4000 to 8");
  for (const DType t : {f64, f32, f16, bf16})
    EXPECT_LT(max(rand({100000}, t)).item(), 1) << name(t);
  // More than 2^32 numbers can all occur: odd ones, too, and those at both ends.
  const Tensor wide = randint(0, int64_t(1) << 40, {4001});
  const double odd = mean(remainder(wide, 2).to(f64)).item();
  EXPECT_NEAR(odd, 0.5, 0.05);
  EXPECT_NEAR(mean(wide.to(f64)).item() * 0x1p-39, 1, 0.05);
  // All with the same probability, also for ranges near 2^32.
  const Tensor third = remainder(randint(0, int64_t(3) << 30, {10000}), 3);
  EXPECT_NEAR(mean(eq(third, 0).to(f64)).item(), 1.0 / 3, 0.024);  // five deviations
  const Tensor any =
      randint(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), {1000});
  EXPECT_NEAR(mean(lt(any, 0).to(f64)).item(), 0.5, 0.1);
  EXPECT_ERROR(uniform({2}, 1, 0), "low must be <= high and the range finite, got 1 and 0");
  EXPECT_ERROR(uniform({2}, 0, inf), "low must be <= high and the range finite, got 0 and inf");
  EXPECT_ERROR(uniform({2}, -1e308, 1e308, f64), "the range finite, got -1e+308 and 1e+308");
  EXPECT_ERROR(normal({2}, 0, -1), "the standard deviation must be >= 0, got -1");
  EXPECT_ERROR(randperm(-1), "n must be >= 0, got -1");
}

TEST(Create, UniformNumbersStayInTheirRange) {
  const Seed seed(1);
  struct Range {
    DType dtype;
    double low, high;
    int64_t n = 100000;
  };
  for (const auto& [t, low, high, n] : {Range{f32, 100, 101, 4'000'000},
                                        {f32, -1, 1e-9},
                                        {bf16, 1, 2},
                                        {f16, 1, 2},
                                        {f16, -1, 0},
                                        {bf16, 100, 101},
                                        {f16, -1e6, 1e6},
                                        {f64, 1, 1 + 0x1p-51},
                                        {f64, 1, 1 + 0x1p-52},
                                        {f32, 0.1, 0.3},
                                        {bf16, -0.3, -0.1}}) {
    const Tensor x = uniform({n}, low, high, t);
    EXPECT_LT(max(x).item(), high) << name(t) << low;
    EXPECT_GE(min(x).item(), low) << name(t) << low;
  }
  // The numbers next to both ends occur.
  EXPECT_EQ(max(uniform({4096}, 1, 1 + 0x1p-51, f64)).item(), 1 + 0x1p-52);
  EXPECT_EQ(max(uniform({100000}, 1, 2, bf16)).item(), 2 - 0x1p-7);
  EXPECT_EQ(min(uniform({100000}, 1, 2, bf16)).item(), 1);
  EXPECT_EQ(to_vector(uniform({2}, 5, 5, f16)), (Values{5, 5}));
  // No bf16 is in the range.
  EXPECT_EQ(max(uniform({1000}, 1.001, 1.002, bf16)).item(), 1);
  EXPECT_EQ(max(uniform({1000}, 1.005, 1.006, bf16)).item(), 1);
}

TEST(Create, EndsOfProbabilitiesAreExact) {
  const Seed seed(1);
  for (const DType t : {f64, f32, f16, bf16}) {
    EXPECT_EQ(max(bernoulli(zeros({10000}, t))).item(), 0) << name(t);
    EXPECT_EQ(min(bernoulli(ones({10000}, t))).item(), 1) << name(t);
    EXPECT_EQ(min(dropout(ones({10000}, t), 0)).item(), 1) << name(t);
    EXPECT_EQ(max(dropout(ones({10000}, t), 1)).item(), 0) << name(t);
    const Tensor last = multinomial(from({1, 0, 1, 0}, {4}, t), 1000, true);
    EXPECT_EQ(max(last).item(), 2) << name(t);
    EXPECT_EQ(max(eq(last, 1)).item(), 0) << name(t);
  }
  EXPECT_EQ(max(randint(0, 1, {100000})).item(), 0);
}

TEST(Create, PermutationsComeEquallyOften) {
  const Seed seed(3);
  std::map<std::array<double, 3>, int> counts;
  for (int i = 0; i < 12000; ++i) {
    const Tensor p = randperm(3);
    ++counts[{p.at(0), p.at(1), p.at(2)}];
  }
  EXPECT_EQ(counts.size(), 6);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 2000, 220);  // five deviations
  EXPECT_EQ(randperm(0).shape(), Shape{0});
  const Tensor large = randperm(100000);
  EXPECT_EQ(sum(ne(sort(large).values, arange(0, 100000, 1, i64))).item(), 0);
  EXPECT_NEAR(mean(narrow(large, 0, 0, 1000).to(f64)).item(), 50000, 5000);
}

TEST(Pow, HalvesAreRoots) {
  for (const DType t : {f64, f32, f16, bf16}) {
    const Tensor x = uniform({1000}, 1e-3, 1000).to(t);
    EXPECT_TRUE(equal(pow(x, 0.5), sqrt(x))) << name(t);
    const Tensor zeros = row({0.0, -0.0}, t);
    EXPECT_EQ(to_vector(div(1, pow(zeros, 0.5))), (Values{inf, inf})) << name(t);
    EXPECT_EQ(to_vector(pow(zeros, -0.5)), (Values{inf, inf})) << name(t);
  }
  EXPECT_ERROR(pow(row({4}, i64), 0.5), "cannot combine i64 elements with 0.5");
}

TEST(InPlace, ArithmeticAndItsOperators) {
  const Tensor x = row({8, 6}, f32), y = row({2, 3}, f32);
  x += y;
  x -= 1.0;
  x *= y;
  x /= 3.0;
  EXPECT_EQ(to_vector(x), (Values{6, 8}));
  x -= y;
  x /= y;
  x *= 6.0;
  x += 1.0;
  EXPECT_EQ(to_vector(x), (Values{13, 11}));
  EXPECT_EQ(x.version(), 8u);
  EXPECT_EQ(sub_(x, y).id(), x.id());
  EXPECT_EQ(to_vector(clamp_(x, {}, 9)), (Values{9, 8}));
  const Tensor part = slice(x, 0, 1, 2);  // a view: x changes with it
  div_(part, 4);
  EXPECT_EQ(to_vector(x), (Values{9, 2}));
}

TEST(InPlace, FunctionsOfNumbers) {
  const Tensor x = row({4, 9}), whole = from({1, 2, 3, 4}, {2, 2}), column = whole(Slice(), 0);
  EXPECT_EQ(x.sqrt_().neg_().id(), x.id());
  EXPECT_EQ(to_vector(x), (Values{-2, -3}));
  EXPECT_EQ(to_vector(x.abs_().square_()), (Values{4, 9}));
  EXPECT_EQ(to_vector(x.addcdiv_(row({6, 8}), row({2, 4}), 2).addcmul_(x, row({1}), -1)),
            (Values{0, 0}));
  EXPECT_EQ(to_vector(column.pow_(3).clamp_max_(20).clamp_min_(2)), (Values{2, 20}));
  EXPECT_EQ(to_vector(whole), (Values{2, 2, 20, 4}));
  EXPECT_EQ(to_vector(arange(-1, 2).abs_().pow_(2)), (Values{1, 0, 1}));
  EXPECT_ERROR(arange(3).sqrt_(), "sqrt_: sqrt: elements must be floats, got i64");
  EXPECT_ERROR(expand(ones({1}), {2}).exp_(), "exp_: elements of shape [2] with strides [0] share");
  const Tensor w = row({4}).set_requires_grad();
  EXPECT_ERROR(w.log_(), "log_: a leaf that requires a gradient cannot change in place");
  const Tensor y = w * 5;
  y.addcmul_(w, w).sqrt_();  // sqrt(5 w + w^2)
  EXPECT_NEAR(grad({y}, {w})[0].item(), 13.0 / 12, 1e-6);
}

TEST(InPlace, ResultsOutliveWhatTheyWereMadeOf) {
  const Tensor &sum = add_(ones({2}), 1.0), &product = (ones({2}) *= 3.0);
  EXPECT_EQ(to_vector(sum), (Values{2, 2}));
  EXPECT_EQ(to_vector(product), (Values{3, 3}));
}

TEST(InPlace, TakesNoMemory) {
  const int64_t n = 1 << 16;
  const Tensor x = ones({n}), y = full({n}, 2);
  reset_peak();
  const int64_t before = memory_stats().in_use;
  x += y;
  x *= 3.0;
  clamp_(slice(x, 0, 0, n, 2), {}, 8);
  x.abs_();
  {
    const NoGrad off;
    x.set_requires_grad() -= slice(y, 0, 0, 1);
  }
  EXPECT_LT(memory_stats().peak_total - before, n);
  EXPECT_EQ(x.at(0), 6);
  EXPECT_EQ(x.at(1), 7);
}

TEST(InPlace, ReadsAllBeforeWhatItWrites) {
  const Tensor x = arange(0, 100, 1, f32);
  slice(x, 0, 1) += slice(x, 0, 0, 99);
  for (int64_t i = 1; i < 100; ++i) EXPECT_EQ(x.at(i), double(2 * i - 1));
  const Tensor m = reshape(arange(0, 9, 1, f32), {3, 3});
  m += m.t();
  EXPECT_EQ(to_vector(m), (Values{0, 4, 8, 4, 8, 12, 8, 12, 16}));
  const Tensor y = ones({2, 2}), row = select(y, 0, 0);
  y += row;
  EXPECT_EQ(to_vector(y), (Values{2, 2, 2, 2}));
}

TEST(InPlace, TheResultKeepsItsDtype) {
  const Tensor x = row({1, 2}, f16);
  x += row({0.5, 0.25}, f32);
  EXPECT_EQ(x.dtype(), f16);
  EXPECT_EQ(to_vector(x), (Values{1.5, 2.25}));
  const Tensor n = row({7, -7}, i64);
  n -= row({1, 1}, i32);
  n *= row({3}, u8);
  EXPECT_EQ(to_vector(clamp_(n, -5, {})), (Values{18, -5}));
  EXPECT_EQ(n.dtype(), i64);
  const Tensor half = row({0.5, 0.5}, f32);
  EXPECT_ERROR(n += half, "add_: i64 elements would truncate f32 values");
  const std::string quotients = "div_: i64 elements cannot hold quotients";
  EXPECT_ERROR(div_(n, half), quotients);
  EXPECT_ERROR(n /= 2.0, quotients);
  EXPECT_ERROR(n -= 0.5, "sub_: sub_scalar: cannot combine i64 elements with 0.5");
  EXPECT_ERROR(clamp_(n, 0.5, {}), "clamp_: clamp: cannot combine i64 elements with 0.5");
  EXPECT_ERROR(clamp_(n, {}, {}), "clamp_: clamp: no bound is given");
  EXPECT_ERROR(sub_(n, ones({3}, i64)), "sub_");
  EXPECT_EQ(to_vector(n), (Values{18, -5}));
}

TEST(InPlace, RecordsOnUnsharedStorage) {
  const Tensor x = row({1, 2}, f64).set_requires_grad(), w = row({2, 5}, f64).set_requires_grad();
  EXPECT_ERROR(x -= 1.0, "sub_: a leaf that requires a gradient cannot change in place");
  EXPECT_ERROR(div_(x, w), "div_: a leaf that requires a gradient cannot change in place");
  EXPECT_ERROR(clamp_(x, 0, {}), "clamp_: a leaf that requires a gradient cannot change in place");
  const Tensor y = x * 2;
  y -= w;
  clamp_(y, -10, 0);
  EXPECT_EQ(to_vector(y), (Values{0, -1}));
  sum(y).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{2, 2}));
  EXPECT_EQ(to_vector(w.grad()), (Values{-1, -1}));
  const Tensor z = x + 1;
  z *= 3.0;  // add and mul by a number save nothing
  z -= w;
  sum(z).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{5, 5}));
  const Tensor product = x * 1.0;
  product *= w;  // saves the old product
  product /= w;
  sum(product * product).backward();  // x^2
  EXPECT_NEAR(x.grad().at(1), 5 + 4, 1e-12);
  EXPECT_NEAR(w.grad().at(1), -2, 1e-12);
  const Tensor q = exp(x);
  EXPECT_ERROR(q /= w, "div_: storage that a view or an op that saved it");
}

TEST(InPlace, WritesToWhatWasSavedAreFound) {
  const Tensor x = row({1, 2}, f64).set_requires_grad(), w = row({3, 4}, f64);
  const Tensor y = sum(x / w);
  w -= 1.0;
  EXPECT_ERROR(y.backward(),
               "div: a tensor that div saved for backward was modified in place: it is at "
               "version 1, not 0");
  const Tensor z = sum(clamp(x, 0, 5));
  {
    const NoGrad off;
    clamp_(x, 0, 1);
  }
  EXPECT_ERROR(z.backward(), "that clamp saved");
  const Tensor h = x * 2, t = sum(sin(h));  // sin saves h
  h += 1.0;
  EXPECT_ERROR(t.backward(), "a tensor that sin saved for backward was modified");
  const Tensor a = row({1, 2}, f64).set_requires_grad();
  const Tensor sum_of = sum(a * w);  // the gradient of a reads w alone
  {
    const NoGrad off;
    a += 1.0;
  }
  sum_of.backward();
  EXPECT_EQ(to_vector(a.grad()), to_vector(w));
}

// Rows of a few elements that lie apart, as pairs that stand for complex numbers do after a
// transpose(), in chunks that begin within a row; read, and written in place.
TEST(Strided, ShortRowsAreReadAndWritten) {
  for (int64_t n = 1; n <= 9; ++n) {
    for (const DType dtype : {f32, f16, f64}) {
      const Tensor x = transpose(drawn({2, 70, 90, n}, uint64_t(n)).to(dtype), 1, 2);
      const Tensor dense = clone(x), reversed = flip(x, {3});
      EXPECT_TRUE(equal(square(x), square(dense))) << n;
      EXPECT_TRUE(equal(x * slice(x, 3, n - 1, -1 - n, -1), dense * reversed)) << n;
      const Tensor y = transpose(zeros({2, 70, 90, n}, dtype), 1, 2);
      add_(y, dense);
      EXPECT_TRUE(equal(y, dense)) << n;
    }
  }
}

}  // namespace elementwise_test
}  // namespace mixtape
