// Options by group and name, and the errors of optimizers.
#include "autograd/ops.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
using namespace internal;
namespace optim_options_test {

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
  EXPECT_EQ(error([&] { opt.set_lr(-1); }), "lr must be >= 0, got -1");
  EXPECT_EQ(error([&] { opt.set_lr(inf); }), "lr must be finite, got inf");
  EXPECT_EQ(opt.lr(), 0.3);
  EXPECT_EQ(error([&] { opt.set_lr(1, 2); }), "group 2 is out of range for 2 groups");
  EXPECT_EQ(error([&] { opt.params(2); }), "group 2 is out of range for 2 groups");
  EXPECT_EQ(error([&] { opt.rescale_grad(2); }), "group 2 is out of range for 2 groups");
  EXPECT_EQ(error([&] { opt.multi_precision(2); }), "group 2 is out of range for 2 groups");
  EXPECT_EQ(error([&] { opt.option("beta1"); }),
            "no option 'beta1' in sgd, which has lr, momentum, dampening, weight_decay, nesterov, "
            "maximize");
  EXPECT_TRUE(opt.has_option("nesterov"));
  EXPECT_FALSE(opt.has_option("beta1"));
  EXPECT_EQ(error([&] { opt.has_option("lr", 2); }), "group 2 is out of range for 2 groups");
  EXPECT_EQ(error([&] { opt.momentum_name(2); }), "group 2 is out of range for 2 groups");
}

TEST(Optim, FirstOptionsByPosition) {
  const Params p = problem();
  const SGD sgd(p, 0.1, 0.9), whole(p, 1, 0);
  EXPECT_EQ(sgd.lr(), 0.1);
  EXPECT_EQ(sgd.option("momentum"), 0.9);
  EXPECT_EQ(whole.lr(), 1);
  const AdamW adam(p, 1e-3, {0.5, 0.75});
  EXPECT_EQ(adam.lr(), 1e-3);
  EXPECT_EQ(adam.option("beta1"), 0.5);
  EXPECT_EQ(adam.option("beta2"), 0.75);
  EXPECT_EQ(adam.option("weight_decay"), 1e-2);
  static_assert(!std::is_constructible_v<RMSprop, Params, double, double>, "alpha, or momentum?");
  static_assert(!std::is_constructible_v<Adam, Params, double, double>);
}

TEST(Optim, LimitsMayBeInfiniteAndOtherOptionsMayNot) {
  const Params p = problem();
  const Rprop rprop(p, {.max_step = inf});
  EXPECT_EQ(rprop.option("max_step"), inf);
  EXPECT_EQ(error([&] { Rprop(p, {.min_step = inf}); }), "rprop: min_step must be finite, got inf");
  EXPECT_EQ(error([&] { Rprop(p, {.max_step = NAN}); }), "rprop: max_step must be >= 0, got nan");
}

TEST(Optim, LaterGroupsShareTheFirstsCommonOptions) {
  const auto half = [] { return zeros({2, 2}, f16).set_requires_grad(); };
  SGD opt({half()}, {}, {.multi_precision = true, .rescale_grad = 0.5, .maximize = true});
  opt.add_group({half()}, {.lr = 1});
  EXPECT_TRUE(opt.multi_precision(1));
  EXPECT_EQ(opt.rescale_grad(1), 0.5);
  EXPECT_EQ(opt.option("maximize", 1), 1);
  EXPECT_EQ(opt.lr(1), 1);
  opt.add_group({half()}, {.lr = 1}, {});
  EXPECT_FALSE(opt.multi_precision(2));
  Muon muon({half()}, {}, {.multi_precision = true});
  muon.add_group({half()}, AdamWOptions{});
  EXPECT_TRUE(muon.multi_precision(1));
}

