#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "kernels/kernels.h"
#include <string>
namespace mixtape::kernels::cuda {
void unary(Launch&,  int op, In x, const Numbers& numbers, Out y) { raise("kernel unary missing"); }
void unary_grad(Launch&,  int op, In v, In dy, const Numbers& numbers,
               Out dx) { raise("kernel unary_grad missing"); }
void binary(Launch&,  int op, In a, In b,
               Out c) { raise("kernel binary missing"); }
void binary_scalar(Launch&,  int op, In a, double b, bool swapped,
               Out c) { raise("kernel binary_scalar missing"); }
void binary_grad(Launch&,  int op, In a, In b, In c, In dy, Out da, Out db) { raise("kernel binary_grad missing"); }
void binary_scalar_grad(Launch&,  int op, In a, double b, bool swapped, In c, In dy,
               Out da) { raise("kernel binary_scalar_grad missing"); }
void plus_scaled(Launch&,  int op, In x, In a, In b, double s,
               Out y) { raise("kernel plus_scaled missing"); }
void where(Launch&,  In condition, In a, In b, Out c) { raise("kernel where missing"); }
void linspace(Launch&,  double start, double stop, Out y) { raise("kernel linspace missing"); }
void triangle(Launch&,  bool upper, int64_t diagonal, In x, Out y) { raise("kernel triangle missing"); }
void gather(Launch&,  int dim, In x, In index, Out y) { raise("kernel gather missing"); }
void scatter(Launch&,  int dim, In index, In x, Out y) { raise("kernel scatter missing"); }
void scatter_add(Launch&,  int dim, In index, In x, Out y) { raise("kernel scatter_add missing"); }
void bounds(Launch&,  In x, Out low_high) { raise("kernel bounds missing"); }
void nonzero(Launch&,  In mask, Out index) { raise("kernel nonzero missing"); }
void argsort(Launch&,  bool descending, In x, Out index) { raise("kernel argsort missing"); }
void topk(Launch&,  bool largest, In x, Out index) { raise("kernel topk missing"); }
void scan(Launch&,  bool transposed, int dim, In a, In b, Out y) { raise("kernel scan missing"); }
void arg_reduce(Launch&,  Reduce op, int dim, In x,
               Out y) { raise("kernel arg_reduce missing"); }
void conv2d(Launch&,  In x, In w, In bias, const Window& window,
               Out y) { raise("kernel conv2d missing"); }
void conv2d_input(Launch&,  In dy, In w, In bias, const Window& window,
               Out dx) { raise("kernel conv2d_input missing"); }
void conv2d_weight(Launch&,  In x, In dy, const Window& window, Out dw) { raise("kernel conv2d_weight missing"); }
void max_pool2d(Launch&,  In x, const Sampling& rows, const Sampling& columns, Out y,
               Out index) { raise("kernel max_pool2d missing"); }
void put_at(Launch&,  In y, In index, Out x) { raise("kernel put_at missing"); }
void take_at(Launch&,  In x, In index, Out y) { raise("kernel take_at missing"); }
void resample(Launch&,  In x, const Sampling& rows, const Sampling& columns, bool transposed,
               Out y) { raise("kernel resample missing"); }
void softmax(Launch&,  bool log, In x, Out y) { raise("kernel softmax missing"); }
void softmax_grad(Launch&,  bool log, In y, In dy, Out dx) { raise("kernel softmax_grad missing"); }
void logsumexp(Launch&,  In x, Out y) { raise("kernel logsumexp missing"); }
void masked_softmax(Launch&,  In x, In mask, In bias, bool causal, double scale, Out y) { raise("kernel masked_softmax missing"); }
void layer_norm(Launch&,  In x, In w, In b, double eps, Out y, Out mean,
               Out rstd) { raise("kernel layer_norm missing"); }
void layer_norm_grad(Launch&,  In x, In w, In mean, In rstd, In dy, Out dx, Out dw,
               Out db) { raise("kernel layer_norm_grad missing"); }
void cross_entropy(Launch&,  In x, In target, In w, int64_t ignore, double smoothing, Out loss,
               Out lse) { raise("kernel cross_entropy missing"); }
void cross_entropy_grad(Launch&,  In x, In target, In w, In lse, In dloss, int64_t ignore,
               double smoothing, Out dx) { raise("kernel cross_entropy_grad missing"); }
void row_products(Launch&,  In x, In y, Out products) { raise("kernel row_products missing"); }
void elementwise_loss(Launch&,  int op, In x, In target, double s,
               Out y) { raise("kernel elementwise_loss missing"); }
void elementwise_loss_grad(Launch&,  int op, In x, In target, double s, In dy, Out dx,
               Out dtarget) { raise("kernel elementwise_loss_grad missing"); }
void nll_loss(Launch&,  In x, In target, In w, int64_t ignore, Out y) { raise("kernel nll_loss missing"); }
void nll_loss_grad(Launch&,  In target, In w, int64_t ignore, In dy, Out dx) { raise("kernel nll_loss_grad missing"); }
void group_norm(Launch&,  In x, int64_t groups, In w, In b, double eps, Out y, Out mean, Out rstd) { raise("kernel group_norm missing"); }
void group_norm_grad(Launch&,  In x, int64_t groups, In w, In mean, In rstd, In dy, Out dx, Out dw,
               Out db) { raise("kernel group_norm_grad missing"); }
void batch_stats(Launch&,  In x, double eps, Out mean, Out var,
               Out rstd) { raise("kernel batch_stats missing"); }
void batch_norm(Launch&,  In x, In mean, In rstd, In w, In b,
               Out y) { raise("kernel batch_norm missing"); }
void batch_norm_grad(Launch&,  In x, In mean, In rstd, In w, In dy, bool fixed_stats, Out dx,
               Out dw, Out db) { raise("kernel batch_norm_grad missing"); }
void cell(Launch&,  Cell kind, In x, In h, Out state, Out kept, Out y) { raise("kernel cell missing"); }
void cell_grad(Launch&,  Cell kind, In kept, In before, In y, In dy, In dnext, Out carry, Out dx,
               Out dh) { raise("kernel cell_grad missing"); }
void unscale(Launch&,  std::span<const View> grads, In inv_scale,
               Out found) { raise("kernel unscale missing"); }
void find_nonfinite(Launch&,  std::span<const View> grads, In inv_scale,
               Out found) { raise("kernel find_nonfinite missing"); }
void grad_norm(Launch&,  std::span<const View> grads, double p,
               Out norm) { raise("kernel grad_norm missing"); }
void clip_factor(Launch&,  In grad_norm, In scale, double max_norm, Out norm, Out factor) { raise("kernel clip_factor missing"); }
void clip_value(Launch&,  std::span<const View> grads,
               double limit) { raise("kernel clip_value missing"); }
void scaler_verdict(Launch&,  In found, std::span<const View> losses, Out verdict, Out last) { raise("kernel scaler_verdict missing"); }
void scaler_update(Launch&,  std::span<const View> found, std::span<const View> losses,
               const ScalerRule& rule, Out scale, Out counts, Out history) { raise("kernel scaler_update missing"); }
void sgd(Launch&,  std::span<const Update> updates, const SgdRule& rule,
               const StepControl& control) { raise("kernel sgd missing"); }
void adam(Launch&,  std::span<const Update> updates, const AdamRule& rule,
               const StepControl& control) { raise("kernel adam missing"); }
void rmsprop(Launch&,  std::span<const Update> updates, const RmspropRule& rule,
               const StepControl& control) { raise("kernel rmsprop missing"); }
void adagrad(Launch&,  std::span<const Update> updates, const AdagradRule& rule,
               const StepControl& control) { raise("kernel adagrad missing"); }
void adadelta(Launch&,  std::span<const Update> updates, const AdadeltaRule& rule,
               const StepControl& control) { raise("kernel adadelta missing"); }
void lion(Launch&,  std::span<const Update> updates, const LionRule& rule,
               const StepControl& control) { raise("kernel lion missing"); }
void lamb(Launch&,  std::span<const Update> updates, const LambRule& rule,
               const StepControl& control) { raise("kernel lamb missing"); }
void muon(Launch&,  std::span<const Update> updates, const MuonRule& rule,
    const StepControl& control) { raise("kernel muon missing"); }
}