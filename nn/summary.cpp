#include "nn/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "autograd/tape.h"
#include "core/format.h"

namespace mixtape::nn {
namespace {

std::string grouped(int64_t n) {  // 1,234,567
  std::string text = std::to_string(n);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

struct SummaryRow {
  std::string path, type, output, parameters;
};

std::string table(const std::vector<SummaryRow>& rows) {
  size_t path = 0, type = 0, output = 0, parameters = 0;
  for (const SummaryRow& r : rows) {
    path = std::max(path, r.path.size());
    type = std::max(type, r.type.size());
    output = std::max(output, r.output.size());
    parameters = std::max(parameters, r.parameters.size());
  }
  const std::string rule(path + type + output + parameters + 6, '-');
  std::string text;
  for (const SummaryRow& r : rows) {
    text += fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}\n", r.path, path, r.type, type, r.output,
                        output, r.parameters, parameters);
    if (&r == &rows.front()) text += rule + '\n';
  }
  return text + rule + '\n';
}

// A forward hook on a module and all modules inside it.
class ScopedHooks : NoCopy {
 public:
  ScopedHooks(ModuleBase& net, const ForwardHook& f) {
    for (const auto& [path, m] : net.named_modules())
      handles_.push_back(m->register_forward_hook(f));
  }
  ~ScopedHooks() {
    for (HookHandle& handle : handles_) handle.remove();
  }

 private:
  std::vector<HookHandle> handles_;
};

}  // namespace

std::vector<ModuleSummary> summarize(ModuleBase& net, const std::function<void()>& run) {
  std::unordered_map<const ModuleBase*, std::pair<Shape, DType>> outputs;
  {
    const Evaluating mode(net);
    const NoGrad off;
    const ScopedHooks hooks(net, [&](const ModuleBase& m, const Tensors&, Tensors& y) {
      if (!y.empty() && y[0]) outputs[&m] = {y[0].shape(), y[0].dtype()};
    });
    run();
  }
  std::vector<ModuleSummary> rows;
  std::unordered_set<const void*> seen;
  for (const auto& [path, m] : net.named_modules()) {
    ModuleSummary& row = rows.emplace_back(ModuleSummary{path, type_name(typeid(*m))});
    if (const auto y = outputs.find(m); y != outputs.end())
      std::tie(row.output, row.dtype) = y->second;
    Fields fields;
    m->list_fields(fields);
    for (const Field& f : fields.list())
      if (f.tensor && !f.is_buffer && seen.insert(f.tensor->id()).second)
        row.parameters += f.tensor->numel();
  }
  return rows;
}

std::string summary_of(ModuleBase& net, const std::function<void()>& run) {
  std::vector<SummaryRow> rows{{"module", "type", "output", "parameters"}};
  int64_t total = 0, trainable = 0, bytes = 0;
  for (const ModuleSummary& m : summarize(net, run)) {
    total += m.parameters;
    rows.push_back({m.path, m.type, m.output ? m.output->to_string() : "",
                    m.parameters ? grouped(m.parameters) : ""});
  }
  std::unordered_set<const void*> seen;
  for (const auto& tensors : {net.named_parameters(), net.named_buffers()})
    for (const auto& [name, t] : tensors) {
      if (!seen.insert(t.id()).second) continue;
      bytes += int64_t(t.nbytes());
      if (t.requires_grad()) trainable += t.numel();
    }
  const std::string size = bytes < 1024 ? fmt::format("{} bytes", bytes)
                                        : fmt::format("{:.1f} KiB", double(bytes) / 1024);
  return fmt::format("{}{} parameters, {} trainable, {} with buffers\n", table(rows),
                     grouped(total), grouped(trainable), size);
}

}  // namespace mixtape::nn
