// The tape and its engine: recording, the order of backward, ownership of gradients, hooks.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "autograd/checkpoint.h"
#include "autograd/function.h"
#include "core/format.h"
#include "tests/support/errors.h"

namespace mixtape {
using namespace internal;
namespace tape_test {

Tensor leaf(std::initializer_list<double> v, const Shape& s, DType t = f64) {
  return from(v, s, t).set_requires_grad();
}

TEST(Tape, AddsUpEveryUseOfALeaf) {
  const Tensor x = leaf({2, 3}, {2});
  sum(x * x + x).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{5, 7}));
  sum(x).backward();  // accumulates
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{6, 8}));
}

TEST(Tape, GradKeepsItsAddressAndSharesNoStorage) {
  const Tensor x = leaf({1, 2}, {2}), y = leaf({3, 4}, {2});
  const Tensor seed = ones({2}, f64);
  (x + y).backward({.gradient = seed});  // add hands the same gradient to both
  EXPECT_NE(x.grad().raw(), y.grad().raw());
  EXPECT_NE(x.grad().raw(), seed.raw());
  const void* const where = x.grad().raw();
  (x + y).backward({.gradient = seed});
  EXPECT_EQ(x.grad().raw(), where);
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 2}));
  EXPECT_EQ(to_vector(seed), (std::vector<double>{1, 1}));
}

// A number of ops that would overflow the stack if they were freed one inside the other. (Fewer on
// a device, whose launches are emulated: the freed memory is the host's.)
int many_ops() { return DefaultDevice::current().is_host() ? 1'000'000 : 100'000; }

TEST(Tape, AMillionOpsRunAndAreFreed) {
  const Tensor x = leaf({1}, {1});
  const int ops = many_ops();
  {
    Tensor y = x;
    for (int i = 0; i < ops; ++i) y = y + 1e-6;
    y.backward();
  }
  EXPECT_EQ(x.grad().item(), 1);
  const int64_t before = memory_stats().in_use;
  {
    Tensor y = x;
    for (int i = 0; i < ops; ++i) y = tanh(y);  // keeps its results
  }
  EXPECT_EQ(memory_stats().in_use, before);
}

TEST(Tape, SavedInputsDoNotRecurseWhenFreed) {
  const int64_t before = memory_stats().in_use;
  {
    Tensor y = leaf({1}, {1}), product = y, total = y;
    for (int i = 0, n = many_ops() / 3; i < n; ++i) {
      y = sin(y);  // keeps its inputs, each of which holds its maker
      product = product * product;
      total = total + total;
    }
  }
  EXPECT_EQ(memory_stats().in_use, before);
}

TEST(Tape, HooksDoNotRecurseWhenFreed) {  // each holds a tensor whose hook holds the next
  const Tensor x = leaf({1}, {1});
  const int64_t before = memory_stats().in_use;
  {
    Tensor y = x * 1.0;
    for (int i = 0, n = many_ops() / 3; i < n; ++i) {
      const Tensor next = x * 1.0;
      register_hook(next, [y](const Tensor&) { return y; });
      y = next;
    }
  }
  EXPECT_EQ(memory_stats().in_use, before);
}

TEST(Tape, GradientsThatAreKeptKeepNothingElse) {
  const Tensor many = zeros({100'000}), few = leaf({1, 2}, {2});
  sum(cat({many.to(f64), few})).backward();
  EXPECT_EQ(few.grad().storage()->bytes(), 16u);
}

TEST(Tape, WhatIsAddedUpAtTheStartIsNotRecorded) {
  const Tensor x = leaf({1, 2}, {2}), g = leaf({3, 4}, {2}), y = x * 2;
  const Tensor dy = grad({y, y}, {y}, {.gradients = {g, g * 3}})[0];
  EXPECT_FALSE(dy.requires_grad());
  EXPECT_EQ(dy.at(1), 16);
}

TEST(Tape, NothingLeaks) {
  const int64_t before = memory_stats().in_use;
  {
    const Tensor x = leaf({1, 2}, {2});
    Tensor y = exp(tanh(x)) * sigmoid(x);  // ops that keep their own results
    sum(y).backward({.create_graph = true});
    x.set_grad({});
  }
  EXPECT_EQ(memory_stats().in_use, before);
}

TEST(Tape, FreesWhatWasSavedUnlessAskedToKeepIt) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor y = sum(x * x);
  y.backward({.retain_graph = true});
  y.backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{4, 8}));
  EXPECT_ERROR(
      y.backward(),
      "mul: second backward() through mul: its saved tensors were freed by the first (pass "
      "{.retain_graph = true} to it, or detach() tensors passed from one graph to the "
      "next)");
}

TEST(Tape, TakesTheGradientOfAResultAsInPyTorch) {
  const Tensor x = leaf({1, 2}, {2}), y = x * x, dy = from({1, 10}, {2}, f64);
  y.backward(dy, true);
  y.backward(dy);
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{4, 80}));
  EXPECT_ERROR(y.backward(dy), "second backward()");
}

TEST(Tape, RefusesWhatItCannotDo) {
  const Tensor x = leaf({1, 2}, {2});
  EXPECT_ERROR((x * 2).backward(), "shape [2] needs a gradient");
  EXPECT_ERROR(from({1}, {1}).backward(), "grad() without {.create_graph = true}");
  EXPECT_ERROR(Tensor().backward(), "backward() of an undefined tensor");
  EXPECT_ERROR((x * 2).backward({.gradient = ones({3}, f64)}),
               "the gradient has shape [3], the output [2]");
  EXPECT_ERROR(add(from({1}, {1}, f32), from({1}, {1}, f64)),
               "add: inputs have different dtypes: f32 and f64");
  EXPECT_ERROR(add(from({1}, {1}, f32), from({1}, {1}, f16)),
               "f32 and f16 (convert one with .to(), or run under amp::Autocast)");
  EXPECT_ERROR(mul(from({1}, {1}, f32), from({1}, {1}, i32)),
               "f32 and i32 (convert one with .to())");  // which Autocast would leave as they are
  EXPECT_ERROR(conv2d(zeros({1, 1, 4, 4}, u8), zeros({1, 1, 3, 3})),
               "u8 and f32 (convert one with .to(); train::transforms::to_float() for images)");
  EXPECT_ERROR(matmul(ones({2, 3}), ones({2, 2})), "matmul: inner dimensions differ: 3 and 2");
  EXPECT_ERROR(ones({2}, i64).set_requires_grad(), "i64");
}

