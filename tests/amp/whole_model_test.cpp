// Models that are f16 or bf16 themselves: master weights in every optimizer, static scaling, and
// weights that move between dtypes.

#include "amp/scaler.h"
#include "core/warn.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "tests/support/optim.h"
#include "tests/support/temp_folder.h"

namespace mixtape {
using namespace internal;
namespace whole_model_test {

using optim::bits;
using optim::problem;
using optim::problems;
using optim::set_grads;
using optim::snapshot;
using test::error;

// All its parameters are matrices, as Muon requires.
struct Matrices : nn::Module<Matrices> {
  nn::Linear in{5, 8, {.bias = false}}, out{8, 3, {.bias = false}};
  Tensor forward(const Tensor& x) const { return out(tanh(in(x))); }
  MIXTAPE_FIELDS(in, out)
};
struct Net : nn::Module<Net> {
  nn::Linear in{5, 8};
  nn::LayerNorm norm{8};
  nn::Linear head;
  explicit Net(int64_t classes = 3) : head(8, classes) {}
  Tensor forward(const Tensor& x) const { return head(gelu(norm(in(x)))); }
  MIXTAPE_FIELDS(in, norm, head)
};
template <class N>
N seeded(uint64_t number = 3) {
  const Seed seed(number);
  return N();
}

struct Batch {
  Tensor x, target;
  explicit Batch(DType dtype) {
    const Seed seed(11);
    const Tensor wide = randn({12, 5});
    x = wide.to(dtype);
    target = floor_divide(argmax(wide, 1), 2);
  }
};
template <class N>
Tensor loss_of(const N& net, const Batch& b, double weight = 1) {
  return cross_entropy(net(b.x).to(f32), b.target, {.weight = weight});
}

TEST(WholeModel, KeepsNormsInF32) {
  for (const DType dtype : {f16, bf16}) {
    Net net = seeded<Net>();
    net.to(dtype);
    for (const auto& [name, p] : net.named_parameters())
      EXPECT_EQ(p.dtype(), name.starts_with("norm") ? f32 : dtype) << name;
    const Batch batch(dtype);
    EXPECT_EQ(net(batch.x).dtype(), dtype);
    loss_of(net, batch).backward();
    for (const Tensor& p : net.parameters()) EXPECT_TRUE(bool(p.grad()));
  }
}

TEST(WholeModel, ATensorOfTheDtypeIsItself) {
  const Tensor t = ones({3}).to(f16);
  EXPECT_TRUE(t.to(f16).is_same(t));
  EXPECT_FALSE(t.to(bf16).is_same(t));
  Net net;
  net.to(f16);
  const void* const before = net.in.weight.raw();
  net.to(f16);
  EXPECT_EQ(net.in.weight.raw(), before);
}

// --- master weights ---

// Masters move as f32 parameters would with the gradients of the 16-bit model, whose parameters are
// the rounded masters.
TEST(Masters, AreF32TrainingUnderEveryOptimizer) {
  for (const DType dtype : {f16, bf16})
    for (const auto& [name, make] : problems) {
      Matrices net = seeded<Matrices>();
      net.to(dtype);
      std::vector<Tensor> wide;
      for (const Tensor& p : net.parameters())
        wide.push_back(p.detach().to(f32).set_requires_grad());
      const auto narrow = make(net.parameters(), {.multi_precision = true}), reference = make(wide);
      const Batch batch(dtype);
      for (int t = 0; t < 4; ++t) {
        narrow->zero_grad();
        loss_of(net, batch).backward();
        for (size_t k = 0; k < wide.size(); ++k)
          wide[k].set_grad(net.parameters()[k].grad().detach().to(f32));
        narrow->step();
        reference->step();
        for (size_t k = 0; k < wide.size(); ++k)
          ASSERT_EQ(to_vector(net.parameters()[k]), to_vector(wide[k].detach().to(dtype))) << name;
      }
    }
}

TEST(Masters, AreMissedOnce) {
  std::vector<std::string> told;
  const OnWarning on([&](const std::string& text) { told.push_back(text); });
  const auto train = [&](DType dtype, bool multi_precision) {
    const Tensor p = ones({3}).to(dtype).set_requires_grad();
    optim::Adam opt({p}, {}, {.multi_precision = multi_precision});
    for (int t = 0; t < 3; ++t) {
      p.set_grad(ones({3}).to(dtype));
      opt.step();
    }
  };
  train(f16, true);
  train(f32, false);
  train(f64, false);
  EXPECT_EQ(told.size(), 0u);
  train(f16, false);
  train(f16, false);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0],
            "adam: f16 parameters without multi_precision lose updates below their precision: let "
            "the optimizer keep f32 copies with {.multi_precision = true}, or round by chance with "
            "{.rounding = Rounding::Stochastic}");
  train(bf16, false);
  EXPECT_EQ(told.size(), 2u);
  {
    const OnWarning inner([](const std::string&) {});
    train(f16, false);
  }
  EXPECT_EQ(told.size(), 2u) << "the innermost guard hears it";
}

