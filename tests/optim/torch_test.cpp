// Trainings that PyTorch began: make_optim_reference.py saved them after half of the steps.
#include <fmt/format.h>

#include <algorithm>

#include "autograd/ops.h"
#include "io/safetensors.h"
#include "optim/schedules.h"
#include "tests/support/data.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace optim_torch_test {

// The file's state dicts by problem.
std::map<std::string, StateDict> halfway() {
  std::map<std::string, StateDict> all;
  for (const auto& [key, t] : io::load(test::data_file("torch_optim_state.safetensors")).tensors) {
    const size_t slash = key.rfind('/');
    all[key.substr(0, slash)].emplace_back(key.substr(slash + 1), t.to(DefaultDevice::current()));
  }
  return all;
}

Params take_params(StateDict& dict) {
  Params params;
  for (uint32_t k = 0; k < optim_problem::shapes.size(); ++k) {
    const auto at =
        std::ranges::find(dict, fmt::format("param.{}", k), &StateDict::value_type::first);
    params.push_back(at->second.set_requires_grad());
    dict.erase(at);
  }
  return params;
}

// Steps to the end of the problem, and compares.
void finish(const std::string& name, const Params& params, Optimizer& opt) {
  for (uint32_t t = optim_problem::steps / 2 + 1; t <= optim_problem::steps; ++t) {
    set_grads(params, t, f64);
    opt.step();
  }
  const std::vector<double> ours = all_values(params), &reference = references().at(name);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], reference[i], 1e-13) << name;
}

TEST(TorchState, GoesOnAsPyTorchDoes) {
  EXPECT_EQ(halfway().size(), 10u);
  for (auto [name, dict] : halfway()) {
    const Params params = take_params(dict);
    const auto opt = problems.at(name)(params);
    load_torch_state_dict(*opt, dict);
    finish(name, params, *opt);
  }
}

TEST(TorchState, ComesFromAFileOfTorchSave) {
  const StateDict file = io::load(test::data_file("torch_adamw.pt")).tensors;
  const Params params = {zeros({2, 3}), zeros({2})};
  for (const Tensor& p : params) p.set_requires_grad();
  AdamW opt(params);
  load_torch_state_dict(opt, file.under("optimizer."));
  EXPECT_EQ(opt.lr(), 0.01);
  EXPECT_EQ(opt.option("beta1"), 0.8);
  const StateDict state = opt.state_dict();
  EXPECT_EQ(state.at("state.0.step").item(), 2);
  EXPECT_NEAR(state.at("state.1.exp_avg").at(0), 0.56, 1e-6);
}

// All options are in the dict, so those of the optimizer before do not matter.
TEST(TorchState, OptionsComeAlong) {
  StateDict dict = halfway().at("rmsprop/all");
  const Params params = take_params(dict);
  RMSprop opt(params);
  load_torch_state_dict(opt, dict);
  EXPECT_EQ(opt.option("centered"), 1);
  EXPECT_EQ(opt.option("momentum"), 0.5);
  finish("rmsprop/all", params, opt);
}

// As torch.distributed.checkpoint writes it: by the names of parameters.
TEST(TorchState, ParametersByName) {
  StateDict dict = halfway().at("adamw/groups"), named;
  const Params params = take_params(dict);
  const std::vector<std::string> names = {"head", "head.weight", "blocks.0.bias", "blocks.0"};
  const size_t groups[] = {0, 1, 1, 1};
  for (const auto& [key, t] : dict)
    for (size_t k = 0; k < names.size(); ++k) {
      const std::string state = fmt::format("state.{}.", k);
      const std::string group = fmt::format("param_groups.{}.", groups[k]);
      if (key.starts_with(state))
        named.emplace_back("state." + names[k] + "." + key.substr(state.size()), t);
      if (key.starts_with(group) && !key.ends_with(".betas"))
        named.emplace_back("param_groups." + names[k] + "." + key.substr(group.size()), t);
    }
  for (const std::string& n : names) {  // a list in Python
    named.emplace_back("param_groups." + n + ".betas.0", scalar(0.9, f64));
    named.emplace_back("param_groups." + n + ".betas.1", scalar(0.999, f64));
  }
  const auto opt = problems.at("adamw/groups")(params);
  opt->set_lr(7);
  opt->set_option("beta1", 0.1, 1);
  load_torch_state_dict(*opt, named, names);
  EXPECT_EQ(opt->lr(0), 0.05);
  EXPECT_EQ(opt->lr(1), 0.01);
  finish("adamw/groups", params, *opt);
}

