#pragma once
// What the tests of optim share: the problem that PyTorch was given too, every optimizer that
// solves it, and what to look at afterwards.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>

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
    all.append(static_cast<const char*>(t.raw()),
               static_cast<size_t>(t.numel()) * size_of(t.dtype()));
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

// The options that all optimizers share.
struct Common {
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;

  template <class Options>
  Options in(Options o) const {
    o.multi_precision = multi_precision;
    o.flat_master = flat_master;
    o.shadow = shadow;
    o.rescale_grad = rescale_grad;
    return o;
  }
};

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
template <class O, class Options>
Problem solve(Options options) {
  return Problem([options](const Params& p, const Common& common) -> std::unique_ptr<Optimizer> {
    return std::make_unique<O>(p, common.in(options));
  });
}
inline Problem sgd(const SGDOptions& o = {}) { return solve<SGD>(o); }
inline Problem adam(const AdamOptions& o = {}) { return solve<Adam>(o); }
inline Problem adamw(const AdamWOptions& o = {}) { return solve<AdamW>(o); }
inline Problem rmsprop(const RMSpropOptions& o = {}) { return solve<RMSprop>(o); }
inline Problem adagrad(const AdagradOptions& o = {}) { return solve<Adagrad>(o); }
inline Problem adadelta(const AdadeltaOptions& o = {}) { return solve<Adadelta>(o); }
inline Problem lion(const LionOptions& o = {}) { return solve<Lion>(o); }
inline Problem lamb(const LambOptions& o = {}) { return solve<Lamb>(o); }
inline Problem nadam(const NAdamOptions& o = {}) { return solve<NAdam>(o); }
inline Problem radam(const RAdamOptions& o = {}) { return solve<RAdam>(o); }
inline Problem muon(const MuonOptions& o = {}) { return solve<Muon>(o); }
inline std::unique_ptr<Optimizer> adamw_groups(const Params& p, const Common& common) {
  auto opt = std::make_unique<AdamW>(Params{p[0]},
                                     common.in(AdamWOptions{.lr = 0.05, .weight_decay = 0.2}));
  opt->add_group(Params(p.begin() + 1, p.end()),
                 common.in(AdamWOptions{.lr = 0.01, .weight_decay = 0}));
  return opt;
}

// Those of make_optim_reference.py.
inline const std::map<std::string, Problem> problems = {
    {"sgd/plain", sgd({.lr = 0.1})},
    {"sgd/decay", sgd({.lr = 0.1, .weight_decay = 0.05})},
    {"sgd/momentum", sgd({.lr = 0.1, .momentum = 0.9})},
    {"sgd/dampening", sgd({.lr = 0.1, .momentum = 0.9, .dampening = 0.3})},
    {"sgd/nesterov", sgd({.lr = 0.1, .momentum = 0.8, .weight_decay = 0.02, .nesterov = true})},
    {"sgd/maximize",
     sgd({.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05, .maximize = true})},
    {"sgd/late", sgd({.lr = 0.1, .momentum = 0.9, .dampening = 0.5})},
    {"adam/default", adam()},
    {"adam/betas", adam({.lr = 0.05, .beta1 = 0.7, .beta2 = 0.95, .eps = 1e-3})},
    {"adam/decay", adam({.lr = 0.02, .weight_decay = 0.1})},
    {"adam/amsgrad", adam({.lr = 0.02, .beta2 = 0.8, .amsgrad = true})},
    {"adam/maximize", adam({.lr = 0.02, .weight_decay = 0.1, .maximize = true})},
    {"adam/late", adam({.lr = 0.02})},
    {"adamw/default", adamw()},
    {"adamw/decay", adamw({.lr = 0.05, .eps = 1e-4, .weight_decay = 0.2})},
    {"adamw/amsgrad", adamw({.lr = 0.05, .beta2 = 0.8, .weight_decay = 0.2, .amsgrad = true})},
    {"adamw/maximize", adamw({.lr = 0.05, .weight_decay = 0.2, .maximize = true})},
    {"adamw/groups", Problem(adamw_groups)},
    {"rmsprop/default", rmsprop()},
    {"rmsprop/decay", rmsprop({.lr = 0.02, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1})},
    {"rmsprop/momentum", rmsprop({.lr = 0.02, .alpha = 0.8, .momentum = 0.7})},
    {"rmsprop/centered", rmsprop({.lr = 0.02, .centered = true})},
    {"rmsprop/all", rmsprop({.lr = 0.02,
                             .alpha = 0.9,
                             .momentum = 0.5,
                             .weight_decay = 0.1,
                             .centered = true,
                             .maximize = true})},
    {"rmsprop/late", rmsprop({.lr = 0.02, .momentum = 0.5})},
    {"adagrad/default", adagrad()},
    {"adagrad/decay", adagrad({.lr = 0.1, .lr_decay = 0.05, .weight_decay = 0.1})},
    {"adagrad/initial", adagrad({.lr = 0.1, .initial_accumulator_value = 0.5, .eps = 1e-4})},
    {"adagrad/maximize", adagrad({.lr = 0.1, .maximize = true})},
    {"adadelta/default", adadelta()},
    {"adadelta/decay", adadelta({.lr = 0.5, .rho = 0.7, .eps = 1e-3, .weight_decay = 0.1})},
    {"adadelta/maximize", adadelta({.lr = 2, .maximize = true})},
    {"lion/default", lion()},
    {"lion/decay", lion({.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.3})},
    {"lion/maximize", lion({.lr = 0.01, .maximize = true})},
    {"lamb/default", lamb()},
    {"lamb/decay",
     lamb({.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1})},
    {"lamb/norms", lamb({.lr = 0.05, .min_norm = 1.5, .max_norm = 2})},
    {"lamb/trust",
     lamb({.lr = 0.05, .weight_decay = 0.1, .min_trust = 0.3, .max_trust = 0.6, .maximize = true})},
    {"lamb/late", lamb({.lr = 0.05})},
    {"nadam/default", nadam()},
    {"nadam/decay",
     nadam({.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1})},
    {"nadam/momentum", nadam({.lr = 0.02, .momentum_decay = 0.7})},
    {"nadam/late", nadam({.lr = 0.02})},
    {"radam/default", radam()},
    {"radam/decay",
     radam({.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1})},
    {"radam/never", radam({.lr = 0.02, .beta2 = 0.5})},
    {"radam/late", radam({.lr = 0.02})},
    {"muon/default", muon()},
    {"muon/decay", muon({.lr = 0.05, .momentum = 0.8, .weight_decay = 0.1})},
    {"muon/plain", muon({.momentum = 0.8, .nesterov = false, .maximize = true})},
    {"muon/match", muon({.lr = 0.05, .match_adam = true})},
};

}  // namespace mixtape::optim
