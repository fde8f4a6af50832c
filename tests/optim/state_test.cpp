// State dicts of optimizers: masters, buffers, options, errors.
#include <fmt/format.h>

#include <algorithm>

#include "optim/state_reader.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace optim_state_test {

TEST(State, NamesAreThoseOfPyTorchInOrder) {
  const Params params = problem();
  Adam opt({params[0]});
  opt.add_group({params[1]}, {.lr = 0.5});
  params[1].set_grad(value(1, 1, f32));
  opt.step();
  std::vector<std::string> names;
  for (const auto& [name, t] : opt.state_dict()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "state.1.step", "state.1.exp_avg", "state.1.exp_avg_sq", "group.0.lr",
                       "group.0.beta1", "group.0.beta2", "group.0.eps", "group.0.weight_decay",
                       "group.0.amsgrad", "group.0.maximize", "group.1.lr", "group.1.beta1",
                       "group.1.beta2", "group.1.eps", "group.1.weight_decay", "group.1.amsgrad",
                       "group.1.maximize"}));
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
  SGD first({a}, {.lr = 1e-4}, {.multi_precision = true}),
      second({b}, {.lr = 1e-4}, {.multi_precision = true});
  a.set_grad(from({1}, {1}));
  b.set_grad(from({1}, {1}));
  first.step();
  second.load_state_dict(snapshot(first.state_dict()));
  first.step();
  second.step();
  EXPECT_EQ(bits(first), bits(second));
  EXPECT_NEAR(state(second, "state.0.master"), 1 - 2e-4, 1e-6);
}

// Weights written after the last step, averages for example, replace an older master.
TEST(State, AMasterOfBeforeAWriteDoesNotUndoIt) {
  const Tensor a = from({1, 2}, {2}, f16).set_requires_grad();
  SGD first({a}, {.lr = 0.125}, {.multi_precision = true});
  a.set_grad(from({1, 1}, {2}));
  first.step();
  a.set(0, 100);
  const Tensor b = from(to_vector(a), {2}, f16).set_requires_grad();
  SGD second({b}, {.lr = 0.125}, {.multi_precision = true});
  second.load_state_dict(snapshot(first.state_dict()));
  b.set_grad(from({1, 1}, {2}));
  first.step();
  second.step();
  EXPECT_EQ(bits(first), bits(second));
  EXPECT_EQ(to_vector(b), (std::vector<double>{99.875, 1.75}));
}

// Loading does not bring masters to an optimizer that keeps none.
TEST(State, MastersBelongToWhoKeepsThem) {
  const Tensor a = from({1}, {1}, f16).set_requires_grad();
  SGD kept({a}, {.lr = 1e-4}, {.multi_precision = true}), plain({a}, {.lr = 1e-4});
  a.set_grad(from({1}, {1}));
  kept.step();
  EXPECT_EQ(error([&] { plain.load_state_dict(kept.state_dict()); }),
            "sgd: unexpected key 'state.0.master'");
}

TEST(State, NamesNothingTwice) {
  const Tensor a = from({1}, {1}).set_requires_grad();
  SGD opt({a});
  StateDict twice = opt.state_dict();
  twice.push_back(twice[0]);
  EXPECT_EQ(error([&] { opt.load_state_dict(twice); }),
            fmt::format("sgd: the state has '{}' twice", twice[0].first));
}

// A parameter trained in f32 since is not overwritten by the master that it had.
TEST(State, AMasterIsLeftBehindByAWideParameter) {
  const Tensor a = from({1}, {1}, bf16).set_requires_grad();
  SGD opt({a}, {.lr = 1e-4}, {.multi_precision = true});
  a.set_grad(from({1}, {1}));
  opt.step();
  a.set_data(from({5}, {1}, f32));
  const StateDict saved = snapshot(opt.state_dict());
  EXPECT_TRUE(
      std::ranges::none_of(saved, [](const auto& e) { return e.first.ends_with("master"); }));
  const Tensor b = from({5}, {1}, bf16).set_requires_grad();
  SGD other({b}, {.lr = 0}, {.multi_precision = true});
  other.load_state_dict(saved);
  b.set_grad(from({0}, {1}));
  other.step();
  EXPECT_EQ(b.item(), 5);
}

