// Modules: all that MIXTAPE_FIELDS provides, and that modules do not depend on their address.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "nn/nn.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
using namespace internal;
namespace nn_test {

using test::error;

using Names = std::vector<std::string>;

struct Mlp : nn::Module<Mlp> {
  nn::Linear up, down;
  Mlp(int64_t dim, int64_t hidden) : up(dim, hidden), down(hidden, dim) {}
  Tensor forward(const Tensor& x) const { return down(gelu(up(x))); }
  MIXTAPE_FIELDS(up, down)
};

struct Block : nn::Module<Block> {
  nn::LayerNorm norm;
  Mlp mlp;
  std::optional<nn::Linear> gate;
  Block(int64_t dim, bool gated) : norm(dim), mlp(dim, 2 * dim) {
    if (gated) gate.emplace(dim, dim, nn::Linear::Options{.bias = false});
  }
  Tensor forward(const Tensor& x) const {
    const Tensor y = mlp(norm(x));
    return x + (gate ? y * sigmoid((*gate)(x)) : y);
  }
  MIXTAPE_FIELDS(norm, mlp, gate)
};

// Every kind of field, in a template.
template <class Part>
struct Zoo : nn::Module<Zoo<Part>> {
  Tensor scale = nn::parameter(ones({2}));
  Tensor nothing;
  nn::Buffer count = zeros({1});
  std::vector<Tensor> loose{nn::parameter(zeros({1})), nn::parameter(zeros({3}))};
  std::array<nn::Buffer, 2> pair{zeros({1}), zeros({1})};
  std::optional<Tensor> maybe;
  std::vector<std::vector<Part>> grid;
  nn::Any any;
  Zoo() {
    grid.resize(2);
    grid[1].emplace_back(2, true);
  }
  Tensor forward(const Tensor& x) const { return this->grid[1][0](x) * scale; }
  MIXTAPE_FIELDS(scale, nothing, count, loose, pair, maybe, grid, any)
};

struct Empty : nn::Module<Empty> {
  Tensor forward(const Tensor& x) const { return x; }
  MIXTAPE_FIELDS()
};

struct Wide : nn::Module<Wide> {  // many fields
  Tensor a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z;
  Wide() {
    for (Tensor* field : {&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k, &l, &m,
                          &n, &o, &p, &q, &r, &s, &t, &u, &v, &w, &x, &y, &z})
      *field = nn::parameter(ones({1}));
  }
  Tensor forward(const Tensor&) const { return z; }
  MIXTAPE_FIELDS(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z)
};

struct Tied : nn::Module<Tied> {
  nn::Embedding table;
  nn::Linear head;
  Tied() : table(5, 3), head(3, 5, {.bias = false}) { head.weight = table.weight; }
  Tensor forward(const Tensor& index) const { return head(table(index)); }
  MIXTAPE_FIELDS(table, head)
};

static_assert(std::is_nothrow_move_constructible_v<Block>, "vectors of modules grow by moving");
static_assert(std::is_move_assignable_v<Block> && !std::is_copy_assignable_v<Block>);

TEST(Fields, NamesFollowTheFields) {
  EXPECT_EQ(names(Mlp(2, 3).state_dict()),
            (Names{"up.weight", "up.bias", "down.weight", "down.bias"}));
  EXPECT_EQ(
      names(Zoo<Block>().state_dict()),
      (Names{"scale", "count", "loose.0", "loose.1", "pair.0", "pair.1", "grid.1.0.norm.weight",
             "grid.1.0.norm.bias", "grid.1.0.mlp.up.weight", "grid.1.0.mlp.up.bias",
             "grid.1.0.mlp.down.weight", "grid.1.0.mlp.down.bias", "grid.1.0.gate.weight"}));
  EXPECT_EQ(names(Zoo<Block>().named_buffers()), (Names{"count", "pair.0", "pair.1"}));
  EXPECT_TRUE(Empty().state_dict().empty());
}

TEST(Fields, AnyNumberOfThem) {
  const Names all = names(Wide().state_dict());
  ASSERT_EQ(all.size(), 26u);
  for (size_t i = 0; i < 26; ++i) EXPECT_EQ(all[i], std::string(1, char('a' + i)));
}

TEST(Fields, WhatHoldsNothingIsLeftOut) {
  Zoo<Block> zoo;
  EXPECT_TRUE(nn::parameter(zeros({2, 3}).t()).is_contiguous());  // as optimizers need it
  zoo.maybe = nn::parameter(ones({4}));
  zoo.any = nn::Linear(1, 1);
  const Names all = names(zoo.named_parameters());
  EXPECT_NE(std::find(all.begin(), all.end(), "maybe"), all.end());
  EXPECT_EQ(all.back(), "any.bias");
  EXPECT_EQ(names(nn::Linear(2, 2, {.bias = false}).state_dict()), Names{"weight"});
}

// `out` runs but is not listed.
struct Forgetful : nn::Module<Forgetful> {
  nn::Linear in{2, 3}, out{3, 2};
  Tensor forward(const Tensor& x) const { return out(in(x)); }
  MIXTAPE_FIELDS(in)
};
struct HoldsForgetful : nn::Module<HoldsForgetful> {
  std::vector<Forgetful> inner;
  HoldsForgetful() { inner.emplace_back(); }
  Tensor forward(const Tensor& x) const { return inner[0](x); }
  MIXTAPE_FIELDS(inner)
};

struct ContainsForgetful : nn::Module<ContainsForgetful> {
  Forgetful inner;
  Tensor forward(const Tensor& x) const { return inner(x); }
  MIXTAPE_FIELDS(inner)
};

TEST(Fields, OneThatIsForgottenIsAnErrorWhenItRuns) {
  const Tensor x = ones({1, 2});
  Forgetful net;
  {
    const NoGrad off;
    net(x);
  }
  for (int i = 0; i < 2; ++i)
    EXPECT_ERROR(net(x),
                 "Forgetful holds a Linear that its MIXTAPE_FIELDS leaves out, so it would be "
                 "neither trained nor saved: list it there, freeze it");
  EXPECT_ERROR(HoldsForgetful()(x), "inner.0: Forgetful holds a Linear");
  EXPECT_ERROR(ContainsForgetful()(x), "inner: Forgetful holds a Linear");
  net.out(ones({1, 3}));  // alone it is part of no module
}

TEST(Fields, MayLeaveOutWhatIsFrozenTiedOrElsewhere) {
  const Tensor x = ones({1, 2});
  Forgetful frozen;
  frozen.out.requires_grad_(false);
  frozen(x);
  Forgetful tied;
  tied.in = nn::Linear(2, 2);
  tied.out.weight = tied.in.weight;
  tied.out.bias = tied.in.bias;
  tied(x);

  struct Refers : nn::Module<Refers> {
    const nn::Linear& other;
    nn::Linear own{2, 2};
    explicit Refers(const nn::Linear& other) : other(other) {}
    Tensor forward(const Tensor& x) const { return own(other(x)); }
    MIXTAPE_FIELDS(own)
  };
  const nn::Linear elsewhere(2, 2);
  Refers refers(elsewhere);
  refers(x);
}

TEST(Module, ATiedTensorIsOneParameterWithTwoNames) {
  Tied net;
  EXPECT_EQ(net.parameters().size(), 1u);
  EXPECT_EQ(net.num_parameters(), 15);
  const StateDict state = net.state_dict();
  ASSERT_EQ(names(state), (Names{"table.weight", "head.weight"}));
  EXPECT_EQ(state[0].second.storage(), state[1].second.storage());

  sum(net(from({1, 2}, {2}, i64))).backward();
  EXPECT_EQ(net.parameters()[0].grad().shape(), (Shape{5, 3}));
  net.to(f64);
  EXPECT_TRUE(net.head.weight.is_same(net.table.weight));

  const Tied copy = net.clone();
  EXPECT_TRUE(copy.head.weight.is_same(copy.table.weight));
  EXPECT_NE(copy.head.weight.storage(), net.head.weight.storage());

  Tied other;  // a file may hold a tied tensor under either name
  other.load_state_dict(StateDict{{"head.weight", full({5, 3}, 7)}});
  EXPECT_EQ(other.table.weight.at(4), 7);
}

TEST(Module, StateGoesRoundAndConverts) {
  Zoo<Block> a, b;
  const Tensor handle = b.grid[1][0].mlp.up.weight;
  const void* const address = handle.raw();
  const uint64_t version = handle.version();
  EXPECT_FALSE(equal(a.grid[1][0].mlp.up.weight, handle));
  b.load_state_dict(a.state_dict());
  EXPECT_TRUE(equal(a.grid[1][0].mlp.up.weight, handle));
  EXPECT_EQ(handle.raw(), address) << "in place";
  EXPECT_GT(handle.version(), version);
  EXPECT_TRUE(handle.requires_grad() && !handle.grad_fn());

  nn::Linear wide(2, 2);
  wide.to(f64);
  wide.load_state_dict(StateDict{{"weight", full({2, 2}, 0.5, bf16)}, {"bias", zeros({2})}});
  EXPECT_TRUE(equal(wide.weight, full({2, 2}, 0.5, f64)));
}

TEST(Module, LoadingSaysAllThatIsWrongAndWritesNothing) {
  Mlp net(2, 3);
  const std::vector<double> before = to_vector(net.up.bias);
  const StateDict wrong{{"up.weight", zeros({2, 3})},
                        {"up.bias", zeros({3})},
                        {"up.scale", zeros({1})},
                        {"head", zeros({1})}};
  EXPECT_EQ(error([&] { net.load_state_dict(wrong); }),
            "the state does not fit the module: up.weight must have shape [3, 2], got [2, 3]; "
            "missing: down.weight, down.bias; unexpected: head, up.scale");
  EXPECT_EQ(to_vector(net.up.bias), before);
  EXPECT_EQ(error([&] { net.load_state_dict(wrong, {.strict = false}); }),
            "the state does not fit the module: up.weight must have shape [3, 2], got [2, 3]");
  EXPECT_EQ(error([&] { net.load_state_dict(StateDict{{"x", zeros({1})}, {"x", zeros({1})}}); }),
            "the state to load has 'x' twice");

  const nn::LoadReport report = net.load_state_dict(
      StateDict{{"up.bias", ones({3})}, {"more", ones({1})}}, {.strict = false});
  EXPECT_EQ(report.missing, (Names{"up.weight", "down.weight", "down.bias"}));
  EXPECT_EQ(report.unexpected, Names{"more"});
  EXPECT_TRUE(equal(net.up.bias, ones({3})));
}

struct Holder : nn::Module<Holder> {
  nn::Linear fc{2, 3};
  MIXTAPE_FIELDS(fc)
};
TEST(Module, LoadingSaysHowNamesDiffer) {
  Mlp net(2, 3);
  const auto renamed = [&](const std::function<std::string(const std::string&)>& rename) {
    StateDict state;
    for (const auto& [name, t] : net.state_dict()) state.emplace_back(rename(name), t);
    state.emplace_back("optimizer.lr", zeros({1}));
    return error([&] { net.load_state_dict(state); });
  };
  const std::string begin = "the state does not fit the module: its names ";
  EXPECT_EQ(renamed([](const auto& name) { return "module." + name; }),
            begin + "begin with \"module.\": load state.under(\"module.\")");
  EXPECT_EQ(renamed([](const auto& name) { return "module._orig_mod." + name; }),
            begin + "begin with \"module._orig_mod.\": load state.under(\"module._orig_mod.\")");
  EXPECT_EQ(renamed([](std::string name) { return name.insert(name.find('.') + 1, "_orig_mod."); }),
            begin + "have \"_orig_mod.\" in them: erase it from each");
  EXPECT_NE(renamed([](const auto& name) { return name + "_"; }).find("missing: up.weight, "),
            std::string::npos);
  StateDict inner{{"weight", zeros({3, 2})}, {"bias", zeros({3})}};
  EXPECT_EQ(error([&] { Holder().load_state_dict(inner); }),
            begin + "lack \"fc.\": load all, after StateDict all; all.add(\"fc.\", state)");
  StateDict many;
  for (int i = 0; i < 13; ++i) many.emplace_back(fmt::format("x{}", i), zeros({1}));
  EXPECT_NE(error([&] { net.load_state_dict(many); }).find("x5, x6 and 3 more"), std::string::npos);
}

struct Positions : nn::Module<Positions> {
  nn::Linear layer{2, 2};
  nn::UnsavedBuffer table = arange(0, 4, 1, f32);
  std::vector<nn::UnsavedBuffer> more{zeros({1}), zeros({2})};
  MIXTAPE_FIELDS(layer, table, more)
};
struct Rotary : nn::Module<Rotary> {
  nn::KeepsF32<nn::UnsavedBuffer> cosines = cos(arange(1000, 1008, 1, f32));
  std::optional<nn::KeepsF32<nn::Buffer>> kept, none;
  nn::Buffer plain = ones({2});
  nn::KeepsF32<nn::Buffer> empty;
  Rotary() { kept = nn::KeepsF32<nn::Buffer>(full({3}, 1.001)); }
  Tensor forward(const Tensor& x) const { return (x.to(f32) * cosines).to(x.dtype()); }
  MIXTAPE_FIELDS(cosines, kept, none, plain, empty)
};

TEST(Module, BuffersMayStayF32) {
  Rotary rotary;
  const Tensor before = rotary.cosines.clone();
  rotary.to(bf16);
  EXPECT_EQ(rotary.cosines.dtype(), f32);
  EXPECT_EQ(rotary.kept->dtype(), f32);
  EXPECT_EQ(rotary.plain.dtype(), bf16);
  EXPECT_TRUE(equal(rotary.cosines, before));
  EXPECT_EQ(rotary(ones({8}, bf16)).dtype(), bf16);
  EXPECT_EQ(rotary.clone().cosines.dtype(), f32);
  EXPECT_EQ(rotary.state_dict().size(), 2u);  // kept and plain
  EXPECT_EQ(rotary.named_buffers().size(), 3u);
  rotary.to(f64);
  EXPECT_EQ(rotary.cosines.dtype(), f64);
  rotary.to(f16);
  EXPECT_EQ(rotary.cosines.dtype(), f32);
}

template <bool norm_first>
struct SharesBias : nn::Module<SharesBias<norm_first>> {
  nn::LayerNorm norm{{2}};
  nn::Linear linear{2, 2};
  SharesBias() { linear.bias = norm.bias; }
  MIXTAPE_FIELDS(linear, norm)
};
template <>
struct SharesBias<true> : nn::Module<SharesBias<true>> {
  nn::LayerNorm norm{{2}};
  nn::Linear linear{2, 2};
  SharesBias() { linear.bias = norm.bias; }
  MIXTAPE_FIELDS(norm, linear)
};

TEST(Module, ATensorStaysF32IfOneOfItsModulesKeepsIt) {
  const auto check = [](auto net) {
    net.to(f16);
    EXPECT_EQ(net.norm.bias.dtype(), f32);
    EXPECT_TRUE(net.linear.bias.is_same(net.norm.bias));
    EXPECT_EQ(net.linear.weight.dtype(), f16);
    net.to(f64);
    EXPECT_EQ(net.norm.bias.dtype(), f64);
  };
  check(SharesBias<false>());
  check(SharesBias<true>());
}

TEST(Module, UnsavedBuffersMoveButAreInNoState) {
  Positions net;
  const Names saved{"layer.weight", "layer.bias"};
  EXPECT_EQ(names(net.state_dict()), saved);
  EXPECT_EQ(names(net.named_parameters()), saved);
  EXPECT_EQ(names(net.named_buffers()), (Names{"table", "more.0", "more.1"}));
  StateDict state = net.state_dict();
  EXPECT_TRUE(net.load_state_dict(state).missing.empty());
  state.emplace_back("table", zeros({4}));
  EXPECT_EQ(error([&] { net.load_state_dict(state); }),
            "the state does not fit the module: unexpected: table");
  net.load_state_dict(state, {.strict = false});
  EXPECT_EQ(net.table.at(3), 3);

  EXPECT_NE(net.clone().table.storage(), net.table.storage());
  net.to(f16);
  EXPECT_EQ(net.table.dtype(), f16);
  net.table = arange(0, 8, 1, f32);
  EXPECT_EQ(names(net.state_dict()), saved) << "whatever it is assigned";
}

TEST(Module, LoadsAStateFromBeforeBatchesWereCounted) {
  nn::Sequential net(nn::Linear(2, 3), nn::BatchNorm1d(3));
  StateDict old = nn::Sequential(nn::Linear(2, 3), nn::BatchNorm1d(3)).state_dict();
  std::erase_if(old, [](auto& entry) { return entry.first == "1.num_batches_tracked"; });
  EXPECT_TRUE(net.load_state_dict(old).missing.empty());
  EXPECT_TRUE(equal(net.state_dict().at("0.weight"), old.at("0.weight")));
  std::erase_if(old, [](auto& entry) { return entry.first == "1.running_var"; });
  EXPECT_ERROR(net.load_state_dict(old), "missing: 1.running_var");
}

TEST(Module, LoadsItsOwnTensorsInAnotherOrder) {
  nn::Sequential net(nn::PReLU(1, 1), nn::PReLU(1, 2));
  const StateDict state = net.state_dict();
  net.load_state_dict(StateDict{{"0.weight", state[1].second}, {"1.weight", state[0].second}});
  EXPECT_EQ(state[0].second.item(), 2);
  EXPECT_EQ(state[1].second.item(), 1);
}

struct Repeating : nn::Module<Repeating> {
  nn::Linear layer{1, 1};
  nn::Buffer scale = expand(ones({1}), {3});
  MIXTAPE_FIELDS(layer, scale)
};
TEST(Module, LoadingRefusesWhatExpandMadeBeforeItWrites) {
  Repeating net;
  const double before = net.layer.bias.item();
  EXPECT_EQ(
      error([&] {
        net.load_state_dict(StateDict{
            {"layer.weight", ones({1, 1})}, {"layer.bias", full({1}, 7)}, {"scale", ones({3})}});
      }),
      "the state does not fit the module: scale has shape [3] and strides [0], where "
      "elements are one");
  EXPECT_EQ(net.layer.bias.item(), before);
}

TEST(Module, CopyingIsCalledClone) {
  Mlp net(2, 3);
  EXPECT_EQ(
      error([&] { Mlp copy(net); }),
      "modules are not copied (they would share parameters): std::move, std::ref or clone() it");
  EXPECT_EQ(error([&] { nn::Sequential copy(nn::Sequential(nn::ReLU()).clone()); }), "no error");

  Zoo<Block> zoo;
  zoo.any = nn::Sequential(nn::Linear(2, 2), nn::Dropout());
  zoo.eval();
  zoo.loose[1].set_requires_grad(false);
  Zoo<Block> copy = zoo.clone();
  EXPECT_EQ(names(copy.state_dict()), names(zoo.state_dict()));
  EXPECT_FALSE(copy.is_training() || copy.grid[1][0].mlp.is_training());
  EXPECT_TRUE(copy.scale.is_leaf() && !copy.loose[1].requires_grad() &&
              !copy.count.requires_grad());
  const Tensor x = randn({3, 2});
  EXPECT_TRUE(equal(zoo(x), copy(x)));
  for (const Tensor& p : copy.parameters()) nn::init::constant_(p, 9);
  EXPECT_FALSE(equal(zoo(x), copy(x)));
  EXPECT_EQ(zoo.scale.at(0), 1);

  nn::Any any = nn::Linear(1, 1);
  const nn::Any second = any.clone();
  EXPECT_NE(any.get<nn::Linear>().weight.storage(), second.get<nn::Linear>().weight.storage());
}

TEST(Module, HandlesOutliveMovesAndConversions) {
  Mlp net(2, 3);
  const std::vector<Tensor> held = net.parameters();  // like an optimizer
  Mlp moved = std::move(net);
  moved.to(f64);
  EXPECT_TRUE(held[0].is_same(moved.up.weight));
  EXPECT_EQ(held[0].dtype(), f64);
  EXPECT_TRUE(held[0].is_leaf());
  std::vector<Mlp> list;
  list.push_back(std::move(moved));
  list.emplace_back(1, 1);  // moves the first
  EXPECT_TRUE(held[0].is_same(list[0].up.weight));
  list[1] = std::move(list[0]);
  EXPECT_TRUE(held[0].is_same(list[1].up.weight));
}

TEST(Module, ToDropsGradientsItConverts) {
  nn::Linear net(2, 2);
  Tensor loss = sum(net(ones({1, 2})));
  loss.backward();
  net.to(f32);
  EXPECT_TRUE(net.weight.grad());
  net.to(DefaultDevice::current());
  EXPECT_TRUE(net.weight.grad());
  net.to(f64);
  EXPECT_FALSE(net.weight.grad());
  sum(net(ones({1, 2}, f64))).backward();  // while the old graph is alive
  EXPECT_EQ(net.weight.grad().dtype(), f64);
  EXPECT_EQ(error([&] { net.to(i64); }), "parameters cannot be i64");
}

TEST(Module, GradientsOfAnOlderGraphFitWhatItWasConvertedTo) {
  nn::Linear net(2, 2);
  const Tensor loss = sum(net.bias + 1);
  net.to(f16);
  loss.backward({.retain_graph = true});
  EXPECT_EQ(net.bias.grad().dtype(), f16);
}

TEST(Module, NormalisationStaysWide) {
  nn::Sequential net(nn::Conv2d(1, 2, 3), nn::BatchNorm2d(2), nn::Flatten(), nn::LayerNorm(8),
                     nn::Linear(8, 2));
  net.to(f16);
  for (const auto& [name, t] : net.state_dict())
    EXPECT_EQ(t.dtype(), name == "1.num_batches_tracked"    ? i64
                         : name[0] == '1' || name[0] == '3' ? f32
                                                            : f16)
        << name;
  EXPECT_EQ(net(randn({2, 1, 4, 4}, f16)).dtype(), f16);
  net.to(f64);
  for (const Tensor& t : net.parameters()) EXPECT_EQ(t.dtype(), f64);
  net.to(bf16);
  EXPECT_EQ(net[1].get<nn::BatchNorm2d>().running_var.dtype(), f32);
}

TEST(Module, TrainingModeAndGradientsReachEverything) {
  Zoo<Block> zoo;
  EXPECT_TRUE(zoo.is_training() && zoo.grid[1][0].gate->is_training());
  zoo.eval();
  EXPECT_FALSE(zoo.is_training() || zoo.grid[1][0].gate->is_training());
  zoo.train();
  EXPECT_TRUE(zoo.grid[1][0].mlp.down.is_training());

  sum(zoo(ones({1, 2}))).backward();
  EXPECT_TRUE(zoo.scale.grad() && zoo.grid[1][0].mlp.up.weight.grad());
  zoo.zero_grad();
  EXPECT_FALSE(zoo.scale.grad() || zoo.grid[1][0].mlp.up.weight.grad());
  zoo.requires_grad_(false);
  EXPECT_FALSE(zoo(ones({1, 2})).requires_grad());
  zoo.requires_grad_();
  EXPECT_TRUE(zoo(ones({1, 2})).requires_grad());
  EXPECT_FALSE(zoo.count.requires_grad());
}

// Throws on demand, to show its path.
struct Probe : nn::Module<Probe> {
  Tensor weight = nn::parameter(ones({2, 1}));
  Tensor forward(const Tensor& x) const { return matmul(x, weight); }
  MIXTAPE_FIELDS(weight)
};
struct Layer : nn::Module<Layer> {
  Probe mlp;
  Tensor forward(const Tensor& x) const { return mlp(x); }
  MIXTAPE_FIELDS(mlp)
};
struct Stack : nn::Module<Stack> {
  std::vector<Layer> decoder;
  Probe hidden;  // not a field
  explicit Stack(size_t n) : decoder(n) {}
  Tensor forward(const Tensor& x, size_t which) const {
    return which < decoder.size() ? decoder[which](x) : hidden(x);
  }
  MIXTAPE_FIELDS(decoder)
};

// Modules by name, like a ModuleDict.
struct Heads : nn::Module<Heads> {
  std::map<std::string, Probe> heads;
  MIXTAPE_FIELDS(heads)
};

TEST(Fields, OfAMapAreNamedByItsKeys) {
  Heads net;
  net.heads["text"];
  net.heads["image"];
  std::vector<std::string> names;
  for (const auto& [name, t] : net.named_parameters()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"heads.image.weight", "heads.text.weight"}));
  EXPECT_FALSE(net.clone().heads.at("text").weight.is_same(net.heads.at("text").weight));
}
struct Heir : Heads {};
static_assert(nn::is_heir<Heir> && !nn::is_heir<Heads> && !nn::is_heir<nn::BatchNorm2d>,
              "called and cloned as Heads");
