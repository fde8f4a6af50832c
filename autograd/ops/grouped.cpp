// Products of groups of rows, each with its own matrix, as of tokens with their expert. Each group
// is one product of the kernel; the backward rules are made of the same two ops.

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

struct RowGroups {
  std::vector<int64_t> sizes;
  std::optional<DType> out = {};

  // Calls f(group, rows of x, rows of y).
  template <class F>
  void for_each(const Tensor& x, const Tensor& y, F f) const {
    int64_t begin = 0;
    for (size_t g = 0; g < sizes.size(); ++g) {
      const auto rows = [&](const Tensor& t) {
        return t.with_layout(slice(t.layout(), 0, begin, begin + sizes[g]));
      };
      f(int64_t(g), rows(x), rows(y));
      begin += sizes[g];
    }
  }
};
Tensor matrix_of(const Tensor& t, int64_t group) {
  return t.with_layout(select(t.layout(), 0, group));
}

struct GroupedMatmul {  // x [rows, k], w [groups, k, n] -> [rows, n]
  static constexpr OpInfo info{
      "grouped_matmul", Precision::Low, {Role::Activation, Role::Parameter}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& w, const RowGroups& groups) {
    const Tensor y = ctx.output({x.size(0), w.size(2)}, groups.out.value_or(ctx.dtype()));
    groups.for_each(x, y, [&](int64_t g, const Tensor& rows, const Tensor& to) {
      ctx.run(kernels::gemm, rows, matrix_of(w, g), kernels::Epilogue{}, to);
    });
    ctx.save(x, w);
    return y;
  }
  // dx = dy wT, dw = xT dy, group by group
  static Grads backward(const Ctx& ctx, const Tensor& dy, const RowGroups& groups);
};

struct GroupedOuter {  // a [rows, m], b [rows, n] -> aT b of each group, [groups, m, n]
  static constexpr OpInfo info{"grouped_outer", Precision::Low};
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b, const RowGroups& groups) {
    const Tensor y = ctx.output({int64_t(groups.sizes.size()), a.size(1), b.size(1)},
                                groups.out.value_or(ctx.dtype()));
    groups.for_each(a, b, [&](int64_t g, const Tensor& left, const Tensor& right) {
      ctx.run(kernels::gemm, left.t(), right, kernels::Epilogue{}, matrix_of(y, g));
    });
    ctx.save(a, b);
    return y;
  }
  // da = b dyT, db = a dy
  static Grads backward(const Ctx& ctx, const Tensor& dy, const RowGroups& groups);
};

template <class Op>
Tensor grouped(const Tensor& x, const Tensor& y, DType wanted, const RowGroups& groups) {
  const Factors f(x, y);
  return call<Op>(f.a, f.b, RowGroups{groups.sizes, f.product(wanted)});
}

Grads GroupedMatmul::backward(const Ctx& ctx, const Tensor& dy, const RowGroups& groups) {
  return ctx.grads(
      [&] {
        return grouped<GroupedMatmul>(dy, transpose(ctx.saved(1)), ctx.grad_dtype(0), groups);
      },
      [&] { return grouped<GroupedOuter>(ctx.saved(0), dy, ctx.grad_dtype(1), groups); });
}
Grads GroupedOuter::backward(const Ctx& ctx, const Tensor& dy, const RowGroups& groups) {
  return ctx.grads(
      [&] {
        return grouped<GroupedMatmul>(ctx.saved(1), transpose(dy), ctx.grad_dtype(0), groups);
      },
      [&] { return grouped<GroupedMatmul>(ctx.saved(0), dy, ctx.grad_dtype(1), groups); });
}

}  // namespace

Tensor grouped_matmul(const Tensor& x, const Tensor& weight, const std::vector<int64_t>& sizes) {
  const Scope scope(GroupedMatmul::info.name);
  check_real(x);
  check(x.rank() == 2 && weight.rank() == 3 && x.size(1) == weight.size(1),
        "operands have shapes {} and {}, not [rows, k] and [groups, k, n]", x.shape(),
        weight.shape());
  check(int64_t(sizes.size()) == weight.size(0), "{} groups need as many sizes, got {}",
        weight.size(0), sizes.size());
  int64_t rows = 0;
  for (const int64_t size : sizes) {
    check(size >= 0, "sizes must be >= 0, got {}", size);
    check(!__builtin_add_overflow(rows, size, &rows), "sizes add up to more than 2^63");
  }
  check(rows == x.size(0), "sizes add up to {} rows, and the input has {}", rows, x.size(0));
  return call<GroupedMatmul>(x, weight, RowGroups{sizes});
}
Tensor grouped_matmul(const Tensor& x, const Tensor& weight, const Tensor& sizes) {
  const Scope scope(GroupedMatmul::info.name);
  const Tensor each = as_index(sizes, "sizes");
  check(each.rank() == 1, "sizes have shape {}, not [groups]", sizes.shape());
  return grouped_matmul(x, weight, to_vector<int64_t>(each));
}

}  // namespace mixtape