TEST(TorchState, StateAloneKeepsTheOptions) {
  StateDict dict = halfway().at("adagrad/decay");
  const Params params = take_params(dict);
  std::erase_if(dict, [](const auto& entry) { return entry.first.starts_with("param_groups."); });
  const auto opt = problems.at("adagrad/decay")(params);
  load_torch_state_dict(*opt, dict);
  EXPECT_EQ(state(*opt, "state.0.step"), 10);
  finish("adagrad/decay", params, *opt);
}

// The state of an optimizer after half of the steps under PyTorch's names.
StateDict as_torch(const std::string& name, const Params& params) {
  const auto opt = problems.at(name)(params);
  for (uint32_t t = 1; t <= optim_problem::steps / 2; ++t) {
    set_grads(params, t, f64);
    opt->step();
  }
  StateDict dict;
  for (const auto& [key, t] : opt->state_dict())
    dict.emplace_back(
        key.starts_with("group.") ? "param_" + key.substr(0, 5) + "s" + key.substr(5) : key,
        t.clone());
  return dict;
}

TEST(TorchState, ComputesTheRatesOfASGD) {
  const Params params = problem(f64);
  StateDict dict = as_torch("asgd/decay", params);
  for (size_t i = 0; i < params.size(); ++i) {
    dict.emplace_back(fmt::format("state.{}.eta", i), scalar(0.09));
    dict.emplace_back(fmt::format("state.{}.mu", i), scalar(1));
  }
  ASGD opt(params);
  load_torch_state_dict(opt, dict);
  finish("asgd/decay", params, opt);
}

TEST(TorchState, TakesThePairsOfRprop) {
  for (const bool as_list : {false, true}) {
    const Params params = problem(f64);
    StateDict dict = as_torch("rprop/limits", params);
    std::erase_if(dict, [](const auto& entry) {
      return entry.first.find("eta_") != std::string::npos || entry.first.ends_with("min_step") ||
             entry.first.ends_with("max_step");
    });
    const std::string group = "param_groups.0.";
    if (as_list) {
      dict.emplace_back(group + "etas.0", scalar(0.3, f64));
      dict.emplace_back(group + "etas.1", scalar(1.5, f64));
      dict.emplace_back(group + "step_sizes.0", scalar(0.05, f64));
      dict.emplace_back(group + "step_sizes.1", scalar(0.2, f64));
    } else {
      dict.emplace_back(group + "etas", from({0.3, 1.5}, {2}, f64));
      dict.emplace_back(group + "step_sizes", from({0.05, 0.2}, {2}, f64));
    }
    Rprop opt(params);
    load_torch_state_dict(opt, dict);
    EXPECT_EQ(opt.option("max_step"), 0.2);
    finish("rprop/limits", params, opt);
  }
}

// A schedule of PyTorch leaves the rate from which it started, and the next one starts there.
TEST(TorchState, KeepsTheRateOfSchedules) {
  SGD opt({from({1}, {1}).set_requires_grad()}, {.lr = 7});
  const StepLr before(opt, {.step_size = 1});
  load_torch_state_dict(
      opt, {{"param_groups.0.lr", scalar(0.25)}, {"param_groups.0.initial_lr", scalar(1)}});
  EXPECT_EQ(opt.lr(), 0.25);
  EXPECT_EQ(opt.base_lr(), 1);
  load_torch_state_dict(opt, {{"param_groups.0.lr", scalar(0.5)}});  // of no schedule
  EXPECT_EQ(opt.base_lr(), 0.5);
}

