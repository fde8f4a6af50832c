// Whole steps: an optimizer with the scaler over a hundred tensors, and the demo's network in each
// precision. Once warmed up, a step must neither wait for the device nor allocate memory.

#include <fmt/format.h>

#include "bench/gpu/report.h"
#include "bench/models.h"
#include "core/stream.h"
#include "core/tf32.h"
#include "tests/support/training_step.h"

namespace mixtape::bench {
namespace {

struct Training {
  DType low;
  Tensor x, y;
  Cnn net{demo_cnn};
  optim::Adam opt{net.parameters(), {.lr = 1e-3}};
  amp::GradScaler scaler{low};

  // The same values on every device for the same seed.
  Training(DType low, int64_t images)
      : low(low), x(randn({images, 1, 28, 28})), y(randint(0, 10, {images})) {}
  Tensor step() { return test::training_step(net, opt, scaler, low, x, y).loss; }
};

Tensor losses_on(Device device, DType low, int64_t images) {
  const DefaultDevice here(device);
  const Seed seed(1);
  Training training(low, images);
  std::vector<Tensor> losses;
  for (int i = 0; i < 5; ++i) losses.push_back(training.step().detach());
  return stack(losses);
}

}  // namespace

void measure_optimizer(Report& report) {
  report.take("memory/adam_100_tensors/f32", [&](Figure& f) {
    const int64_t n = report.settings.smoke ? 40 : 1 << 20;
    struct Stepper {
      std::vector<Tensor> params;
      optim::Adam opt;
      amp::GradScaler scaler;
      Tensor loss = zeros({}, f32);

      explicit Stepper(int64_t n) : params(make(n)), opt(params) {
        for (const Tensor& p : params) p.set_grad(randn(p.shape()));
      }
      static std::vector<Tensor> make(int64_t n) {
        std::vector<Tensor> params;
        for (int64_t i = 0; i < 100; ++i) params.push_back(randn({n + i}).set_requires_grad());
        return params;
      }
      void step() {
        scaler.scale(loss);
        scaler.step(opt);
        scaler.update();
      }
    };
    const auto after = [](Device device) {
      const DefaultDevice here(device);
      const Seed seed(1);
      Stepper stepper(40);
      for (int i = 0; i < 3; ++i) stepper.step();
      const NoGrad off;
      return cat(stepper.params);
    };
    f.tolerance = 1e-5;
    f.error = distance(after(gpu), after(Device::cpu()));
    const DefaultDevice here(gpu);
    Stepper stepper(n);
    // The overflow check reads the gradients; the step reads four tensors and writes three.
    f.work = (4.0 + 28.0) * double(100 * n + 4950);
    f.ours = report.time({[&](int64_t) { stepper.step(); }})[0];
  });
}

void measure_steps(Report& report) {
  struct Mode {
    const char* name;
    DType low;
    bool tf32;
    double tolerance;
  };
  const int64_t images = report.settings.smoke ? 2 : 64;
  for (const auto& [name, low, tf32, tolerance] :
       {Mode{"fp32", f32, false, 1e-4}, Mode{"tf32", f32, true, 1e-2},
        Mode{"fp16", f16, false, 2e-2}, Mode{"bf16", bf16, false, 5e-2}}) {
    report.take(fmt::format("step/{}", name), [&, low = low, tf32 = tf32,
                                               tolerance = tolerance](Figure& f) {
      f.kind = Figure::Kind::Step;
      f.work = double(images);
      f.tolerance = tolerance;
      const Tf32 rounds(tf32);
      f.error = distance(losses_on(gpu, low, images), losses_on(Device::cpu(), f32, images));

      const DefaultDevice here(gpu);
      const Seed seed(1);
      Training training(low, images);
      for (int i = 0; i < 3; ++i) training.step();
      const int64_t waits = synchronizations(), asked = memory_stats(gpu).system_calls;
      const int steps = 5;
      for (int i = 0; i < steps; ++i) training.step();
      if (const int64_t n = synchronizations() - waits; n != 0)
        f.wrong.push_back(fmt::format("{} steps waited {} times", steps, n));
      if (const int64_t n = memory_stats(gpu).system_calls - asked; n != 0)
        f.wrong.push_back(fmt::format("{} steps asked {} times for memory", steps, n));
      f.ours = report.time({[&](int64_t) { training.step(); }})[0];
    });
  }
}

}  // namespace mixtape::bench
