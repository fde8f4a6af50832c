// Saved state, options, and what an optimizer refuses.
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace {

TEST(State, NamesAreThoseOfPyTorchInOrder) {
  const Params params = problem();
  Adam opt({params[0]});
  opt.add_group({params[1]}, {.lr = 0.5});
  params[1].set_grad(value(1, 1, f32));
  opt.step();
  std::vector<std::string> names;
  for (const auto& [name, t] : opt.state_dict()) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"state.1.step", "state.1.exp_avg", "state.1.exp_avg_sq",
                                      "group.0.lr", "group.0.beta1", "group.0.beta2", "group.0.eps",
                                      "group.0.weight_decay", "group.1.lr", "group.1.beta1",
                                      "group.1.beta2", "group.1.eps", "group.1.weight_decay"}));
}

TEST(State, ResumingIsExact) {
  for (const DType dtype : {f64, f32, f16})
    for (const auto& [name, make] : problems) {
      const Params a = problem(dtype);
      const auto whole = make(a);
      whole->set_lr(0.037);
      for (uint32_t t = 1; t <= 4; ++t) {
        set_grads(a, t, dtype);
        whole->step();
      }
      Params b;
      for (const Tensor& p : a)
        b.push_back(from(to_vector(p), p.shape(), dtype).set_requires_grad());
      const auto resumed = make(b);
      resumed->load_state_dict(snapshot(whole->state_dict()));
      for (uint32_t t = 5; t <= 8; ++t) {
        set_grads(a, t, dtype);
        set_grads(b, t, dtype);
        whole->step();
        resumed->step();
      }
      EXPECT_EQ(bits(*whole), bits(*resumed)) << name;
    }
}

TEST(State, MastersAreSavedToo) {
  const Tensor a = from({1}, {1}, bf16).set_requires_grad(),
               b = from({1}, {1}, bf16).set_requires_grad();
  SGD first({a}, {.lr = 1e-4, .multi_precision = true}),
      second({b}, {.lr = 1e-4, .multi_precision = true});
  a.set_grad(from({1}, {1}));
  b.set_grad(from({1}, {1}));
  first.step();
  second.load_state_dict(snapshot(first.state_dict()));
  first.step();
  second.step();
  EXPECT_EQ(bits(first), bits(second));
  EXPECT_NEAR(state(second, "state.0.master"), 1 - 2e-4, 1e-6);
}

TEST(State, LoadingCopies) {
  const Params a = problem();
  Adam opt(a);
  set_grads(a, 1, f32);
  opt.step();
  const StateDict saved = snapshot(opt.state_dict());
  opt.load_state_dict(saved);
  opt.step();
  EXPECT_EQ(saved[0].first, "state.0.step");
  EXPECT_EQ(saved[0].second.item(), 1);
}

TEST(State, WhatDoesNotFitChangesNothing) {
  const Params params = problem();
  Adam opt(params);
  set_grads(params, 1, f32);
  opt.step();
  const std::string before = bits(opt);
  const auto load_with = [&](const std::string& name, const Tensor& t) {
    StateDict dict = snapshot(opt.state_dict());
    const auto at = std::ranges::find(dict, name, &StateDict::value_type::first);
    if (at == dict.end())
      dict.emplace_back(name, t);
    else
      at->second = t;
    return error([&] { opt.load_state_dict(dict); });
  };
  const auto load_without = [&](const std::string& name) {
    StateDict dict = snapshot(opt.state_dict());
    EXPECT_EQ(std::erase_if(dict, [&](const auto& entry) { return entry.first == name; }), 1u);
    return error([&] { opt.load_state_dict(dict); });
  };
  EXPECT_EQ(load_with("state.0.exp_avg", from({1, 2}, {2})),
            "adam: state.0.exp_avg has shape [2], not [1, 3]");
  EXPECT_EQ(load_with("state.0.exp_avg", from({1, 2, 3}, {1, 3}, i64)),
            "adam: state.0.exp_avg is i64, not a float");
  EXPECT_EQ(load_with("state.0.exp_avg", {}), "adam: state.0.exp_avg is no tensor");
  EXPECT_EQ(load_with("state.3.step", scalar(1)),
            "adam: 'state.3.step' belongs to no parameter or option here");
  EXPECT_EQ(load_with("group.0.lr", scalar(-1)), "adam: lr is -1, not a number from 0");
  EXPECT_EQ(load_with("group.0.lr", from({1, 2}, {2})),
            "adam: item() needs one element, but [2] has 2");
  EXPECT_EQ(load_without("state.1.exp_avg_sq"),
            "adam: state.1.step is there, but state.1.exp_avg_sq is missing");
  EXPECT_EQ(load_without("state.1.step"),
            "adam: state.1.exp_avg is there, but state.1.step is missing");
  EXPECT_EQ(load_without("group.0.beta2"), "adam: group.0.beta2 is missing");
  EXPECT_EQ(bits(opt), before);
}

// --- options and errors ---

