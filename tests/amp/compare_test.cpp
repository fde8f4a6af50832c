// The comparison of a step with the same in f32: planted defects are ranked first, and cured.

#include "amp/compare.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "autograd/checkpoint.h"
#include "autograd/vmap.h"
#include "core/random.h"
#include "core/scope.h"
#include "core/warn.h"
#include "nn/models/models.h"
#include "nn/nn.h"
#include "optim/clip.h"
#include "optim/optimizers.h"
#include "tests/support/amp.h"
#include "tests/support/values.h"

namespace mixtape::amp {
namespace compare_test {

// A part of a model that computes x, but not in f16.
struct Planted : nn::Module<Planted> {
  std::string defect;
  nn::Linear in{16, 16};
  explicit Planted(std::string d) : defect(std::move(d)) {}

  Tensor forward(const Tensor& x) const {
    const Tensor h = in(x);
    if (defect == "variance as a difference of squares") {
      const Tensor far = h * 0.5 + 60;
      const Tensor variance = mean(square(far), {-1}, true) - square(mean(far, {-1}, true));
      return h * tanh(relu(variance) * 4);
    }
    if (defect == "softmax of large logits") return softmax(h * 4 + 10000, -1);
    if (defect == "sum in f16") return x + h * (sum(square(h) + 1000) * 1e-6);
    if (defect == "tiny eps") {
      const Tensor none = relu(h - 100);
      return x + none / (norm(none, 2, {-1}, true).to(h.dtype()) + 1e-9);
    }
    const Tensor large = h * 3000;  // "product before division"
    return x + tanh(mean(matmul(large, large.transpose(-1, -2)) / 1e7, {-1}, true));
  }
  MIXTAPE_FIELDS(in)
};

// The character GPT's blocks, with a defect between the first and the second.
struct Net : nn::Module<Net> {
  nn::Embedding tokens{17, 16};
  models::GptBlock first, second;
  Planted planted;
  nn::LayerNorm norm{16};
  nn::Linear head{16, 17};

