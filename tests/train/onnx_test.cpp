// ONNX: the bytes of the format, read here by its description; graphs of models and of single ops,
// whose results in onnxruntime are ours.

#include "train/onnx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <set>

#include "amp/autocast.h"
#include "io/onnx.h"
#include "io/safetensors.h"
#include "nn/activation.h"
#include "nn/models/by_name.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/models/lstm.h"
#include "nn/models/resnet.h"
#include "nn/models/resnet_v2.h"
#include "nn/models/unet.h"
#include "nn/models/vgg.h"
#include "nn/more.h"
#include "nn/rnn.h"
#include "nn/transformer.h"
#include "tests/support/data.h"
#include "tests/support/errors.h"
#include "tests/support/onnx.h"
#include "tests/support/op_cases.h"
#include "tests/support/op_rows/rows.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace mixtape::train {
namespace onnx_test {

using test::error;
using test::slurp;
using test::TempFolder;

// --- as onnxruntime runs them ---

// A folder of models beside inputs and outputs, for onnx_check.py.
class Exported {
 public:
  static bool can_check() { return test::python("import onnx, onnxruntime, ml_dtypes"); }

  // Writes what `save` writes, and what `run` makes of these inputs.
  void add(const std::string& name, const std::function<void(const std::string& path)>& save,
           const detail::OnnxRun& run, const std::vector<nn::Tensors>& inputs) {
    save(folder_ / name + ".onnx");
    const NoGrad off;
    for (size_t k = 0; k < inputs.size(); ++k) {
      StateDict all;
      add_all(all, "in:input", inputs[k]);
      add_all(all, "out:output", run(inputs[k]));
      io::save(fmt::format("{}.{}.safetensors", folder_ / name, k), all);
    }
  }
  // A network in f32, and under autocast to f16 and bf16, with batches of two sizes.
  template <class M>
  void add_net(const std::string& name, M net, const std::vector<Tensor>& batches,
               const OnnxOptions& o = {}) {
    const detail::OnnxRun run = [&](const nn::Tensors& x) {
      auto y = net(x[0]);
      nn::Tensors all;
      nn::for_each_tensor(y, [&](const Tensor& t) { all.push_back(t); });
      return all;
    };
    const auto save = [&](const std::string& path) { save_onnx(path, net, {batches[0]}, o); };
    if constexpr (requires { net.eval(); })
      net.eval();
    else
      net.module()->eval();
    std::vector<nn::Tensors> inputs;
    for (const Tensor& x : batches) inputs.push_back({x});
    add(name + "_f32", save, run, inputs);
    for (const DType low : {f16, bf16}) {
      const amp::Autocast on({.low = low});
      add(fmt::format("{}_{}", name, low), save, run, inputs);
    }
  }
  // Problems, one line a model.
  std::string problems() const {
    const bool good = test::python_script(test::data_file("onnx_check.py"), folder_.path());
    const std::string all = slurp(folder_ / "problems");
    return good || !all.empty() ? all : "the script failed";
  }

 private:
  static void add_all(StateDict& to, const std::string& name, const nn::Tensors& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i)
      to.emplace_back(tensors.size() == 1 ? name : fmt::format("{}_{}", name, i),
                      tensors[i].contiguous());
  }

  TempFolder folder_;
};
#define SKIP_WITHOUT_ONNX()                                                                      \
  if (!Exported::can_check())                                                                    \
  GTEST_SKIP() << "needs Python with onnx, onnxruntime and ml_dtypes (MIXTAPE_PYTHON names the " \
                  "interpreter)"

std::vector<Tensor> images(int64_t channels, int64_t pixels) {
  return {randn({2, channels, pixels, pixels}), randn({5, channels, pixels, pixels})};
}
std::vector<Tensor> texts(int64_t vocabulary, int64_t t) {
  return {randint(0, vocabulary, {2, t}), randint(0, vocabulary, {3, t})};
}

constexpr models::GptConfig tiny_gpt{
    .vocabulary = 50, .context = 16, .layers = 2, .heads = 2, .width = 16};
constexpr models::LlamaConfig tiny_llama{.vocabulary = 50,
                                         .context = 16,
                                         .layers = 2,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .width = 16,
                                         .hidden = 24};

TEST(Onnx, ModelsOfImagesRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const Seed seed(1);
  Exported all;
  for (const char* name : {"simple", "resnet20"})
    all.add_net(name, models::get(name, {.classes = 3}), images(3, 32));
  all.add_net("resnet18", models::resnet18({.num_classes = 3, .width = 4}), images(3, 32));
  all.add_net("resnet50", models::resnet50({.num_classes = 3, .width = 4}), images(3, 32));
  all.add_net("cifar_padded",
              models::CifarResNet({.depth = 8, .shortcut = models::Shortcut::Pad, .width = 4}),
              images(3, 16));
  all.add_net("resnet_v2", models::ResNetV2({1, 2, 1, 1}, true, {.num_classes = 3, .width = 4}),
              images(3, 32));
  all.add_net("vgg", models::Vgg(11, {.num_classes = 3, .width = 4, .hidden = 8}), images(3, 32));
  all.add_net("vgg_norm",
              models::Vgg(11, {.num_classes = 3, .batch_norm = true, .width = 4, .hidden = 8}),
              images(3, 32));
  all.add_net("unet", models::UNet({.width = 4}), images(3, 24));
  EXPECT_EQ(all.problems(), "");
}

