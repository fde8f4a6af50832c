#pragma once
// for_each_view: the memory that an argument of a kernel gives it.

#include <span>

#include "core/view.h"
#include "kernels/common/attention.h"
#include "kernels/common/epilogue.h"
#include "kernels/common/update.h"

namespace mixtape::kernels {
using namespace internal;

template <class F>
void for_each_view(const View& v, const F& f) {
  f(v);
}
template <class F>
void for_each_view(std::span<const View> views, const F& f) {
  for (const View& v : views) f(v);
}
template <class F>
void for_each_view(Updates updates, const F& f) {
  for (const Update& u : updates) {
    for (const View& v : {u.param, u.grad, u.steps, u.shadow, u.norms}) f(v);
    for (const View& v : u.state) f(v);
    if (!u.low) continue;
    f(u.low->compensation);
    for (const View& v : u.low->scale) f(v);
  }
}
template <class F>
void for_each_view(const StepControl& control, const F& f) {
  f(control.skip);
  f(control.grad_scale);
}
template <class F>
void for_each_view(const AttentionRule& rule, const F& f) {
  f(rule.mask);
}
template <class F>
void for_each_view(const Epilogue& e, const F& f) {
  for (const View& v : {e.bias, e.residual, e.before, e.row_sums, e.column_sums}) f(v);
}
template <class T, class F>
void for_each_view(const T&, const F&) {}  // a number, a struct of numbers

}  // namespace mixtape::kernels
