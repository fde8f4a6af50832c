// Prints optim_reference.inc: what libtorch's optimizers do to the problem, in f64. Not part of the
// build. Written with libtorch 1.13:
//   g++ -std=c++17 -I. -I$TORCH/include -I$TORCH/include/torch/csrc/api/include
//     tests/data/make_optim_reference.cpp -ltorch -ltorch_cpu -lc10 && ./a.out >
//     tests/data/optim_reference.inc
// It has no `maximize`: there the gradients are negated, which is what that option means.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <string>

#include "tests/data/optim_problem.h"

using Params = std::vector<torch::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const Params&)>;

static torch::Tensor values(uint32_t k, uint32_t t) {
  const auto [rows, columns] = optim_problem::shapes[k];
  torch::Tensor x = torch::empty({rows * columns}, torch::kFloat64);
  for (uint32_t i = 0; i < x.numel(); ++i) x[i] = optim_problem::value(k, i, t);
  return x.reshape({rows, columns});
}

static void run(const std::string& name, const Make& make, double sign = 1) {
  const bool late = name.find("/late") != std::string::npos;
  Params params;
  for (uint32_t k = 0; k < optim_problem::shapes.size(); ++k)
    params.push_back(values(k, 0).set_requires_grad(true));
  const auto opt = make(params);
  for (uint32_t t = 1; t <= optim_problem::steps; ++t) {
    for (uint32_t k = 0; k < params.size(); ++k)
      if (!late || k != 1 || t >= optim_problem::late)
        params[k].mutable_grad() = sign * values(k, t);
    opt->step();
    if (t != optim_problem::early && t != optim_problem::steps) continue;
    std::printf("{\"%s\", %u, {", name.c_str(), t);
    for (const auto& p : params)
      for (int64_t i = 0; i < p.numel(); ++i) std::printf("%.17g, ", p.flatten()[i].item<double>());
    std::printf("}},\n");
  }
}

static void sgd(const std::string& name, const torch::optim::SGDOptions& o, double sign = 1) {
  run(
      "sgd/" + name, [o](const Params& p) { return std::make_unique<torch::optim::SGD>(p, o); },
      sign);
}
static void adam(const std::string& name, const torch::optim::AdamOptions& o, double sign = 1) {
  run(
      "adam/" + name, [o](const Params& p) { return std::make_unique<torch::optim::Adam>(p, o); },
      sign);
}
static void adamw(const std::string& name, const torch::optim::AdamWOptions& o, double sign = 1) {
  run(
      "adamw/" + name, [o](const Params& p) { return std::make_unique<torch::optim::AdamW>(p, o); },
      sign);
}

int main() {
  using torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::SGDOptions,
      torch::optim::OptimizerParamGroup;
  std::puts("// Printed by make_optim_reference.cpp: problem, step, values of all parameters.");
  sgd("plain", SGDOptions(0.1));
  sgd("decay", SGDOptions(0.1).weight_decay(0.05));
  sgd("momentum", SGDOptions(0.1).momentum(0.9));
  sgd("dampening", SGDOptions(0.1).momentum(0.9).dampening(0.3));
  sgd("nesterov", SGDOptions(0.1).momentum(0.8).nesterov(true).weight_decay(0.02));
  sgd("maximize", SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.05), -1);
  sgd("late", SGDOptions(0.1).momentum(0.9).dampening(0.5));
  adam("default", AdamOptions());
  adam("betas", AdamOptions(0.05).betas({0.7, 0.95}).eps(1e-3));
  adam("decay", AdamOptions(0.02).weight_decay(0.1));
  adam("maximize", AdamOptions(0.02).weight_decay(0.1), -1);
  adam("late", AdamOptions(0.02));
  adamw("default", AdamWOptions(1e-3));
  adamw("decay", AdamWOptions(0.05).weight_decay(0.2).eps(1e-4));
  adamw("maximize", AdamWOptions(0.05).weight_decay(0.2), -1);
  run("adamw/groups", [](const Params& p) {
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(Params{p[0]},
                        std::make_unique<AdamWOptions>(AdamWOptions(0.05).weight_decay(0.2)));
    groups.emplace_back(Params{p[1], p[2]},
                        std::make_unique<AdamWOptions>(AdamWOptions(0.01).weight_decay(0)));
    return std::make_unique<torch::optim::AdamW>(groups, AdamWOptions(1e-3));
  });
}
