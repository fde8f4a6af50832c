#include "nn/embedding.h"

#include "core/check.h"
#include "nn/init.h"

namespace mixtape::nn {
using namespace internal;

EmbeddingTable::EmbeddingTable(std::string_view name, int64_t rows, int64_t size,
                               std::optional<int64_t> padding)
    : padding_(padding) {
  const Scope scope(name);
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

EmbeddingBag::EmbeddingBag(int64_t rows, int64_t size, const EmbeddingBagOptions& o)
    : EmbeddingTable("EmbeddingBag", rows, size, o.padding_idx),
      mode_(o.mode),
      include_last_offset_(o.include_last_offset) {
  check(!o.per_sample_weights, "EmbeddingBag: each call gets its own per_sample_weights");
}

}  // namespace mixtape::nn
