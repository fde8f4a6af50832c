// A program that multiplies matrices by Mixtape and by a library with an Eigen of its own.
#include <mixtape/autograd/ops.h>

double other_product(int n);

int main() {
  using namespace mixtape;
  for (const int n : {33, 256}) {
    for (const DType dtype : {f32, f64}) {
      const double ours = sum(matmul(full({n, n}, 2, dtype), ones({n, n}, dtype))).item();
      if (ours != 2.0 * n * n * n) return 1;
    }
    if (other_product(n) != 2 * (2.0 * n * n * n + 2.0 * n * n * n)) return 2;
  }
}
