#include "bench/peers/torch.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

namespace mixtape::peers {

void set_threads(int n) { at::set_num_threads(n); }

namespace {

using Parameters = std::vector<torch::Tensor>;

// Autocast to bf16 on the CPU, for this thread.
void set_autocast(bool on) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  at::autocast::set_autocast_enabled(at::kCPU, on);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
#else
  at::autocast::set_cpu_enabled(on);
  at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
#endif
}

// A network; its layers register themselves.
template <class Forward>
struct Step {
  std::shared_ptr<torch::nn::Module> net;
  std::shared_ptr<torch::optim::Optimizer> opt;
  Forward forward;  // logits [rows, classes]
  torch::Tensor y;
  bool bf16;
  double clip;
  Parameters parameters = net->parameters();

  void operator()() {
    for (torch::Tensor& p : parameters) p.mutable_grad() = torch::Tensor();
    torch::Tensor logits;
    if (bf16) {  // libtorch has no guard for autocast, only these calls
      set_autocast(true);
      at::autocast::increment_nesting();
      logits = forward();
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      set_autocast(false);
    } else {
      logits = forward();
    }
    at::cross_entropy_loss(logits.to(at::kFloat), y).backward();
    if (clip > 0) torch::nn::utils::clip_grad_norm_(parameters, clip);
    opt->step();
  }
};

template <class Options>
std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Parameters& p, Options o) {
  if constexpr (std::is_same_v<Options, torch::optim::SGDOptions>)
    return std::make_shared<torch::optim::SGD>(p, o);
  else if constexpr (std::is_same_v<Options, torch::optim::AdamOptions>)
    return std::make_shared<torch::optim::Adam>(p, o);
  else
    return std::make_shared<torch::optim::AdamW>(p, o);
}

template <class Options, class Forward>
bench::Call step(std::shared_ptr<torch::nn::Module> net, Options options, Forward forward,
                 torch::Tensor y, bool bf16, double clip = 0) {
  const auto opt = make_optimizer(net->parameters(), options);
  const auto s = std::make_shared<Step<Forward>>(
      Step<Forward>{std::move(net), opt, std::move(forward), std::move(y), bf16, clip});
  return [s] { (*s)(); };
}

struct Mlp : torch::nn::Module {
  torch::nn::Linear fc1, fc2, fc3;
  explicit Mlp(const bench::MlpSize& s)
      : fc1(register_module("fc1", torch::nn::Linear(s.in, s.hidden))),
        fc2(register_module("fc2", torch::nn::Linear(s.hidden, s.hidden))),
        fc3(register_module("fc3", torch::nn::Linear(s.hidden, s.classes))) {}
};

struct Cnn : torch::nn::Module {
  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
  explicit Cnn(const bench::CnnSize& s)
      : conv1(register_module("conv1", conv(1, s.conv1, s.padding))),
        conv2(register_module("conv2", conv(s.conv1, s.conv2, s.padding))),
        fc1(register_module("fc1", torch::nn::Linear(s.flat, 128))),
        fc2(register_module("fc2", torch::nn::Linear(128, 10))) {}
  static torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t padding) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(padding));
  }
};

struct Lstm : torch::nn::Module {
  torch::nn::Embedding encoder;
  torch::nn::LSTM rnn;
  torch::nn::Linear decoder;
  explicit Lstm(const bench::LstmSize& s)
      : encoder(register_module("encoder", torch::nn::Embedding(s.vocabulary, s.embedding))),
        rnn(register_module(
            "rnn",
            torch::nn::LSTM(torch::nn::LSTMOptions(s.embedding, s.hidden).batch_first(true)))),
        decoder(register_module("decoder", torch::nn::Linear(s.hidden, s.vocabulary))) {}
};

struct Block : torch::nn::Module {
  torch::nn::LayerNorm ln1, ln2;
  torch::nn::Linear qkv, proj, up, down;
  int64_t heads;
  explicit Block(const bench::GptSize& s)
      : ln1(register_module("ln1", norm(s.width))),
        ln2(register_module("ln2", norm(s.width))),
        qkv(register_module("qkv", linear(s.width, 3 * s.width))),
        proj(register_module("proj", linear(s.width, s.width))),
        up(register_module("up", linear(s.width, 4 * s.width))),
        down(register_module("down", linear(4 * s.width, s.width))),
        heads(s.heads) {}
  static torch::nn::Linear linear(int64_t in, int64_t out) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
  }
  static torch::nn::LayerNorm norm(int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }
  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& future) {
    const int64_t b = x.size(0), t = x.size(1), width = x.size(2), d = width / heads;
    const auto parts = qkv(x).split(width, 2);
    const auto head = [&](int i) { return parts[i].view({b, t, heads, d}).transpose(1, 2); };
    const auto scores = at::matmul(head(0), head(1).transpose(-2, -1)) * (1 / std::sqrt(double(d)));
    const auto weights =
        at::softmax(scores.masked_fill(future, -std::numeric_limits<float>::infinity()), -1);
    return proj(at::matmul(weights, head(2)).transpose(1, 2).reshape({b, t, width}));
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& future) {
    const auto y = x + attention(ln1(x), future);
    return y + down(at::gelu(up(ln2(y))));  // exact; libtorch is slower with the tanh version
  }
};

