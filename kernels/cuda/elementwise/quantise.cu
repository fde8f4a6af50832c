// Rounding to formats of 8 and 4 bits, and their scales.

#include "kernels/common/quantise.h"

#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
namespace {

struct Quantise {
  GridInfo grid;
  MIXTAPE_HD float operator()(float x, float scale) const { return quantised(x, scale, grid); }
};

}  // namespace

void quantise_scale(Launch& launch, Grid grid, int margin, In most, In whole, Out scale) {
  const ScaleOf of = scale_of(grid, margin, whole.data != nullptr);
  map<float, float, float>(launch, "quantise_scale", of, scale, most, of.f8 ? whole : most);
}

void quantise(Launch& launch, Grid grid, In x, In scale, Out y) {
  map<float, float, float>(launch, "quantise", Quantise{info_of(grid)}, y, x, scale);
}

}  // namespace mixtape::kernels::cuda