  explicit Net(const std::string& defect) : first(config()), second(config()), planted(defect) {}
  static models::GptConfig config() { return {.context = 8, .layers = 2, .heads = 2, .width = 16}; }
  Tensor forward(const Tensor& t) const { return head(norm(second(planted(first(tokens(t)))))); }
  MIXTAPE_FIELDS(tokens, first, planted, second, norm, head)
};

// A step: the parameters' gradients of a loss that is made in the region.
Compare::Step step_of(std::vector<Tensor> parameters, std::function<Tensor()> loss_of) {
  return [=](const AutocastOptions& region) {
    for (const Tensor& p : parameters) p.set_grad({});
    Tensor loss;
    {
      const Autocast on(region);
      loss = loss_of();
    }
    loss.backward();
  };
}
// A step of the net: the gradients of the sum of its squared results.
template <class Net>
Compare::Step step_of(const Net& net, const Tensor& x) {
  return step_of(net.parameters(), [&net, x] { return sum(square(net(x))); });
}

struct Defect {
  const char* name;
  const char* op;
  Overrides region = {};
};

std::vector<Defect> defects() {
  return {{"variance as a difference of squares",
           "sub",
           {{"square", Precision::Low}, {"mean", Precision::Low}}},
          {"softmax of large logits", "softmax"},
          {"sum in f16", "sum", {{"sum", Precision::Low}}},
          {"tiny eps", "div"},
          {"product before division", "matmul"}};
}

// Texts of 9 characters, each mostly three times the last and one more.
Tensor texts(int64_t n, uint64_t of) {
  const Seed seed(of);
  const Tensor chance = rand({n, 9}), any = randint(0, 17, {n, 9}), t({n, 9}, i64);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const bool follows = i % 9 > 0 && chance.at(i) < 0.8;
    t.set(i, follows ? int64_t(3 * t.at(i - 1) + 1) % 17 : any.at(i));
  }
  return t;
}
Tensor loss_of(Net& net, const Tensor& t) {
  return models::next_token_loss(net(t(Slice(), Slice(0, 8))), t(Slice(), Slice(1, 9)));
}
// The loss of other texts after a training.
double trained(const char* defect, uint64_t of, const AutocastOptions& region) {
  const Seed seed(of);
  Net net(defect);
  optim::AdamW opt(net.parameters(), {.lr = 1e-2});
  const auto loss = [&](const Tensor& t) {
    const Autocast on(region);
    return loss_of(net, t);
  };
  constexpr int64_t steps = 100, batch = 16;
  for (const Tensor& t : split(texts(steps * batch, of), batch)) {
    opt.zero_grad();
    loss(t).backward();
    optim::clip_grad_norm(net.parameters(), 1);
    opt.step();
  }
  const NoGrad off;
  return loss(texts(256, 99)).item();
}

TEST(Compare, RanksPlantedDefectsFirstAndCuresThem) {
  const OnWarning quiet([](const std::string&) {});  // that no scaler scales the loss
  const Tensor t = texts(2, 5);
  for (const Defect& d : defects()) {
    SCOPED_TRACE(d.name);
    const Seed seed(7);
    Net net(d.name);
    const auto step = [&](const AutocastOptions& region) {
      for (const Tensor& p : net.parameters()) p.set_grad({});
      Tensor loss;
      {
        const Autocast on(region);
        loss = loss_of(net, t);
      }
      (loss * 64).backward();
    };
    Compare compare(step, {.region = {.low = f16, .overrides = d.region}});
    ASSERT_FALSE(compare.rows().empty());
    EXPECT_EQ(compare.rows()[0].op, d.op) << compare.text();
    EXPECT_EQ(compare.rows()[0].module, "planted") << compare.text();
    const Compare::Remedy remedy = compare.overrides(0.01);
    EXPECT_GT(compare.error(), 0.01);
    EXPECT_LE(remedy.error, 0.01);
    EXPECT_LE(remedy.overrides.size(), 3u) << remedy.text();
    EXPECT_EQ(parse_overrides(remedy.text()), remedy.overrides);

    if (!DefaultDevice::current().is_host()) continue;  // the emulator would take minutes
    // Training with that file is within the spread of f32's, and without it is not.
    Overrides cured = d.region;
    cured.insert(cured.end(), remedy.overrides.begin(), remedy.overrides.end());
    double wide = 0, least = inf, most = -inf, narrow = 0, with = 0;
    for (const uint64_t of : {1, 2, 3}) {
      const double loss = trained(d.name, of, {.enabled = false});
      wide += loss / 3;
      least = std::min(least, loss);
      most = std::max(most, loss);
      narrow += trained(d.name, of, {.low = f16, .overrides = d.region}) / 3;
      with += trained(d.name, of, {.low = f16, .overrides = cured}) / 3;
    }
    EXPECT_LT(std::abs(with - wide), most - least);
    EXPECT_FALSE(std::abs(narrow - wide) <= most - least) << narrow << " " << wide;  // or NaN
  }
}

TEST(Compare, CountsTheMemoryOfKernels) {
  const Tensor x = waves({4096, 8}, 1);
  const auto step = [&](const AutocastOptions&) { (void)sum(x, {-1}); };
  Compare compare(step, {.region = {.low = bf16}});
  reset_peak();
  const int64_t held = memory_stats().in_use;
  step({});
  const MemoryStats used = memory_stats();
  EXPECT_TRUE(used.peak_total > used.peak || !x.device().is_host());  // scratch of the CPU's sum
  EXPECT_EQ(compare.overrides(1).peak, used.peak_total - held);
}

// Dropout draws the same numbers in all runs; buffers and the program's random numbers end as they
// were.
TEST(Compare, ComparesTheSameStep) {
  struct Normed : nn::Module<Normed> {
    nn::Linear in{8, 16}, out{16, 3};
    nn::BatchNorm1d norm{16};
    nn::Dropout drop{0.5};
    Tensor forward(const Tensor& x) const { return out(drop(norm(in(x)))); }
    MIXTAPE_FIELDS(in, norm, drop, out)
  } net;
  const Tensor x = waves({32, 8}, 1), y = zeros({32}, i64);
  const StateDict buffers = net.named_buffers();
  const Tensor mean = buffers.at("norm.running_mean").clone();
  const uint64_t drawn = generator().offset();
  Compare compare(step_of(net.parameters(), [&] { return cross_entropy(net(x), y); }),
                  {.region = {.low = bf16}, .buffers = buffers});
  EXPECT_EQ(compare.unmatched(), 0);
  EXPECT_GT(compare.error(), 0);
  EXPECT_LT(compare.error(), 0.03);
  EXPECT_LT(compare.rows()[0].added(), 0.03) << compare.text();  // the bias before a norm has none
  EXPECT_EQ(generator().offset(), drawn);
  expect_near(buffers.at("norm.running_mean"), mean, 0);

  const nlohmann::json json = nlohmann::json::parse(compare.json());
  EXPECT_EQ(json["rows"].size(), compare.rows().size());
  EXPECT_NE(compare.svg().find("<svg"), std::string::npos);
  EXPECT_NE(compare.text().find("linear"), std::string::npos);
  EXPECT_TRUE(compare.overrides(1).overrides.empty());
  EXPECT_ERROR(compare.overrides(-1), "overrides: the budget must be >= 0, got -1");
  EXPECT_ERROR(compare.overrides(std::nan("")), "overrides: the budget must be >= 0, got nan");
}

TEST(Compare, WantsParametersToStay) {
  const Tensor w = leaf({3}), x = values({3});
  const auto step = [&](const AutocastOptions&) {
    w.set_grad({});
    sum(w * x).backward();
    const NoGrad off;
    add_(w, w.grad());
  };
  EXPECT_ERROR(Compare(step), "the step changes f32 [3]");
  EXPECT_ERROR(Compare({}), "Compare: there is no step");
  EXPECT_ERROR(Compare(step, {.region = {.enabled = false}}),
               "Compare: region.enabled must be true, or both steps run in f32");
}

TEST(Compare, WantsGradientsToBeCleared) {
  const Tensor w = leaf({3}), x = values({3});
  const auto step = [&](const AutocastOptions& region) {
    const Autocast on(region);
    sum(w * x).backward();
    sum(w * x).backward();  // within a step they may add up
  };
  EXPECT_ERROR(Compare(step), "the step adds to the gradient that f32 [3] had before");
  for (const bool to_none : {true, false})
    EXPECT_NO_THROW(Compare([&](const AutocastOptions& region) {
      if (to_none || !w.has_grad())
        w.set_grad({});
      else
        zero_(w.grad());
      step(region);
    }));
}

// Operands that a recipe rounds are those that it was given: errors of these are passed on.
TEST(Compare, KnowsWhatARecipeRounds) {
  const nn::Sequential net(nn::Linear(32, 32), nn::Linear(32, 32));
  const Tensor x = values({8, 32});
  for (const Recipe& recipe : {Recipe(Current()), Recipe(Mx())}) {
    const Compare compare(step_of(net, x), {.region = {.recipe = recipe, .ends = true}});
    EXPECT_EQ(compare.unmatched(), 0) << recipe.name();
    for (const Compare::Row& row : compare.rows()) {
      if (row.module == "1" && row.op == "linear") {
        EXPECT_GT(row.error_in, 0) << compare.text();
      }
    }
  }
}

// Two gradients are parts of one, begin at its first element and have as many.
TEST(Compare, TellsPartsOfOneGradientApart) {
  const Tensor row = leaf({1, 2}), column = leaf({2, 1});
  const Compare compare([&](const AutocastOptions& region) {
    const Autocast on(region);
    for (const Tensor& t : {row, column}) t.set_grad({});
    const Tensor slopes = from({1, 1, on.enabled() ? 2. : 1., 1}, {2, 2}), none = zeros({2});
    const Tensor z =
        cat({tanh(row), none.view({1, 2})}, 0) + cat({sin(column), none.view({2, 1})}, 1);
    sum(z * slopes).backward();
  });
  for (const Compare::Row& r : compare.rows()) {
    if (r.backward && r.op == "tanh") {
      EXPECT_EQ(r.error_in, 0);
    }
    if (r.backward && r.op == "sin") {
      EXPECT_GT(r.error_in, 0.1);
    }
  }
  EXPECT_GT(compare.error(), 0.1);
}

// An error that no override can take away: the step's own.
TEST(Compare, SaysWhatOverridesLeave) {
  const Tensor x = values({3});
  Compare compare([&](const AutocastOptions& region) {
    const Autocast on(region);
    (void)square(x + (on.enabled() ? 1 : 0));
  });
  EXPECT_ERROR(compare.overrides(0.01), "is left with all that add one in f32");
}

struct LikeOps : nn::Module<LikeOps> {  // modules with names that are, or resemble, those of ops
  nn::Linear norms{16, 16}, embedding{16, 16}, other{16, 16};
  Tensor forward(const Tensor& x) const { return other(embedding(norms(x))); }
  MIXTAPE_FIELDS(norms, embedding, other)
};

TEST(Compare, OverridesModulesNamedLikeOps) {
  const LikeOps net;
  const Tensor x = values({8, 16});
  Compare compare(step_of(net, x), {.region = {.low = bf16}});
  const Compare::Remedy remedy = compare.overrides(1e-6);
  EXPECT_LE(remedy.error, 1e-6);
  EXPECT_EQ(path_pattern("norms"), "norms*");
  EXPECT_EQ(path_pattern("embedding"), "") << "would name the op";
  EXPECT_EQ(path_pattern("blocks.0"), "blocks.0");
}

TEST(Compare, LeavesWritesInPlaceAlone) {
  const Tensor x = values({4, 4}), w = leaf({4, 4});
  const auto loss = [&] {
    Tensor h = matmul(x, w);
    h += 1.0;
    return sum(square(h));
  };
  const Compare compare(step_of({w}, loss), {.region = {.low = bf16}});
  EXPECT_GT(compare.error(), 0);
}

// Ops are seen inside functions that are none, and results that writes in place change.
TEST(Compare, SeesOpsWithinFunctions) {
  const Tensor x = values({4, 4}), w = values({4, 4}), trained = leaf({4, 4});
  const auto variance = [](const Tensor& h, bool in_place) {
    const Tensor far = h * 0.02 + 60, squares = mean(square(far), {-1}, true);
    return in_place ? squares.sub_(square(mean(far, {-1}, true)))
                    : squares - square(mean(far, {-1}, true));
  };
  const std::vector<std::pair<const char*, std::function<Tensor()>>> steps = {
      {"a function", [&] { return variance(einsum("ij,jk->ik", {x, w}), false) * 2.0; }},
      {"a source line",
       [&] {
         const SourceScope here;
         return variance(matmul(x, w), false) * 2.0;
       }},
      {"a checkpoint",
       [&] {
         const auto f = [&](const Tensor& t) { return variance(matmul(t, trained), false); };
         return checkpoint(f, x) * 2.0;
       }},
      {"in place", [&] { return variance(matmul(x, w), true) * 2.0; }},
      {"in place, with gradients", [&] { return variance(matmul(x, trained), true) * 2.0; }},
      {"after one that threw",
       [&] {
         EXPECT_THROW(einsum("ij,jk->ik", {x, zeros({3, 3})}), Error);
         EXPECT_THROW(cat({x, zeros({3, 3})}), Error);
         return variance(matmul(x, w), false) * 2.0;
       }},
  };
  for (const auto& [name, run] : steps) {
    SCOPED_TRACE(name);
    const Compare compare(
        [&run = run](const AutocastOptions& region) {
          const Autocast on(region);
          (void)run();
        },
        {.region = {.low = bf16}});
    ASSERT_FALSE(compare.rows().empty());
    EXPECT_EQ(compare.rows()[0].op, "sub") << compare.text();
    EXPECT_GT(compare.error(), 0.1);
    EXPECT_EQ(compare.unmatched(), 0);
    EXPECT_EQ(std::ranges::count(compare.rows(), "matmul", &Compare::Row::op), 1);
    for (const Compare::Row& row : compare.rows()) {
      if (row.op == "mul_scalar") {
        EXPECT_LT(row.added(), 0.01) << compare.text();
      }
    }
  }
}

// Compare's own work is no effect of the function, with which vmap would loop over the examples.
TEST(Compare, LetsVmapRunAsInF32) {
  const Tensor x = values({6, 8}), w = values({8, 8}, f32, 2);
  const Compare compare(
      [&](const AutocastOptions& region) {
        const Autocast on(region);
        const auto f = [&](const Tensor& t) { return tanh(matmul(w, tanh(matmul(w, t)))); };
        (void)vmap(f)(x);
      },
      {.region = {.low = bf16}});
  EXPECT_EQ(compare.unmatched(), 0);
  EXPECT_LT(compare.rows()[0].added(), 0.02) << compare.text();
}

TEST(Compare, KeepsResultsThatAreWrittenTo) {
  const Tensor x = values({8, 8});
  const Compare compare(
      [&](const AutocastOptions& region) {
        const Autocast on(region);
        Tensor h = matmul(x, x);
        h *= 2.0;
        h += x;
        (void)tanh(h);
      },
      {.region = {.low = bf16}});
  std::vector<std::string> ops;
  for (const Compare::Row& row : compare.rows()) ops.push_back(row.op);
  EXPECT_EQ(ops[0], "matmul") << compare.text();
  EXPECT_EQ(ops.size(), 4u);
  EXPECT_LT(compare.rows()[1].added(), compare.rows()[0].added());
  EXPECT_GT(compare.rows().back().error_in, 0);
}

// Writes that are no ops pass errors on, too, and leave what an op had made.
TEST(Compare, FollowsCopiesInPlace) {
  const Tensor x = values({8, 8});
  const Compare compare(
      [&](const AutocastOptions& region) {
        const Autocast on(region);
        const Tensor h = matmul(x, x), buffer = zeros({9, 8});
        copy_(slice(buffer, 0, 0, 8), h);
        (void)tanh(buffer);
        (void)cos(h.to(f8_e5m2).to(f32));
        fill_(h, 0.5);
        (void)exp(h);
        Indexed(buffer, {from({1, 0}, {2}, i64)}) = slice(x, 0, 0, 2);
        (void)sin(buffer);
      },
      {.region = {.low = bf16}});
  EXPECT_EQ(compare.unmatched(), 0);
  std::map<std::string, Compare::Row> rows;
  for (const Compare::Row& row : compare.rows()) rows[row.op] = row;
  EXPECT_GT(rows["matmul"].error, 1e-4);
  EXPECT_EQ(rows["tanh"].error_in, rows["matmul"].error);
  EXPECT_LT(rows["tanh"].added(), 1e-3);
  EXPECT_EQ(rows["cos"].error_in, rows["matmul"].error);
  EXPECT_EQ(rows["exp"].error_in, 0);
  EXPECT_EQ(rows["sin"].error_in, rows["matmul"].error);
}

// The gradient of a sum is dy, which bf16 rounds and f32 expands.
TEST(Compare, MatchesGradientsThatARulePassesOn) {
  const Tensor x = values({8, 8}), w = leaf({8, 8});
  const auto loss = [&] {
    const Tensor y = matmul(x, w);
    return sum(y) * 0.3 + sum(y.to(f32)) + sum(square(y)) * 0.01;
  };
  const Compare compare(step_of({w}, loss), {.region = {.low = bf16}});
  EXPECT_EQ(compare.unmatched(), 0) << compare.text();
  for (const Compare::Row& row : compare.rows())
    if (row.op == "sum" && row.backward) {
      EXPECT_GT(row.added(), 1e-4);
    }
}

// A write to a part leaves the errors of the others.
TEST(Compare, JoinsErrorsOfParts) {
  const Tensor x = values({8, 8});
  const std::function<void(const Tensor&, const Tensor&)> writes[] = {
      [](const Tensor& to, const Tensor& y) { copy_(to, y); },
      [](const Tensor& to, const Tensor& y) { to += y; },
      [](const Tensor& to, const Tensor& y) { Indexed(to, {from({0}, {1}, i64)}) = y; },
      [](const Tensor& to, const Tensor&) { fill_(to, 1); }};
  for (const auto& write : writes) {
    const Compare compare(
        [&](const AutocastOptions& region) {
          const Autocast on(region);
          const Tensor buffer = zeros({9, 8}), exact = neg(x);
          copy_(slice(buffer, 0, 0, 8), matmul(x, x));
          for (int i = 0; i < 2; ++i) write(slice(buffer, 0, 8, 9), slice(exact, 0, 0, 1));
          (void)tanh(buffer);
        },
        {.region = {.low = bf16}});
    std::map<std::string, Compare::Row> rows;
    for (const Compare::Row& row : compare.rows()) rows[row.op] = row;
    EXPECT_GT(rows["matmul"].error, 1e-4);
    EXPECT_EQ(rows["tanh"].error_in, rows["matmul"].error) << compare.text();
  }
}

// An op in place copies its operand in one run and casts it in the other.
TEST(Compare, MatchesResultsWhateverIsCopied) {
  const Tensor x = values({6, 8}), w = leaf({8, 8});
  const auto loss = [&] {
    const auto f = [&](const Tensor& t) {
      const Tensor y = linear(t, w);
      copy_(y, t * 0.5 + y);
      return y;
    };
    return sum(square(layer_norm(checkpoint(f, linear(x, w)), {8})));
  };
  const Compare compare(step_of({w}, loss), {.region = {.low = f16}});
  EXPECT_EQ(compare.unmatched(), 0);
}

TEST(Compare, LeavesTheHistoryOfARecipe) {
  const nn::Linear net(32, 32);
  const Recipe recipe(Delayed{.history = 4});
  const AutocastOptions region{.low = bf16, .recipe = recipe, .ends = true};
  step_of(net, values({8, 32}) * 1000)(region);
  StateDict before;
  for (const auto& [name, t] : recipe.state_dict()) before.emplace_back(name, t.clone());
  ASSERT_FALSE(before.empty());
  for (int i = 0; i < 4; ++i) Compare(step_of(net, values({8, 32})), {.region = region});
  const StateDict after = recipe.state_dict();
  ASSERT_EQ(after.size(), before.size());
  for (size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(to_vector(after[i].second), to_vector(before[i].second)) << before[i].first;
}

}  // namespace compare_test
}  // namespace mixtape::amp
