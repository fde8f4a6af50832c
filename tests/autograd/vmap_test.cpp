// vmap against loops, and gradients by example against those of each example alone.
#include "autograd/vmap.h"

#include <gtest/gtest.h>

#include <map>

#include "amp/autocast.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "core/dispatch.h"
#include "core/random.h"
#include "core/warn.h"
#include "nn/nn.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
using namespace internal;
namespace vmap_test {

using Tensors = std::vector<Tensor>;
using test::error;

// --- vmap ---

TEST(Vmap, StacksResultsOfEachExample) {
  const Tensor x = from({1, 2, 3, 4, 5, 6}, {2, 3}, f64);
  const auto norms = vmap([](const Tensor& row) { return sum(row * row); });
  EXPECT_EQ(to_vector(norms(x)), (std::vector<double>{14, 77}));
  const auto columns =
      vmap([](const Tensor& c) { return c * 2.0; }, {.in_dims = {1}, .out_dims = {-1}});
  EXPECT_EQ(to_vector(columns(x)), to_vector(x * 2.0));
}

TEST(Vmap, TakesAndGivesPartsAndComparisons) {
  const Tensor x = from({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  const auto first = vmap([](const Tensor& t) { return t[0]; });
  EXPECT_EQ(to_vector(first(x)), (Values{1, 5}));
  EXPECT_EQ(to_vector(vmap([](const Tensor& t) { return t * 2 > 6; })(x[0])), (Values{0, 0, 0, 1}));
  EXPECT_EQ(to_vector(first(x > 4)), (Values{0, 1}));
  EXPECT_EQ(to_vector(checkpoint([](const Tensor& t) { return t[1]; }, x[1])), (Values{6}));
}

TEST(Vmap, GivesAllExamplesWhatHasNoDimension) {
  const Tensor x = from({1, 2, 3, 4}, {2, 2}), w = from({1, 10}, {2}), absent;
  const auto f = vmap(
      [](const Tensor& row, const Tensor& by, const Tensor& none) {
        EXPECT_FALSE(none);
        return dot(row, by);
      },
      {.in_dims = {0, std::nullopt, std::nullopt}});
  EXPECT_EQ(to_vector(f(x, w, absent)), (std::vector<double>{21, 43}));
}

TEST(Vmap, SharesTheSlopesOfPrelu) {
  const Seed seed(0);
  for (const Shape& shape : {Shape{4, 5}, Shape{4, 2, 3}, Shape{4, 2, 3, 5}})
    for (const int64_t slopes : {int64_t{1}, shape.rank > 2 ? shape[2] : int64_t{1}}) {
      const Tensor x = randn(shape).set_requires_grad(),
                   w = full({slopes}, 0.25).set_requires_grad(), dy = randn(shape);
      const auto f = [&](const Tensor& t) { return prelu(t, w); };
      Tensors each;
      for (int64_t i = 0; i < x.size(0); ++i) each.push_back(f(x[i]));
      const Tensors want = grad({stack(each)}, {x, w}, {.gradients = {dy}}),
                    got = grad({vmap(f)(x)}, {x, w}, {.gradients = {dy}});
      EXPECT_EQ(to_vector(got[0]), to_vector(want[0])) << shape;
      EXPECT_EQ(got[1].shape(), w.shape());
      EXPECT_LE(norm(got[1] - want[1]).item(), 1e-6 * norm(want[1]).item()) << shape;
    }
}

TEST(Vmap, MayBeNestedAndBranch) {
  const Tensor x = from({1, -2, 3, -4}, {2, 2}), y = from({5, 6}, {2});
  const auto each = [](const Tensor& a, const Tensor& b) {
    return a.item() > 0 ? a * b : zeros_like(a);  // a number: each example has its own
  };
  const auto row = [&](const Tensor& a) { return vmap(each)(a, y); };
  EXPECT_EQ(to_vector(vmap(row)(x)), (std::vector<double>{5, 0, 15, 0}));
  // The outer product.
  const auto outer =
      vmap([&](const Tensor& a) { return vmap([&](const Tensor& b) { return a * b; })(y); });
  EXPECT_EQ(to_vector(outer(from({1, 2}, {2}))), (std::vector<double>{5, 6, 10, 12}));
}

TEST(Vmap, HasSeveralResults) {
  const Tensor x = from({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensors both =
      vmap([](const Tensor& r) { return Tensors{sum(r), r * 2.0}; }, {.out_dims = {0, 1}})(x);
  EXPECT_EQ(to_vector(both[0]), (std::vector<double>{6, 15}));
  EXPECT_EQ(both[1].shape(), (Shape{3, 2}));
  EXPECT_EQ(to_vector(both[1]), (std::vector<double>{2, 8, 4, 10, 6, 12}));
}

TEST(Vmap, IsRecordedAndMayCallGrad) {
  const Tensor x = from({1, 2, 3, 4}, {2, 2}, f64).set_requires_grad();
  sum(vmap([](const Tensor& row) { return prod(row); })(x)).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 1, 4, 3}));
  // The gradient of each example's loss.
  const Tensor w = from({0.5, 2}, {2}, f64).set_requires_grad();
  const auto of_w =
      vmap([](const Tensor& weights,
              const Tensor& row) { return grad({square(dot(weights, row))}, {weights})[0]; },
           {.in_dims = {std::nullopt, 0}});
  EXPECT_EQ(to_vector(of_w(w, x.detach())), (std::vector<double>{9, 18, 57, 76}));
}

TEST(Vmap, SaysWhatDoesNotFit) {
  const Tensor x = ones({2, 3}), y = ones({3});
  const auto f = [](const Tensor& a, const Tensor& b) { return a + b; };
  EXPECT_EQ(error([&] { vmap(f, {.in_dims = {0, 0, 0}})(x, y); }),
            "vmap: in_dims must be one or, as inputs, 2, got 3");
  EXPECT_EQ(error([&] { vmap(f)(x, y); }), "vmap: input 1 has 3 examples, others have 2");
  EXPECT_EQ(error([&] { vmap(f)(x, Tensor()); }), "vmap: input 1 is undefined");
  EXPECT_EQ(error([&] { vmap(f, {.in_dims = {std::nullopt}})(x, y); }),
            "vmap: no input has an example");
  EXPECT_EQ(error([&] { vmap(f)(ones({0}), ones({0})); }), "vmap: no input has an example");
  EXPECT_EQ(error([&] { vmap([](const Tensor&) { return Tensor(); })(x); }),
            "vmap: result 0 of example 0 is undefined");
  int64_t calls = 0;
  EXPECT_EQ(error([&] { vmap([&](const Tensor&) { return ones({++calls}); })(x); }),
            "vmap: result 0 of example 1 has shape [2], that of the first [1]");
  calls = 0;
  EXPECT_EQ(error([&] { vmap([&](const Tensor& a) { return Tensors(size_t(++calls), a); })(x); }),
            "vmap: example 1 has 2 results, the first has 1");
  EXPECT_EQ(error([&] { vmap([](const Tensor& a) { return a; }, {.out_dims = {0, 0}})(x); }),
            "vmap: out_dims must be one or, as results, 1, got 2");
}

// --- gradients by example ---

using Losses = std::function<Tensor(const Tensors&)>;

// Compares with the gradients of each example's loss, computed alone.
void expect_those_of_a_loop(const Losses& f, const Tensors& params, const Tensors& inputs,
                            double tolerance = 1e-12, bool check = true) {
  const Tensors all = per_sample_gradients(f, params, inputs, {.check = check});
  ASSERT_EQ(all.size(), params.size());
  const int64_t n = inputs[0].size(0);
  for (int64_t b = 0; b < n; ++b) {
    Tensors one;
    for (const Tensor& t : inputs) one.push_back(slice(t, 0, b, b + 1));
    const Tensors want = grad({sum(f(one))}, params, {.allow_unused = true});
    for (size_t k = 0; k < params.size(); ++k) {
      Shape shape = params[k].shape();
      const Tensor got = select(all[k], 0, b);
      ASSERT_EQ(got.shape(), shape);
      EXPECT_EQ(got.dtype(), params[k].dtype());
      for (int64_t i = 0; i < got.numel(); ++i)
        EXPECT_NEAR(got.at(i), want[k] ? want[k].at(i) : 0, tolerance) << "parameter " << k;
    }
  }
  for (const Tensor& p : params) {
    EXPECT_FALSE(p.grad());
    EXPECT_FALSE(p.requires_grad() && all[0].requires_grad());
  }
}
Tensor weights(const Shape& shape) { return randn(shape, f64).set_requires_grad(); }
// A loss of each example from a result of any shape.
Tensor loss_of(const Tensor& y) {
  const int64_t n = y.size(0);
  const Tensor rows = reshape(y, {n, y.numel() / n});
  return sum(square(rows) + rows * 0.5, {1});
}

struct Count : Observer {
  std::map<std::string_view, int> calls;
  void after(const Call& call, const Tensor&) override { ++calls[call.op.name]; }
};

// The calls that run a rule for each example: those of slice_scatter, by which it begins.
int rules_run(const Losses& f, const Tensors& params, const Tensors& inputs) {
  Count count;
  const Observe watch(count);
  per_sample_gradients(f, params, inputs, {.check = false});
  return count.calls["slice_scatter"];
}

TEST(PerSample, PartsOfAParameterAreWhereTheyBegin) {
  const Seed seed(1);
  const Tensor w = weights({3, 4}), x = randn({5, 4}, f64);
  for (const auto& part : std::vector<std::function<Tensor()>>{
           [&] { return w(1); }, [&] { return w(Slice(2, None))(0); },
           [&] { return w(2, Slice(None, None, -1)); }, [&] { return unbind(w, 0)[1]; },
           [&] { return w(Slice(None, None, -2))(1); }})
    for (const int64_t n : {1, 5})
      expect_those_of_a_loop([&](const Tensors& in) { return sum(in[0] * part(), {1}); }, {w},
                             {slice(x, 0, 0, n)});
}

TEST(PerSample, LinearLayersTakeOnePass) {
  const Seed seed(1);
  const Tensor w = weights({4, 3}), b = weights({4}), v = weights({2, 4}), x = randn({5, 3}, f64);
  for (const Activation a : {Activation::None, Activation::Relu, Activation::Gelu}) {
    const Losses f = [&](const Tensors& in) {
      return loss_of(linear(linear(in[0], w, b, {a}), v));
    };
    expect_those_of_a_loop(f, {w, b, v}, {x});
    expect_those_of_a_loop(f, {b}, {x});
    Count count;
    const Observe watch(count);
    per_sample_gradients(f, {w, b, v}, {x}, {.check = false});
    EXPECT_EQ(count.calls["linear"], 2);
  }
}

TEST(PerSample, SequencesAddUpTheirRows) {
  const Seed seed(2);
  const Tensor table = weights({7, 4}), place = weights({3, 4}), scale = weights({4}),
               shift = weights({4}), w = weights({4, 4}), gain = weights({4}),
               index = from({0, 1, 2, 2, 2, 6, 5, 4, 0, 3, 3, 3}, {4, 3}, i64);
  for (const std::optional<int64_t> padding :
       {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    const Losses f = [&](const Tensors& in) {
      const Tensor x = embedding(table, in[0], {.padding_idx = padding}) + place;
      const Tensor h = layer_norm(x, {4}, scale, shift);
      const Tensor a = scaled_dot_product_attention(h, linear(h, w), h, {.causal = true});
      return loss_of(rms_norm(x + a, {4}, gain));
    };
    expect_those_of_a_loop(f, {table, place, scale, shift, w, gain}, {index});
  }
}

TEST(PerSample, ConvolutionsInGroupsWithStrides) {
  const Seed seed(3);
  const Tensor w = weights({4, 2, 3, 3}), b = weights({4}), scale = weights({4}),
               shift = weights({4}), v = weights({4, 1, 2, 2}), u = weights({4, 3, 2, 3}),
               c = weights({6}), x = randn({3, 4, 6, 5}, f64);
  const ConvTranspose2dOptions second{
      .stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 2}, .groups = 2};
  const Losses f = [&](const Tensors& in) {
    const Conv2dOptions first{
        .stride = {2, 1}, .padding = 1, .groups = 2, .activation = Activation::Relu};
    const Tensor h = group_norm(conv2d(in[0], w, b, first), 2, scale, shift);
    return loss_of(conv_transpose2d(conv2d(h, v, {}, {.groups = 4}), u, c, second));
  };
  expect_those_of_a_loop(f, {w, b, scale, shift, v, u, c}, {x}, 1e-11);
  EXPECT_EQ(rules_run(f, {w, b, scale, shift, v, u, c}, {x}), 0);
  const Tensor kernel = weights({3, 4, 3});
  expect_those_of_a_loop(
      [&](const Tensors& in) { return loss_of(conv1d(in[0].flatten(2), kernel)); }, {kernel}, {x});
}

TEST(PerSample, ProductsOfMatrices) {
  const Seed seed(9);
  const Tensor w = weights({3, 4}), v = weights({4, 2}), row = weights({2}), all = weights({10, 2}),
               each = weights({5, 3, 2}), x = randn({5, 2, 3}, f64);
  const Losses f = [&](const Tensors& in) {
    const Tensor h = matmul(in[0].flatten(0, 1), w, {.alpha = 0.5});
    const Tensor y = addmm(row, h, v, {.alpha = 3}) + addmm(all, h, v);
    const Tensor left = matmul(each.transpose(1, 2), in[0].transpose(1, 2));  // of its own
    return loss_of(y.reshape({in[0].size(0), 4})) + loss_of(left);
  };
  // A loop would need the rows of `all` and `each` that belong to the example.
  const Losses of_shared = [&](const Tensors& in) {
    const Tensor h = matmul(in[0].flatten(0, 1), w, {.alpha = 0.5});
    const Tensor last = matmul(in[0].transpose(1, 2), in[0]);  // [n, 3, 3]
    return loss_of(addmm(row, h, v, {.alpha = 3}).reshape({in[0].size(0), 4})) +
           loss_of(matmul(last.transpose(1, 2), w));
  };
  expect_those_of_a_loop(of_shared, {w, v, row}, {x}, 1e-11);
  EXPECT_EQ(rules_run(of_shared, {w, v, row}, {x}), 0);
  const Tensors got = per_sample_gradients(f, {w, all, each}, {x}, {.check = false});
  for (int64_t b = 0; b < 5; ++b) {
    const Tensors want = grad({select(f({x}), 0, b)}, {w, all, each});
    for (size_t k = 0; k < want.size(); ++k) {
      const Tensor difference = select(got[k], 0, b) - want[k];
      EXPECT_LE(max(abs(difference)).item(), 1e-11) << k << " " << b;
    }
  }
  const Tensor heads = weights({4, 3});
  EXPECT_EQ(error([&] {
              per_sample_gradients(
                  [&](const Tensors& in) {  // [2, 3, 5]
                    return sum(matmul(heads, in[0].transpose(0, 1).transpose(1, 2).contiguous()),
                               {0, 1});
                  },
                  {heads}, {x});
            }),
            "per_sample_gradients: 2 rows, of shape [2, 4, 3], do not belong to 5 examples");
}

TEST(PerSample, RecurrentLayers) {
  const Seed seed(10);
  const Tensor x = randn({3, 4, 5}), h = weights({6});  // [b, t, in]
  const nn::RecurrentLayerOptions o{.num_layers = 2, .batch_first = true, .bidirectional = true};
  nn::LSTM lstm(5, 6, o);
  nn::GRU gru(5, 6, o);
  nn::RNN rnn(5, 6);
  nn::GRUCell cell(5, 6);
  for (nn::ModuleBase* m : std::initializer_list<nn::ModuleBase*>{&lstm, &gru, &rnn, &cell})
    m->to(f64);
  const Tensor input = x.to(f64);
  const auto expect = [&](const Losses& f, Tensors params) {
    expect_those_of_a_loop(f, params, {input});
    EXPECT_EQ(rules_run(f, params, {input}), 0);
  };
  expect(
      [&](const Tensors& in) {
        const auto y = lstm(in[0]);
        return loss_of(y.output) + loss_of(transpose(y.c_n, 0, 1));
      },
      lstm.parameters());
  expect([&](const Tensors& in) { return loss_of(gru(in[0]).output); }, gru.parameters());
  Tensors with_start = rnn.parameters();
  with_start.push_back(h);
  expect(
      [&](const Tensors& in) {
        const Tensor start = expand(h, {1, in[0].size(0), 6});
        return loss_of(rnn(transpose(in[0], 0, 1), start).h_n.squeeze(0));
      },
      with_start);
  expect([&](const Tensors& in) { return loss_of(cell(select(in[0], 1, 0))); }, cell.parameters());
}

TEST(PerSample, WhatBroadcasts) {
  const Seed seed(4);
  const Tensor x = randn({4, 3, 2}, f64), shapes[] = {weights({2}), weights({3, 1}), weights({}),
                                                      weights({1, 3, 2}), weights({1, 1, 1})};
  for (const Tensor& p : shapes)
    expect_those_of_a_loop([&](const Tensors& in) { return loss_of(sin(in[0] * p) + p); }, {p},
                           {x});
}

TEST(PerSample, ParametersOfParameters) {
  const Seed seed(5);
  const Tensor w = weights({3, 4}), g = weights({4}), x = randn({5, 3}, f64);
  const Losses f = [&](const Tensors& in) {
    const Tensor normed = w * (g / norm(w, 2, {0}));
    return loss_of(matmul(tanh(matmul(in[0], normed)), w.t()));
  };
  const Tensor unused = weights({2});
  expect_those_of_a_loop(f, {w, g, unused}, {x});
}

TEST(PerSample, OfAModelUnderAutocast) {
  const Seed seed(6);
  struct Net : nn::Module<Net> {
    nn::Linear in{6, 8};
    nn::LayerNorm norm{8};
    nn::Linear out{8, 3};
    Tensor forward(const Tensor& x) const { return out(gelu(norm(in(x)))); }
    MIXTAPE_FIELDS(in, norm, out)
  };
  const Net net;
  const Tensor x = randn({4, 6}), target = from({0, 2, 1, 1}, {4}, i64);
  const Losses f = [&](const Tensors& in) {
    return cross_entropy(net(in[0]), in[1], {.reduction = Reduction::None});
  };
  const Tensor tokens = randn({4, 3, 6});
  const Losses of_tokens = [&](const Tensors& in) {
    return cross_entropy(mean(net(in[0]), {1}), in[1], {.reduction = Reduction::None});
  };
  expect_those_of_a_loop(f, net.parameters(), {x, target}, 2e-6);
  const OnWarning unscaled([](const std::string&) {});
  for (const amp::AutocastOptions& region :
       std::vector<amp::AutocastOptions>{{.low = bf16},
                                         {.low = f16},
                                         {.low = f16, .preset = amp::Preset::TensorCoresOnly},
                                         {.recipe = amp::Current{}, .ends = true},
                                         {.recipe = amp::Mx{}, .ends = true}}) {
    const amp::Autocast on(region);
    expect_those_of_a_loop(f, net.parameters(), {x, target}, 2e-6);
    expect_those_of_a_loop(of_tokens, net.parameters(), {tokens, target}, 2e-6);
  }
}

// Under autocast a cell returns its state in f32, beside the op's result.
TEST(PerSample, OfCellsInTurnUnderAutocast) {
  const Seed seed(9);
  const nn::GRUCell gru(4, 3);
  const nn::LSTMCell lstm(4, 3);
  const Tensor x = randn({4, 4});
  const amp::Autocast on(bf16);
  expect_those_of_a_loop([&](const Tensors& in) { return loss_of(gru(in[0], gru(in[0])).to(f32)); },
                         gru.parameters(), {x}, 2e-6);
  expect_those_of_a_loop(
      [&](const Tensors& in) { return loss_of(lstm(in[0], lstm(in[0])).h.to(f32)); },
      lstm.parameters(), {x}, 2e-6);
}

TEST(PerSample, OneExampleAndFrozenParameters) {
  const Seed seed(7);
  const Tensor w = weights({2, 3}), frozen = randn({3}, f64), x = randn({1, 3}, f64);
  expect_those_of_a_loop([&](const Tensors& in) { return loss_of(linear(in[0] * frozen, w)); }, {w},
                         {x});
}

TEST(PerSample, FindsExamplesThatDependOnEachOther) {
  const Seed seed(8);
  const nn::BatchNorm1d norm(3);
  const nn::Linear layer(3, 3);
  const Tensor x = randn({4, 3});
  const auto found = [&](const Losses& f, const PerSampleOptions& o = {}) {
    return error([&] { per_sample_gradients(f, layer.parameters(), {x}, o); });
  };
  const std::string differs = "per_sample_gradients: the last example's gradient differs by ";
  const Losses mixed = [&](const Tensors& in) {
    const Tensor h = layer(in[0]);
    return loss_of(h - mean(h, {0}));
  };
  const Losses normed = [&](const Tensors& in) { return loss_of(norm(layer(in[0]))); };
  EXPECT_TRUE(found(mixed).starts_with(differs));
  EXPECT_TRUE(found(mixed).ends_with(
      "examples depend on each other, do not follow each other along dimension 0, or f draws "
      "(vmap() calls a function for each example)"));
  EXPECT_EQ(found(mixed, {.check = false}), "no error");
  EXPECT_NE(found(normed), "no error");
  EXPECT_TRUE(found([&](const Tensors& in) {
                return loss_of(layer(dropout(in[0], 0.5)));
              }).starts_with(differs));
  const Tensor y = randn({4, 2, 3});
  EXPECT_TRUE(error([&] {
                per_sample_gradients(
                    [&](const Tensors& in) {
                      return loss_of(transpose(layer(transpose(in[0], 0, 1)), 0, 1));
                    },
                    layer.parameters(), {y});
              }).starts_with(differs));
}

TEST(PerSample, SaysWhatDoesNotFit) {
  const Tensor w = ones({2, 3}).set_requires_grad(), x = ones({4, 3}), product = w * 2.0;
  const auto found = [&](const Losses& f, const Tensors& params, const Tensors& inputs) {
    return error([&] { per_sample_gradients(f, params, inputs); });
  };
  const Losses f = [&](const Tensors& in) { return sum(linear(in[0], w), {1}); };
  const std::string op = "per_sample_gradients: ";
  EXPECT_EQ(found(f, {w}, {}), op + "no input has an example");
  EXPECT_EQ(found(f, {w}, {ones({0, 3})}), op + "no input has an example");
  EXPECT_EQ(found(f, {w}, {ones({})}), op + "input 0 has no dimension of examples");
  EXPECT_EQ(found(f, {w}, {x, ones({3})}), op + "input 1 has 3 examples, others have 4");
  EXPECT_EQ(found(f, {product}, {x}), op + "parameter 0 is not a leaf that requires a gradient");
  EXPECT_EQ(found([&](const Tensors& in) { return sum(linear(in[0], w)); }, {w}, {x}),
            op + "f must give losses of shape [4] that depend on parameters, got []");
  EXPECT_EQ(found([&](const Tensors&) { return ones({4}); }, {w}, {x}),
            op + "f must give losses of shape [4] that depend on parameters, got [4]");
  EXPECT_TRUE(found(
                  [&](const Tensors& in) {
                    return sum(checkpoint([&](const Tensor& t) { return linear(t, w); }, in[0]),
                               {1});
                  },
                  {w}, {x})
                  .ends_with("checkpoint() keeps no graph for gradients by example"));
  EXPECT_EQ(found(
                [&](const Tensors& in) {
                  return sum(prelu(in[0].t(), w.flatten()[0].reshape({1})).t(), {1});
                },
                {w}, {x}),
            op + "prelu gives shape [3, 4], whose rows do not belong to 4 examples");
}

}  // namespace vmap_test
}  // namespace mixtape
