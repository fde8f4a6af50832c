// Recurrent layers. All time steps are one op, so the weight's gradient is one product over all of
// them, and a step costs a product and a kernel instead of a dozen nodes. State besides h stays f32
// between steps. Measurements: bench/worklog/006.

#include "autograd/ops/attributes.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/expr.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "core/effects.h"
#include "kernels/common/cells.h"
#include "kernels/common/packed.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

using kernels::Cell;

constexpr std::string_view name_of(Cell cell) {
  constexpr std::string_view names[] = {"rnn_tanh", "rnn_relu", "lstm", "gru"};
  return names[static_cast<int>(cell)];
}

// Row k of a dense [steps, ...], for a kernel.
View at(const Tensor& t, int64_t k) {
  View v = t;
  const Layout row = select(v.layout, 0, k);
  v.data = static_cast<char*>(v.data) + row.offset * int64_t(size_of(v.dtype));
  v.layout = Layout(row.shape, row.strides);
  return v;
}

Tensor or_zeros(const Tensor& t, const Shape& shape, DType dtype, Device device) {
  return t ? cast(t, dtype).contiguous() : zeros(shape, dtype, device);
}

// The weight as the first step packs it for all, or null: few steps do not repay packing.
kernels::Packed* packed_for(int64_t steps, kernels::Packed& weight) {
  return steps < 4 ? nullptr : &weight;
}

