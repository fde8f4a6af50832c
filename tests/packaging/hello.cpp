// The smallest program that uses every part a user sees. It is compiled from an installed copy, run
// as a test, and what compiling it costs is the price of the include.
#include <mixtape.h>
using namespace mixtape;

struct Mlp : nn::Module<Mlp> {
  nn::Linear up{4, 8}, down{8, 2};
  Tensor forward(const Tensor& x) const { return down(gelu(up(x))); }
  MIXTAPE_FIELDS(up, down)
};

int main() {
  Mlp net;
  optim::AdamW optimizer(net.parameters(), {.lr = 1e-2});
  const Tensor x = randn({16, 4});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    amp::Autocast on({.low = bf16});
    mean(square(net(x))).backward();
    optimizer.step();
  }
  return net.parameters().size() == 4 ? 0 : 1;
}