TEST(Onnx, ModelsOfTextsRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const Seed seed(2);
  Exported all;
  for (const int opset : {18, 20, 23}) {
    all.add_net(fmt::format("gpt_{}", opset), models::Gpt(tiny_gpt), texts(50, 7),
                {.opset = opset});
    all.add_net(fmt::format("llama_{}", opset), models::Llama(tiny_llama), texts(50, 7),
                {.opset = opset});
  }
  models::LlamaConfig tied = tiny_llama;
  tied.tie_weights = true;
  tied.kv_heads = 4;
  all.add_net("llama_tied", models::Llama(tied), texts(50, 7));
  all.add_net("lstm", models::LstmClassifier(30, 3, {.embedding = 6, .hidden = 5, .num_layers = 2}),
              texts(30, 6));
  all.add_net("lstm_both",
              models::LstmClassifier(30, 3, {.embedding = 6, .hidden = 5, .bidirectional = true}),
              texts(30, 6));
  all.add_net("lstm_language",
              models::LstmLanguageModel(30, {.embedding = 6, .hidden = 6, .tie_weights = true}),
              texts(30, 6));
  EXPECT_EQ(all.problems(), "");
}

TEST(Onnx, RecurrentLayersRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const Seed seed(3);
  const std::vector<Tensor> batches{randn({2, 6, 4}), randn({3, 6, 4})};
  Exported all;
  for (const bool bias : {true, false}) {
    const nn::RecurrentLayerOptions o{.bias = bias, .batch_first = true, .bidirectional = true};
    all.add_net(fmt::format("gru_{}", bias), nn::GRU(4, 5, o), batches);
    all.add_net(fmt::format("lstm_{}", bias), nn::LSTM(4, 5, o), batches);
    all.add_net(fmt::format("tanh_{}", bias), nn::RNN(4, 5, o), batches);
    all.add_net(fmt::format("relu_{}", bias), nn::RNN(4, 5, o, nn::Nonlinearity::Relu), batches);
  }
  for (const bool both : {true, false}) {  // layers [t, b, ...], for any number of steps
    const nn::RecurrentLayerOptions o{.num_layers = 2, .bidirectional = both};
    all.add_net(fmt::format("gru_steps_{}", both), nn::GRU(4, 5, o), batches);
    all.add_net(fmt::format("lstm_steps_{}", both), nn::LSTM(4, 5, o), batches);
    all.add_net(fmt::format("tanh_steps_{}", both), nn::RNN(4, 5, o), batches);
  }
  EXPECT_EQ(all.problems(), "");
}

// With two inputs, one of them without a batch.
TEST(Onnx, SeveralInputsRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const Seed seed(4);
  struct Masked : nn::Module<Masked> {
    nn::TransformerDecoderLayer layer{
        8, 2, {.dim_feedforward = 16, .batch_first = true, .norm_first = true}};
    Tensor forward(const Tensor& x, const Tensor& memory, const Tensor& mask) const {
      return layer(x, memory, nn::AttentionMasks{.attn_mask = mask});
    }
    MIXTAPE_FIELDS(layer)
  } net;
  net.eval();
  const Tensor mask = lt(arange(0, 5, 1, i64), unsqueeze(arange(0, 5, 1, i64), 1));
  const detail::OnnxRun run = [&](const nn::Tensors& x) -> nn::Tensors {
    return {net(x[0], x[1], x[2])};
  };
  const auto inputs = [&](int64_t b) {
    return nn::Tensors{randn({b, 5, 8}), randn({b, 4, 8}), mask};
  };
  const std::vector<nn::Tensors> batches{inputs(2), inputs(3)};
  const auto save = [&](const std::string& path) {
    save_onnx(path, net, {batches[0][0], batches[0][1], batches[0][2]});
  };
  Exported all;
  all.add("f32", save, run, batches);
  const amp::Autocast on({.low = bf16});
  all.add("bf16", save, run, batches);
  EXPECT_EQ(all.problems(), "");
}

// A module of a call of ops.
struct Calls : nn::Module<Calls> {
  std::function<Tensor(const Tensor&)> f;
  explicit Calls(std::function<Tensor(const Tensor&)> f) : f(std::move(f)) {}
  Tensor forward(const Tensor& x) const { return f(x); }
  MIXTAPE_FIELDS()
};