// Versions belong to storages: a write to another parameter in the storage is not one to this.
TEST(Masters, OfParametersInOneStorage) {
  const auto pair = [](bool packed) {
    const Tensor data = arange(0, 8).to(f16) / 8.0, other = data.clone();
    const Tensor &a = data, &b = packed ? data : other;
    return std::vector<Tensor>{a.with_layout(Layout(Shape{4})).set_requires_grad(),
                               b.with_layout(Layout(Shape{4}).at_offset(4)).set_requires_grad()};
  };
  const auto packed = pair(true), apart = pair(false);
  const auto make = [](const std::vector<Tensor>& p) {
    optim::SGD opt({p[0]}, {.lr = 1e-4}, {.multi_precision = true});
    opt.add_group({p[1]}, {.lr = 1e-4}, {.multi_precision = true});
    return opt;
  };
  optim::SGD a = make(packed), b = make(apart);
  for (int t = 0; t < 5; ++t) {
    for (const auto& params : {packed, apart}) {
      params[0].set_grad(ones({4}, f16));
      params[1].set_grad(t == 2 ? Tensor() : ones({4}, f16));
    }
    a.step();
    b.step();
  }
  EXPECT_TRUE(bits(a) == bits(b));
}

// --- one vector of masters ---

// A new storage counts as a write to the parameter, even with the same version as the old one.
TEST(Masters, AreReadAgainFromAnotherStorage) {
  Tensor p = full({3}, 1, f16).set_requires_grad(true);
  optim::SGD opt({p}, {.lr = 0}, {.multi_precision = true});
  p.set_grad(ones({3}, f16));
  opt.step();
  const Tensor other = full({3}, 2, f16);
  while (other.version() < p.version()) other.storage()->bump_version();
  p.set_data(other);
  opt.step();
  EXPECT_EQ(p.at(0), 2);
}

TEST(FlatMasters, StepAsSeparateOnes) {
  for (const DType dtype : {f16, bf16})
    for (const auto& [name, make] : problems) {
      const auto a = problem(dtype), b = problem(dtype);
      const auto flat = make(a, {.multi_precision = true, .flat_master = true});
      const auto separate = make(b, {.multi_precision = true});
      for (uint32_t t = 1; t <= 4; ++t) {
        set_grads(a, t, dtype);
        set_grads(b, t, dtype);
        flat->step();
        separate->step();
        if (t == 2)  // weights are loaded in between
          for (const auto& params : {a, b}) params[1].set(0, 0.5);
      }
      EXPECT_EQ(bits(*flat), bits(*separate)) << name;
    }
}