TEST(Optim, OptionsByGroupAndName) {
  const Params p = problem();
  SGD opt({p[0]}, {.lr = 0.1, .momentum = 0.9});
  opt.add_group({p[1], p[2]}, {.lr = 0.2});
  EXPECT_EQ(opt.groups(), 2u);
  EXPECT_EQ(opt.params().size(), 3u);
  EXPECT_TRUE(opt.params(1)[0].is_same(p[1]));
  EXPECT_EQ(opt.lr(1), 0.2);
  opt.set_lr(0.5, 1);
  EXPECT_EQ(opt.lr(), 0.1);
  EXPECT_EQ(opt.lr(1), 0.5);
  opt.set_lr(0.3);
  EXPECT_EQ(opt.lr(), 0.3);
  EXPECT_EQ(opt.option("momentum", 0), 0.9);
  EXPECT_EQ(error([&] { opt.set_lr(-1); }), "lr is -1, not a number from 0");
  EXPECT_EQ(opt.lr(), 0.3);
  EXPECT_EQ(error([&] { opt.set_lr(1, 2); }), "group 2 of 2");
  EXPECT_EQ(error([&] { opt.params(2); }), "group 2 of 2");
  EXPECT_EQ(error([&] { opt.option("beta1"); }),
            "no option 'beta1' in sgd, which has lr, momentum, dampening, weight_decay");
}

TEST(Optim, ParametersThatCannotBeOptimized) {
  const Tensor p = from({1, 2}, {2}).set_requires_grad();
  EXPECT_EQ(error([&] { SGD({}); }), "sgd: no parameters to optimize");
  EXPECT_EQ(error([&] { AdamW({Tensor()}); }), "adamw: parameter 0 is no tensor");
  EXPECT_EQ(error([&] {
              Adam({p, from({1}, {1}, i64)});
            }),
            "adam: parameter 1 is i64, not a float");
  EXPECT_EQ(error([&] {
              SGD({p, from({1}, {1})});
            }),
            "sgd: parameter 1 of shape [1] does not require a gradient, or is the result of an op");
  EXPECT_EQ(error([&] {
              SGD({p, from({1}, {1}).set_requires_grad(), p});
            }),
            "sgd: parameter 2 of shape [2] is also parameter 0");
  const Tensor strided =
      from({1, 2, 3, 4}, {2, 2}).with_layout(Layout({2, 2}, {1, 2})).set_requires_grad();
  EXPECT_EQ(error([&] { SGD({strided}); }),
            "sgd: parameter 0 of shape [2, 2] has strides [1, 2], but is updated as dense");
  SGD opt({p});
  EXPECT_EQ(error([&] { opt.add_group({p}, {}); }),
            "sgd: parameter 1 of shape [2] is also parameter 0");
  EXPECT_EQ(opt.groups(), 1u);
}

TEST(Optim, OptionsOutOfRange) {
  const Params p = problem();
  EXPECT_EQ(error([&] { SGD(p, {.lr = -0.1}); }), "sgd: lr is -0.1, not a number from 0");
  EXPECT_EQ(error([&] { SGD(p, {.lr = nan}); }), "sgd: lr is nan, not a number from 0");
  EXPECT_EQ(error([&] { SGD(p, {.momentum = -1}); }), "sgd: momentum is -1, not a number from 0");
  EXPECT_EQ(error([&] { SGD(p, {.weight_decay = -1}); }),
            "sgd: weight_decay is -1, not a number from 0");
  EXPECT_EQ(error([&] { SGD(p, {.nesterov = true}); }),
            "sgd: nesterov needs momentum and no dampening, not 0 and 0");
  EXPECT_EQ(error([&] { Adam(p, {.lr = -1}); }), "adam: lr is -1, not a number from 0");
  EXPECT_EQ(error([&] { Adam(p, {.beta1 = 1}); }), "adam: beta1 is 1, not in [0, 1)");
  EXPECT_EQ(error([&] { Adam(p, {.beta2 = -0.5}); }), "adam: beta2 is -0.5, not in [0, 1)");
  EXPECT_EQ(error([&] { Adam(p, {.eps = -1}); }), "adam: eps is -1, not a number from 0");
  EXPECT_EQ(error([&] { AdamW(p, {.weight_decay = -1}); }),
            "adamw: weight_decay is -1, not a number from 0");
}

TEST(Optim, GradientsThatDoNotFit) {
  const Params p = problem();
  Adam opt(p);
  p[1].leaf().grad = from({1, 2}, {2});
  EXPECT_EQ(error([&] { opt.step(); }),
            "adam: the gradient of parameter 1 has shape [2], not [2, 9]");
  p[1].leaf().grad = Tensor({2, 9}, i64);
  EXPECT_EQ(error([&] { opt.step(); }), "adam: the gradient of parameter 1 is i64, not a float");
  p[1].set_grad({});
  EXPECT_EQ(error([&] { opt.step({.skip = scalar(0, f64)}); }),
            "adam: skip is f64 [], not one f32");
  EXPECT_EQ(error([&] {
              opt.step({.grad_scale = from({1, 2}, {2})});
            }),
            "adam: grad_scale is f32 [2], not one f32");
}

TEST(Optim, AParameterThatChangedSinceItsStateWasMade) {
  const Tensor p = from({1, 2, 3, 4}, {2, 2}).set_requires_grad();
  Adam opt({p});
  p.set_grad(from({1, 2, 3, 4}, {2, 2}));
  opt.step();
  p.set_data(from({1, 2, 3, 4}, {2, 2}, f64));
  p.set_grad(from({1, 2, 3, 4}, {2, 2}, f64));
  EXPECT_EQ(error([&] { opt.step(); }),
            "adam: parameter 0 is now f64 on cpu, but its state is f32 on cpu: make a new "
            "optimizer after moving a model");
  p.set_data(from({1, 2, 3, 4}, {2, 2}).with_layout(Layout({2, 2}, {1, 2})));
  p.set_grad(from({1, 2, 3, 4}, {2, 2}));
  EXPECT_EQ(error([&] { opt.step(); }), "adam: parameter 0 has become strided: [1, 2] of [2, 2]");
}

}  // namespace
}  // namespace mixtape::optim
