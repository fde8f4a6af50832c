#pragma once
// Normalisation layers. Their running statistics and weights stay f32 in an f16 or bf16 model,
// since small steps could not change them in half precision.

#include <concepts>
#include <optional>

#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "nn/module.h"

namespace mixtape::nn {

// Not inline, since compiling a message's format takes time wherever it is included.
void check_eps(double eps);             // >= 0
void check_channels(int64_t channels);  // > 0
void check_momentum(double momentum);   // from 0 to 1
// Adds a batch to averages over `count` of them. If not all its statistics are finite, its op has
// left a variance at -1, and it does not count.
void average(const Tensor& mean, const Tensor& var, const Tensor& count, const Tensor& batch_mean,
             const Tensor& batch_var);
// Throws Error unless the rank is in this range and dimension 1 has `channels`.
void check_normed(const Tensor& x, int min_rank, int max_rank,
                  std::optional<int64_t> channels = {});

struct LayerNormOptions {
  double eps = 1e-5;
  bool affine = true;  // false: neither weight nor bias
  bool bias = true;
};
// Normalises over the last dimensions, which have the given shape.
struct LayerNorm : Module<LayerNorm> {
  Tensor weight, bias;  // [shape], or none

  explicit LayerNorm(const Shape& shape, const LayerNormOptions& o = {});
  explicit LayerNorm(int64_t size, const LayerNormOptions& o = {}) : LayerNorm(Shape{size}, o) {}
  LayerNorm(const Shape& shape, std::floating_point auto eps, bool affine = true,
            bool with_bias = true)
      : LayerNorm(shape, LayerNormOptions{eps, affine, with_bias}) {}
  LayerNorm(int64_t size, std::floating_point auto eps, bool affine = true, bool with_bias = true)
      : LayerNorm(Shape{size}, eps, affine, with_bias) {}
  Tensor forward(const Tensor& x, std::optional<DType> rounded = {}) const {
    return layer_norm(x, shape_, weight, bias, eps_, rounded);
  }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight, bias)

 private:
  Shape shape_;
  double eps_;
};

struct RMSNormOptions {
  std::optional<double> eps = {};  // by default the spacing of f32 (for f64: f64) numbers at 1
  bool affine = true;              // false: no weight
};
// x / sqrt(mean(x^2) + eps) * weight over the last dimensions, which have the given shape.
struct RMSNorm : Module<RMSNorm> {
  Tensor weight;  // [shape], or none

  explicit RMSNorm(const Shape& shape, const RMSNormOptions& o = {});
  explicit RMSNorm(int64_t size, const RMSNormOptions& o = {}) : RMSNorm(Shape{size}, o) {}
  RMSNorm(const Shape& shape, std::floating_point auto eps, bool affine = true)
      : RMSNorm(shape, RMSNormOptions{eps, affine}) {}
  RMSNorm(int64_t size, std::floating_point auto eps, bool affine = true)
      : RMSNorm(Shape{size}, eps, affine) {}
  Tensor forward(const Tensor& x, std::optional<DType> rounded = {}) const {
    return rms_norm(x, shape_, weight, eps_.value_or(x.dtype() == f64 ? 0x1p-52 : 0x1p-23),
                    rounded);
  }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight)

 private:
  Shape shape_;
  std::optional<double> eps_;
};

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;
};
// Normalises each of `groups` groups of channels of x [n, c, ...].
struct GroupNorm : Module<GroupNorm> {
  Tensor weight, bias;  // [channels], or none

  GroupNorm(int64_t groups, int64_t channels, const GroupNormOptions& o = {});
  GroupNorm(int64_t groups, int64_t channels, std::floating_point auto eps, bool affine = true)
      : GroupNorm(groups, channels, GroupNormOptions{eps, affine}) {}
  Tensor forward(const Tensor& x) const { return group_norm(x, groups_, weight, bias, eps_); }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight, bias)

 private:
  int64_t groups_;
  double eps_;
};

struct InstanceNormOptions {
  double eps = 1e-5;
  bool affine = false;
};
// Normalises each channel of each element of the batch (n may be absent), also in evaluation.
template <class Derived, int rank>
struct InstanceNorm : Module<Derived> {
  Tensor weight, bias;  // [channels], or none