TEST(TorchState, RefusesAnotherWeightDecay) {
  const Params params = {from({1}, {1}).set_requires_grad()};
  const auto load = [&](Optimizer&& opt, double decoupled, double decay) {
    return error([&] {
      load_torch_state_dict(opt, {{"param_groups.0.decoupled_weight_decay", scalar(decoupled)},
                                  {"param_groups.0.weight_decay", scalar(decay)}});
    });
  };
  EXPECT_EQ(load(Adam(params), 1, 0.5),
            "load_torch_state_dict: decoupled_weight_decay must be 0 for adam with a weight_decay "
            "of 0.5, got 1");
  EXPECT_EQ(load(AdamW(params), 0, 0.5),
            "load_torch_state_dict: decoupled_weight_decay must be 1 for adamw with a weight_decay "
            "of 0.5, got 0");
  EXPECT_EQ(load(Adam(params), 1, 0), "no error");
  EXPECT_EQ(load(Adam(params), 0, 0.5), "no error");
  EXPECT_EQ(load(AdamW(params), 1, 0.5), "no error");
  for (const double decoupled : {0, 1}) {
    NAdam nadam(params);
    RAdam radam(params);
    for (Optimizer* opt : {(Optimizer*)&nadam, (Optimizer*)&radam}) {
      load_torch_state_dict(*opt, {{"param_groups.0.decoupled_weight_decay", scalar(decoupled)}});
      EXPECT_EQ(opt->option("decoupled_weight_decay"), decoupled);
    }
  }
}

TEST(TorchState, CountsInAnyDtype) {
  const Params params = {from({1}, {1}).set_requires_grad()};
  Lion opt(params);
  for (const DType dtype : {i64, i32, f64, f32}) {
    load_torch_state_dict(
        opt, {{"state.0.step", from({5}, {1}, dtype)}, {"state.0.exp_avg", from({2}, {1}, f16)}});
    EXPECT_EQ(state(opt, "state.0.step"), 5);
    EXPECT_EQ(state(opt, "state.0.exp_avg"), 2);
  }
}

TEST(TorchState, Errors) {
  const Params params = problem();
  Adam opt(params);
  set_grads(params, 1, f32);
  opt.step();
  const std::string before = bits(opt);
  const auto load = [&](const std::string& key, const Tensor& t,
                        const std::vector<std::string>& names = {}) {
    return error([&] { load_torch_state_dict(opt, {{key, t}}, names); });
  };
  EXPECT_EQ(load("exp_avg", scalar(1)),
            "load_torch_state_dict: 'exp_avg' begins with neither 'state.' nor 'param_groups.'");
  EXPECT_EQ(load("state.0.exp_avg", {}),
            "load_torch_state_dict: state.0.exp_avg is an undefined tensor");
  EXPECT_EQ(load("state.4.exp_avg", scalar(1)),
            "load_torch_state_dict: '4.exp_avg' begins with none of 4 parameters");
  EXPECT_EQ(load("state.weight.exp_avg", scalar(1)),
            "load_torch_state_dict: 'weight.exp_avg' begins with none of 4 parameters");
  EXPECT_EQ(load("state.0", scalar(1)),
            "load_torch_state_dict: '0' begins with none of 4 parameters");
  EXPECT_EQ(load("param_groups.1.lr", scalar(1)),
            "load_torch_state_dict: '1.lr' begins with none of 1 groups");
  EXPECT_EQ(load("param_groups.0.betas", scalar(1)),
            "load_torch_state_dict: betas must have shape [2], got []");
  EXPECT_EQ(load("param_groups.0.lr", from({1, 2}, {2})),
            "load_torch_state_dict: lr must be one number, got shape [2]");
  EXPECT_EQ(load("state.0.step", scalar(1), {"a", "b"}),
            "load_torch_state_dict: 4 parameters need as many names, got 2");
  EXPECT_EQ(load("state.0.momentum_buffer", scalar(1)),
            "load_torch_state_dict: adam: state.0.step is there, but state.0.exp_avg is missing");
  EXPECT_EQ(load("param_groups.0.lr", scalar(-1)),
            "load_torch_state_dict: adam: lr must be >= 0, got -1");
  const StateDict two_rates = {{"param_groups.a.lr", scalar(0.5)},
                               {"param_groups.b.lr", scalar(0.25)}};
  EXPECT_EQ(error([&] { load_torch_state_dict(opt, two_rates, {"a", "b", "c", "d"}); }),
            "load_torch_state_dict: group.0.lr is 0.5 and 0.25 in one state");
  EXPECT_EQ(load("state.0.exp_avg", params[0]),
            "load_torch_state_dict: adam: state.0.exp_avg is there, but state.0.step is missing");
  EXPECT_EQ(bits(opt), before);
}

}  // namespace optim_torch_test
}  // namespace mixtape::optim
