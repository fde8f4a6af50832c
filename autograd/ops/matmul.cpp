// Matrix products. Gradients of weights are computed in the dtype of the weight's gradient, so
// under autocast they stay f32.

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;

Tensor ops::product(const Tensor& a, const Tensor& b, DType wanted, double alpha) {
  const Factors f(a, b);
  return matmul(f.a, f.b, {.out = f.product(wanted), .alpha = alpha});
}
Tensor ops::bias_each(const Tensor& dy, int64_t n) {
  const Tensor each = by_example(dy, n);
  Dims over{1};
  for (int d = 3; d < each.rank(); ++d) over.push_back(d);
  return sum(wide(each), over);
}

namespace {

void check_inner(const Tensor& a, const Tensor& b) {
  const int64_t rows = b.size(b.rank() == 1 ? 0 : -2);
  check(a.size(-1) == rows, "inner dimensions differ: {} and {} (of {} and {})", a.size(-1), rows,
        a.shape(), b.shape());
}

void check_ranks(const Tensor& a, const Tensor& b, int rank) {
  check(a.rank() == rank && b.rank() == rank, "operands have shapes {} and {}, not {}", a.shape(),
        b.shape(), rank == 2 ? "[m, k] and [k, n]" : "[b, m, k] and [b, k, n]");
  check(rank == 2 || a.size(0) == b.size(0), "{} matrices for {}: both operands need as many",
        a.size(0), b.size(0));
}

// The gradients by example of b in a @ b, where a is input `i`: aT dy.
Tensor weight_each(const Ctx& ctx, size_t i, const Tensor& dy, int64_t n, double alpha) {
  return product(by_example(ctx.saved(0), n).t(), by_example(dy, n), ctx.grad_dtype(i + 1), alpha);
}

struct Matmul {  // leading dimensions are equal
  static constexpr OpInfo info{"matmul", Precision::Low, {}, Product::Matmul};
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b, const MatmulOptions& options) {
    check_inner(a, b);
    const DType out = options.out.value_or(a.dtype());
    check(out == a.dtype() || (out == f32 && is_half(a.dtype())),
          "a result in {} from inputs in {}", out, a.dtype());
    if (is_integer(a.dtype())) return of_integers(ctx, a, b, options.alpha);
    check_real(a);
    Tensor c = ctx.output(with_size(a.shape(), -1, b.size(-1)));
    ctx.run(kernels::gemm, a, b, kernels::Epilogue{.alpha = options.alpha}, c);
    ctx.save(a, b);
    return c;
  }
  static Tensor of_integers(Ctx& ctx, const Tensor& a, const Tensor& b, double alpha) {
    check(alpha == 1, "alpha must be 1 for integers, got {}", alpha);
    const Tensor c = ctx.output(with_size(a.shape(), -1, b.size(-1)), a.dtype());
    ctx.run(kernels::gemm_integers, a, b, c);
    return c;
  }
  // da = alpha dc bT, db = alpha aT dc
  static Grads backward(const Ctx& ctx, const Tensor& dc, const MatmulOptions& options) {
    RoundedFactors q(ctx, dc);
    return ctx.grads(
        [&] { return product(q.dz(-1), q.operand(1, -1).t(), ctx.grad_dtype(0), options.alpha); },
        [&] { return product(q.operand(0, -2).t(), q.dz(-2), ctx.grad_dtype(1), options.alpha); });
  }
  // If a is a matrix, its rows share b. In a batch, examples share an operand that was expanded.
  static Grads backward_each(const Ctx& ctx, const Tensor& dc, int64_t n,
                             const MatmulOptions& options) {
    if (dc.rank() == 2)
      return ctx.grads([] { return Tensor(); },
                       [&] { return weight_each(ctx, 0, dc, n, options.alpha); });
    const Tensor a = ctx.saved(0), b = ctx.saved(1);
    const auto own = [&](const Tensor& x, const Tensor& y, size_t i) {
      return in_own_rows(product(x, y, ctx.grad_dtype(i), options.alpha), n);
    };
    return ctx.grads([&] { return a.layout().repeats() ? own(dc, b.t(), 0) : Tensor(); },
                     [&] { return b.layout().repeats() ? own(a.t(), dc, 1) : Tensor(); });
  }
};

