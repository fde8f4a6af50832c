#pragma once
// Training steps of the networks in models.h, from zero_grad() to the optimizer's step.

#include "bench/interleave.h"
#include "bench/models.h"

namespace mixtape::bench {

// Repeatable calls in f32, or with autocast to `low`.
Call training(const MlpSize& size, DType low);     // SGD with momentum
Call training(const CnnSize& size, DType low);     // Adam
Call training(const LstmSize& size, DType low);    // Adam
Call training(const GptSize& size, DType low);     // AdamW, with gradients clipped to norm 1
Call training(const VitSize& size, DType low);     // AdamW
Call training(const ResNetSize& size, DType low);  // SGD with momentum
Call training(const UnetSize& size, DType low);    // Adam

}  // namespace mixtape::bench