TEST(Tape, NoGradRecordsNothing) {
  const Tensor x = leaf({1}, {1});
  {
    const NoGrad off;
    EXPECT_FALSE((x * 2).requires_grad());
    const EnableGrad on;
    EXPECT_TRUE((x * 2).requires_grad());
  }
  EXPECT_TRUE((x * 2).requires_grad());
}
TEST(Tape, UnderNoGradViewsThatChangeNothingHaveNoHistoryEither) {
  const Tensor x = leaf({1, 2}, {2}), y = x * 2.0;
  std::vector<Tensor> views;
  {
    const NoGrad off;
    EXPECT_FALSE(chunk(leaf({}, {0}), 2)[1].requires_grad()) << "of nothing";
    views = {reshape(y, {2}), flatten(y),     squeeze(y),
             squeeze(y, 0),   expand(y, {2}), reshape(x, {2})};
  }
  for (const Tensor& v : views) {
    EXPECT_FALSE(v.requires_grad());
    EXPECT_TRUE(v.storage() == y.storage() || v.storage() == x.storage());
  }
  EXPECT_TRUE(reshape(y, {2}).is_same(y));
}

TEST(Tape, DetectsWritesToSavedTensors) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor w = from({3, 4}, {2}, f64);
  const Tensor y = sum(x * w);
  add_(w, 1.0);
  EXPECT_ERROR(y.backward(),
               "mul: a tensor that mul saved for backward was modified in place: it is at "
               "version 1, not 0: an input, f64 [2] (call backward() first, or write to a "
               "clone())");
  const Tensor v = sum(x * x);
  {
    const NoGrad off;
    add_(x, 1.0);  // as an optimizer's step does
  }
  EXPECT_ERROR(v.backward(), "an input that is a leaf, f64 [2]");
  const Tensor e = exp(x);
  const Tensor s = sum(e);
  {
    const NoGrad off;
    mul_(e, 2.0);
  }
  EXPECT_ERROR(s.backward(), "not 0: its result, f64 [2]");
}

TEST(Tape, WritesInPlaceOnlyToUnsharedStorage) {
  const Tensor x = leaf({1, 2}, {2});
  EXPECT_ERROR(add_(x, 1.0),
               "add_: a leaf that requires a gradient cannot change in place: use the form without "
               "underscore, or NoGrad");
  const Tensor y = x * 2;  // mul keeps x only
  add_(y, x);
  mul_(y, 10.0);
  EXPECT_EQ(to_vector(y), (std::vector<double>{30, 60}));
  sum(y).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{30, 30}));
  const Tensor z = exp(x);  // exp keeps its result
  EXPECT_ERROR(zero_(z),
               "fill_: storage that a view or an op that saved it for "
               "backward shares cannot change in place: make a new tensor by where, index_put, cat "
               "or stack, x[i] = y for a part, or NoGrad");
  const Tensor q = x * 1;
  EXPECT_ERROR(q[0].add_(1), "use the form without underscore, x[i] += y for a part, or NoGrad");
  EXPECT_ERROR(q[0].masked_fill_(gt(q[0], 0), 1),
               "use the form without underscore, x[i] = y for a part, or NoGrad");
  q[0] += 1;
  EXPECT_EQ(to_vector(q), (std::vector<double>{2, 2}));
  EXPECT_ERROR(copy_(select(zeros({2, 2}), 0, 1), z),
               "copy_: storage that a view or an op that saved it");
  const NoGrad off;
  fill_(x, 7);
  EXPECT_EQ(to_vector(x), (std::vector<double>{7, 7}));
  copy_(x, from({1}, {1}, f32));  // broadcasts and converts
  EXPECT_EQ(to_vector(x), (std::vector<double>{1, 1}));
}

TEST(InPlace, RefusesElementsThatAreOne) {
  const NoGrad off;
  const Tensor one = from({1}, {1}), row = expand(one, {3});
  EXPECT_ERROR(add_(row, from({1, 2, 3}, {3})),
               "add_: elements of shape [3] with strides [0] share memory");
  EXPECT_ERROR(fill_(expand(one, {2, 1}), 2),
               "elements of shape [2, 1] with strides [0, 1] share memory");
  EXPECT_EQ(one.item(), 1);
  const Tensor four = zeros({4});
  EXPECT_ERROR(add_(unfold(four, 0, 2, 1), ones({3, 2})), "share memory (clone() it first)");
  add_(unfold(four, 0, 2, 2), from({1, 2, 3, 4}, {2, 2}));
  add_(transpose(reshape(four, {2, 2}), 0, 1), 1.0);
  EXPECT_EQ(to_vector(four), (std::vector<double>{2, 3, 4, 5}));
  add_(expand(one, {1, 1}), 1.0);
  zero_(expand(from({}, {0, 1}), {0, 3}));
  EXPECT_EQ(one.item(), 2);
}

// The source of copy_ keeps its own storage, recorded or not.
TEST(InPlace, ACopyIsNotWhatItCopied) {
  const Tensor w = leaf({1, 2}, {2}), x = from({0, 0}, {2}, f64), constant = x.clone();
  copy_(x, w);
  sum(x * 3).backward();
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{3, 3}));
  {
    const NoGrad off;
    fill_(x, 9);
  }
  EXPECT_EQ(to_vector(w), (std::vector<double>{1, 2}));
  const Tensor y = w * 2;
  copy_(y, constant);
  add_(y, w);
  EXPECT_EQ(to_vector(constant), (std::vector<double>{0, 0}));
  const Tensor square = from({1, 2, 3, 4}, {2, 2});
  copy_(square, square.t());
  EXPECT_EQ(to_vector(square), (std::vector<double>{1, 3, 2, 4}));
}

// Freed memory is reused at the same address.
TEST(Tape, DetectsDataThatWasReplaced) {
  for (int times = 1; times <= 8; ++times) {
    const Tensor x = leaf({3}, {1});
    const Tensor y = x * x;
    for (int i = 0; i < times; ++i) {
      const NoGrad off;
      x.set_data(from({7}, {1}, f64));
    }
    EXPECT_ERROR(y.backward(),
                 "mul: a tensor that mul saved for backward was modified: its data was replaced: "
                 "an input that is a leaf, f64 [1] (call backward() first, or write to a clone())");
  }
}

