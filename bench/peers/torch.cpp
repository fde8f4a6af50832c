#include "bench/peers/torch.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <thread>

namespace mixtape::peers {

void set_threads(int n) {
  at::set_num_threads(n > 0 ? n : int(std::thread::hardware_concurrency()));
}

struct TorchCnn::Impl {
  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
  torch::Tensor x, y;
  std::vector<torch::Tensor> parameters;
  std::unique_ptr<torch::optim::Adam> opt;
  bool bf16;

  Impl(const bench::CnnSize& s, bool bf16)
      : conv1(torch::nn::Conv2dOptions(1, s.conv1, 3).padding(s.padding)),
        conv2(torch::nn::Conv2dOptions(s.conv1, s.conv2, 3).padding(s.padding)),
        fc1(s.flat, 128),
        fc2(128, 10),
        x(torch::randn({64, 1, 28, 28})),
        y(torch::randint(0, 10, {64}, torch::kLong)),
        bf16(bf16) {
    for (const auto& list :
         {conv1->parameters(), conv2->parameters(), fc1->parameters(), fc2->parameters()})
      parameters.insert(parameters.end(), list.begin(), list.end());
    opt = std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
  }

  torch::Tensor forward() {
    torch::Tensor h = at::max_pool2d(at::relu(conv1(x)), {2, 2});
    h = at::max_pool2d(at::relu(conv2(h)), {2, 2});
    return fc2(at::relu(fc1(h.flatten(1))));
  }
};

TorchCnn::TorchCnn(const bench::CnnSize& size, bool bf16)
    : impl_(std::make_unique<Impl>(size, bf16)) {}
TorchCnn::~TorchCnn() = default;

void TorchCnn::step() {
  for (torch::Tensor& p : impl_->parameters) p.mutable_grad() = torch::Tensor();
  torch::Tensor logits;
  if (impl_->bf16) {  // there is no scope object: these calls are the whole of autocast in C++
    at::autocast::set_cpu_enabled(true);
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::increment_nesting();
    logits = impl_->forward();
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_cpu_enabled(false);
  } else {
    logits = impl_->forward();
  }
  at::cross_entropy_loss(logits.to(at::kFloat), impl_->y).backward();
  impl_->opt->step();
}

}  // namespace mixtape::peers
