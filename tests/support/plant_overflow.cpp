// Writes the capsule of an overflow, forward or backward, for the test of mixtape-replay.
#include <string_view>

#include "amp/autocast.h"
#include "amp/capsule.h"
#include "autograd/ops.h"

int main(int, char** argv) {
  using namespace mixtape;
  const amp::OverflowCapsule capsule(argv[1]);
  const amp::Autocast on({.low = f16});
  const double size = std::string_view(argv[2]) == "forward" ? 300 : 0.5;
  const Tensor x = full({4, 70}, size, f16).set_requires_grad(), w = full({5, 70}, 300);
  const Tensor y = linear(x, w);
  y.backward({.gradient = full(y.shape(), 60000, y.dtype())});
  return capsule.found() ? 0 : 1;
}
