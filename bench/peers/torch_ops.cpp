// libtorch's ops for the cases of bench_ops, bench_conv and bench_attention, by name.
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <map>

#include "bench/peers/form.h"
#include "bench/peers/torch.h"

namespace mixtape::peers {
namespace {

using Tensors = std::vector<torch::Tensor>;
using Options = std::vector<int64_t>;
using Op = torch::Tensor (*)(const Tensors& x, const Options& o);

const std::map<std::string, Op>& ops() {
  static const std::map<std::string, Op> all = {
      {"add", [](const Tensors& x, const Options&) { return x[0] + x[1]; }},
      {"mul", [](const Tensors& x, const Options&) { return x[0] * x[1]; }},
      {"exp", [](const Tensors& x, const Options&) { return at::exp(x[0]); }},
      {"tanh", [](const Tensors& x, const Options&) { return at::tanh(x[0]); }},
      {"relu", [](const Tensors& x, const Options&) { return at::relu(x[0]); }},
      {"gelu", [](const Tensors& x, const Options&) { return at::gelu(x[0]); }},
      {"sum", [](const Tensors& x, const Options&) { return x[0].sum(); }},
      {"sum_rows", [](const Tensors& x, const Options&) { return x[0].sum(1); }},
      {"softmax", [](const Tensors& x, const Options&) { return at::softmax(x[0], -1); }},
      {"layer_norm", [](const Tensors& x,
                        const Options&) { return at::layer_norm(x[0], x[1].sizes(), x[1], x[2]); }},
      {"cross_entropy",
       [](const Tensors& x, const Options&) { return at::cross_entropy_loss(x[0], x[1]); }},
      {"embedding", [](const Tensors& x, const Options&) { return at::embedding(x[0], x[1]); }},
      {"matmul", [](const Tensors& x, const Options&) { return at::matmul(x[0], x[1]); }},
      {"linear", [](const Tensors& x, const Options&) { return at::linear(x[0], x[1], x[2]); }},
      {"max_pool2d",  // size, stride, padding
       [](const Tensors& x, const Options& o) {
         return at::max_pool2d(x[0], {o[0], o[0]}, {o[1], o[1]}, {o[2], o[2]});
       }},
      {"conv2d",  // stride, padding, groups
       [](const Tensors& x, const Options& o) {
         return at::conv2d(x[0], x[1], x[2], {o[0], o[0]}, {o[1], o[1]}, {1, 1}, o[2]);
       }},
      {"pad", [](const Tensors& x,
                 const Options& o) { return at::constant_pad_nd(x[0], {o[0], o[0], o[0], o[0]}); }},
      {"pixel_shuffle",
       [](const Tensors& x, const Options& o) { return at::pixel_shuffle(x[0], o[0]); }},
      {"pixel_unshuffle",
       [](const Tensors& x, const Options& o) { return at::pixel_unshuffle(x[0], o[0]); }},
      {"nearest", [](const Tensors& x,
                     const Options& o) { return at::upsample_nearest2d(x[0], {o[0], o[0]}); }},
      {"cat", [](const Tensors& x, const Options&) { return at::cat({x[0], x[1]}, 1); }},
      {"sum_images", [](const Tensors& x, const Options&) { return x[0].sum({2, 3}); }},
      {"mean_images", [](const Tensors& x, const Options&) { return x[0].mean({2, 3}); }},
      {"prelu", [](const Tensors& x, const Options&) { return at::prelu(x[0], x[1]); }},
#if TORCH_VERSION_MAJOR >= 2
      {"attention/sdpa",
       [](const Tensors& x, const Options& o) {
         return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0, o[0] != 0);
       }},
#endif
      {"attention",  // causal
       [](const Tensors& x, const Options& o) {
         auto scores = at::matmul(x[0], x[1].transpose(-2, -1)) / std::sqrt(double(x[0].size(-1)));
         if (o[0])
           scores =
               scores.masked_fill(torch::ones({x[0].size(-2), x[1].size(-2)}, torch::kBool).triu(1),
                                  -std::numeric_limits<float>::infinity());
         return at::matmul(at::softmax(scores, -1), x[2]);
       }},
  };
  return all;
}

// The call of an op in a form, or of its gradients.
bench::Call op(const bench::Case& c, DType dtype, bool backward, const Form& form) {
  const auto type = dtype == bf16 ? torch::kBFloat16 : torch::kFloat;
  Tensors inputs, leaves;
  for (const bench::CaseInput& in : c.inputs) {
    const std::vector<int64_t> shape(in.shape.begin(), in.shape.end());
    if (in.classes > 0) {
      inputs.push_back(torch::randint(0, in.classes, shape, torch::kLong));
    } else {
      const auto x = torch::randn(shape).to(type);
      inputs.push_back(
          form.channels_last && x.dim() == 4 ? x.contiguous(at::MemoryFormat::ChannelsLast) : x);
      if (backward) leaves.push_back(inputs.back().requires_grad_());
    }
  }
  const Op run = ops().at(form.sdpa ? c.op + "/sdpa" : c.op);
  const Options options = c.options;
  if (!backward)
    return [=] {
      torch::NoGradGuard off;
      run(inputs, options);
    };
  const auto y = run(inputs, options), dy = torch::randn_like(y);
  return [=] { torch::autograd::grad({y}, leaves, {dy}, /*retain_graph=*/true); };
}

}  // namespace

bool has(const bench::Case& c, DType dtype) { return dtype != f16 && ops().contains(c.op); }

bench::Task op(const bench::Case& c, DType dtype, bool backward) {
  Choices choices;
  if (c.inputs[0].shape.size() == 4 && c.op != "attention")
    choices.push_back({"channels-last", &Form::channels_last});
  if (ops().contains(c.op + "/sdpa"))
    choices.push_back({"scaled_dot_product_attention", &Form::sdpa});
  return fastest(choices, at::get_num_threads(),
                 [&](const Form& form) -> bench::Call { return op(c, dtype, backward, form); });
}

}  // namespace mixtape::peers
