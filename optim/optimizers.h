#pragma once
// The optimizers. Their formulas, papers and options with defaults are in
// kernels/common/optimizers.h; names and semantics are PyTorch's where it has them.

#include "optim/optimizer.h"

namespace mixtape::optim {

using SGDOptions = kernels::SGD;
using SGD = OptimizerOf<SGDOptions>;
using AdamOptions = kernels::Adam;
using Adam = OptimizerOf<AdamOptions>;

// Adam with decoupled weight decay.
using AdamWOptions = kernels::AdamW;
using AdamW = OptimizerOf<AdamWOptions>;

// Unlike PyTorch's, derives the product of past momenta from the step count and current options.
using NAdamOptions = kernels::NAdam;
using NAdam = OptimizerOf<NAdamOptions>;
using RAdamOptions = kernels::RAdam;
using RAdam = OptimizerOf<RAdamOptions>;

// Needs a learning rate 3 to 10 times smaller than AdamW's, and more decay.
using LionOptions = kernels::Lion;
using Lion = OptimizerOf<LionOptions>;
using RMSpropOptions = kernels::RMSprop;
using RMSprop = OptimizerOf<RMSpropOptions>;
using AdagradOptions = kernels::Adagrad;
using Adagrad = OptimizerOf<AdagradOptions>;
using AdadeltaOptions = kernels::Adadelta;
using Adadelta = OptimizerOf<AdadeltaOptions>;
using AdamaxOptions = kernels::Adamax;
using Adamax = OptimizerOf<AdamaxOptions>;
using RpropOptions = kernels::Rprop;
using Rprop = OptimizerOf<RpropOptions>;
using ASGDOptions = kernels::ASGD;
using ASGD = OptimizerOf<ASGDOptions>;

// With both trust limits at 1 it is AdamW, for groups of biases and norms.
using LambOptions = kernels::Lamb;
using Lamb = OptimizerOf<LambOptions>;

// SGD whose steps are proportional to each parameter's norm, for large batches of images. With both
// trust limits at 1 it is SGD, for groups of biases and norms.
using LarsOptions = kernels::Lars;
using Lars = OptimizerOf<LarsOptions>;

// AdamW that needs neither a schedule nor a training length, since it averages weights. Gradients
// are taken between the last weights and their mean; evaluate and save the weights that Averaged
// shows (optim/averaged.h).
using ScheduleFreeAdamWOptions = kernels::ScheduleFreeAdamW;
using ScheduleFreeAdamW = OptimizerOf<ScheduleFreeAdamWOptions>;

// Keeps a number for each row and column of a matrix (the last two dimensions) instead of one for
// each element. lr is the largest rate: the actual one falls as 1 / sqrt(steps) and is proportional
// to the parameter's size. Decay is proportional to lr alone.
using AdafactorOptions = kernels::Adafactor;
using Adafactor = OptimizerOf<AdafactorOptions>;

// For the matrices of hidden layers (with size(0) rows if they have more than two dimensions). Add
// biases, norms, embeddings and the last layer as a group of AdamWOptions. Throws Error for
// vectors.
using MuonOptions = kernels::Muon;
class Muon : public OptimizerOf<MuonOptions> {
 public:
  using OptimizerOf::add_group;
  using OptimizerOf::OptimizerOf;
  // Adds a group that AdamW updates. Without `common`, its common options are those of the first
  // group.
  void add_group(std::vector<Tensor> params, const AdamWOptions& options) {
    add_group(std::move(params), options, first_common());
  }
  void add_group(std::vector<Tensor> params, const AdamWOptions& options,
                 const CommonOptions& common) {
    append_group(std::move(params), std::make_unique<AlgorithmOf<AdamWOptions>>(options, common));
  }
};

}  // namespace mixtape::optim
