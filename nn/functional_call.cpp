#include "nn/functional_call.h"

#include <algorithm>
#include <unordered_map>

#include "autograd/tape.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape::detail {
using nn::Field, nn::Fields, nn::ModuleBase;

void replace_tensors(ModuleBase& module, const StateDict& tensors) {
  const internal::Scope scope("functional_call");
  std::vector<Field> fields;
  for (const auto& [path, m] : module.named_modules()) {
    Fields own;
    m->list_fields(own);
    for (Field& f : own.list()) {
      if (!f.tensor) continue;
      if (!path.empty()) f.name = path + '.' + f.name;
      fields.push_back(f);
    }
  }
  struct Given {
    const std::string& name;
    const Tensor& tensor;
  };
  std::unordered_map<const void*, Given> by_id;
  for (const auto& [name, t] : tensors) {
    const auto f = std::ranges::find(fields, name, &Field::name);
    check(f != fields.end(), "the module has no tensor '{}'", name);
    check(t && t.shape() == f->tensor->shape(), "'{}' has shape {}, got {}", name,
          f->tensor->shape(), t ? t.shape().to_string() : "no tensor");
    const auto [known, is_new] = by_id.try_emplace(f->tensor->id(), Given{name, t});
    check(is_new || known->second.tensor.is_same(t),
          "'{}' and '{}' are one tensor, but two are given", known->second.name, name);
  }
  for (const Field& f : fields)
    if (const auto given = by_id.find(f.tensor->id()); given != by_id.end())
      *f.tensor = given->second.tensor;
}

void keep_for_backward(const Tensor& y, const std::shared_ptr<const void>& object) {
  if (y && y.grad_fn()) register_hook(y, [object](const Tensor&) { return Tensor(); });
}

}  // namespace mixtape::detail
