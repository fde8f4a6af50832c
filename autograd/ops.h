#pragma once
// Every op: the table of contents of the library. Names and semantics are NumPy's and PyTorch's.
// Operands of two-operand ops are broadcast; dimensions may be negative; all throw Error on a
// misfit.

#include <optional>
#include <vector>

#include "autograd/tape.h"
#include "core/random.h"

namespace mixtape {

using Dims = std::vector<int>;  // which dimensions; empty means all

// --- creation (not differentiable) ---
Tensor empty(const Shape& shape, DType dtype = f32, Device device = {});  // uninitialised
Tensor full(const Shape& shape, double value, DType dtype = f32, Device device = {});
Tensor zeros(const Shape& shape, DType dtype = f32, Device device = {});
Tensor ones(const Shape& shape, DType dtype = f32, Device device = {});
Tensor arange(double start, double stop, double step = 1, DType dtype = i64, Device device = {});
Tensor eye(int64_t n, DType dtype = f32, Device device = {});
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
Tensor full_like(const Tensor& x, double value);
Tensor rand(const Shape& shape, DType dtype = f32, Device device = {});  // [0, 1)
Tensor uniform(const Shape& shape, double low, double high, DType dtype = f32, Device device = {});
Tensor randn(const Shape& shape, DType dtype = f32,
             Device device = {});  // mean 0, standard deviation 1
Tensor normal(const Shape& shape, double mean, double std, DType dtype = f32, Device device = {});
Tensor randint(int64_t low, int64_t high, const Shape& shape,
               Device device = {});              // i64 in [low, high)
Tensor randperm(int64_t n, Device device = {});  // i64: 0..n-1 in random order
Tensor one_hot(const Tensor& index, int64_t classes, DType dtype = f32);  // [...] -> [..., classes]

// --- dtype and place ---
Tensor cast(const Tensor& x, DType to);  // itself if nothing changes
Tensor clone(const Tensor& x);           // row-major, storage of its own
Tensor contiguous(const Tensor& x);      // itself if it is
Tensor detach(const Tensor& x);

// --- views: share storage with x wherever its strides allow ---
Tensor reshape(const Tensor& x, const Shape& shape);  // one size may be -1
Tensor flatten(const Tensor& x, int from = 0, int to = -1);
Tensor transpose(const Tensor& x, int a = -2, int b = -1);
Tensor permute(const Tensor& x, const Dims& order);
Tensor squeeze(const Tensor& x, int dim);
Tensor unsqueeze(const Tensor& x, int dim);
Tensor expand(const Tensor& x, const Shape& shape);  // the only broadcasting there is
Tensor slice(const Tensor& x, int dim, int64_t start, int64_t stop,
             int64_t step = 1);  // x[start:stop:step]
Tensor narrow(const Tensor& x, int dim, int64_t start, int64_t length);
Tensor select(const Tensor& x, int dim, int64_t index);  // drops dim
std::vector<Tensor> split(const Tensor& x, int64_t size,
                          int dim = 0);  // pieces of `size`; the last may be smaller
std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int dim = 0);

// --- joining ---
Tensor cat(const std::vector<Tensor>& parts, int dim = 0);
Tensor stack(const std::vector<Tensor>& parts, int dim = 0);

