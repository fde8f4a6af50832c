#pragma once
// User-defined ops. One struct is a whole op:
//
//   struct Cube : Function<Cube> {
//     static constexpr OpInfo info{"cube"};                       // and its Precision, if not Any
//     static Tensor forward(Ctx& ctx, const Tensor& x) { ctx.save(x); return x * x * x; }
//     static Grads backward(const Ctx& ctx, const Tensor& dy) {
//       return {dy * square(ctx.saved(0)) * 3};
//     }
//   };
//   Tensor y = Cube::apply(x);
//
// Attributes follow the tensors: forward(ctx, x, 2.0), backward(ctx, dy, 2.0). See autograd/call.h.

#include "autograd/call.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
