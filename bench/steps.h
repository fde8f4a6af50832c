#pragma once
// Our training steps of the networks of models.h, from zero_grad to the optimizer's step.

#include "bench/interleave.h"
#include "bench/models.h"

namespace mixtape::bench {

// Each is ready to be called again and again: in f32, or under autocast to `low`.
Call training(const MlpSize& size, DType low);   // SGD with momentum
Call training(const CnnSize& size, DType low);   // Adam
Call training(const LstmSize& size, DType low);  // Adam
Call training(const GptSize& size, DType low);   // AdamW, and gradients clipped to a norm of 1
// ResNet-20 (CIFAR's) on that many images: SGD with momentum.
Call training_resnet20(int64_t batch, DType low);
double resnet20_operations(int64_t batch);

}  // namespace mixtape::bench
