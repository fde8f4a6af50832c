#pragma once
// Convolutions of images with channels last, for the kernels of the table in conv.cu.

#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {

// True if they take these images: f16, bf16 or, if the launch rounds to TF32, f32; either of them
// channels last, for one group.
bool takes_images(const Launch& launch, In x, In y);
// As the kernels of these names; all images are channels last.
void conv2d_images(Launch& launch, In x, In w, const Epilogue& epilogue, const Window& window,
                   Out y);
void conv2d_input_images(Launch& launch, In dy, In w, In bias, const Window& window, Out dx);
void conv2d_weight_images(Launch& launch, In x, In dy, const Window& window, Out dw, Out db);

}  // namespace mixtape::kernels::cuda
