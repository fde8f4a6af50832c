#include "nn/summary.h"

#include <fmt/format.h>

#include <algorithm>
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

std::string summary_of(ModuleBase& net, const std::function<void()>& run) {
  std::unordered_map<const ModuleBase*, std::string> outputs;
  {
    const Evaluating mode(net);
    const NoGrad off;
    const ScopedHooks hooks(net, [&](const ModuleBase& m, const Tensors&, Tensors& y) {
      if (!y.empty() && y[0]) outputs[&m] = y[0].shape().to_string();
    });
    run();
  }

  std::vector<SummaryRow> rows{{"module", "type", "output", "parameters"}};
  std::unordered_set<const void*> seen;
  int64_t total = 0, trainable = 0, bytes = 0;
  for (const auto& [path, m] : net.named_modules()) {
    Fields fields;
    m->list_fields(fields);
    int64_t own = 0;
    for (const Field& f : fields.list()) {
      if (!f.tensor || !seen.insert(f.tensor->id()).second) continue;
      const int64_t n = f.tensor->numel();
      bytes += n * static_cast<int64_t>(size_of(f.tensor->dtype()));
      if (f.is_buffer) continue;
      own += n;
      if (f.tensor->requires_grad()) trainable += n;
    }
    total += own;
    rows.push_back({path, type_name(typeid(*m)), outputs[m], own ? grouped(own) : ""});
  }
  return fmt::format("{}{} parameters, {} trainable, {:.1f} KiB with buffers\n", table(rows),
                     grouped(total), grouped(trainable), static_cast<double>(bytes) / 1024);
}

}  // namespace mixtape::nn
