#pragma once
// User-defined ops. One struct is a whole op:
//
//   struct Cube : Function<Cube> {
//     static constexpr OpInfo info{"cube"};                       // and its Precision, if not Any
//     static Tensor forward(Ctx& ctx, const Tensor& x) { ctx.save(x); return x * x * x; }
//     static Grads backward(const Ctx& ctx, const Tensor& dy) {
//       return {dy * square(ctx.saved(0)) * 3};
//     }
//   };
//   Tensor y = Cube::apply(x);
//
// Attributes follow the tensors: forward(ctx, x, 2.0), backward(ctx, dy, 2.0). See autograd/call.h.
//
// An op may have several results: its forward() and apply() return a std::array or std::vector of
// them, and backward() gets their gradients in one. Floats among them have one dtype; a float that
// nothing used has a gradient of zeros, and integers and bools have none:
//
//     static std::array<Tensor, 2> forward(Ctx& ctx, const Tensor& x);  // values and indices
//     static Grads backward(const Ctx& ctx, const std::array<Tensor, 2>& dy);

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/call.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"

namespace mixtape {
namespace detail {
template <class Op, class Results>
struct Joined;
}  // namespace detail

// The base of a user-defined op with the members above: MyOp::apply(x, 2.0).
template <class Op>
struct Function {
  template <class... Args>
  static auto apply(const Args&... args) {
    static_assert(
        requires { OpInfo{Op::info}; },
        "an op has a name: static constexpr OpInfo info{\"my_op\"};");
    using Results = decltype(Op::forward(std::declval<Ctx&>(), args...));
    if constexpr (std::is_convertible_v<Results, Tensor>) {
      return call<Op>(args...);
    } else {
      static_assert(
          requires(Results several) { Tensor(several[0]), several.size(); },
          "forward() returns a Tensor, or a std::array or std::vector of Tensors");
      static_assert(requires { &Op::backward; }, "an op with several results has a backward()");
      return detail::Joined<Op, Results>::apply(args...);
    }
  }
};

namespace detail {

// An op with several results as one whose result is all their floats in a row.
template <class Op, class Results>
struct Joined : Function<Joined<Op, Results>> {
  static constexpr OpInfo info = Op::info;
  static constexpr bool first_order_only = requires { requires Op::first_order_only; };

  struct Parts {  // of a call
    Results results;
    std::vector<std::optional<Shape>> shapes;  // of those that are floats
    const bool recording = grad_enabled();     // (A checkpoint's Ctx is not, its graph is.)
  };
  using State = std::shared_ptr<Parts>;

  // Replaces the floats among results by views of `whole`.
  static void take_views(const Tensor& whole, const Parts& parts, Results& results) {
    int64_t at = 0;
    for (size_t i = 0; i < parts.shapes.size(); ++i) {
      if (!parts.shapes[i]) continue;
      const int64_t n = parts.shapes[i]->size();
      results[i] = view(narrow(whole, 0, at, n), *parts.shapes[i]);
      at += n;
    }
  }

  template <class... Args>
  static Tensor forward(Ctx& ctx, const State& parts, const Args&... args) {
    parts->results = Op::forward(ctx, args...);
    std::vector<Tensor> floats;
    for (Tensor& y : parts->results) {
      const bool differentiable = y && is_float(y.dtype());
      parts->shapes.push_back(differentiable ? std::optional(y.shape()) : std::nullopt);
      if (!differentiable) continue;
      y = y.detach();  // as it may be an input
      floats.push_back(flatten(y));
      check(y.dtype() == floats[0].dtype(), "results of {} and {}: floats must have one dtype",
            name(floats[0].dtype()), name(y.dtype()));
    }
    return parts->recording && !floats.empty() ? cat(floats) : ctx.output({0});
  }
  // (An object, since the engine asks for the address of a rule, which a template has not.)
  static constexpr auto backward = [](const Ctx& ctx, const Tensor& dy, const State& parts,
                                      const auto&... attributes) -> Grads {
    Results gradients;
    if constexpr (requires { gradients.resize(1); }) gradients.resize(parts->shapes.size());
    take_views(dy, *parts, gradients);
    if constexpr (requires { Op::backward(ctx, gradients, attributes...); })
      return Op::backward(ctx, gradients, attributes...);
    else
      return Op::backward(ctx, gradients);
  };

  template <class... Args>
  static Results apply(const Args&... args) {
    const auto parts = std::make_shared<Parts>();
    const Tensor whole = call<Joined>(parts, args...);
    Results results = std::move(parts->results);  // (Which the node must not hold: a cycle.)
    if (whole.requires_grad()) take_views(whole, *parts, results);
    return results;
  }
};

}  // namespace detail
}  // namespace mixtape