TEST(State, CountsAreWholeNumbers) {
  const StateDict dict{{"n", from({2.5}, {}, f64)}, {"m", from({1e300}, {}, f64)}};
  StateReader reader(dict);
  EXPECT_ERROR(reader.count("n"), "n must be a whole number from 0 to 9007199254740992, got 2.5");
  EXPECT_ERROR(reader.count("m"),
               "m must be a whole number from 0 to 9007199254740992, got 1e+300");
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
            "adam: state.0.exp_avg must have shape [1, 3], got [2]");
  EXPECT_EQ(load_with("state.0.exp_avg", from({1, 2, 3}, {1, 3}, i64)),
            "adam: state.0.exp_avg must be a float tensor, got i64");
  EXPECT_EQ(load_with("state.0.exp_avg", {}), "adam: state.0.exp_avg is an undefined tensor");
  EXPECT_EQ(load_with("state.4.step", scalar(1)), "adam: unexpected key 'state.4.step'");
  EXPECT_EQ(load_with("group.0.lr", scalar(-1)), "adam: lr must be >= 0, got -1");
  EXPECT_EQ(load_with("group.0.lr", from({1, 2}, {2})),
            "adam: group.0.lr must be one number, got shape [2]");
  EXPECT_EQ(load_without("state.1.exp_avg_sq"),
            "adam: state.1.step is there, but state.1.exp_avg_sq is missing");
  EXPECT_EQ(load_without("state.1.step"),
            "adam: state.1.exp_avg is there, but state.1.step is missing");
  EXPECT_EQ(load_without("group.0.beta2"),
            "adam: group.0.beta2 is missing, but there are lr, beta1, eps, weight_decay, amsgrad, "
            "maximize");
  EXPECT_EQ(bits(opt), before);
}

TEST(State, OptionsDecideWhatStateThereIs) {
  const Params params = problem();
  const auto names = [](const Optimizer& opt) {
    std::string all;
    for (const auto& [name, t] : opt.state_dict())
      if (name.starts_with("state.0.")) all += name.substr(8) + ' ';
    return all;
  };
  const auto step = [&](Optimizer& opt) {
    set_grads(params, 1, f32);
    opt.step();
  };
  SGD plain(params, {.lr = 0.1});
  step(plain);
  EXPECT_EQ(names(plain), "");
  plain.set_option("momentum", 0.9);
  step(plain);
  EXPECT_EQ(names(plain), "step momentum_buffer ");
  EXPECT_EQ(state(plain, "state.0.step"), 1);
  plain.set_option("momentum", 0);
  EXPECT_EQ(names(plain), "");
  step(plain);
  plain.set_option("momentum", 0.5);  // starts again
  step(plain);
  EXPECT_EQ(state(plain, "state.0.step"), 1);

  RMSprop rms(params, {.momentum = 0.5, .centered = true});
  step(rms);
  EXPECT_EQ(names(rms), "step square_avg momentum_buffer grad_avg ");
  rms.set_option("centered", 0);
  EXPECT_EQ(names(rms), "step square_avg momentum_buffer ");
  Adam adam(params, {.amsgrad = true});
  step(adam);
  EXPECT_EQ(names(adam), "step exp_avg exp_avg_sq max_exp_avg_sq ");
  Adagrad adagrad(params, {.lr = 0, .initial_accumulator_value = 2});
  step(adagrad);
  const double g = params[0].grad().at(0);
  EXPECT_FLOAT_EQ(static_cast<float>(state(adagrad, "state.0.sum")), static_cast<float>(2 + g * g));
  Adadelta adadelta(params);
  step(adadelta);
  EXPECT_EQ(names(adadelta), "step square_avg acc_delta ");
  Lion lion(params);
  step(lion);
  EXPECT_EQ(names(lion), "step exp_avg ");
  Lamb lamb(params);
  step(lamb);
  EXPECT_EQ(names(lamb), "step exp_avg exp_avg_sq ");
  Lars lars(params, {.momentum = 0});
  step(lars);
  EXPECT_EQ(names(lars), "");
  lars.set_option("momentum", 0.9);
  step(lars);
  EXPECT_EQ(names(lars), "step momentum_buffer ");
  ScheduleFreeAdamW schedule_free(params);
  step(schedule_free);
  EXPECT_EQ(names(schedule_free), "step z exp_avg_sq ");
  Adafactor adafactor(params);
  step(adafactor);
  EXPECT_EQ(names(adafactor), "step row_var col_var ");
  Muon muon(params);
  step(muon);
  EXPECT_EQ(names(muon), "step momentum_buffer ");
}