TEST(Onnx, WindowsAndOrderRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const Seed seed(5);
  Exported all;
  all.add_net("columns",
              nn::Unfold({2, 3}, {.dilation = {1, 2}, .padding = {1, 2}, .stride = {2, 1}}),
              images(2, 7));
  all.add_net("largest", Calls([](const Tensor& x) { return topk(x, 3, 1).values; }), images(5, 2));
  all.add_net("smallest", Calls([](const Tensor& x) { return topk(x, 2, -1, false).indices; }),
              images(2, 5));
  all.add_net("sorted", Calls([](const Tensor& x) { return sort(x, 2, true).values; }),
              images(2, 5));
  all.add_net("sums", Calls([](const Tensor& x) {
                return cumprod(x, 1) + logcumsumexp(x, -1) + cumprod(x, 3);
              }),
              images(3, 4));
  all.add_net("diagonals", Calls([](const Tensor& x) {
                return cat({diagonal(x, -1, 2, 3), diagonal(x, 1, 2, 3), diagonal(x, 1, 3, 2)}, 2);
              }),
              images(2, 4));
  all.add_net("resized", Calls([](const Tensor& x) {
                return cat({interpolate(x, {.scale_factor = 1.3, .mode = Interpolation::Bilinear}),
                            interpolate(x, {.scale_factor = 1.3, .mode = Interpolation::Bicubic}),
                            interpolate(x, {.scale_factor = 1.3})},
                           1);
              }),
              images(2, 5));
  all.add_net("rolled", Calls([](const Tensor& x) { return roll(x, {1, -2}, {2, 3}); }),
              images(2, 5));
  const Tensor special = from({INFINITY, -INFINITY, 1, -2, 0, INFINITY, INFINITY, 3, -INFINITY,
                               -INFINITY, -INFINITY, -INFINITY},
                              {2, 6});
  all.add_net("angles", Calls([](const Tensor& x) { return atan2(x, roll(x, 1, 1)); }),
              {special, cat({special, special})});
  all.add_net("running", Calls([](const Tensor& x) {
                return stack({cummax(x, 1).indices, cummin(x, 1).indices}, 1);
              }),
              {special, cat({special, special})});
  for (const DType dtype : {i32, i64})
    all.add_net(fmt::format("shifted_{}", dtype), Calls([dtype](const Tensor& x) {
                  const Tensor i = x.to(dtype);
                  std::vector<Tensor> parts;
                  for (const double by : {0, 3, 31, 63, 70, -1}) {
                    parts.push_back(bitwise_left_shift(i, by));
                    parts.push_back(bitwise_right_shift(i, by));
                  }
                  return cat(parts, 1);
                }),
                {from({-9, 7, 0, 1000003}, {2, 2}), from({-1, 5, -800, 2, 3, 4}, {3, 2})});
  for (const DType dtype : {i32, i64})  // down to the smallest of all
    all.add_net(fmt::format("quotients_{}", dtype), Calls([dtype](const Tensor& x) {
                  const Tensor i = x.to(dtype);
                  std::vector<Tensor> parts;
                  for (const double by : {3, -3, 7, -2, 1}) parts.push_back(floor_divide(i, by));
                  return cat(parts, 1);
                }),
                {from({-std::exp2(8 * double(size_of(dtype)) - 1), 7, -7, 0}, {2, 2}),
                 from({-1, 5, -800, 2, 6, -6}, {3, 2})});
  EXPECT_EQ(all.problems(), "");
}

TEST(Onnx, AttentionToExpandedKeysRunsElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const Seed seed(6);
  Exported all;
  for (const Shape& given : {Shape{1, 1, 4}, Shape{1, 3, 1}, Shape{1, 3, 4}, Shape{3, 4}}) {
    const Tensor keys = randn(given);
    all.add_net(fmt::format("{}", fmt::join(given, "_")), Calls([keys](const Tensor& q) {
                  const Tensor all = expand(keys, {q.size(0), 3, 4});
                  return scaled_dot_product_attention(q, all, all * 2) +
                         scaled_dot_product_attention(q, all * 2, all);
                }),
                {randn({2, 5, 4}), randn({6, 5, 4})});
  }
  EXPECT_EQ(all.problems(), "");
}

TEST(Onnx, RemaindersRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const auto run = [](double b) {
    return Calls(
        [b](const Tensor& x) { return cat({remainder(x, b), remainder(x, full_like(x, -b))}, 1); });
  };
  const Tensor large = reshape(linspace(-1e6, 1e6, 1000), {10, 100});
  const Tensor few = from({-1, 1, 0, -0.0, 3, -3, 2, -2, 7, -7, 0.5, -0.5}, {2, 6});
  Exported all;
  for (const double b :
       {6.283185307179586, 0.1, 3.0, -3.0, 1.0, std::numeric_limits<double>::infinity()}) {
    all.add_net(fmt::format("large_{}", b), run(b), {large});
    all.add_net(fmt::format("few_{}", b), run(b), {few, cat({few, few})});
  }
  EXPECT_EQ(all.problems(), "");
}

TEST(Onnx, ImagesOfFactorsRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const Seed seed(7);
  Exported all;
  all.add_net("short",
              Calls([](const Tensor& x) { return interpolate(x, {.scale_factor = 0.29}); }),
              {randn({2, 1, 100, 200})});  // 28.999999999999996 rows
  for (const double factor : {0.7, 0.35, 1.3, 2.0})
    for (const auto mode :
         {Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic}) {
      const auto run = [&](bool corners) {
        return Calls([=](const Tensor& x) {
          return interpolate(x, {.scale_factor = factor, .mode = mode, .align_corners = corners});
        });
      };
      const std::string name = fmt::format("{}_{}", factor, int(mode));
      for (const int64_t pixels : {10, 20, 40})
        all.add_net(fmt::format("{}_{}", name, pixels), run(false),
                    {randn({2, 1, pixels, 13}), randn({3, 1, pixels, 13})});
      if (mode != Interpolation::Nearest)
        all.add_net(name + "_corners", run(true), {randn({2, 1, 10, 13}), randn({3, 1, 10, 13})});
    }
  EXPECT_EQ(all.problems(), "");
}

