// The precision lock: edits that change a precision are found, and named.

#include "amp/precision_lock.h"
#include "amp/report.h"
#include "autograd/checkpoint.h"
#include "core/scope.h"
#include "io/file.h"
#include "nn/models/models.h"
#include "nn/nn.h"
#include "tests/support/amp.h"
#include "tests/support/temp_folder.h"

namespace mixtape::amp {
namespace precision_lock_test {

// An edit: another region, or another way from the logits to the loss.
struct Edit {
  std::string line;  // which expect_precision() must show
  AutocastOptions region;
  std::function<Tensor(const Tensor& logits, const Tensor& targets)> loss =
      [](const Tensor& logits, const Tensor& y) { return cross_entropy(logits, y); };
};

AutocastOptions with(const std::string& path, Precision precision, DType low = f16) {
  return {.low = low, .overrides = {{path, precision}}};
}
Edit full(const std::string& path, const std::string& line, DType low = f16) {
  return {line, with(path, Precision::Full, low)};
}

template <class Net>
void step(Net& net, const Tensor& x, const Tensor& targets, const Edit& edit) {
  Tensor loss;
  {
    const Autocast on(edit.region);
    const Tensor logits = net(x);
    loss = edit.loss(logits.reshape({-1, logits.size(-1)}), targets.reshape({-1}));
  }
  detail::run_both_ways(loss, net.parameters());
}

// Every edit fails with its line, and the step as it was passes.
template <class Net>
void try_edits(Net& net, const Tensor& x, const Tensor& targets, DType low,
               const std::vector<Edit>& edits) {
  const test::TempFolder folder;
  const std::string path = folder / "precision.lock";
  const Edit as_it_was{"", {.low = low}};
  {
    const Report report;
    step(net, x, targets, as_it_was);
    report.lock(path);
  }
  expect_precision(path, [&] { step(net, x, targets, as_it_was); });
  for (const Edit& edit : edits) {
    const std::string message =
        test::full_error([&] { expect_precision(path, [&] { step(net, x, targets, edit); }); });
    EXPECT_NE(message.find('\n' + edit.line), std::string::npos)
        << "no line: " << edit.line << "\nin: " << message;
  }
}

TEST(PrecisionLock, FindsEditsOfAResNet) {
  models::ResNet net(models::ResidualBlock::Basic, {1, 1, 1, 1}, {.num_classes = 4, .width = 8});
  const Edit half_loss{"+ (no module): log_softmax(f16) -> f16",
                       {.low = f16},
                       [](const Tensor& logits, const Tensor& y) {
                         const NoPolicy as_called;
                         return -gather(log_softmax(logits, 1), 1, y.unsqueeze(1)).mean();
                       }};
  const Edit wide_logits{
      "+ (no module): cross_entropy(f32, i64) -> f32",
      {.low = f16},
      [](const Tensor& logits, const Tensor& y) { return cross_entropy(logits.to(f32), y); }};
  try_edits(net, values({2, 3, 32, 32}), zeros({2}, i64), f16,
            {full("conv1", "+ conv1: conv2d(f32, f32) -> f32"),
             full("layer1.0.conv1", "+ layer1.0.conv1: conv2d(f32, f32) -> f32"),
             full("layer1.0.conv2", "- layer1.0.conv2: conv2d backward(f16) -> f16, f32"),
             full("layer2.0.conv1", "+ layer2.0.conv1: conv2d(f32, f32) -> f32"),
             full("layer2.0.downsample.0", "+ layer2.0.downsample.0: conv2d(f32, f32) -> f32"),
             full("layer3.0.conv2", "+ layer3.0.conv2: conv2d(f32, f32) -> f32"),
             full("layer4.0.conv1", "- layer4.0.conv1: conv2d(f16, f16) -> f16"),
             full("layer4.*", "+ layer4.0.conv2: conv2d(f32, f32) -> f32"),
             full("layer1.0.bn1", "+ layer1.0.bn1: batch_norm(f16, f32, f32, f32, f32) -> f32"),
             full("bn1", "- bn1: batch_norm(f16, f32, f32, f32, f32) -> f16"),
             full("fc", "+ fc: linear(f32, f32, f32) -> f32"),
             full("conv2d", "+ layer3.0.downsample.0: conv2d(f32, f32) -> f32"),
             full("linear", "- fc: linear(f16, f16, f32) -> f16"),
             full("relu", "+ (root): relu(f32) -> f32"),
             full("max_pool2d", "+ (root): max_pool2d(f32) -> f32"),
             {"+ conv1: conv2d(bf16, bf16) -> bf16", {.low = bf16}},
             {"- fc: cast for linear(f32) -> f16", {.low = bf16}},
             {"+ layer2.0: add(f32, f32) -> f32", {.low = f16, .enabled = false}},
             half_loss,
             wide_logits});
}

TEST(PrecisionLock, FindsEditsOfAGpt) {
  models::Gpt net({.vocabulary = 11, .context = 8, .layers = 2, .heads = 2, .width = 16});
  const Tensor tokens = zeros({2, 8}, i64);
  const auto f16_loss = [](const Tensor& logits, const Tensor& y) {
    return cross_entropy(logits.to(f16), y);
  };
  try_edits(
      net, tokens, tokens, bf16,
      {full("h.0.attn.c_attn", "+ h.0.attn.c_attn: linear(f32, f32, f32) -> f32", bf16),
       full("h.0.attn.c_proj", "+ h.0.attn.c_proj: linear(f32, f32, f32) -> f32", bf16),
       full("h.1.mlp.c_fc", "- h.1.mlp.c_fc: linear(bf16, bf16, f32) -> bf16", bf16),
       full("h.1.mlp.*", "+ h.1.mlp.c_proj: linear(f32, f32, f32) -> f32", bf16),
       full("h.1.attn", "+ h.1.attn: scaled_dot_product_attention(f32, f32, f32) -> f32", bf16),
       full("scaled_dot_product_attention",
            "- h.0.attn: scaled_dot_product_attention backward(bf16) -> bf16, bf16, bf16", bf16),
       {"+ h.0.ln_1: layer_norm(f32, f32, f32) -> f16", {.low = f16}},
       {"- h.1.ln_2: layer_norm(f32, f32, f32) -> bf16", {.low = bf16, .enabled = false}},
       full("linear", "+ (root): linear(f32, f32) -> f32", bf16),
       {"+ (no module): cross_entropy(f16, i64) -> f32", {.low = bf16}, f16_loss}});
}

struct Mlp : nn::Module<Mlp> {
  nn::Linear body{8, 16}, head{16, 5};
  Tensor forward(const Tensor& x) const { return head(relu(body(x))); }
  MIXTAPE_FIELDS(body, head)
};
// The same with other names in forward.
struct Renamed : nn::Module<Renamed> {
  nn::Linear body{8, 16}, head{16, 5};
  Tensor forward(const Tensor& images) const {
    const Tensor features = body(images), hidden = relu(features);
    return head(hidden);
  }
  MIXTAPE_FIELDS(body, head)
};

TEST(PrecisionLock, ChecksANetworkAndIsAFileToRead) {
  const test::TempFolder folder;
  const std::string path = folder / "precision.lock";
  Mlp net;
  const Tensor x = values({4, 8});
  {
    const Report report;
    const Autocast on({.low = f16});
    detail::run_both_ways(net(x), net.parameters());
    report.lock(path);
  }
  EXPECT_EQ(test::slurp(path),
            R"(# The precision of each op, by module: inputs, or the incoming gradient, and results.
body: cast for linear(f32) -> f16
body: linear(f16, f16, f32) -> f16
(root): relu(f16) -> f16
head: cast for linear(f32) -> f16
head: linear(f16, f16, f32) -> f16
head: linear backward(f16) -> f16, f32, f32
(root): relu backward(f16) -> f16
body: linear backward(f16) -> f32, f32
)");
  Renamed same;
  const auto expect = [&](const AutocastOptions& region, auto& of) {
    const Autocast on(region);
    expect_precision(of, x, path);
  };
  expect({.low = f16}, same);
  EXPECT_FALSE(net.parameters()[0].grad());
  EXPECT_EQ(
      test::error([&] { expect({.low = f16, .overrides = {{"head", Precision::Full}}}, net); }),
      "precisions are not those of " + path + R"( (-: there, +: here):
- head: cast for linear(f32) -> f16
+ head: cast for linear(f16) -> f32
- head: linear(f16, f16, f32) -> f16
+ head: linear(f32, f32, f32) -> f32
- head: linear backward(f16) -> f16, f32, f32
+ head: linear backward(f32) -> f32, f32, f32
+ head: cast for backward(f32) -> f16)");
  EXPECT_ERROR(expect_precision(net, x, folder / "none.lock"), "none.lock");
  EXPECT_ERROR(expect_precision(path, {}), "expect_precision: there is nothing to run");
  std::string text = test::slurp(path);
  for (size_t at = 0; (at = text.find('\n', at)) != text.npos; at += 2) text.insert(at, "\r");
  io::write_file(path, text);
  expect({.low = f16}, net);
}

// The line numbers of SourceScope and checkpoints change no precision.
TEST(PrecisionLock, LeavesOutWhereOpsWereCalled) {
  const test::TempFolder folder;
  const std::string path = folder / "precision.lock";
  const Tensor x = values({3, 4}), w = leaf({4, 4});
  const auto f = [&](const Tensor& t) { return matmul(t, w).to(f32); };
  const auto run = [&](const std::function<Tensor()>& forward) {
    Tensor loss;
    {
      const Autocast on({.low = f16});
      loss = sum(forward());
    }
    detail::run_both_ways(loss, {w});
  };
  {
    const Report report;
    run([&] { return f(x); });
    report.lock(path);
  }
  EXPECT_NO_THROW(expect_precision(path, [&] {
    run([&] {
      const SourceScope here;
      return f(x);
    });
  }));
  EXPECT_NO_THROW(expect_precision(path, [&] { run([&] { return checkpoint(f, x); }); }));
}

}  // namespace precision_lock_test
}  // namespace mixtape::amp