static_assert(!std::is_constructible_v<nn::Sequential, nn::Linear&, nn::ReLU>,
              "moved in, or cloned");

const std::string misfit = "matmul: inner dimensions differ: 3 and 2 (of [1, 3] and [2, 1])";

TEST(Path, StartsAtTheOutermostModule) {
  const Stack net(4);
  const Tensor x = ones({1, 3});
  EXPECT_EQ(error([&] { net(x, 3); }), "decoder.3.mlp: " + misfit);
  EXPECT_EQ(error([&] { net(x, 0); }), "decoder.0.mlp: " + misfit);
  EXPECT_EQ(error([&] { net.decoder[3](x); }), "mlp: " + misfit) << "now the layer is the root";
  EXPECT_EQ(error([&] { net.decoder[3].mlp(x); }), "Probe: " + misfit) << "by its type";
  EXPECT_EQ(error([&] { net(x, 3); }), "decoder.3.mlp: " + misfit);
  {
    const NoGrad off;
    EXPECT_EQ(error([&] { net(x, 9); }), "Stack: " + misfit) << "no field, no path";
  }
  EXPECT_EQ(Scope::innermost(), nullptr) << "errors close their scopes";
}

TEST(Path, FollowsMoves) {
  Stack net(2);
  const Tensor x = ones({1, 3});
  EXPECT_EQ(error([&] { net(x, 1); }), "decoder.1.mlp: " + misfit);
  net.decoder.erase(net.decoder.begin());
  EXPECT_EQ(error([&] { net(x, 0); }), "decoder.0.mlp: " + misfit);
  net.decoder.resize(9);
  EXPECT_EQ(error([&] { net(x, 8); }), "decoder.8.mlp: " + misfit);
  Stack moved = std::move(net);
  EXPECT_EQ(error([&] { moved(x, 7); }), "decoder.7.mlp: " + misfit);
  Layer taken = std::move(moved.decoder[7]);
  EXPECT_EQ(error([&] { taken(x); }), "mlp: " + misfit);
  nn::Sequential row(nn::Identity(), std::move(taken));
  EXPECT_EQ(error([&] { row(x); }), "1.mlp: " + misfit);
  std::swap(row[0], row[1]);
  EXPECT_EQ(error([&] { row(x); }), "0.mlp: " + misfit);
  nn::Any held = std::move(row[0]);
  row[0] = nn::Identity();
  row.push_back(std::move(held));
  EXPECT_EQ(error([&] { row(x); }), "2.mlp: " + misfit);
}