TEST(Onnx, MeansInF64RunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const Seed seed(8);
  Exported all;
  for (const int64_t size : {1, 4, 5})
    all.add_net(fmt::format("responses_{}", size),
                Calls([size](const Tensor& x) { return local_response_norm(x * 1e20, size); }),
                images(6, 5));
  all.add_net("pools", Calls([](const Tensor& given) {
                const Tensor x = given.to(f64);
                const std::vector<Tensor> means{
                    avg_pool2d(x, {3, 2}, {.stride = 2, .padding = {1, 0}}),
                    avg_pool2d(x, 3, {.padding = 1, .count_include_pad = false}),
                    avg_pool2d(x, {3, 2}, {.stride = 2, .divisor_override = 5}),
                    adaptive_avg_pool2d(x, 1),
                    adaptive_avg_pool2d(x, {3, 4}),
                    adaptive_avg_pool2d(x, 7)};
                std::vector<Tensor> flat;
                for (const Tensor& y : means) flat.push_back(flatten(y, 1));
                return cat(flat, 1);
              }),
              images(2, 7));
  EXPECT_EQ(all.problems(), "");
}

// Indices that ops computed, in one line or expanded to all.
TEST(Onnx, ComputedIndicesRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const Seed seed(9);
  const Tensor x = randn({1, 4});
  Exported all;
  all.add_net("one", Calls([](const Tensor& x) { return gather(x, 1, argsort(x, 1)); }), {x},
              {.dynamic_batch = false});
  all.add_net("scattered",
              Calls([](const Tensor& x) { return scatter_add(x, 1, argsort(x, 1), ones({1, 4})); }),
              {x}, {.dynamic_batch = false});
  all.add_net("all", Calls([](const Tensor& x) {
                return gather(x, 1, expand(argsort(sum(x, {0}, true), 1), x.shape()));
              }),
              {randn({3, 4}), randn({7, 4})});
  EXPECT_EQ(all.problems(), "");
}

// Each row of the catalogue whose ops have counterparts, in any dtype and with and without bf16 of
// ONNX.
TEST(Onnx, OpsRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  Exported all;
  std::set<std::string> exported;
  Calls net([](const Tensor& x) { return x; });
  const std::pair<DType, int> modes[] = {{f32, 18}, {f16, 18}, {bf16, 18}, {bf16, 22}};
  std::vector<tests::OpCase> rows = tests::composed();
  rows.insert(rows.end(), tests::op_cases().begin(), tests::op_cases().end());
  for (const tests::OpCase& c : rows)
    for (const std::pair<DType, int>& mode : modes) {
      const DType dtype = mode.first;
      if (dtype != f32 && !c.half) continue;
      const nn::Tensors inputs = tests::make_inputs(c, dtype, false);
      const detail::OnnxRun run = [&](const nn::Tensors& x) -> nn::Tensors { return {c.run(x)}; };
      const auto save = [&](const std::string& path) {
        detail::save_onnx(path, net, inputs, run, {.opset = mode.second, .dynamic_batch = false});
      };
      try {
        all.add(fmt::format("{}_{}_{}", c.name(), dtype, mode.second), save, run, {inputs});
        exported.insert(c.op);
      } catch (const Error& e) {
        const std::string text = e.what();  // some rows call gradients, which are not recorded here
        const auto has = [&](const char* reason) { return text.find(reason) != text.npos; };
        EXPECT_TRUE(has("ONNX") || has("without history") || has("an input was written to"))
            << c.name() << ": " << text;
      }
    }
  EXPECT_EQ(all.problems(), "");
  for (const char* op : {"argsort",
                         "atan2",
                         "bitwise_and",
                         "bitwise_left_shift",
                         "bitwise_right_shift_scalar",
                         "copysign",
                         "cummax",
                         "cummin",
                         "cumprod",
                         "det",
                         "diagonal",
                         "erfc",
                         "fmod",
                         "frac",
                         "logaddexp",
                         "logaddexp2",
                         "logcumsumexp",
                         "median",
                         "scatter",
                         "scatter_extremum",
                         "scatter_product",
                         "topk",
                         "unfold"})
    EXPECT_TRUE(exported.contains(op)) << op;
  EXPECT_GE(exported.size(), 120u);
}

// --- graphs ---

