// CUDA optimizer steps, gradients and the loss scaler, under the emulator, beside those of the CPU.

#include <fmt/format.h>

#include <bit>
#include <functional>
#include <optional>

#include "core/format.h"
#include "kernels/common/optimizers.h"
#include "kernels/common/tensor_stats.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_optim_test {

// The bytes of tensors.
std::string bytes(const std::vector<Tensor>& tensors) {
  std::string all;
  for (const Tensor& t : tensors) all.append(static_cast<const char*>(t.raw()), t.nbytes());
  return all;
}

struct Kinds {
  DType param, grad;
  std::optional<DType> shadow = {};
};
const Kinds all_kinds[] = {{f32, f32},  {f64, f64},        {f16, f16},
                           {bf16, f32}, {f32, bf16, bf16}, {f32, f16, f16},
                           {f16, bf16}, {f64, bf16},       {f32, f64}};

// Parameters of every kind and of awkward sizes, some unaligned; the same in each instance.
class Model {
 public:
  explicit Model(bool matrices = false, int copies = 1) {
    uint64_t seed = 1;
    for (int copy = 0; copy < copies; ++copy)
      for (const Kinds& k : all_kinds)
        for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{31}, int64_t{256}, int64_t{8200}}) {
          const Shape shape = !matrices ? Shape{n}
                              : n == 0  ? Shape{0, 3}
                              : n < 256 ? Shape{n, 3}
                                        : Shape{5, 16};
          const int64_t shift = n == 31 ? 1 : 0;
          const auto make = [&](DType t, double low, double high) {
            const Tensor whole = random({shape.size() + shift}, t, ++seed, low, high);
            tensors.push_back(whole);
            return whole.with_layout(Layout(shape).at_offset(shift));
          };
          Update& u = updates.emplace_back();
          params.push_back(make(k.param, -1, 1));
          u.param = params.back();
          u.grad = make(k.grad, -1, 1);
          for (View& s : u.state) s = make(wide(k.param), 0.1, 1);
          if (k.shadow) u.shadow = make(*k.shadow, -1, 1);
          tensors.push_back(filled({}, f32, double(seed % 3)));
          u.steps = tensors.back();
        }
  }
  std::vector<Update> updates;
  std::vector<Tensor> params, tensors;
};

template <class O>
void expect_same_step(const O& o, unsigned used, bool matrices = false, double slack = 1,
                      double rescale = 1) {
  const AnyOptimizer optimizer = o;
  Model got(matrices), want(matrices);
  for (Model* m : {&got, &want})
    for (Update& u : m->updates) {
      for (size_t k = 0; k < Update::max_states; ++k)
        if (!(used >> k & 1)) u.state[k] = {};
      if (!used) u.steps = {};
      if (matrices && element_states<O> < state_count<O>)
        for (const int d : {0, 1}) {  // of rows, then of columns
          Shape shape = u.param.shape();
          shape[1 - d] = 1;
          u.state[1 + d].layout = Layout(shape);
        }
    }
  const Tensor scale = filled({}, f32, 0.5), skip = filled({}, f32, 0);
  for (int step = 0; step < 2; ++step) {
    const StepControl control{step ? View(skip) : View(), step ? View(scale) : View(), rescale};
    launch([&](Launch& l) { cuda::optimizer_step(l, optimizer, got.updates, control); });
    launch([&](Launch& l) { on_cpu(optimizer_step)(l, optimizer, want.updates, control); });
  }
  for (size_t i = 0; i < got.tensors.size(); ++i) {
    const DType t = got.tensors[i].dtype();
    expect_close(got.tensors[i], to_vector(want.tensors[i]), slack * tolerance(t),
                 fmt::format("tensor {} {} {}", i, t, got.tensors[i].shape()));
  }
  skip.set(0, 1);
  const std::string before = bytes(got.tensors);
  launch([&](Launch& l) { cuda::optimizer_step(l, optimizer, got.updates, {skip, scale}); });
  EXPECT_EQ(bytes(got.tensors), before) << "a skipped step";
}

