// Matrix decompositions and functions made of them. An op returns one tensor, in whose last
// dimension several matrices lie beside each other; the functions take them apart again.

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "autograd/ops/gradients.h"
#include "autograd/ops/linalg.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// Matrices and rows beside each other in the last dimension, read in order.
class Parts {
 public:
  explicit Parts(const Tensor& all) : all_(all) {}
  Tensor row(int64_t n) {
    at_ += n;
    return narrow(all_, -1, at_ - n, n);
  }
  Tensor matrix(int64_t m, int64_t n) { return unflatten(row(m * n), -1, {m, n}); }

 private:
  const Tensor all_;
  int64_t at_ = 0;
};
// A result of n numbers for each matrix of a, which run(rows) writes to f64 rows. It is saved
// together with a. (If a has no elements, at most one factor has some, and anything will do for
// it.)
template <class Run>
Tensor decomposed(Ctx& ctx, const Tensor& a, int64_t n, const Run& run) {
  const Tensor rows = empty({leading(a).size(), n}, f64, ctx.device());
  if (a.numel() > 0)
    run(rows);
  else if (rows.numel() > 0)
    copy_(rows, flatten(eye(std::max(a.size(-2), a.size(-1)), f64, ctx.device())));
  const Tensor y = cast(reshape(rows, joined(leading(a), {n})), ctx.dtype());
  ctx.save(a);
  ctx.save_result(y);
  return y;
}

// a / b, where 0 / 0 is 0: a function that does not depend on the choice of vectors for one
// eigenvalue has gradient 0 there.
Tensor divided(const Tensor& a, const Tensor& b) {
  const Tensor none = eq(a, 0);
  return masked_fill(a / where(none, 1.0, b), none, 0);
}
Tensor identity_like(const Tensor& a) { return eye(a.size(-1), a.dtype(), a.device()); }
// The matrix with x as its diagonal.
Tensor as_diagonal(const Tensor& x) { return unsqueeze(x, -1) * identity_like(x); }
// x_j - x_i at [i, j].
Tensor gaps_of(const Tensor& x) { return unsqueeze(x, -2) - unsqueeze(x, -1); }
// The symmetric part of a @ b.
Tensor symmetric_product(const Tensor& a, const Tensor& b) {
  const Tensor half = matmul(a, b, {.alpha = 0.5});
  return half + transpose(half);
}
Tensor solve_upper(const Tensor& r, const Tensor& b) {
  return solve_triangular(r, b, {.upper = true});
}
std::string why_failed(int64_t failure) {
  return failure == 1 ? "has an element that is not finite" : "did not converge";
}

// Eigenvalues or singular values without vectors, which run(values, failure) finds.
template <class Run>
Tensor values_of(Ctx& ctx, const Tensor& a, const Run& run) {
  const int64_t batch = leading(a).size(), k = std::min(a.size(-2), a.size(-1));
  const Tensor values = empty({batch, k}, f64, ctx.device()),
               failure = zeros({batch}, i64, ctx.device());
  if (a.numel() > 0) run(values, failure);
  check_each(failure, why_failed);
  return cast(reshape(values, joined(leading(a), {k})), ctx.dtype());
}
// True if gradients of a function of a are recorded.
bool records(const Tensor& a) { return grad_enabled() && a.requires_grad(); }

struct QrParts {
  Tensor q, r;

