// Derivatives of functions, against closed forms and against torch.autograd.functional.

#include "autograd/functional.h"

#include <gtest/gtest.h>

#include "autograd/function.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace functional_test {

using Tensors = std::vector<Tensor>;
using Numbers = std::vector<double>;

void expect_like(const Tensor& t, const Shape& shape, const Numbers& wanted) {
  ASSERT_EQ(t.shape(), shape);
  ASSERT_EQ(t.dtype(), f64);
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(t.at(int64_t(i)), wanted[i], 1e-12) << "element " << i;
}

// The inputs of the figures from torch.autograd.functional (PyTorch 1.13).
struct Functional : testing::Test {
  const Tensor x = from({.5, -1, .25, 2, .75, -.5}, {2, 3}, f64),
               w = from({.3, -.2, .5, .7, .1, -.4}, {2, 3}, f64),
               dx = from({1, 0, -1, .5, 2, .25}, {2, 3}, f64),
               dw = from({0, 1, .5, -1, .25, 2}, {2, 3}, f64);
};
// Two results of two inputs, and a scalar one.
Tensors layer(const Tensors& in) {
  const Tensor h = tanh(matmul(in[0], in[1].t()));
  return {h, softmax(sum(h, {0}) * select(in[1], 1, 0), 0)};
}
Tensor energy(const Tensors& in) {
  const Tensor h = layer(in)[0];
  return sum(h * h * h) + exp(sum(select(in[0], 0, 0) * select(in[1], 0, 1)));
}

TEST_F(Functional, VjpAgreesWithPyTorch) {
  const Tensors v = {from({1, -2, .5, 3}, {2, 2}, f64), from({.25, -1.5}, {2}, f64)};
  const auto [y, product] = vjp(layer, {x, w}, v);
  EXPECT_EQ(to_vector(y[0]), to_vector(layer({x, w})[0]));
  expect_like(product[0], {2, 3},
              {-1.29211192513231, -0.40364939587315, 1.34399161067264, 0.42824728086504,
               -0.08383373599768, 0.15620257348798});
  expect_like(product[1], {2, 3},
              {1.90386604454901, -0.45418898314303, -0.07304897348791, -0.84163741716201,
               2.49936297246285, -0.73605275667032});
}

TEST_F(Functional, JvpAgreesWithPyTorch) {
  const auto [y, product] = jvp(layer, {x, w}, {dx, dw});
  EXPECT_EQ(to_vector(y[1]), to_vector(layer({x, w})[1]));
  expect_like(product[0], {2, 2},
              {-0.86476473560605, 0.83115825974854, 0.36039111861229, -0.30945236495481});
  expect_like(product[1], {2}, {0.13046013926613, -0.13046013926613});
}

TEST_F(Functional, JacobianAgreesWithPyTorch) {
  const auto J = jacobian(layer, {x, w});
  expect_like(J[0][0], {2, 2, 2, 3},
              {0.2413296936575,
               -0.16088646243833,
               0.40221615609584,
               0,
               0,
               0,
               0.68448327273409,
               0.0977833246763,
               -0.39113329870519,
               0,
               0,
               0,
               0,
               0,
               0,
               0.28831289488983,
               -0.19220859659322,
               0.48052149148306,
               0,
               0,
               0,
               0.09168958961624,
               0.01309851280232,
               -0.05239405120928});
  expect_like(J[0][1], {2, 2, 2, 3},
              {0.40221615609584,
               -0.80443231219167,
               0.20110807804792,
               0,
               0,
               0,
               0,
               0,
               0,
               0.48891662338149,
               -0.97783324676298,
               0.24445831169075,
               1.92208596593223,
               0.72078223722459,
               -0.48052149148306,
               0,
               0,
               0,
               0,
               0,
               0,
               0.2619702560464,
               0.0982388460174,
               -0.0654925640116});
  expect_like(J[1][0], {2, 2, 3},
              {-0.09398575618379, -0.02696930518984, 0.09114791838081, 0.00515546546937,
               -0.0154428434903, 0.04178513221388, 0.09398575618379, 0.02696930518984,
               -0.09114791838081, -0.00515546546937, 0.0154428434903, -0.04178513221388});
  expect_like(J[1][1], {2, 2, 3},
              {0.30891823170689, -0.00579873689351, -0.01936931759674, -0.37126567916471,
               0.1422742519341, -0.02894768071658, -0.30891823170689, 0.00579873689351,
               0.01936931759674, 0.37126567916471, -0.1422742519341, 0.02894768071658});
}