struct Linear {  // x [rows, in]
  static constexpr OpInfo info{
      "linear",
      Precision::Low,
      {Role::Activation, Role::Parameter, Role::Statistic, Role::Statistic},
      Product::Linear};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        Activation activation, bool, const Tensor& residual = {}) {
    check_real(x);
    check_weight(x, weight, "[out, in]");
    check_shape(bias, "the bias", {weight.size(0)});
    // Aligns y's rows, since gradients read them again, as those of logits.
    const Tensor y =
        with_padded_rows({x.size(0), weight.size(0)}, dtype_with(ctx, residual), ctx.device());
    check_shape(residual, "the residual", y.shape());
    Tensor before;
    if (ctx.recording() && needs_pre_activation(activation)) before = y.like(y.dtype());
    ctx.run(kernels::gemm, x, weight.t(),
            kernels::Epilogue{.bias = bias,
                              .residual = residual_like(residual, y),
                              .activation = activation,
                              .before = before},
            y);
    ctx.save(x, weight);
    save_activation(ctx, activation, bias, residual, before, y);
    return y;
  }
  // With dz for the gradient of the sums: dx = dz w, dw = dzT x, db = sums of dz, in the pass of
  // dw. If the weight is the transpose of a parameter (`by_columns`), dw is computed as xT dz, so
  // that the parameter's gradient is dense.
  static Grads backward(const Ctx& ctx, const Tensor& dy, Activation activation, bool by_columns) {
    const Tensor of_sums = pre_activation_gradient(ctx, activation, dy, [&] {
      return of(ctx.saved(0), ctx.saved(1), ctx.saved(2), Activation::None, false, ctx.saved(4));
    });
    const Tensor dz = of_product(ctx, of_sums);
    RoundedFactors q(ctx, dz);
    const auto dx = [&] { return product(q.dz(-1), q.operand(1, -2), ctx.grad_dtype(0)); };
    if (!grad_enabled() && ctx.wants(1) && ctx.wants(2) && !q.rounds()) {
      const Tensor x = ctx.saved(0);
      const Factors f = by_columns ? Factors(x.t(), dz) : Factors(dz.t(), x);
      const Tensor dw({f.a.size(0), f.b.size(1)}, f.product(ctx.grad_dtype(1)), dz.device()),
          db(ctx.shape(2), accumulate_dtype(f.a.dtype()), dz.device());
      kernels::Epilogue sums;
      (by_columns ? sums.column_sums : sums.row_sums) = db;
      ctx.run(kernels::gemm, f.a, f.b, sums, dw);
      return with_residual(
          ctx,
          ctx.grads(dx, [&] { return by_columns ? dw.t() : dw; }, [&] { return db; }), of_sums);
    }
    const auto dw = [&] {
      const Tensor x = q.operand(0, -2), g = q.dz(-2);
      return by_columns ? product(x.t(), g, ctx.grad_dtype(1)).t()
                        : product(g.t(), x, ctx.grad_dtype(1));
    };
    return with_residual(ctx, ctx.grads(dx, dw, [&] { return bias_gradient(ctx, 2, dz, 0b1); }),
                         of_sums);
  }
  static Grads backward_each(const Ctx& ctx, const Tensor& dy, int64_t n, Activation activation,
                             bool by_columns) {
    const Tensor dz =
        of_product(ctx, pre_activation_gradient(ctx, activation, dy, [] { return Tensor(); }));
    const auto dw = [&] {
      const Factors f(by_example(dz, n), by_example(ctx.saved(0), n));
      const DType out = f.product(ctx.grad_dtype(1));
      if (by_columns) return product(f.b.t(), f.a, out).t();
      return f.a.size(1) == 1 ? cast(f.a.t(), out) * cast(f.b, out) : product(f.a.t(), f.b, out);
    };
    return ctx.grads([] { return Tensor(); }, dw, [&] { return bias_each(dz, n); });
  }
  // Without a residual, the op has an input less, which is faster.
  static Tensor of(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation,
                   bool by_columns, const Tensor& residual) {
    return residual ? call<Linear>(x, weight, bias, activation, by_columns, residual)
                    : call<Linear>(x, weight, bias, activation, by_columns);
  }
};

