#pragma once
// LayerGroup: layers whose gradients are too small or too large for the loss scale of the others.

#include <memory>
#include <vector>

#include "core/no_copy.h"
#include "core/tensor.h"

namespace mixtape::amp {

// Multiplies gradients inside a group of layers by the group's own scale, in addition to the loss
// scale. The gradient of the group's result is multiplied on its way in; those of the group's input
// and parameters are divided on their way out, so scaler and optimizer need not know. Groups may be
// nested. Gradients with history (create_graph) and per_sample_gradients() throw Error.
//   const amp::LayerGroup encoder(net.encoder.parameters(), 0x1p10);
//   const Tensor h = encoder.end(net.encoder(encoder.begin(x)));
class LayerGroup : NoCopy {
 public:
  // Only these layers may use the parameters. Throws Error unless their gradients are f32 or f64,
  // and unless the scale and its inverse are positive and finite in f32. (Powers of two lose no
  // bits.)
  LayerGroup(const std::vector<Tensor>& parameters, double scale);
  ~LayerGroup();

  // Marks the group's input; only its layers may use the result.
  Tensor begin(const Tensor& x) const;
  // Marks the group's result, for use outside. Its graph may outlive the group. Parameters may have
  // been unfrozen since the group was made.
  Tensor end(const Tensor& y) const;
  double scale() const { return scale_; }  // the factor of gradients inside, besides the loss scale

 private:
  const double scale_;
  struct Parameters;
  const std::shared_ptr<Parameters> parameters_;
};

}  // namespace mixtape::amp