TEST_F(Functional, HessianAgreesWithPyTorch) {
  const auto H = hessian(energy, {x, w});
  expect_like(H[0][1], {2, 3, 2, 3},
              {0.66690305764909,  -0.38988031153638, 0.09747007788409,  1.92567634593485,
               -1.39763187668546, 0.34940796917137,  -0.12996010384546, 0.73188310957182,
               -0.06498005192273, 0.09983084833468,  1.02719871092277,  0.04991542416734,
               0.32490025961365,  -0.6498005192273,  0.63441303168772,  -0.3993233933387,
               0.79864678667741,  1.02719871092277,  0.7419831310358,   0.23612438529851,
               -0.15741625686567, -0.41550349050219, -0.28387033623076, 0.18924689082051,
               -0.41977668497513, -0.04509815329256, 0.10494417124378,  -0.10814108046886,
               0.30093116760402,  0.02703527011722,  1.04944171243782,  0.39354064216418,
               -0.15004232453634, 0.43256432187544,  0.16221162070329,  0.23334299231098});
  for (int64_t i = 0; i < 6; ++i)
    for (int64_t j = 0; j < 6; ++j)
      EXPECT_NEAR(H[0][1].at(i * 6 + j), H[1][0].at(j * 6 + i), 1e-14);
}

TEST_F(Functional, HvpAgreesWithPyTorch) {
  const auto [value, product] = hvp(energy, {x, w}, {dx, dw});
  expect_like(value, {}, {2.06941373094384});
  expect_like(product[0], {2, 3},
              {-0.45799464731108, 1.22780466921562, 1.31231693927955, 0.67076967899631,
               0.24672264463908, 0.42493091321296});
  expect_like(product[1], {2, 3},
              {0.61666767982647, 1.91686280510806, -0.98992147615438, 4.80099768090363,
               -0.05609389135099, -1.355916540494});
}

TEST_F(Functional, OneTensorClosedForms) {
  const Tensor a = from({1, 2, 3}, {3}, f64), v = from({1, 0, -1}, {3}, f64);
  const auto cube = [](const Tensor& t) { return t * t * t; };
  const auto total = [&](const Tensor& t) { return sum(cube(t)); };
  EXPECT_EQ(to_vector(jacobian(cube, a)), (Numbers{3, 0, 0, 0, 12, 0, 0, 0, 27}));
  EXPECT_EQ(to_vector(hessian(total, a)), (Numbers{6, 0, 0, 0, 12, 0, 0, 0, 18}));
  EXPECT_EQ(to_vector(vjp(cube, a, v).product), (Numbers{3, 0, -27}));
  EXPECT_EQ(to_vector(vjp(total, a).product), (Numbers{3, 12, 27})) << "v of a scalar is 1";
  EXPECT_EQ(to_vector(jvp(cube, a, v).product), (Numbers{3, 0, -27}));
  const auto [value, product] = hvp(total, a, v);
  EXPECT_EQ(value.item(), 36);
  EXPECT_EQ(to_vector(product), (Numbers{6, 0, -18}));
}

TEST_F(Functional, LeavesTheInputsAlone) {
  const Tensor a = from({1, 2}, {2}, f64).set_requires_grad();
  const NoGrad off;
  const auto f = [](const Tensor& t) { return sum(t * t); };
  for (const Tensor& result : {jacobian(f, a), hessian(f, a), vjp(f, a).product, vjp(f, a).value,
                               hvp(f, a, a).product, jvp(f, a, a).product})
    EXPECT_FALSE(result.requires_grad());
  EXPECT_FALSE(a.grad());
}

