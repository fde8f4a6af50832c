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

template <class Op>
constexpr bool moves_only = requires { requires Op::moves_only; };
template <class Op>
constexpr bool broadcasts = requires { requires Op::broadcasts; };
template <class Op>
constexpr bool first_order_only = requires { requires Op::first_order_only; };
template <class Op>
constexpr bool wide_gradient = requires { requires Op::wide_gradient; };
template <class Op>
constexpr bool covers = requires { requires Op::covers; };
template <class Op>
constexpr bool differentiable = requires { &Op::backward; };

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

// The facts about an op that prepare() needs.
struct CallTraits {
  bool broadcasts, differentiable;
  bool only_values;  // no input is an index or mask
};
constexpr bool has_only_values(const OpInfo& op) {
  for (const Role role : op.roles)
    if (role == Role::Index || role == Role::Mask) return false;
  return true;
}
template <class Op>
constexpr CallTraits traits_of{broadcasts<Op>, differentiable<Op>, has_only_values(Op::info)};
// Applies the policy, broadcasts and checks inputs before an op runs. Returns true if the call is
// to be recorded.
bool prepare(internal::Call& call, CallTraits traits);
// Makes y the result of the node.
void attach(const internal::Call& call, Tensor& y, std::shared_ptr<internal::Node>&& node,
            bool moves_only);
Grads forbid_second_order(Grads grads, const Tensor& dy, const internal::Node& of);
template <class... P, class... A>
void observe(void (internal::Observer::*event)(P...), const A&... args) {
  for (internal::Observer* o = thread_state.observer; o; o = o->outer) (o->*event)(args...);
}

}  // namespace detail

// The rules of an op for its nodes. (Ops with attributes of the same types share one node class: a
// class per op would dominate compile time.)
template <class Attributes>
struct OpRules {
  std::string_view name;
  Grads (*backward)(const Ctx&, const Tensor& dy, const Attributes&);
  Tensor (*part)(const Tensor& whole, const Attributes&);  // null if the op does not select
  bool covers, first_order_only, broadcasts;
  Grads (*backward_each)(const Ctx&, const Tensor& dy, int64_t n, const Attributes&);  // or null
};
template <class Op, class Attributes>
constexpr OpRules<Attributes> rules_of() {
  OpRules<Attributes> rules{
      Op::info.name,
      [](const Ctx& ctx, const Tensor& dy, const Attributes& attributes) {
        return std::apply([&](const auto&... a) { return detail::run_backward<Op>(ctx, dy, a...); },
                          attributes);
      },
      nullptr,
      detail::covers<Op>,
      detail::first_order_only<Op>,
      detail::broadcasts<Op>,
      nullptr};
  if constexpr (requires { &Op::backward_each; })
    rules.backward_each = [](const Ctx& ctx, const Tensor& dy, int64_t n,
                             const Attributes& attributes) {
      return std::apply(
          [&](const auto&... a) { return detail::run_backward_each<Op>(ctx, dy, n, a...); },
          attributes);
    };
  if constexpr (requires { &Op::part; })
    rules.part = [](const Tensor& whole, const Attributes& attributes) {
      return std::apply([&](const auto&... a) { return Op::part(whole, a...); }, attributes);
    };
  return rules;
}
template <class Op, class Attributes>
inline constexpr OpRules<Attributes> op_rules = rules_of<Op, Attributes>();

template <class Attributes>
class OpNode final : public internal::Node {
 public:
  OpNode(const internal::Call& call, const OpRules<Attributes>& rules, Attributes a)
      : internal::Node(call), rules_(rules), attributes_(std::move(a)) {}

  std::string_view name() const override { return rules_.name; }
  Grads backward(const Tensor& dy) override {
    if (rules_.first_order_only && grad_enabled())
      return detail::forbid_second_order(rules_.backward(ctx, dy, attributes_), dy, *this);
    return rules_.backward(ctx, dy, attributes_);
  }
  Grads backward_each(const Tensor& dy, int64_t n) override {
    return rules_.backward_each ? rules_.backward_each(ctx, dy, n, attributes_) : Grads();
  }
  bool broadcasts() const override { return rules_.broadcasts; }
  bool selects() const override { return rules_.part; }
  bool covers() const override { return rules_.covers; }
  Tensor part(const Tensor& whole) const override { return rules_.part(whole, attributes_); }

 private:
  const OpRules<Attributes>& rules_;
  Attributes attributes_;
};

template <class Op>
struct Function;

// Hidden: the guard of its static would be exported from a library even where Op is not.
template <class Op>
[[gnu::visibility("hidden")]] inline const bool listed_op = list_op(Op::info);