  QrParts(const Tensor& all, int64_t m, int64_t n, const QrOptions& o) {
    const int64_t k = columns(m, n, o);
    Parts parts(all);
    q = parts.matrix(m, k);
    r = parts.matrix(k, n);
  }
  static int64_t columns(int64_t m, int64_t n, const QrOptions& o) {  // of q
    return o.complete ? m : std::min(m, n);
  }
};
struct QrOp {
  static constexpr OpInfo info{"qr", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a, const QrOptions& o) {
    check_matrices(a);
    const int64_t m = a.size(-2), n = a.size(-1);
    return decomposed(ctx, a, QrParts::columns(m, n, o) * (m + n), [&](const Tensor& rows) {
      const QrParts parts(rows, m, n, o);
      ctx.run(kernels::qr, matrices(a), parts.q, parts.r);
    });
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const QrOptions& o) {
    const int64_t m = ctx.shape(0)[-2], n = ctx.shape(0)[-1];
    check(!o.complete || m <= n,
          "matrices of {} rows and {} columns have no gradient with .complete: the last columns of "
          "q are arbitrary",
          m, n);
    const Tensor a = precise(ctx.saved(0));
    const QrParts y(precise_result(ctx.saved(1), [&] { return call<QrOp>(a, o); }), m, n, o),
        d(precise(dy), m, n, o);
    if (m >= n) return {square_gradient(y.q, y.r, d.q, d.r)};
    // a = [b c] with b = q r_b square and r_c = q^T c: dc = q dr_c, and q gets c dr_c^T.
    const auto first = [&](const Tensor& x) { return narrow(x, -1, 0, m); };
    const auto last = [&](const Tensor& x) { return narrow(x, -1, m, n - m); };
    const Tensor dq = d.q + matmul(last(a), transpose(last(d.r)));
    return {cat({square_gradient(y.q, first(y.r), dq, first(d.r)), matmul(y.q, last(d.r))}, -1)};
  }

 private:
  // (dq + q s) r^-T, s being symmetric with the lower triangle of r dr^T - dq^T q
  static Tensor square_gradient(const Tensor& q, const Tensor& r, const Tensor& dq,
                                const Tensor& dr) {
    const Tensor inner = matmul(r, transpose(dr)) - matmul(transpose(dq), q);
    const Tensor s = tril(inner) + transpose(tril(inner, -1));
    return transpose(solve_upper(r, transpose(dq + matmul(q, s))));
  }
};

struct EighParts {
  Tensor vectors, values;

  EighParts(const Tensor& all, int64_t n) {
    Parts parts(all);
    vectors = parts.matrix(n, n);
    values = parts.row(n);
  }
};
struct EighOp {
  static constexpr OpInfo info{"eigh", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a) {
    check_square(a);
    const int64_t n = a.size(-1);
    return decomposed(ctx, a, n * (n + 1), [&](const Tensor& rows) {
      const Tensor failure = zeros({rows.size(0)}, i64, ctx.device());
      const EighParts parts(rows, n);
      ctx.run(kernels::eigh, matrices(a), parts.vectors, parts.values, failure);
      check_each(failure, why_failed);
    });
  }
  // da is the symmetric part of v (diag(dw) + v^T dv / (w_j - w_i)) v^T, where the quotient has no
  // diagonal.
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const int64_t n = ctx.shape(0)[-1];
    const EighParts y(
        precise_result(ctx.saved(1), [&] { return call<EighOp>(precise(ctx.saved(0))); }), n),
        d(precise(dy), n);
    const Tensor &v = y.vectors, vt = transpose(v);
    const Tensor turned = matmul(vt, d.vectors) * (1.0 - identity_like(v));
    const Tensor inner = as_diagonal(d.values) + divided(turned, gaps_of(y.values));
    return {symmetric_product(matmul(v, inner), vt)};
  }
};
// The values alone, of `all` that EighOp found, or if that is absent found here. Their gradient
// takes a product, where that of vectors takes three.
struct Eigvalsh {
  static constexpr OpInfo info{"eigvalsh", Precision::Full, {Role::Activation, Role::Statistic}};
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& all) {
    check_square(a);
    ctx.save(a, all);
    if (all) return clone(EighParts(all, a.size(-1)).values);
    return values_of(ctx, a, [&](const Tensor& values, const Tensor& failure) {
      ctx.run(kernels::eigh, matrices(a), Tensor(), values, failure);
    });
  }
  // da = v diag(dw) v^T
  static Grads backward(const Ctx& ctx, const Tensor& dw) {
    const auto again = [&] { return call<EighOp>(precise(ctx.saved(0))); };
    const Tensor v = EighParts(precise_result(ctx.saved(1), again), ctx.shape(0)[-1]).vectors;
    return {symmetric_product(v * unsqueeze(precise(dw), -2), transpose(v)), {}};
  }
};

struct SvdParts {
  Tensor u, s, vh;

