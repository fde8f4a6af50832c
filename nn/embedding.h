#pragma once
// Embedding: a row of a table for each index; EmbeddingBag: for each of some lists of indices, what
// its rows are together.

#include <optional>
#include <string_view>

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/init.h"
#include "nn/module.h"

namespace mixtape::nn {

// What both have: starts normal with standard deviation 1, and zeros in the row of the padding.
struct EmbeddingTable {
  Tensor weight;  // [rows, size]

 protected:
  EmbeddingTable(std::string_view name, int64_t rows, int64_t size, std::optional<int64_t> padding)
      : padding_(padding) {
    const Scope scope(name);
    check(rows > 0 && size > 0, "sizes must be positive: rows {}, size {}", rows, size);
    weight = parameter(empty({rows, size}));
    init::normal_(weight);
    if (!padding_) return;
    check(-rows <= *padding_ && *padding_ < rows, "padding_idx {} of {} rows", *padding_, rows);
    if (*padding_ < 0) *padding_ += rows;
    const NoGrad off;
    zero_(select(weight, 0, *padding_));
  }
  std::optional<int64_t> padding_;
};

struct EmbeddingOptions {
  // A row that starts as zeros and gets no gradient; negative: from the end.
  std::optional<int64_t> padding_idx = {};
};

// i64 [...] -> [..., size]. The table starts normal with standard deviation 1.
struct Embedding : Module<Embedding>, EmbeddingTable {
  Embedding(int64_t rows, int64_t size, const EmbeddingOptions& o = {})
      : EmbeddingTable("Embedding", rows, size, o.padding_idx) {}
  Tensor forward(const Tensor& index) const {
    return embedding(weight, index, {.padding = padding_});
  }
  MIXTAPE_FIELDS(weight)
};

struct EmbeddingBagOptions {
  BagMode mode = BagMode::Mean;
  // A row that starts as zeros, gets no gradient and is in no bag; negative: from the end.
  std::optional<int64_t> padding_idx = {};
};

// The sum, mean or largest of the rows of each bag: i64 [bags, k], or [k] and where each bag
// begins, i64 [bags] -> [bags, size]. A bag of nothing gives zeros. The table starts as an
// Embedding's.
struct EmbeddingBag : Module<EmbeddingBag>, EmbeddingTable {
  EmbeddingBag(int64_t rows, int64_t size, const EmbeddingBagOptions& o = {})
      : EmbeddingTable("EmbeddingBag", rows, size, o.padding_idx), mode_(o.mode) {}
  Tensor forward(const Tensor& index, const Tensor& offsets = {}) const {
    return embedding_bag(weight, index, offsets, {.mode = mode_, .padding = padding_});
  }
  MIXTAPE_FIELDS(weight)

 private:
  BagMode mode_;
};

}  // namespace mixtape::nn