TEST(FlatMasters, LieInOneVectorPerGroup) {
  const auto params = problem(f16);
  optim::AdamW opt({params[0], params[1]}, {}, {.multi_precision = true, .flat_master = true});
  opt.add_group({params[2], params[3]}, {}, {.multi_precision = true, .flat_master = true});
  for (uint32_t t = 1; t <= 2; ++t) {
    set_grads(params, t, f16);
    opt.step();
  }
  std::vector<const Storage*> storages;
  for (const auto& [name, t] : opt.state_dict())
    if (name.ends_with("master")) {
      storages.push_back(t.storage().get());
      EXPECT_TRUE(t.is_contiguous());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw()) % 16, 0u) << "for wide loads";
    }
  ASSERT_EQ(storages.size(), 4u);
  EXPECT_EQ(storages[0], storages[1]);
  EXPECT_NE(storages[1], storages[2]);
  EXPECT_EQ(storages[2], storages[3]);
}

TEST(FlatMasters, LoadWhatSeparateOnesSaved) {
  for (const bool first : {false, true})
    for (const bool second : {false, true}) {
      const auto a = problem(bf16), b = problem(bf16);
      optim::AdamW whole(a, {.lr = 0.1}, {.multi_precision = true, .flat_master = first});
      const auto step = [](const std::vector<Tensor>& params, optim::Optimizer& opt, uint32_t t) {
        set_grads(params, t, bf16);
        if (t < 3) params[2].set_grad({});  // a parameter that comes late
        opt.step();
      };
      for (uint32_t t = 1; t <= 2; ++t) step(a, whole, t);
      for (size_t k = 0; k < a.size(); ++k)
        for (int64_t i = 0; i < a[k].numel(); ++i) b[k].set(i, a[k].at(i));
      optim::AdamW resumed(b, {.lr = 0.1}, {.multi_precision = true, .flat_master = second});
      resumed.load_state_dict(snapshot(whole.state_dict()));
      for (uint32_t t = 3; t <= 5; ++t) {
        step(a, whole, t);
        step(b, resumed, t);
      }
      EXPECT_EQ(bits(whole), bits(resumed)) << first << second;
    }
}

TEST(FlatMasters, NeedMasters) {
  EXPECT_ERROR(optim::SGD({ones({3}).set_requires_grad()}, {}, {.flat_master = true}),
               "flat_master is true and multi_precision false");
}

// --- static scaling ---

TEST(StaticScale, IsTakenOutByEveryOptimizer) {
  for (const auto& [name, make] : problems) {
    const auto a = problem(), b = problem();
    const auto scaled = make(a, {.rescale_grad = 1.0 / 128}), plain = make(b);
    for (uint32_t t = 1; t <= 4; ++t) {
      set_grads(a, t, f32, 128);
      set_grads(b, t, f32);
      scaled->step();
      plain->step();
    }
    EXPECT_EQ(bits(*scaled), bits(*plain)) << name;
  }
}

TEST(StaticScale, IsAScalerThatNeverMoves) {
  Matrices by_weight = seeded<Matrices>(), by_scaler = seeded<Matrices>(),
           unscaled = seeded<Matrices>();
  for (Matrices* net : {&by_weight, &by_scaler, &unscaled}) net->to(f16);
  const Batch batch(f16);
  const double small = 0x1p-16;  // f16 holds only a few bits of its gradients
  optim::AdamW a(by_weight.parameters(), {.lr = 0.05},
                 {.multi_precision = true, .rescale_grad = 1.0 / 128}),
      b(by_scaler.parameters(), {.lr = 0.05}, {.multi_precision = true}),
      c(unscaled.parameters(), {.lr = 0.05}, {.multi_precision = true});
  amp::GradScaler scaler({.init_scale = 128});
  for (int t = 0; t < 5; ++t) {
    a.zero_grad();
    loss_of(by_weight, batch, 128 * small).backward();
    a.step();
    b.zero_grad();
    scaler.scale(loss_of(by_scaler, batch, small)).backward();
    EXPECT_TRUE(bool(scaler.step(b)));
    scaler.update();
    c.zero_grad();
    loss_of(unscaled, batch, small).backward();
    c.step();
  }
  EXPECT_EQ(bits(a), bits(b));
  EXPECT_FALSE(bits(a) == bits(c));
}