// As an average of weights that temporarily replaces them.
TEST(Tape, TakesDataThatIsBack) {
  const Tensor x = leaf({3}, {1}), mine = x.detach();
  const Tensor y = x * x;
  x.set_data(from({7}, {1}, f64));
  x.set_data(mine);
  y.backward();
  EXPECT_EQ(x.grad().item(), 6);
}

// A rule may overwrite dy with its gradient, unless dy is shared.
TEST(Tape, GradientsAreReplacedOnlyInUnsharedStorage) {
  const Tensor x = leaf({-2, -1, 1, 2}, {4}), three = full({4}, 3, f64);
  using Values = std::vector<double>;
  Tensor kept;
  const Tensor y = relu(x);
  const HookHandle hook = register_hook(y, [&](const Tensor& dy) {
    kept = dy;
    return Tensor();
  });
  y.backward({.gradient = three, .retain_graph = true});
  EXPECT_EQ(to_vector(three), Values(4, 3)) << "a gradient that the caller has";
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0, 3, 3}));
  kept = {};
  (y * three).backward({.gradient = ones({4}, f64)});
  EXPECT_EQ(to_vector(kept), Values(4, 3)) << "one that a hook keeps";
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0, 6, 6}));
  const Tensor w = leaf({5, 6, 7, 8}, {4}), product = x * w;
  const HookHandle other = register_hook(product, [&](const Tensor& dy) {
    kept = dy;
    return Tensor();
  });
  (product * three).backward({.gradient = ones({4}, f64)});
  EXPECT_EQ(to_vector(kept), Values(4, 3)) << "one that a hook keeps, of a rule with two results";
  EXPECT_EQ(to_vector(w.grad()), (Values{-6, -3, 3, 6}));
  const Tensor h = x * 2, z = relu(h);
  const auto all = grad({z * three}, {z, h, x}, {.gradients = {ones({4}, f64)}});
  EXPECT_EQ(to_vector(all[0]), Values(4, 3)) << "one that is asked for";
  EXPECT_EQ(to_vector(all[1]), (Values{0, 0, 3, 3}));
  EXPECT_EQ(to_vector(all[2]), (Values{0, 0, 6, 6}));
}

TEST(Tape, AddsToAGradientWhoseElementsAreOne) {
  const Tensor x = leaf({1, 2, 3}, {3}), one = full({}, 1, f64);
  x.set_grad(expand(one, {3}));
  sum(x * from({1, 2, 3}, {3}, f64)).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 3, 4}));
  EXPECT_EQ(one.item(), 1);
  const Tensor narrow = leaf({1, 2, 3}, {3}).detach().to(f16).set_requires_grad();
  narrow.set_grad(expand(full({}, 1), {3}));  // of another dtype
  sum(narrow).backward();
  EXPECT_EQ(to_vector(narrow.grad()), (std::vector<double>{2, 2, 2}));
  EXPECT_EQ(narrow.grad().dtype(), f32);
}

TEST(Tape, LeavesWhatWasFrozenSinceItWasRecorded) {
  const Tensor x = leaf({1, 2}, {2}), w = leaf({3, 4}, {2});
  const Tensor y = sum(x * w);
  w.set_requires_grad(false);
  y.backward({.retain_graph = true});
  EXPECT_FALSE(w.grad());
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{3, 4}));
  w.set_requires_grad();
  y.backward();
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{1, 2}));
}

TEST(Tape, GradOfOutputsWithRespectToInputs) {
  const Tensor a = leaf({2}, {1}), b = leaf({3}, {1}), unused = leaf({0}, {1});
  const Tensor h = a * b;
  const Tensor y = h * h;
  const auto g = grad({y}, {a, h}, {.retain_graph = true});
  EXPECT_EQ(g[0].item(), 36);
  EXPECT_EQ(g[1].item(), 12);
  EXPECT_FALSE(a.grad()) << "grad() touches no leaf";
  EXPECT_ERROR(grad({y}, {unused}, {.retain_graph = true}), "no output depends on input 0");
  EXPECT_FALSE(grad({y}, {unused}, {.retain_graph = true, .allow_unused = true})[0]);
  EXPECT_EQ(grad({y, h}, {b}, {.gradients = {from({1}, {1}, f64), from({10}, {1}, f64)}})[0].item(),
            24 + 20);
}

// Rules compute only gradients that lead to a requested one.
TEST(Tape, GradComputesNoOther) {
  struct Rules : Observer {
    std::string log;
    void after_rule(const Node& n, const Tensor&, std::span<const Tensor> grads) override {
      log += n.name();
      for (const Tensor& g : grads) log += g ? " yes" : " no";
      log += "; ";
    }
  };
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2}), w = leaf({5, 6, 7, 8}, {2, 2});
  for (const bool again : {false, true}) {
    Rules rules;
    const Tensor y = matmul(exp(x), exp(w)), dy = ones({2, 2}, f64);
    const Observe watch(rules);
    const Tensor g = grad({y}, {x}, {.gradients = {dy}, .create_graph = again})[0];
    EXPECT_EQ(rules.log, "matmul yes no; exp yes; ");
    rules.log.clear();
    if (again) {
      EXPECT_EQ(grad({sum(g)}, {w})[0].shape(), w.shape());
      EXPECT_NE(rules.log.find("matmul no yes"), rules.log.npos) << rules.log;
    }
  }
}

TEST(Tape, HigherOrders) {
  const Tensor x = leaf({0.7}, {1});
  Tensor y = sin(x);
  for (const double want : {std::cos(0.7), -std::sin(0.7), -std::cos(0.7), std::sin(0.7)}) {
    y = grad({y}, {x}, {.create_graph = true})[0];
    EXPECT_NEAR(y.item(), want, 1e-12);
  }
}

TEST(Tape, ReluHidesNoNaN) {
  const Tensor x = leaf({NAN, -1, 0, 2}, {4});
  EXPECT_EQ(to_vector(grad({relu(x)}, {x}, {.gradients = {ones({4}, f64)}})[0]),
            (std::vector<double>{1, 0, 0, 1}));
  EXPECT_EQ(
      to_vector(grad({relu(x)}, {x}, {.gradients = {ones({4}, f64)}, .create_graph = true})[0]),
      (std::vector<double>{1, 0, 0, 1}));
}

