#pragma once
// Sharing: what an optimizer needs when several processes divide its parameters, each keeping the
// state of its own pieces only.

#include <memory>
#include <vector>

#include "core/tensor.h"

namespace mixtape::optim {

// All processes call joined(), begin_step(), end_step() and join() in the same order.
class Sharing {
 public:
  virtual ~Sharing() = default;
  // This process's piece of a parameter, 1-dimensional and perhaps without elements. The piece of a
  // piece is the piece itself.
  virtual Tensor piece_of(const Tensor& t) const = 0;
  virtual Tensor whole_of(const Tensor& t) const = 0;   // the parameter of a piece, or t itself
  virtual int64_t first_of(const Tensor& t) const = 0;  // the element at which a piece begins
  // Joins the parts of all processes, one number per element of each piece, to a tensor of the
  // parameter's shape on the CPU.
  virtual Tensor joined(const Tensor& t, const Tensor& part) const = 0;
  virtual void begin_step() = 0;  // copies what was written to parameters to their pieces
  virtual void end_step() = 0;    // copies all processes' pieces to their parameters
  // Joins numbers of all processes. `parts` (a number or row for each norm_block, or none) belong
  // to the gradients of `tensors`, some of which are pieces; returns those of the whole gradients.
  // `found` (f32 [tensors], or none) is set where another process's is. `steps` says that the step
  // follows at once.
  virtual Tensor join(const std::vector<Tensor>& tensors, const Tensor& parts, const Tensor& found,
                      bool steps) = 0;
};

// The Sharing of a parameter or piece; null if no other process has a part of it.
std::shared_ptr<Sharing> sharing_of(const Tensor& t);
// The Sharing of those tensors that have one. Throws Error if they have several.
std::shared_ptr<Sharing> sharing_of(const std::vector<Tensor>& tensors);
// Replaces divided parameters by this process's pieces.
std::vector<Tensor> own_pieces(std::vector<Tensor> params);

}  // namespace mixtape::optim
