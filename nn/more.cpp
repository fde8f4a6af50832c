#include "nn/more.h"

#include "nn/init.h"

namespace mixtape::nn {
using namespace internal;
namespace {

void check_groups(int64_t in, int64_t out, int64_t groups) {
  check(in > 0 && out > 0 && groups > 0 && in % groups == 0 && out % groups == 0,
        "{} and {} channels do not divide into {} groups", in, out, groups);
}

}  // namespace

Conv3d::Conv3d(int64_t in, int64_t out, Size3 kernel, const Options& o)
    : options_{o.stride, o.padding, o.dilation, o.groups} {
  const Scope scope("Conv3d");
  check_groups(in, out, o.groups);
  weight = init::starting_weight({out, in / o.groups, kernel.d, kernel.h, kernel.w});
  bias = init::starting_bias(weight, out, o.bias);
}

ConvTranspose3d::ConvTranspose3d(int64_t in, int64_t out, Size3 kernel, const Options& o)
    : options_{o.stride, o.padding, o.output_padding, o.dilation, o.groups} {
  const Scope scope("ConvTranspose3d");
  check_groups(in, out, o.groups);
  weight = init::starting_weight({in, out / o.groups, kernel.d, kernel.h, kernel.w});
  bias = init::starting_bias(weight, out, o.bias);
}

Transformer::Transformer(int64_t size, int64_t heads, const TransformerOptions& o)
    : encoder(TransformerEncoderLayer(size, heads, o.layer), o.encoder_layers,
              LayerNorm(size, {.eps = o.layer.layer_norm_eps})),
      decoder(TransformerDecoderLayer(size, heads, o.layer), o.decoder_layers,
              LayerNorm(size, {.eps = o.layer.layer_norm_eps})) {
  for (const Tensor& p : parameters())
    if (p.rank() > 1) init::xavier_uniform_(p);
}

}  // namespace mixtape::nn