TEST(Optim, SaysThatItWasMovedFrom) {
  const Params p = problem();
  SGD opt(p, {.lr = 0.1});
  StepLr schedule(opt, {.step_size = 1});
  SGD other = std::move(opt);
  const std::string moved = "this sgd has no parameters: it was moved from";
  EXPECT_EQ(error([&] { opt.step(); }), "sgd: " + moved);
  EXPECT_EQ(error([&] { opt.zero_grad(); }), moved);
  EXPECT_EQ(error([&] { opt.groups(); }), moved);
  EXPECT_EQ(error([&] { opt.lr(); }), moved);
  EXPECT_EQ(error([&] { opt.set_lr(1); }), moved);
  EXPECT_EQ(error([&] { opt.params(0); }), moved);
  EXPECT_EQ(error([&] { opt.state_dict(); }), moved);
  EXPECT_EQ(error([&] { opt.masters(); }), moved);
  EXPECT_EQ(error([&] { opt.set_masters({}); }), moved);
  EXPECT_EQ(error([&] { opt.set_multi_precision(true); }), moved);
  EXPECT_EQ(error([&] { opt.set_shadow(bf16); }), moved);
  schedule.step();
  EXPECT_EQ(other.lr(), 0.1 * 0.1);
}

TEST(Optim, AssigningOverOneTakesItsShadowsBack) {
  const Tensor p = from({1, 2}, {2}).set_requires_grad(), q = from({1}, {1}).set_requires_grad();
  SGD opt({p}, {.lr = 0.1}, {.shadow = bf16}), other({q}, {.lr = 0.2}, {.shadow = bf16});
  p.set_grad(from({1, 2}, {2}));
  q.set_grad(from({1}, {1}));
  opt.step();
  other.step();
  EXPECT_TRUE(p.shadow());
  const uint64_t id = other.id();
  opt = std::move(other);
  EXPECT_FALSE(p.shadow()) << "nothing would keep it up to date";
  EXPECT_TRUE(q.shadow());
  EXPECT_EQ(opt.id(), id);
  EXPECT_EQ(opt.lr(), 0.2);
  EXPECT_EQ(error([&] { other.lr(); }), "this sgd has no parameters: it was moved from");
}

TEST(Optim, FlagsAreOptionsToo) {
  const Params a = problem(), b = problem();
  SGD up(a, {.lr = 0.1}, {.maximize = true}), turned(b, {.lr = 0.1});
  EXPECT_EQ(turned.option("maximize"), 0);
  turned.set_option("maximize", 1);
  EXPECT_EQ(turned.option("maximize"), 1);
  set_grads(a, 1, f32);
  set_grads(b, 1, f32);
  up.step();
  turned.step();
  EXPECT_EQ(bits(up), bits(turned));
  EXPECT_EQ(error([&] { turned.set_option("maximize", 0.5); }), "maximize must be 0 or 1, got 0.5");
  EXPECT_EQ(error([&] { turned.set_option("nesterov", 1); }),
            "nesterov needs momentum > 0 and dampening 0, got 0 and 0");
  EXPECT_EQ(turned.option("nesterov"), 0);
}

// Every number and flag of every optimizer can be read, and written back.
TEST(Optim, OptionsByNameForAll) {
  const Params p = problem();
  for (const auto& [problem_name, make] : problems) {
    const auto opt = make(p);
    for (const auto& [name, value] : opt->state_dict()) {
      if (!name.starts_with("group.0.")) continue;
      const std::string option = name.substr(8);
      EXPECT_EQ(opt->option(option), value.item());
      opt->set_option(option, value.item());
      EXPECT_ERROR(opt->set_option(option, nan), option + " must be");
      EXPECT_EQ(opt->option(option), value.item());
    }
  }
}

TEST(Optim, MomentumHasANameWhereThereIsOne) {
  const Params p = problem();
  std::map<std::string, std::string> names;
  for (const auto& [name, make] : problems)
    names[name.substr(0, name.find('/'))] = make(p)->momentum_name();
  const std::map<std::string, std::string> wanted = {
      {"sgd", "momentum"},  {"adam", "beta1"},
      {"adamw", "beta1"},   {"rmsprop", "momentum"},
      {"adagrad", ""},      {"adadelta", ""},
      {"lion", "beta1"},    {"lamb", "beta1"},
      {"muon", "momentum"}, {"nadam", "beta1"},
      {"radam", "beta1"},   {"adamax", "beta1"},
      {"rprop", ""},        {"asgd", ""},
      {"lars", "momentum"}, {"schedule_free_adamw", "beta1"},
      {"adafactor", ""},
  };
  EXPECT_EQ(names, wanted);
}

