#pragma once
// Sharing: parameters that several processes divide among them, each of which keeps the state of
// its own pieces alone, and what an optimizer's step needs of the others.

#include <memory>
#include <vector>

#include "core/tensor.h"

namespace mixtape::optim {

// joined(), steps and join() are called by all processes, in the same order.
class Sharing {
 public:
  virtual ~Sharing() = default;
  // This process's piece of a parameter, 1-dimensional and perhaps without elements. A piece's is
  // itself.
  virtual Tensor piece_of(const Tensor& t) const = 0;
  virtual Tensor whole_of(const Tensor& t) const = 0;   // the parameter that t is or is a piece of
  virtual int64_t first_of(const Tensor& t) const = 0;  // the element with which the piece begins
  // The tensor of a parameter's shape, on the CPU, of which each process has the part of its piece.
  virtual Tensor joined(const Tensor& t, const Tensor& part) const = 0;
  virtual void begin_step() = 0;  // pieces take what was written to their parameters
  virtual void end_step() = 0;    // parameters take what was written to the pieces of all
  // Joins those of all processes. `parts` (a number or row for each norm_block, or none) of the
  // gradients of `tensors`, some of which are pieces, become those of whole ones, and are returned.
  // `found` (f32 [tensors], or none), is set where another's is. `steps`: the step follows at once.
  virtual Tensor join(const std::vector<Tensor>& tensors, const Tensor& parts, const Tensor& found,
                      bool steps) = 0;
};

// Null if no process but this one has the parameter.
std::shared_ptr<Sharing> sharing_of(const Tensor& t);
// That of the tensors that have one. Throws Error if there are several.
std::shared_ptr<Sharing> sharing_of(const std::vector<Tensor>& tensors);
// This process's pieces in place of parameters that are divided.
std::vector<Tensor> own_pieces(std::vector<Tensor> params);

}  // namespace mixtape::optim
