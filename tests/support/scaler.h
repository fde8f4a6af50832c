#pragma once
// What the tests of GradScaler share.

#include <bit>
#include <functional>
#include <limits>
#include <memory>

#include "optim/optim.h"
#include "tests/support/amp.h"

namespace mixtape::amp {

using Cause = StepResult::Cause;
using State = StepResult::State;
inline constexpr double inf = std::numeric_limits<double>::infinity();

inline Tensor parameter(std::initializer_list<double> v, DType t = f32) {
  return from(v, {static_cast<int64_t>(v.size())}, t).set_requires_grad();
}
inline std::vector<uint32_t> bits(const Tensor& t) {
  const Tensor here = t.contiguous().copied_to(Device::cpu());
  const float* p = here.data<float>();
  std::vector<uint32_t> b;
  for (int64_t i = 0; i < t.numel(); ++i) b.push_back(std::bit_cast<uint32_t>(p[i]));
  return b;
}

// One optimizer over one parameter whose gradients a test sets by hand.
struct Loop {
  Tensor p = parameter({1, 2, 3});
  optim::SGD sgd{{p}, {.lr = 0.125}};
  GradScaler scaler;

  explicit Loop(const ScalerOptions& options) : scaler(options) {}
  StepResult run(double grad, double loss = 1) {
    scaler.scale(sum(p) * loss).backward();
    p.set_grad(full({3}, grad));
    const StepResult result = scaler.step(sgd);
    scaler.update();
    return result;
  }
};

struct Made {
  std::string name;
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor>)> make;
};
inline const std::vector<Made>& optimizers() {
  using P = std::vector<Tensor>;
  static const std::vector<Made> all = {
      {"momentum",
       [](P p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
       }},
      {"nesterov",
       [](P p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
       }},
      {"adam",
       [](P p) {
         return std::make_unique<optim::Adam>(p,
                                              optim::AdamOptions{.lr = 0.1, .weight_decay = 0.1});
       }},
      {"adamw",
       [](P p) {
         return std::make_unique<optim::AdamW>(p,
                                               optim::AdamWOptions{.lr = 0.1, .weight_decay = 0.1});
       }},
      {"rmsprop",
       [](P p) {
         return std::make_unique<optim::RMSprop>(
             p, optim::RMSpropOptions{.lr = 0.1, .momentum = 0.9, .centered = true});
       }},
      {"adagrad",
       [](P p) { return std::make_unique<optim::Adagrad>(p, optim::AdagradOptions{.lr = 0.1}); }},
      {"adadelta", [](P p) { return std::make_unique<optim::Adadelta>(p); }},
      {"lion", [](P p) { return std::make_unique<optim::Lion>(p, optim::LionOptions{.lr = 0.1}); }},
      {"lamb", [](P p) { return std::make_unique<optim::Lamb>(p, optim::LambOptions{.lr = 0.1}); }},
  };
  return all;
}

}  // namespace mixtape::amp
