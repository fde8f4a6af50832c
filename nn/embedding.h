#pragma once
// Embedding and EmbeddingBag: rows of a table, and their sums, means or maxima.

#include <optional>
#include <string_view>

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/init.h"
#include "nn/module.h"

namespace mixtape::nn {

// The table of both: starts normal with standard deviation 1, the row of the padding as zeros.
struct EmbeddingTable {
  Tensor weight;  // [rows, size]

 protected:
  EmbeddingTable(std::string_view name, int64_t rows, int64_t size, std::optional<int64_t> padding)
      : padding_(padding) {
    const internal::Scope scope(name);
    check(rows > 0 && size > 0, "sizes must be positive: rows {}, size {}", rows, size);
    weight = parameter(empty({rows, size}));
    init::normal_(weight);
    if (!padding_) return;
    check(-rows <= *padding_ && *padding_ < rows, "padding_idx {} is out of range for {} rows",
          *padding_, rows);
    if (*padding_ < 0) *padding_ += rows;
    const NoGrad off;
    zero_(select(weight, 0, *padding_));
  }
  std::optional<int64_t> padding_;
};

// i64 [...] -> [..., size]. The table starts normal with standard deviation 1.
struct Embedding : Module<Embedding>, EmbeddingTable {
  Embedding(int64_t rows, int64_t size, const EmbeddingOptions& o = {})
      : EmbeddingTable("Embedding", rows, size, o.padding_idx) {}
  Tensor forward(const Tensor& index) const {
    return embedding(weight, index, {.padding_idx = padding_});
  }
  MIXTAPE_FIELDS(weight)
};

// The sum, mean or maximum of the rows of each bag: i64 [bags, k], or [k] and the offset of each
// bag, i64 [bags] -> [bags, size]. An empty bag gives zeros. The table starts as an Embedding's.
struct EmbeddingBag : Module<EmbeddingBag>, EmbeddingTable {
  EmbeddingBag(int64_t rows, int64_t size, const EmbeddingBagOptions& o = {})
      : EmbeddingTable("EmbeddingBag", rows, size, o.padding_idx), mode_(o.mode) {}
  Tensor forward(const Tensor& index, const Tensor& offsets = {}) const {
    return embedding_bag(weight, index, offsets, {.mode = mode_, .padding_idx = padding_});
  }
  MIXTAPE_FIELDS(weight)

 private:
  BagMode mode_;
};

}  // namespace mixtape::nn