TEST(Tape, GradientPenalty) {  // through a two-layer network, against differences
  const Tensor w1 = leaf({.3, -.2, .5, .7, .1, -.4}, {3, 2}), w2 = leaf({.2, .6, -.5}, {1, 3}),
               x = leaf({1, -1, .5, 2}, {2, 2});
  const auto penalty = [&](const std::vector<Tensor>& in) {
    const Tensor out = linear(tanh(linear(in[2], in[0])), in[1]);
    const Tensor g = grad({sum(out)}, {in[2]}, {.create_graph = true})[0];
    return sum(square(sqrt(sum(square(g), {1})) - 1.0));
  };
  EXPECT_EQ(gradcheck(penalty, {w1, w2, x}), "");
}

TEST(Tape, HooksSeeAndReplaceGradients) {
  const Tensor x = leaf({1, 2}, {2});
  int leaf_calls = 0;
  HookHandle on_leaf = register_hook(x, [&](const Tensor&) { return ++leaf_calls, Tensor(); });
  const Tensor h = x * 3;
  HookHandle doubled = register_hook(h, [](const Tensor& g) { return g * 2; });
  const Tensor y = sum(h) + sum(x);
  y.backward({.retain_graph = true});
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{7, 7}));
  EXPECT_EQ(leaf_calls, 1) << "once per backward, on the sum of all uses";
  doubled.remove();
  on_leaf.remove();
  register_hook(h, [&](const Tensor& g) { leaf_calls += int(g.numel()); });  // only looks
  x.set_grad({});
  y.backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{4, 4}));
  EXPECT_EQ(leaf_calls, 1 + 2);
  const Tensor z = x * 3;
  register_hook(z, [](const Tensor&) { return ones({5}, f64); });
  EXPECT_ERROR(sum(z).backward(), "a hook returned a gradient of shape [5] for one of [2]");
}

// The order follows the graph, newest use first, not addresses.
TEST(Tape, HooksOfLeavesRunInOneOrder) {
  std::vector<Tensor> kept;
  for (int i = 0; i < 50; ++i) {
    std::string log;
    const Tensor a = leaf({1}, {1}), b = leaf({2}, {1});
    register_post_accumulate_hook(a, [&](const Tensor&) { log += 'a'; });
    register_post_accumulate_hook(b, [&](const Tensor&) { log += 'b'; });
    (i % 2 ? a * b : b * a).backward();
    EXPECT_EQ(log, i % 2 ? "ba" : "ab");
    kept.push_back(i % 3 ? a : b);  // so that addresses come in all orders
  }
}

TEST(Tape, HooksRunInOrderAndMayChangeTheirList) {
  const Tensor x = leaf({1, 2}, {2});
  std::string log;
  HookHandle second;
  register_hook(x, [&](const Tensor& g) {
    log += 'a';
    second.remove();
    register_hook(x, [&](const Tensor&) { return log += 'd', Tensor(); });
    return g * 2;
  });
  second = register_hook(x, [&](const Tensor& g) {
    log += 'b';
    EXPECT_EQ(to_vector(g), (std::vector<double>{2, 2})) << "what the one before returned";
    return g + 1;
  });
  register_hook(x, [&](const Tensor&) { return log += 'c', Tensor(); });
  sum(x).backward();
  EXPECT_EQ(log, "abc") << "as the list was when they began";
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{3, 3}));
  sum(x).backward();
  EXPECT_EQ(log, "abcacd");
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{5, 5}));
}

TEST(Tape, HooksOnResults) {
  const Tensor x = leaf({1, 2}, {2});
  const Tensor h = x * 3;
  HookHandle handle = register_hook(h, [](const Tensor& g) { return g * 10; });
  EXPECT_EQ(to_vector(grad({sum(h * h)}, {h}, {.retain_graph = true})[0]),
            (std::vector<double>{60, 120}))
      << "grad() gives what the hook made";
  EXPECT_EQ(to_vector(grad({sum(h * h)}, {x}, {.retain_graph = true})[0]),
            (std::vector<double>{180, 360}));
  add_(h, 1.0);  // another op's result now
  sum(h).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{30, 30})) << "the old result is still hooked";
  handle.remove();
  handle.remove();
  HookHandle orphan = register_hook(leaf({1}, {1}), [](const Tensor&) { return Tensor(); });
  orphan.remove();
}

TEST(Tape, KeepsGradientsOfResults) {
  const Tensor x = leaf({1, 2}, {2}), h = x * 3.0, lost = x * 5.0;
  retain_grad(h);
  retain_grad(x);  // does so anyway
  const Tensor y = sum(h * h) + sum(lost);
  y.backward({.retain_graph = true});
  EXPECT_EQ(to_vector(h.grad()), (std::vector<double>{6, 12}));
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{23, 41}));
  EXPECT_FALSE(lost.grad());
  add_(h.grad(), ones({2}, h.dtype()));  // is its own
  y.backward();
  EXPECT_EQ(to_vector(h.grad()), (std::vector<double>{13, 25})) << "added up";
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{46, 82}));
  EXPECT_ERROR(retain_grad(ones({2})),
               "retain_grad() of a tensor that does not require a gradient");
}

TEST(Tape, RetainsOnceWhatHooksLeave) {
  const Tensor x = leaf({1, 2}, {2}), h = x * 3.0;
  retain_grad(h);
  retain_grad(h);
  register_hook(h, [](const Tensor& g) { return g * 10.0; });
  sum(h).backward();
  EXPECT_EQ(to_vector(h.grad()), (std::vector<double>{10, 10}));
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{30, 30}));
}

TEST(Tape, HooksRefuseWhatDoesNotFit) {
  EXPECT_ERROR(register_hook(ones({1}), [](const Tensor&) { return Tensor(); }),
               "a hook on a tensor that does not require a gradient");
  EXPECT_ERROR(register_post_accumulate_hook(leaf({1}, {1}) * 2, [](const Tensor&) {}),
               "of a tensor that is not a leaf");
  const Tensor x = leaf({1}, {1});
  EXPECT_ERROR(register_hook(x, Node::Hook()), "a hook is an empty function");
  EXPECT_ERROR(register_post_accumulate_hook(x, nullptr), "a hook is an empty function");
  register_hook(x, [](const Tensor& g) { return g.to(f32); });
  EXPECT_ERROR(
      sum(x).backward(),
      fmt::format("a hook returned a gradient of f32 on {0} for one of f64 on {0}", x.device()));
}