struct Addmm {  // c [n] or of the product's shape, or none
  static constexpr OpInfo info{"addmm",
                               Precision::Low,
                               {Role::Statistic, Role::Activation, Role::Activation},
                               Product::Matmul};

  // The sums are scaled, and c is added, before they are rounded.
  static Tensor forward(Ctx& ctx, const Tensor& c, const Tensor& a, const Tensor& b, double alpha) {
    ctx.save(a, b);
    const Tensor y = ctx.output(with_size(a.shape(), -1, b.size(-1)));
    const bool batch = a.rank() > 2;
    ctx.run(kernels::gemm, a, b,
            kernels::Epilogue{.alpha = alpha,
                              .bias = batch ? View() : View(c),
                              .residual = residual_like(batch ? c : Tensor(), y)},
            y);
    return y;
  }
  // da = alpha dy bT, db = alpha aT dy
  static Grads backward(const Ctx& ctx, const Tensor& dy, double alpha) {
    RoundedFactors q(ctx, dy);
    return ctx.grads(
        [&] { return ctx.shape(0).rank > 1 ? dy : bias_gradient(ctx, 0, dy, 0b1); },
        [&] { return product(q.dz(-1), q.operand(1, -1).t(), ctx.grad_dtype(1), alpha); },
        [&] { return product(q.operand(0, -2).t(), q.dz(-2), ctx.grad_dtype(2), alpha); });
  }
  static Grads backward_each(const Ctx& ctx, const Tensor& dy, int64_t n, double alpha) {
    const bool batch = dy.rank() > 2;
    return ctx.grads([&] { return ctx.shape(0).rank > 1 ? in_own_rows(dy, n) : bias_each(dy, n); },
                     [] { return Tensor(); },
                     [&] { return batch ? Tensor() : weight_each(ctx, 1, dy, n, alpha); });
  }
};

struct Dot {
  static constexpr OpInfo info{"dot", Precision::Widest};
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b) {
    ctx.save(a, b);
    constexpr int64_t size = 4096;  // (A matrix product would use one lane.)
    const int64_t rows = a.size(0) / size, rest = a.size(0) % size;
    Tensor total = zeros({}, f64, a.device());
    if (rows > 0) total = total + products(ctx, a, b, 0, {rows, size});
    if (rest > 0) total = total + products(ctx, a, b, rows * size, {1, rest});
    return cast(total, ctx.dtype());
  }
  static Grads backward(const Ctx& ctx, const Tensor& dc) {
    return ctx.grads([&] { return dc * cast(ctx.saved(1), dc.dtype()); },
                     [&] { return dc * cast(ctx.saved(0), dc.dtype()); });
  }

 private:
  // The sum of the products of as many elements from `first` on as this shape of rows has, in f64,
  // since products may exceed the range of f32.
  static Tensor products(const Ctx& ctx, const Tensor& a, const Tensor& b, int64_t first,
                         const Shape& shape) {
    const auto part = [&](const Tensor& x) {
      return reshape(narrow(x, 0, first, shape.size()), shape).contiguous();
    };
    const Tensor y = empty({shape[0], 3}, f64, a.device());
    ctx.run(kernels::row_products, part(a), part(b), y);
    return sum(select(y, 1, 0));
  }
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  const Scope scope(Matmul::info.name);
  check(a.rank() > 0 && b.rank() > 0, "operands of shapes {} and {} need at least one dimension",
        a.shape(), b.shape());
  check_inner(a, b);
  if (a.rank() == 1) return squeeze(matmul(unsqueeze(a, 0), b, options), b.rank() == 1 ? 0 : -2);
  if (b.rank() == 1) return squeeze(matmul(a, unsqueeze(b, 1), options), -1);
  if (leading(a) == leading(b)) return call<Matmul>(a, b, options);
  // One b for the whole batch is one product with more rows.
  if (b.rank() == 2 && a.is_contiguous() && a.size(-1) == b.size(0))
    return reshape(call<Matmul>(flatten(a, 0, -2), b, options),
                   with_size(a.shape(), -1, b.size(1)));
  const Shape batch = broadcast(leading(a), leading(b));
  return call<Matmul>(expand_leading(a, batch), expand_leading(b, batch), options);
}

