// A program linked with -ffast-math, which makes its threads flush subnormal numbers to zero.
#include <mixtape/autograd/ops.h>

#include <bit>
using namespace mixtape;

// True if all elements of x are y. The program compares bits: it takes both for 0.
bool all(const Tensor& x, float y) {
  for (const float element : to_vector<float>(x))
    if (std::bit_cast<uint32_t>(element) != std::bit_cast<uint32_t>(y)) return false;
  return true;
}

int main() {
  for (const int64_t n : {1, 100'000}) {  // on this thread, and on many
    const Tensor x = full({n}, 1e-30);
    if (!all(x * 1e-10, 1e-40F)) return 1;
    if (!all(x * full({n}, 1e-10), 1e-40F)) return 2;
    if (!all(full({n}, 1e-40), 1e-40F)) return 3;
  }
  const Tensor one = from({1e-40}, {1});
  if (!all(one, 1e-40F)) return 4;
  one.set(0, 2e-40);
  if (!all(one, 2e-40F)) return 5;
  const double read = one.item();  // a normal number
  return read > 1.99e-40 && read < 2.01e-40 ? 0 : 6;
}