TEST(CudaOptim, Sgd) {
  expect_same_step(SGD{.lr = 0.1, .weight_decay = 0.01}, 0);
  expect_same_step(SGD{.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .nesterov = true}, 1, false, 1,
                   -1);
}
TEST(CudaOptim, Adam) {
  expect_same_step(AdamW{.lr = 0.1, .betas = {0.9, 0.99}, .weight_decay = 0.1}, 3);
  expect_same_step(Adam{.lr = 0.1, .betas = {0.9, 0.99}, .weight_decay = 0.1, .amsgrad = true}, 7,
                   false, 1, -1);
}
TEST(CudaOptim, Rmsprop) {
  expect_same_step(RMSprop{.lr = 0.1, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1}, 1);
  expect_same_step(RMSprop{.lr = 0.1, .alpha = 0.9, .eps = 1, .momentum = 0.8, .centered = true}, 7,
                   false, 100, -1);  // v - a^2 cancels
}
TEST(CudaOptim, AdagradAdadeltaAndLion) {
  expect_same_step(Adagrad{.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1, .eps = 1e-8}, 1);
  expect_same_step(Adadelta{.lr = 0.1, .rho = 0.9, .eps = 1e-6, .weight_decay = 0.1}, 3, false, 1,
                   -1);
  expect_same_step(Lion{.lr = 0.1, .betas = {0.9, 0.99}, .weight_decay = 0.1}, 1);
}
TEST(CudaOptim, NadamAndRadam) {
  expect_same_step(NAdam{.lr = 0.1, .betas = {0.9, 0.99}, .weight_decay = 0.1}, 3);
  expect_same_step(NAdam{.lr = 0.1, .betas = {0.9, 0.99}, .eps = 1e-3, .momentum_decay = 2}, 3,
                   false, 1, -1);
  expect_same_step(NAdam{.lr = 0.1, .weight_decay = 0.1, .decoupled_weight_decay = true}, 3);
  expect_same_step(RAdam{.lr = 0.1, .betas = {0.9, 0.99}, .weight_decay = 0.1}, 3);
  expect_same_step(RAdam{.lr = 0.1, .weight_decay = 0.1, .decoupled_weight_decay = true}, 3);
  expect_same_step(RAdam{.lr = 0.1, .betas = {0.9, 0.5}}, 3, false, 1, -1);
}
const Lamb lamb{.lr = 0.1,
                .betas = {0.9, 0.99},
                .weight_decay = 0.1,
                .max_norm = 10,
                .min_trust = 0.1,
                .max_trust = 10};
TEST(CudaOptim, Lamb) { expect_same_step(lamb, 3); }
TEST(CudaOptim, Lars) {
  expect_same_step(Lars{.lr = 0.1, .momentum = 0, .trust_coefficient = 0.1}, 0);
  expect_same_step(Lars{.lr = 0.1,
                        .weight_decay = 0.1,
                        .trust_coefficient = 0.1,
                        .max_trust = 10,
                        .nesterov = true},
                   1, false, 1, -1);
}
TEST(CudaOptim, ScheduleFreeAdamW) {
  expect_same_step(ScheduleFreeAdamW{.lr = 0.1, .betas = {0.9, 0.99}, .weight_decay = 0.1}, 3);
  expect_same_step(ScheduleFreeAdamW{.lr = 0.1, .eps = 1e-3, .warmup_steps = 5}, 3, false, 1, -1);
}

TEST(CudaOptim, Adafactor) {
  const Adafactor o{.lr = 0.3, .eps1 = 0.3, .eps2 = 0.01, .weight_decay = 0.1};
  expect_same_step(o, 1);
  expect_same_step(o, 6, true);
  expect_same_step(Adafactor{.beta2_decay = -0.5, .eps2 = 2, .d = 1.5}, 6, true, 1, -1);
}

TEST(CudaOptim, Muon) {
  expect_same_step(Muon{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1}, 1, true, 30);
  expect_same_step(
      Muon{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = false, .match_adam = true},
      1, true, 30, -1);
}

