// A program that prints our types with whichever fmt it has; the library may have been compiled
// with another.
#include <mixtape.h>
using namespace mixtape;

int main() {
  const Tensor x = ones({2, 3}, bf16);
  fmt::print("{} {} {} {}\n", x.shape(), x.dtype(), x.device(), x);
  try {
    matmul(x, x);
  } catch (const Error&) {
    return 0;
  }
  return 1;
}
