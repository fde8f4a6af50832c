#pragma once
// Every kernel, once: its name, its arguments, its implementations. This table is all that the
// layers above know about devices. A missing implementation is a link error.
//
// Rules for a kernel. It gets Views, never Tensors. It writes only its outputs and its scratch.
// Shapes and dtypes were checked by the op that calls it, so it has no error path. It computes in
// f32 or wider, reads its inputs in one dtype and writes its outputs in that dtype or, of narrow
// ones, in f32 (visit_float(in, out)). A parameter or statistic is read in its own dtype, f32 or
// the inputs'. It accepts any strides unless its line says "dense". Sums run in a fixed order that
// does not depend on the number of threads.

#include <span>
#include <utility>

#include "core/error.h"
#include "kernels/common/check_device.h"
#include "kernels/common/epilogue.h"
#include "kernels/common/launch.h"
#include "kernels/common/rules.h"
#include "kernels/common/sampling.h"

namespace mixtape::kernels {

using In = const View&;  // an optional input that is absent has no data
using Out = const View&;

template <class... Args>
struct Kernel {
  const char* name;
  void (*cpu)(Launch&, Args...);
  void (*cuda)(Launch&, Args...);

  template <class... A>
  void operator()(Device device, A&&... args) const {
    Launch launch(device);
    (*this)(launch, std::forward<A>(args)...);
  }
  template <class... A>
  void operator()(Launch& launch, A&&... args) const {
    auto* const run = launch.device.is_host() ? cpu : cuda;
    if (!run)
      raise(std::string("kernel '") + name + "' is not in this build for " +
            launch.device.to_string());
#ifdef MIXTAPE_EMULATED
    [&](Args... given) {
      (check_place(launch.device, name, given), ...);
      run(launch, given...);
    }(std::forward<A>(args)...);
#else
    run(launch, std::forward<A>(args)...);
#endif
  }
};
template <class... Args>
Kernel(const char*, void (*)(Launch&, Args...), void (*)(Launch&, Args...)) -> Kernel<Args...>;

#ifdef MIXTAPE_CUDA
#define MIXTAPE_KERNEL(name, ...)  \
  namespace cpu {                  \
  void name(Launch&, __VA_ARGS__); \
  }                                \
  namespace cuda {                 \
  void name(Launch&, __VA_ARGS__); \
  }                                \
  inline constexpr Kernel name { #name, &cpu::name, &cuda::name }
#else
#define MIXTAPE_KERNEL(name, ...)                                           \
  namespace cpu {                                                           \
  void name(Launch&, __VA_ARGS__);                                          \
  }                                                                         \
  inline constexpr Kernel name {                                            \
    #name, &cpu::name, static_cast<void (*)(Launch&, __VA_ARGS__)>(nullptr) \
  }
#endif

// The numbers that a unary op takes besides x: a slope, two bounds.
struct Numbers {
  double value[2] = {};
};

enum class Reduce : int { Sum, Mean, Max, Min, Prod, SumAbs, SumSquares, MaxAbs };
enum class Cell : int;  // kernels/common/cells.h

// Stride, padding and dilation of a convolution over the last two dimensions (rows, columns).
struct Window {
  int64_t size[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};
  int64_t groups = 1;
  // How many windows fit in `length` elements along direction d (0 rows, 1 columns).
  int64_t count(int64_t length, int d) const {
    return (length + 2 * padding[d] - dilation[d] * (size[d] - 1) - 1) / stride[d] + 1;
  }
};

// How a loss scale follows from what was found; see amp/scaler.h. Its counters are i32 [Total], in
// the order of ScalerCount: updates since growth, bad ones in a row, skips in a row, and of all
// updates how many there were, how many skipped, whether one would have taken the scale below
// min_scale since that was told, and the longest run of skips.
struct ScalePolicy {
  double growth, backoff, min_scale, max_scale;
  int64_t interval, hysteresis;
};
enum class ScalerCount : int { Growth, Bad, Skips, Ended, Skipped, AtFloor, Longest, Total };

// --- elementwise.h's ops, by position in its lists ---
MIXTAPE_KERNEL(unary, int op, In x, const Numbers& numbers, Out y);  // y = f(x, numbers...)
MIXTAPE_KERNEL(unary_grad, int op, In v, In dy, const Numbers& numbers,
               Out dx);  // dx = dy * f', v is x or y as the op keeps
MIXTAPE_KERNEL(binary, int op, In a, In b,
               Out c);  // c = f(a, b), same shape and dtype; numbers of all dtypes
MIXTAPE_KERNEL(binary_scalar, int op, In a, double b, bool swapped,
               Out c);  // c = f(a, b), or f(b, a) if swapped
// da = dy df/da, db = dy df/db. What a derivative does not read is absent, as is an output that is
// not wanted. dy has c's dtype; da and db have one dtype.
MIXTAPE_KERNEL(binary_grad, int op, In a, In b, In c, In dy, Out da, Out db);
MIXTAPE_KERNEL(binary_scalar_grad, int op, In a, double b, bool swapped, In c, In dy,
               Out da);  // the same of binary_scalar
MIXTAPE_KERNEL(plus_scaled, int op, In x, In a, In b, double s,
               Out y);                                   // y = x + s f(a, b): Sub, Mul and Div
MIXTAPE_KERNEL(where, In condition, In a, In b, Out c);  // c = condition ? a : b; condition bool

// --- moving ---
MIXTAPE_KERNEL(convert, In x, Out y);  // y = dtype(x): any dtype to any, any strides; also copies
MIXTAPE_KERNEL(fill, double value, Out y);
MIXTAPE_KERNEL(arange, double start, double step, Out y);    // dense; y[i] = start + i * step
MIXTAPE_KERNEL(linspace, double start, double stop, Out y);  // dense; both ends exact
MIXTAPE_KERNEL(accumulate, In x, Out y);  // y += x; y of x's dtype or, of a narrow one, f32
// x on one side of that diagonal of its last two dims (and on it), zeros on the other; dense.
MIXTAPE_KERNEL(triangle, bool upper, int64_t diagonal, In x, Out y);

// --- by index: i64, along dim, checked by the op; what has the same place meets in its order ---
// y[.., i, ..] = x[.., index[.., i, ..], ..]; other dims of x are as long as the index or longer.
MIXTAPE_KERNEL(gather, int dim, In x, In index, Out y);
// y[.., index[.., i, ..], ..] = x[.., i, ..]; the same of those of y.
MIXTAPE_KERNEL(scatter, int dim, In index, In x, Out y);
// The same with +=; y of x's dtype, f32 for a narrow one.
MIXTAPE_KERNEL(scatter_add, int dim, In index, In x, Out y);
MIXTAPE_KERNEL(bounds, In x, Out low_high);  // smallest and largest of an i64 tensor -> i64 [2]
// The places where a bool mask is true, in row-major order: i64 [count, rank]; dense.
MIXTAPE_KERNEL(nonzero, In mask, Out index);

// --- order: dense, x [rows, n]; positions i64 of the first to the last; stable, NaN is largest ---
MIXTAPE_KERNEL(argsort, bool descending, In x, Out index);  // [rows, n]
MIXTAPE_KERNEL(topk, bool largest, In x, Out index);        // [rows, k]

// --- scans: a, b and y of one shape ---
// y_i = a_i y_(i-1) + b_i along dim; transposed, y_i = a_(i+1) y_(i+1) + b_i. Without a, a is 1;
// without b, b is 0 and what comes before the first is 1. Integers to i64; floats sum in f64. (On
// CUDA neighbouring a's are multiplied before they meet y: where that overflows, 0 becomes NaN.)
MIXTAPE_KERNEL(scan, bool transposed, int dim, In a, In b, Out y);

// --- reductions: y has x's rank, with 1 where x is reduced ---
// Of floats only: the sum or largest of absolute values, the sum of squares.
MIXTAPE_KERNEL(reduce, Reduce op, In x, Out y);
MIXTAPE_KERNEL(arg_reduce, Reduce op, int dim, In x,
               Out y);  // Max or Min; first winner, NaN wins; y i64

// --- matrix products: f32 accumulation, any strides, leading dims are a batch, alike in both ---
MIXTAPE_KERNEL(gemm, In a, In b, const Epilogue& epilogue, Out c);  // c = a @ b, and more
MIXTAPE_KERNEL(conv2d, In x, In w, const Epilogue& epilogue, const Window& window,
               Out y);  // x [n,c,h,w], w [o,c/groups,kh,kw], bias [o], dense; no row sums
MIXTAPE_KERNEL(conv2d_input, In dy, In w, In bias, const Window& window,
               Out dx);  // dense; gradient of x, plus bias [c] if any; w, dy as in conv2d
MIXTAPE_KERNEL(conv2d_weight, In x, In dy, const Window& window, Out dw,
               Out db);  // dense; gradients of w and, if that is given, of bias [o], f32 or f64

// --- planes: dense, x [..., rows, columns] ---
MIXTAPE_KERNEL(max_pool2d, In x, const Sampling& rows, const Sampling& columns, Out y,
               Out index);  // of windows; index i32: row-major position in the plane of the first
                            // maximum; NaN wins
MIXTAPE_KERNEL(put_at, In y, In index, const Sampling& rows, const Sampling& columns,
               Out x);  // in each plane x[index[i]] += y[i], which lies in window i; x zeroed first
MIXTAPE_KERNEL(take_at, In x, In index, Out y);  // in each plane y[i] = x[index[i]]
MIXTAPE_KERNEL(resample, In x, const Sampling& rows, const Sampling& columns, bool transposed,
               Out y);  // y = R x CT, of the weights R of rows and C of columns; or y = RT x C

// --- rows: dense, x [rows, n]; statistics f32 (f64 for f64) [rows] ---
// (Those of softmax, logsumexp and cross_entropy may on the CPU be columns: cpu/softmax.h.)
MIXTAPE_KERNEL(softmax, bool log, In x, Out y);
MIXTAPE_KERNEL(softmax_grad, bool log, In y, In dy, Out dx);
MIXTAPE_KERNEL(logsumexp, In x, Out y);  // log(sum(exp(x))) of each row
// y = softmax(scale x + bias), x [..., queries, keys], only over keys that a bool mask allows, and
// if causal those up to the query's position; none allowed: zeros. x of y's dtype or f32; mask and
// bias optional, of x's shape, any strides. y may be x.
MIXTAPE_KERNEL(masked_softmax, In x, In mask, In bias, bool causal, double scale, Out y);
MIXTAPE_KERNEL(layer_norm, In x, In w, In b, double eps, Out y, Out mean,
               Out rstd);  // w, b [n] optional; without a mean it is RMS norm, around zero
MIXTAPE_KERNEL(layer_norm_grad, In x, In w, In mean, In rstd, In dy, Out dx, Out dw,
               Out db);  // absent outputs are not wanted
// Of the loss -sum(q log(softmax(x))) of each row, where q = w ((1 - smoothing) p + smoothing / n):
// p is 1 at the target, i64 [rows], or is the target [rows, n], of x's dtype or f32. w [n]
// optional. 0 where a target is `ignore`. lse [rows, 3]: the maximum and log(sum(exp(x -
// maximum))), whose sum would lose digits, and sum(q).
MIXTAPE_KERNEL(cross_entropy, In x, In target, In w, int64_t ignore, double smoothing, Out loss,
               Out lse);
MIXTAPE_KERNEL(cross_entropy_grad, In x, In target, In w, In lse, In dloss, int64_t ignore,
               double smoothing, Out dx);
MIXTAPE_KERNEL(row_products, In x, In y, Out products);  // [rows, 3]: x y, x x, y y; f32 or f64

// --- losses ---
MIXTAPE_KERNEL(elementwise_loss, int op, In x, In target, double s,
               Out y);  // losses.h's, by position in its list; x and target of one dtype
MIXTAPE_KERNEL(elementwise_loss_grad, int op, In x, In target, double s, In dy, Out dx,
               Out dtarget);  // of x's dtype; absent outputs are not wanted
// y = -w[target] x[target], 0 where that is `ignore`. x [n, classes, inner], w [classes] optional;
// target i64, y and dy [n, inner], dense, as is dx.
MIXTAPE_KERNEL(nll_loss, In x, In target, In w, int64_t ignore, Out y);
MIXTAPE_KERNEL(nll_loss_grad, In target, In w, int64_t ignore, In dy, Out dx);

// --- channels: dense, x [n, c, inner]; w, b optional, statistics [c], of groups [n * groups] ---
MIXTAPE_KERNEL(group_norm, In x, int64_t groups, In w, In b, double eps, Out y, Out mean, Out rstd);
MIXTAPE_KERNEL(group_norm_grad, In x, int64_t groups, In w, In mean, In rstd, In dy, Out dx, Out dw,
               Out db);  // absent outputs are not wanted
MIXTAPE_KERNEL(batch_stats, In x, double eps, Out mean, Out var,
               Out rstd);  // biased variance; f32 (f64 for f64)
MIXTAPE_KERNEL(batch_norm, In x, In mean, In rstd, In w, In b,
               Out y);  // y = (x - mean) * rstd * w + b
MIXTAPE_KERNEL(batch_norm_grad, In x, In mean, In rstd, In w, In dy, bool fixed_stats, Out dx,
               Out dw, Out db);  // fixed: mean and rstd are constants

// --- one step of a recurrent layer (kernels/common/cells.h): rows of k runs of n dense numbers ---
// x, h [b, gates n], h in f32 (f64 for f64), as state [b, n], which is replaced; kept [b, kept n]
// and y [b, n] of one dtype. state and kept may be absent.
MIXTAPE_KERNEL(cell, Cell kind, In x, In h, Out state, Out kept, Out y);
// before [b, n]: the state before the step. dnext [b, n] is added to dy; it and carry [b, n], which
// is replaced, are f32 (f64 for f64), all others of one dtype. All but y, dy and dx may be absent.
MIXTAPE_KERNEL(cell_grad, Cell kind, In kept, In before, In y, In dy, In dnext, Out carry, Out dx,
               Out dh);

// --- random: element i reads word i % 4 of block offset + i / 4 (row-major order); dense ---
MIXTAPE_KERNEL(random_uniform, uint64_t seed, uint64_t offset, double low, double high, Out y);
MIXTAPE_KERNEL(random_normal, uint64_t seed, uint64_t offset, double mean, double std,
               Out y);  // Box-Muller on words (0,1) and (2,3)
MIXTAPE_KERNEL(random_integer, uint64_t seed, uint64_t offset, int64_t low, int64_t high,
               Out y);  // [low, high), by draw.h; y i64
MIXTAPE_KERNEL(dropout, uint64_t seed, uint64_t offset, double p, In x,
               Out y);  // keeps where uniform >= p, times 1/(1-p)

// --- optimizers and the scaler: many tensors in one call; scalars are f32 in device memory ---
MIXTAPE_KERNEL(unscale, std::span<const View> grads, In inv_scale,
               Out found);  // g *= inv_scale; found[i] = 1 if g or g*inv_scale is not finite
MIXTAPE_KERNEL(find_nonfinite, std::span<const View> grads, In inv_scale,
               Out found);  // the same without writing or rounding the products
MIXTAPE_KERNEL(tensor_stats, std::span<const View> tensors,
               Out stats);  // dense floats; f64 [tensors, 5], a TensorStats
                            // (kernels/common/tensor_stats.h) each
MIXTAPE_KERNEL(grad_norm, std::span<const View> grads, double p,
               Out norm);  // (sum |g|^p)^(1/p) over all, max |g| if p is inf; sums in f64
// norm is scaled; factor = scale * min(1, max_norm / (norm + 1e-6)); scale optional (1)
MIXTAPE_KERNEL(clip_factor, In grad_norm, In scale, double max_norm, Out norm, Out factor);
MIXTAPE_KERNEL(clip_value, std::span<const View> grads,
               double limit);  // g = min(max(g, -limit), limit); NaN stays
// reason = 2 if one of `losses` is set, else 1 if an element of found is, else 0: what to skip
// for. Copies found to last if any of it is set. All f32.
MIXTAPE_KERNEL(scaler_skip_reason, In found, std::span<const View> losses, Out reason, Out last);
// scale [S, 1/S] and counts after a step that found what it did; history[updates % size] = S.
MIXTAPE_KERNEL(scaler_update, std::span<const View> found, std::span<const View> losses,
               const ScalePolicy& rule, Out scale, Out counts, Out history);
// One step of all parameters by a rule; the comments name the states in their order.
MIXTAPE_KERNEL(sgd, Updates, const SgdRule&, const StepControl&);  // momentum_buffer
MIXTAPE_KERNEL(adam, Updates, const AdamRule&,
               const StepControl&);  // exp_avg, exp_avg_sq, max_exp_avg_sq
MIXTAPE_KERNEL(rmsprop, Updates, const RmspropRule&,
               const StepControl&);  // square_avg, momentum_buffer, grad_avg
MIXTAPE_KERNEL(adagrad, Updates, const AdagradRule&, const StepControl&);  // sum
MIXTAPE_KERNEL(adadelta, Updates, const AdadeltaRule&,
               const StepControl&);                                    // square_avg, acc_delta
MIXTAPE_KERNEL(lion, Updates, const LionRule&, const StepControl&);    // exp_avg
MIXTAPE_KERNEL(nadam, Updates, const NadamRule&, const StepControl&);  // exp_avg, exp_avg_sq
MIXTAPE_KERNEL(radam, Updates, const RadamRule&, const StepControl&);  // exp_avg, exp_avg_sq
MIXTAPE_KERNEL(lamb, Updates, const LambRule&, const StepControl&);    // exp_avg, exp_avg_sq
// Of parameters of two dimensions or more.
MIXTAPE_KERNEL(muon, Updates, const MuonRule&, const StepControl&);  // momentum_buffer

}  // namespace mixtape::kernels