Tensor mm(const Tensor& a, const Tensor& b) {
  const Scope scope("mm");
  check_ranks(a, b, 2);
  return matmul(a, b);
}
Tensor mv(const Tensor& a, const Tensor& x) {
  const Scope scope("mv");
  check(a.rank() == 2 && x.rank() == 1, "operands have shapes {} and {}, not [m, n] and [n]",
        a.shape(), x.shape());
  return matmul(a, x);
}
Tensor bmm(const Tensor& a, const Tensor& b) {
  const Scope scope("bmm");
  check_ranks(a, b, 3);
  return call<Matmul>(a, b, MatmulOptions{});
}

// c [n], or of the product's shape or one that broadcasts to it.
static Tensor added_to(const Tensor& c, const Tensor& a, const Tensor& b, const AddmmOptions& o) {
  check_real(a);
  check_inner(a, b);
  if (o.beta == 0) return call<Addmm>(Tensor(), a, b, o.alpha);  // c is not read, and may be NaN
  const Tensor added = o.beta == 1 ? c : cast(c, accumulate_dtype(c.dtype())) * o.beta;
  const bool one_row = c.rank() < 2 || (c.rank() == 2 && c.size(0) == 1);
  if (a.rank() == 2 && one_row && c.numel() == b.size(1))
    return call<Addmm>(reshape(added, {b.size(1)}), a, b, o.alpha);
  return call<Addmm>(expand(added, with_size(a.shape(), -1, b.size(-1))), a, b, o.alpha);
}
Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, const AddmmOptions& o) {
  const Scope scope(Addmm::info.name);
  check_ranks(a, b, 2);
  return added_to(c, a, b, o);
}
Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, const AddmmOptions& o) {
  const Scope scope("baddbmm");
  check_ranks(a, b, 3);
  return added_to(c, a, b, o);
}
Tensor kron(const Tensor& a, const Tensor& b) {
  const Scope scope("kron");
  const int rank = std::max(a.rank(), b.rank());
  Shape left, right, shape;  // dimensions of a and b alternate in their product
  for (int d = 0; d < rank; ++d) {
    const auto size = [&](const Tensor& t) {
      return d < rank - t.rank() ? 1 : t.size(d - rank + t.rank());
    };
    for (const int64_t n : {size(a), int64_t{1}}) left.push_back(n);
    for (const int64_t n : {int64_t{1}, size(b)}) right.push_back(n);
  }
  const Tensor y = mul(reshape(a, left), reshape(b, right));
  for (int d = 0; d < y.rank(); d += 2) shape.push_back(y.size(d) * y.size(d + 1));
  return reshape(y, shape);
}
Tensor cross(const Tensor& a, const Tensor& b, int dim) {
  const Scope scope("cross");
  check(a.size(dim) == 3 && b.size(dim) == 3,
        "dimension {} of operands of shapes {} and {} is not of size 3", dim, a.shape(), b.shape());
  const auto product = [&](const Tensor& x, const Tensor& y) {
    return roll(x * roll(y, -1, dim) - roll(x, -1, dim) * y, -1, dim);
  };
  return in_f32(product, a, b);
}
// The order in which a chain of matrices takes the fewest multiplications: from those of shorter
// chains (Godbole 1973).
class MatrixChain {
 public:
  explicit MatrixChain(const std::vector<Tensor>& x)
      : x_(x), cost_(x.size() * x.size()), split_(cost_.size()) {
    for (size_t more = 1; more < x_.size(); ++more)
      for (size_t i = 0; i + more < x_.size(); ++i) choose_split(i, i + more);
  }
  Tensor product(size_t first, size_t last) const {
    if (first == last) return x_[first];
    const size_t k = split_[at(first, last)];
    return matmul(product(first, k), product(k + 1, last));
  }