TEST(Path, IsInternedAndKeptForBackward) {
  const Stack net(2);
  const Tensor y = net(ones({1, 2}), 1);
  EXPECT_EQ(y.grad_fn()->module, intern("decoder.1.mlp"));
}

TEST(Sequential, TakesFunctionsAmongItsModules) {
  const nn::Sequential net(nn::Linear(3, 4),
                           nn::Functional([](const Tensor& x) { return x * 2.0; }),
                           nn::Functional(relu));
  const Tensor x = ones({2, 3});
  EXPECT_EQ(to_vector(net(x)), to_vector(relu(net[0](x) * 2.0)));
  EXPECT_EQ(net.named_parameters().size(), 2u);
  EXPECT_EQ(to_vector(net.clone()(x)), to_vector(net(x)));
  EXPECT_EQ(error([] { nn::Functional(nullptr); }), "Functional without a function");
}

TEST(Sequential, MakesModulesOfFunctions) {
  const auto twice = [](const Tensor& x) { return x * 2.0; };
  nn::Sequential net(nn::Linear(3, 4), twice, relu, [](const Tensor& x) { return x > 1; });
  net.push_back([](Tensor x) { return x.to(f32); });
  net.append(nn::ReLU());
  const Tensor x = ones({2, 3});
  EXPECT_EQ(to_vector(net(x)), to_vector((relu(net[0](x) * 2.0) > 1).to(f32)));
  EXPECT_EQ(net.named_parameters().size(), 2u);
  EXPECT_EQ(to_vector(net.clone()(x)), to_vector(net(x)));
  EXPECT_EQ(nn::Sequential([](const auto& t) { return t + 1.0; })(x).at(0), 2);
  EXPECT_EQ(net[2].module()->named_modules().size(), 1u);
  EXPECT_EQ(error([&] { net(x.to(boolean)); }).substr(0, 3), "0: ");
  static_assert(!std::is_constructible_v<nn::Any, std::nullptr_t> &&
                !std::is_constructible_v<nn::Any, double (*)(double)> &&
                !std::is_constructible_v<nn::Any, nn::LSTM>);
}

