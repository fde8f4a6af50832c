#pragma once
// AttentionRule: how attention masks, scales and drops scores, the products of queries and keys.

#include "core/draw.h"
#include "core/view.h"

namespace mixtape::kernels {
using namespace internal;

struct AttentionRule {
  // Optional, [.., queries, keys]: bool, true where a query sees a key, or a float that is added to
  // the scaled score.
  View mask = {};
  bool causal = false;  // a query sees the keys up to its own position
  double scale = 1;     // of scores, > 0
  Draw draw = {};       // of dropout, which drops the elements that the kernel of that name would
  double dropped = 0;   // the probability of dropout
};

}  // namespace mixtape::kernels
