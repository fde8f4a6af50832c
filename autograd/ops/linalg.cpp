// Systems of linear equations, inverses, determinants and Cholesky factors. Kernels compute in f64,
// so every result is rounded once. Backward rules are made of ops.

#include "autograd/ops/linalg.h"

#include <fmt/format.h>

#include "autograd/ops/gradients.h"

namespace mixtape {
using namespace internal;
using namespace ops;

void ops::check_matrices(const Tensor& a) {
  check_real(a);
  check(a.rank() >= 2, "matrices of shape {}, not [..., m, n]", a.shape());
}
void ops::check_square(const Tensor& a) {
  check_matrices(a);
  check(a.size(-2) == a.size(-1), "matrices of shape {} are not square", a.shape());
}
void ops::check_equations(const Tensor& a, const Tensor& b) {
  check_matrices(a);
  check(b.rank() >= 2 && b.size(-2) == a.size(-2),
        "matrices of shape {} and right-hand sides of shape {}, not [..., m, n] and [..., m, k]",
        a.shape(), b.shape());
}
Tensor ops::matrices(const Tensor& a) {
  return reshape(dense(cast(a, f64)), {leading(a).size(), a.size(-2), a.size(-1)});
}
void ops::check_each(const Tensor& reports, const std::function<std::string(int64_t)>& problem) {
  if (reports.device().is_meta()) return;
  const int64_t* const found = reports.data<int64_t>();
  for (int64_t i = 0; i < reports.numel(); ++i)
    check(found[i] == 0, "matrix {} of {} {}", i, reports.numel(), problem(found[i]));
}

namespace {

using kernels::Triangular;

bool is_upper(Triangular t) { return t == Triangular::Upper || t == Triangular::UnitUpper; }
bool has_unit_diagonal(Triangular t) {
  return t == Triangular::UnitLower || t == Triangular::UnitUpper;
}
Triangular triangle_of(bool upper, bool unit) {
  return upper ? (unit ? Triangular::UnitUpper : Triangular::Upper)
               : (unit ? Triangular::UnitLower : Triangular::Lower);
}
Triangular transpose_of(Triangular t) {
  return t == Triangular::None ? t : triangle_of(!is_upper(t), has_unit_diagonal(t));
}
// The elements of a that a triangular system reads, with zeros elsewhere.
Tensor triangle_of(const Tensor& a, Triangular t) {
  if (t == Triangular::None) return a;
  const int64_t beside = has_unit_diagonal(t) ? 1 : 0;
  return is_upper(t) ? triu(a, beside) : tril(a, -beside);
}

// The solutions of square systems, f64 [batch, n, k]. Unless `checked`, solutions for a singular
// matrix are infinite or NaN.
Tensor solutions(const Ctx& ctx, Triangular part, const Tensor& a, const Tensor& b,
                 bool checked = true) {
  const Tensor x = empty(b.shape(), f64, ctx.device());
  const Tensor zero_pivot = zeros({b.size(0)}, i64, ctx.device());
  if (a.numel() > 0) ctx.run(kernels::solve, part, a, b, x, zero_pivot);
  if (checked)
    check_each(zero_pivot, [](int64_t i) {
      return fmt::format("is singular: pivot {} of its LU factorization is 0", i);
    });
  return x;
}

struct Solve {  // of one batch
  static constexpr OpInfo info{"solve", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b, Triangular part) {
    check_square(a);
    check_real(b);
    check_equations(a, b);
    const Tensor x =
        cast(reshape(solutions(ctx, part, matrices(a), matrices(b)), b.shape()), ctx.dtype());
    ctx.save(a, b);
    ctx.save_result(x);
    return x;
  }
  // db = a^-T dx, da = -db x^T
  static Grads backward(const Ctx& ctx, const Tensor& dx, Triangular part) {
    const Tensor a = precise(ctx.saved(0));
    const Tensor db = call<Solve>(transpose(a), precise(dx), transpose_of(part));
    const auto again = [&] { return call<Solve>(a, precise(ctx.saved(1)), part); };
    return ctx.grads(
        [&] {
          const Tensor x = precise_result(ctx.saved(2), again);
          return triangle_of(matmul(db, transpose(x), {.alpha = -1}), part);
        },
        [&] { return db; });
  }
};

struct Inverse {
  static constexpr OpInfo info{"inv", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a, bool checked) {
    check_square(a);
    const Tensor in = matrices(a), one = eye(a.size(-1), f64, a.device());
    const Tensor y = cast(
        reshape(solutions(ctx, Triangular::None, in, contiguous(expand(one, in.shape())), checked),
                a.shape()),
        ctx.dtype());
    ctx.save(a);
    ctx.save_result(y);
    return y;
  }
  // da = -y^T dy y^T
  static Grads backward(const Ctx& ctx, const Tensor& dy, bool checked) {
    const Tensor y =
        precise_result(ctx.saved(1), [&] { return call<Inverse>(precise(ctx.saved(0)), checked); });
    return {matmul(matmul(transpose(y), precise(dy)), transpose(y), {.alpha = -1})};
  }
};

// f64 [batch, 3]: the determinant, its sign and the logarithm of its absolute value.
Tensor determinants(const Ctx& ctx, const Tensor& a) {
  check_square(a);
  const Tensor y = empty({leading(a).size(), 3}, f64, ctx.device());
  if (a.numel() > 0) {
    ctx.run(kernels::determinant, matrices(a), y);
  } else {  // without elements it is 1
    fill_(y, 1);
    fill_(narrow(y, 1, 2, 1), 0);
  }
  return y;
}
Tensor on_matrices(const Tensor& x) { return unsqueeze(unsqueeze(x, -1), -1); }

// The products of all elements of x [..., n] except where `left_out` [..., n] is true.
Tensor products(const Tensor& x, const Tensor& left_out) {
  return prod(where(left_out, 1.0, x), {-1});
}
// The derivative of the determinant of a matrix U S V^T, singular or not: det(U V) U C V^T, where
// the diagonal C holds the products of all other singular values. U and V have no derivatives if
// values repeat, so the backward rule differentiates C as a function of a whole matrix in place of
// S.
struct Cofactors {
  static constexpr OpInfo info{"det_gradient", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a) {
    const Svd x = svd(a);
    const Tensor others = products(unsqueeze(x.s, -2), is_same(a));
    ctx.save(a);
    return sign(x) * matmul(x.u * unsqueeze(others, -2), x.vh);
  }
  // With g = U^T dy V: det(U V) U (diag(P diag(g)) - P g^T) V^T, where the second product is
  // elementwise and P [i, j] is the product of all singular values but i and j.
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor a = precise(ctx.saved(0)), same = is_same(a);
    const Svd x = svd(a);
    const Tensor pairs = logical_or(unsqueeze(same, -2), unsqueeze(same, -3));
    const Tensor p = masked_fill(products(unsqueeze(unsqueeze(x.s, -2), -2), pairs), same, 0);
    const Tensor g = matmul(matmul(transpose(x.u), precise(dy)), transpose(x.vh));
    const Tensor along = matmul(p, sum(where(same, g, 0), {-1}, true));
    const Tensor inner = where(same, along, -p * transpose(g));
    return {sign(x) * matmul(matmul(x.u, inner), x.vh)};
  }

