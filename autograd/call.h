#pragma once
// call<Op>(args...): the one path through which every op runs.
//
// An op is a struct with
//   static constexpr OpInfo info;
//   static Tensor forward(Ctx&, tensors and attributes...);
//   static Grads backward(const Ctx&, const Tensor& dy [, attributes...]);   // absent: no gradient
// Tensors and lists of tensors are its inputs; other arguments are attributes, kept in the node.
// Optional facts, each a static constexpr bool:
//   moves_only        its gradient is dy, rearranged or cast, in the dtype of the input's gradient
//   broadcasts        its inputs are expanded to their common shape, after any policy was applied
//   first_order_only  its backward rule calls kernels, so it can't be differentiated again
//   wide_gradient     its rule takes dy in f32 if the result is f16 or bf16
// An op with parameters may declare
//   static Grads backward_each(const Ctx&, const Tensor& dy, int64_t n [, attributes...]);
// the gradients of its parameters for each of n examples: [n, shape] each. The rows of dy that
// belong to an example follow each other (for recurrent layers, the columns of each step). Other
// ops are repeated for each example by per_sample_gradients() (autograd/vmap.h). An op that selects
// part of its input may declare
//   static Tensor part(const Tensor& x, attributes...);    // the same view of x, without history
// and the engine adds its gradients straight into one buffer for the whole of x. With
//   covers            the parts that calls of the op select cover all of x, so the buffer need not
//                     begin as zeros
// An attribute with a DType member `out` requests that result dtype, which no policy changes. One
// that is not plain data may name the part that a repeated call needs, `using Plain = bool;`, from
// which it can be made and to which it converts.

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <tuple>
#include <typeinfo>

#include "autograd/tape.h"
#include "core/check.h"
#include "core/pooled.h"

namespace mixtape {

template <class Op>
struct Function;  // the base of user-defined ops (autograd/function.h)

namespace detail {

template <class A>
inline constexpr bool is_tensor = std::is_base_of_v<Tensor, A>;  // BoolTensor too
template <class A>
inline constexpr bool is_list = std::is_same_v<A, std::vector<Tensor>>;

// The attributes among some arguments, as a tuple of values.
template <class... Args>
auto attributes(const Args&... args) {
  return std::tuple_cat([](const auto& a) {
    using A = std::remove_cvref_t<decltype(a)>;
    if constexpr (is_tensor<A> || is_list<A>)
      return std::tuple<>();
    else
      return std::tuple<A>(a);
  }(args)...);
}

// Calls a backward rule, which may omit the attributes.
template <class Op, class... A>
Grads run_backward(const Ctx& ctx, const Tensor& dy, const A&... a) {
  if constexpr (requires { Op::backward(ctx, dy, a...); })
    return Op::backward(ctx, dy, a...);
  else
    return Op::backward(ctx, dy);
}

template <class Op, class... A>
Grads run_backward_each(const Ctx& ctx, const Tensor& dy, int64_t n, const A&... a) {
  if constexpr (requires { Op::backward_each(ctx, dy, n, a...); })
    return Op::backward_each(ctx, dy, n, a...);
  else
    return Op::backward_each(ctx, dy, n);
}

// The facts about an op: which members it has (see above), and
struct OpFacts {
  bool moves_only, broadcasts, first_order_only, wide_gradient, covers;
  bool composed;     // its forward is made of ops: it is a Function
  bool only_values;  // no input is an index or mask
};
constexpr bool has_only_values(const OpInfo& op) {
  for (const Role role : op.roles)
    if (role == Role::Index || role == Role::Mask) return false;
  return true;
}
template <class Op>
constexpr OpFacts facts_of() {
  OpFacts op{};
  op.moves_only = requires { requires Op::moves_only; };
  op.broadcasts = requires { requires Op::broadcasts; };
  op.first_order_only = requires { requires Op::first_order_only; };
  op.wide_gradient = requires { requires Op::wide_gradient; };
  op.covers = requires { requires Op::covers; };
  op.composed = std::is_base_of_v<Function<Op>, Op>;
  op.only_values = has_only_values(Op::info);
  return op;
}

// An op with arguments of certain types, which are given by address ("boxed", as PyTorch says), so
// that one function runs every op, and little is compiled for each. Attributes are a tuple.
struct BoxedOp : internal::Repeat {
  OpFacts facts;
  Tensor (*forward)(Ctx&, const Tensor* const* inputs, const void* const* arguments);
  std::shared_ptr<internal::Node> (*node)(const internal::Call&, const BoxedOp&,
                                          const void* const* arguments);
  // Null, like `node`, if the op has no gradient.
  Grads (*backward)(const Ctx&, const Tensor& dy, const void* attributes);
  Tensor (*part)(const Tensor& whole, const void* attributes);  // null if the op does not select
  Grads (*backward_each)(const Ctx&, const Tensor& dy, int64_t n,
                         const void* attributes);  // or null
};
// Runs an op. The policy may replace inputs; `out` is where call_out() puts the result, `dtype` the
// result's if an attribute requests one.
Tensor run(const BoxedOp& op, const Tensor* out, std::span<const Tensor*> inputs,
           std::optional<DType> dtype, const void* const* arguments);

template <class... P, class... A>
void observe(void (internal::Observer::*event)(P...), const A&... args) {
  for (internal::Observer* o = thread_state.observer; o; o = o->outer) (o->*event)(args...);
}

// The node of a recorded call.
class OpNode : public internal::Node {
 public:
  OpNode(const internal::Call& call, const BoxedOp& op, const void* attributes);