TEST(Tape, UpdatesWithinBackward) {  // each leaf as soon as its gradient is complete
  const Tensor x = leaf({1, 2}, {2}), w = leaf({3, 4}, {2});
  int updates = 0;
  const auto update = [&](const Tensor& t) {
    add_(t, t.grad() * -0.5);
    t.set_grad({});
    ++updates;
  };
  HookHandle on_x = register_post_accumulate_hook(x, update);
  register_post_accumulate_hook(w, update);
  register_hook(w, [](const Tensor& g) { return g * 2; });
  sum(x * w + w).backward();
  EXPECT_EQ(updates, 2);
  EXPECT_EQ(to_vector(x), (std::vector<double>{-0.5, 0}));
  EXPECT_EQ(to_vector(w), (std::vector<double>{1, 1}));
  EXPECT_FALSE(x.grad() || w.grad());
  grad({sum(x * w)}, {x, w});
  EXPECT_EQ(updates, 2) << "grad() accumulates nothing";
  on_x.remove();
  sum(x * w).backward();
  EXPECT_EQ(updates, 3);
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{1, 1}));
}

TEST(Tape, SlicesMayGoToTheEnd) {
  const Tensor x = leaf({1, 2, 3, 4}, {4}), y = slice(x, 0, 1);
  EXPECT_EQ(to_vector(y), (std::vector<double>{2, 3, 4}));
  sum(y).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{0, 1, 1, 1}));
}

TEST(Tape, ErrorsOfViewsAndScansNameTheOp) {
  using test::error;
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error([&] { slice(x, 2, 0, 1); }), "slice: dimension 2 is out of range for rank 2");
  EXPECT_EQ(error([&] { diagonal(x, 0, 0, 2); }),
            "diagonal: dimension 2 is out of range for rank 2");
  EXPECT_EQ(error([&] { unfold(x, -3, 1, 1); }), "unfold: dimension -3 is out of range for rank 2");
  EXPECT_EQ(error([&] { cumsum(x, 2); }), "cumsum: dimension 2 is out of range for rank 2");
  EXPECT_EQ(error([&] { cumprod(x, 2); }), "cumprod: dimension 2 is out of range for rank 2");
  EXPECT_EQ(error([&] { unbind(x, 2); }), "unbind: dimension 2 is out of range for rank 2");
  EXPECT_EQ(error([&] { reshape(x, {4, -1}); }), "reshape: cannot reshape 6 elements to [4, -1]");
}

TEST(Tape, SlicesAddIntoOneBuffer) {
  const Tensor x = leaf({1, 2, 3, 4, 5, 6}, {6});
  const Tensor whole = x * 1.0;
  Tensor total = zeros({1}, f64);
  for (int i = 0; i < 6; ++i) total = total + slice(whole, 0, i, i + 1) * double(i);
  const int64_t before = memory_stats().allocations;
  total.backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_LT(memory_stats().allocations - before, 60);
}

struct Watch : Observer {
  std::vector<std::string> log;
  void before(const Call& c) override {
    log.push_back(fmt::format("{}{}", c.backward ? "b:" : "", c.op.name));
  }
};

TEST(Tape, ObserversSeeForwardAndBackward) {
  const Tensor x = leaf({1, 2}, {2});
  Watch outer, inner;
  const Observe o(outer);
  const Tensor y = sum(x * x);
  {
    const Observe i(inner);
    y.backward();
  }
  EXPECT_EQ(outer.log.front(), "mul");
  EXPECT_FALSE(inner.log.empty());
  for (const std::string& op : inner.log) EXPECT_TRUE(op.starts_with("b:")) << op;
  EXPECT_EQ(outer.log.size(), inner.log.size() + 3)
      << "mul, sum and the reshape that drops its dimension";
}

struct Scaled : Function<Scaled> {
  static constexpr OpInfo info{"scaled"};
  static Tensor forward(Ctx&, const Tensor& x, double by, const Shape& shape, double plus) {
    return reshape(x * by + plus, shape);
  }
};

TEST(Tape, ObserversReadArgumentsByType) {
  struct Reads : Observer {
    std::string log;
    void after(const Call& c, const Tensor&) override {
      if (c.op.name != "scaled") return;
      const Repetition& r = *c.repetition;
      log =
          fmt::format("{} {} {}", r.argument<double>(), r.argument<double>(1), r.argument<Shape>());
      EXPECT_ERROR(r.argument<double>(2), "scaled has fewer arguments of type d than were asked");
      EXPECT_ERROR(r.argument<bool>(), "scaled has fewer arguments of type b");
    }
  } reads;
  const Observe watch(reads);
  Scaled::apply(zeros({6}), 2.0, Shape{2, 3}, 3.0);
  EXPECT_EQ(reads.log, "2 3 [2, 3]");
}

TEST(Tape, ObserversTellRulesFromTheEngine) {
  struct Rules : Observer {
    std::vector<std::string> log;
    void after(const Call& c, const Tensor&) override {
      if (c.op.name == "permute") return;
      log.push_back(fmt::format("{}{} for {}", backward_state.in_rule ? "rule: " : "", c.op.name,
                                Scope::caller()));
    }
    void before_rule(const Node& n, const Tensor&) override {
      log.push_back(fmt::format("begin {}", n.name()));
    }
    void after_rule(const Node& n, const Tensor&, std::span<const Tensor>) override {
      log.push_back(fmt::format("end {}", n.name()));
    }
  } rules;
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2}, f16), y = matmul(x, x).to(f32);
  const Observe watch(rules);
  y.backward({.gradient = ones({2, 2})});
  EXPECT_EQ(rules.log,
            (std::vector<std::string>{"begin cast", "end cast", "cast for backward",  // to f16
                                      "begin matmul", "rule: matmul for backward",
                                      "rule: matmul for backward", "end matmul"}));
}

TEST(Tape, ObserversSeeTheEndOfABackwardPass) {
  struct Ends : Observer {
    std::vector<bool> whole;
    void after_backward(bool is_whole) override { whole.push_back(is_whole); }
  } ends;
  const Tensor x = leaf({1, 2}, {2});
  const Observe watch(ends);
  sum(x * x).backward();
  EXPECT_EQ(ends.whole, (std::vector<bool>{true}));
  grad({sum(x * x)}, {x});
  EXPECT_EQ(ends.whole.size(), 1u) << "grad() adds to no leaf";
  const Tensor y = x * x, other = sum(leaf({1}, {1}) * 2);
  register_hook(y, [&](const Tensor& g) {
    other.backward();  // within another pass
    return g;
  });
  sum(y).backward();
  EXPECT_EQ(ends.whole, (std::vector<bool>{true, true}));
  const Tensor z = x * x;
  register_hook(z, [](const Tensor&) -> Tensor { throw Error("broken"); });
  EXPECT_THROW(sum(z).backward(), Error);
  EXPECT_EQ(ends.whole, (std::vector<bool>{true, true, false}));
}