TEST(StaticScale, OrAScalerIsMissedOnce) {
  std::vector<std::string> told;
  const OnWarning all([&](const std::string& text) { told.push_back(text); });
  const auto train = [&](DType dtype, double weight, DType low, bool unscale) {
    const Tensor p = from({1, 2}, {2}, dtype).set_requires_grad();
    optim::SGD sgd({p}, {.lr = 1}, {.multi_precision = true, .rescale_grad = 1 / weight});
    amp::GradScaler scaler(low, {.init_scale = 64});  // enabled for f16 alone
    for (int i = 0; i < 2; ++i) {
      sgd.zero_grad();
      scaler.scale(sum(p.to(f32)) * weight).backward();
      if (unscale) scaler.unscale(sgd);
      scaler.step(sgd);
      scaler.update();
    }
  };
  train(f16, 1, f16, false);
  train(f16, 1, f16, true);
  train(f16, 128, f32, false);
  train(bf16, 1, bf16, false);
  train(f32, 1, f32, false);
  EXPECT_TRUE(told.empty()) << told[0];
  train(f16, 1, f32, false);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("f16 gradients of a loss that was not scaled"), std::string::npos);
}

TEST(StaticScale, IsFinite) {
  const Tensor p = ones({3}).set_requires_grad();
  EXPECT_ERROR(optim::SGD({p}, {}, {.rescale_grad = optim::nan}),
               "rescale_grad must be finite, got nan");
}

// --- weights that move between dtypes ---

TEST(Loading, ConvertsToTheModelsDtype) {
  const Net from = seeded<Net>(5);
  const test::TempFolder folder;
  io::save(folder / "f32.safetensors", from.state_dict());
  Net net = seeded<Net>();
  net.to(f16);
  const Tensor handle = net.in.weight;
  net.load_state_dict(io::load(folder / "f32.safetensors").tensors);
  EXPECT_EQ(handle.dtype(), f16);
  EXPECT_EQ(to_vector(handle), to_vector(from.in.weight.detach().to(f16)));
  EXPECT_EQ(net.norm.weight.dtype(), f32);

  io::save(folder / "f16.safetensors", net.state_dict());
  Net back = seeded<Net>();
  back.load_state_dict(io::load(folder / "f16.safetensors").tensors);
  EXPECT_EQ(back.in.weight.dtype(), f32);
  EXPECT_EQ(to_vector(back.in.weight), to_vector(handle));
}

TEST(Loading, FineTunesAModelInF16) {
  const test::TempFolder folder;
  {
    Net pretrained = seeded<Net>(5);
    const Batch batch(f32);
    optim::AdamW opt(pretrained.parameters(), {.lr = 0.05});
    for (int t = 0; t < 20; ++t) {
      opt.zero_grad();
      loss_of(pretrained, batch).backward();
      opt.step();
    }
    io::save(folder / "net.safetensors", pretrained.state_dict());
  }
  const Seed seed(7);
  Net net;
  net.load_state_dict(io::load(folder / "net.safetensors").tensors);
  net.head = nn::Linear(8, 4);
  net.to(f16);
  Batch batch(f16);
  batch.target = 3 - batch.target;
  optim::AdamW opt(net.parameters(), {.lr = 0.02}, {.multi_precision = true});
  amp::GradScaler scaler({.init_scale = 1024});
  std::vector<double> losses;
  for (int t = 0; t < 60; ++t) {
    opt.zero_grad();
    const Tensor loss = loss_of(net, batch);
    losses.push_back(loss.item());
    scaler.scale(loss).backward();
    EXPECT_TRUE(bool(scaler.step(opt)));
    scaler.update();
  }
  EXPECT_LT(losses.back(), 0.2 * losses.front());
  EXPECT_EQ(net.head.weight.dtype(), f16);
}

}  // namespace whole_model_test
}  // namespace mixtape