io::OnnxGraph graph_of(auto& net, const Tensor& x, const OnnxOptions& o = {}) {
  const TempFolder folder;
  save_onnx(folder / "x.onnx", net, {x}, o);
  return test::read_onnx(folder / "x.onnx");
}
std::string ops_of(const io::OnnxGraph& g) {
  std::string all;
  for (const io::OnnxNode& node : g.nodes) all += (all.empty() ? "" : " ") + node.op;
  return all;
}
std::string names_of(const StateDict& tensors) {
  std::string all;
  for (const auto& [name, t] : tensors)
    all += fmt::format("{}{} {} {}", all.empty() ? "" : ", ", name, t.dtype(), t.shape());
  return all;
}

struct Classifier : nn::Module<Classifier> {
  nn::Linear up{4, 8}, down{8, 3};
  Tensor forward(const Tensor& x) const { return softmax(down(relu(up(x)))); }
  MIXTAPE_FIELDS(up, down)
};

TEST(Onnx, GraphHasTheNetworksNamesAndAnyBatch) {
  Classifier net;
  const io::OnnxGraph g = graph_of(net, randn({1, 4}));
  EXPECT_EQ(g.name, "Classifier");
  EXPECT_EQ(g.opset, 18);
  EXPECT_EQ(ops_of(g), "Gemm Relu Gemm Softmax");
  EXPECT_EQ(names_of(g.initializers),
            "up.weight f32 [8, 4], up.bias f32 [8], down.weight f32 [3, 8], down.bias f32 [3]");
  EXPECT_EQ(to_vector(g.initializers[0].second), to_vector(net.up.weight));
  EXPECT_EQ(g.nodes[0].inputs, (std::vector<std::string>{"input", "up.weight", "up.bias"}));
  EXPECT_TRUE(g.nodes[2].outputs[0].starts_with("down/Gemm_")) << g.nodes[2].outputs[0];
  EXPECT_EQ(g.nodes[3].outputs[0], "output");
  using Size = std::variant<int64_t, std::string>;
  EXPECT_EQ(g.inputs[0].shape, (std::vector<Size>{"batch", int64_t{4}}));
  EXPECT_EQ(g.outputs[0].shape, (std::vector<Size>{"batch", int64_t{3}}));
  EXPECT_TRUE(net.is_training());

  const io::OnnxGraph fixed = graph_of(
      net, randn({5, 4}),
      {.opset = 21, .dynamic_batch = false, .inputs = {"x"}, .outputs = {"probabilities"}});
  EXPECT_EQ(fixed.opset, 21);
  EXPECT_EQ(fixed.inputs[0].name, "x");
  EXPECT_EQ(fixed.outputs[0].name, "probabilities");
  EXPECT_EQ(fixed.outputs[0].shape, (std::vector<Size>{int64_t{5}, int64_t{3}}));
}

TEST(Onnx, GraphHasOpsAfterOneThatThrew) {
  const Classifier net;
  Calls tries([&](const Tensor& x) {
    EXPECT_THROW(linear(x, ones({3, 5})), Error);
    return net(x);
  });
  EXPECT_EQ(ops_of(graph_of(tries, randn({2, 4}))), "Gemm Relu Gemm Softmax");
}

// Autocast puts casts before products, and keeps a softmax and an island in f32.
TEST(Onnx, GraphHasTheCastsOfAutocast) {
  Classifier net;
  const Tensor x = randn({2, 4});
  {
    const amp::Autocast on({.low = f16});
    const io::OnnxGraph g = graph_of(net, x);
    EXPECT_EQ(ops_of(g), "Cast Cast Cast Gemm Relu Cast Cast Gemm Cast Softmax");
    EXPECT_EQ(names_of(g.initializers).find("f16"), std::string::npos) << "weights stay f32";
    EXPECT_EQ(g.outputs[0].dtype, f32);
  }
  Calls island([&](const Tensor& in) {
    const Tensor h = net.up(in);
    const amp::Autocast off({.enabled = false});
    return net.down(cast(h, f32));
  });
  const amp::Autocast on({.low = bf16});
  EXPECT_EQ(ops_of(graph_of(island, x)), "Cast Cast Cast Gemm Cast Gemm");
  net.to(f16);
  const amp::Autocast off({.enabled = false});
  const io::OnnxGraph half = graph_of(net, x.to(f16));
  EXPECT_EQ(ops_of(half), "Gemm Relu Gemm Softmax");
  EXPECT_EQ(half.initializers[0].second.dtype(), f16);
  EXPECT_EQ(half.inputs[0].dtype, f16);
}

TEST(Onnx, TiedWeightsAreOne) {
  models::LlamaConfig tied = tiny_llama;
  tied.tie_weights = true;
  models::Llama net(tied);
  const std::string names = names_of(graph_of(net, randint(0, 50, {2, 5})).initializers);
  EXPECT_NE(names.find("model.embed_tokens.weight f32 [50, 16]"), names.npos) << names;
  EXPECT_EQ(names.find("[50, 16]"), names.rfind("[50, 16]"));
  EXPECT_NE(names.find("model.cosines f32"), names.npos) << "a buffer that no file has";
}

