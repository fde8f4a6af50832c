// Sharpness-aware minimization: where parameters stand, and that all is as before afterwards.
#include "optim/sam.h"

#include <fmt/format.h>

#include "autograd/ops.h"
#include "core/format.h"
#include "core/warn.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace optim_sam_test {

// f = (x^2 + 10 y^2) / 2, whose gradient is (x, 10 y).
Tensor loss_of(const Tensor& x, const Tensor& y) {
  return (sum(square(x)) + 10 * sum(square(y))) * 0.5;
}

TEST(Sam, StepsAlongTheGradientOfTheWorstPointNearby) {
  const Tensor x = from({3}, {1}, f64).set_requires_grad(),
               y = from({0.4}, {1}, f64).set_requires_grad();
  SGD opt({x, y}, {.lr = 0.1});
  loss_of(x, y).backward();
  {
    const Ascended worst(opt, 0.5);  // the gradient is (3, 4): to (3 + 0.3, 0.4 + 0.4)
    EXPECT_NEAR(x.item(), 3.3, 1e-12);
    EXPECT_NEAR(y.item(), 0.8, 1e-12);
    opt.zero_grad();
    loss_of(x, y).backward();
  }
  EXPECT_EQ(x.item(), 3);
  EXPECT_EQ(y.item(), 0.4);
  opt.step();
  EXPECT_NEAR(x.item(), 3 - 0.1 * 3.3, 1e-12);
  EXPECT_NEAR(y.item(), 0.4 - 0.1 * 8, 1e-12);
}

TEST(Sam, WarnsIfThereAreNoGradients) {
  const Params p = problem();
  const SGD opt(p, {.lr = 0.1});
  std::vector<std::string> warnings;
  const OnWarning listen([&](const std::string& text) { warnings.push_back(text); });
  const Ascended nowhere(opt, 0.5);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(warnings[0].starts_with("sgd: a step without gradients changes nothing"));
}

// A loss scale changes nothing, and what is not finite moves nothing.
TEST(Sam, LooksAtTheDirectionAlone) {
  for (const double scale : {1.0, 65536.0, inf, 0.0}) {
    const Params p = problem();
    SGD opt(p, {.lr = 0.1});
    set_grads(p, 1, f32, scale == 0 ? 0 : scale);
    const std::vector<double> before = all_values(p);
    double square = 0;
    for (const double g :
         all_values({value(0, 1, f32), value(1, 1, f32), value(2, 1, f32), value(3, 1, f32)}))
      square += g * g;
    const std::vector<double> grads =
        all_values({value(0, 1, f32), value(1, 1, f32), value(2, 1, f32), value(3, 1, f32)});
    {
      const Ascended worst(opt, 0.25);
      const std::vector<double> now = all_values(p);
      const bool moves = scale > 0 && std::isfinite(scale);
      for (size_t i = 0; i < now.size(); ++i)
        EXPECT_NEAR(now[i], before[i] + (moves ? 0.25 * grads[i] / std::sqrt(square) : 0), 1e-6);
    }
    EXPECT_EQ(all_values(p), before);
  }
}

// Moments do not notice.
TEST(Sam, KeepsStatesAndParametersWithoutGradients) {
  const Params p = problem(), q = problem();
  AdamW opt(p, {.lr = 0.01}), plain(q, {.lr = 0.01});
  for (uint32_t t = 1; t < 5; ++t) {
    set_grads(p, t, f32);
    set_grads(q, t, f32);
    p[2].set_grad({});
    q[2].set_grad({});
    {
      const Ascended worst(opt);
    }
    opt.step();
    plain.step();
  }
  EXPECT_EQ(bits(opt), bits(plain));
}

TEST(Sam, SaysWhatIsWrong) {
  SGD opt(problem(), {.lr = 0.1});
  EXPECT_EQ(error([&] { const Ascended far(opt, -1); }),
            "sam: rho must be >= 0 and finite, got -1");
  for (const DType dtype : {f16, bf16}) {
    SGD narrow(problem(dtype), {.lr = 0.1}, {.multi_precision = true});
    EXPECT_EQ(error([&] { const Ascended far(narrow); }),
              fmt::format("sam: parameters must be f32 or f64, got {}, which rounds such a step "
                          "away: take f32, and Autocast for the operations",
                          dtype));
  }
  {
    const Ascended nothing(opt);
  }  // without gradients
}

}  // namespace optim_sam_test
}  // namespace mixtape::optim