TEST_F(Functional, ResultsMayHaveAHistory) {
  const Tensor a = from({0.5, -1.5}, {2}, f64).set_requires_grad();
  const Tensor v = from({2, -1}, {2}, f64);
  const auto f = [](const Tensor& t) { return sin(t) * select(t, 0, 1); };
  const auto total = [&](const Tensor& t) { return sum(f(t)); };
  const DerivativeOptions o{.create_graph = true};
  EXPECT_EQ(gradcheck([&](const auto& in) { return jacobian(f, in[0], o); }, {a}), "");
  EXPECT_EQ(gradcheck([&](const auto& in) { return hessian(total, in[0], o); }, {a}), "");
  EXPECT_EQ(gradcheck([&](const auto& in) { return vjp(f, in[0], v, o).product; }, {a}), "");
  EXPECT_EQ(gradcheck([&](const auto& in) { return jvp(f, in[0], v, o).product; }, {a}), "");
  EXPECT_EQ(gradcheck([&](const auto& in) { return hvp(total, in[0], v, o).product; }, {a}), "");
  EXPECT_EQ(gradcheck([&](const auto& in) { return vjp(f, in[0], v, o).value; }, {a}), "");
  // v may be differentiated too.
  const Tensor u = v.detach().set_requires_grad();
  EXPECT_EQ(gradcheck([&](const auto& in) { return jvp(f, a, in[0], o).product; }, {u}), "");
  EXPECT_ERROR(gradcheck([](const auto& in) { return in[0].to(f32); }, {u}),
               "gradcheck needs an f64 result, not f32");
  EXPECT_ERROR(gradcheck([](const auto& in) { return in[0]; }, {u.to(f32)}),
               "gradcheck found no f64 input that requires a gradient");
}

TEST_F(Functional, InputsAreIndependent) {
  const Tensor a = from({3}, {1}, f64).set_requires_grad();
  const Tensor b = a * 2;
  const auto f = [](const Tensors& in) { return Tensors{in[0] * in[1]}; };
  for (const bool create : {false, true}) {
    const auto J = jacobian(f, {a, b}, {.create_graph = create});
    EXPECT_EQ(J[0][0].item(), 6);
    EXPECT_EQ(J[0][1].item(), 3);
    const auto twice = jacobian(f, {a, a}, {.create_graph = create});
    EXPECT_EQ(twice[0][0].item(), 3);
  }
}

TEST_F(Functional, ZerosWhereNothingDepends) {
  const Tensor a = from({1, 2}, {2}, f64), b = from({3}, {1}, f64);
  const auto f = [](const Tensors& in) { return Tensors{in[0] * 2, ones({2, 2}, f64), in[0]}; };
  const auto J = jacobian(f, {a, b});
  EXPECT_EQ(to_vector(J[0][0]), (Numbers{2, 0, 0, 2}));
  expect_like(J[0][1], {2, 1}, {0, 0});
  expect_like(J[1][0], {2, 2, 2}, {0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(to_vector(J[2][0]), (Numbers{1, 0, 0, 1})) << "the input itself";
  const auto pushed = jvp(f, {a, b}, {ones({2}, f64), b}).product;
  EXPECT_EQ(to_vector(pushed[0]), (Numbers{2, 2}));
  EXPECT_EQ(to_vector(pushed[1]), (Numbers{0, 0, 0, 0}));
  EXPECT_EQ(to_vector(pushed[2]), (Numbers{1, 1}));
  const auto pulled = vjp(f, {a, b}, {ones({2}, f64), ones({2, 2}, f64), ones({2}, f64)}).product;
  EXPECT_EQ(to_vector(pulled[0]), (Numbers{3, 3}));
  EXPECT_EQ(to_vector(pulled[1]), (Numbers{0}));
  const auto H = hessian([](const Tensors& in) { return sum(in[0] * 3.0) + sum(in[1]); }, {a, b});
  EXPECT_EQ(to_vector(H[0][0]), (Numbers{0, 0, 0, 0}));
  expect_like(H[0][1], {2, 1}, {0, 0});
}

TEST_F(Functional, EmptyInputsAndResults) {
  const auto f = [](const Tensor& t) { return t * 2; };
  EXPECT_EQ(jacobian(f, Tensor({0, 3}, f32)).shape(), Shape({0, 3, 0, 3}));
  EXPECT_EQ(hessian([](const Tensor& t) { return sum(t * t); }, Tensor({0}, f32)).shape(),
            Shape({0, 0}));
}

struct Fused {
  static constexpr OpInfo info{"test_fused"};
  static constexpr bool first_order_only = true;
  static Tensor forward(Ctx&, const Tensor& t) { return clone(t); }
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy * 1.0}; }
};

