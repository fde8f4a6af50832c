#pragma once
// Modules that few networks need: volumes, further pads and activations, windows as columns, the
// whole transformer. They are not in <mixtape.h>, to keep its include cheap.

#include "nn/activation.h"
#include "nn/conv.h"
#include "nn/dropout.h"
#include "nn/loss.h"
#include "nn/norm.h"
#include "nn/pool.h"
#include "nn/sequential.h"
#include "nn/shape.h"
#include "nn/transformer.h"

namespace mixtape::nn {

struct Hardtanh : OpModule<Hardtanh, hardtanh, double, double> {
  explicit Hardtanh(double low = -1, double high = 1) : OpModule(low, high) {}
};
struct CELU : OpModule<CELU, celu, double> {
  explicit CELU(double alpha = 1) : OpModule(alpha) {}
};
struct Softshrink : OpModule<Softshrink, softshrink, double> {
  explicit Softshrink(double size = 0.5) : OpModule(size) {}
};
struct Hardshrink : OpModule<Hardshrink, hardshrink, double> {
  explicit Hardshrink(double size = 0.5) : OpModule(size) {}
};
// x where x is above `threshold`, elsewhere `value`.
struct Threshold : OpModule<Threshold, mixtape::threshold, double, double> {
  Threshold(double threshold, double value) : OpModule(threshold, value) {}
};
struct Tanhshrink : OpModule<Tanhshrink, tanhshrink> {};

// Multiplies each x below zero by a random number from [lower, upper), in evaluation by the mean of
// both (Xu et al. 2015).
struct RReLU : Module<RReLU> {
  explicit RReLU(double lower = 1.0 / 8, double upper = 1.0 / 3) : lower_(lower), upper_(upper) {}
  Tensor forward(const Tensor& x) const {
    return is_training() ? rrelu(x, lower_, upper_) : leaky_relu(x, (lower_ + upper_) / 2);
  }
  MIXTAPE_FIELDS()

 private:
  double lower_, upper_;
};
struct Softmin : OpModule<Softmin, softmin, int> {
  explicit Softmin(int dim = -1) : OpModule(dim) {}
};
// The softmax over the channels of images [n, c, h, w] or [c, h, w].
struct Softmax2d : Module<Softmax2d> {
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS()
};

struct Dropout1d : ChannelDropout<Dropout1d, 2> {  // [n, c, length] or [c, length]
  using ChannelDropout::ChannelDropout;
};
struct Dropout3d : ChannelDropout<Dropout3d, 4> {  // [n, c, d, h, w] or [c, d, h, w]
  using ChannelDropout::ChannelDropout;
};
// Dropout for networks of SELU: in training, sets each element with probability p to SELU's limit,
// and scales and moves all so that a mean of 0 and a variance of 1 stay (Klambauer et al. 2017).
struct AlphaDropout : Module<AlphaDropout> {
  explicit AlphaDropout(double p = 0.5) : p_(checked_probability("AlphaDropout", p)) {}
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS()

 private:
  double p_;
};

// x1 [..., in1], x2 [..., in2] -> [..., out]: x1^T W_o x2 + b_o for each output o. Weight and bias
// start uniform within 1 / sqrt(in1).
struct Bilinear : Module<Bilinear> {
  Tensor weight;  // [out, in1, in2]
  Tensor bias;    // [out], or none