namespace detail {

// Calls forward with the arguments, taking tensors from `inputs`, since the policy may have
// replaced some.
template <class Op, class... Args>
Tensor run_forward(Ctx& ctx, const Tensor** inputs, const Args&... args) {
  // Ops called inside are helpers, neither recorded nor changed by a policy.
  const ScopedValue<&ThreadState::recording> recording(false);
  const NoPolicy as_called;
  const auto argument = [&]<class A>(const A& a) -> decltype(auto) {
    if constexpr (is_tensor<A>) {
      return static_cast<const Tensor&>(**inputs++);
    } else if constexpr (is_list<A>) {
      std::vector<Tensor> list;
      for (size_t i = 0; i < a.size(); ++i) list.push_back(**inputs++);
      return list;
    } else {
      return static_cast<const A&>(a);
    }
  };
  // Braces, so that arguments are evaluated from left to right.
  Tensor y = std::apply([&](const auto&... a) { return Op::forward(ctx, a...); },
                        std::tuple<decltype(argument(args))...>{argument(args)...});
  if (y.requires_grad()) [[unlikely]]  // y is an input, which keeps its own history
    y = y.detach();
  return y;
}

template <class Op, class... Args>
Tensor run_op(const Tensor* out, const Args&... args);

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

template <class Op, class... Args>
constexpr internal::Repeat repeat_of() {
  internal::Repeat repeat{Op::info, __PRETTY_FUNCTION__, types_of<Args...>, nullptr, nullptr};
  if constexpr ((is_plain<Args> && ...)) {
    repeat.attributes = [](const void* const* arguments) {
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
    };
    repeat.run = [](std::span<const Tensor> inputs, std::span<const int64_t> lists,
                    std::string_view attributes) {
      RepeatedArguments all{inputs, lists, attributes};
      const std::tuple<Args...> args{all.next<Args>()...};
      return std::apply([](const auto&... a) { return run_op<Op>(nullptr, a...); }, args);
    };
  }
  return repeat;
}
template <class Op, class... Args>
inline constexpr internal::Repeat repeat = repeat_of<Op, Args...>();
template <class Op, class... Args>
[[gnu::visibility("hidden")]] inline const bool listed_repeat =
    internal::list_repeat(repeat<Op, Args...>);

// Tells observers of a call, with its arguments.
template <class Op, class... Args>
[[gnu::noinline]] void observe_after(internal::Call& call, const Tensor& y, const Args&... args) {
  const void* const arguments[] = {&args..., nullptr};
  InlineVector<int64_t, 4> lists;
  const auto collect = [&]<class A>(const A& a) {
    if constexpr (is_list<A>) lists.push_back(int64_t(a.size()));
  };
  (collect(args), ...);
  const internal::Repetition repetition{
      repeat<Op, Args...>, arguments, {lists.begin(), lists.size()}};
  call.repetition = &repetition;
  observe(&internal::Observer::after, call, y);
  call.repetition = nullptr;
}

// Runs an op whose node saves what backward needs.
template <class Op, class... Args>
Tensor run_recorded(const internal::Call& call, const Args&... args) {
  auto attributes = detail::attributes(args...);
  using Attributes = decltype(attributes);
  std::shared_ptr<internal::Node> node =
      make_pooled<OpNode<Attributes>>(call, op_rules<Op, Attributes>, std::move(attributes));
  Tensor y = run_forward<Op>(node->ctx, call.inputs.data(), args...);
  detail::attach(call, y, std::move(node), detail::moves_only<Op>);
  if (wide_gradient<Op> && is_half(y.dtype())) y.grad_fn()->grad_dtype = f32;
  return y;
}

template <class Op, class... Args>
Tensor run_op(const Tensor* out, const Args&... args) {
  (void)listed_op<Op>;
  (void)listed_repeat<Op, Args...>;
  const internal::Scope scope(Op::info.name);

  InlineVector<const Tensor*, 6> inputs;
  std::optional<DType> dtype;  // requested by an attribute
  const auto collect = [&]<class A>(const A& a) {
    if constexpr (is_tensor<A>) inputs.emplace_back(&a);
    if constexpr (is_list<A>)
      for (const Tensor& t : a) inputs.emplace_back(&t);
    if constexpr (requires { static_cast<std::optional<DType>>(a.out); }) dtype = a.out;
  };
  (collect(args), ...);

  internal::Call call{Op::info, {inputs.begin(), inputs.size()}};
  call.out = dtype;
  call.backward = backward_state.running;
  call.composed = std::is_base_of_v<Function<Op>, Op>;
  [[maybe_unused]] const bool recorded = prepare(call, traits_of<Op>);
  if (!recorded) call.result = out;

  const auto run = [&] {
    if constexpr (differentiable<Op>)
      if (recorded) return run_recorded<Op>(call, args...);
    Ctx ctx(call);
    return run_forward<Op>(ctx, call.inputs.data(), args...);
  };
  const Tensor y = run();
  if (thread_state.observer) [[unlikely]]
    observe_after<Op>(call, y, args...);
  return y;
}

}  // namespace detail

template <class Op, class... Args>
Tensor call(const Args&... args) {
  return detail::run_op<Op>(nullptr, args...);
}
// The same, but writes to `out` (empty, or an input of an elementwise op) if the op can, `out` has
// the result's shape and dtype, and nothing is recorded. Otherwise the result is a new tensor.
template <class Op, class... Args>
Tensor call_out(const Tensor& out, const Args&... args) {
  return detail::run_op<Op>(out ? &out : nullptr, args...);
}

// The base of a user-defined op with the members above: MyOp::apply(x, 2.0).
template <class Op>
struct Function {
  template <class... Args>
  static Tensor apply(const Args&... args) {
    static_assert(
        requires { OpInfo{Op::info}; },
        "an op has a name: static constexpr OpInfo info{\"my_op\"};");
    return call<Op>(args...);
  }
};

}  // namespace mixtape
