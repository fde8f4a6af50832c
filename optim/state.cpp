// StateReader, and tensors from numbers and texts.
#include "optim/state.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/format.h"
#include "kernels/kernels.h"
#include "optim/state_reader.h"

namespace mixtape::optim {

StateReader::StateReader(const StateDict& dict) : dict_(dict), read_(dict.size()) {
  for (size_t i = 0; i < dict.size(); ++i)
    check(places_.emplace(dict[i].first, i).second, "the state has '{}' twice", dict[i].first);
}

const Tensor* StateReader::find(std::string_view name) {
  const auto place = places_.find(name);
  if (place == places_.end()) return nullptr;
  read_[place->second] = true;
  const Tensor& tensor = dict_[place->second].second;
  check(static_cast<bool>(tensor), "{} is an undefined tensor", name);
  return &tensor;
}

double StateReader::number(std::string_view name) {
  const Tensor* const t = find(name);
  if (!t) {
    // Lists the other names of the group, which may be those of another optimizer.
    const std::string_view group = name.substr(0, name.rfind('.') + 1);
    std::string beside;
    for (const auto& [other, tensor] : dict_)
      if (!group.empty() && other.starts_with(group))
        beside += (beside.empty() ? ", but there are " : ", ") + other.substr(group.size());
    check(false, "{} is missing{}", name, beside);
  }
  check(t->numel() == 1, "{} must be one number, got shape {}", name, t->shape());
  return t->item();
}

int64_t StateReader::count(std::string_view name, int64_t most) {
  const double value = number(name);
  check(value >= 0 && value <= double(most) && value == std::trunc(value),
        "{} must be a whole number from 0 to {}, got {}", name, most, value);
  return static_cast<int64_t>(value);
}

void StateReader::check_kind(std::string_view kind) {
  const Tensor* const t = find("kind");
  check(t, "kind is missing");
  check(t->dtype() == u8 && t->rank() == 1, "kind must be a text, got {} {}", t->dtype(),
        t->shape());
  const Tensor here = dense_copy(*t, u8, Device::cpu());
  const std::string_view found(reinterpret_cast<const char*>(here.data<uint8_t>()),
                               static_cast<size_t>(here.numel()));
  check(found == kind, "the state must be of {}, got that of {}", kind, found);
}

Tensor StateReader::copy_of(std::string_view name, const Shape& shape, DType dtype, Device device) {
  const Tensor* const t = find(name);
  if (!t) return {};
  check(is_float(t->dtype()), "{} must be a float tensor, got {}", name, t->dtype());
  check(t->shape() == shape, "{} must have shape {}, got {}", name, shape, t->shape());
  return dense_copy(*t, dtype, device);
}

void StateReader::check_all_read() const {
  for (size_t i = 0; i < dict_.size(); ++i) check(read_[i], "unexpected key '{}'", dict_[i].first);
}

Tensor from_number(double x) { return filled({}, x, f64, Device::cpu()); }
Tensor from_text(std::string_view text) {
  Tensor t({static_cast<int64_t>(text.size())}, u8, Device::cpu());
  std::ranges::copy(text, t.data<uint8_t>());
  return t;
}

Tensor dense_copy(const Tensor& x, DType dtype, Device device) {
  const Tensor here = x.copied_to(device);
  Tensor t(x.shape(), dtype, device);
  kernels::convert(device, here, t);
  return t;
}

internal::View to_write(const Tensor& t) {
  if (t) t.storage()->begin_write();
  return t;
}

Tensor filled(const Shape& shape, double value, DType dtype, Device device) {
  internal::check_no_capture("the first step makes state: run it once before");
  Tensor t(shape, dtype, device);
  kernels::fill(device, value, t);
  return t;
}

}  // namespace mixtape::optim
