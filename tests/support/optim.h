#pragma once
// What the tests of optim share: the problem that PyTorch was given too, every optimizer that
// solves it, and what to look at afterwards.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

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
  const auto append = [&](const Tensor& t) {
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

// The tensors in their own memory.
inline StateDict snapshot(const StateDict& live) {
  StateDict dict;
  for (const auto& [name, t] : live)
    dict.emplace_back(name, from(to_vector(t), t.shape(), t.dtype()));
  return dict;
}

using Params = std::vector<Tensor>;
using Make = std::unique_ptr<Optimizer> (*)(const Params&);
template <class O, class Options>
std::unique_ptr<Optimizer> make(const Params& p, const Options& o) {
  return std::make_unique<O>(p, o);
}
inline std::unique_ptr<Optimizer> sgd(const Params& p, const SGDOptions& o = {}) {
  return make<SGD>(p, o);
}
inline std::unique_ptr<Optimizer> adam(const Params& p, const AdamOptions& o = {}) {
  return make<Adam>(p, o);
}
inline std::unique_ptr<Optimizer> adamw(const Params& p, const AdamWOptions& o = {}) {
  return make<AdamW>(p, o);
}

inline const std::map<std::string, Make> problems = {
    {"sgd/plain", [](const Params& p) { return sgd(p, {.lr = 0.1}); }},
    {"sgd/decay", [](const Params& p) { return sgd(p, {.lr = 0.1, .weight_decay = 0.05}); }},
    {"sgd/momentum", [](const Params& p) { return sgd(p, {.lr = 0.1, .momentum = 0.9}); }},
    {"sgd/dampening",
     [](const Params& p) { return sgd(p, {.lr = 0.1, .momentum = 0.9, .dampening = 0.3}); }},
    {"sgd/nesterov",
     [](const Params& p) {
       return sgd(p, {.lr = 0.1, .momentum = 0.8, .weight_decay = 0.02, .nesterov = true});
     }},
    {"sgd/maximize",
     [](const Params& p) {
       return sgd(
           p,
           {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05, .maximize = true});
     }},
    {"sgd/late",
     [](const Params& p) { return sgd(p, {.lr = 0.1, .momentum = 0.9, .dampening = 0.5}); }},
    {"adam/default", [](const Params& p) { return adam(p); }},
    {"adam/betas",
     [](const Params& p) {
       return adam(p, {.lr = 0.05, .beta1 = 0.7, .beta2 = 0.95, .eps = 1e-3});
     }},
    {"adam/decay", [](const Params& p) { return adam(p, {.lr = 0.02, .weight_decay = 0.1}); }},
    {"adam/maximize",
     [](const Params& p) { return adam(p, {.lr = 0.02, .weight_decay = 0.1, .maximize = true}); }},
    {"adam/late", [](const Params& p) { return adam(p, {.lr = 0.02}); }},
    {"adamw/default", [](const Params& p) { return adamw(p); }},
    {"adamw/decay",
     [](const Params& p) { return adamw(p, {.lr = 0.05, .eps = 1e-4, .weight_decay = 0.2}); }},
    {"adamw/maximize",
     [](const Params& p) { return adamw(p, {.lr = 0.05, .weight_decay = 0.2, .maximize = true}); }},
    {"adamw/groups",
     [](const Params& p) -> std::unique_ptr<Optimizer> {
       auto opt =
           std::make_unique<AdamW>(Params{p[0]}, AdamWOptions{.lr = 0.05, .weight_decay = 0.2});
       opt->add_group({p[1], p[2]}, {.lr = 0.01, .weight_decay = 0});
       return opt;
     }},
};

}  // namespace mixtape::optim
