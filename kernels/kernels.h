#pragma once
// The table of kernels: the name, arguments and implementations of each. It is all that the layers
// above know about devices. A missing implementation is a link error.
//
// The contract of a kernel. It takes Views, never Tensors, and writes only its outputs and scratch
// memory. The calling op has checked shapes and dtypes, so kernels have no error path. Arithmetic
// is in f32 or wider. Inputs share a dtype; outputs have the same or, if that is f16 or bf16,
// possibly f32 (visit_float(in, out)). A parameter or statistic has its own dtype: f32 or the
// inputs'. Any strides are accepted, unless the row says "dense". Sums are added in a fixed order,
// independent of the number of threads.

#include <span>
#include <utility>

#include "core/draw.h"
#include "core/float_mode.h"
#include "kernels/common/epilogue.h"
#include "kernels/common/launch.h"
#include "kernels/common/sampling.h"
#include "kernels/common/update.h"
#include "kernels/common/views.h"

namespace mixtape::kernels {
using namespace internal;

struct AttentionRule;  // kernels/common/attention.h

using In = const View&;  // an absent optional input or output has no data
using Out = const View&;
inline bool has_channels_last(In x) { return format_of(x.layout) == MemoryFormat::ChannelsLast; }

template <class Signature>
struct Kernel;
template <class... Args>
struct Kernel<void(Launch&, Args...)> {
  using Function = void (*)(Launch&, Args...);
  const char* name;
  bool cpu_alone;                  // in any build
  Function by_type[device_types];  // by DeviceType; null where this build has none

  // Not a template, so that calls with arguments of other forms are compiled once.
  void operator()(Device device, Args... args) const {
    Launch launch(device);
    (*this)(launch, std::forward<Args>(args)...);
  }
  void operator()(Launch& launch, Args... args) const {
    if (cpu_alone && !launch.device.is_like_cpu()) refuse(name, launch.device);
    if (launch.device.is_meta()) return;  // there is nothing to compute with
    const internal::FloatMode mode;
    if (kernel_watch) [[unlikely]]
      tell(launch.device, args...);
    by_type[size_t(launch.device.type)](launch, std::forward<Args>(args)...);
  }

