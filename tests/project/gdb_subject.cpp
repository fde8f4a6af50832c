// A program for tests/project/gdb_test.py to stop in stop().

#include <mixtape.h>

using namespace mixtape;

struct Mlp : nn::Module<Mlp> {
  nn::Linear up{3, 2};
  nn::Embedding table{2, 2};
  nn::Buffer mean = full({2}, 0.5);
  int64_t width = 7;
  Tensor forward(const Tensor& x) const { return up(x) + mean; }
  MIXTAPE_FIELDS(up, table, mean)
};

void stop() {}

void look(const Tensor& x, const Mlp& net, [[maybe_unused]] const Shape& shape,
          [[maybe_unused]] Device device) {
  const Tensor none, scalar = full({}, 2.5), turned = transpose(x, 0, 1), half = x.to(f16),
                     brain = x.to(bf16), mask = gt(x, 2), index = from({-1, 7}, {2}, i64),
                     bytes = zeros({2, 0}, u8), small = index.to(i8), coded = x.to(f8_e4m3),
                     wide = arange(0, 100, 1), y = net(x);
  stop();
}

int main() {
  Mlp net;
  net.eval();
  look(from({1, 2, 3, 4, 5, 6.25}, {2, 3}), net, {4, -1}, Device::cuda(1));
}