TEST(Optim, ParametersThatCannotBeOptimized) {
  const Tensor p = from({1, 2}, {2}).set_requires_grad();
  EXPECT_EQ(error([&] { SGD({}); }), "sgd: no parameters to optimize");
  EXPECT_EQ(error([&] { AdamW({Tensor()}); }), "adamw: parameter 0 is an undefined tensor");
  EXPECT_EQ(error([&] { Adam({p, from({1}, {1}, i64)}); }),
            "adam: parameter 1 must be a float tensor, got i64");
  EXPECT_EQ(error([&] { SGD({p, mul(p, 2)}); }),
            "sgd: parameter 1 of shape [2] must be a leaf, got the result of an op");
  EXPECT_EQ(error([&] { SGD({p, from({1}, {1}).set_requires_grad(), p}); }),
            "sgd: parameter 2 of shape [2] is also parameter 0");
  const Tensor strided =
      from({1, 2, 3, 4}, {2, 2}).with_layout(Layout({2, 2}, {1, 2})).set_requires_grad();
  EXPECT_EQ(error([&] { SGD({strided}); }),
            "sgd: parameter 0 of shape [2, 2] must be dense, got strides [1, 2]");
  SGD opt({p});
  EXPECT_EQ(error([&] { opt.add_group({p}, {}); }),
            "sgd: parameter 1 of shape [2] is also parameter 0");
  EXPECT_EQ(opt.groups(), 1u);
}

TEST(Optim, OptionsOutOfRange) {
  const Params p = problem();
  EXPECT_EQ(error([&] { SGD(p, {.lr = -0.1}); }), "sgd: lr must be >= 0, got -0.1");
  EXPECT_EQ(error([&] { SGD(p, {.lr = nan}); }), "sgd: lr must be >= 0, got nan");
  EXPECT_EQ(error([&] { SGD(p, {.momentum = -1}); }), "sgd: momentum must be >= 0, got -1");
  EXPECT_EQ(error([&] { SGD(p, {.weight_decay = -1}); }), "sgd: weight_decay must be >= 0, got -1");
  EXPECT_EQ(error([&] { SGD(p, {.nesterov = true}); }),
            "sgd: nesterov needs momentum > 0 and dampening 0, got 0 and 0");
  EXPECT_EQ(error([&] { Adam(p, {.lr = -1}); }), "adam: lr must be >= 0, got -1");
  EXPECT_EQ(error([&] { Adam(p, {.betas = {1, 0.999}}); }), "adam: beta1 must be in [0, 1), got 1");
  EXPECT_EQ(error([&] { Adam(p, {.betas = {0.9, -0.5}}); }),
            "adam: beta2 must be in [0, 1), got -0.5");
  EXPECT_EQ(error([&] { Adam(p, {.eps = -1}); }), "adam: eps must be >= 0, got -1");
  EXPECT_EQ(error([&] { AdamW(p, {.weight_decay = -1}); }),
            "adamw: weight_decay must be >= 0, got -1");
  EXPECT_EQ(error([&] { RMSprop(p, {.lr = -1}); }), "rmsprop: lr must be >= 0, got -1");
  EXPECT_EQ(error([&] { RMSprop(p, {.alpha = 1}); }), "rmsprop: alpha must be in [0, 1), got 1");
  EXPECT_EQ(error([&] { RMSprop(p, {.eps = -1}); }), "rmsprop: eps must be >= 0, got -1");
  EXPECT_EQ(error([&] { RMSprop(p, {.momentum = -1}); }), "rmsprop: momentum must be >= 0, got -1");
  EXPECT_EQ(error([&] { Adagrad(p, {.lr_decay = -1}); }), "adagrad: lr_decay must be >= 0, got -1");
  EXPECT_EQ(error([&] { Adagrad(p, {.initial_accumulator_value = -1}); }),
            "adagrad: initial_accumulator_value must be >= 0, got -1");
  EXPECT_EQ(error([&] { Adadelta(p, {.rho = 1.5}); }), "adadelta: rho must be in [0, 1), got 1.5");
  EXPECT_EQ(error([&] { Lion(p, {.betas = {0.9, 1}}); }), "lion: beta2 must be in [0, 1), got 1");
  EXPECT_EQ(error([&] { Rprop(p, {.eta_plus = 0.5}); }),
            "rprop: eta_plus must be >= 1, got 0.5 and 1");
  EXPECT_EQ(error([&] { Rprop(p, {.min_step = 2, .max_step = 1}); }),
            "rprop: min_step must be <= max_step, got 2 and 1");
  EXPECT_EQ(error([&] { Lamb(p, {.min_norm = 3, .max_norm = 2}); }),
            "lamb: min_norm must be <= max_norm, got 3 and 2");
  EXPECT_EQ(error([&] { Lamb(p, {.min_trust = 2, .max_trust = 1}); }),
            "lamb: min_trust must be <= max_trust, got 2 and 1");
  EXPECT_EQ(error([&] { Lars(p, {.min_trust = 2, .max_trust = 1}); }),
            "lars: min_trust must be <= max_trust, got 2 and 1");
  EXPECT_EQ(error([&] { ScheduleFreeAdamW(p, {.betas = {0, 0.9}}); }),
            "schedule_free_adamw: beta1 must be > 0, got 0 and 0.9");
  EXPECT_EQ(error([&] { Adafactor(p, {.beta2_decay = 0.5}); }),
            "adafactor: beta2_decay must be <= 0, got 0.5 and 0");
  EXPECT_EQ(error([&] { Adafactor(p, {.d = 0.5}); }), "adafactor: d must be >= 1, got 0.5 and 1");
  EXPECT_EQ(error([&] { Muon(p, {.momentum = 1}); }), "muon: momentum must be in [0, 1), got 1");
  const Tensor bias = from({1, 2}, {2}).set_requires_grad();
  EXPECT_EQ(error([&] { Muon({p[0], bias}); }),
            "muon: parameter 1 of shape [2] is not a matrix: add it to a group of AdamWOptions");
}

