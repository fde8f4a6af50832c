#include "nn/sequential.h"

namespace mixtape::detail {
using nn::type_name;

void fail_other_type(const nn::ModuleBase* held, const std::type_info& wanted) {
  fail("the module is {}, not {}", held ? type_name(typeid(*held)) : "absent", type_name(wanted));
}
void fail_to_copy(const std::type_info& type) {
  fail("{} has fields that cannot be copied", type_name(type));
}
void fail_out_of_range(size_t index, size_t size) {
  fail("module {} is out of range for {} modules", index, size);
}

}  // namespace mixtape::detail

namespace mixtape::nn {

Tensor Sequential::forward(Tensor x) const {
  for (const Any& layer : *this) x = layer(x);
  return x;
}

}  // namespace mixtape::nn