struct Gpt : torch::nn::Module {
  torch::nn::Embedding wte, wpe;
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::LayerNorm ln;
  explicit Gpt(const bench::GptSize& s)
      : wte(register_module("wte", torch::nn::Embedding(s.vocabulary, s.width))),
        wpe(register_module("wpe", torch::nn::Embedding(s.context, s.width))),
        ln(register_module("ln", Block::norm(s.width))) {
    for (int64_t i = 0; i < s.layers; ++i)
      blocks.push_back(register_module("h" + std::to_string(i), std::make_shared<Block>(s)));
    torch::NoGradGuard off;
    wte->weight.mul_(0.02);
  }
};

}  // namespace

bench::Call training(const bench::MlpSize& s, bool bf16) {
  const auto net = std::make_shared<Mlp>(s);
  const auto x = torch::randn({s.batch, s.in});
  return step(
      net, torch::optim::SGDOptions(0.01).momentum(0.9),
      [=, n = net.get()] { return n->fc3(at::relu(n->fc2(at::relu(n->fc1(x))))); },
      torch::randint(0, s.classes, {s.batch}, torch::kLong), bf16);
}

bench::Call training(const bench::CnnSize& s, bool bf16) {
  const auto net = std::make_shared<Cnn>(s);
  const auto x = torch::randn({s.batch, 1, 28, 28});
  return step(
      net, torch::optim::AdamOptions(1e-3),
      [=, n = net.get()] {
        auto h = at::max_pool2d(at::relu(n->conv1(x)), {2, 2});
        h = at::max_pool2d(at::relu(n->conv2(h)), {2, 2});
        return n->fc2(at::relu(n->fc1(h.flatten(1))));
      },
      torch::randint(0, 10, {s.batch}, torch::kLong), bf16);
}

bench::Call training(const bench::LstmSize& s, bool bf16) {
  const auto net = std::make_shared<Lstm>(s);
  const auto x = torch::randint(0, s.vocabulary, {s.batch, s.context}, torch::kLong);
  return step(
      net, torch::optim::AdamOptions(1e-3),
      [=, n = net.get()] {
        return n->decoder(std::get<0>(n->rnn->forward(n->encoder(x)))).flatten(0, 1);
      },
      torch::randint(0, s.vocabulary, {s.batch * s.context}, torch::kLong), bf16);
}

bench::Call training(const bench::GptSize& s, bool bf16) {
  const auto net = std::make_shared<Gpt>(s);
  const auto x = torch::randint(0, s.vocabulary, {s.batch, s.context}, torch::kLong);
  const auto places = torch::arange(s.context, torch::kLong);
  const auto future = torch::ones({s.context, s.context}, torch::kBool).triu(1);
  return step(
      net, torch::optim::AdamWOptions(1e-3),
      [=, n = net.get()] {
        auto h = n->wte(x) + n->wpe(places);
        for (const auto& block : n->blocks) h = block->forward(h, future);
        return at::linear(n->ln(h), n->wte->weight).flatten(0, 1);
      },
      torch::randint(0, s.vocabulary, {s.batch * s.context}, torch::kLong), bf16, 1.0);
}

bench::Call optimizer(const std::string& name, const std::vector<Shape>& shapes) {
  Parameters parameters;
  for (const Shape& shape : shapes) {
    const auto p = torch::randn(std::vector<int64_t>(shape.begin(), shape.end()));
    parameters.push_back(p.requires_grad_());
    parameters.back().mutable_grad() = torch::randn_like(p);
  }
  const auto opt = name == "sgd"
                       ? make_optimizer(parameters, torch::optim::SGDOptions(1e-4).momentum(0.9))
                       : make_optimizer(parameters, torch::optim::AdamWOptions(1e-4));
  return [=] { opt->step(); };
}

}  // namespace mixtape::peers
