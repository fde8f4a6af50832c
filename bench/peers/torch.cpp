#include "bench/peers/torch.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <utility>

#include "bench/peers/form.h"

// Since 2.4 there are fused optimizers for the CPU, and calls of autocast that name the device.
#define MIXTAPE_TORCH_2_4 \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4))

namespace mixtape::peers {

void set_threads(int n) { at::set_num_threads(n); }

namespace {

using Parameters = std::vector<torch::Tensor>;

const Choice channels_last{"channels-last", &Form::channels_last};

#if MIXTAPE_TORCH_2_4
const Choices attention_choices = {{"scaled_dot_product_attention", &Form::sdpa},
                                   {"gelu by tanh", &Form::tanh}};
const Choices optimizer_choices = {{"fused optimizer", &Form::fused}};

using FusedAdam = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                       at::TensorList, at::TensorList, double, double, double, double, double, bool,
                       bool, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&);

// One call for all parameters, what `fused=True` means in Python; the optimizers of C++ have none.
template <class Options>
bench::Call fused_update(const Parameters& parameters, const Options& o) {
  const auto zeros = [&] {
    Parameters all;
    for (const torch::Tensor& p : parameters) all.push_back(torch::zeros_like(p));
    return all;
  };
  Parameters steps;
  for (size_t i = 0; i < parameters.size(); ++i) steps.push_back(torch::zeros({}));
  return [=, m = zeros(), v = zeros(), first = true]() mutable {
    const torch::NoGradGuard off;
    Parameters grads;
    for (const torch::Tensor& p : parameters) grads.push_back(p.grad());
    if constexpr (std::is_same_v<Options, torch::optim::SGDOptions>) {
      at::_fused_sgd_(parameters, grads, m, o.weight_decay(), o.momentum(), o.lr(), o.dampening(),
                      o.nesterov(), false, std::exchange(first, false));
    } else {
      for (const torch::Tensor& n : steps) n.add_(1);
      FusedAdam* const update = std::is_same_v<Options, torch::optim::AdamOptions>
                                    ? static_cast<FusedAdam*>(at::_fused_adam_)
                                    : static_cast<FusedAdam*>(at::_fused_adamw_);
      const auto [beta1, beta2] = o.betas();
      update(parameters, grads, m, v, {}, steps, o.lr(), beta1, beta2, o.weight_decay(), o.eps(),
             false, false, {}, {});
    }
  };
}

torch::Tensor fused_attention(const torch::Tensor& q, const torch::Tensor& k,
                              const torch::Tensor& v, bool causal) {
  return at::scaled_dot_product_attention(q, k, v, {}, 0, causal);
}

// Autocast to bf16 on the CPU, for this thread.
void set_autocast(bool on) {
  at::autocast::set_autocast_enabled(at::kCPU, on);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}
#else
const Choices attention_choices = {{"gelu by tanh", &Form::tanh}};
const Choices optimizer_choices = {};

template <class Options>
bench::Call fused_update(const Parameters&, const Options&) {
  return {};  // not chosen
}

torch::Tensor fused_attention(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                              bool) {
  return {};  // not chosen
}

void set_autocast(bool on) {
  at::autocast::set_cpu_enabled(on);
  at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
}
#endif

// A region of autocast to bf16, for which libtorch has no guard. It ends also where an op throws.
struct Autocast {
  Autocast() {
    set_autocast(true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    set_autocast(false);
  }
};

Choices joined(Choices all, const Choices& others) {
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

template <class Options>
bench::Call update(const Parameters& p, const Options& o, const Form& form) {
  if (form.fused) return fused_update(p, o);
  const auto with = [](auto opt) -> bench::Call { return [opt] { opt->step(); }; };
  if constexpr (std::is_same_v<Options, torch::optim::SGDOptions>)
    return with(std::make_shared<torch::optim::SGD>(p, o));
  else if constexpr (std::is_same_v<Options, torch::optim::AdamOptions>)
    return with(std::make_shared<torch::optim::Adam>(p, o));
  else
    return with(std::make_shared<torch::optim::AdamW>(p, o));
}

torch::Tensor laid_out(const torch::Tensor& x, const Form& form) {
  return form.channels_last && x.dim() == 4 ? x.contiguous(at::MemoryFormat::ChannelsLast) : x;
}

// The fastest form of a training step. Net(size) registers its layers, and its
// forward(inputs, form) gives logits [rows, classes, ...].
template <class Net, class Size, class Options>
bench::Task training_step(const Size& size, const Options& options, const Choices& choices,
                          const torch::Tensor& x, const torch::Tensor& y, bool bf16,
                          double clip = 0) {
  return fastest(joined(optimizer_choices, choices), at::get_num_threads(), [=](const Form& form) {
    const auto net = std::make_shared<Net>(size);
    const Parameters parameters = net->parameters();
    for (torch::Tensor p : parameters) p.set_data(laid_out(p.data(), form));
    return [=, inputs = laid_out(x, form), opt = update(parameters, options, form)] {
      for (torch::Tensor p : parameters) p.mutable_grad() = torch::Tensor();
      torch::Tensor logits;
      if (bf16) {
        const Autocast on;
        logits = net->forward(inputs, form);
      } else {
        logits = net->forward(inputs, form);
      }
      at::cross_entropy_loss(logits.to(at::kFloat), y).backward();
      if (clip > 0) torch::nn::utils::clip_grad_norm_(parameters, clip);
      opt();
    };
  });
}

struct Mlp : torch::nn::Module {
  torch::nn::Linear fc1, fc2, fc3;
  explicit Mlp(const bench::MlpSize& s)
      : fc1(register_module("fc1", torch::nn::Linear(s.in, s.hidden))),
        fc2(register_module("fc2", torch::nn::Linear(s.hidden, s.hidden))),
        fc3(register_module("fc3", torch::nn::Linear(s.hidden, s.classes))) {}
  torch::Tensor forward(const torch::Tensor& x, const Form&) {
    return fc3(at::relu(fc2(at::relu(fc1(x)))));
  }
};

torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding,
                       bool bias) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(bias));
}

