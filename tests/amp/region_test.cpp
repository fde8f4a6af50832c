// Autocast regions: nesting, and the number of casts of a parameter.

#include <thread>

#include "core/allocator.h"
#include "tests/support/amp.h"
#include "tests/support/child.h"

namespace mixtape::amp {
using namespace internal;
namespace amp_region_test {

TEST(Region, NestsAndTheInnermostWins) {
  const Tensor x = values({4, 4});
  const auto dtype = [&] { return matmul(x, x).dtype(); };
  EXPECT_EQ(dtype(), f32);
  {
    const Autocast outer({.low = f16});
    EXPECT_EQ(dtype(), f16);
    {
      const Autocast inner({.low = bf16});
      EXPECT_EQ(dtype(), bf16);
      {
        const Autocast island({.enabled = false});
        EXPECT_EQ(dtype(), f32);
        EXPECT_ERROR((void)(x + cast(x, f16)), "different dtypes");
        const Autocast again;
        EXPECT_EQ(dtype(), bf16) << "a region without a dtype has that of the one around it";
      }
      EXPECT_EQ(dtype(), bf16);
    }
    EXPECT_EQ(dtype(), f16);
  }
  EXPECT_EQ(dtype(), f32);
  EXPECT_EQ(Autocast::innermost(), nullptr);
}

TEST(Region, EndsWithAnException) {
  const Tensor x = values({4, 4});
  try {
    const Autocast on({.low = f16});
    (void)matmul(x, values({3, 3}));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("matmul: inner dimensions differ"), std::string::npos);
  }
  EXPECT_EQ(matmul(x, x).dtype(), f32);
  EXPECT_ERROR(Autocast({.low = f16, .overrides = {{"sofmax", Precision::Low}}}), "sofmax");
  EXPECT_EQ(matmul(x, x).dtype(), f32) << "a region that failed to open is not open";
}

// A static object, whose destructor opens a region and runs ops with checks of their indices.
struct AtExit {
  bool runs = false;
  static bool f16_inside() {
    const DefaultDevice here(Device::cpu());  // others need their runtime
    const Autocast on({.low = f16, .overrides = {{"*", Precision::Low}}});
    const NoGrad off;
    const Tensor x = values({4, 4});
    return matmul(index_select(x, 0, arange(0, 4)), x).dtype() == f16;
  }
  ~AtExit() {
    if (runs && !f16_inside()) _exit(3);
  }
} at_exit;

TEST(Region, MayBeOpenedWhileStaticsAreDestroyed) {
  const auto ends = [] {
    at_exit.runs = true;
    for (const Preset p : {Preset::Torch, Preset::Fast, Preset::Safe})
      const Autocast on({.preset = p});
    return AtExit::f16_inside();
  };
  EXPECT_EQ(test::status_of_child(ends), 0);
}

TEST(Region, IsThisThreadsAlone) {
  const Autocast on({.low = f16});
  const Tensor x = values({4, 4});
  DType there = boolean;
  std::thread([&] { there = matmul(x, x).dtype(); }).join();
  EXPECT_EQ(there, f32);
  EXPECT_EQ(matmul(x, x).dtype(), f16);
}

TEST(Region, TakesItsDtypeByName) {
  const Tensor x = values({4, 4});
  const std::string name = "float16";
  EXPECT_EQ(Autocast({.low = "fp16"}).low(), f16);
  EXPECT_EQ(Autocast({.low = "bf16"}).low(), bf16);
  EXPECT_EQ(Autocast({.low = "fp32"}).low(), f32);
  EXPECT_EQ(Autocast({.low = name}).low(), f16);
  EXPECT_EQ(Autocast().low(), bf16);
  EXPECT_ERROR(Autocast({.low = "fp8"}), "unknown dtype 'fp8'");
  EXPECT_ERROR(Autocast({.low = i64}), "autocast: low must be f16, bf16, f32 or f8_e4m3, got i64");
  EXPECT_ERROR(Autocast({.low = f64}), "autocast: low must be f16, bf16, f32 or f8_e4m3, got f64");
}

TEST(Region, OfF32ChangesNothing) {
  const Tensor x = values({8, 4}), w = leaf({4, 4}), v = leaf({4, 4});
  const auto run = [&](const Tensor& w) { return mean(softmax(gelu(linear(x, w)))); };
  const Tensor plain = run(v);
  Seen seen;
  {
    const Autocast on({.low = f32});
    const Observe watch(seen);
    const Tensor loss = run(w);
    EXPECT_EQ(to_vector(loss), to_vector(plain));
    loss.backward();
  }
  plain.backward();
  EXPECT_EQ(seen.count["cast"], 0);
  EXPECT_EQ(to_vector(w.grad()), to_vector(v.grad()));
}

TEST(Region, DecidesAgainFromASnapshot) {
  std::shared_ptr<Policy> saved;
  {
    const Autocast on(
        {.low = f16, .preset = Preset::Fast, .overrides = {{"gelu", Precision::Full}}});
    saved = on.snapshot();
  }
  EXPECT_EQ(thread_state.policy, nullptr);
  const Tensor x = values({4, 4});
  const ScopedValue<&ThreadState::policy> again(saved.get());
  EXPECT_EQ(matmul(x, x).dtype(), f16);
  EXPECT_EQ(softmax(matmul(x, x)).dtype(), f16);
  EXPECT_EQ(gelu(matmul(x, x)).dtype(), f32);
  const Autocast inner({.low = bf16});
  EXPECT_EQ(softmax(matmul(x, x)).dtype(), bf16) << "a region within has its rules";
}

// A checkpoint's backward may run on another thread: a snapshot has rules of its own, so that
// threads do not share their cached lookups. (TSan reported a race before.)
TEST(Region, ASnapshotMayActOnAnotherThread) {
  const AutocastOptions options{.low = f16, .overrides = {{"exp", Precision::Native}}};
  const Tensor x = values({4}, f16);
  const auto run = [&] {
    EXPECT_EQ(exp(x).dtype(), f16);
    EXPECT_EQ(sqrt(abs(log(sigmoid(x)))).dtype(), f32);
  };
  const Autocast on(options);
  const std::shared_ptr<Policy> there = on.snapshot();
  EXPECT_NE(static_cast<const Autocast&>(*there).rules(), on.rules());
  std::thread other([&] {
    const ScopedValue<&ThreadState::policy> policy(there.get());
    run();
  });
  run();
  other.join();
}

// --- the cache ---

TEST(Cache, CastsALeafOncePerRegion) {
  const Tensor x = values({4, 4}, f16), w = leaf({4, 4});
  for (const bool cache : {true, false}) {
    Seen seen;
    const Autocast on({.low = f16, .cache = cache});
    const Observe watch(seen);
    Tensor y = x;
    for (int i = 0; i < 5; ++i) y = linear(y, w);
    EXPECT_EQ(seen.count["cast"], cache ? 1 : 5);
    EXPECT_EQ(on.cache_stats().casts, cache ? 1 : 0);
    EXPECT_EQ(on.cache_stats().hits, cache ? 4 : 0);
  }
}

TEST(Cache, GradientsAreThoseWithoutIt) {
  const Tensor x = values({4, 4}, f16);
  std::vector<std::vector<double>> grads;
  for (const bool cache : {true, false}) {
    const Tensor w = leaf({4, 4});
    const Autocast on({.low = f16, .cache = cache});
    (sum(linear(linear(x, w), w)) + sum(matmul(x, w.t())) + sum(matmul(x, slice(w, 0, 1, 3).t())))
        .backward();
    EXPECT_EQ(w.grad().dtype(), f32);
    grads.push_back(to_vector(w.grad()));
  }
  EXPECT_EQ(grads[0], grads[1]);
}

TEST(Cache, AViewOfALeafIsAViewOfItsCopy) {
  const Tensor x = values({4, 4}, f16), w = leaf({4, 4});
  const Tensor flat = leaf({32}, f32, 5);
  Seen seen;
  {
    const Autocast on({.low = f16});
    const Observe watch(seen);
    const Tensor y = linear(x, w) + matmul(x, transpose(w)) +
                     matmul(x, reshape(reshape(w, {16}), {4, 4})) +
                     matmul(x, expand(slice(w, 1, 0, 1), {4, 4})) + matmul(expand(x, {2, 4, 4}), w);
    EXPECT_EQ(seen.count["cast"], 1);
    // Parameters packed in one leaf: views first, the whole never.
    const Tensor a = reshape(narrow(flat, 0, 0, 16), {4, 4}),
                 b = reshape(narrow(flat, 0, 16, 16), {4, 4});
    const Tensor z = matmul(y, a) + matmul(y, b);
    EXPECT_EQ(seen.count["cast"], 2);
    EXPECT_EQ(to_vector(matmul(x, b)), to_vector(matmul(x, cast(b, f16))));
    sum(z).backward();
  }
  EXPECT_EQ(w.grad().dtype(), f32);
  EXPECT_EQ(flat.grad().dtype(), f32);
  for (int64_t i = 0; i < 32; ++i) EXPECT_NE(flat.grad().at(i), 0) << i;
}

TEST(Cache, GradientsOfAViewItselfAreThere) {
  const Tensor x = values({4, 4}, f16), w = leaf({4, 4});
  const Tensor t = transpose(w);
  int called = 0;
  register_hook(t, [&](const Tensor&) { return ++called, Tensor(); });
  const Autocast on({.low = f16});
  const Tensor y = sum(matmul(x, t));
  EXPECT_EQ(grad({y}, {t}, {.retain_graph = true})[0].dtype(), f32);
  y.backward();
  EXPECT_EQ(called, 2);
}

TEST(Cache, LeavesThatShareStorageKeepTheirOwnGradients) {
  const Tensor x = values({4, 4}, f16), w = leaf({4, 4});
  const Tensor twin = w.detach().set_requires_grad();
  const Autocast on({.low = f16});
  sum(linear(x, w)).backward();
  sum(linear(x, twin)).backward();
  EXPECT_EQ(to_vector(w.grad()), to_vector(twin.grad()));
}

// Parameters packed by an optimizer: each leaf is a part of one buffer.
TEST(Cache, LeavesPackedInOneStorageAreNotTakenForEachOther) {
  const Tensor buffer = values({32}), x = values({2, 4}, f16);
  const auto part = [&](int64_t begin) {
    return buffer.with_layout({{4, 4}, {4, 1}, begin}).set_requires_grad();
  };
  const Tensor a = part(0), b = part(16);
  const Autocast on({.low = f16});
  const auto check = [&](const Tensor& w) {
    EXPECT_EQ(to_vector(linear(x, w)), to_vector(linear(x, cast(w.detach(), f16))));
  };
  for (int i = 0; i < 2; ++i) {
    check(a);
    check(b);
    const NoGrad off;
    mul_(i ? a : b, 3);
    check(a);
    check(b);
  }
  sum(linear(x, b)).backward();
  EXPECT_FALSE(a.grad());
  EXPECT_TRUE(b.grad());
}

TEST(Cache, IsNotStaleAfterAWriteInsideTheRegion) {
  const Tensor x = values({2, 4}, f16), w = leaf({4, 4});
  Seen seen;
  const Autocast on({.low = f16});
  const Observe watch(seen);
  const Tensor before = linear(x, w);
  {
    const NoGrad off;
    mul_(w, 2.0);
  }
  const Tensor after = linear(x, w);
  for (int64_t i = 0; i < after.numel(); ++i) EXPECT_NEAR(after.at(i), 2 * before.at(i), 1e-2);
  w.set_data(ones({4, 4}));
  EXPECT_NEAR(linear(x, w).at(0), x.at(0) + x.at(1) + x.at(2) + x.at(3), 1e-2);
  EXPECT_EQ(seen.count["linear"], 3);
  EXPECT_EQ(on.cache_stats().casts, 3);
}

TEST(Cache, IsNotPoisonedUnderNoGrad) {
  const Tensor x = values({2, 4}, f16), w = leaf({4, 4});
  const Autocast on({.low = f16});
  {
    const NoGrad off;
    EXPECT_FALSE(linear(x, w).requires_grad());
    EXPECT_FALSE(matmul(x, w).requires_grad());
  }
  sum(linear(x, w)).backward();
  ASSERT_TRUE(w.grad());
  EXPECT_EQ(on.cache_stats().casts, 1) << "and used all the same";
  const NoGrad off;
  EXPECT_FALSE(linear(x, w).requires_grad());
}

TEST(Cache, DropsACopyThatWasWrittenTo) {
  const Tensor x = values({2, 4}, f16), w = leaf({4, 4});
  for (const bool by_optimizer : {false, true}) {
    if (by_optimizer) w.set_shadow(cast(w.detach(), f16));
    const Autocast on({.low = f16, .overrides = {{"reshape", Precision::Low}}});
    const NoGrad off;
    const Tensor before = linear(x, w);
    fill_(reshape(w, {16}), 9);  // a view of it
    EXPECT_EQ(to_vector(linear(x, w)), to_vector(before)) << by_optimizer;
  }
}

TEST(Region, EmptyBagsOfAnEmbeddingHaveTheDtypeOfOthers) {
  const Tensor table = values({7, 4}, f16), index = zeros({40}, i64);
  const Tensor full = arange(0, 40, 2, i64), empty = zeros({20}, i64);
  const Autocast on({.low = f16});
  for (const auto& [mode, dtype] : {std::pair{BagMode::Sum, f32}, {BagMode::Max, f16}}) {
    EXPECT_EQ(embedding_bag(table, index, full, {.mode = mode}).dtype(), dtype);
    EXPECT_EQ(embedding_bag(table, index, empty, {.mode = mode}).dtype(), dtype);  // but the last
    EXPECT_EQ(embedding_bag(table, slice(index, 0, 0, 0), empty, {.mode = mode}).dtype(), dtype);
  }
}

TEST(Cache, ServesABatchOfWeightsUnderNoGrad) {
  const Tensor x = values({2, 4}, f16), w = leaf({3, 4, 4});
  const Autocast on({.low = f16});
  const NoGrad off;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(matmul(x, w).shape(), (Shape{3, 2, 4}));
  EXPECT_EQ(on.cache_stats().casts, 1);
  EXPECT_EQ(on.cache_stats().hits, 1);
}

TEST(Cache, KnowsTheDtypeAndEndsWithTheOutermostRegion) {
  const Tensor x = values({2, 4}), w = leaf({4, 4});
  const Autocast outer({.low = f16});
  EXPECT_EQ(linear(x, w).dtype(), f16);
  {
    const Autocast inner({.low = bf16});
    EXPECT_EQ(linear(x, w).dtype(), bf16);
    const Autocast island({.enabled = false});
    EXPECT_EQ(linear(x, w).dtype(), f32);
  }
  {
    const Autocast inner({.low = bf16});
    EXPECT_EQ(linear(x, w).dtype(), bf16);
    EXPECT_EQ(linear(x, w).dtype(), bf16);
  }
  EXPECT_EQ(linear(x, w).dtype(), f16);
  EXPECT_EQ(outer.cache_stats().casts, 2);
  EXPECT_EQ(outer.cache_stats().hits, 3);
}

TEST(Cache, LeaksNothing) {
  const Tensor x = values({2, 64}, f16), w = leaf({64, 64});
  const int64_t before = memory_stats().in_use;
  const long handles = w.storage().use_count();
  {
    const Autocast on({.low = f16});
    (void)linear(x, w);
    EXPECT_EQ(memory_stats().in_use - before, 64 * 64 * 2) << "the copy alone: no graph, no leaf";
    EXPECT_EQ(w.storage().use_count(), handles);
    sum(linear(x, w)).backward();
    w.set_grad({});
  }
  EXPECT_EQ(memory_stats().in_use, before);

  const Autocast on({.low = f16});  // one region for a thousand batches that are leaves
  for (int i = 0; i < 1000; ++i) (void)matmul(leaf({8, 64}), w);
  EXPECT_LT(memory_stats().in_use - before, 64 * 64 * 2 + 200 * 8 * 64 * 2);
}

}  // namespace amp_region_test
}  // namespace mixtape::amp