TEST(Sequential, IsMadeOfAnyModules) {
  nn::Sequential net(nn::Linear(3, 4), nn::ReLU());
  net.push_back(nn::Sequential(nn::Linear(4, 4), nn::Tanh()));
  net.push_back(Mlp(4, 2));
  EXPECT_EQ(net.size(), 4u);
  EXPECT_EQ(names(net.named_parameters()),
            (Names{"0.weight", "0.bias", "2.0.weight", "2.0.bias", "3.up.weight", "3.up.bias",
                   "3.down.weight", "3.down.bias"}));
  const Tensor x = randn({2, 3});
  const auto& first = net[0].get<nn::Linear>();
  const auto& inner = net[2].get<nn::Sequential>()[0].get<nn::Linear>();
  const Tensor h =
      tanh(linear(relu(linear(x, first.weight, first.bias)), inner.weight, inner.bias));
  EXPECT_TRUE(equal(net(x), net[3](h)));

  EXPECT_EQ(error([&] { net[1].get<nn::Linear>(); }), "the module is ReLU, not Linear");
  EXPECT_EQ(error([&] { net[4]; }), "module 4 is out of range for 4 modules");
  EXPECT_EQ(error([&] { nn::Any()(x); }), "called an empty Any");
  EXPECT_EQ(error([&] { nn::Any().get<Mlp>(); }), "the module is absent, not Mlp");
}

