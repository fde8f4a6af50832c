#include "bench/steps.h"

#include <memory>

#include "nn/models/models.h"
#include "nn/models/unet.h"

namespace mixtape::bench {
namespace {

template <class Net, class Opt, class Loss>
Call step(DType low, std::shared_ptr<Net> net, std::shared_ptr<Opt> opt, Loss loss,
          double clip = 0) {
  const auto scaler = std::make_shared<amp::GradScaler>(low);  // enabled for f16 only
  return [=, params = net->parameters()] {
    opt->zero_grad();
    Tensor l;
    {
      const amp::Autocast on({.low = low});
      l = loss(*net);
    }
    scaler->scale(l).backward();
    if (clip > 0) {
      scaler->unscale(*opt);
      optim::clip_grad_norm(params, clip);
    }
    scaler->step(*opt);
    scaler->update();
  };
}

struct Text {
  Tensor x, y;
  Text(int64_t batch, int64_t context, int64_t vocabulary)
      : x(randint(0, vocabulary, {batch, context})), y(randint(0, vocabulary, {batch, context})) {}
};

}  // namespace

Call training(const MlpSize& s, DType low) {
  const Seed seed(1);
  const Tensor x = randn({s.batch, s.in}), y = randint(0, s.classes, {s.batch});
  const auto net = std::make_shared<Mlp>(s);
  return step(low, net,
              std::make_shared<optim::SGD>(net->parameters(),
                                           optim::SGDOptions{.lr = 0.01, .momentum = 0.9}),
              [=](const Mlp& n) { return cross_entropy(n(x), y); });
}

Call training(const CnnSize& s, DType low) {
  const Seed seed(1);
  const Tensor x = randn({s.batch, 1, 28, 28}), y = randint(0, 10, {s.batch});
  const auto net = std::make_shared<Cnn>(s);
  return step(low, net,
              std::make_shared<optim::Adam>(net->parameters(), optim::AdamOptions{.lr = 1e-3}),
              [=](const Cnn& n) { return cross_entropy(n(x), y); });
}

Call training(const LstmSize& s, DType low) {
  const Seed seed(1);
  const Text text(s.batch, s.context, s.vocabulary);
  const auto net = std::make_shared<models::LstmLanguageModel>(
      s.vocabulary,
      models::LstmLanguageModelOptions{
          .embedding = s.embedding, .hidden = s.hidden, .num_layers = s.layers, .dropout = 0});
  return step(low, net,
              std::make_shared<optim::Adam>(net->parameters(), optim::AdamOptions{.lr = 1e-3}),
              [=](const models::LstmLanguageModel& n) {
                return models::next_token_loss(n(text.x).logits, text.y);
              });
}

Call training(const GptSize& s, DType low) {
  const Seed seed(1);
  const Text text(s.batch, s.context, s.vocabulary);
  const auto net = std::make_shared<models::Gpt>(models::GptConfig{.vocabulary = s.vocabulary,
                                                                   .context = s.context,
                                                                   .layers = s.layers,
                                                                   .heads = s.heads,
                                                                   .width = s.width,
                                                                   .dropout = 0,
                                                                   .bias = false});
  return step(
      low, net, std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{.lr = 1e-3}),
      [=](const models::Gpt& n) { return models::next_token_loss(n(text.x), text.y); }, 1.0);
}

Call training(const VitSize& s, DType low) {
  const Seed seed(1);
  const Tensor x = randn({s.batch, 3, s.side, s.side}), y = randint(0, s.classes, {s.batch});
  const auto net = std::make_shared<Vit>(s);
  return step(low, net,
              std::make_shared<optim::AdamW>(net->parameters(), optim::AdamWOptions{.lr = 1e-3}),
              [=](const Vit& n) { return cross_entropy(n(x), y); });
}

namespace {

template <class Net>
Call training(const std::shared_ptr<Net>& net, const ResNetSize& s, DType low) {
  // (The order that takes less time: bench/worklog/178.)
  const Tensor x = randn({s.batch, 3, s.side, s.side}).to(MemoryFormat::ChannelsLast),
               y = randint(0, s.classes, {s.batch});
  return step(low, net,
              std::make_shared<optim::SGD>(net->parameters(),
                                           optim::SGDOptions{.lr = 0.1, .momentum = 0.9}),
              [=](const Net& n) { return cross_entropy(n(x), y); });
}

}  // namespace

Call training(const ResNetSize& s, DType low) {
  const Seed seed(1);
  if (s.cifar())
    return training(std::make_shared<models::CifarResNet>(models::CifarResNetOptions{
                        .depth = s.depth, .num_classes = s.classes, .width = s.width}),
                    s, low);
  return training(std::make_shared<models::ResNet>(
                      models::resnet50({.num_classes = s.classes, .width = s.width})),
                  s, low);
}

Call training(const UnetSize& s, DType low) {
  const Seed seed(1);
  const Tensor x = randn({s.batch, 3, s.side, s.side}).to(MemoryFormat::ChannelsLast),
               y = randint(0, s.classes, {s.batch, s.side, s.side});
  const auto net = std::make_shared<models::UNet>(
      models::UNetOptions{.num_classes = s.classes, .width = s.width});
  return step(low, net,
              std::make_shared<optim::Adam>(net->parameters(), optim::AdamOptions{.lr = 1e-3}),
              [=](const models::UNet& n) { return cross_entropy(n(x), y); });
}

double ResNetSize::operations() const {
  int64_t in = width, pixels = cifar() ? side * side : side * side / 16;
  double rest = double(features() * classes);
  for (const Block& b : blocks()) {
    const int64_t strided = pixels / (b.stride * b.stride);
    if (cifar()) {
      rest += double(strided * (in * b.out * 9 + b.out * b.out * 9));
    } else {  // its first convolution sees all pixels, the shortcut those that are left
      rest += double(pixels * in * b.channels + strided * b.channels * (9 * b.channels + b.out));
      if (in != b.out) rest += double(strided * in * b.out);
    }
    in = b.out, pixels = strided;
  }
  // The first convolution's images need no gradient.
  const double first =
      cifar() ? double(side * side * 3 * 9 * width) : double(side * side / 4 * 3 * 49 * width);
  return 2.0 * double(batch) * (2 * first + 3 * rest);
}

}  // namespace mixtape::bench
