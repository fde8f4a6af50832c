#pragma once
// Labelled grey images, as the readers and generators give them.

#include "core/tensor.h"

namespace mixtape::train {

struct Images {
  Tensor pixels;  // u8 [n, height, width], 0 black to 255 white
  Tensor labels;  // i64 [n]
};

struct Split {
  Images train, valid;
};

}  // namespace mixtape::train
