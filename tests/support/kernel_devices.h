#pragma once
// The CUDA kernels by name, for tests of a build whose table of kernels does not have them yet.

#include <functional>

#include "kernels/kernels.h"

namespace mixtape::kernels {

// (The emulator's memory is the CPU's.)
inline void on_device(const std::function<void(Launch&)>& body) {
  Launch l(Device::cpu());
  body(l);
}

namespace cuda {
void gemm(Launch&, In a, In b, In bias, Out c);
void unary(Launch&, int op, In x, const Numbers& numbers, Out y);
void unary_grad(Launch&, int op, In v, In dy, const Numbers& numbers, Out dx);
void binary(Launch&, int op, In a, In b, Out c);
void binary_scalar(Launch&, int op, In a, double b, bool swapped, Out c);
void binary_grad(Launch&, int op, In a, In b, In c, In dy, Out da, Out db);
void binary_scalar_grad(Launch&, int op, In a, double b, bool swapped, In c, In dy, Out da);
void plus_scaled(Launch&, int op, In x, In a, In b, double s, Out y);
void where(Launch&, In condition, In a, In b, Out c);
void convert(Launch&, In x, Out y);
void fill(Launch&, double value, Out y);
void arange(Launch&, double start, double step, Out y);
void linspace(Launch&, double start, double stop, Out y);
void accumulate(Launch&, In x, Out y);
void triangle(Launch&, bool upper, int64_t diagonal, In x, Out y);
void elementwise_loss(Launch&, int op, In x, In target, double s, Out y);
void elementwise_loss_grad(Launch&, int op, In x, In target, double s, In dy, Out dx, Out dtarget);
void cell(Launch&, Cell kind, In x, In h, Out state, Out kept, Out y);
void cell_grad(Launch&, Cell kind, In kept, In before, In y, In dy, In dnext, Out carry, Out dx,
               Out dh);
void reduce(Launch&, Reduce op, In x, Out y);
void random_uniform(Launch&, uint64_t seed, uint64_t offset, double low, double high, Out y);
void random_normal(Launch&, uint64_t seed, uint64_t offset, double mean, double std, Out y);
void random_integer(Launch&, uint64_t seed, uint64_t offset, int64_t low, int64_t high, Out y);
void dropout(Launch&, uint64_t seed, uint64_t offset, double p, In x, Out y);
void softmax(Launch&, bool log, In x, Out y);
void softmax_grad(Launch&, bool log, In y, In dy, Out dx);
void logsumexp(Launch&, In x, Out y);
void masked_softmax(Launch&, In x, In mask, In bias, bool causal, double scale, Out y);
void max_pool2d(Launch&, In x, const Sampling& rows, const Sampling& columns, Out y, Out index);
void put_at(Launch&, In y, In index, Out x);
void take_at(Launch&, In x, In index, Out y);
void conv2d(Launch&, In x, In w, In bias, const Window& window, Out y);
void conv2d_input(Launch&, In dy, In w, In bias, const Window& window, Out dx);
void conv2d_weight(Launch&, In x, In dy, const Window& window, Out dw);
void resample(Launch&, In x, const Sampling& rows, const Sampling& columns, bool transposed, Out y);
void gather(Launch&, int dim, In x, In index, Out y);
void scatter(Launch&, int dim, In index, In x, Out y);
void scatter_add(Launch&, int dim, In index, In x, Out y);
void bounds(Launch&, In x, Out low_high);
void nonzero(Launch&, In mask, Out index);
void argsort(Launch&, bool descending, In x, Out index);
void topk(Launch&, bool largest, In x, Out index);
void arg_reduce(Launch&, Reduce op, int dim, In x, Out y);
void scan(Launch&, bool transposed, int dim, In a, In b, Out y);
void unscale(Launch&, std::span<const View> grads, In inv_scale, Out found);
void find_nonfinite(Launch&, std::span<const View> grads, In inv_scale, Out found);
void grad_norm(Launch&, std::span<const View> grads, double p, Out norm);
void clip_factor(Launch&, In grad_norm, In scale, double max_norm, Out norm, Out factor);
void clip_value(Launch&, std::span<const View> grads, double limit);
void scaler_verdict(Launch&, In found, std::span<const View> losses, Out verdict, Out last);
void scaler_update(Launch&, std::span<const View> found, std::span<const View> losses,
                   const ScalerRule& rule, Out scale, Out counts, Out history);
void sgd(Launch&, std::span<const Update> updates, const SgdRule& rule, const StepControl& control);
void adam(Launch&, std::span<const Update> updates, const AdamRule& rule,
          const StepControl& control);
void rmsprop(Launch&, std::span<const Update> updates, const RmspropRule& rule,
             const StepControl& control);
void adagrad(Launch&, std::span<const Update> updates, const AdagradRule& rule,
             const StepControl& control);
void adadelta(Launch&, std::span<const Update> updates, const AdadeltaRule& rule,
              const StepControl& control);
void lion(Launch&, std::span<const Update> updates, const LionRule& rule,
          const StepControl& control);
void lamb(Launch&, std::span<const Update> updates, const LambRule& rule,
          const StepControl& control);
void muon(Launch&, std::span<const Update> updates, const MuonRule& rule,
          const StepControl& control);
void cross_entropy(Launch&, In x, In target, In w, int64_t ignore, double smoothing, Out loss,
                   Out lse);
void cross_entropy_grad(Launch&, In x, In target, In w, In lse, In dloss, int64_t ignore,
                        double smoothing, Out dx);
void row_products(Launch&, In x, In y, Out products);
void nll_loss(Launch&, In x, In target, In w, int64_t ignore, Out y);
void nll_loss_grad(Launch&, In target, In w, int64_t ignore, In dy, Out dx);
void layer_norm(Launch&, In x, In w, In b, double eps, Out y, Out mean, Out rstd);
void layer_norm_grad(Launch&, In x, In w, In mean, In rstd, In dy, Out dx, Out dw, Out db);
void group_norm(Launch&, In x, int64_t groups, In w, In b, double eps, Out y, Out mean, Out rstd);
void group_norm_grad(Launch&, In x, int64_t groups, In w, In mean, In rstd, In dy, Out dx, Out dw,
                     Out db);
void batch_stats(Launch&, In x, double eps, Out mean, Out var, Out rstd);
void batch_norm(Launch&, In x, In mean, In rstd, In w, In b, Out y);
void batch_norm_grad(Launch&, In x, In mean, In rstd, In w, In dy, bool fixed_stats, Out dx, Out dw,
                     Out db);
}  // namespace cuda

}  // namespace mixtape::kernels