struct Cnn : torch::nn::Module {
  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
  explicit Cnn(const bench::CnnSize& s)
      : conv1(register_module("conv1", conv(1, s.conv1, 3, 1, s.padding, true))),
        conv2(register_module("conv2", conv(s.conv1, s.conv2, 3, 1, s.padding, true))),
        fc1(register_module("fc1", torch::nn::Linear(s.flat, 128))),
        fc2(register_module("fc2", torch::nn::Linear(128, 10))) {}
  torch::Tensor forward(const torch::Tensor& x, const Form&) {
    auto h = at::max_pool2d(at::relu(conv1(x)), {2, 2});
    h = at::max_pool2d(at::relu(conv2(h)), {2, 2});
    return fc2(at::relu(fc1(h.flatten(1))));
  }
};

struct Lstm : torch::nn::Module {
  torch::nn::Embedding encoder;
  torch::nn::LSTM rnn;
  torch::nn::Linear decoder;
  explicit Lstm(const bench::LstmSize& s)
      : encoder(register_module("encoder", torch::nn::Embedding(s.vocabulary, s.embedding))),
        rnn(register_module("rnn", torch::nn::LSTM(torch::nn::LSTMOptions(s.embedding, s.hidden)
                                                       .num_layers(s.layers)
                                                       .batch_first(true)))),
        decoder(register_module("decoder", torch::nn::Linear(s.hidden, s.vocabulary))) {}
  torch::Tensor forward(const torch::Tensor& x, const Form&) {
    return decoder(std::get<0>(rnn->forward(encoder(x)))).flatten(0, 1);
  }
};