TEST(Onnx, LaterOpsetsHaveSingleOps) {
  Calls net([](const Tensor& x) { return gelu(rms_norm(x, {4})); });
  const Tensor x = randn({2, 4});
  EXPECT_EQ(ops_of(graph_of(net, x, {.opset = 23})), "RMSNormalization Gelu");
  EXPECT_EQ(ops_of(graph_of(net, x, {.opset = 20})), "Mul ReduceMean Add Sqrt Div Gelu");
  EXPECT_EQ(ops_of(graph_of(net, x, {.opset = 18})).find("Gelu"), std::string::npos);
  Calls sine([](const Tensor& t) { return sin(t); });  // of bf16 from opset 22 on
  EXPECT_EQ(ops_of(graph_of(sine, x.to(bf16), {.opset = 18})), "Cast Sin Cast");
  EXPECT_EQ(ops_of(graph_of(sine, x.to(bf16), {.opset = 22})), "Sin");
}

// All edges of a graph, as "op input input > output, ...".
std::string edges_of(const io::OnnxGraph& g) {
  std::string all;
  for (const io::OnnxNode& node : g.nodes)
    all += fmt::format("{}{} {} > {}", all.empty() ? "" : ", ", node.op,
                       fmt::join(node.inputs, " "), fmt::join(node.outputs, " "));
  return all;
}

// A module with a weight of any name, which no other value may have.
struct Named : nn::Module<Named> {
  std::string name;
  Tensor weight = nn::parameter(ones({4}));
  explicit Named(std::string n) : name(std::move(n)) {}
  Tensor forward(const Tensor& x) const {
    return cat({x * weight, expand(weight, {x.size(0), 4})}, 1);
  }
  void list_fields(nn::Fields& fields) override { fields.add(name, weight); }
};

TEST(Onnx, EachValueHasANameOfItsOwn) {
  const Tensor x = randn({3, 4});
  const auto problem = [&](const char* weight, const OnnxOptions& o) {
    Named net(weight);
    return test::error([&] { graph_of(net, x, o); });
  };
  const std::string reason = "since a weight, an input or an output has it: give another in";
  EXPECT_EQ(problem("input", {}),
            "an input cannot have the name \"input\", " + reason + " OnnxOptions::inputs");
  EXPECT_EQ(problem("output", {}),
            "an output cannot have the name \"output\", " + reason + " OnnxOptions::outputs");
  EXPECT_EQ(problem("w", {.inputs = {"w"}}),
            "an input cannot have the name \"w\", " + reason + " OnnxOptions::inputs");
  EXPECT_EQ(problem("w", {.inputs = {"x"}, .outputs = {"x"}}),
            "an output cannot have the name \"x\", " + reason + " OnnxOptions::outputs");
  EXPECT_EQ(problem("w", {.inputs = {""}}), "an input needs a name in UTF-8, got \"\"");
  EXPECT_EQ(problem("w", {.outputs = {"\xff"}}), "an output needs a name in UTF-8, got \"\uFFFD\"");
  EXPECT_EQ(problem("w", {.outputs = {"y", "z"}}), "1 outputs need as many names, got 2");
  const auto edges = [&](const char* weight, const OnnxOptions& o = {}) {
    Named net(weight);
    return edges_of(graph_of(net, x, o));
  };
  EXPECT_EQ(edges("input", {.inputs = {"x"}}),
            "Shape x > batch, Concat batch size_4 > Constant_3, Mul x input > Mul_2, "
            "Expand input Constant_3 > Expand_4, Concat Mul_2 Expand_4 > output");
  EXPECT_EQ(edges("Mul_2", {.inputs = {"batch"}, .outputs = {"Expand_5"}}),
            "Shape batch > batch_, Concat batch_ size_4 > Constant_4, Mul batch Mul_2 > Mul_3, "
            "Expand Mul_2 Constant_4 > Expand_6, Concat Mul_3 Expand_6 > Expand_5");
  EXPECT_EQ(edges("size_4"),
            "Shape input > batch, Concat batch size_4_ > Constant_3, Mul input size_4 > Mul_2, "
            "Expand size_4 Constant_3 > Expand_4, Concat Mul_2 Expand_4 > output");
}

TEST(Onnx, InputsMayBeOneTensorOrAWeight) {
  struct Difference : nn::Module<Difference> {
    Tensor forward(const Tensor& a, const Tensor& b) const { return a - b; }
    MIXTAPE_FIELDS()
  } net;
  const Tensor x = randn({4});
  const TempFolder folder;
  save_onnx(folder / "x.onnx", net, {x, x}, {.dynamic_batch = false});
  EXPECT_EQ(edges_of(test::read_onnx(folder / "x.onnx")), "Sub input_0 input_1 > output");
  nn::Linear layer(4, 4, {.bias = false});
  EXPECT_EQ(edges_of(graph_of(layer, layer.weight, {.dynamic_batch = false})),
            "Gemm input weight > output");
}

// A layer's input and output, of which `make` builds the result.
template <class Make>
struct Results : nn::Module<Results<Make>> {
  nn::Linear layer{4, 3, {.bias = false}};
  Make make;
  explicit Results(Make m) : make(std::move(m)) {}
  auto forward(const Tensor& x) const { return make(x, layer(x)); }
  MIXTAPE_FIELDS(layer)
};