  std::string_view name() const override { return op_.op.name; }
  Grads backward(const Tensor& dy) override;
  Grads backward_each(const Tensor& dy, int64_t n) override {
    return op_.backward_each ? op_.backward_each(ctx, dy, n, attributes_) : Grads();
  }
  bool broadcasts() const override { return op_.facts.broadcasts; }
  bool selects() const override { return op_.part; }
  bool covers() const override { return op_.facts.covers; }
  Tensor part(const Tensor& whole) const override { return op_.part(whole, attributes_); }

 private:
  const BoxedOp& op_;
  const void* const attributes_;
};
// (Ops with attributes of the same types share one class: a class per op would dominate compile
// time.)
template <class Attributes>
class OpNodeWith final : public OpNode {
 public:
  OpNodeWith(const internal::Call& call, const BoxedOp& op, Attributes attributes)
      : OpNode(call, op, &attributes_), attributes_(std::move(attributes)) {}

 private:
  const Attributes attributes_;
};

template <class... Args>
std::shared_ptr<internal::Node> make_node(const internal::Call& call, const BoxedOp& op,
                                          const void* const* arguments) {
  return [&]<size_t... i>(std::index_sequence<i...>) {
    auto all = attributes(*static_cast<const Args*>(arguments[i])...);
    return make_pooled<OpNodeWith<decltype(all)>>(call, op, std::move(all));
  }(std::index_sequence_for<Args...>());
}

}  // namespace detail

// Hidden: the guard of its static would be exported from a library even where Op is not.
template <class Op>
[[gnu::visibility("hidden")]] inline const bool listed_op = list_op(Op::info);

namespace detail {

// Calls forward with the arguments, taking tensors from `inputs`, since the policy may have
// replaced some.
template <class Op, class... Args>
Tensor run_forward(Ctx& ctx, const Tensor* const* inputs, const void* const* arguments) {
  const auto next = [&]<class A>(const A*) -> decltype(auto) {
    [[maybe_unused]] const A& argument = *static_cast<const A*>(*arguments++);
    if constexpr (is_tensor<A>) {
      return static_cast<const Tensor&>(**inputs++);
    } else if constexpr (is_list<A>) {
      std::vector<Tensor> list;
      for (size_t i = 0; i < argument.size(); ++i) list.push_back(**inputs++);
      return list;
    } else {
      return argument;
    }
  };
  // Braces, so that arguments are evaluated from left to right.
  return std::apply([&](const auto&... a) { return Op::forward(ctx, a...); },
                    std::tuple<decltype(next(static_cast<const Args*>(nullptr)))...>{
                        next(static_cast<const Args*>(nullptr))...});
}

// Runs an op with arguments.
template <class... Args>
Tensor run_op(const BoxedOp& op, const Tensor* out, const Args&... args) {
  InlineVector<const Tensor*, 6> inputs;
  std::optional<DType> dtype;
  const auto collect = [&]<class A>(const A& a) {
    if constexpr (is_tensor<A>) inputs.emplace_back(&a);
    if constexpr (is_list<A>)
      for (const Tensor& t : a) inputs.emplace_back(&t);
    if constexpr (requires { static_cast<std::optional<DType>>(a.out); }) dtype = a.out;
  };
  (collect(args), ...);
  const void* const arguments[] = {&args..., nullptr};
  return run(op, out, {inputs.begin(), inputs.size()}, dtype, arguments);
}

// Reads the arguments of a repeated call, in order.
struct RepeatedArguments {
  std::span<const Tensor> inputs;
  std::span<const int64_t> lists;
  std::string_view attributes;

