// The same line as in regression.cpp, fitted by a Learner.

#include "examples/command_line.h"
#include "mixtape.h"
#include "train/learner.h"

using namespace mixtape;

void fit_a_line(Device device) {
  const Seed seed(1);
  const Tensor x = randn({256, 1}), y = 2 * x - 1 + 0.1 * randn({256, 1});
  nn::Linear line(1, 1);
  train::Learner learner(line,
                         {.optimizer = [](auto params) { return optim::SGD(params, {.lr = 0.1}); },
                          .device = device,
                          .out = nullptr,
                          .progress = false});
  learner.fit(x, y, {.batch_size = 256, .epochs = 100, .shuffle = false});
  fmt::print("y = {:.2f} x {:+.2f}, mean squared error {:.4f}\n", line.weight.item(),
             line.bias.item(), learner.evaluate(x, y).loss);
}

int main(int argc, char** argv) {
  std::string device = "cpu";
  examples::CommandLine line("regression_learner", "Fits a line to points with a Learner.");
  line.device(device);
  return line.run(argc, argv, [&] { return [on = examples::usable(device)] { fit_a_line(on); }; });
}