struct Narrow : Policy {
  void apply(Call& c) override {
    if (c.op.precision != Precision::Low) return;
    for (size_t i = 0; i < c.inputs.size(); ++i)
      if (*c.inputs[i] && c.inputs[i]->dtype() == f32 && c.op.role(i) != Role::Statistic)
        c.replace(i, cast(*c.inputs[i], bf16));
    c.out = bf16;
  }
  std::shared_ptr<Policy> snapshot() const override { return std::make_shared<Narrow>(); }
};

TEST(Tape, GradientsOfCastWeightsAreWrittenInF32) {
  const Tensor w = leaf({1.00390625, -0.3, 0.7, 2.1}, {2, 2}, f32),
               x = from({0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, {3, 2}, f32);
  Narrow policy;
  Tensor y, z;
  {
    thread_state.policy = &policy;
    y = linear(x, w);
    z = matmul(x, transpose(w));  // through a view of the weight
    thread_state.policy = nullptr;
  }
  EXPECT_EQ(y.dtype(), bf16);
  const auto representable = [](const Tensor& g) {
    for (int64_t i = 0; i < g.numel(); ++i)
      if (double(float(BFloat16(float(g.at(i))))) != g.at(i)) return false;
    return true;
  };
  for (const Tensor& out : {y, z}) {
    w.set_grad({});
    out.backward({.gradient = ones_like(out)});
    EXPECT_EQ(w.grad().dtype(), f32);
    EXPECT_FALSE(representable(w.grad())) << "rounded to bf16 on the way";
  }
}

struct Cube : Function<Cube> {
  static constexpr OpInfo info{"test_cube"};
  static Tensor forward(Ctx& ctx, const Tensor& x, double factor) {
    ctx.save(x);
    return x * x * x * factor;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, double factor) {
    return {dy * square(ctx.saved(0)) * (3 * factor)};
  }
};
struct WrongCube : Function<WrongCube> {
  static constexpr OpInfo info{"test_wrong_cube"};
  static Tensor forward(Ctx& ctx, const Tensor& x) {
    ctx.save(x);
    return x * x * x;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    return {dy * square(ctx.saved(0)) * 3.01};
  }
};

TEST(Function, UsersAddTheirOwnOps) {
  const Tensor x = leaf({0.5, -1.5}, {2});
  EXPECT_EQ(to_vector(Cube::apply(x, 2.0)), (std::vector<double>{0.25, -6.75}));
  EXPECT_EQ(gradcheck([](const auto& in) { return Cube::apply(in[0], 2.0); }, {x},
                      {.second_order = true}),
            "");
}

struct FusedCube : Function<FusedCube> {  // first order only, as its author declares
  static constexpr OpInfo info{"test_fused_cube"};
  static constexpr bool first_order_only = true;
  static Tensor forward(Ctx& ctx, const Tensor& x) { return Cube::forward(ctx, x, 1); }
  static Grads backward(const Ctx& ctx, const Tensor& dy) { return Cube::backward(ctx, dy, 1); }
};

TEST(Function, OfFirstOrderOnlyRefusesTheSecond) {
  const Tensor x = leaf({0.5, -1.5}, {2});
  const Tensor dx = grad({sum(FusedCube::apply(x))}, {x}, {.create_graph = true})[0];
  EXPECT_EQ(to_vector(dx), (std::vector<double>{0.75, 6.75}));
  EXPECT_ERROR(sum(square(dx)).backward(),
               "the gradient of test_fused_cube is a fused kernel, which can't be differentiated "
               "again");
}

struct Reversed : Function<Reversed> {
  static constexpr OpInfo info{"test_reversed"};
  static Tensor forward(Ctx&, const Tensor& x) { return x; }
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy * -1.0}; }
};

TEST(Gradients, RecordedOnesShareNoStorage) {
  const Tensor x = leaf({1, 2, 3}, {3}), z = leaf({1, 2, 3}, {3});
  sum(x + z).backward({.create_graph = true});
  EXPECT_NE(x.grad().storage(), z.grad().storage());
  sum(x * 2.0).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{3, 3, 3}));
  EXPECT_EQ(to_vector(z.grad()), (std::vector<double>{1, 1, 1}));
}

// A loss that is kept alive does not affect later gradients.
TEST(Gradients, HaveTheDtypeThatTheirLeafHasNow) {
  const Tensor w = leaf({1, 2}, {2});
  const Tensor kept = sum(w * 2.0);
  w.set_data(w.detach().to(w.dtype() == f64 ? f32 : f64));
  sum(w * w).backward();
  EXPECT_EQ(w.grad().dtype(), w.dtype());
}

// e^x, which saves its result by save(); and an op that saves a tensor computed in forward.
struct SavedExp : Function<SavedExp> {
  static constexpr OpInfo info{"test_saved_exp"};
  static Tensor forward(Ctx& ctx, const Tensor& x) {
    const Tensor y = exp(x);
    ctx.save(y);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) { return {dy * ctx.saved(0)}; }
};
struct SavedBetween : Function<SavedBetween> {
  static constexpr OpInfo info{"test_saved_between"};
  static Tensor forward(Ctx& ctx, const Tensor& x) {
    const Tensor twice = x * 2;
    ctx.save(twice);
    return square(x);
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) { return {dy * ctx.saved(0)}; }
};

TEST(Function, KnowsWhatItSaved) {
  const Tensor x = leaf({0.5, -1.5}, {2});
  const auto f = [](const auto& in) { return SavedExp::apply(in[0]); };
  EXPECT_EQ(gradcheck(f, {x}, {.second_order = true}), "");
  const Tensor y = sum(SavedBetween::apply(x));
  EXPECT_EQ(to_vector(grad({y}, {x}, {.retain_graph = true})[0]), (std::vector<double>{1, -3}));
  EXPECT_ERROR(
      grad({y}, {x}, {.create_graph = true}),
      "second order through test_saved_between: its backward() reads a tensor that forward() "
      "computed (save() the inputs");
}