TEST_F(Functional, TakesParametersAsAVector) {
  const Tensors params{x.clone().set_requires_grad(), full({}, 7, f64).set_requires_grad()};
  const Tensor all = parameters_to_vector(params);
  expect_like(all, {7}, {.5, -1, .25, 2, .75, -.5, 7});
  (all * all).sum().backward();
  expect_like(params[0].grad(), {2, 3}, {1, -2, .5, 4, 1.5, -1});
  vector_to_parameters(all * 2, params);
  expect_like(params[0].detach(), {2, 3}, {1, -2, .5, 4, 1.5, -1});
  expect_like(params[1].detach(), {}, {14});
  EXPECT_TRUE(params[0].is_leaf());
  EXPECT_ERROR(vector_to_parameters(ones({8}, f64), params),
               "vector_to_parameters: the parameters need a vector of shape [7], got [8]");
  EXPECT_ERROR(vector_to_parameters(ones({7, 1}, f64), params),
               "a vector of shape [7], got [7, 1]");
}

TEST_F(Functional, RefusesWhatDoesNotFit) {
  const auto twice = [](const Tensor& t) { return t * 2; };
  const auto both = [](const Tensors& in) { return Tensors{in[0], in[1]}; };
  const Tensor a = ones({2}, f64);
  EXPECT_ERROR(vjp(twice, a), "vjp: backward() of a tensor of shape [2] needs a gradient");
  EXPECT_ERROR(vjp(twice, a, ones({3}, f64)), "vjp: vector 0 has shape [3], the result has [2]");
  EXPECT_ERROR(vjp(both, {a, a}, {a}), "vjp: 2 results need as many vectors, got 1");
  EXPECT_ERROR(jvp(twice, a, ones({3}, f64)), "jvp: vector 0 has shape [3], the input has [2]");
  EXPECT_ERROR(jvp(both, {a, a}, {a, Tensor()}), "jvp: vector 1 has shape none");
  EXPECT_ERROR(hvp(twice, a, a), "hvp: the function gives shape [2], not a single element");
  EXPECT_ERROR(hvp(twice, a, ones({1}, f64)), "hvp: vector 0 has shape [1], the input has [2]");
  EXPECT_ERROR(hessian(twice, a), "hessian: the function gives shape [2], not a single element");
  EXPECT_ERROR(jacobian(twice, Tensor()), "jacobian: input 0 is undefined");
  EXPECT_ERROR(jacobian(twice, ones({2}, i64)), "only float tensors can require a gradient");
  EXPECT_ERROR(jacobian(twice, ones({1, 1, 1, 1, 1}, f64)),
               "jacobian: [1, 1, 1, 1, 1] by [1, 1, 1, 1, 1] are more than 8 dimensions");
  EXPECT_ERROR(jvp([](const Tensor& t) { return call<Fused>(t); }, a, a),
               "the gradient of test_fused is a fused kernel, which can't be differentiated again");
}

}  // namespace functional_test
}  // namespace mixtape