// A transformer's block that normalises its inputs.
struct Block : torch::nn::Module {
  torch::nn::LayerNorm ln1, ln2;
  torch::nn::Linear qkv, proj, up, down;
  int64_t heads;
  bool causal;
  Block(int64_t width, int64_t heads, bool bias, bool causal)
      : ln1(register_module("ln1", norm(width))),
        ln2(register_module("ln2", norm(width))),
        qkv(register_module("qkv", linear(width, 3 * width, bias))),
        proj(register_module("proj", linear(width, width, bias))),
        up(register_module("up", linear(width, 4 * width, bias))),
        down(register_module("down", linear(4 * width, width, bias))),
        heads(heads),
        causal(causal) {}
  static torch::nn::Linear linear(int64_t in, int64_t out, bool bias) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
  }
  static torch::nn::LayerNorm norm(int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }
  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& future, const Form& form) {
    const int64_t b = x.size(0), t = x.size(1), width = x.size(2), d = width / heads;
    const auto parts = qkv(x).split(width, 2);
    const auto head = [&](int i) { return parts[i].view({b, t, heads, d}).transpose(1, 2); };
    const auto joined = [&](const torch::Tensor& y) {
      return proj(y.transpose(1, 2).reshape({b, t, width}));
    };
    if (form.sdpa) return joined(fused_attention(head(0), head(1), head(2), causal));
    auto scores = at::matmul(head(0), head(1).transpose(-2, -1)) * (1 / std::sqrt(double(d)));
    if (causal) scores = scores.masked_fill(future, -std::numeric_limits<float>::infinity());
    return joined(at::matmul(at::softmax(scores, -1), head(2)));
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& future, const Form& form) {
    const auto y = x + attention(ln1(x), future, form);
    return y + down(at::gelu(up(ln2(y)), form.tanh ? "tanh" : "none"));
  }
};

struct Gpt : torch::nn::Module {
  torch::nn::Embedding wte, wpe;
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::LayerNorm ln;
  torch::Tensor places, future;
  explicit Gpt(const bench::GptSize& s)
      : wte(register_module("wte", torch::nn::Embedding(s.vocabulary, s.width))),
        wpe(register_module("wpe", torch::nn::Embedding(s.context, s.width))),
        ln(register_module("ln", Block::norm(s.width))),
        places(torch::arange(s.context, torch::kLong)),
        future(torch::ones({s.context, s.context}, torch::kBool).triu(1)) {
    for (int64_t i = 0; i < s.layers; ++i)
      blocks.push_back(register_module("h" + std::to_string(i),
                                       std::make_shared<Block>(s.width, s.heads, false, true)));
    torch::NoGradGuard off;
    wte->weight.mul_(0.02);
  }
  torch::Tensor forward(const torch::Tensor& x, const Form& form) {
    auto h = wte(x) + wpe(places);
    for (const auto& block : blocks) h = block->forward(h, future, form);
    return at::linear(ln(h), wte->weight).flatten(0, 1);
  }
};

struct Vit : torch::nn::Module {
  torch::nn::Conv2d patches;
  torch::Tensor cls, places;
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::LayerNorm ln;
  torch::nn::Linear head;
  explicit Vit(const bench::VitSize& s)
      : patches(register_module("patches", conv(3, s.width, s.patch, s.patch, 0, true))),
        cls(register_parameter("cls", torch::zeros({1, 1, s.width}))),
        places(register_parameter("places", torch::randn({1, s.tokens(), s.width}) * 0.02)),
        ln(register_module("ln", Block::norm(s.width))),
        head(register_module("head", torch::nn::Linear(s.width, s.classes))) {
    for (int64_t i = 0; i < s.layers; ++i)
      blocks.push_back(register_module("h" + std::to_string(i),
                                       std::make_shared<Block>(s.width, s.heads, true, false)));
  }
  torch::Tensor forward(const torch::Tensor& x, const Form& form) {
    const auto rows = patches(x).flatten(2).transpose(1, 2);
    auto h = at::cat({cls.expand({x.size(0), -1, -1}).to(rows.scalar_type()), rows}, 1) + places;
    for (const auto& block : blocks) h = block->forward(h, {}, form);
    return head(ln(h).select(1, 0));
  }
};

struct ResBlock : torch::nn::Module {
  std::vector<torch::nn::Conv2d> convs;
  std::vector<torch::nn::BatchNorm2d> norms;
  torch::nn::Conv2d down{nullptr};
  torch::nn::BatchNorm2d down_norm{nullptr};
  int64_t stride, more;  // channels that a shortcut without parameters adds

