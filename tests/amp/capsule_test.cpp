// Capsules of overflows: found, saved, and replayed elsewhere.
#include "amp/capsule.h"
#include "amp/trace.h"
#include "autograd/call.h"
#include "autograd/checkpoint.h"
#include "core/random.h"
#include "core/tf32.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "io/safetensors.h"
#include "kernels/cpu/loops/parallel.h"
#include "tests/support/amp.h"
#include "tests/support/temp_folder.h"

namespace mixtape::amp {
namespace capsule_test {

using Plant = std::function<void()>;

Tensor big(const Shape& shape, double size, DType dtype = f16) {
  return (values(shape) * size).to(dtype).detach();
}
Tensor big_leaf(const Shape& shape, double size, DType dtype = f16) {
  return big(shape, size, dtype).set_requires_grad();
}
// Goes backward through y with a gradient of that size.
void back(const Tensor& y, double size) {
  y.backward({.gradient = full(y.shape(), size, y.dtype())});
}

// Overflows, each with the beginning of its finding.
std::vector<std::pair<std::string, Plant>> plants() {
  return {
      {"forward of matmul: ", [] { matmul(big({65, 300}, 100), big({300, 33}, 100)); }},
      {"forward of linear: ", [] { linear(big({5, 64}, 300), big({7, 64}, 300), big({7}, 1)); }},
      {"forward of mul: ", [] { mul(big({4, 1, 50}, 700), big({3, 1}, 900)); }},
      {"forward of add: ", [] { add(big({31}, 6e4), big({31}, 6e4)); }},
      {"forward of exp: ", [] { exp(big({17}, 1000, f32)); }},
      {"forward of square: ", [] { square(big({40}, 1e20, f32)); }},
      {"forward of reciprocal: ", [] { reciprocal(zeros({5})); }},
      {"forward of log: ", [] { log(zeros({5})); }},
      {"forward of sqrt: ", [] { sqrt(full({5}, -1)); }},
      {"forward of div: ", [] { div(big({6}, 6e4), big({6}, 1e-3)); }},
      {"forward of cumsum: ", [] { cumsum(big({3, 500}, 3e38, f32), 1); }},
      {"forward of mul_scalar: ", [] { big({33}, 6e4) * 3.0; }},
      {"cast: ", [] { big({20}, 1e6, f32).to(f16); }},
      {"forward of conv2d: ", [] { conv2d(big({2, 8, 9, 9}, 300), big({4, 8, 3, 3}, 300)); }},
      {"forward of matmul: ",
       [] {
         const Autocast on({.low = f16});
         matmul(big({8, 64}, 300, f32).t().contiguous().t(), big({64, 8}, 300, f32));
       }},
      {"backward of mul: ", [] { back(big_leaf({12}, 1) * big({12}, 6e4), 6e4); }},
      {"backward of matmul: ",
       [] { back(matmul(big_leaf({6, 100}, 1), big({100, 90}, 900)), 30000); }},
      {"backward of linear: ",
       [] {
         const Autocast on({.low = f16});
         const Tensor h = linear(big({9, 20}, 1e-3, f32), big_leaf({20, 20}, 0.1, f32));
         back(linear(h, big_leaf({8, 20}, 900, f32), big_leaf({8}, 1, f32)), 6e4);
       }},
      {"backward of sqrt: ", [] { back(sqrt(zeros({7}).set_requires_grad()), 1); }},
      {"backward of div: ", [] { back(div(big({9}, 1), big_leaf({9}, 1e-3)), 100); }},
      {"forward of rnn_relu: ",
       [] { rnn_relu(big({3, 2, 8}, 6e4), big({8, 8}, 6e4), {}, {}, {.reverse = true}); }},
      {"backward of lstm: ",
       [] { back(lstm(big_leaf({3, 2, 32}, 1), big({32, 8}, 6e4), {}, {}, {}), 6e4); }},
  };
}

std::string found(const Plant& plant, const std::string& path) {
  OverflowCapsule capsule(path);
  plant();
  return capsule.found() ? Capsule::load(path).finding : "nothing";
}

int64_t bytes_of(const Capsule& c) {
  int64_t bytes = 0;
  for (const Capsule::Input& in : c.inputs)
    if (in.tensor) bytes += int64_t(in.tensor.nbytes());
  if (c.gradient) bytes += int64_t(c.gradient.nbytes());
  return bytes;
}

// Plants overflows, and runs itself again to replay them with one thread.
TEST(Capsule, ReplaysInAnotherProcess) {
  const char* const folder = std::getenv("MIXTAPE_TEST_CAPSULES");
  if (folder) {
    for (size_t i = 0; i < plants().size(); ++i)
      EXPECT_TRUE(Capsule::load(fmt::format("{}/{}", folder, i)).reproduces()) << i;
    return;
  }
  const test::TempFolder made;
  for (int i = 0; const auto& [what, plant] : plants()) {
    const std::string finding = found(plant, made / std::to_string(i++));
    EXPECT_NE(finding.find(what), std::string::npos) << what << finding;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = fmt::format(
      "MIXTAPE_NUM_THREADS=1 MIXTAPE_TEST_CAPSULES={} {} "
      "--gtest_filter=Capsule.ReplaysInAnotherProcess > {}",
      made.path(), self, made / "log");
  EXPECT_EQ(std::system(command.c_str()), 0) << test::slurp(made / "log");
}

// Overwrites the stack on which ops are called.
[[gnu::noinline]] void fill_stack(int byte) {
  volatile char stack[1 << 16];
  for (volatile char& c : stack) c = char(byte);
}
TEST(Capsule, OfEqualRunsIsTheSameFile) {
#if !__has_builtin(__builtin_clear_padding)
  GTEST_SKIP() << "needs a compiler with __builtin_clear_padding";
#endif
  const test::TempFolder folder;
  for (const auto& [what, plant] : plants()) {
    for (const int byte : {0x55, 0xaa}) {
      const Seed seed(1);
      fill_stack(byte);
      found(plant, folder / std::to_string(byte));
    }
    EXPECT_EQ(test::slurp(folder / "85"), test::slurp(folder / "170")) << what;
  }
}

// The rest of a file is less than 1 KB.
TEST(Capsule, IsSmallerThanTwiceItsInputs) {
  const test::TempFolder folder;
  for (const auto& [what, plant] : plants()) {
    found(plant, folder / "c");
    const auto size = int64_t(std::filesystem::file_size(folder / "c"));
    const int64_t inputs = bytes_of(Capsule::load(folder / "c"));
    EXPECT_LT(size, inputs + std::max<int64_t>(inputs, 1000)) << what;
  }
  found([&] { mul(big({1000}, 700).expand({500, 1000}), big({500, 1}, 900)); }, folder / "c");
  EXPECT_LT(int64_t(std::filesystem::file_size(folder / "c")), 5000) << "what is broadcast, once";
}

TEST(Capsule, SaysWhichPrecisionCuresIt) {
  const test::TempFolder folder;
  found([] { matmul(full({2, 4}, 300, f16), full({4, 3}, 300, f16)); }, folder / "c");
  const Capsule c = Capsule::load(folder / "c");
  const std::string report = c.report();
  EXPECT_TRUE(
      report.starts_with("forward of matmul: 6 inf in f16 [2, 3], from f16, f16 with absmax 300\n"))
      << report;
  EXPECT_TRUE(
      report.ends_with("replayed: the same, bit for bit\n"
                       "  f16   6 inf, 0 nan\n"
                       "  bf16  finite, absmax 3.6e+05\n"
                       "  f32   finite, absmax 3.6e+05\n"
                       "  f64   finite, absmax 3.6e+05\n"
                       "bf16, f32, f64 would do\n"))
      << report;
  const std::string test = c.test("c");
  EXPECT_EQ(std::ranges::count(test, '\n'), 10);
  EXPECT_NE(test.find("capsule.replay(bf16)"), std::string::npos);
}

TEST(Capsule, SaysIfNothingCures) {
  const test::TempFolder folder;
  found([] { log(zeros({2})); }, folder / "c");
  EXPECT_TRUE(Capsule::load(folder / "c")
                  .report()
                  .ends_with("no precision cures it: look at where its inputs come from\n"));
}

TEST(Capsule, HoldsTheFirstOpOnly) {
  const test::TempFolder folder;
  EXPECT_EQ(found([] { sum(big({3}, 1)); }, folder / "c"), "nothing");
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
  EXPECT_EQ(found([] { add(full({2}, INFINITY), full({2}, 1)); }, folder / "c"), "nothing")
      << "it passes on what it was given";
  EXPECT_EQ(found([] { masked_fill(ones({2}), ones({2}, boolean), -INFINITY); }, folder / "c"),
            "nothing");
  const std::string first = found(
      [] {
        const Tensor y = exp(full({2}, 1000));
        sqrt(full({2}, -1.0));
        y - y;
      },
      folder / "c");
  EXPECT_TRUE(first.starts_with("forward of exp: 2 inf")) << first;
}

TEST(Capsule, KeepsWhatWasRandom) {
  const test::TempFolder folder;
  const Seed seed(9);
  const std::string what = found([] { dropout(full({50}, 6e4, f16), 0.5); }, folder / "c");
  EXPECT_NE(what.find("forward of dropout"), std::string::npos) << what;
  const Capsule c = Capsule::load(folder / "c");
  rand({100});
  EXPECT_TRUE(c.reproduces());
  EXPECT_EQ(c.seed, 9u);
}

TEST(Capsule, KeepsEverySeed) {
  const test::TempFolder folder;
  const Seed seed(~uint64_t(0) - 5);
  found([] { log(zeros({2})); }, folder / "c");
  EXPECT_EQ(Capsule::load(folder / "c").seed, ~uint64_t(0) - 5);
}

TEST(Capsule, KeepsTf32) {
  const test::TempFolder folder;
  const Tensor x = values({64, 64}), w = cat({big({64, 8}, 1e38, f32), values({64, 8})}, 1);
  for (const bool allow : {true, false}) {
    {
      const Tf32 mode(allow);
      found([&] { matmul(x, w); }, folder / "c");
    }
    const Tf32 other(!allow);
    const Capsule capsule = Capsule::load(folder / "c");
    EXPECT_EQ(capsule.tf32, allow);
    EXPECT_TRUE(capsule.reproduces()) << allow;
  }
}

TEST(Capsule, TakesOpsOfNothing) {
  const test::TempFolder folder;
  const std::string what = found([] { mean(zeros({0})); }, folder / "c");
  EXPECT_TRUE(what.starts_with("forward of mean: 1 nan")) << what;
  EXPECT_TRUE(Capsule::load(folder / "c").reproduces());
  found([] { mean(zeros({3, 0, 2}).transpose(0, 2), {1}); }, folder / "d");
  EXPECT_TRUE(Capsule::load(folder / "d").reproduces());
}

TEST(Capsule, ReplaysACastToOtherDTypes) {
  const test::TempFolder folder;
  found([] { full({3}, 1e6).to(f16); }, folder / "c");
  const std::string report = Capsule::load(folder / "c").report();
  EXPECT_TRUE(
      report.ends_with("  f16   3 inf, 0 nan\n"
                       "  bf16  finite, absmax 9.99e+05\n"
                       "  f32   finite, absmax 1e+06\n"
                       "  f64   finite, absmax 1e+06\n"
                       "bf16, f32, f64 would do\n"))
      << report;
}

TEST(Capsule, HoldsACastToEightBits) {
  const test::TempFolder folder;
  EXPECT_EQ(found([] { from({1, 500}, {2}).to(f8_e4m3); }, folder / "c"),
            "forward of cast_to_integer: 1 nan in f8_e4m3 [2], from f32 with absmax 500");
  const Capsule capsule = Capsule::load(folder / "c");
  EXPECT_TRUE(capsule.reproduces());
  EXPECT_TRUE(capsule.report().ends_with("f16, bf16, f32, f64 would do\n")) << capsule.report();
}

TEST(Capsule, SeesTheSecondBackwardOfAGraph) {
  const test::TempFolder folder;
  const std::string what = found(
      [] {
        const Tensor y = big_leaf({12}, 1) * full({12}, 300, f16);
        y.backward({.gradient = full({12}, 1, f16), .retain_graph = true});
        y.backward({.gradient = full({12}, 60000, f16)});
      },
      folder / "c");
  EXPECT_TRUE(what.starts_with("backward of mul: 12 inf")) << what;
}

TEST(Capsule, LetsAProgramWriteInPlace) {
  const test::TempFolder folder;
  const std::string what = found(
      [] {
        const Autocast on({.low = f16});
        const Tensor y = linear(big({2, 3, 4}, 1, f32), big_leaf({5, 4}, 1, f32));  // a view
        y.add_(1.0);
        const Tensor z = big_leaf({3}, 1) * 2.0;
        reshape(z, {3, 1});  // an op of the past, whose inputs the capsule keeps
        z *= 9e4;
      },
      folder / "c");
  EXPECT_TRUE(what.starts_with("forward of mul")) << what;
}

TEST(Capsule, SaysWhatACastWasFor) {
  const test::TempFolder folder;
  const auto product = [](double x, double gradient) {
    const Autocast on({.low = f16});
    const Tensor y = linear(big_leaf({3, 4}, x, f32), big({5, 4}, 1e-3, f32));
    y.to(f32).backward({.gradient = full({3, 5}, gradient)});
  };
  const std::string forward = found([&] { product(1e6, 1); }, folder / "c"),
                    backward = found([&] { product(1, 1e6); }, folder / "d");
  EXPECT_TRUE(forward.starts_with("forward of cast for linear: ")) << forward;
  EXPECT_TRUE(backward.starts_with("backward of cast")) << backward;
  EXPECT_TRUE(Capsule::load(folder / "d").reproduces());
}

// A loss behind layers at random, with an overflow planted before one of them, forward or backward.
Tensor planted_loss(uint64_t seed) {
  const Seed seeded(seed);
  const auto any = [](int64_t n) { return int64_t(randint(0, n, {}).item()); };
  const int64_t w = 2 * (1 + any(20)), layers = 1 + any(6), at = any(layers);
  const bool backward = any(2) == 1;
  const double gain = std::pow(10, 5 + any(3));
  const auto weight = [&] { return randn({w, w}).set_requires_grad(); };
  Tensor x = randn({1 + any(3), 1 + any(9), w});
  for (int64_t i = 0; i < layers; ++i) {
    if (i == at) x = backward ? x * gain * (1 / gain) : x * gain;
    const int64_t kind = any(7);
    const Tensor a = weight(), b = weight();
    if (kind == 0) x = linear(x, a);
    if (kind == 1) x = x + gelu(linear(relu(x), a));
    if (kind == 2) x = layer_norm(x, {w});
    if (kind == 3) x = softmax(x, -1);
    if (kind == 4) x = matmul(x, matmul(x.transpose(1, 2), linear(x, a)));
    if (kind == 5)
      x = checkpoint([=](const Tensor& t) { return linear(tanh(linear(t, a)), b); }, x);
    if (kind == 6) {
      x = linear(x, a);
      x.add_(1.0);
      x *= 0.5;
    }
  }
  return mean(square(linear(x, weight()).to(f32))) * (backward ? 1e6 : 1);
}

// Random losses; each capsule is replayed with one thread and with two.
TEST(Capsule, FindsTheOpThatATraceFinds) {
  const test::TempFolder folder;
  const DefaultDevice cpu(Device::cpu());  // the threads are its own
  int64_t capsules = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    OverflowTrace trace;
    const std::string what = found(
        [&] {
          Tensor loss;
          {
            const Autocast on({.low = f16});
            loss = planted_loss(seed);
          }
          loss.backward();
        },
        folder / "c");
    const std::string want = trace.found().empty() ? "nothing" : trace.found()[0].text();
    if (want.starts_with("incoming gradient")) continue;  // a sum is no op
    EXPECT_EQ(what, want) << seed;
    if (what == "nothing") continue;
    ++capsules;
    for (const int threads : {1, 2}) {
      const kernels::cpu::ThreadLimit limit(threads);
      EXPECT_TRUE(Capsule::load(folder / "c").reproduces()) << seed << ": " << what;
    }
  }
  EXPECT_GE(capsules, 30);
}

TEST(Capsule, ChecksItsPath) {
  const test::TempFolder folder;
  EXPECT_ERROR(OverflowCapsule(folder / "none/c"), "cannot create a file beside it: No such file");
  EXPECT_ERROR(
      OverflowCapsule("c.pt"),
      "OverflowCapsule: a capsule is a safetensors file, but c.pt is named like another format");
  {
    const OverflowCapsule unused(folder / "c");
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

TEST(Capsule, WritesATestThatCompiles) {
  Capsule c;
  c.op = "none", c.finding = "forward of log in a\nb\\";
  const std::string test = c.test("a\"b\\c");
  EXPECT_TRUE(test.starts_with("// forward of log in a/b/\n#include")) << test;
  EXPECT_NE(test.find("load(\"a\\\"b\\\\c\")"), std::string::npos) << test;
}

TEST(Capsule, RefusesOtherFiles) {
  const test::TempFolder folder;
  io::save(folder / "x", {{"a", ones({2})}});
  EXPECT_ERROR(Capsule::load(folder / "x"), "no \"format\": not a capsule of an overflow");
  found([] { log(zeros({1}).expand({2})); }, folder / "c");  // its layout is stored
  Capsule c = Capsule::load(folder / "c");
  EXPECT_ERROR(c.replay(i32), "a capsule is replayed in f16, bf16, f32 or f64, not in i32");
  c.types = "others";
  EXPECT_ERROR(c.replay(), "no such call of log is in this program");
  const auto change = [&](const std::string& field, const std::string& value) {
    io::SafeTensors file = io::load(folder / "c");
    file.metadata[field] = value;
    io::save(folder / "d", file.tensors, file.metadata);
    return test::error([&] { Capsule::load(folder / "d").replay(); });
  };
  EXPECT_NE(change("module", "other").find("was changed since it was written"), std::string::npos);
  EXPECT_NE(change("format", "2").find("\"2\" is not \"mixtape overflow capsule 1\""),
            std::string::npos);
  EXPECT_NE(
      change("input.0.strides", "9").find("d: input.0: strides [9] reach beyond the 1 numbers"),
      std::string::npos);
  EXPECT_NE(
      change("input.0.shape", "x").find("d: input.0.shape must be whole numbers >= 0, got \"x\""),
      std::string::npos);
  EXPECT_NE(change("input.0.shape", "2 2")
                .find("d: input.0: shape and strides must have the same rank, got 2 and 1"),
            std::string::npos);
  EXPECT_NE(change("lists", "1").find("was changed since it was written"), std::string::npos);
  EXPECT_NE(change("input.0.shape", "1").find("was changed since it was written"),
            std::string::npos);
  Capsule without = Capsule::load(folder / "c");
  without.inputs.clear();
  EXPECT_ERROR(without.replay(), "a call to be repeated has too few inputs");
  const auto attribute = [](const Shape& shape) {
    const std::string bytes(reinterpret_cast<const char*>(&shape), sizeof(Shape));
    return mixtape::detail::RepeatedArguments{{}, {}, bytes}.next<Shape>();
  };
  Shape shape({2, 3});
  EXPECT_EQ(attribute(shape), shape);
  shape.rank = 99;
  EXPECT_ERROR(attribute(shape), "a call to be repeated has a shape of rank 99");
}

}  // namespace capsule_test
}  // namespace mixtape::amp
