#pragma once
// The rows of op_cases by topic, and helpers for common kinds.

#include "tests/support/op_cases.h"

namespace mixtape::tests {

using In = const std::vector<Tensor>&;
std::vector<OpCase> elementwise();
std::vector<OpCase> views();
std::vector<OpCase> indexing();
std::vector<OpCase> reductions();
std::vector<OpCase> products();
std::vector<OpCase> linalg();
std::vector<OpCase> networks();
std::vector<OpCase> losses();
std::vector<OpCase> composed();
std::vector<OpCase> edges();
std::vector<OpCase> extremes();

using Op1 = Tensor (*)(const Tensor&);
using Op2 = Tensor (*)(const Tensor&, const Tensor&);

template <class R>
OpCase unary(std::string name, R (*f)(const Tensor&), double low = -3, double high = 3,
             double away = 0) {
  return {.op = std::move(name),
          .inputs = {{{3, 5}, low, high, Input::Real, away}},
          .run = [f](In x) { return f(x[0]); },
          .empty = {{0, 4}}};
}
template <class R>
OpCase binary(std::string name, R (*f)(const Tensor&, const Tensor&), double low = -2,
              double high = 2) {
  return {.op = std::move(name),
          .inputs = {{{3, 5}, low, high}, {{3, 5}, low, high}},
          .run = [f](In x) { return f(x[0], x[1]); },
          .empty = {{0, 4}, {0, 4}}};
}
template <class R>
OpCase with_scalar(std::string name, R (*f)(const Tensor&, double), double s, double low = -2,
                   double high = 2, double away = 0) {
  return {.op = std::move(name),
          .inputs = {{{3, 5}, low, high, Input::Real, away}},
          .run = [f, s](In x) { return f(x[0], s); },
          .empty = {{0, 4}}};
}
inline OpCase predicate(OpCase c) {
  c.differentiable = false;
  return c;
}

}  // namespace mixtape::tests
