// Rows by index, and dropout: ops that pick elements, whose rules are their own transposes.

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/operands.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace {

struct ScatterRows;

struct Embedding {  // table [rows, n], index [k] -> [k, n]
  static constexpr OpInfo info{"embedding", Precision::Any, {Role::Parameter, Role::Index}};
  static Tensor forward(Ctx& ctx, const Tensor& table, const Tensor& index) {
    Tensor y = ctx.output({index.size(0), table.size(1)});
    const Tensor tc = table.contiguous(), ic = index.contiguous();
    ctx.run(kernels::gather_rows, tc, ic, y);
    ctx.save(index);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy);
};

struct ScatterRows {  // dy [k, n], index [k] -> [rows, n]
  static constexpr OpInfo info{"scatter_rows", Precision::Any, {Role::Activation, Role::Index}};
  static Tensor forward(Ctx& ctx, const Tensor& dy, const Tensor& index, int64_t rows) {
    Tensor dtable = ctx.output({rows, dy.size(1)});
    const Tensor dc = dy.contiguous(), ic = index.contiguous();
    ctx.run(kernels::scatter_add_rows, dc, ic, dtable);
    ctx.save(index);
    return dtable;
  }
  static Grads backward(const Ctx& ctx, const Tensor& g) {
    const Tensor index = ctx.saved(0);
    return ctx.grads([&] { return call<Embedding>(g, index); });
  }
};

Grads Embedding::backward(const Ctx& ctx, const Tensor& dy) {
  return ctx.grads([&] { return call<ScatterRows>(dy, ctx.saved(0), ctx.shape(0)[0]); });
}

// The mask is not kept: the same position of the random stream gives it again.
struct Dropout {
  static constexpr OpInfo info{"dropout", Precision::Any};
  static Tensor forward(Ctx& ctx, const Tensor& x, uint64_t seed, uint64_t offset, double p) {
    Tensor y = ctx.output(x.shape());
    const Tensor xc = x.contiguous();
    ctx.run(kernels::dropout, seed, offset, p, xc, y);
    return y;
  }
  static Grads backward(const Ctx&, const Tensor& dy, uint64_t seed, uint64_t offset, double p) {
    return {call<Dropout>(dy, seed, offset, p)};
  }
};

}  // namespace

IndexRange index_range(const Tensor& index) {
  if (index.numel() == 0) return {};
  const Tensor bounds({2}, i64, index.device());
  kernels::Launch launch(index.device());
  kernels::bounds(launch, index, bounds);
  return {bounds.data<int64_t>()[0], bounds.data<int64_t>()[1]};
}

Tensor embedding(const Tensor& table, const Tensor& index) {
  const Scope scope(Embedding::info.name);
  check(table.rank() == 2, "the table has shape {}, not [rows, n]", table.shape());
  check(index.dtype() == i64, "indices are {}, not i64", index.dtype());
  const Tensor flat = reshape(index, {index.numel()});
  const IndexRange range = index_range(flat);
  check(range.low >= 0 && range.high < table.size(0), "indices from {} to {} into {} rows",
        range.low, range.high, table.size(0));
  Shape shape = index.shape();
  shape.push_back(table.size(1));
  return reshape(call<Embedding>(table, flat), shape);
}

Tensor dropout(const Tensor& x, double p) {
  const Scope scope(Dropout::info.name);
  check(p >= 0 && p <= 1, "a probability of {}", p);
  check(is_float(x.dtype()), "of {} elements (convert them to a float dtype)", x.dtype());
  if (p == 0) return x;
  Generator& g = generator();
  return call<Dropout>(x, g.seed(), g.reserve(x.numel()), p);
}

}  // namespace mixtape
