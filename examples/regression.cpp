// The smallest training loop, without a Learner: fits the line y = 2 x - 1 to points.

#include "examples/command_line.h"
#include "mixtape.h"

using namespace mixtape;

void fit_a_line(Device device) {
  const DefaultDevice here(device);
  const Seed seed(1);
  const Tensor x = randn({256, 1}), y = 2 * x - 1 + 0.1 * randn({256, 1});
  nn::Linear line(1, 1);
  optim::SGD opt(line.parameters(), {.lr = 0.1});
  for (int step = 0; step < 100; ++step) {
    opt.zero_grad();
    mse_loss(line(x), y).backward();
    opt.step();
  }
  fmt::print("y = {:.2f} x {:+.2f}, mean squared error {:.4f}\n", line.weight.item(),
             line.bias.item(), mse_loss(line(x), y).item());
}

int main(int argc, char** argv) {
  std::string device = "cpu";
  examples::CommandLine line("regression", "Fits a line to points with a loop of its own.");
  line.device(device);
  return line.run(argc, argv, [&] { return [on = examples::usable(device)] { fit_a_line(on); }; });
}
