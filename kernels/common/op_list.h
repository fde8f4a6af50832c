#pragma once
// OpList: the ops that one kernel runs, as a list of types.

#include <type_traits>

namespace mixtape::kernels {

// An op is passed as its position in the list.
template <class... Ops>
struct OpList {
  static constexpr int size = sizeof...(Ops);
};
template <class... A, class... B>
OpList<A..., B...> joined(OpList<A...>, OpList<B...>);

// The position of an op in its list, by which translation units refer to it.
template <class Op, class... Ops>
constexpr int index_in(OpList<Ops...>) {
  static_assert((std::is_same_v<Op, Ops> || ...), "not in this list");
  int i = 0;
  (void)((std::is_same_v<Op, Ops> ? true : (++i, false)) || ...);
  return i;
}
template <class Op, class... Ops>
constexpr bool is_in(OpList<Ops...>) {
  return (std::is_same_v<Op, Ops> || ...);
}
// Calls run.operator()<F>() with the op at a position of a list.
template <class... F, class Run>
void visit_op(OpList<F...>, int op, Run run) {
  int i = 0;
  (void)((i++ == op ? (run.template operator()<F>(), true) : false) || ...);
}

}  // namespace mixtape::kernels