// More parameters than a table holds.
TEST(CudaOptim, ManySmallParameters) {
  const auto run = [](bool on_cuda) {
    std::vector<Tensor> tensors;
    std::vector<Update> updates;
    for (int i = 0; i < 400; ++i) {
      Update& u = updates.emplace_back();
      const auto make = [&](uint64_t seed) {
        tensors.push_back(random({i % 7}, f32, seed, 0.1, 1));
        return View(tensors.back());
      };
      u.param = make(uint64_t(i));
      u.grad = make(uint64_t(1000 + i));
      for (View* s : {&u.state[0], &u.state[1]}) *s = make(uint64_t(2000 + i));
      tensors.push_back(filled({}, f32, i % 5));
      u.steps = tensors.back();
    }
    const AdamW adamw{.lr = 0.1, .betas = {0.9, 0.99}, .weight_decay = 0.1};
    const AnyOptimizer both[] = {adamw, lamb};
    launch([&](Launch& l) {
      for (const AnyOptimizer& o : both)
        on_cuda ? cuda::optimizer_step(l, o, updates, {})
                : on_cpu(optimizer_step)(l, o, updates, {});
    });
    return tensors;
  };
  const std::vector<Tensor> got = run(true), want = run(false);
  for (size_t i = 0; i < got.size(); ++i)
    expect_close(got[i], to_vector(want[i]), 1e-5, fmt::format("tensor {}", i));
}

// --- gradients ---

std::vector<Tensor> gradients() {
  std::vector<Tensor> all;
  for (const DType t : {f32, f64, f16, bf16})
    for (const int64_t n : {1, 3, 31, 32, 257, 1025, 8193}) {
      all.push_back(random({n}, t, uint64_t(n), -2, 2));
      const Tensor whole = random({n + 1}, t, uint64_t(n), -2, 2);
      all.push_back(whole.with_layout(Layout({n}).at_offset(1)));
    }
  return all;
}
std::vector<View> views(const std::vector<Tensor>& tensors) {
  std::vector<View> all(tensors.begin(), tensors.end());
  all.push_back({nullptr, f32, Layout(Shape{0})});
  return all;
}

TEST(CudaGradients, UnscaleFindsWhatIsNotFinite) {
  for (const double bad : {0.0, inf, nan}) {
    std::vector<Tensor> got = gradients(), want = gradients();
    if (bad != 0)
      for (const auto& all : {got, want}) {
        for (size_t i = 0; i < all.size(); i += 3) all[i].set(all[i].numel() - 1, bad);
        for (size_t i = 1; i < all.size(); i += 6) all[i].set(0, bad);
      }
    const int64_t n = int64_t(got.size()) + 1;
    const Tensor factor = filled({}, f32, 0.3), found = filled({n}, f32, 7), expected({n}, f32);
    std::vector<Tensor> before;
    for (const Tensor& t : got) before.push_back(from(to_vector(t), t.shape(), t.dtype()));
    launch([&](Launch& l) { cuda::find_nonfinite(l, views(got), factor, found, View{}); });
    launch([&](Launch& l) { on_cpu(find_nonfinite)(l, views(want), factor, expected, View{}); });
    EXPECT_EQ(to_vector(found), to_vector(expected));
    for (size_t i = 0; i < got.size(); ++i) expect_close(got[i], to_vector(before[i]), 0, "kept");
    launch([&](Launch& l) { cuda::unscale(l, views(got), factor, found, View{}); });
    launch([&](Launch& l) { on_cpu(unscale)(l, views(want), factor, expected, View{}); });
    EXPECT_EQ(to_vector(found), to_vector(expected));
    for (size_t i = 0; i < got.size(); ++i)
      expect_close(got[i], to_vector(want[i]), 0, fmt::format("gradient {}", i));
  }
}
TEST(CudaGradients, UnscaleJudgesWhatTheDtypeHolds) {
  const Tensor g = filled({5}, f16, 60000), found({1}, f32), factor = filled({}, f32, 2);
  const View view = g;
  launch([&](Launch& l) { cuda::find_nonfinite(l, std::span(&view, 1), factor, found, View{}); });
  EXPECT_EQ(found.at(0), 0);
  launch([&](Launch& l) { cuda::unscale(l, std::span(&view, 1), factor, found, View{}); });
  EXPECT_EQ(found.at(0), 1);
}