template <class C>
struct Recurrent {
  static constexpr OpInfo info{
      name_of(C::id),
      Precision::Low,
      {Role::Activation, Role::Parameter, Role::Statistic, Role::Statistic, Role::Statistic}};
  static constexpr bool wide_gradient = true;  // gradients of states add up from call to call
  static constexpr bool has_c = C::id == Cell::Lstm, has_state = has_c || C::id == Cell::Gru;
  static constexpr bool splits = C::id == Cell::Gru;  // dx and dh differ
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& h0, const Tensor& c0, const RecurrentParams& a) {
    check_real(x);
    const int64_t steps = x.size(0), b = x.size(1), n = weight.size(1);
    const Tensor y = ctx.output({has_c ? steps + 1 : steps, b, n});
    const DType wide = accumulate_dtype(y.dtype());
    const Tensor xc = x.contiguous(), w = cast(weight, y.dtype()).t();
    const Tensor h = or_zeros(h0, {b, n}, y.dtype(), y.device()),
                 from_h({b, C::gates * n}, wide, y.device());
    Tensor kept, state = a.state;
    if (has_state && !state) state = Tensor({b, n}, wide, y.device());
    if (has_state)
      ctx.run(kernels::convert, or_zeros(has_c ? c0 : h0, {b, n}, wide, y.device()), state);
    if (C::kept && ctx.recording()) kept = ctx.output({steps, b, C::kept * n}, wide);
    View before = h;
    kernels::Packed packed;
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t k = a.reverse ? steps - 1 - i : i;
      const View now = at(y, k);
      ctx.run(kernels::gemm, before, w,
              kernels::Epilogue{.bias = bias, .packed = packed_for(steps, packed)}, from_h);
      ctx.run(kernels::cell, C::id, at(xc, k), from_h, state, kept ? at(kept, k) : View{}, now);
      before = now;
    }
    if (has_c) ctx.run(kernels::convert, state, at(y, steps));
    ctx.save(x, weight, bias, h0, c0);
    ctx.save_result(y);
    if (kept) ctx.save_extra(kept);
    return y;
  }

  // The gradients dx and dh of the gates (which differ if a gate acts on h's part alone), and those
  // of the first states.
  struct Back {
    Tensor dx, dh, dnext, carry, h0, y;
    Tensor dh0() const { return splits ? dnext + carry : dnext; }
  };
  static Grads backward(const Ctx& ctx, const Tensor& dy, const RecurrentParams& a) {
    if (grad_enabled()) return by_ops(ctx, dy, a.reverse);
    const Back g = through_time(ctx, dy, a);
    const Tensor rows = flatten(g.dh, 0, 1);
    return ctx.grads(
        [&] { return g.dx; },  // dw = sum over steps of dhT h
        [&] { return product(rows.t(), flatten(h_before(g, a), 0, 1), ctx.grad_dtype(1)); },
        [&] { return bias_gradient(ctx, 2, rows, 0b1); }, [&] { return g.dh0(); },
        [&] { return g.carry; });
  }
  // Examples follow each other along dimension 1.
  static Grads backward_each(const Ctx& ctx, const Tensor& dy, int64_t n,
                             const RecurrentParams& a) {
    const Back g = through_time(ctx, dy, a);
    const auto rows_of_each = [n](const Tensor& t) {  // [n, rows, features]
      return flatten(by_example(transpose(t, 0, 1), n), 1, 2);
    };
    const Tensor rows = rows_of_each(g.dh);
    return ctx.grads(
        [] { return Tensor(); },
        [&] { return product(rows.t(), rows_of_each(h_before(g, a)), ctx.grad_dtype(1)); },
        [&] { return sum(wide(rows), {1}); }, [&] { return in_own_rows(g.dh0(), n); },
        [&] { return in_own_rows(g.carry, n); });
  }

 private:
  // Goes back through the steps, passing on the gradient of the hidden state, dh w.
  static Back through_time(const Ctx& ctx, const Tensor& dy, const RecurrentParams& a) {
    const Tensor y = ctx.saved(5), dyc = dy.contiguous();
    const int64_t steps = ctx.shape(0)[0], b = y.size(1), n = y.size(2);
    const Tensor w = cast(ctx.saved(1), y.dtype());
    const DType wide = accumulate_dtype(y.dtype());
    const Tensor h0 = or_zeros(ctx.saved(3), {b, n}, y.dtype(), y.device());
    Tensor kept, carry;
    if (C::kept) kept = ctx.saved(6);
    if (has_state)
      carry = has_c ? cast(select(dyc, 0, steps), wide).clone() : zeros({b, n}, wide, y.device());
    const Tensor dx(ctx.shape(0), y.dtype(), y.device());
    const Tensor dh = splits ? empty_like(dx) : dx, dnext = zeros({b, n}, wide, y.device());
    kernels::Packed packed;
    for (int64_t i = steps - 1; i >= 0; --i) {
      const int64_t k = a.reverse ? steps - 1 - i : i;
      ctx.run(kernels::cell_grad, C::id, kept ? at(kept, k) : View{}, at(y, k), at(dyc, k), dnext,
              carry, at(dx, k), splits ? at(dh, k) : View{});
      if (i > 0 || ctx.wants(3))
        ctx.run(kernels::gemm, at(dh, k), w, kernels::Epilogue{.packed = packed_for(steps, packed)},
                dnext);
    }
    return {dx, dh, dnext, carry, h0, y};
  }
  // h before each step.
  static Tensor h_before(const Back& g, const RecurrentParams& a) {
    const Tensor start = unsqueeze(g.h0, 0),
                 y = narrow(g.y, 0, a.reverse ? 1 : 0, g.dh.size(0) - 1);
    return a.reverse ? cat({y, start}) : cat({start, y});
  }
  // The layer made of ops, step by step.
  static Tensor unrolled(const std::vector<Tensor>& in, bool reverse) {
    const Tensor &x = in[0], &weight = in[1], &bias = in[2];
    const int64_t steps = x.size(0), n = weight.size(1);
    const auto start = [&](const Tensor& t) {
      return t ? t : zeros({x.size(1), n}, x.dtype(), x.device());
    };
    Tensor h = start(in[3]);
    Expr state = has_c ? start(in[4]) : h;
    std::vector<Tensor> y(static_cast<size_t>(steps));
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t k = reverse ? steps - 1 - i : i;
      const Tensor from_h = linear(h, weight, bias);
      Expr x_parts[C::gates], h_parts[C::gates], *const keep_none = nullptr;
      for (int g = 0; g < C::gates; ++g) {
        x_parts[g] = narrow(select(x, 0, k), 1, g * n, n);
        h_parts[g] = narrow(from_h, 1, g * n, n);
      }
      h = C::f(x_parts, h_parts, state, keep_none).t;
      y[static_cast<size_t>(k)] = h;
    }
    if (has_c) y.push_back(state.t);
    return stack(y);
  }
  // Differentiates unrolled() with respect to fresh handles of the inputs.
  static Grads by_ops(const Ctx& ctx, const Tensor& dy, bool reverse) {
    std::vector<Tensor> in, wanted;
    for (size_t i = 0; i < 5; ++i) {
      const Tensor t = ctx.saved(i);
      in.push_back(ctx.wants(i) ? mul(cast(t, dy.dtype()), 1) : t ? cast(t, dy.dtype()) : t);
      if (ctx.wants(i)) wanted.push_back(in[i]);
    }
    const std::vector<Tensor> found =
        grad({unrolled(in, reverse)}, wanted, {.gradients = {dy}, .create_graph = true});
    Grads result;
    for (size_t i = 0, k = 0; i < 5; ++i) result.push_back(ctx.wants(i) ? found[k++] : Tensor());
    return result;
  }
};