// Loaded options may need other buffers than the present ones.
TEST(State, LoadingTakesTheOptionsFirst) {
  const Params params = problem();
  Adam with(params, {.amsgrad = true}), without(params);
  set_grads(params, 1, f32);
  with.step();
  without.load_state_dict(snapshot(with.state_dict()));
  EXPECT_EQ(without.option("amsgrad"), 1);
  EXPECT_EQ(bits(with), bits(without));

  StateDict dict = snapshot(with.state_dict());
  const auto flag = std::ranges::find(dict, "group.0.amsgrad", &StateDict::value_type::first);
  flag->second = scalar(0);
  EXPECT_EQ(error([&] { without.load_state_dict(dict); }),
            "adam: unexpected key 'state.0.max_exp_avg_sq'");
  flag->second = scalar(2);
  EXPECT_EQ(error([&] { without.load_state_dict(dict); }), "adam: amsgrad must be 0 or 1, got 2");
  EXPECT_EQ(without.option("amsgrad"), 1);
  EXPECT_EQ(bits(with), bits(without));
}

// A dict that was saved before an optimizer had a flag.
TEST(State, NewerFlagsHaveTheirDefaults) {
  const auto load = [](Optimizer& opt, const std::string& without, const std::string& instead) {
    StateDict dict = snapshot(opt.state_dict());
    const auto flag = std::ranges::find(dict, without, &StateDict::value_type::first);
    if (instead.empty())
      dict.erase(flag);
    else
      flag->first = instead;
    opt.load_state_dict(dict);
  };
  NAdam nadam(problem(), {.decoupled_weight_decay = true}, {.maximize = true});
  load(nadam, "group.0.decoupled_weight_decay", "");
  EXPECT_EQ(nadam.option("decoupled_weight_decay"), 0);
  load(nadam, "group.0.maximize", "");
  EXPECT_EQ(nadam.option("maximize"), 0);
  RAdam radam(problem(), {.decoupled_weight_decay = true});
  load(radam, "group.0.decoupled_weight_decay", "");
  EXPECT_EQ(radam.option("decoupled_weight_decay"), 0);
  SGD sgd(problem(), {.momentum = 0.9, .nesterov = true});
  EXPECT_EQ(error([&] { load(sgd, "group.0.nesterov", "group.0.nestrov"); }),
            "sgd: unexpected key 'group.0.nestrov'");
  EXPECT_EQ(sgd.option("nesterov"), 1);
  load(sgd, "group.0.nesterov", "");
  EXPECT_EQ(sgd.option("nesterov"), 0);
  EXPECT_EQ(
      error([&] { load(sgd, "group.0.momentum", ""); }).find("sgd: group.0.momentum is missing"),
      0U);
}

// An option that needs one more buffer, set between two steps.
TEST(State, SavesWhatItLoadsAfterAnOptionWasSet) {
  const auto goes_round = [](const auto& make, const std::string& option, double value) {
    const Params a = problem(), b = problem();
    auto opt = make(a), other = make(b);
    set_grads(a, 1, f32);
    opt.step();
    opt.set_option(option, value);
    EXPECT_NO_THROW(other.load_state_dict(snapshot(opt.state_dict()))) << option;
    for (size_t i = 0; i < a.size(); ++i) b[i].set_data(from(to_vector(a[i]), a[i].shape()));
    set_grads(a, 2, f32);
    set_grads(b, 2, f32);
    opt.step();
    other.step();
    EXPECT_EQ(bits(opt), bits(other)) << option;
  };
  goes_round([](const Params& p) { return Adam(p); }, "amsgrad", 1);
  goes_round([](const Params& p) { return RMSprop(p); }, "centered", 1);
  goes_round([](const Params& p) { return RMSprop(p); }, "momentum", 0.9);
}

}  // namespace optim_state_test
}  // namespace mixtape::optim
