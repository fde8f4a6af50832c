#pragma once
// Embedding: a row of a table for each index.

#include <optional>

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/init.h"
#include "nn/module.h"

namespace mixtape::nn {

struct EmbeddingOptions {
  // A row that starts as zeros and gets no gradient; negative: from the end.
  std::optional<int64_t> padding_idx = {};
};

// i64 [...] -> [..., size]. The table starts normal with standard deviation 1.
struct Embedding : Module<Embedding> {
  Tensor weight;  // [rows, size]

  Embedding(int64_t rows, int64_t size, const EmbeddingOptions& o = {}) : padding_(o.padding_idx) {
    const Scope scope("Embedding");
    check(rows > 0 && size > 0, "sizes must be positive: rows {}, size {}", rows, size);
    weight = parameter(empty({rows, size}));
    init::normal_(weight);
    if (!padding_) return;
    check(-rows <= *padding_ && *padding_ < rows, "padding_idx {} of {} rows", *padding_, rows);
    if (*padding_ < 0) *padding_ += rows;
    const NoGrad off;
    zero_(select(weight, 0, *padding_));
  }
  Tensor forward(const Tensor& index) const {
    return embedding(weight, index, {.padding = padding_});
  }
  MIXTAPE_FIELDS(weight)

 private:
  std::optional<int64_t> padding_;
};

}  // namespace mixtape::nn
