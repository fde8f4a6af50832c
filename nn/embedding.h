#pragma once
// Embedding and EmbeddingBag: rows of a table, and their sums, means or maxima.

#include <concepts>
#include <optional>
#include <string_view>

#include "autograd/ops.h"
#include "nn/module.h"

namespace mixtape::nn {

// The table of both layers. It starts normal with standard deviation 1, and padding_idx's row as
// zeros.
struct EmbeddingTable {
  Tensor weight;  // [rows, size]

 protected:
  EmbeddingTable(std::string_view name, int64_t rows, int64_t size, std::optional<int64_t> padding);
  std::optional<int64_t> padding_;
};

// i64 [...] -> [..., size]. The table starts normal with standard deviation 1.
struct Embedding : Module<Embedding>, EmbeddingTable {
  Embedding(int64_t rows, int64_t size, const EmbeddingOptions& o = {})
      : EmbeddingTable("Embedding", rows, size, o.padding_idx) {}
  Embedding(int64_t rows, int64_t size, std::integral auto padding_idx)
      : Embedding(rows, size, EmbeddingOptions{padding_idx}) {}
  Tensor forward(const Tensor& index) const {
    return embedding(weight, index, {.padding_idx = padding_});
  }
  MIXTAPE_FIELDS(weight)
};

// The sum, mean or maximum of the rows of each bag -> [bags, size]: i64 [bags, k], or [k] with the
// offset of each bag, i64 [bags]. An empty bag gives zeros. The table starts as that of Embedding.
struct EmbeddingBag : Module<EmbeddingBag>, EmbeddingTable {
  EmbeddingBag(int64_t rows, int64_t size, const EmbeddingBagOptions& o = {});
  Tensor forward(const Tensor& index, const Tensor& offsets = {},
                 const Tensor& per_sample_weights = {}) const {
    return embedding_bag(weight, index, offsets,
                         {mode_, padding_, per_sample_weights, include_last_offset_});
  }
  MIXTAPE_FIELDS(weight)

 private:
  BagMode mode_;
  bool include_last_offset_;
};

}  // namespace mixtape::nn