  SvdParts(const Tensor& all, int64_t m, int64_t n, const SvdOptions& o) {
    const int64_t k = std::min(m, n);
    Parts parts(all);
    u = parts.matrix(m, o.full_matrices ? m : k);
    s = parts.row(k);
    vh = parts.matrix(o.full_matrices ? n : k, n);
  }
  static int64_t count(int64_t m, int64_t n, const SvdOptions& o) {
    const int64_t k = std::min(m, n);
    return o.full_matrices ? m * m + k + n * n : k * (m + n + 1);
  }
};
struct SvdOp {
  static constexpr OpInfo info{"svd", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a, const SvdOptions& o) {
    check_matrices(a);
    const int64_t m = a.size(-2), n = a.size(-1);
    return decomposed(ctx, a, SvdParts::count(m, n, o), [&](const Tensor& rows) {
      const Tensor failure = zeros({rows.size(0)}, i64, ctx.device());
      const SvdParts parts(rows, m, n, o);
      ctx.run(kernels::svd, matrices(a), parts.u, parts.s, parts.vh, failure);
      check_each(failure, why_failed);
    });
  }
  // With t(x, dx) = (x^T dx - dx^T x) / (s_j^2 - s_i^2):
  // da = u (t(u, du) S + S t(v, dv) + diag(ds)) v^T + (1 - u u^T) du S^-1 v^T + u S^-1 dv^T (1 - v
  // v^T)
  static Grads backward(const Ctx& ctx, const Tensor& dy, const SvdOptions& o) {
    const int64_t m = ctx.shape(0)[-2], n = ctx.shape(0)[-1], k = std::min(m, n);
    SvdParts y(precise_result(ctx.saved(1), [&] { return call<SvdOp>(precise(ctx.saved(0)), o); }),
               m, n, o),
        d(precise(dy), m, n, o);
    if (o.full_matrices) {
      if (m > n) std::tie(y.u, d.u) = of_first(y.u, d.u, k);
      if (m < n) {
        const auto [v, dv] = of_first(transpose(y.vh), transpose(d.vh), k);
        y.vh = transpose(v);
        d.vh = transpose(dv);
      }
    }
    const Tensor &u = y.u, &vt = y.vh, ut = transpose(u), v = transpose(vt);
    const Tensor columns = unsqueeze(y.s, -2), rows = unsqueeze(y.s, -1);
    // Squares could leave the range; their quotients do not.
    const auto turned = [&](const Tensor& product) {
      return divided(product - transpose(product), gaps_of(y.s));
    };
    const Tensor inner = turned(matmul(ut, d.u)) * divided(columns, columns + rows) +
                         as_diagonal(d.s) +
                         divided(rows, columns + rows) * turned(matmul(vt, transpose(d.vh)));
    Tensor da = matmul(matmul(u, inner), vt);
    if (m > n) da = da + matmul(divided(d.u - matmul(u, matmul(ut, d.u)), columns), vt);
    if (m < n) da = da + matmul(u, divided(d.vh - matmul(matmul(d.vh, v), vt), rows));
    return {da};
  }

 private:
  // The first k columns x1 of an orthogonal x, and their gradient, with that of the other columns
  // x2, which follow from them: x1^T dx2 = -dx1^T x2, so g2 adds -x2 g2^T x1. The rest of dx2
  // rotates x2 within its span, which is arbitrary.
  static std::pair<Tensor, Tensor> of_first(const Tensor& x, const Tensor& g, int64_t k) {
    const auto first = [k](const Tensor& t) { return narrow(t, -1, 0, k); };
    const auto last = [k](const Tensor& t) { return narrow(t, -1, k, t.size(-1) - k); };
    return {first(x), first(g) - matmul(matmul(last(x), transpose(last(g))), first(x))};
  }
};

// The values alone, as Eigvalsh.
struct Svdvals {
  static constexpr OpInfo info{"svdvals", Precision::Full, {Role::Activation, Role::Statistic}};
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& all, const SvdOptions& o) {
    check_matrices(a);
    ctx.save(a, all);
    const int64_t m = a.size(-2), n = a.size(-1);
    if (all) return clone(SvdParts(all, m, n, o).s);
    return values_of(ctx, a, [&](const Tensor& values, const Tensor& failure) {
      ctx.run(kernels::svd, matrices(a), Tensor(), values, Tensor(), failure);
    });
  }
  // da = u diag(ds) v^T
  static Grads backward(const Ctx& ctx, const Tensor& ds, const SvdOptions& o) {
    const int64_t m = ctx.shape(0)[-2], n = ctx.shape(0)[-1], k = std::min(m, n);
    const auto again = [&] { return call<SvdOp>(precise(ctx.saved(0)), o); };
    const SvdParts y(precise_result(ctx.saved(1), again), m, n, o);
    return {matmul(narrow(y.u, -1, 0, k) * unsqueeze(precise(ds), -2), narrow(y.vh, -2, 0, k)), {}};
  }
};