  Bilinear(int64_t in1, int64_t in2, int64_t out, bool with_bias = true);
  Tensor forward(const Tensor& x1, const Tensor& x2) const {
    return bilinear(x1, x2, weight, bias);
  }
  MIXTAPE_FIELDS(weight, bias)
};
// |x - y + eps|, a p-norm over the last dimension
struct PairwiseDistance : OpModule<PairwiseDistance, pairwise_distance, double, double, bool> {
  explicit PairwiseDistance(double p = 2, double eps = 1e-6, bool keepdim = false)
      : OpModule(p, eps, keepdim) {}
};
// Takes a channel of each of `groups` groups in turn: [n, c, ...] -> [n, c, ...].
struct ChannelShuffle : OpModule<ChannelShuffle, channel_shuffle, int64_t> {
  explicit ChannelShuffle(int64_t groups) : OpModule(groups) {}
};

struct InstanceNorm1d : InstanceNorm<InstanceNorm1d, 3> {  // [n, c, length]
  using InstanceNorm::InstanceNorm;
};
struct InstanceNorm3d : InstanceNorm<InstanceNorm3d, 5> {  // [n, c, d, h, w]
  using InstanceNorm::InstanceNorm;
};
struct BatchNorm3d : BatchNorm<BatchNorm3d, 5, 5> {  // [n, c, d, h, w]
  using BatchNorm::BatchNorm;
};
struct LocalResponseNorm
    : OpModule<LocalResponseNorm, local_response_norm, int64_t, double, double, double> {
  explicit LocalResponseNorm(int64_t size, double alpha = 1e-4, double beta = 0.75, double k = 1)
      : OpModule(size, alpha, beta, k) {}
};

// Pads sequences [..., length] by `size` elements on each side, or by left and right.
template <class Derived, PadMode mode>
struct Pad1d : OpModule<Derived, pad, std::vector<int64_t>, PadMode, double> {
  explicit Pad1d(int64_t size) : Pad1d(size, size) {}
  Pad1d(int64_t left, int64_t right) : Pad1d::OpModule({left, right}, mode, 0) {}
};
struct ZeroPad1d : Pad1d<ZeroPad1d, PadMode::Constant> {
  using Pad1d::Pad1d;
};
struct ReflectionPad1d : Pad1d<ReflectionPad1d, PadMode::Reflect> {
  using Pad1d::Pad1d;
};
struct ReplicationPad1d : Pad1d<ReplicationPad1d, PadMode::Replicate> {
  using Pad1d::Pad1d;
};
struct CircularPad1d : Pad1d<CircularPad1d, PadMode::Circular> {
  using Pad1d::Pad1d;
};
struct CircularPad2d : Pad2d<CircularPad2d, PadMode::Circular> {
  using Pad2d::Pad2d;
};
// Pads with a value: {left, right} of the last dimension, then those of the dimensions before it.
struct ConstantPad : OpModule<ConstantPad, pad, std::vector<int64_t>, PadMode, double> {
  ConstantPad(std::vector<int64_t> sizes, double value)
      : OpModule(std::move(sizes), PadMode::Constant, value) {}
};

// [n, c, h, w] -> [n, c window, windows]
struct Unfold : Module<Unfold> {
  explicit Unfold(Size2 window, const UnfoldOptions& o = {}) : window_(window), options_(o) {}
  Unfold(Size2 window, Size2 dilation, Size2 padding = 0, Size2 stride = 1)
      : Unfold(window, UnfoldOptions{{}, dilation, padding, stride}) {}
  Tensor forward(const Tensor& x) const { return unfold(x, window_, options_); }
  MIXTAPE_FIELDS()

 private:
  Size2 window_;
  UnfoldOptions options_;
};
// [n, c window, windows] -> [n, c, size]
struct Fold : OpModule<Fold, fold, Size2, Size2, UnfoldOptions> {
  Fold(Size2 size, Size2 window, const UnfoldOptions& o = {}) : OpModule(size, window, o) {}
  Fold(Size2 size, Size2 window, Size2 dilation, Size2 padding = 0, Size2 stride = 1)
      : Fold(size, window, UnfoldOptions{{}, dilation, padding, stride}) {}
};

// [n, in, d, h, w] -> [n, out, d', h', w']
struct Conv3d : Module<Conv3d> {
  struct Options {
    ByName by_name = {};
    Size3 stride = 1, padding = 0, dilation = 1;
    int64_t groups = 1;
    bool bias = true;
    PadMode padding_mode = PadMode::Constant;
  };
  Tensor weight;  // [out, in / groups, kd, kh, kw]
  Tensor bias;    // [out], or none

  Conv3d(int64_t in, int64_t out, Size3 kernel, Size3 stride = 1, Size3 padding = 0)
      : Conv3d(in, out, kernel, Options{.stride = stride, .padding = padding}) {}
  Conv3d(int64_t in, int64_t out, Size3 kernel, const Options& options);
  Tensor forward(const Tensor& x) const { return conv3d(padding_(x), weight, bias, options_); }
  MIXTAPE_FIELDS(weight, bias)

 private:
  ConvPadding padding_;
  Conv3dOptions options_;
};
// The gradient of a Conv3d as a layer.
struct ConvTranspose3d : Module<ConvTranspose3d> {
  using Options = ConvTransposeOptions<Size3>;
  Tensor weight;  // [in, out / groups, kd, kh, kw]
  Tensor bias;    // [out], or none

  ConvTranspose3d(int64_t in, int64_t out, Size3 kernel, Size3 stride = 1, Size3 padding = 0)
      : ConvTranspose3d(in, out, kernel, Options{.stride = stride, .padding = padding}) {}
  ConvTranspose3d(int64_t in, int64_t out, Size3 kernel, const Options& options);
  Tensor forward(const Tensor& x) const { return conv_transpose3d(x, weight, bias, options_); }
  MIXTAPE_FIELDS(weight, bias)

