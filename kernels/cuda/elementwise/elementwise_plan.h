#pragma once
// The order in which an elementwise kernel accesses memory: a pure function of layouts and
// addresses. Dimensions are ordered as in the output's memory, and merged if dense in all operands.
// A thread takes a group of neighbours in a row: one access for each operand dense along rows.

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/view.h"

namespace mixtape::kernels::cuda {
using namespace internal;

// Division of numbers below 2^63 by a constant of the launch: a product and a shift.
struct Divisor {
  __extension__ typedef unsigned __int128 Wide;
  uint64_t magic = 1;
  int shift = 0;

  Divisor() = default;
  explicit Divisor(int64_t by) {  // 0 is never divided by
    by = std::max<int64_t>(by, 1);
    while (shift < 63 && int64_t(uint64_t{1} << shift) < by) ++shift;
    const auto over = static_cast<Wide>((uint64_t{1} << shift) - uint64_t(by));
    magic = static_cast<uint64_t>((over << 64) / uint64_t(by)) + 1;
  }
  MIXTAPE_HD int64_t quotient(int64_t i) const {
    const auto product = static_cast<Wide>(magic) * uint64_t(i);
    return static_cast<int64_t>((static_cast<uint64_t>(product >> 64) + uint64_t(i)) >> shift);
  }
};

// One shape with strides for each operand: finds the offsets of the i-th element.
template <int operands>
struct Walk {
  int rank = 1;
  int64_t size[max_rank] = {1};
  Divisor divisor[max_rank];
  int64_t stride[operands][max_rank] = {};

  MIXTAPE_HD void find(int64_t i, int64_t (&at)[operands]) const {
    for (int k = 0; k < operands; ++k) at[k] = 0;
#pragma unroll 1
    for (int d = rank - 1; d > 0; --d) {
      const int64_t rest = divisor[d].quotient(i), index = i - rest * size[d];
      i = rest;
      for (int k = 0; k < operands; ++k) at[k] += index * stride[k][d];
    }
    for (int k = 0; k < operands; ++k) at[k] += i * stride[k][0];
  }
};

// A Walk over layouts of one shape.
template <int operands>
Walk<operands> walk_of(const Layout* const (&layouts)[operands]) {
  Walk<operands> walk;
  walk.rank = layouts[0]->rank();
  for (int d = 0; d < walk.rank; ++d) {
    walk.size[d] = layouts[0]->shape[d];
    walk.divisor[d] = Divisor(walk.size[d]);
    for (int k = 0; k < operands; ++k) walk.stride[k][d] = layouts[k]->strides[d];
  }
  return walk;
}

// An operand of an elementwise kernel.
struct MapOperand {
  char* data = nullptr;  // null if absent
  uint64_t number = 0;   // the bits of the number that replaces an absent input
  DType dtype = f32;
  bool packed = false;  // dense along rows: a group takes one access
};

template <int operands>
struct MapPlan {
  Walk<operands> walk;
  int64_t count = 0;
  int group = 1;  // neighbours per thread; divides the length of rows
  MapOperand operand[operands];
};

// The plan for views of one shape, outputs first; at least one output is present. A group is two
// units, one unit or a single element, and at most 16 bytes of an operand.
template <int operands>
MapPlan<operands> plan_map(const View* const (&views)[operands], int unit) {
  int first = 0;
  while (!*views[first]) ++first;
  const Layout& y = views[first]->layout;
  int order[max_rank];
  for (int d = 0; d < y.rank(); ++d) order[d] = d;
  std::stable_sort(order, order + y.rank(),
                   [&](int a, int b) { return std::abs(y.strides[a]) > std::abs(y.strides[b]); });
  Layout absent(y.shape);
  std::fill_n(absent.strides.dim, max_rank, 0);
  Layout layouts[operands];
  Layout* pointers[operands];
  const Layout* collapsed[operands];
  for (int k = 0; k < operands; ++k) {
    layouts[k] = permute(*views[k] ? views[k]->layout : absent,
                         std::span(order, static_cast<size_t>(y.rank())));
    collapsed[k] = pointers[k] = &layouts[k];
  }
  collapse(pointers);

  MapPlan<operands> plan;
  plan.walk = walk_of<operands>(collapsed);
  plan.count = y.shape.size();
  const int inner = plan.walk.rank - 1;
  for (int k = 0; k < operands; ++k)
    plan.operand[k] = {static_cast<char*>(views[k]->data), 0, views[k]->dtype,
                       plan.walk.stride[k][inner] == 1};
  const auto fits = [&](int group) {
    if (!plan.operand[first].packed || (inner > 0 && plan.walk.size[inner] % group != 0))
      return false;
    for (int k = 0; k < operands; ++k) {
      const MapOperand& x = plan.operand[k];
      const int64_t* const stride = plan.walk.stride[k];
      if (!x.packed && stride[inner] != 0) return false;
      if (!x.packed) continue;
      const size_t bytes = static_cast<size_t>(group) * size_of(x.dtype);
      if (bytes > 16 || reinterpret_cast<uintptr_t>(x.data) % bytes != 0) return false;
      if (!std::all_of(stride, stride + inner, [=](int64_t s) { return s % group == 0; }))
        return false;
    }
    return true;
  };
  plan.group = fits(2 * unit) ? 2 * unit : fits(unit) ? unit : 1;
  return plan;
}

}  // namespace mixtape::kernels::cuda