 private:
  size_t at(size_t first, size_t last) const { return first * x_.size() + last; }
  void choose_split(size_t first, size_t last) {
    double& least = cost_[at(first, last)] = std::numeric_limits<double>::infinity();
    for (size_t k = first; k < last; ++k) {
      const double cost =
          cost_[at(first, k)] + cost_[at(k + 1, last)] +
          double(x_[first].size(0)) * double(x_[k].size(1)) * double(x_[last].size(1));
      if (cost >= least) continue;
      least = cost;
      split_[at(first, last)] = k;
    }
  }

  const std::vector<Tensor>& x_;
  std::vector<double> cost_;
  std::vector<size_t> split_;  // the last matrix of the left factor
};
Tensor multi_dot(const std::vector<Tensor>& parts) {
  const Scope scope("multi_dot");
  const size_t n = parts.size();
  check(n >= 2, "a product needs at least 2 matrices, got {}", n);
  std::vector<Tensor> x = parts;
  const bool row = x[0].rank() == 1, column = x[n - 1].rank() == 1;
  if (row) x[0] = unsqueeze(x[0], 0);
  if (column) x[n - 1] = unsqueeze(x[n - 1], 1);
  const DType dtype = x[0].dtype();
  // Steps in f32 round the result once, unless a policy chooses the dtype of each.
  bool wide = is_half(dtype) && n > 2 && !ThreadState::current().policy;
  for (size_t i = 0; i < n; ++i) {
    check(x[i].rank() == 2, "operand {} has shape {}, not [m, n]", i, x[i].shape());
    check(i == 0 || x[i - 1].size(1) == x[i].size(0), "inner dimensions differ: {} and {}",
          x[i == 0 ? 0 : i - 1].shape(), x[i].shape());
    wide = wide && x[i].dtype() == dtype;
  }
  if (wide)
    for (Tensor& t : x) t = cast(t, f32);
  Tensor y = MatrixChain(x).product(0, n - 1);
  if (wide) y = cast(y, dtype);
  return reshape(y, row && column ? Shape{}
                    : row         ? Shape{y.size(1)}
                    : column      ? Shape{y.size(0)}
                                  : y.shape());
}
Tensor outer(const Tensor& a, const Tensor& b) {
  const Scope scope("outer");
  check(a.rank() == 1 && b.rank() == 1, "operands have shapes {} and {}, not [m] and [n]",
        a.shape(), b.shape());
  return mul(unsqueeze(a, 1), b);
}
Tensor dot(const Tensor& a, const Tensor& b) {
  const Scope scope(Dot::info.name);
  check(a.rank() == 1 && b.rank() == 1 && a.size(0) == b.size(0),
        "operands have shapes {} and {}, not [n] and [n]", a.shape(), b.shape());
  check_real(a);
  return call<Dot>(a, b);
}

DType dtype_of_operand(const Tensor& x) {
  Policy* const policy = thread_state.policy;
  if (!policy) return x.dtype();
  const Unobserved asks;
  const Tensor nothing = none_of(x);
  const Tensor* inputs[] = {&nothing};
  Call call{Linear::info, inputs};
  policy->apply(call);
  return inputs[0]->dtype();
}
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const LinearOptions& o) {
  const Scope scope(Linear::info.name);
  check(x.rank() > 0, "the input has no dimensions");
  const bool by_columns =
      weight.rank() == 2 && weight.strides()[0] == 1 && weight.strides()[1] != 1;
  if (x.rank() == 2) return Linear::of(x, weight, bias, o.activation, by_columns, o.residual);
  const int64_t count = with_size(x.shape(), -1, 1).size();
  const Tensor rows = reshape(x, {count, x.size(-1)});
  Tensor residual = o.residual;
  if (residual) {
    const Shape y = with_size(x.shape(), -1, weight.size(0));
    check_shape(residual, "the residual", y);
    residual = reshape(residual, {count, y[-1]});
  }
  const Tensor y = Linear::of(rows, weight, bias, o.activation, by_columns, residual);
  return reshape(y, with_size(x.shape(), -1, y.size(-1)));
}

}  // namespace mixtape