// Singular values below this part of the largest count as 0.
double relative_tolerance(const Tensor& a, std::optional<double> given) {
  const double eps = a.dtype() == f64 ? std::numeric_limits<double>::epsilon()
                                      : double(std::numeric_limits<float>::epsilon());
  return given.value_or(double(std::max(a.size(-2), a.size(-1))) * eps);
}
// The gradient of a for its pseudoinverse p (Golub and Pereyra 1973).
Tensor pinv_gradient(const Tensor& a, const Tensor& p, const Tensor& dp) {
  const Tensor pt = transpose(p), dpt = transpose(dp);
  if (a.size(-2) <= a.size(-1)) {
    const Tensor k = matmul(dpt, p), kpt = matmul(k, pt);
    return kpt - transpose(matmul(p, k)) - matmul(matmul(a, p), kpt) +
           matmul(matmul(pt, p), dpt - matmul(k, a));
  }
  const Tensor k = matmul(p, dpt), ptk = matmul(pt, k);
  return matmul(matmul(dpt - matmul(a, k), p), pt) - transpose(matmul(k, p)) + ptk -
         matmul(matmul(ptk, p), a);
}
struct Pinv {
  static constexpr OpInfo info{"pinv", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a, double rtol) {
    const Tensor y = cast(of(a, rtol), ctx.dtype());
    ctx.save(a);
    ctx.save_result(y);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, double rtol) {
    const Tensor a = precise(ctx.saved(0));
    const Tensor p = precise_result(ctx.saved(1), [&] { return call<Pinv>(a, rtol); });
    return {pinv_gradient(a, p, precise(dy))};
  }

  // v s^-1 u^T in f64
  static Tensor of(const Tensor& a, double rtol) {
    check_matrices(a);
    if (a.numel() == 0) return zeros(transpose(a.layout(), -1, -2).shape, f64, a.device());
    const Svd x = svd(cast(a, f64));
    const Tensor none = le(x.s, narrow(x.s, -1, 0, 1) * rtol);
    const Tensor inverse = masked_fill(1.0 / masked_fill(x.s, none, 1), none, 0);
    return matmul(transpose(x.vh) * unsqueeze(inverse, -2), transpose(x.u));
  }
};

struct Lstsq {  // of one batch
  static constexpr OpInfo info{"lstsq", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b, double rtol) {
    check_real(b);
    check_equations(a, b);
    ctx.save(a, b);
    return cast(matmul(Pinv::of(a, rtol), cast(b, f64)), ctx.dtype());
  }
  // With p, the pseudoinverse of a: db = p^T dx, dp = dx b^T
  static Grads backward(const Ctx& ctx, const Tensor& dx, double rtol) {
    const Tensor a = precise(ctx.saved(0)), b = precise(ctx.saved(1)), d = precise(dx);
    const Tensor p = call<Pinv>(a, rtol);
    return ctx.grads([&] { return pinv_gradient(a, p, matmul(d, transpose(b))); },
                     [&] { return matmul(transpose(p), d); });
  }
};

struct MatrixExp {
  static constexpr OpInfo info{"matrix_exp", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a) {
    check_square(a);
    const Tensor in = matrices(a), y = empty(in.shape(), f64, ctx.device());
    if (a.numel() > 0) ctx.run(kernels::matrix_exp, in, y);
    ctx.save(a);
    return cast(reshape(y, a.shape()), ctx.dtype());
  }
  // The corner of exp([[x, d], [0, x]]) is the derivative at x in direction d; here x = a^T, d =
  // dy.
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor x = transpose(precise(ctx.saved(0))), d = precise(dy);
    const int64_t n = x.size(-1);
    const Tensor both = matrix_exp(cat({cat({x, d}, -1), cat({zeros_like(x), x}, -1)}, -2));
    return {narrow(narrow(both, -2, 0, n), -1, n, n)};
  }
};

}  // namespace

