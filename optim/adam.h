#pragma once
// Optimizers that go by a running mean of the gradient: Adam and what was made of it, Lion, Muon.

#include <limits>

#include "optim/optimizer.h"

namespace mixtape::optim {

struct AdamOptions {
  static constexpr std::string_view name = "adam";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false;  // divides by the largest mean square so far (Reddi et al. 2018)
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const AdamOptions& options);

// Kingma & Ba 2015, algorithm 1. Semantics and names are those of torch.optim.Adam.
using Adam = OptimizerOf<AdamOptions>;

struct AdamWOptions {
  static constexpr std::string_view name = "adamw";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool amsgrad = false, maximize = false;  // as Adam's
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const AdamWOptions& options);

// Adam whose decay acts on the weights and not through the gradient (Loshchilov & Hutter 2019).
using AdamW = OptimizerOf<AdamWOptions>;

struct NAdamOptions {
  static constexpr std::string_view name = "nadam";
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const NAdamOptions& options);

// Dozat 2016, algorithm 2. Semantics and names are those of torch.optim.NAdam, but for the product
// of the momenta so far, which follows from the number of steps and the present options.
using NAdam = OptimizerOf<NAdamOptions>;

struct RAdamOptions {
  static constexpr std::string_view name = "radam";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const RAdamOptions& options);

// Liu et al. 2020, algorithm 2. Semantics and names are those of torch.optim.RAdam.
using RAdam = OptimizerOf<RAdamOptions>;

struct LambOptions {
  static constexpr std::string_view name = "lamb";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0;
  // Limits of |p| (phi in the paper), and of the trust ratio. Both trust limits at 1: AdamW, for
  // groups of biases and norms.
  double min_norm = 0, max_norm = std::numeric_limits<double>::infinity();
  double min_trust = 0, max_trust = std::numeric_limits<double>::infinity();
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const LambOptions& options);

// p -= lr trust (r + weight_decay p), trust = |p| / |r + weight_decay p|, where r is Adam's step
// with both corrections for bias (You et al. 2020, algorithm 2). Where a norm is 0, trust is 1.
using Lamb = OptimizerOf<LambOptions>;

struct LionOptions {
  static constexpr std::string_view name = "lion";
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const LionOptions& options);

// p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p), then m = beta2 m + (1 - beta2) g (Chen
// et al. 2023, algorithm 2). Wants a rate 3 to 10 times smaller than AdamW's, and more decay.
using Lion = OptimizerOf<LionOptions>;

struct MuonOptions {
  static constexpr std::string_view name = "muon";
  double lr = 0.02, momentum = 0.95, eps = 1e-7, weight_decay = 0;
  bool nesterov = true;
  // Makes steps as large as Adam's, so that its rate and decay fit (Liu et al. 2025).
  bool match_adam = false;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const MuonOptions& options);

// p -= lr (sqrt(max(1, rows / columns)) U V^T + weight_decay p), where U S V^T is the running mean
// of the gradient and U V^T is found by five Newton-Schulz steps (Jordan 2024). A parameter of more
// than two dimensions is a matrix of size(0) rows. Meant for hidden layers: give biases, norms,
// embeddings and the last layer to a group of AdamWOptions, since fewer dimensions are an Error.
class Muon : public OptimizerOf<MuonOptions> {
 public:
  using OptimizerOf::add_group;
  using OptimizerOf::OptimizerOf;
  void add_group(std::vector<Tensor> params, const AdamWOptions& options);
};

}  // namespace mixtape::optim