TEST(Onnx, ResultsMayBeSeveralAndTheSame) {
  const auto edges = [](auto make) {
    Results<decltype(make)> net(make);
    return edges_of(graph_of(net, ones({3, 4})));
  };
  const std::string both = "Gemm input layer.weight > output_0, Relu output_0 > output_1";
  EXPECT_EQ(edges([](const Tensor&, const Tensor& y) { return std::pair(y, relu(y)); }), both);
  EXPECT_EQ(edges([](const Tensor&, const Tensor& y) { return std::tuple(y, 1, relu(y)); }), both);
  EXPECT_EQ(edges([](const Tensor&, const Tensor& y) { return std::array{y, relu(y)}; }), both);
  EXPECT_EQ(edges([](const Tensor&, const Tensor& y) {
              return std::vector<nn::Tensors>{{y}, {relu(y)}};
            }),
            both);
  EXPECT_EQ(edges([](const Tensor& x, const Tensor& y) { return nn::Tensors{y, y, x, x, y}; }),
            "Gemm input layer.weight > output_0, Identity output_0 > output_1, "
            "Identity input > output_2, Identity output_2 > output_3, "
            "Identity output_1 > output_4");
  EXPECT_EQ(test::error([&] { edges([](const Tensor&, const Tensor&) { return Tensor(); }); }),
            "the network returns no tensors");
}

TEST(Onnx, SeveralResultsRunElsewhere) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  const auto make = [](const Tensor& x, const Tensor& y) { return std::tuple(y, y, x, relu(y)); };
  Exported all;
  all.add_net("same", Results<decltype(make)>(make), {randn({2, 4}), randn({3, 4})});
  EXPECT_EQ(all.problems(), "");
}

// Sizes that follow the batch become -1 in a Reshape, and are computed for others.
TEST(Onnx, SizesFollowTheBatch) {
  SKIP_WITHOUT_ONNX();
  const DefaultDevice here(Device::cpu());
  Exported all;
  all.add_net("reshape", Calls([](const Tensor& x) { return reshape(x, {x.size(0) * 3, 2}); }),
              {randn({1, 6}), randn({4, 6})});
  all.add_net("expand", Calls([](const Tensor& x) {
                return cat({x, expand(zeros({2}), {x.size(0), 2})}, 1);
              }),
              {randn({1, 6}), randn({4, 6})});
  all.add_net("zeros", Calls([](const Tensor& x) {
                return cat({x, zeros({x.size(0), 2})}, 1) + full({x.size(0) * 2, 1, 1}, 3);
              }),
              {randn({1, 6}), randn({4, 6})});
  all.add_net("slice",
              Calls([](const Tensor& x) { return narrow(reshape(x, {-1}), 0, 0, 2 * x.size(0)); }),
              {randn({2, 6}), randn({4, 6})});
  all.add_net("last", Calls([](const Tensor& x) {
                return cat({slice(x, 0, -3), slice(x, 0, 0, -1), zeros({2 * x.size(0) + 1, 6})}, 0);
              }),
              {randn({5, 6}), randn({2, 6}), randn({7, 6})});
  all.add_net("row", Calls([](const Tensor& x) { return x - select(x, 0, -2); }),
              {randn({2, 6}), randn({4, 6})});
  all.add_net("diagonal", Calls([](const Tensor& x) { return tril(x, x.size(0) - 5); }),
              {randn({2, 6}), randn({4, 6}), randn({7, 6})});
  EXPECT_EQ(all.problems(), "");
}

// Traces at sizes that no other dimension has, whatever the example's.
TEST(Onnx, SizesMayBeEqualByChance) {
  for (const int64_t n : {1, 4, 5}) {
    Calls turned([](const Tensor& x) { return reshape(reshape(x, {-1}), {5, x.size(0)}); });
    EXPECT_EQ(ops_of(graph_of(turned, randn({n, 5}))), "Reshape") << n;
  }
  struct Product : nn::Module<Product> {
    Tensor weight = nn::parameter(ones({7, 4}));
    Tensor forward(const Tensor& x) const {  // n 2 x 7 2
      return matmul(reshape(reshape(x, {-1}), {2 * x.size(0), 7}), weight);
    }
    MIXTAPE_FIELDS(weight)
  } net;
  for (const int64_t n : {6, 7})
    EXPECT_EQ(ops_of(graph_of(net, randn({n, 2, 7}))), "Reshape MatMul") << n;
}