TEST(CudaGradients, UnscaleCountsExponents) {
  const std::vector<Tensor> got = gradients(), want = gradients();
  const int64_t n = int64_t(got.size()) + 1;
  const Tensor factor = filled({}, f32, 0.5), scale = filled({}, f32, 2), found({n}, f32),
               counts = filled({n, kernels::exponent_bins}, i32, 7),
               expected({n, kernels::exponent_bins}, i32), worst({3}, f32),
               worst_expected({3}, f32);
  for (const Tensor& t : {got[0], want[0]}) t.set(0, 0), t.set(t.numel() - 1, nan);
  launch([&](Launch& l) { cuda::find_nonfinite(l, views(got), factor, found, counts); });
  launch([&](Launch& l) { on_cpu(find_nonfinite)(l, views(want), factor, found, expected); });
  EXPECT_EQ(to_vector(counts), to_vector(expected));
  launch([&](Launch& l) { cuda::unscale(l, views(got), factor, found, counts); });
  EXPECT_EQ(to_vector(counts), to_vector(expected)) << "before the product";
  enum Case { Nothing, AllZero, SomeUnderflowed };
  for (const Case which : {Nothing, AllZero, SomeUnderflowed}) {
    for (int64_t i = 0; i < counts.numel(); ++i) counts.set(i, 0), expected.set(i, 0);
    for (int64_t p = 0; which != Nothing && p < n - 1; ++p)
      for (const auto& t : {counts, expected}) {
        t.set(p * kernels::exponent_bins, which == AllZero ? 3 : double(p * 5 % 17));
        if (which == SomeUnderflowed) t.set(p * kernels::exponent_bins + 100, 20);
      }
    launch([&](Launch& l) { cuda::find_underflow(l, counts, scale, worst); });
    launch([&](Launch& l) { on_cpu(find_underflow)(l, expected, scale, worst_expected); });
    EXPECT_EQ(to_vector(worst), to_vector(worst_expected));
    EXPECT_EQ(worst.at(2), 2);
    EXPECT_EQ(worst.at(0) >= 0, which != Nothing);
  }
}

TEST(CudaGradients, Surveys) {
  const std::vector<Tensor> all = gradients();
  double odd[] = {inf, -inf, nan, 0, -0.0, 0x1p-20, -0x1p-130, 0x1p-1030, 0x1p-14};
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].set(0, odd[i % std::size(odd)]);
    all[i].set(all[i].numel() - 1, odd[i / 2 % std::size(odd)]);
  }
  const int64_t n = int64_t(all.size()) + 1;
  const Tensor got = filled({n, kernels::stats_size}, f64, 7), want({n, kernels::stats_size}, f64);
  launch([&](Launch& l) { cuda::tensor_stats(l, views(all), got); });
  launch([&](Launch& l) { on_cpu(tensor_stats)(l, views(all), want); });
  EXPECT_EQ(to_vector(got), to_vector(want));
}

// Room for the parts of their norm.
Tensor norm_parts_of(const std::vector<Tensor>& grads) {
  int64_t parts = 0;
  for (const Tensor& g : grads) parts += internal::ceil_div(g.numel(), kernels::norm_block);
  return Tensor({parts}, f64);
}