Qr qr(const Tensor& a, const QrOptions& o) {
  const Tensor all = call<QrOp>(a, o);
  const QrParts y(all, a.size(-2), a.size(-1), o);
  return {y.q, y.r};
}
Eigh eigh(const Tensor& a) {
  const Tensor all = call<EighOp>(a);
  return {call<Eigvalsh>(a, all), EighParts(all, a.size(-1)).vectors};
}
Tensor eigvalsh(const Tensor& a) {
  return records(a) ? eigh(a).values : call<Eigvalsh>(a, Tensor());
}
Svd svd(const Tensor& a, const SvdOptions& o) {
  const Tensor all = call<SvdOp>(a, o);
  const SvdParts y(all, a.size(-2), a.size(-1), o);
  return {y.u, call<Svdvals>(a, all, o), y.vh};
}
Tensor svdvals(const Tensor& a) {
  return records(a) ? svd(a).s : call<Svdvals>(a, Tensor(), SvdOptions{});
}
Tensor pinv(const Tensor& a, const PinvOptions& o) {
  const Scope scope(Pinv::info.name);
  check_matrices(a);
  return call<Pinv>(a, relative_tolerance(a, o.rtol));
}
Tensor matrix_rank(const Tensor& a, const PinvOptions& o) {
  const Scope scope("matrix_rank");
  check_matrices(a);
  const NoGrad off;
  const Tensor s = svdvals(precise(a));
  if (s.size(-1) == 0) return zeros(leading(a), i64, a.device());
  return sum(s > max(s, {-1}, true) * relative_tolerance(a, o.rtol), {-1});
}
Tensor cond(const Tensor& a) {
  const Scope scope("cond");
  const auto ratio = [](const Tensor& w) {
    const Tensor s = svdvals(w);
    return select(s, -1, 0) / select(s, -1, -1);
  };
  return in_wider(ratio, a);
}
Tensor matrix_norm(const Tensor& a, std::string_view ord) {
  const Scope scope("matrix_norm");
  check_matrices(a);
  check(ord == "fro" || ord == "nuc", "ord is \"{}\", not \"fro\" or \"nuc\"", ord);
  if (ord == "fro") return norm(a, {-2, -1});
  return in_wider([](const Tensor& w) { return sum(svdvals(w), {-1}); }, a);
}
Tensor matrix_norm(const Tensor& a, double ord) {
  const Scope scope("matrix_norm");
  check_matrices(a);
  const double size = std::abs(ord);
  check(size == 1 || size == 2 || std::isinf(size),
        "ord must be 1, 2 or infinity, or minus it, got {}", ord);
  const auto each = [&](const Tensor& w) {
    return size == 2 ? svdvals(w) : sum(abs(w), size == 1 ? -2 : -1);
  };
  return in_wider([&](const Tensor& w) { return ord > 0 ? max(each(w), -1) : min(each(w), -1); },
                  a);
}
Tensor lstsq(const Tensor& a, const Tensor& b, const PinvOptions& o) {
  const Scope scope(Lstsq::info.name);
  check_matrices(a);
  const double rtol = relative_tolerance(a, o.rtol);
  return with_columns(a, b, [&](const Tensor& left, const Tensor& right) {
    check_equations(left, right);
    return with_batch(left, right,
                      [&](const Tensor& u, const Tensor& v) { return call<Lstsq>(u, v, rtol); });
  });
}
// Elements may be infinite.
Tensor matrix_exp(const Tensor& a) {
  const Scope scope(MatrixExp::info.name);
  const bool number = a.rank() >= 2 && a.size(-2) == 1 && a.size(-1) == 1;
  return number ? exp(a) : call<MatrixExp>(a);
}
Tensor matrix_power(const Tensor& a, int64_t n) {
  const Scope scope("matrix_power");
  check_square(a);
  const NoPolicy in_its_own_dtype;
  const auto power = [n](const Tensor& x) {
    if (n == 0) return zeros_like(x) + eye(x.size(-1), x.dtype(), x.device());
    Tensor base = n < 0 ? inv(x) : x, y;
    for (uint64_t left = n < 0 ? 0 - uint64_t(n) : uint64_t(n);; base = matmul(base, base)) {
      if (left & 1) y = y ? matmul(y, base) : clone(base);
      if ((left >>= 1) == 0) return y;
    }
  };
  return in_f32(power, a);
}

}  // namespace mixtape
