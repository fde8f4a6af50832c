#pragma once
// LayerGroup: layers whose gradients are too small, or too large, for the loss scale of the others.

#include <memory>
#include <vector>

#include "core/no_copy.h"
#include "core/tensor.h"

namespace mixtape::amp {

// Multiplies the gradients inside a group of layers by a scale of its own, beside the loss's: that
// of the group's result on its way in, and divides those of the group's input and parameters on
// their way out. So neither the scaler nor the optimizer knows of it. Groups may contain others.
//   const amp::LayerGroup encoder(net.encoder.parameters(), 0x1p10);
//   const Tensor h = encoder.end(net.encoder(encoder.begin(x)));
class LayerGroup : NoCopy {
 public:
  // Throws Error unless the parameters, which only these layers use, have f32 or f64 gradients, and
  // unless the scale and its inverse are positive and finite in f32. (Powers of two lose no bits.)
  LayerGroup(const std::vector<Tensor>& parameters, double scale);
  ~LayerGroup();

  Tensor begin(const Tensor& x) const;  // the group's input, for its layers alone
  // The group's result, for all others. Its graph may outlive the group; parameters may have been
  // unfrozen since the group was made.
  Tensor end(const Tensor& y) const;
  double scale() const { return scale_; }  // the factor of gradients inside, beside the loss scale

 private:
  const double scale_;
  struct Parameters;
  const std::shared_ptr<Parameters> parameters_;
};

}  // namespace mixtape::amp