TEST(CudaGradients, NormsAndClipping) {
  for (const bool with_nan : {false, true})
    for (const double p : {1.0, 2.0, 3.0, inf}) {
      const std::vector<Tensor> grads = gradients();
      if (with_nan) grads[11].set(2, nan);
      for (const DType t : {f64, f32}) {
        const Tensor got({}, t), want({}, t);
        const Tensor parts[2] = {norm_parts_of(grads), norm_parts_of(grads)};
        launch([&](Launch& l) { cuda::norm_parts(l, views(grads), p, parts[0]); });
        launch([&](Launch& l) { on_cpu(norm_parts)(l, views(grads), p, parts[1]); });
        expect_close(parts[0], to_vector(parts[1]), 1e-12, fmt::format("parts {}", p));
        launch([&](Launch& l) { cuda::norm_of_parts(l, parts[1], p, got); });
        launch([&](Launch& l) { on_cpu(norm_of_parts)(l, parts[1], p, want); });
        expect_close(got, to_vector(want), t == f64 ? 1e-12 : 1e-6, fmt::format("norm {}", p));
        for (const double most : {0.5, 1e9}) {
          const Tensor scale = filled({}, f32, 0.25);
          const Tensor norm[2] = {Tensor({}, t), Tensor({}, t)},
                       factor[2] = {Tensor({}, t), Tensor({}, t)};
          launch([&](Launch& l) { cuda::clip_factor(l, want, scale, most, norm[0], factor[0]); });
          launch([&](Launch& l) { on_cpu(clip_factor)(l, want, scale, most, norm[1], factor[1]); });
          expect_close(norm[0], to_vector(norm[1]), 0, "clipped norm");
          expect_close(factor[0], to_vector(factor[1]), 0, "factor");
        }
      }
    }
  const Tensor none({}, f64);
  launch([&](Launch& l) { cuda::norm_of_parts(l, Tensor({0}, f64), 2, none); });
  EXPECT_EQ(none.at(0), 0);
}
// Both add in the same tree: in f64 it is written out here.
TEST(CudaGradients, SumsOfPartsHaveOneOrder) {
  std::vector<std::pair<DType, DType>> pairs(std::begin(float_pairs), std::end(float_pairs));
  pairs.insert(pairs.end(), {{f32, f16}, {f32, bf16}});
  const std::function<double(const Tensor&, int64_t, int64_t, int64_t)> tree =
      [&](const Tensor& x, int64_t first, int64_t n, int64_t i) -> double {
    if (n == 1) return x.at(first * x.size(1) + i);
    const int64_t half = int64_t(std::bit_floor(uint64_t(n - 1)));
    return tree(x, first, half, i) + tree(x, first + half, n - half, i);
  };
  for (const int64_t n : {1, 2, 3, 7, 8, 21})
    for (const auto& [from, to] : pairs) {
      const Tensor parts = random({n, 777}, from, uint64_t(n));
      const Tensor got = output({777}, to), want = output({777}, to);
      launch([&](Launch& l) { cuda::sum_parts(l, parts, 0.75, got); });
      launch([&](Launch& l) { on_cpu(sum_parts)(l, parts, 0.75, want); });
      expect_equal(got, want, fmt::format("{} parts", n));
      for (int64_t i = 0; from == f64 && i < 777; ++i)
        EXPECT_EQ(want.at(i), tree(parts, 0, n, i) * 0.75);
    }
}
TEST(CudaGradients, ClipValue) {
  std::vector<Tensor> got = gradients(), want = gradients();
  for (const auto& all : {got, want}) {
    all[5].set(0, nan);
    all[7].set(1, inf);
  }
  launch([&](Launch& l) { cuda::clip_value(l, views(got), 0.7); });
  launch([&](Launch& l) { on_cpu(clip_value)(l, views(want), 0.7); });
  for (size_t i = 0; i < got.size(); ++i)
    expect_close(got[i], to_vector(want[i]), 0, fmt::format("gradient {}", i));
}

// --- the scaler ---

TEST(CudaScaler, JudgesAndUpdates) {
  const ScalePolicy rule{2, 0.5, 1, 65536, 2, 2};
  Tensor state[2][3];
  for (auto& s : state) {
    s[0] = from({4096, 1.0 / 4096}, {2}, f32);
    s[1] = filled({int64_t(ScalerCount::Total)}, i32, 0);
    s[2] = filled({4}, f32, 0);
  }
  for (int step = 0; step < 24; ++step) {
    const bool bad = step % 5 == 1 || step > 14, broken = step % 7 == 3, many = step % 2 == 1;
    const Tensor found = filled({300}, f32, 0);
    if (bad) found.set(step * 11, 1);
    std::vector<Tensor> flags;
    for (int i = 0; i < (many ? 500 : 3); ++i) flags.push_back(filled({1}, f32, 0));
    if (broken) flags[many ? 7 : 2].set(0, 1);
    const std::vector<View> losses(flags.begin(), flags.end());
    const Tensor none_found = filled({2}, f32, 0);
    const View all_found[] = {none_found, found};
    Tensor verdict[2], last[2];
    for (const int k : {0, 1}) {
      verdict[k] = output({}, f32);
      last[k] = filled({300}, f32, 0.5);
    }
    launch([&](Launch& l) {
      cuda::scaler_skip_reason(l, found, losses, verdict[0], last[0]);
      cuda::scaler_update(l, all_found, losses, rule, state[0][0], state[0][1], state[0][2]);
    });
    launch([&](Launch& l) {
      on_cpu(scaler_skip_reason)(l, found, losses, verdict[1], last[1]);
      on_cpu(scaler_update)(l, std::span(all_found), losses, rule, state[1][0], state[1][1],
                            state[1][2]);
    });
    EXPECT_EQ(to_vector(verdict[0]), to_vector(verdict[1])) << step;
    EXPECT_EQ(to_vector(last[0]), to_vector(last[1])) << step;
    for (int k = 0; k < 3; ++k) EXPECT_EQ(to_vector(state[0][k]), to_vector(state[1][k])) << step;
  }
}

}  // namespace kernels_cuda_optim_test
}  // namespace mixtape::kernels
