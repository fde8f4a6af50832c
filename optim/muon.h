#pragma once
// Muon: the momentum of a matrix, made orthogonal. The parameters that are no matrices, in the same
// optimizer, go by AdamW.

#include "optim/adam.h"
#include "optim/optimizer.h"

namespace mixtape::optim {

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