  // Layers of `kernels`, the last with `out` channels; the first 3 x 3 one has the stride.
  ResBlock(int64_t in, int64_t channels, int64_t out, const std::vector<int64_t>& kernels,
           int64_t stride, bool project)
      : stride(stride), more(project ? 0 : out - in) {
    bool strided = false;
    int64_t from = in;
    for (size_t i = 0; i < kernels.size(); ++i) {
      const int64_t to = i + 1 == kernels.size() ? out : channels, k = kernels[i];
      const bool here = k == 3 && !std::exchange(strided, strided || k == 3);
      convs.push_back(register_module("conv" + std::to_string(i),
                                      conv(from, to, k, here ? stride : 1, k / 2, false)));
      norms.push_back(register_module("bn" + std::to_string(i), torch::nn::BatchNorm2d(to)));
      from = to;
    }
    if (project && (stride > 1 || in != out)) {
      down = register_module("down", conv(in, out, 1, stride, 0, false));
      down_norm = register_module("down_bn", torch::nn::BatchNorm2d(out));
    }
  }
  torch::Tensor shortcut(const torch::Tensor& x) {
    if (down) return down_norm(down(x));
    if (more == 0) return x;
    using torch::indexing::Slice;
    const auto y = x.index({Slice(), Slice(), Slice(0, {}, stride), Slice(0, {}, stride)});
    return at::constant_pad_nd(y, {0, 0, 0, 0, more / 2, more - more / 2});
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = x;
    for (size_t i = 0; i < convs.size(); ++i) {
      y = norms[i](convs[i](y));
      if (i + 1 < convs.size()) y = y.relu_();
    }
    return y.add_(shortcut(x)).relu_();
  }
};

struct ResNet : torch::nn::Module {
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  std::vector<std::shared_ptr<ResBlock>> blocks;
  torch::nn::Linear fc;
  bool pooled;
  explicit ResNet(const bench::ResNetSize& s)
      : conv1(register_module("conv1", s.cifar() ? conv(3, s.width, 3, 1, 1, false)
                                                 : conv(3, s.width, 7, 2, 3, false))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(s.width))),
        fc(register_module("fc", torch::nn::Linear(s.features(), s.classes))),
        pooled(!s.cifar()) {
    int64_t in = s.width;
    for (const bench::ResNetSize::Block& b : s.blocks()) {
      blocks.push_back(register_module(
          "b" + std::to_string(blocks.size()),
          std::make_shared<ResBlock>(
              in, b.channels, b.out,
              s.cifar() ? std::vector<int64_t>{3, 3} : std::vector<int64_t>{1, 3, 1}, b.stride,
              !s.cifar())));
      in = b.out;
    }
  }
  torch::Tensor forward(const torch::Tensor& x, const Form&) {
    auto h = bn1(conv1(x)).relu_();
    if (pooled) h = at::max_pool2d(h, {3, 3}, {2, 2}, {1, 1});
    for (const auto& block : blocks) h = block->forward(h);
    return fc(at::adaptive_avg_pool2d(h, {1, 1}).flatten(1));
  }
};

struct Unet : torch::nn::Module {
  using Convs = std::vector<std::pair<torch::nn::Conv2d, torch::nn::BatchNorm2d>>;
  std::vector<Convs> down, up;  // two convolutions for each level, the full size first
  std::vector<torch::nn::ConvTranspose2d> doubling;
  torch::nn::Conv2d out;