struct WrongGradient : Function<WrongGradient> {
  static constexpr OpInfo info{"test_wrong_gradient"};
  static Tensor forward(Ctx&, const Tensor& x, int) { return x * 1.0; }
  static Grads backward(const Ctx& ctx, const Tensor& dy, int how) {
    return {how ? dy.to(i64) : ones(ctx.shape(7))};
  }
};
TEST(Function, GradientsAreChecked) {
  const Tensor x = leaf({0.5, -1.5}, {2});
  EXPECT_ERROR(sum(WrongGradient::apply(x, 1)).backward(), "the gradient is i64, the input f64");
  EXPECT_ERROR(sum(WrongGradient::apply(x, 0)).backward(), "input 7 is out of range for 1 inputs");
}

TEST(Tape, GradientsOfOtherDtypesAreAddedTo) {
  for (const DType given : {f16, f32, f64}) {
    const Tensor x = ones({3, 2}).set_requires_grad();
    x.set_grad(ones({3, 2}, given));
    sum(x * 2.0).backward();
    sum(select(x, 0, 0)).backward();
    EXPECT_EQ(x.grad().dtype(), given);
    EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{4, 4, 3, 3, 3, 3}));
    EXPECT_ERROR(x.set_grad(ones({3, 2}, i64)), "the gradient must be floats, got i64");
    EXPECT_ERROR(x.set_grad(Tensor({3, 2}, given, Device::meta())), "must be on ");
  }
  const Tensor w = ones({2, 2}).set_requires_grad(), row = select(w, 0, 0);
  w.set_data(w.detach().to(f16));
  const Tensor other = w * 1.0;
  (sum(row) + sum(other).to(f32)).backward();
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{2, 2, 1, 1}));
}

TEST(Tape, SetIsNoWriteToAResult) {
  const Tensor x = leaf({1, 1}, {2}), y = x * 2.0;
  EXPECT_ERROR(y.set(0, 5), "set() of the result of a recorded op");
  EXPECT_EQ(y.at(0), 2);
  y.detach().set(1, 3);
  EXPECT_EQ(y.at(1), 3);
  const NoGrad off;
  y.set(0, 5);
  EXPECT_EQ(y.at(0), 5);
}

TEST(Function, MayReturnItsInput) {
  const Tensor w = leaf({1, 1}, {2}), features = w * 1.0, y = Reversed::apply(features);
  (sum(features * 10.0) + sum(y)).backward();
  EXPECT_EQ(w.grad().at(0), 9);
  const Tensor of_leaf = Reversed::apply(w);
  EXPECT_TRUE(w.is_leaf());
  w.set_grad({});
  sum(w * 10.0).backward();
  EXPECT_EQ(w.grad().at(0), 10);
  const NoGrad off;
  EXPECT_FALSE(Reversed::apply(w).requires_grad());
}

struct First : Function<First> {
  static constexpr OpInfo info{"test_first"};
  static Tensor forward(Ctx&, const Tensor& x, const Tensor&) { return x; }
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy, dy}; }
};

TEST(Function, LeavesAnInputWithoutHistoryAlone) {
  const Tensor x = from({1, 2}, {2}, f64), w = leaf({3, 4}, {2}), y = First::apply(x, w);
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(x.requires_grad());
  sum(y).backward();
  EXPECT_EQ(w.grad().at(1), 1);
}

struct Precomputed {
  Tensor value;
};
struct StraightThrough : Function<StraightThrough> {
  static constexpr OpInfo info{"test_straight_through"};
  static Tensor forward(Ctx&, const Tensor&, const Precomputed& y) { return y.value; }
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy}; }
};

TEST(Function, LeavesWhatAnAttributeHoldsAlone) {
  const Tensor x = leaf({0.4, 1.7}, {2}), rounded = round(x.detach());
  const Tensor y = StraightThrough::apply(x, Precomputed{rounded});
  EXPECT_FALSE(rounded.requires_grad());
  sum(y * y).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{0, 4}));
}

struct Forgetful : Function<Forgetful> {
  static constexpr OpInfo info{"test_forgetful"};
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b, int64_t) {
    ctx.save(a);
    return a * b;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, int64_t reads) {
    return {dy * ctx.saved(size_t(reads))};
  }
};

TEST(Function, OwesAGradientToEachInputThatWantsOne) {
  const Tensor a = leaf({1, 2}, {2}), b = leaf({3, 4}, {2});
  EXPECT_ERROR(sum(Forgetful::apply(a, b, int64_t{0})).backward(),
               "test_forgetful: 1 gradients for 2 inputs, but input 1 needs one");
  EXPECT_ERROR(sum(Forgetful::apply(a, b, int64_t{1})).backward(),
               "saved(1), but 1 tensors were saved for backward");
  EXPECT_NO_THROW(sum(Forgetful::apply(a, b.detach(), int64_t{0})).backward());
}

// The k largest elements of each row, their indices, and the sum of the others.
struct Best : Function<Best> {
  static constexpr OpInfo info{"test_best"};
  static std::array<Tensor, 3> forward(Ctx& ctx, const Tensor& x, int64_t k) {
    const auto [values, indices] = topk(x, k);
    ctx.save(x);
    ctx.save_extra(indices);
    return {values, indices, sum(x, {-1}) - sum(values, {-1})};
  }
  static Grads backward(const Ctx& ctx, const std::array<Tensor, 3>& dy) {
    EXPECT_FALSE(dy[1]) << "integers have no gradient";
    const Tensor rest = expand(unsqueeze(dy[2], -1), ctx.shape(0));
    return {scatter(rest, -1, ctx.saved(1), dy[0])};
  }
};
// x and twice x of chosen dtypes, in a list.
struct Twice : Function<Twice> {
  static constexpr OpInfo info{"test_twice"};
  static std::vector<Tensor> forward(Ctx& ctx, const Tensor& x, DType second) {
    const Tensor twice = x * 2.0;
    ctx.save(twice);
    return {x, twice.to(second)};
  }
  static Grads backward(const Ctx& ctx, const std::vector<Tensor>& dy) {
    return {dy[0] + dy[1] * (ctx.saved(0) / ctx.saved(0) * 2.0)};
  }
};

