#pragma once
// AttentionRule: what attention does with scores, the products of queries and keys.

#include "core/draw.h"
#include "core/view.h"

namespace mixtape::kernels {
using namespace internal;

struct AttentionRule {
  View mask = {};       // bool [.., queries, keys], true where a query sees a key; optional
  bool causal = false;  // a query sees the keys up to its own position
  double scale = 1;     // of scores, > 0
  Draw draw = {};       // of dropout, whose elements are those of the kernel of that name
  double dropped = 0;   // the probability of dropout
};

}  // namespace mixtape::kernels
