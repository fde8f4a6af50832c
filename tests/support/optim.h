#pragma once
// Shared by the tests of optimizers: the problem that PyTorch was given too, every optimizer that
// solves it, and PyTorch's results.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>

#include "core/format.h"
#include "optim/optim.h"
#include "tests/data/optim_problem.h"
#include "tests/support/errors.h"

namespace mixtape::optim {

using test::error;

inline constexpr double inf = std::numeric_limits<double>::infinity();
inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

inline Tensor scalar(double value, DType dtype = f32) { return from({value}, {}, dtype); }

// Parameter k of the problem, or its gradient at step t.
inline Tensor value(uint32_t k, uint32_t t, DType dtype) {
  const auto [rows, columns] = optim_problem::shapes[k];
  std::vector<double> values;
  for (uint32_t i = 0; i < rows * columns; ++i) values.push_back(optim_problem::value(k, i, t));
  return from(values, {rows, columns}, dtype);
}

inline std::vector<Tensor> problem(DType dtype = f32) {
  std::vector<Tensor> params;
  for (uint32_t k = 0; k < optim_problem::shapes.size(); ++k)
    params.push_back(value(k, 0, dtype).set_requires_grad());
  return params;
}

inline void set_grads(const std::vector<Tensor>& params, uint32_t t, DType dtype,
                      double factor = 1) {
  for (uint32_t k = 0; k < params.size(); ++k) {
    const Tensor g = value(k, t, dtype);
    for (int64_t i = 0; i < g.numel(); ++i) g.set(i, g.at(i) * factor);
    params[k].set_grad(g);
  }
}

inline std::vector<double> all_values(const std::vector<Tensor>& tensors) {
  std::vector<double> all;
  for (const Tensor& t : tensors)
    for (const double x : to_vector(t)) all.push_back(x);
  return all;
}

// Every bit that a step may change.
inline std::string bits(const Optimizer& opt) {
  std::string all;
  const auto append = [&](const Tensor& there) {
    const Tensor t = there.copied_to(Device::cpu());
    all.append(static_cast<const char*>(t.raw()), t.nbytes());
  };
  for (const Tensor& p : opt.params()) append(p);
  for (const auto& [name, t] : opt.state_dict()) append(t);
  return all;
}

inline double state(const Optimizer& opt, const std::string& name) {
  for (const auto& [key, t] : opt.state_dict())
    if (key == name) return t.at(0);
  return nan;
}

inline std::vector<double> all_state(const Optimizer& opt, const std::string& name) {
  for (const auto& [key, t] : opt.state_dict())
    if (key == name) return to_vector(t);
  return {};
}

// The tensors in their own memory.
inline StateDict snapshot(const StateDict& live) {
  StateDict dict;
  for (const auto& [name, t] : live)
    dict.emplace_back(name, from(to_vector(t), t.shape(), t.dtype()));
  return dict;
}

using Params = std::vector<Tensor>;

using Common = CommonOptions;

// An optimizer with its options, for any parameters.
class Problem {
 public:
  using Make = std::function<std::unique_ptr<Optimizer>(const Params&, const Common&)>;
  Problem(Make make) : make_(std::move(make)) {}
  std::unique_ptr<Optimizer> operator()(const Params& p, const Common& common = {}) const {
    return make_(p, common);
  }