// --- arithmetic ---
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);  // integers as in C++, but x / 0 is 0
Tensor pow(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  // gradient shared at ties; NaN wins
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, double b);
Tensor sub(const Tensor& a, double b);
Tensor mul(const Tensor& a, double b);
Tensor div(const Tensor& a, double b);
Tensor pow(const Tensor& a, double b);
Tensor sub(double a, const Tensor& b);
Tensor div(double a, const Tensor& b);
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor expm1(const Tensor& x);
Tensor log(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor erf(const Tensor& x);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, double b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, double b) { return div(a, b); }
inline Tensor operator+(double a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(double a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(double a, const Tensor& b) { return div(a, b); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

// --- comparison: bool ---
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, double b);
Tensor ne(const Tensor& a, double b);
Tensor lt(const Tensor& a, double b);
Tensor le(const Tensor& a, double b);
Tensor gt(const Tensor& a, double b);
Tensor ge(const Tensor& a, double b);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
// Where mask is true, value; one outside x's range saturates, unless it is infinite.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

// --- activations ---
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x);       // x * Phi(x), exact
Tensor gelu_tanh(const Tensor& x);  // GPT-2's approximation
Tensor silu(const Tensor& x);       // x * sigmoid(x)
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor softplus(const Tensor& x);  // log(1 + exp(x))
Tensor softmax(const Tensor& x, int dim = -1);
Tensor log_softmax(const Tensor& x, int dim = -1);

// --- reductions over any dimensions ---
Tensor sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);  // integers sum to i64
Tensor mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor var(const Tensor& x, const Dims& dims = {}, bool keepdim = false, int correction = 1);
Tensor stddev(const Tensor& x, const Dims& dims = {}, bool keepdim = false, int correction = 1);
Tensor max(const Tensor& x, const Dims& dims = {},
           bool keepdim = false);  // gradient shared at ties
Tensor min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor argmax(const Tensor& x, int dim, bool keepdim = false);  // i64; the first of equals
Tensor argmin(const Tensor& x, int dim, bool keepdim = false);

// --- matrix products ---
struct MatmulOptions {
  std::optional<DType> out = {};  // dtype of the result: that of the inputs, or f32
};
// [..., m, k] @ [..., k, n] -> [..., m, n]; leading dimensions broadcast; 1-d operands as in NumPy.
Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options = {});
// x [..., in], weight [out, in], bias [out] or none -> [..., out]
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// --- networks ---
struct Conv2dOptions {
  std::array<int64_t, 2> stride = {1, 1}, padding = {0, 0}, dilation = {1, 1};
  int64_t groups = 1;
};
// x [n, c, h, w], weight [o, c/groups, kh, kw], bias [o] or none -> [n, o, h', w']
// (cross-correlation)
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});
struct PoolOptions {
  std::array<int64_t, 2> stride = {0, 0}, padding = {0, 0};  // stride 0 means the window's size
};
// The gradient goes to the first maximum of a window in row-major order.
Tensor max_pool2d(const Tensor& x, std::array<int64_t, 2> window, const PoolOptions& options = {});

// x [..., shape]; weight and bias of that shape or none; statistics in f32.
Tensor layer_norm(const Tensor& x, const Shape& shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);
struct BatchNormOptions {
  bool training = false;
  double momentum = 0.1, eps = 1e-5;
};
// x [n, c, ...]. In training by the batch's statistics, which also move the running ones (f32 [c],
// in place; none: not tracked); otherwise by the running ones.
Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight = {}, const Tensor& bias = {},
                  const BatchNormOptions& options = {});
// Zero with probability p, else x / (1 - p). Draws from generator().
Tensor dropout(const Tensor& x, double p);
// table [rows, n], index i64 [...] -> [..., n]
Tensor embedding(const Tensor& table, const Tensor& index);

// --- losses ---
enum class Reduction { Mean, Sum, None };
struct CrossEntropyOptions {
  Reduction reduction = Reduction::Mean;
  double label_smoothing = 0;
  int64_t ignore_index = -100;
  double weight = 1;  // multiplies the loss: static loss scaling
};
// logits [rows, classes], target i64 [rows]
Tensor cross_entropy(const Tensor& logits, const Tensor& target,
                     const CrossEntropyOptions& options = {});
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean);

// --- in place ---
// Under NoGrad always allowed. While recording: only on a tensor that is not a leaf and whose
// storage no other tensor shares; the result has the history of the op. x keeps its dtype. All
// return x.
const Tensor& fill_(const Tensor& x, double value);
const Tensor& zero_(const Tensor& x);
const Tensor& copy_(const Tensor& x, const Tensor& from);  // converts, broadcasts
const Tensor& add_(const Tensor& x, const Tensor& y);
const Tensor& mul_(const Tensor& x, const Tensor& y);
const Tensor& add_(const Tensor& x, double y);
const Tensor& mul_(const Tensor& x, double y);

}  // namespace mixtape