TEST(Function, MayHaveSeveralResults) {
  const Tensor x = leaf({5, 1, 4, 2, 3, 6}, {2, 3});
  const auto [values, indices, rest] = Best::apply(x, int64_t{2});
  EXPECT_EQ(to_vector(values), (std::vector<double>{5, 4, 6, 3}));
  EXPECT_EQ(to_vector(indices), (std::vector<double>{0, 2, 2, 1}));
  EXPECT_EQ(to_vector(rest), (std::vector<double>{1, 2}));
  EXPECT_TRUE(values.requires_grad() && rest.requires_grad());
  EXPECT_FALSE(indices.requires_grad());
  sum(values * values).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{10, 0, 8, 0, 6, 12}));
  const auto f = [](const auto& in) {
    const auto [best, where, others] = Best::apply(in[0], int64_t{2});
    return sum(best * best * best, {-1}) * others * others;
  };
  EXPECT_EQ(gradcheck(f, {x}, {.second_order = true}), "");
  const auto again = [](const Tensor& t) { return Best::apply(t, int64_t{2})[0]; };
  EXPECT_EQ(to_vector(grad({sum(checkpoint(again, x))}, {x})[0]),
            (std::vector<double>{1, 0, 1, 0, 1, 1}));
  const NoGrad off;
  EXPECT_FALSE(Best::apply(x, int64_t{2})[0].requires_grad());
}

TEST(Function, MayHaveAListOfResults) {
  const Tensor x = leaf({1, 2}, {2});
  const std::vector<Tensor> y = Twice::apply(x, f64);
  sum(y[0] * y[1]).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{4, 8}));
  EXPECT_TRUE(x.is_leaf());
  EXPECT_ERROR(grad({sum(Twice::apply(x, f64)[1])}, {x}, {.create_graph = true}),
               "its backward() reads a tensor that forward() computed");
  EXPECT_ERROR(Twice::apply(x, f32), "test_twice: results of f64 and f32: floats must have one");
  const NoGrad off;
  EXPECT_FALSE(Twice::apply(x, f64)[0].requires_grad());
}

TEST(Function, FreesSeveralResults) {
  const Tensor x = leaf({1, 2, 3}, {1, 3});
  const WeakTensor kept(Best::apply(x, int64_t{1})[1]);
  EXPECT_FALSE(kept.lock().defined()) << "held by the node of the op, a cycle";
}

TEST(Gradcheck, FindsAWrongRule) {
  const std::string wrong =
      gradcheck([](const auto& in) { return WrongCube::apply(in[0]); }, {leaf({0.5, -1.5}, {2})});
  EXPECT_NE(wrong.find("input 0, element"), std::string::npos) << wrong;
}

struct Fused {
  static constexpr OpInfo info{"test_fused"};
  static constexpr bool first_order_only = true;
  static Tensor forward(Ctx&, const Tensor& x) { return x * x; }
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy * 1.0}; }
};

TEST(Gradcheck, TakesInputsThatLeadNowhere) {
  const auto first = [](const auto& in) { return in[0] * in[0]; };
  EXPECT_EQ(gradcheck(first, {leaf({0.5}, {1}), leaf({2}, {1})}, {.second_order = true}), "");
}

TEST(Gradcheck, FindsHistoryThatIsCut) {
  const Tensor a = from({2}, {1}, f64).set_requires_grad();
  const auto cut = [](const std::vector<Tensor>& in) { return in[0].detach() * 2; };
  EXPECT_EQ(gradcheck(cut, {a}).find("input 0, element 0: the gradient is 0, differences say "), 0);
  EXPECT_EQ(gradcheck([](const std::vector<Tensor>& in) { return ones_like(in[0]); }, {a}), "");
}

// There a change of one element is a change of others, and differences are no derivatives.
TEST(Gradcheck, RefusesElementsThatShareMemory) {
  const auto product = [](const std::vector<Tensor>& in) { return in[0] * in[0] * in[1]; };
  const Tensor wide = expand(from({2}, {1}, f64), {3}).set_requires_grad(),
               x = leaf({1, 2, 3}, {3});
  EXPECT_ERROR(gradcheck(product, {x, wide}),
               "two, of inputs 1 and 1, share memory (clone() the input)");
  EXPECT_ERROR(gradcheck(product, {x, x.detach()}), "of inputs 0 and 1, share");
  EXPECT_EQ(gradcheck(product, {x, wide.detach()}), "");  // a constant may
  EXPECT_EQ(gradcheck(product, {x, x}), "");              // the same tensor twice, too
  const Tensor both = from({1, 2, 3, 4}, {2, 2}, f64);
  const auto column = [&](int64_t i) { return select(both, 1, i).detach().set_requires_grad(); };
  EXPECT_EQ(gradcheck(product, {column(0), column(1)}, {.second_order = true}), "");
}

TEST(Gradcheck, LeavesItsInputsAsTheyWere) {
  const Tensor x = leaf({1}, {1});
  int calls = 0;
  const auto fails = [&](const auto& in) {
    check(++calls < 3, "planted");
    return in[0] * 2;
  };
  EXPECT_ERROR(gradcheck(fails, {x}), "planted");
  EXPECT_EQ(x.item(), 1);
}

TEST(Tape, AFusedGradientIsNoConstant) {
  const Tensor x = leaf({1, 2}, {2}), w = leaf({3, 4}, {2});
  const Tensor dx = grad({sum(call<Fused>(x) * w)}, {x}, {.create_graph = true})[0];
  const GradOptions options{.gradients = {ones({2}, f64)}, .allow_unused = true};
  const char* const refused =
      "the gradient of test_fused is a fused kernel, which can't be differentiated again";
  EXPECT_ERROR(grad({dx}, {x}, options), refused);
  EXPECT_ERROR(grad({dx}, {w}, options), refused);  // through dy
}

struct Thrower {
  static constexpr OpInfo info{"test_thrower"};
  static Tensor forward(Ctx&, const Tensor& x) { return clone(x); }
  static Grads backward(const Ctx&, const Tensor&) { fail("planted {}", 42); }
};

TEST(Tape, ErrorsInBackwardNameTheOp) {
  EXPECT_ERROR(sum(call<Thrower>(leaf({1}, {1}))).backward(), "backward: test_thrower: planted 42");
  EXPECT_TRUE(grad_enabled()) << "state is restored";
  EXPECT_EQ(Scope::innermost(), nullptr);
}

TEST(Tape, ThreadsRecordIndependently) {
  std::vector<std::thread> threads;
  std::vector<double> results(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const Tensor x = leaf({double(t)}, {1});
      for (int i = 0; i < 200; ++i) {
        x.set_grad({});
        (x * x).backward();
      }
      results[t] = x.grad().item();
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(results, (std::vector<double>{0, 2, 4, 6}));
}

}  // namespace tape_test
}  // namespace mixtape