 private:
  Make make_;
};
inline constexpr bool maximize = true;
template <class O>
Problem solve(const typename O::Options& options = {}, bool maximizes = false) {
  return Problem([=](const Params& p, Common common) -> std::unique_ptr<Optimizer> {
    common.maximize = maximizes;
    return std::make_unique<O>(p, options, common);
  });
}
inline std::unique_ptr<Optimizer> adamw_groups(const Params& p, const Common& common) {
  auto opt =
      std::make_unique<AdamW>(Params{p[0]}, AdamWOptions{.lr = 0.05, .weight_decay = 0.2}, common);
  opt->add_group(Params(p.begin() + 1, p.end()), {.lr = 0.01, .weight_decay = 0}, common);
  return opt;
}

// PyTorch's parameters after all steps, by problem.
inline const std::map<std::string, std::vector<double>>& references() {
  static const std::map<std::string, std::vector<double>> all = {
#include "tests/data/optim_reference.inc"
  };
  return all;
}

// The problems of make_optim_reference.py.
inline const std::map<std::string, Problem> problems = {
    {"sgd/plain", solve<SGD>({.lr = 0.1})},
    {"sgd/decay", solve<SGD>({.lr = 0.1, .weight_decay = 0.05})},
    {"sgd/momentum", solve<SGD>({.lr = 0.1, .momentum = 0.9})},
    {"sgd/dampening", solve<SGD>({.lr = 0.1, .momentum = 0.9, .dampening = 0.3})},
    {"sgd/nesterov",
     solve<SGD>({.lr = 0.1, .momentum = 0.8, .weight_decay = 0.02, .nesterov = true})},
    {"sgd/maximize",
     solve<SGD>({.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05}, maximize)},
    {"sgd/late", solve<SGD>({.lr = 0.1, .momentum = 0.9, .dampening = 0.5})},
    {"adam/default", solve<Adam>()},
    {"adam/betas", solve<Adam>({.lr = 0.05, .betas = {0.7, 0.95}, .eps = 1e-3})},
    {"adam/decay", solve<Adam>({.lr = 0.02, .weight_decay = 0.1})},
    {"adam/amsgrad", solve<Adam>({.lr = 0.02, .betas = {0.9, 0.8}, .amsgrad = true})},
    {"adam/maximize", solve<Adam>({.lr = 0.02, .weight_decay = 0.1}, maximize)},
    {"adam/late", solve<Adam>({.lr = 0.02})},
    {"adamw/default", solve<AdamW>()},
    {"adamw/decay", solve<AdamW>({.lr = 0.05, .eps = 1e-4, .weight_decay = 0.2})},
    {"adamw/amsgrad",
     solve<AdamW>({.lr = 0.05, .betas = {0.9, 0.8}, .weight_decay = 0.2, .amsgrad = true})},
    {"adamw/maximize", solve<AdamW>({.lr = 0.05, .weight_decay = 0.2}, maximize)},
    {"adamw/groups", Problem(adamw_groups)},
    {"rmsprop/default", solve<RMSprop>()},
    {"rmsprop/decay", solve<RMSprop>({.lr = 0.02, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1})},
    {"rmsprop/momentum", solve<RMSprop>({.lr = 0.02, .alpha = 0.8, .momentum = 0.7})},
    {"rmsprop/centered", solve<RMSprop>({.lr = 0.02, .centered = true})},
    {"rmsprop/all",
     solve<RMSprop>(
         {.lr = 0.02, .alpha = 0.9, .momentum = 0.5, .weight_decay = 0.1, .centered = true},
         maximize)},
    {"rmsprop/late", solve<RMSprop>({.lr = 0.02, .momentum = 0.5})},
    {"adagrad/default", solve<Adagrad>()},
    {"adagrad/decay", solve<Adagrad>({.lr = 0.1, .lr_decay = 0.05, .weight_decay = 0.1})},
    {"adagrad/initial", solve<Adagrad>({.lr = 0.1, .initial_accumulator_value = 0.5, .eps = 1e-4})},
    {"adagrad/maximize", solve<Adagrad>({.lr = 0.1}, maximize)},
    {"adadelta/default", solve<Adadelta>()},
    {"adadelta/decay", solve<Adadelta>({.lr = 0.5, .rho = 0.7, .eps = 1e-3, .weight_decay = 0.1})},
    {"adadelta/maximize", solve<Adadelta>({.lr = 2}, maximize)},
    {"adamax/default", solve<Adamax>()},
    {"adamax/decay",
     solve<Adamax>({.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1})},
    {"adamax/late", solve<Adamax>({.lr = 0.05}, maximize)},
    {"rprop/default", solve<Rprop>()},
    {"rprop/limits",
     solve<Rprop>(
         {.lr = 0.1, .eta_minus = 0.3, .eta_plus = 1.5, .min_step = 0.05, .max_step = 0.2})},
    {"rprop/late", solve<Rprop>({.lr = 0.05}, maximize)},
    {"asgd/default", solve<ASGD>()},
    {"asgd/decay",
     solve<ASGD>({.lr = 0.1, .lambd = 0.01, .alpha = 0.5, .t0 = 4, .weight_decay = 0.1})},
    {"asgd/late", solve<ASGD>({.lr = 0.1, .lambd = 0.05}, maximize)},
    {"lion/default", solve<Lion>()},
    {"lion/decay", solve<Lion>({.lr = 0.01, .betas = {0.8, 0.95}, .weight_decay = 0.3})},
    {"lion/maximize", solve<Lion>({.lr = 0.01}, maximize)},
    {"lamb/default", solve<Lamb>()},
    {"lamb/decay",
     solve<Lamb>({.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1})},
    {"lamb/norms", solve<Lamb>({.lr = 0.05, .min_norm = 1.5, .max_norm = 2})},
    {"lamb/trust",
     solve<Lamb>({.lr = 0.05, .weight_decay = 0.1, .min_trust = 0.3, .max_trust = 0.6}, maximize)},
    {"lamb/late", solve<Lamb>({.lr = 0.05})},
    {"lars/default", solve<Lars>()},
    {"lars/decay", solve<Lars>({.lr = 2, .weight_decay = 0.1, .trust_coefficient = 0.02})},
    {"lars/plain", solve<Lars>({.momentum = 0, .trust_coefficient = 0.05})},
    {"lars/nesterov", solve<Lars>({.weight_decay = 0.1,
                                   .trust_coefficient = 0.1,
                                   .min_trust = 0.03,
                                   .max_trust = 0.1,
                                   .nesterov = true},
                                  maximize)},
    {"lars/late", solve<Lars>({.trust_coefficient = 0.02})},
    {"schedule_free_adamw/default", solve<ScheduleFreeAdamW>()},
    {"schedule_free_adamw/decay",
     solve<ScheduleFreeAdamW>(
         {.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1})},
    {"schedule_free_adamw/warmup", solve<ScheduleFreeAdamW>({.lr = 0.05, .warmup_steps = 8})},
    {"schedule_free_adamw/late",
     solve<ScheduleFreeAdamW>({.lr = 0.05, .weight_decay = 0.1, .warmup_steps = 3}, maximize)},
    {"adafactor/default", solve<Adafactor>()},
    {"adafactor/decay", solve<Adafactor>({.lr = 0.5,
                                          .beta2_decay = -0.5,
                                          .eps1 = 0.05,
                                          .eps2 = 0.1,
                                          .d = 1.2,
                                          .weight_decay = 0.1})},
    {"adafactor/late", solve<Adafactor>({.lr = 0.1, .eps2 = 0.3}, maximize)},
    {"nadam/default", solve<NAdam>()},
    {"nadam/decay",
     solve<NAdam>({.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1})},
    {"nadam/momentum", solve<NAdam>({.lr = 0.02, .momentum_decay = 0.7})},
    {"nadam/decoupled",
     solve<NAdam>({.lr = 0.02, .weight_decay = 0.1, .decoupled_weight_decay = true})},
    {"nadam/late", solve<NAdam>({.lr = 0.02})},
    {"radam/default", solve<RAdam>()},
    {"radam/decay",
     solve<RAdam>({.lr = 0.02, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1})},
    {"radam/never", solve<RAdam>({.lr = 0.02, .betas = {0.9, 0.5}})},
    {"radam/decoupled",
     solve<RAdam>({.lr = 0.02, .weight_decay = 0.1, .decoupled_weight_decay = true})},
    {"radam/late", solve<RAdam>({.lr = 0.02})},
    {"muon/default", solve<Muon>()},
    {"muon/decay", solve<Muon>({.lr = 0.05, .momentum = 0.8, .weight_decay = 0.1})},
    {"muon/plain", solve<Muon>({.momentum = 0.8, .nesterov = false}, maximize)},
    {"muon/match", solve<Muon>({.lr = 0.05, .match_adam = true})},
};

}  // namespace mixtape::optim