TEST(Onnx, SaysWhatAGraphCannotExpress) {
  const auto problem = [](std::function<Tensor(const Tensor&)> f, const OnnxOptions& o = {}) {
    Calls net(std::move(f));
    const TempFolder folder;
    const std::string text =
        test::error([&] { save_onnx(folder / "x.onnx", net, {ones({2, 3})}, o); });
    EXPECT_EQ(folder.count(), 0u) << "nothing is written";
    return text;
  };
  EXPECT_EQ(problem([](const Tensor& x) { return lgamma(x); }),
            "Calls: lgamma: this op has no counterpart in ONNX");
  EXPECT_EQ(
      problem([](const Tensor& x) {
        return scatter_reduce(x, 0, zeros({1, 2}, i64), ones({1, 2}), ScatterMode::Amax,
                              {.include_self = false});
      }),
      "Calls: scatter_reduce: scatter_extremum: ONNX has no scatter_reduce without the elements "
      "of x");
  EXPECT_EQ(problem([](const Tensor& x) { return x.size(0) == 2 ? relu(x) : abs(x); }),
            "batches of 2 and 5 run different ops: Relu for output and Abs for output");
  EXPECT_EQ(problem([](const Tensor& x) { return x.size(0) == 2 ? relu(abs(x)) : abs(x); }),
            "batches of 2 and 5 run different ops: Abs for Abs_0 and Abs for output");
  EXPECT_EQ(problem([](const Tensor& x) { return slice(x, 0, 0, x.size(0) / 2); }),
            "with batches of 2, 5, 7 a size is 1, 2, 3, which is not linear in the batch");
  EXPECT_EQ(problem([](const Tensor& x) { return slice(x, 0, 0, x.size(0) / 4 + 1); }),
            "with batches of 2, 5, 7 a size is 1, 2, 2, which is not linear in the batch");
  EXPECT_EQ(problem([](const Tensor& x) { return slice(x, 0, 0, x.size(0) / 2 * 2); }),
            "batches of 2 and 5 run different ops: Identity for output and Slice for output");
  EXPECT_EQ(problem([](const Tensor& x) { return reshape(matmul(x, x.t()), {-1}); }),
            "with batches of 2, 5, 7 a size is 4, 25, 49, which is not linear in the batch");
  EXPECT_EQ(
      problem([](const Tensor& x) { return x * double(x.size(0)); }),
      "Constant_0 of shape [] is not constant: it depends on the inputs in other ways than by "
      "ops, such as item() or arange(x.size(0))");
  EXPECT_EQ(problem([](const Tensor& x) {
              const Tensor y = relu(x);
              fill_(y, 1);
              return y + x;
            }),
            "Calls: add: an input was written to after it was computed");
  EXPECT_EQ(
      problem([](const Tensor& x) { return relu(x).with_layout(internal::Layout({3}, {1})) + 1; }),
      "Calls: add_scalar: an input is a view that no op made");
  EXPECT_EQ(problem([](const Tensor& x) { return x; }, {.inputs = {"a", "b"}}),
            "1 inputs need as many names, got 2");
  EXPECT_EQ(problem([](const Tensor& x) { return norm(x, 0); }),
            "Calls: norm: the norm of order 0 has no counterpart in ONNX");
  EXPECT_EQ(
      problem(
          [](const Tensor& x) {
            const amp::Autocast on({.low = f32, .recipe = amp::Current{}});
            return matmul(x, ones({3, 2}));
          },
          {.dynamic_batch = false}),
      "Calls: matmul: operands that the recipe current rounds have no counterpart in ONNX: open "
      "the region without it");
  Calls net([](const Tensor& x) { return x; });
  const detail::OnnxRun several = [](const nn::Tensors& x) -> nn::Tensors {
    if (x[0].size(0) == 2) return {relu(x[0]), abs(x[0])};
    return {relu(x[0]), abs(x[0]), neg(x[0])};
  };
  EXPECT_EQ(test::error([&] { detail::save_onnx("x.onnx", net, {ones({2, 3})}, several, {}); }),
            "batches of 2 and 5 run 2 and 3 ops");
  EXPECT_EQ(test::error([&] { save_onnx("x.onnx", net, {ones({})}); }),
            "the first input has shape [], without a batch: set dynamic_batch = false");
}

TEST(Onnx, SaysWhichWindowsAndNormsAreMissing) {
  const auto problem = [](std::function<Tensor(const Tensor&)> f) {
    Calls net(std::move(f));
    return test::error([&] { save_onnx("x.onnx", net, {ones({2, 2, 5, 5})}); });
  };
  EXPECT_EQ(problem([](const Tensor& x) { return adaptive_max_pool2d(x, 3); }),
            "Calls: adaptive_max_pool2d: ONNX has no 3 x 3 windows of different sizes over 5 x 5 "
            "pixels");
  EXPECT_EQ(problem([](const Tensor& x) {
              return avg_pool2d(x, 2, {.padding = 0, .ceil_mode = true, .count_include_pad = true});
            }),
            "Calls: avg_pool2d: ONNX has no mean that counts padding in windows beyond it");
  EXPECT_EQ(problem([](const Tensor& x) {
              return conv_transpose2d(x, ones({2, 2, 2, 2}), {},
                                      {.output_padding = 2, .dilation = 3});
            }),
            "Calls: conv_transpose2d: ONNX has no output padding of 2 beside a stride of 1");
  EXPECT_EQ(problem([](const Tensor& x) {
              return scaled_dot_product_attention(x, x, x, {.dropout = 0.5});
            }),
            "Calls: scaled_dot_product_attention: ONNX has no attention with dropout: call eval()");
  EXPECT_EQ(problem([](const Tensor& x) {
              return batch_norm(x, zeros({2}), ones({2}), {}, {}, {.training = true});
            }),
            "Calls: batch_norm: ONNX has batch norms only for evaluation: call eval()");
}

}  // namespace onnx_test
}  // namespace mixtape::train
