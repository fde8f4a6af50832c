// The precision report: exact counts and texts for small steps.

#include "amp/report.h"

#include <fmt/format.h>

#include <malloc.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "amp/recipe.h"
#include "nn/nn.h"
#include "optim/optimizers.h"
#include "tests/support/amp.h"

namespace mixtape::amp {
namespace report_test {

using DTypes = std::vector<DType>;

struct Mlp : nn::Module<Mlp> {
  nn::Linear body{8, 16}, head{16, 5};
  nn::LayerNorm norm{16};
  Tensor forward(const Tensor& x) const { return head(norm(relu(body(x)))); }
  MIXTAPE_FIELDS(body, head, norm)
};

// The only row of an op in a pass; casts are looked up by the op that they were made for.
Report::Row only(const Report& report, std::string_view op, bool backward,
                 std::string_view by = "") {
  std::vector<Report::Row> all;
  for (const Report::Row& r : report.rows())
    if (r.op == op && r.backward == backward && r.by == by) all.push_back(r);
  EXPECT_EQ(all.size(), 1u) << op << '\n' << report.text();
  return all.size() == 1 ? all[0] : Report::Row{};
}

TEST(Report, CountsTheCastsOfAStep) {
  Mlp net;
  const Tensor x = values({4, 8}), y = zeros({4}, i64);
  const Report report({.parameters = net.named_parameters()});
  {
    const Autocast on({.low = f16});
    for (int i = 0; i < 2; ++i) cross_entropy(net(x), y).backward();
  }
  // Each time the input and norm's output; both weights once, then from the cache.
  const Report::Row casts = only(report, "cast", false, "linear");
  EXPECT_EQ(casts.inputs, DTypes{f32});
  EXPECT_EQ(casts.outputs, DTypes{f16});
  EXPECT_EQ(casts.calls, 2 + 2 + 1 + 1);
  EXPECT_EQ(casts.bytes_cast, (2 * 4 * 8 + 2 * 4 * 16 + 8 * 16 + 16 * 5) * (4 + 2));
  EXPECT_EQ(report.cache().casts, 2);
  EXPECT_EQ(report.cache().hits, 2);

  const Report::Row linear = only(report, "linear", false);
  EXPECT_EQ(linear.inputs, (DTypes{f16, f16, f32}));
  EXPECT_EQ(linear.outputs, DTypes{f16});
  EXPECT_EQ(linear.calls, 4);
  EXPECT_EQ(only(report, "layer_norm", false).outputs, DTypes{f32});
  const Report::Row loss = only(report, "cross_entropy", true);
  EXPECT_EQ(loss.inputs, DTypes{f32});
  EXPECT_EQ(loss.outputs, DTypes{f16});
  EXPECT_EQ(loss.calls, 2);

  ASSERT_EQ(report.redundant_casts().size(), 1u) << report.text();
  const Report::Redundant again = report.redundant_casts()[0];  // of x
  EXPECT_FALSE(again.round_trip);
  EXPECT_EQ(again.module, "body");
  EXPECT_EQ(again.by, "linear");
  EXPECT_EQ(again.calls, 1);
  EXPECT_EQ(again.bytes_cast, 4 * 8 * 6);
  EXPECT_TRUE(report.stayed_f32().empty());
  EXPECT_NE(
      report.text().find("\ncast for linear         forward   f32 -> f16                 6      "
                         "2400 B\n"),
      std::string::npos)
      << report.text();
  EXPECT_NE(report.text().find("\ncast cache: 2 made, 2 used again\n"), std::string::npos);
}

struct Cnn : nn::Module<Cnn> {
  nn::Conv2d conv{1, 8, 3};
  nn::Linear head{72, 16};
  Tensor forward(const Tensor& x) const { return head(relu(conv(x)).flatten(1)); }
  MIXTAPE_FIELDS(conv, head)
};

TEST(Report, CountsTheCastsOfAConvolution) {
  const Cnn net;
  const Tensor x = values({2, 1, 5, 5});
  const Report report;
  {
    const Autocast on({.low = bf16});
    sum(net(x)).backward();
  }
  const Report::Row conv = only(report, "cast", false, "conv2d"),
                    head = only(report, "cast", false, "linear");
  EXPECT_EQ(conv.calls, 2);  // x and the weight
  EXPECT_EQ(conv.bytes_cast, (2 * 5 * 5 + 8 * 9) * 6);
  EXPECT_EQ(head.calls, 1);  // the weight: relu's output is 16-bit
  EXPECT_EQ(head.bytes_cast, 72 * 16 * 6);
  EXPECT_EQ(only(report, "conv2d", false).outputs, DTypes{bf16});
  EXPECT_EQ(only(report, "conv2d", true).outputs, (DTypes{f32, f32})) << "of weight and bias";
  EXPECT_EQ(only(report, "linear", true).outputs, (DTypes{bf16, f32, f32}));
  EXPECT_TRUE(report.redundant_casts().empty()) << report.text();
  EXPECT_TRUE(report.missed_shapes().empty()) << report.text();
}

// Convolutions have no blocks, and an end of a model stays in 16 bits.
TEST(Report, ShowsWhatARecipeRounds) {
  struct Net : nn::Module<Net> {
    nn::Conv2d first{1, 4, 3}, conv{4, 4, 3};
    nn::Linear fc{16, 8}, last{8, 4};
    Tensor forward(const Tensor& x) const { return last(fc(flatten(conv(first(x)), 1))); }
    MIXTAPE_FIELDS(first, conv, fc, last)
  };
  const Net net;
  const auto lines = [&](const Recipe& recipe) {
    const Report report;
    const Autocast on({.low = bf16, .recipe = recipe});
    net(values({2, 1, 6, 6}));
    int64_t rounded = 0;
    for (const Report::Row& r : report.rows())
      if (r.recipe == recipe.name()) rounded += r.calls;
    std::vector<std::string> all;
    for (const std::string& line : report.precisions())
      if (line.ends_with(fmt::format(" by {}", recipe.name())))
        all.push_back(line.substr(0, line.find('(')));
    EXPECT_EQ(size_t(rounded), all.size());
    EXPECT_EQ(report.text().find(" by ") != std::string::npos, rounded > 0);
    EXPECT_EQ(
        report.json().find(fmt::format("\"recipe\": \"{}\"", recipe.name())) != std::string::npos,
        rounded > 0);
    return all;
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines(Mx{}), Lines{"fc: linear"});
  EXPECT_EQ(lines(NvFp4{}), Lines{"fc: linear"});
  EXPECT_EQ(lines(Current{}), (Lines{"conv: conv2d", "fc: linear"}));
  EXPECT_EQ(lines({}), Lines{});
}

TEST(Report, CountsNoCastOfAWeightUsedBefore) {
  const nn::Linear layer(8, 8);
  const Tensor x = values({4, 8}, f16);
  const Autocast on({.low = f16});
  layer(x);
  const Report report;
  layer(x);
  EXPECT_EQ(report.rows().size(), 1u) << report.text();
  EXPECT_EQ(report.cache().casts, 0);
  EXPECT_EQ(report.cache().hits, 1);
}

TEST(Report, FindsCastsThereAndBack) {
  const Report report;
  const Tensor x = values({6});
  x.to(f16).to(f32);
  const Tensor y = x.to(bf16);
  y.set(0, 1);
  y.to(f32);  // other numbers than before
  ASSERT_EQ(report.redundant_casts().size(), 1u);
  const Report::Redundant r = report.redundant_casts()[0];
  EXPECT_TRUE(r.round_trip);
  EXPECT_EQ(r.from, f32);
  EXPECT_EQ(r.to, f16);
  EXPECT_EQ(r.bytes_cast, 36);
  EXPECT_NE(report.text().find("\n  f32 -> f16 -> f32: once, 36 B\n"), std::string::npos);
}

TEST(Report, ForgetsNumbersThatAreGone) {
  const Report report;
  const Tensor kept = values({3});
  const auto cast_many = [&] {
    for (int i = 0; i < 10000; ++i) {
      values({3}).to(f16);
      kept.set(0, i);
      kept.to(f16);
    }
  };
  cast_many();
  const size_t before = mallinfo2().uordblks;
  cast_many();
  EXPECT_LT(mallinfo2().uordblks, before + 100'000);
  EXPECT_TRUE(report.redundant_casts().empty());
}

TEST(Report, WatchersMayGoInAnyOrder) {
  auto first = std::make_unique<Report>(), second = std::make_unique<Report>();
  first.reset();
  values({3}).to(f16);
  EXPECT_EQ(second->rows().size(), 1u);
  second.reset();
  EXPECT_EQ(thread_state.observer, nullptr);
}

TEST(Report, FindsInPlaceOpsThatNarrow) {
  const Report report;
  const Tensor a = values({3}, f16), b = values({3});
  add_(a, b);
  add_(a, b);
  add_(b, a);
  mul_(a, 2);
  ASSERT_EQ(report.narrowing().size(), 1u);
  const Report::Narrowing n = report.narrowing()[0];
  EXPECT_EQ(n.op, "add_");
  EXPECT_EQ(n.from, f32);
  EXPECT_EQ(n.to, f16);
  EXPECT_EQ(n.calls, 2);
  EXPECT_NE(report.text().find("\n  add_ of f32 to f16: 2 times\n"), std::string::npos);
}

TEST(Report, NamesTheParametersThatStayedF32) {
  Mlp net;
  auto parameters = net.named_parameters();
  parameters.emplace_back("unused", leaf({2}));
  parameters.emplace_back("narrow", leaf({2}, f16));
  const Report report({.parameters = parameters});
  {
    const Autocast on({.low = bf16, .overrides = {{"head", Precision::Full}}});
    sum(net(values({4, 8}))).backward();
  }
  const std::vector<Report::StayedF32> stayed = report.stayed_f32();
  ASSERT_EQ(stayed.size(), 2u) << report.text();
  EXPECT_EQ(stayed[0].name, "head.weight");
  EXPECT_EQ(stayed[0].product, "linear");
  EXPECT_EQ(stayed[1].name, "unused");
  EXPECT_NE(report.text().find("\n  head.weight: linear read it as f32\n  unused: no op read it\n"),
            std::string::npos);
}

// A product that reads a copy of the optimizer or an earlier region reads the parameter.
TEST(Report, KnowsParametersByTheirCopies) {
  Mlp net;
  optim::AdamW opt(net.parameters(), {}, {.shadow = bf16});
  for (int step = 0; step < 2; ++step) {
    const Report report({.parameters = net.named_parameters()});
    opt.zero_grad();
    {
      const Autocast on({.low = bf16});
      sum(net(values({4, 8}))).backward();
    }
    opt.step();
    EXPECT_TRUE(report.stayed_f32().empty()) << report.text();
  }
}

TEST(Report, SaysHowToPadShapes) {
  const Report report;
  const Autocast on({.low = f16});
  const auto zeroed = [](const Shape& s) { return zeros(s); };
  linear(zeroed({3, 64}), zeroed({16, 64}));  // any number of rows
  linear(zeroed({3, 30}), zeroed({10, 30}));
  linear(zeroed({3, 30}), zeroed({10, 30}));
  matmul(zeroed({2, 8, 24}), zeroed({2, 24, 7}));
  {
    const Autocast off({.enabled = false});
    linear(zeroed({3, 30}), zeroed({10, 30}));  // not on tensor cores
  }
  conv2d(zeroed({1, 3, 5, 5}), zeroed({5, 3, 3, 3}));
  conv2d(zeroed({1, 4, 5, 5}), zeroed({4, 1, 3, 3}), {}, {.groups = 4});
  const std::vector<Report::Shapes> missed = report.missed_shapes();
  ASSERT_EQ(missed.size(), 3u) << report.text();
  EXPECT_EQ(missed[0].op, "conv2d");
  EXPECT_TRUE(missed[0].pad.empty());
  using Pad = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(missed[1].op, "linear");
  EXPECT_EQ(missed[1].pad, (Pad{{30, 32}, {10, 16}}));
  EXPECT_EQ(missed[1].calls, 2);
  EXPECT_EQ(missed[2].op, "matmul");
  EXPECT_EQ(missed[2].pad, (Pad{{7, 8}}));
  EXPECT_NE(report.text().find("\n  linear of f16 [3, 30] x [10, 30]: 2 times: pad 30 to 32, 10 to "
                               "16\n"),
            std::string::npos)
      << report.text();
}

TEST(Report, TextAndJsonSayTheSame) {
  Mlp net;
  const Report report({.time = true, .parameters = net.named_parameters()});
  {
    const Autocast on({.low = f16});
    sum(net(values({4, 8}))).backward();
  }
  const std::string text = report.text();
  EXPECT_EQ(fmt::format("{}", report), text);
  const auto j = nlohmann::json::parse(report.json());
  ASSERT_EQ(j["rows"].size(), report.rows().size());
  double before = 1e9;
  for (const auto& row : j["rows"]) {
    EXPECT_NE(text.find(row["op"].get<std::string>()), std::string::npos);
    const double seconds = row["seconds"];
    EXPECT_GT(seconds, 0);
    EXPECT_LE(seconds, before) << "the slowest first";
    before = seconds;
  }
  EXPECT_EQ(j["cast_cache"]["casts"], 2);
  ASSERT_EQ(j["missed_shapes"].size(), 1u);
  EXPECT_EQ(j["missed_shapes"][0]["pad"], (nlohmann::json{{{"from", 5}, {"to", 8}}}));
  EXPECT_EQ(j["missed_shapes"][0]["module"], "head");
}

TEST(Report, SeesItsOwnThreadWhileAlive) {
  const Report outer;
  EXPECT_EQ(outer.text(), "no op ran\n");
  EXPECT_EQ(nlohmann::json::parse(outer.json())["rows"].size(), 0u);
  const Tensor x = values({3});
  exp(x);
  {
    const Report inner;
    exp(x);
    std::thread([device = x.device()] {
      const DefaultDevice here(device);
      exp(values({3}));
    }).join();
    EXPECT_EQ(only(inner, "exp", false).calls, 1);
  }
  exp(x);
  EXPECT_EQ(only(outer, "exp", false).calls, 3);
}

// Ops write where they would without a report, and are counted there.
TEST(Report, CountsOpsInPlace) {
  const Tensor x = values({64, 64}), y = values({64, 64});
  const auto step = [&] {
    x.add_(y);
    clamp_(x, 0.0, 1.0);
    const Tensor w = leaf({64, 64});
    sum(relu(abs(w * 2.0) + 1.0)).backward();
  };
  reset_peak(x.device());
  step();
  const int64_t peak = memory_stats(x.device()).peak;
  reset_peak(x.device());
  std::vector<std::string> seen;
  {
    const Report report({.time = true});
    step();
    EXPECT_EQ(memory_stats(x.device()).peak, peak);
    EXPECT_EQ(only(report, "add", false).calls, 1);
    EXPECT_EQ(only(report, "clamp", false).calls, 1);
    EXPECT_EQ(only(report, "abs", true).calls, 1);
    seen = report.precisions();
  }
  Seen all;  // reads values, so that no op writes over its operand
  const Observe watching(all);
  const Report report;
  step();
  EXPECT_EQ(report.precisions(), seen);
}

TEST(Report, SurvivesErrors) {
  const Report report({.time = true});
  for (int i = 0; i < 3; ++i)
    EXPECT_ERROR(matmul(values({2, 3}), values({2, 3})), "inner dimensions differ");
  exp(values({3}));
  EXPECT_EQ(report.rows().size(), 1u);
  EXPECT_LT(report.rows()[0].seconds, 60);
}

}  // namespace report_test
}  // namespace mixtape::amp