TEST(ModuleList, HoldsModulesForAForwardOfYourOwn) {
  nn::ModuleList list;
  for (int i = 0; i < 3; ++i) list.push_back(nn::Linear(2, 2, {.bias = false}));
  EXPECT_EQ(names(list.state_dict()), (Names{"0.weight", "1.weight", "2.weight"}));
  Tensor x = ones({1, 2});
  for (const nn::Any& layer : list) x = layer(x);
  EXPECT_EQ(x.shape(), (Shape{1, 2}));
}

std::string name_of_a_local_class(const std::vector<nn::Linear>&) {
  struct Local : nn::Module<Local> {
    MIXTAPE_FIELDS()
  };
  return nn::type_name(typeid(Local));
}
TEST(Summary, NamesTypesWithoutWhereTheyAre) {
  EXPECT_EQ(nn::type_name(typeid(nn::Linear)), "Linear");
  EXPECT_EQ(nn::type_name(typeid(nn::WeightNorm<nn::Linear>)), "WeightNorm<mixtape::nn::Linear>");
  EXPECT_EQ(name_of_a_local_class({}), "Local");
}

TEST(Summary, ListsModulesShapesAndParameters) {
  nn::Sequential net(nn::Conv2d(1, 8, 3), nn::BatchNorm2d(8), nn::ReLU(), nn::MaxPool2d(2),
                     nn::Flatten(), nn::Linear(1352, 10));
  net[2].module()->eval();
  net[5].get<nn::Linear>().bias.set_requires_grad(false);
  EXPECT_EQ(nn::summary(net, zeros({2, 1, 28, 28})),
            "module  type         output          parameters\n"
            "-----------------------------------------------\n"
            "        Sequential   [2, 10]                   \n"
            "0       Conv2d       [2, 8, 26, 26]          80\n"
            "1       BatchNorm2d  [2, 8, 26, 26]          16\n"
            "2       ReLU         [2, 8, 26, 26]            \n"
            "3       MaxPool2d    [2, 8, 13, 13]            \n"
            "4       Flatten      [2, 1352]                 \n"
            "5       Linear       [2, 10]             13,530\n"
            "-----------------------------------------------\n"
            "13,626 parameters, 13,616 trainable, 53.3 KiB with buffers\n");
  EXPECT_TRUE(net.is_training() && net[1].module()->is_training());
  EXPECT_FALSE(net[2].module()->is_training());
  EXPECT_EQ(net[1].get<nn::BatchNorm2d>().num_batches_tracked.item(), 0)
      << "ran in evaluation mode";

  Tied tied;
  EXPECT_NE(nn::summary(tied, from({1}, {1}, i64))
                .find("15 parameters, 15 trainable, 60 bytes with buffers"),
            std::string::npos);
}

}  // namespace nn_test
}  // namespace mixtape