  Tensor tensor();
  std::vector<Tensor> list();
  void read(void* to, size_t bytes);
  static void check_rank(const Shape& s);
  template <class A>
  A next() {
    if constexpr (is_list<A>) {
      return list();
    } else if constexpr (is_tensor<A>) {
      return A(tensor());
    } else if constexpr (requires { typename A::Plain; }) {
      return A(next<typename A::Plain>());
    } else {
      std::array<std::byte, sizeof(A)> bytes;
      read(bytes.data(), sizeof(A));
      const A value = std::bit_cast<A>(bytes);
      if constexpr (std::is_same_v<A, Shape>) check_rank(value);
      return value;
    }
  }
};
template <class A>
constexpr bool is_plain = is_tensor<A> || is_list<A> || requires { typename A::Plain; } ||
                          (std::is_trivially_copyable_v<A> && !std::is_pointer_v<A> &&
                           !std::is_same_v<A, std::string_view>);

// The bytes of a plain attribute. Those without a value, padding and an absent `out`, are zeros, so
// that equal calls have equal bytes. (clang has no builtin for padding.)
template <class A>
std::string bytes_of(A a) {
  [[maybe_unused]] const auto clear_if_none = [](auto& value) {
    if (!value) std::memset(static_cast<void*>(&value), 0, sizeof value);
  };
  if constexpr (requires { a.has_value(); }) clear_if_none(a);
  if constexpr (requires { a.out.has_value(); }) clear_if_none(a.out);
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&a);
#endif
  return {reinterpret_cast<const char*>(&a), sizeof a};
}

template <class... Args>
inline constexpr const std::type_info* types_of[] = {&typeid(Args)..., nullptr};

template <class... Args>
std::string attribute_bytes(const void* const* arguments) {
  std::string bytes;
  const auto add = [&]<class A>(const A*) {
    const A& a = *static_cast<const A*>(*arguments++);
    if constexpr (requires { typename A::Plain; })
      bytes += bytes_of(static_cast<typename A::Plain>(a));
    else if constexpr (!is_tensor<A> && !is_list<A>)
      bytes += bytes_of(a);
  };
  (add(static_cast<const Args*>(nullptr)), ...);
  return bytes;
}
template <class... Args>
Tensor run_again(const internal::Repeat& op, std::span<const Tensor> inputs,
                 std::span<const int64_t> lists, std::string_view attributes) {
  RepeatedArguments all{inputs, lists, attributes};
  const std::tuple<Args...> args{all.next<Args>()...};
  return std::apply(
      [&](const auto&... a) { return run_op(static_cast<const BoxedOp&>(op), nullptr, a...); },
      args);
}

template <class Op, class... Args>
constexpr BoxedOp box() {
  BoxedOp op{{Op::info, __PRETTY_FUNCTION__, types_of<Args...>, nullptr, nullptr},
             facts_of<Op>(),
             run_forward<Op, Args...>,
             nullptr,
             nullptr,
             nullptr,
             nullptr};
  if constexpr ((is_plain<Args> && ...)) {
    op.attributes = attribute_bytes<Args...>;
    op.run = run_again<Args...>;
  }
  using Attributes = decltype(attributes(std::declval<const Args&>()...));
  if constexpr (requires { &Op::backward; }) {
    op.node = make_node<Args...>;
    op.backward = [](const Ctx& ctx, const Tensor& dy, const void* attributes) {
      return std::apply([&](const auto&... a) { return run_backward<Op>(ctx, dy, a...); },
                        *static_cast<const Attributes*>(attributes));
    };
  }
  if constexpr (requires { &Op::backward_each; })
    op.backward_each = [](const Ctx& ctx, const Tensor& dy, int64_t n, const void* attributes) {
      return std::apply([&](const auto&... a) { return run_backward_each<Op>(ctx, dy, n, a...); },
                        *static_cast<const Attributes*>(attributes));
    };
  if constexpr (requires { &Op::part; })
    op.part = [](const Tensor& whole, const void* attributes) {
      return std::apply([&](const auto&... a) { return Op::part(whole, a...); },
                        *static_cast<const Attributes*>(attributes));
    };
  return op;
}
template <class Op, class... Args>
inline constexpr BoxedOp boxed = box<Op, Args...>();
template <class Op, class... Args>
[[gnu::visibility("hidden")]] inline const bool listed_repeat =
    internal::list_repeat(boxed<Op, Args...>);

template <class Op, class... Args>
const BoxedOp& listed() {
  (void)listed_op<Op>;
  (void)listed_repeat<Op, Args...>;
  return boxed<Op, Args...>;
}

}  // namespace detail

template <class Op, class... Args>
Tensor call(const Args&... args) {
  return detail::run_op(detail::listed<Op, Args...>(), nullptr, args...);
}
// The same, but writes to `out` (empty, or an input of an elementwise op) if the op can, `out` has
// the result's shape and dtype, and nothing is recorded. Otherwise the result is a new tensor.
template <class Op, class... Args>
Tensor call_out(const Tensor& out, const Args&... args) {
  return detail::run_op(detail::listed<Op, Args...>(), out ? &out : nullptr, args...);
}

}  // namespace mixtape