 private:
  static Tensor is_same(const Tensor& a) { return eq(eye(a.size(-1), a.dtype(), a.device()), 1); }
  static Tensor sign(const Svd& x) { return on_matrices(det(x.u) * det(x.vh)); }
};
// d det(a) / da, where `size` is det(a): size a^-T, or Cofactors if a is singular or, if that is
// recorded, nearly so, since terms of its derivative, a^-T dy^T det(a) a^-T and the like, then
// cancel.
Tensor cofactors(const Tensor& a, const Tensor& size) {
  const Tensor one = eye(a.size(-1), a.dtype(), a.device());
  Tensor singular = on_matrices(eq(size, 0));
  const auto inverse = [&] { return inv(where(singular, one, a)); };
  const auto regular = [&](const Tensor& of) { return on_matrices(size) * transpose(of); };
  const Tensor first = inverse();
  if (grad_enabled()) {
    const NoGrad off;
    const Tensor condition = norm(a, {-2, -1}, true) * norm(first, {-2, -1}, true);
    singular = logical_or(singular, condition > 1e3 * double(a.size(-1)));
  }
  if (a.device().is_meta() || !any(singular).item<bool>()) return regular(first);
  return where(singular, call<Cofactors>(a), regular(inverse()));
}

struct Det {
  static constexpr OpInfo info{"det", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a) {
    const Tensor y = reshape(select(determinants(ctx, a), 1, 0), leading(a));
    ctx.save(a);
    ctx.save_extra(y);
    return cast(y, ctx.dtype());
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor a = precise(ctx.saved(0));
    return {on_matrices(precise(dy)) * cofactors(a, grad_enabled() ? det(a) : ctx.saved(1))};
  }
};

struct SignAndLog {  // [..., 2]
  static constexpr OpInfo info{"slogdet", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a) {
    const Tensor y = narrow(determinants(ctx, a), 1, 1, 2);
    ctx.save(a);
    return cast(reshape(y, joined(leading(a), {2})), ctx.dtype());
  }
  // d log |det a| / da = a^-T, infinite or NaN if a is singular
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor inverse = call<Inverse>(precise(ctx.saved(0)), false);
    return {on_matrices(precise(select(dy, -1, 1))) * transpose(inverse)};
  }
};

