// Matrix products of shapes from training, compared with Eigen and, if their libraries are found,
// OpenBLAS and oneDNN (whose bf16 products are f32).

#include <fmt/format.h>

#include "bench/peers/blas.h"
#include "core/random.h"
#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/kernels.h"
#include "mixtape.h"

namespace mixtape::bench {
namespace {

using kernels::Isa;
using kernels::IsaLimit;

// [batch, rows, columns]; column-major if `transposed`.
Tensor operand(DType dtype, int64_t batch, int64_t rows, int64_t columns, bool transposed) {
  const Seed seed(1);
  if (transposed) return operand(dtype, batch, columns, rows, false).t();
  return randn({batch, rows, columns}).to(dtype);
}

void multiply(const Tensor& a, const Tensor& b, const Tensor& c) {
  kernels::Launch launch(Device::cpu());
  kernels::gemm(launch, a, b, kernels::Epilogue{}, c);
}

// A peer's product, after checking its result against ours.
Call checked(const std::string& peer, const Tensor& a, const Tensor& b, const Tensor& c) {
  const Call call = peers::product(peer, a, b, c);
  const Tensor ours(c.shape(), f32);
  multiply(a, b, ours);
  call();
  check(norm(c - ours).item() <= 1e-5 * norm(ours).item(), "{} gives another product of {} and {}",
        peer, a.shape(), b.shape());
  return call;
}

// gemm/NAME/LAYOUT/MxNxK; the layout is T (transposed) or N for each of a and b.
void product(const std::string& name, const std::string& layout, int64_t m, int64_t n, int64_t k,
             int64_t batch = 1) {
  m = pick(m, 3), n = pick(n, 5), k = pick(k, 4), batch = pick(batch, 2);
  const double operations = 2.0 * double(batch) * double(m) * double(n) * double(k);
  const auto bytes = [=](DType dtype, DType result) {
    return [=] {
      return double(batch) * (double(m * k + k * n) * double(size_of(dtype)) +
                              double(m * n) * double(size_of(result)));
    };
  };
  const auto with_operands = [=](DType dtype, DType result, auto make) {
    return [=] {
      return make(operand(dtype, batch, m, k, layout[0] == 'T'),
                  operand(dtype, batch, k, n, layout[1] == 'T'), Tensor({batch, m, n}, result));
    };
  };
  std::vector<Variant> variants;
  const auto add = [&](DType dtype, const std::string& peer, DType result, auto make) {
    variants.push_back(
        {dtype, peer, operations, bytes(dtype, result), with_operands(dtype, result, make)});
  };
  for (const DType dtype : {f32, f16, bf16})
    add(dtype, "", dtype, [](const Tensor& a, const Tensor& b, const Tensor& c) {
      return Call([=] { multiply(a, b, c); });
    });
  add(f32, "eigen", f32, [](const Tensor& a, const Tensor& b, const Tensor& c) {
    return Call([=] {
      const IsaLimit portable(Isa::Portable);
      multiply(a, b, c);
    });
  });
  for (const DType dtype : {f32, bf16})
    for (const std::string& peer : peers::blas(dtype))
      add(dtype, peer, f32, [=](const Tensor& a, const Tensor& b, const Tensor& c) {
        return checked(peer, a, b, c);
      });
  compare(fmt::format("gemm/{}/{}/{}{}x{}x{}", name, layout,
                      batch > 1 ? fmt::format("{}x", batch) : "", m, n, k),
          variants);
}

void declare() {
  on_threads(peers::set_blas_threads);
  for (const int64_t n : {128, 256, 512, 1024, 2048})
    for (const char* layout : {"NN", "NT", "TN"}) product("square", layout, n, n, n);
  // y = x wT, dx = dy w, dw = dyT x
  const auto linear = [&](const char* name, int64_t rows, int64_t in, int64_t out) {
    product(name, "NT", rows, out, in);
    product(name, "NN", rows, in, out);
    product(name, "TN", out, in, rows);
  };
  linear("small", 64, 784, 256);
  linear("mlp_in", 128, 784, 512);
  linear("mlp_hidden", 128, 512, 512);
  linear("mlp_out", 128, 512, 10);
  linear("gpt_qkv", 768, 128, 384);
  linear("gpt_proj", 768, 128, 128);
  linear("gpt_up", 768, 128, 512);
  linear("gpt_down", 768, 512, 128);
  linear("gpt_logits", 768, 128, 65);
  linear("gpt2_up", 256, 768, 3072);
  product("attention", "NT", 64, 64, 32, 48);  // q kT
  product("attention", "NN", 64, 32, 64, 48);  // p v
  product("attention", "TN", 64, 32, 64, 48);  // pT do
  if (!settings().full && !settings().smoke) return;
  linear("demo_fc", 64, 1600, 128);
  linear("gpt2_qkv", 256, 768, 2304);
  // Convolutions of ResNet-50 as [channels, taps] by [taps, pixels].
  product("resnet_1x1", "NN", 256, 3136, 64);
  product("resnet_3x3", "NN", 128, 784, 1152);
  product("resnet_deep", "NN", 512, 49, 4608);
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) { return mixtape::bench::run(argc, argv, mixtape::bench::declare); }