 private:
  [[gnu::noinline]] void tell(Device device, Args... args) const {
    kernel_watch->call(device, name);
    const auto see = [&](const View& v) { kernel_watch->view(device, name, v); };
    (for_each_view(args, see), ...);
  }
};

// Declares a kernel and its implementations, those for the CPU in the namespace of an instruction
// set that kernels/meson.build names. (table.cpp, which defines the kernel, has macros of its own.)
#ifndef MIXTAPE_KERNEL
#define MIXTAPE_KERNEL(name, ...)                \
  namespace [[gnu::visibility("hidden")]] cuda { \
  void name(Launch&, __VA_ARGS__);               \
  }                                              \
  MIXTAPE_CPU_KERNEL(name, __VA_ARGS__)
// One of the CPU alone. Its ops have rows that say so (OpCase::cpu_only).
#define MIXTAPE_CPU_KERNEL(name, ...)           \
  namespace [[gnu::visibility("hidden")]] cpu { \
  inline namespace MIXTAPE_TARGET {             \
  void name(Launch&, __VA_ARGS__);              \
  }                                             \
  }                                             \
  extern const Kernel<void(Launch&, __VA_ARGS__)> name
#endif

// The scalar arguments of a unary op, such as a slope or two bounds.
struct Numbers {
  double value[2] = {};
};

enum class Reduce : int { Sum, Mean, Max, Min, Prod, SumAbs, Norm, MaxAbs };  // Norm: 2-norm
enum class Cell : int;  // kernels/common/cells.h
enum class Grid : int;  // kernels/common/quantise.h

// The part of a matrix that a system of equations reads; Unit: with ones on its diagonal.
enum class Triangular : int { None, Lower, Upper, UnitLower, UnitUpper };
enum class Fourier : int { Forward, Inverse, FromReal, ToReal };

// Stride, padding and dilation of a convolution over the last two dimensions (rows, columns).
struct Window {
  int64_t size[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};
  int64_t groups = 1;
  // The number of windows in `length` elements along direction d (0 rows, 1 columns).
  int64_t count(int64_t length, int d) const {
    return (length + 2 * padding[d] - dilation[d] * (size[d] - 1) - 1) / stride[d] + 1;
  }
};

// The parameters by which a loss scale grows and backs off; see amp/scaler.h. The scaler's counters
// are i32 [Total], by ScalerCount: updates since growth, consecutive bad updates, consecutive
// skips, all updates, all skipped ones, a flag that min_scale stopped a backoff since the last
// report, and the longest sequence of skips.
struct ScalePolicy {
  double growth, backoff, min_scale, max_scale;
  int64_t interval, hysteresis;
};
enum class ScalerCount : int { Growth, Bad, Skips, Ended, Skipped, AtFloor, Longest, Total };

// --- elementwise: op is a position in the lists of kernels/common ---
MIXTAPE_KERNEL(unary, int op, In x, const Numbers& numbers, Out y);  // y = f(x, numbers...)
MIXTAPE_KERNEL(unary_grad, int op, In v, In dy, const Numbers& numbers,
               Out dx);  // dx = dy f'; v is x or y, whichever the op saves
MIXTAPE_KERNEL(binary, int op, In a, In b,
               Out c);  // c = f(a, b), same shape and dtype; arithmetic ops take all dtypes
MIXTAPE_KERNEL(binary_scalar, int op, In a, double b, bool swapped,
               Out c);  // c = f(a, b), or f(b, a) if swapped
// da = dy df/da, db = dy df/db. Inputs that the derivative does not read are absent, and so are
// outputs that are not needed. dy has c's dtype; da and db share one.
MIXTAPE_KERNEL(binary_grad, int op, In a, In b, In c, In dy, Out da, Out db);
MIXTAPE_KERNEL(binary_scalar_grad, int op, In a, double b, bool swapped, In c, In dy,
               Out da);  // as binary_grad, for binary_scalar
MIXTAPE_KERNEL(plus_scaled, int op, In x, In a, In b, double s,
               Out y);                                   // y = x + s f(a, b): Sub, Mul and Div
MIXTAPE_KERNEL(where, In condition, In a, In b, Out c);  // c = condition ? a : b; condition bool

// --- copying and filling ---
MIXTAPE_KERNEL(convert, In x, Out y);  // y = dtype(x): any dtypes and strides; also copies
MIXTAPE_KERNEL(fill, double value, Out y);
MIXTAPE_KERNEL(arange, double start, double step, Out y);    // dense; y[i] = start + i step
MIXTAPE_KERNEL(linspace, double start, double stop, Out y);  // dense; both ends exact
MIXTAPE_KERNEL(accumulate, In x, Out y);  // y += x; y of x's dtype, or f32 if x is f16 or bf16
// Keeps x on one side of a diagonal of its last two dims, the diagonal included; zeros elsewhere.
MIXTAPE_KERNEL(triangle, bool upper, int64_t diagonal, In x, Out y);  // dense

// --- formats of 8 and 4 bits ---
// scale = what brings numbers up to `most` into the grid, in f32: a power of two (times 2^margin)
// or, with the largest number of the whole tensor, the scale of one of NVFP4's blocks.
MIXTAPE_KERNEL(quantise_scale, Grid grid, int margin, In most, In most_of_tensor, Out scale);
// y = scale round(x / scale), rounded to the grid; y f32 or bf16. scale f32, of x's shape.
MIXTAPE_KERNEL(quantise, Grid grid, In x, In scale, Out y);

// --- indexing: i64 along dim, checked by the op; equal indices are handled in order ---
// y[.., i, ..] = x[.., index[.., i, ..], ..]; in other dims x is at least as long as the index.
MIXTAPE_KERNEL(gather, int dim, In x, In index, Out y);
// y[.., index[.., i, ..], ..] = x[.., i, ..]; in other dims y is at least as long as the index.
MIXTAPE_KERNEL(scatter, int dim, In index, In x, Out y);
// As scatter, with +=, *=, max or min (NaN wins) by op; y of x's dtype, or f32 if x is f16 or bf16.
MIXTAPE_KERNEL(scatter_reduce, Reduce op, int dim, In index, In x, Out y);
MIXTAPE_KERNEL(bounds, In x, Out low_high);  // minimum and maximum of an i64 tensor -> i64 [2]
// The indices of true elements of a bool mask, in row-major order: i64 [count, rank]; dense.
MIXTAPE_KERNEL(nonzero, In mask, Out index);

// --- sorting: dense, x [rows, n]; i64 indices in sorted order; stable, NaN is largest ---
MIXTAPE_KERNEL(argsort, bool descending, In x, Out index);  // [rows, n]
MIXTAPE_KERNEL(topk, bool largest, In x, Out index);        // [rows, k]

// --- scans: a, b and y of one shape ---
// y_i = a_i y_(i-1) + b_i along dim; transposed, y_i = a_(i+1) y_(i+1) + b_i. An absent a is 1. An
// absent b is 0, and then the value before the first is 1. Integers give i64; floats sum in f64.
// (CUDA multiplies neighbouring a's before y: if that overflows, 0 becomes NaN.)
MIXTAPE_KERNEL(scan, bool transposed, int dim, In a, In b, Out y);
// The position of the maximum, or minimum, of the elements up to each along dim, i64: the last of
// equals, NaN wins.
MIXTAPE_KERNEL(arg_scan, Reduce op, int dim, In x, Out index);
MIXTAPE_KERNEL(log_cumsum_exp, int dim, In x, Out y);  // log(cumsum(exp(x))), in f64

// --- reductions: y has x's rank, with size 1 in reduced dims ---
// SumAbs, Norm and MaxAbs: floats only; the first two write f64, too.
MIXTAPE_KERNEL(reduce, Reduce op, In x, Out y);
MIXTAPE_KERNEL(arg_reduce, Reduce op, int dim, In x,
               Out y);  // Max or Min; the first of equals, NaN wins; y i64

// --- matrix products: f32 accumulation, any strides; a and b have the same batch dims ---
MIXTAPE_KERNEL(gemm, In a, In b, const Epilogue& epilogue, Out c);  // c = epilogue(a @ b)
MIXTAPE_KERNEL(gemm_integers, In a, In b, Out c);  // of one dtype; sums wrap around
MIXTAPE_KERNEL(conv2d, In x, In w, const Epilogue& epilogue, const Window& window,
               Out y);  // dense; x [n,c,h,w], w [o,c/groups,kh,kw], bias [o]; no row sums
MIXTAPE_KERNEL(conv2d_input, In dy, In w, In bias, const Window& window,
               Out dx);  // dense; gradient of x plus an optional bias [c]; w, dy as in conv2d
MIXTAPE_KERNEL(conv2d_weight, In x, In dy, const Window& window, Out dw,
               Out db);  // dense; gradients of w and optionally of bias [o], in f32 or f64

// --- linear algebra, on the CPU alone: f64, a batch [batch, m, n] of dense row-major matrices, no
// size 0; what was wrong with each, or 0, is i64 [batch] ---
// x = a^-1 b. zero_pivot counts from 1; absent for a triangle, whose zeros give infinities.
MIXTAPE_CPU_KERNEL(solve, Triangular part, In a, In b, Out x, Out zero_pivot);
MIXTAPE_CPU_KERNEL(determinant, In a, Out y);  // [batch, 3]: det a, its sign, log |det a|
// l of symmetric parts (a + a^T) / 2 = l l^T. bad_minor: the order of the first that is not
// positive.
MIXTAPE_CPU_KERNEL(cholesky, In a, Out l, Out bad_minor);
// q [batch, m, k], r [batch, k, n] with k = min(m, n) or m, by Householder's reflections.
MIXTAPE_CPU_KERNEL(qr, In a, Out q, Out r);
// Optional eigenvectors, the columns, of symmetric parts: values [batch, n], ascending. failure: 1
// not finite, 2 no convergence.
MIXTAPE_CPU_KERNEL(eigh, In a, Out vectors, Out values, Out failure);
// u [batch, m, k], s [batch, k], descending, vt [batch, k, n], or u and vt square, or neither of
// them; failure as in eigh.
MIXTAPE_CPU_KERNEL(svd, In a, Out u, Out s, Out vt, Out failure);
MIXTAPE_CPU_KERNEL(matrix_exp, In a, Out y);
// Transforms of lines, not scaled: f64, dense, complex [lines, n, 2] or real [lines, n]. FromReal
// gives the first n / 2 + 1 numbers alone, and ToReal takes those.
MIXTAPE_CPU_KERNEL(fft, Fourier kind, In x, Out y);

// --- planes: dense, x [..., rows, columns]; images [n, c, h, w] also with channels last ---
MIXTAPE_KERNEL(max_pool2d, In x, const Sampling& rows, const Sampling& columns, Out y,
               Out index);  // index i32: row-major position in the plane of each window's first
                            // maximum; NaN wins
MIXTAPE_KERNEL(put_at, In y, In index, const Sampling& rows, const Sampling& columns,
               Out x);  // x = 0, then in each plane x[index[i]] += y[i], for windows i
MIXTAPE_KERNEL(take_at, In x, In index, Out y);  // in each plane y[i] = x[index[i]]
MIXTAPE_KERNEL(resample, In x, const Sampling& rows, const Sampling& columns, bool transposed,
               Out y);  // y = R x CT, for weights R of rows and C of columns; or y = RT x C

// --- rows: dense, x [rows, n]; statistics [rows] in f32 (f64 for f64) ---
// (On the CPU, softmax, logsumexp and cross_entropy also take columns: cpu/softmax.h. On a GPU the
// rows of cross_entropy's x and dx may be padded alike: internal::padded_rows.)
MIXTAPE_KERNEL(softmax, bool log, In x, Out y);
MIXTAPE_KERNEL(softmax_grad, bool log, In y, In dy, Out dx);
// The same from x, of which y is computed again in f32: rounded shares do not add up to 1. x, dy
// and dx of one 16-bit dtype.
MIXTAPE_KERNEL(softmax_input_grad, bool log, In x, In dy, Out dx);
MIXTAPE_KERNEL(logsumexp, In x, Out y);  // log(sum(exp(x))) of each row
// y = softmax(scale x + bias), x [..., queries, keys], over the keys that a bool mask allows and,
// if causal, those up to the query's position; zeros if no key is allowed. x of y's dtype or f32;
// mask and bias optional, of x's shape and any strides. y may be x.
MIXTAPE_KERNEL(masked_softmax, In x, In mask, In bias, bool causal, double scale, Out y);
// o = dropout(softmax(scale q kT)) v over the keys that the rule shows; zeros if there are none.
// All but stats are [.., positions, features] of one dtype: f16 or bf16, with 32, 64, 80, 96 or 128
// features. The heads of o may have any strides. stats [.., queries, 2], f32 and dense, is for the
// gradient: what turns scores into probabilities. (On the CPU any float dtype and any number of
// features will do, and stats is not written.)
MIXTAPE_KERNEL(attention, In q, In k, In v, const AttentionRule& rule, Out o, Out stats);
MIXTAPE_KERNEL(attention_grad, In q, In k, In v, In stats, In dy, const AttentionRule& rule, Out dq,
               Out dk, Out dv);  // outputs optional, as o, or f32
// Rotates each pair of elements i and i + n of x [.., t, 2 n] by the angle whose cosine and sine
// are c and s [t, n], dense and in f32 (f64 for f64): y_i = c x_i - s x_(i+n) and y_(i+n) = c
// x_(i+n)
// + s x_i; `back`: by minus that angle. The last dimension of x and y has stride 1. y may be x.
MIXTAPE_KERNEL(rotate_halves, bool back, In x, In c, In s, Out y);
MIXTAPE_KERNEL(
    layer_norm, In x, In w, In b, double eps, Out y, Out mean,
    Out rstd);  // w, b [n] optional; RMS norm if mean is absent; y may be narrower than x
MIXTAPE_KERNEL(layer_norm_grad, In x, In w, In mean, In rstd, In dy, In added, Out dx, Out dw,
               Out db);  // outputs optional; `added`, of dx's dtype, to dx: it may be dx itself
// loss = -sum(q log(softmax(x))) of each row, with q = w ((1 - smoothing) p + smoothing / n). The
// target is i64 [rows], p one-hot, or p itself [rows, n], of x's dtype or f32. w [n] optional. 0
// for a target equal to `ignore`. lse [rows, 4]: the maximum, log(sum(exp(x - maximum))), kept
// apart since their sum would lose digits, sum(q), and, where the maximum outweighs all others,
// their sum of q. dx may be x.
MIXTAPE_KERNEL(cross_entropy, In x, In target, In w, int64_t ignore, double smoothing, Out loss,
               Out lse);
MIXTAPE_KERNEL(cross_entropy_grad, In x, In target, In w, In lse, In dloss, int64_t ignore,
               double smoothing, Out dx);
MIXTAPE_KERNEL(row_products, In x, In y, Out products);  // f64 [rows, 3]: x y, x x, y y

// --- losses ---
MIXTAPE_KERNEL(elementwise_loss, int op, In x, In target, double s, double w,
               Out y);  // op: a position in the list of losses.h; x and target of one dtype
MIXTAPE_KERNEL(elementwise_loss_grad, int op, In x, In target, double s, double w, In dy, Out dx,
               Out dtarget);  // outputs optional, of x's dtype
// y = -w[target] x[target], 0 if the target is `ignore`. x [n, classes, inner], w [classes]
// optional; target i64, y and dy [n, inner]; all but x dense.
MIXTAPE_KERNEL(nll_loss, In x, In target, In w, int64_t ignore, Out y);
MIXTAPE_KERNEL(nll_loss_grad, In target, In w, int64_t ignore, In dy, Out dx);

// --- channels: dense, x [n, c, inner]; w, b optional; statistics [c], or [n groups] of groups ---
MIXTAPE_KERNEL(group_norm, In x, int64_t groups, In w, In b, double eps, Out y, Out mean, Out rstd);
MIXTAPE_KERNEL(group_norm_grad, In x, int64_t groups, In w, In mean, In rstd, In dy, Out dx, Out dw,
               Out db);  // outputs optional
MIXTAPE_KERNEL(batch_stats, In x, double eps, Out mean, Out var,
               Out rstd);  // biased variance; f32 (f64 for f64)
MIXTAPE_KERNEL(batch_norm, In x, In mean, In rstd, In w, In b,
               Out y);  // y = (x - mean) rstd w + b
MIXTAPE_KERNEL(batch_norm_grad, In x, In mean, In rstd, In w, In dy, bool fixed_stats, Out dx,
               Out dw, Out db);  // fixed_stats: mean and rstd are constants

// --- one step of a recurrent layer (kernels/common/cells.h): each row is k vectors of n, dense ---
// x, h [b, gates n], y [b, n]; h is f32 (f64 for f64), as are state [b, n], which is updated in
// place, and kept [b, kept n], for cell_grad on this device, in an order of its own. Both are
// optional.
MIXTAPE_KERNEL(cell, Cell kind, In x, In h, Out state, Out kept, Out y);
// dnext [b, n] is added to dy. carry [b, n], the state's gradient, is updated in place. y, dx and
// dh share a dtype, dy is of that dtype or f32, all others are f32 (f64 for f64). Optional: dnext,
// carry and dh, and kept for a cell that keeps nothing.
MIXTAPE_KERNEL(cell_grad, Cell kind, In kept, In y, In dy, In dnext, Out carry, Out dx, Out dh);

// --- random: element i reads word i % 4 of block i / 4 of the draw (row-major order); dense ---
MIXTAPE_KERNEL(random_uniform, const Draw& at, double low, double high, Out y);
MIXTAPE_KERNEL(random_normal, const Draw& at, double mean, double std,
               Out y);  // Box-Muller on words (0,1) and (2,3)
MIXTAPE_KERNEL(random_integer, const Draw& at, int64_t low, int64_t high,
               Out y);  // in [low, high), by draw.h; y i64
MIXTAPE_KERNEL(dropout, const Draw& at, double p, In x,
               Out y);  // y = uniform >= p ? x / (1 - p) : 0

// --- optimizers and the scaler: many tensors in one call; scalars are f32 in device memory, but
// factors of gradients may be f64 ---
// g *= inv_scale; found[i] = 1 if g or g*inv_scale is not finite. On the way, `exponents` (i32
// [grads, exponent_bins], or none) becomes the number of elements g, before the product, that have
// each exponent field in f32: bin 0 has zeros, bin 255 what is not finite.
constexpr int64_t exponent_bins = 256;
MIXTAPE_KERNEL(unscale, std::span<const View> grads, In inv_scale, Out found, Out exponents);
MIXTAPE_KERNEL(find_nonfinite, std::span<const View> grads, In inv_scale, Out found,
               Out exponents);  // the same without writing or rounding the products
MIXTAPE_KERNEL(tensor_stats, std::span<const View> tensors,
               Out stats);  // dense floats; f64 [tensors, 5], a TensorStats
                            // (kernels/common/tensor_stats.h) each
// The p-norm of all gradients, (sum |g|^p)^(1/p), or max |g| if p is inf, in two kernels: f64 parts
// of norm_block elements each, a gradient's in order after those before it, and the norm of their
// join, in an order that depends on their number alone.
constexpr int64_t norm_block = 8192;
MIXTAPE_KERNEL(norm_parts, std::span<const View> grads, double p, Out parts);
MIXTAPE_KERNEL(norm_of_parts, In parts, double p, Out norm);
// y = by * the sum of the rows of parts [n, elements], added in the order of sum_tree() and rounded
// once. Dense floats; y of the parts' dtype, f32 if those are f16 or bf16, or those if it is f32.
MIXTAPE_KERNEL(sum_parts, In parts, double by, Out y);
// norm is scaled; factor = scale * min(1, max_norm / (norm + 1e-6)); scale optional (1). All are
// f32 or f64.
MIXTAPE_KERNEL(clip_factor, In grad_norm, In scale, double max_norm, Out norm, Out factor);
MIXTAPE_KERNEL(clip_value, std::span<const View> grads,
               double limit);  // g = min(max(g, -limit), limit); NaN stays
// The reason to skip a step: 2 if one of `losses` is set, else 1 if an element of found is, else 0.
// Copies found to last if any of it is set. All f32.
MIXTAPE_KERNEL(scaler_skip_reason, In found, std::span<const View> losses, Out reason, Out last);
// The parameter whose gradients have underflowed most, by the counts of unscale() and the scale S
// of that time: worst (f32 [3]) = its number, or that of all parameters if all gradients are zero,
// or -1 for none; the part of its gradients that is zero; and S. See kernels/common/scaling.h.
MIXTAPE_KERNEL(find_underflow, In exponents, In scale, Out worst);
// Updates scale [S, 1/S] and counts by the flags of a step; history[updates % size] = S.
MIXTAPE_KERNEL(scaler_update, std::span<const View> found, std::span<const View> losses,
               const ScalePolicy& policy, Out scale, Out counts, Out history);
// Dense f32 to and from codes, which are u8 of x's shape, and f32 scales [ceil(size / 256)].
MIXTAPE_KERNEL(encode_blocks, StateCode code, bool nonnegative, In x, Out codes, Out scale);
MIXTAPE_KERNEL(decode_blocks, StateCode code, bool nonnegative, In codes, In scale, Out x);
// One step of all parameters, which have the same options.
MIXTAPE_KERNEL(optimizer_step, const AnyOptimizer& optimizer, Updates, const StepControl&);

}  // namespace mixtape::kernels