 private:
  ConvTranspose3dOptions options_;
};
struct MaxPool3d : WindowPool<MaxPool3d, Size3, Pool3dOptions, max_pool3d> {
  using WindowPool::WindowPool;
};
struct AvgPool3d : WindowPool<AvgPool3d, Size3, Pool3dOptions, avg_pool3d> {
  using WindowPool::WindowPool;
};
struct AdaptiveAvgPool3d : OpModule<AdaptiveAvgPool3d, adaptive_avg_pool3d, Size3> {
  explicit AdaptiveAvgPool3d(Size3 size) : OpModule(size) {}
};
struct AdaptiveMaxPool3d : OpModule<AdaptiveMaxPool3d, adaptive_max_pool3d, Size3> {
  explicit AdaptiveMaxPool3d(Size3 size) : OpModule(size) {}
};

struct TransformerOptions {
  int64_t encoder_layers = 6, decoder_layers = 6;
  TransformerEncoderLayerOptions layer = {};  // of each layer
};
struct TransformerMasks {
  AttentionMasks src = {}, tgt = {}, memory = {};
};
// An encoder of a source, and a decoder of a target that attends to the encoder's output (Vaswani
// et al. 2017), each with a norm at its end. Matrices start Xavier uniform.
struct Transformer : Module<Transformer> {
  TransformerEncoder encoder;
  TransformerDecoder decoder;

  Transformer(int64_t size, int64_t heads, const TransformerOptions& o = {});
  Transformer(int64_t size, int64_t heads, std::integral auto encoder_layers,
              int64_t decoder_layers, int64_t dim_feedforward = 2048, double dropout = 0.1)
      : Transformer(size, heads,
                    TransformerOptions{
                        int64_t(encoder_layers), decoder_layers, {dim_feedforward, dropout}}) {}
  // src [s, b, size] and tgt [t, b, size], or batch first -> the shape of tgt.
  Tensor forward(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks = {}) const {
    return decoder(tgt, encoder(src, masks.src), masks.tgt, masks.memory);
  }
  MIXTAPE_FIELDS(encoder, decoder)
};

// logits [n, classes], target i64 [n]
struct MultiMarginLoss : WeightedLoss<MultiMarginLoss, multi_margin_loss, MultiMarginOptions,
                                      &MultiMarginOptions::class_weights> {
  explicit MultiMarginLoss(MultiMarginOptions o = {}) : WeightedLoss(std::move(o)) {}
};
// logits [n, classes], target i64 [n, classes]: a sample's classes, then a negative number
struct MultiLabelMarginLoss : OpModule<MultiLabelMarginLoss, multilabel_margin_loss, LossOptions> {
  explicit MultiLabelMarginLoss(const LossOptions& o = {}) : OpModule(o) {}
};
// logits and target [n, classes]
struct MultiLabelSoftMarginLoss
    : WeightedLoss<MultiLabelSoftMarginLoss, multilabel_soft_margin_loss,
                   MultiLabelSoftMarginOptions, &MultiLabelSoftMarginOptions::class_weights> {
  explicit MultiLabelSoftMarginLoss(MultiLabelSoftMarginOptions o = {})
      : WeightedLoss(std::move(o)) {}
};
struct CTCLoss : OpModule<CTCLoss, ctc_loss, CtcOptions> {
  explicit CTCLoss(const CtcOptions& o = {}) : OpModule(o) {}
};

struct AdaptiveLogSoftmaxOutput {
  Tensor output;  // [n]: log probabilities of the targets
  Tensor loss;    // [], minus the mean of output
  std::array<Tensor*, 2> tensors() { return {&output, &loss}; }
};
// The log-softmax of many classes, sorted by how often they occur (Grave et al. 2017). The head has
// the classes before cutoffs[0] and one class for each following cluster; clusters end at the next
// cutoff, the last one at `classes`. Each cluster's layers are narrower by 1 / div_value than those
// of the one before, and see only rows whose target is in the cluster. Waits for the device.
struct AdaptiveLogSoftmaxWithLoss : Module<AdaptiveLogSoftmaxWithLoss> {
  struct Options {
    double div_value = 4;
    bool head_bias = false;
  };
  Linear head;
  std::vector<Sequential> tail;  // of each cluster, two Linears without bias

  AdaptiveLogSoftmaxWithLoss(int64_t in, int64_t classes, std::vector<int64_t> cutoffs)
      : AdaptiveLogSoftmaxWithLoss(in, classes, std::move(cutoffs), {}) {}
  AdaptiveLogSoftmaxWithLoss(int64_t in, int64_t classes, std::vector<int64_t> cutoffs,
                             const Options& o);
  // x [n, in], targets [n]
  AdaptiveLogSoftmaxOutput forward(const Tensor& x, const Tensor& target) const;
  Tensor log_prob(const Tensor& x) const;  // [n, classes]
  Tensor predict(const Tensor& x) const;   // i64 [n], the likeliest classes
  MIXTAPE_FIELDS(head, tail)

 private:
  int64_t classes() const { return ends_.back(); }
  int64_t common() const { return ends_.front(); }  // number of classes in the head

  std::vector<int64_t> ends_;  // of the head's classes, and of each cluster's
};

}  // namespace mixtape::nn