// The state after the last step, from the row of y that rounds it.
template <class C>
Tensor last_state(const Tensor& y, const Tensor& weight, const Tensor& start,
                  const RecurrentParams& a) {
  using Op = Recurrent<C>;
  const Tensor rounded = select(y, 0, !Op::has_c && a.reverse ? 0 : -1);
  const bool keeps = weight.dtype() == f32 || (start && start.dtype() == f32);
  if (!Op::has_state || !is_half(y.dtype()) || !keeps) return rounded;
  ++effects.writes;                       // which vmap() cannot repeat
  const Tensor state = a.state.detach();  // the node has a.state, which must not hold the node
  state.set_grad_fn(cast(rounded, f32).grad_fn());
  return state;
}

template <class C>
Tensor recurrent(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
                 const Tensor& c0, const RecurrentOptions& options) {
  using Op = Recurrent<C>;
  const Scope scope(Op::info.name);
  check(weight.rank() == 2 && weight.size(0) == C::gates * weight.size(1),
        "the weight has shape {}, not [{}n, n]", weight.shape(), C::gates);
  const int64_t n = weight.size(1);
  check(x.rank() == 3 && x.size(2) == C::gates * n, "the gates have shape {}, not [t, b, {}]",
        x.shape(), C::gates * n);
  check(x.size(0) > 0, "the sequence has no steps");
  check_shape(bias, "the bias", {C::gates * n});
  check_shape(h0, "h0", {x.size(1), n});
  check_shape(c0, "c0", {x.size(1), n});
  RecurrentParams a(options.reverse);
  if (Op::has_state && options.last_state)
    a.state = Tensor({x.size(1), n}, accumulate_dtype(x.dtype()), x.device());
  const Tensor y = call<Op>(x, weight, bias, h0, c0, a);
  if (options.last_state) *options.last_state = last_state<C>(y, weight, Op::has_c ? c0 : h0, a);
  return y;
}

}  // namespace

Tensor lstm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
            const Tensor& c0, const RecurrentOptions& options) {
  return recurrent<kernels::LstmCell>(x, weight, bias, h0, c0, options);
}
Tensor gru(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
           const RecurrentOptions& options) {
  return recurrent<kernels::GruCell>(x, weight, bias, h0, {}, options);
}
Tensor rnn_tanh(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
                const RecurrentOptions& options) {
  return recurrent<kernels::TanhCell>(x, weight, bias, h0, {}, options);
}
Tensor rnn_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
                const RecurrentOptions& options) {
  return recurrent<kernels::ReluCell>(x, weight, bias, h0, {}, options);
}

}  // namespace mixtape