TEST(Optim, GradientsThatDoNotFit) {
  const Params p = problem();
  Adam opt(p);
  p[1].autograd_meta().grad = from({1, 2}, {2});
  EXPECT_EQ(error([&] { opt.step(); }),
            "adam: the gradient of parameter 1 must have shape [2, 9], got [2]");
  p[1].autograd_meta().grad = Tensor({2, 9}, i64);
  EXPECT_EQ(error([&] { opt.step(); }),
            "adam: the gradient of parameter 1 must be a float tensor, got i64");
  p[1].set_grad({});
  EXPECT_EQ(error([&] { opt.step({.skip = scalar(0, f64)}); }),
            "adam: skip must be one f32, got f64 []");
  EXPECT_EQ(error([&] { opt.step({.grad_scale = from({1, 2}, {2})}); }),
            "adam: grad_scale must be one f32 or f64, got f32 [2]");
}

TEST(Optim, AParameterThatChangedSinceItsStateWasMade) {
  const Tensor p = from({1, 2, 3, 4}, {2, 2}).set_requires_grad();
  Adam opt({p});
  p.set_grad(from({1, 2, 3, 4}, {2, 2}));
  opt.step();
  p.set_data(from({1, 2, 3, 4}, {2, 2}, f64));
  p.set_grad(from({1, 2, 3, 4}, {2, 2}, f64));
  EXPECT_EQ(error([&] { opt.step(); }),
            "adam: parameter 0 is now f64, but its state is f32: make a new optimizer after "
            "converting a model");
  p.set_data(from({1, 2, 3, 4}, {2, 2}).with_layout(Layout({2, 2}, {1, 2})));
  p.set_grad(from({1, 2, 3, 4}, {2, 2}));
  EXPECT_EQ(error([&] { opt.step(); }), "adam: parameter 0 has become strided: [1, 2] of [2, 2]");
}

TEST(Optim, AStepThatFailsIsNone) {
  const Tensor a = ones({2}).set_requires_grad(), b = ones({2}).set_requires_grad();
  Adam opt({a}, {.lr = 0.5});
  opt.add_group({b}, {.lr = 0.5});
  a.set_grad(ones({2}));
  b.autograd_meta().grad = ones({2}, i64);
  EXPECT_NE(error([&] { opt.step(); }), "");
  EXPECT_EQ(to_vector(a), (std::vector<double>{1, 1}));
  b.set_grad(ones({2}));
  opt.step();
  EXPECT_EQ(to_vector(a), to_vector(b));
}

}  // namespace optim_options_test
}  // namespace mixtape::optim
