// Presets and overrides: the precision in which an op runs.

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>

#include "core/check.h"
#include "nn/nn.h"
#include "tests/support/amp.h"
#include "tests/support/op_cases.h"
#include "tests/support/temp_folder.h"

namespace mixtape::amp {
using namespace internal;
namespace amp_override_test {

TEST(Presets, DoWhatTheirNamesSay) {
  using enum Precision;
  const auto dtype = [&](Preset p, const std::string& op, DType given = f16) {
    const Autocast on({.low = f16, .preset = p});
    for (const tests::OpCase& c : tests::op_cases())
      if (c.op == op) return c.run(make_inputs(c, given, false)).dtype();
    fail("{} has no row", op);
  };
  EXPECT_EQ(dtype(Preset::Torch, "softmax"), f32);
  for (const char* op : {"softmax", "log_softmax", "layer_norm", "group_norm", "instance_norm"})
    EXPECT_EQ(dtype(Preset::Fast, op), f16) << op;
  EXPECT_EQ(dtype(Preset::Fast, "exp"), f32);
  for (const char* op : {"gelu", "gelu_tanh", "silu", "sigmoid", "tanh"}) {
    EXPECT_EQ(dtype(Preset::Safe, op), f32) << op;
    EXPECT_EQ(dtype(Preset::Torch, op), f16) << op;
  }
  EXPECT_EQ(dtype(Preset::Safe, "scaled_dot_product_attention"), f32);
  EXPECT_EQ(dtype(Preset::Torch, "scaled_dot_product_attention"), f16);
  EXPECT_EQ(dtype(Preset::Safe, "sqrt"), f16);
  EXPECT_EQ(dtype(Preset::TensorCoresOnly, "matmul", f32), f32) << "from narrow operands";
  EXPECT_EQ(dtype(Preset::TensorCoresOnly, "softmax"), f16) << "no other op is touched";
  EXPECT_EQ(dtype(Preset::O1, "softmax"), f32);
  EXPECT_EQ(dtype(Preset::O2, "softmax"), f16);
  EXPECT_EQ(dtype(Preset::O2, "cross_entropy"), f32);
  EXPECT_EQ(dtype(Preset::O2, "mse_loss"), f32);
  EXPECT_EQ(dtype(Preset::O3, "mse_loss"), f16);
  EXPECT_EQ(dtype(Preset::O3, "matmul", f32), f16);
  for (const Preset off : {Preset::O0, Preset::Off}) {
    EXPECT_EQ(dtype(off, "matmul", f32), f32) << name(off);
    EXPECT_EQ(dtype(off, "softmax"), f16) << name(off);
  }
  const Tensor x = values({4, 4});
  const Autocast on({.low = bf16, .preset = Preset::TensorCoresOnly});
  EXPECT_EQ(to_vector(matmul(x, x)), to_vector(matmul(cast(x, bf16), cast(x, bf16), {.out = f32})));
}

TEST(Presets, AreInheritedByInnerRegions) {
  const Tensor x = values({4, 4}, f16);
  const Autocast outer({.low = f16, .preset = Preset::Fast});
  const Autocast inner({.overrides = {{"gelu", Precision::Full}}});
  EXPECT_EQ(softmax(x).dtype(), f16);
  EXPECT_EQ(gelu(x).dtype(), f32);
  const Autocast torch({.preset = Preset::Torch});
  EXPECT_EQ(softmax(x).dtype(), f32);
  EXPECT_EQ(gelu(x).dtype(), f32);
}

TEST(Overrides, OfOpsByNameAndGlob) {
  const Tensor x = values({4, 4}, f16), s = values({4, 4});
  const Autocast on({.low = f16,
                     .overrides = {{"*softmax", Precision::Native},
                                   {"relu", Precision::Full},
                                   {"matmul", Precision::Full},
                                   {"linear", Precision::Full},
                                   {"tan?", Precision::Low}}});
  EXPECT_EQ(softmax(x).dtype(), f16);
  EXPECT_EQ(log_softmax(x).dtype(), f16);
  EXPECT_EQ(relu(x).dtype(), f32);
  EXPECT_EQ(tanh(s).dtype(), f16);
  EXPECT_EQ(matmul(s, s).dtype(), f32);
  EXPECT_EQ(matmul(x, x).dtype(), f32);
  EXPECT_EQ(to_vector(linear(x, s)), to_vector(linear(cast(x, f32), s))) << "operands of one dtype";
}

TEST(Overrides, OfModulesByPath) {
  const Tensor x = values({4, 4}), h = values({4, 4}, f16);
  const Autocast on({.low = f16,
                     .overrides = {{"decoder.*.mlp", Precision::Full},
                                   {"encoder", Precision::Native},
                                   {"gelu", Precision::Native}}});
  const auto in = [&](const char* path, const auto& f) {
    const Scope module("", intern(path));
    return f().dtype();
  };
  const auto product = [&] { return matmul(h, h); };
  EXPECT_EQ(in("decoder.3.mlp", product), f32);
  EXPECT_EQ(in("decoder.3.mlp.up", product), f32) << "modules inside";
  EXPECT_EQ(in("decoder.3.mlpx", product), f16);
  EXPECT_EQ(in("decoder.3.attn", product), f16);
  EXPECT_EQ(in("encoder.0", [&] { return softmax(h); }), f16);
  EXPECT_EQ(in("decoder.0", [&] { return softmax(h); }), f32);
  EXPECT_EQ(in("decoder.3.mlp", [&] { return gelu(h); }), f16) << "a name beats a path";
  EXPECT_EQ(in("decoder.3.mlp", [&] { return relu(h); }), f16) << "what moves values follows them";
  EXPECT_EQ(product().dtype(), f16);
  EXPECT_EQ(matmul(x, x).dtype(), f16);
}

TEST(Overrides, InnerRegionsWinAndOuterOnesHold) {
  const Tensor h = values({4, 4}, f16);
  const Autocast outer(
      {.low = f16, .overrides = {{"softmax", Precision::Native}, {"exp", Precision::Native}}});
  {
    const Autocast inner({.overrides = {{"softmax", Precision::Full}}});
    EXPECT_EQ(softmax(h).dtype(), f32);
    EXPECT_EQ(exp(h).dtype(), f16);
  }
  EXPECT_EQ(softmax(h).dtype(), f16);
  const Autocast last({.overrides = {{"exp", Precision::Native}, {"exp", Precision::Full}}});
  EXPECT_EQ(exp(h).dtype(), f32) << "the last listed";
  const Scope module("", intern("head"));
  const Autocast by_path({.overrides = {{"head*", Precision::Native}}});
  EXPECT_EQ(exp(h).dtype(), f16) << "an inner path beats an outer name";
}

TEST(Overrides, RejectMisspeltOps) {
  using P = Precision;
  EXPECT_ERROR(Autocast({.overrides = {{"sofmax", P::Native}}}),
               "no op is called \"sofmax\"; similar names: softmax");
  EXPECT_ERROR(Autocast({.overrides = {{"LayerNorm", P::Native}}}), "similar names: layer_norm");
  EXPECT_ERROR(Autocast({.overrides = {{"matmull", P::Full}}}),
               "for a module of that name, write \"matmull*\"");
  EXPECT_ERROR(Autocast({.overrides = {{"", P::Full}}}), "an override needs a name, got ''");
  for (const char* path :
       {"decoder", "conv1", "linear2", "head", "sofmax.0", "*mlp", "mlp", "attn", "ln", "scale"})
    EXPECT_EQ(test::error([&] { const Autocast on({.overrides = {{path, P::Full}}}); }), "no error")
        << path;
}

// Paths are remembered, so these occur in no other test.
struct Storey : nn::Module<Storey> {
  nn::Linear up{4, 8}, down{8, 4};
  bool runs = true;
  Tensor forward(const Tensor& x) const { return runs ? x + down(gelu(up(x))) : x; }
  MIXTAPE_FIELDS(up, down)
};
struct Tower : nn::Module<Tower> {
  std::vector<Storey> storeys;
  Tower() : storeys(2) { storeys[1].runs = false; }
  Tensor forward(const Tensor& x) const { return storeys[1](storeys[0](x)); }
  MIXTAPE_FIELDS(storeys)
};

// Before modules run nothing is known, and destructors do not throw: the error comes from a region
// that follows one without new modules.
TEST(Overrides, OfNoModuleAreAnErrorOfALaterRegion) {
  const Tower net;
  const nn::MSELoss criterion;
  const Tensor x = values({2, 4});
  const auto step = [&](const char* path) {
    const Autocast on(
        {.low = f16, .overrides = {{"softmax", Precision::Full}, {path, Precision::Full}}});
    return criterion(net(x), x).dtype();
  };
  for (const char* path : {"storeys", "storeys.*.down", "storeys.1.up", "st*ys.?"})
    for (int i = 0; i < 3; ++i) EXPECT_EQ(step(path), f32) << path;
  for (const char* path : {"storeys.*.donw", "storeys.2", "moats*"}) {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(step(path), f32);
    const std::string error = test::error([&] { step(path); });
    EXPECT_NE(error.find(fmt::format("no module that ran has the path \"{}\"; nearest are ", path)),
              std::string::npos)
        << error;
    EXPECT_EQ(Autocast::innermost(), nullptr);
  }
  EXPECT_ERROR(step("storeys.*.donw"), "nearest are storeys.0.down, storeys.1.down, storeys.0.up");
  {
    const Autocast only_ops({.low = f16, .overrides = {{"not.yet", Precision::Full}}});
    (void)matmul(x, transpose(x));
  }
  EXPECT_EQ(test::error([] {
              const Autocast on({.low = f16, .overrides = {{"not.yet", Precision::Full}}});
            }),
            "no error")
      << "no module ran";
}

// An island in the middle opens before the rest of the model ran.
TEST(Overrides, AreNotCheckedByARegionWithin) {
  struct Islands : nn::Module<Islands> {
    nn::Linear up{4, 4}, down{4, 4};
    Tensor forward(const Tensor& x) const {
      Tensor h = up(x);
      for (int i = 0; i < 2; ++i) {
        const Autocast off({.enabled = false});
        h = h.to(f32) + 1;
      }
      return down(h);
    }
    MIXTAPE_FIELDS(up, down)
  };
  struct Both : nn::Module<Both> {
    Islands body;
    nn::Linear head{4, 4};
    Tensor forward(const Tensor& x) const { return head(body(x)); }
    MIXTAPE_FIELDS(body, head)
  };
  const Both both;
  for (int i = 0; i < 3; ++i) {
    const Autocast on({.low = f16, .overrides = {{"head", Precision::Full}}});
    EXPECT_EQ(both(values({2, 4})).dtype(), f32);
  }
}

// Alternating models, each with a part of the list.
TEST(Overrides, AreSharedBetweenModels) {
  struct Cellar : nn::Module<Cellar> {
    nn::Linear wine{4, 4};
    Tensor forward(const Tensor& x) const { return wine(x); }
    MIXTAPE_FIELDS(wine)
  };
  const Tower tower;
  const Cellar cellar;
  const Tensor x = values({2, 4});
  for (int turn = 0; turn < 3; ++turn)
    for (const bool below : {false, true}) {
      const Autocast on(
          {.low = f16, .overrides = {{"storeys.*", Precision::Full}, {"wine", Precision::Full}}});
      EXPECT_EQ((below ? cellar(x) : tower(x)).dtype(), f32);
    }
}

TEST(Overrides, AreReadFromText) {
  const Overrides o =
      parse_overrides("# a comment\n\n softmax = Native\r\ndecoder.*.mlp=full # here\n*norm = LOW");
  EXPECT_EQ(o, (Overrides{{"softmax", Precision::Native},
                          {"decoder.*.mlp", Precision::Full},
                          {"*norm", Precision::Low}}));
  EXPECT_TRUE(parse_overrides("").empty());
  EXPECT_ERROR(parse_overrides("softmax = Native\nexp"),
               "line 2: \"exp\" is not of the form 'softmax = Native'");
  EXPECT_ERROR(parse_overrides("\n\nexp = f16"),
               "line 3: \"f16\" is not a precision; known are Any, Native, Low");
  EXPECT_ERROR(parse_overrides("= Low"), "line 1: \"= Low\" names no op and no module");

  const test::TempFolder folder;
  const std::string path = folder / "overrides.txt";
  std::ofstream(path) << "exp = Any\nbad\n";
  EXPECT_ERROR(load_overrides(path), path + ": line 2: \"bad\"");
  std::ofstream(path) << "exp = Any\n";
  EXPECT_EQ(load_overrides(path), (Overrides{{"exp", Precision::Any}}));
  std::ofstream(path) << "\x1b[2J = Lo\x07w\n";
  EXPECT_ERROR(load_overrides(path), R"(line 1: "Lo\u0007w" is not a precision)");
  std::ofstream(path) << "softma\x1bx = Low\n";
  EXPECT_ERROR(Autocast({.overrides = load_overrides(path)}),
               R"(called "softma\u001bx"; similar names: softmax)");
  EXPECT_ERROR(load_overrides(folder / "none.txt"), "none.txt: cannot open: No such file");
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& other : {folder.path(), pipe, std::string("/dev/zero")})
    EXPECT_ERROR(load_overrides(other), other + ": not a regular file");
  std::ofstream(path) << std::string((1 << 20) + 1, '#');
  EXPECT_ERROR(load_overrides(path), "has 1048577 bytes, more than the 1048576 allowed");
}

TEST(Overrides, AreResolvedByEqualRegionsTogether) {
  const Overrides overrides = {{"a.*", Precision::Full}, {"b.*", Precision::Full}};
  const auto first = [&] { return Autocast({.low = f16, .overrides = overrides}).rules(); }();
  const Autocast on({.low = f16, .overrides = overrides});
  EXPECT_EQ(on.rules(), first) << "the next step's region has what this one learnt";
}

}  // namespace amp_override_test
}  // namespace mixtape::amp