  Convs convs(const std::string& name, int64_t from, int64_t to) {
    Convs all;
    for (const int64_t in : {from, to}) {
      const std::string number = std::to_string(all.size());
      all.emplace_back(register_module(name + "conv" + number, conv(in, to, 3, 1, 1, false)),
                       register_module(name + "bn" + number, torch::nn::BatchNorm2d(to)));
    }
    return all;
  }
  static torch::Tensor run(Convs& layers, torch::Tensor h) {
    for (auto& [convolution, norm] : layers) h = norm(convolution(h)).relu_();
    return h;
  }
  explicit Unet(const bench::UnetSize& s)
      : out(register_module("out", conv(s.width, s.classes, 1, 1, 0, true))) {
    for (int level = 0; level < s.levels; ++level) {
      const int64_t c = s.width << level;
      const std::string name = std::to_string(level);
      down.push_back(convs("down" + name, level ? c / 2 : 3, c));
      if (level + 1 == s.levels) break;
      const auto options = torch::nn::ConvTranspose2dOptions(2 * c, c, 2).stride(2);
      doubling.push_back(register_module("doubling" + name, torch::nn::ConvTranspose2d(options)));
      up.push_back(convs("up" + name, 2 * c, c));
    }
  }
  torch::Tensor forward(const torch::Tensor& x, const Form&) {
    std::vector<torch::Tensor> beside;
    torch::Tensor h = x;
    for (size_t level = 0; level < down.size(); ++level) {
      h = run(down[level], level ? at::max_pool2d(h, {2, 2}) : h);
      beside.push_back(h);
    }
    for (size_t level = up.size(); level-- > 0;)
      h = run(up[level], at::cat({beside[level], doubling[level](h)}, 1));
    return out(h);
  }
};

torch::Tensor integers(int64_t below, const std::vector<int64_t>& shape) {
  return torch::randint(0, below, shape, torch::kLong);
}

}  // namespace

bench::Task training(const bench::MlpSize& s, bool bf16) {
  return training_step<Mlp>(s, torch::optim::SGDOptions(0.01).momentum(0.9), {},
                            torch::randn({s.batch, s.in}), integers(s.classes, {s.batch}), bf16);
}

bench::Task training(const bench::CnnSize& s, bool bf16) {
  return training_step<Cnn>(s, torch::optim::AdamOptions(1e-3), {channels_last},
                            torch::randn({s.batch, 1, 28, 28}), integers(10, {s.batch}), bf16);
}

bench::Task training(const bench::LstmSize& s, bool bf16) {
  return training_step<Lstm>(s, torch::optim::AdamOptions(1e-3), {},
                             integers(s.vocabulary, {s.batch, s.context}),
                             integers(s.vocabulary, {s.batch * s.context}), bf16);
}

bench::Task training(const bench::GptSize& s, bool bf16) {
  return training_step<Gpt>(s, torch::optim::AdamWOptions(1e-3), attention_choices,
                            integers(s.vocabulary, {s.batch, s.context}),
                            integers(s.vocabulary, {s.batch * s.context}), bf16, 1.0);
}

bench::Task training(const bench::VitSize& s, bool bf16) {
  return training_step<Vit>(
      s, torch::optim::AdamWOptions(1e-3), joined(attention_choices, {channels_last}),
      torch::randn({s.batch, 3, s.side, s.side}), integers(s.classes, {s.batch}), bf16);
}

bench::Task training(const bench::ResNetSize& s, bool bf16) {
  return training_step<ResNet>(s, torch::optim::SGDOptions(0.1).momentum(0.9), {channels_last},
                               torch::randn({s.batch, 3, s.side, s.side}),
                               integers(s.classes, {s.batch}), bf16);
}

bench::Task training(const bench::UnetSize& s, bool bf16) {
  return training_step<Unet>(s, torch::optim::AdamOptions(1e-3), {channels_last},
                             torch::randn({s.batch, 3, s.side, s.side}),
                             integers(s.classes, {s.batch, s.side, s.side}), bf16);
}

bench::Task optimizer(const std::string& name, const std::vector<Shape>& shapes) {
  Parameters parameters;
  for (const Shape& shape : shapes) {
    const auto p = torch::randn(std::vector<int64_t>(shape.begin(), shape.end()));
    parameters.push_back(p.requires_grad_());
    parameters.back().mutable_grad() = torch::randn_like(p);
  }
  return fastest(optimizer_choices, at::get_num_threads(), [&](const Form& form) {
    return name == "sgd" ? update(parameters, torch::optim::SGDOptions(1e-4).momentum(0.9), form)
                         : update(parameters, torch::optim::AdamWOptions(1e-4), form);
  });
}

}  // namespace mixtape::peers
