// Plans as a table.
#include <fmt/format.h>

#include "amp/plan.h"
#include "io/text.h"

namespace mixtape::amp {

std::string plan_text(const std::vector<PlannedMode>& modes, int64_t batch_size, int64_t bytes,
                      const PlanOptions& options) {
  std::vector<std::vector<std::string>> table{
      {"MiB", "peak", "weights", "gradients", "masters", "state", "copies", "activations",
       fmt::format("batch in {:.4g} GiB", double(bytes) / (1 << 30))}};
  for (const auto& [name, make] : modes) {
    const Plan p = plan(make, batch_size, options);
    table.push_back({name});
    for (const int64_t n :
         {p.peak(), p.weights, p.gradients, p.masters, p.state, p.copies, p.activations})
      table.back().push_back(fmt::format("{:.1f}", double(n) / (1 << 20)));
    table.back().push_back(fmt::format("{}", largest_batch(make, bytes, options)));
  }
  std::vector<bool> is_number(table[0].size(), true);
  is_number[0] = false;
  return io::columns(table, is_number);
}

}  // namespace mixtape::amp
