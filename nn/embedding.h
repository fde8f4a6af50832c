#pragma once
// Embedding: a row of a table for each index.

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/init.h"
#include "nn/module.h"

namespace mixtape::nn {

// i64 [...] -> [..., size]. The table starts normal with standard deviation 1.
struct Embedding : Module<Embedding> {
  Tensor weight;  // [rows, size]

  Embedding(int64_t rows, int64_t size) {
    const Scope scope("Embedding");
    check(rows > 0 && size > 0, "sizes must be positive: rows {}, size {}", rows, size);
    weight = parameter(empty({rows, size}));
    init::normal_(weight);
  }
  Tensor forward(const Tensor& index) const { return embedding(weight, index); }
  MIXTAPE_FIELDS(weight)
};

}  // namespace mixtape::nn