  explicit InstanceNorm(int64_t channels, const InstanceNormOptions& o = {})
      : channels_(channels), eps_(o.eps) {
    const std::string name = type_name(typeid(Derived));
    const internal::Scope scope(name);
    check_channels(channels);
    check_eps(eps_);
    if (!o.affine) return;
    weight = parameter(ones({channels}));
    bias = parameter(zeros({channels}));
  }
  Tensor forward(const Tensor& x) const {
    if (x.rank() == rank - 1) return squeeze(forward(unsqueeze(x, 0)), 0);
    check_normed(x, rank, rank, channels_);
    return instance_norm(x, weight, bias, eps_);
  }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight, bias)

 private:
  int64_t channels_;
  double eps_;
};
struct InstanceNorm2d : InstanceNorm<InstanceNorm2d, 4> {  // [n, c, h, w]
  using InstanceNorm::InstanceNorm;
};

// A replacement for the op in training, set by dist::SyncBatchNorm, for batches that are spread
// over several processes.
struct BatchNormState {
  using Function = Tensor (*)(const Tensor& x, const Tensor& mean, const Tensor& var,
                              const Tensor& weight, const Tensor& bias, const BatchNormOptions&);
  Function in_training = nullptr;

  static BatchNormState& current();
};
inline thread_local constinit BatchNormState batch_norm_state;
inline BatchNormState& BatchNormState::current() { return batch_norm_state; }

// Normalises by the batch's statistics in training, otherwise by the running ones.
template <class Derived, int min_rank, int max_rank>
struct BatchNorm : Module<Derived> {
  struct Options {
    double eps = 1e-5;
    std::optional<double> momentum = 0.1;  // weight of batch n in running statistics; none: 1 / n
    bool affine = true;
    bool track_running_stats = true;  // false: batch statistics also in evaluation
  };
  Tensor weight, bias;               // [channels], or none
  Buffer running_mean, running_var;  // [channels], or none
  Buffer num_batches_tracked;        // i64

  explicit BatchNorm(int64_t channels, const Options& o = {}) : momentum_(o.momentum), eps_(o.eps) {
    const internal::Scope scope("BatchNorm");
    check_channels(channels);
    check_eps(eps_);
    check_momentum(momentum_.value_or(0));
    if (o.affine) {
      weight = parameter(ones({channels}));
      bias = parameter(zeros({channels}));
    }
    if (o.track_running_stats) {
      running_mean = zeros({channels});
      running_var = ones({channels});
      num_batches_tracked = zeros({}, i64);
    }
  }
  BatchNorm(int64_t channels, std::floating_point auto eps, std::optional<double> momentum = 0.1,
            bool affine = true, bool track_running_stats = true)
      : BatchNorm(channels, Options{eps, momentum, affine, track_running_stats}) {}
  Tensor forward(const Tensor& x) const {
    check_normed(x, min_rank, max_rank);
    const bool training = this->is_training();
    BatchNormState::Function normed = mixtape::batch_norm;
    if (training && batch_norm_state.in_training) normed = batch_norm_state.in_training;
    const bool counted = called_again();  // a checkpoint's second call is of the same batch
    const bool tracks = training && num_batches_tracked && !counted;
    // Without a momentum the op writes the batch's statistics beside the running ones.
    const bool apart = tracks && !momentum_;
    Tensor mean = running_mean, var = running_var;
    if (apart) mean = zeros_like(mean), var = mean - 1.0;
    const Tensor y = normed(x, mean, var, weight, bias,
                            {.training = training || !running_mean,
                             .momentum = counted ? 0 : momentum_.value_or(1),
                             .eps = eps_});
    if (apart)
      average(running_mean, running_var, num_batches_tracked, mean, var);
    else if (tracks)
      add_(num_batches_tracked, 1);
    return y;
  }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight, bias, running_mean, running_var, num_batches_tracked)

 private:
  std::optional<double> momentum_;
  double eps_;
};

struct BatchNorm1d : BatchNorm<BatchNorm1d, 2, 3> {  // [n, c] or [n, c, length]
  using BatchNorm::BatchNorm;
};
struct BatchNorm2d : BatchNorm<BatchNorm2d, 4, 4> {  // [n, c, h, w]
  using BatchNorm::BatchNorm;
};

}  // namespace mixtape::nn