struct Cholesky {
  static constexpr OpInfo info{"cholesky", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a) {
    check_square(a);
    const Tensor in = matrices(a), l = empty(in.shape(), f64, ctx.device());
    const Tensor bad_minor = zeros({in.size(0)}, i64, ctx.device());
    if (a.numel() > 0) ctx.run(kernels::cholesky, in, l, bad_minor);
    check_each(bad_minor, [](int64_t i) {
      return fmt::format("is not positive definite: its leading minor of order {} is not positive",
                         i);
    });
    const Tensor y = cast(reshape(l, a.shape()), ctx.dtype());
    ctx.save(a);
    ctx.save_result(y);
    return y;
  }
  // da is the symmetric part of l^-T p l^-1, where p is the lower triangle of l^T dl with its
  // diagonal halved.
  static Grads backward(const Ctx& ctx, const Tensor& dl) {
    const Tensor l = precise_result(ctx.saved(1), [&] { return cholesky(precise(ctx.saved(0))); });
    const Tensor lt = transpose(l), half = eye(l.size(-1), l.dtype(), l.device()) * 0.5;
    const Tensor p = tril(matmul(lt, precise(dl))) * (1.0 - half);
    const Tensor left = call<Solve>(lt, p, Triangular::Upper);
    const Tensor both = call<Solve>(lt, transpose(left), Triangular::Upper);
    return {(both + transpose(both)) * 0.5};
  }
};

}  // namespace

Tensor solve(const Tensor& a, const Tensor& b) {
  const Scope scope(Solve::info.name);
  check_square(a);
  return with_columns(a, b, [](const Tensor& left, const Tensor& right) {
    check_equations(left, right);
    return with_batch(left, right, [](const Tensor& u, const Tensor& v) {
      return call<Solve>(u, v, Triangular::None);
    });
  });
}
Tensor solve_triangular(const Tensor& a, const Tensor& b, const TriangularOptions& o) {
  const Scope scope("solve_triangular");
  check_square(a);
  if (!o.left)  // x a = b: a^T x^T = b^T
    return transpose(
        solve_triangular(transpose(a), transpose(b), {!o.upper, true, o.unitriangular}));
  check_equations(a, b);
  return with_batch(a, b, [&](const Tensor& u, const Tensor& v) {
    return call<Solve>(u, v, triangle_of(o.upper, o.unitriangular));
  });
}
Tensor inv(const Tensor& a) { return call<Inverse>(a, true); }
Tensor det(const Tensor& a) { return call<Det>(a); }
Slogdet slogdet(const Tensor& a) {
  const Tensor y = call<SignAndLog>(a);
  return {select(y, -1, 0), select(y, -1, 1)};
}
Tensor logdet(const Tensor& a) {
  const auto [sign, log] = slogdet(a);
  return masked_fill(log, lt(sign, 0), std::numeric_limits<double>::quiet_NaN());
}
Tensor cholesky(const Tensor& a, bool upper) {
  const Tensor l = call<Cholesky>(a);
  return upper ? transpose(l) : l;
}
Tensor cholesky_solve(const Tensor& b, const Tensor& l, bool upper) {
  const Scope scope("cholesky_solve");
  const auto solved = [](const Tensor& lower, const Tensor& right) {
    return solve_triangular(transpose(lower), solve_triangular(lower, right), {.upper = true});
  };
  return in_wider(solved, upper ? transpose(l) : l, b);
}

}  // namespace mixtape
