#pragma once
// WeightNorm and SpectralNorm: wrappers that compute a layer's weight from other parameters at each
// call. Names in the state_dict are those of torch.nn.utils.parametrizations.

#include <concepts>
#include <optional>
#include <utility>

#include "nn/module.h"

namespace mixtape::nn {

template <class M>
concept HasWeight = std::derived_from<M, ModuleBase> && requires(M& m) {
  { m.weight } -> std::same_as<Tensor&>;
};

// A transposed convolution of any size, also of nn/more.h.
template <class M>
concept Transposed = requires(typename M::Options& o) { o.output_padding; };

// A layer without its weight, and the parametrization that computes it.
template <class Derived, HasWeight M, class Parametrization>
class Parametrized : public Module<Derived> {
 public:
  Parametrization parametrization;

  // The weight that a call would compute now.
  Tensor weight() const {
    const NoPolicy in_its_own_dtype;
    return parametrization.weight(this->is_training());
  }
  // Calls a copy that shares the layer's other tensors, since several threads may call one module.
  template <class... Args>
  auto forward(const Args&... args) const {
    M layer = [this] {
      const Cloning permit;
      return M(layer_);
    }();
    if (layer.is_training() != this->is_training()) layer.train(this->is_training());
    layer.weight = weight();
    return layer.forward(args...);
  }
  bool keeps_f32() const override { return layer_.keeps_f32(); }
  void list_fields(Fields& fields) override {
    layer_.list_fields(fields);
    parametrization.list_fields(fields);
  }

 protected:
  template <class... Options>
  explicit Parametrized(M&& layer, const Options&... options)
      : parametrization(layer.weight, options...), layer_(std::move(layer)) {
    layer_.weight = {};  // absent tensors are not listed
  }

 private:
  M layer_;
};

// g v / |v|, with one length |v| per index of one dimension.
struct NormedWeight {
  Tensor g, v;

  NormedWeight(const Tensor& weight, int dim);
  Tensor weight(bool training) const;
  void list_fields(Fields& fields);

 private:
  int dim_;
};

// Separates a weight's length and direction (Salimans & Kingma 2016): g v / |v|, with one length
// per index of `dim` (negative: from the end; PyTorch's -1, one length for all, is not supported).
// Starts as the layer's weight. Drops the layer's hooks.
//   nn::WeightNorm layer(nn::Linear(20, 40));
template <HasWeight M>
struct WeightNorm : Parametrized<WeightNorm<M>, M, NormedWeight> {
  // Throws Error if the layer's weight has no rows.
  explicit WeightNorm(M layer, int dim = 0) : WeightNorm::Parametrized(std::move(layer), dim) {}
};

struct SpectralNormOptions {
  int64_t n_power_iterations = 1;  // in each call in training
  double eps = 1e-12;
  std::optional<int> dim = {};  // of the rows; default 0, for transposed convolutions 1
};
// W / (uT W v), with the weight as a matrix W of rows.
struct SpectralWeight {
  Tensor original;
  Buffer u, v;

  SpectralWeight(const Tensor& weight, const SpectralNormOptions& o, int dim);
  Tensor weight(bool training) const;
  void list_fields(Fields& fields);

 private:
  Tensor rows() const;  // at least f32
  void iterate(const Tensor& rows, int64_t times) const;

  int dim_;
  int64_t iterations_;
  double eps_;
};

// Divides a weight by its largest singular value (Miyato et al. 2018), found by power iterations
// that continue with each call in training. Drops the layer's hooks.
template <HasWeight M>
struct SpectralNorm : Parametrized<SpectralNorm<M>, M, SpectralWeight> {
  // Throws Error if the layer's weight has no rows, or an option is out of range.
  explicit SpectralNorm(M layer, const SpectralNormOptions& o = {})
      : SpectralNorm::Parametrized(std::move(layer), o, o.dim.value_or(Transposed<M> ? 1 : 0)) {}
};

}  // namespace mixtape::nn
