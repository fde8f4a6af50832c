#pragma once
// MIXTAPE_FIELDS: one line in a module that lists its fields. From it come parameters, names,
// saving, loading, conversion and clone; nothing is registered and nothing is looked up by string.

#include <array>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape::nn {

class ModuleBase;

// A tensor that belongs to a module's state without being trained: a running mean.
struct Buffer : Tensor {
  Buffer() = default;
  Buffer(Tensor t) : Tensor(std::move(t)) {}
};

// A field as the library sees it: either a tensor (with its owner) or a module.
struct Field {
  std::string name;
  Tensor* tensor = nullptr;
  bool is_buffer = false;
  ModuleBase* module = nullptr;
};

// A module's fields by name. Elements of a vector or an array are named "blocks.0"; an optional is
// named as its value; tensors, optionals and Any that hold nothing are left out.
class Fields {
 public:
  // (Not inline, since every module instantiates what calls them.)
  void add(std::string name, Tensor& t);
  void add(std::string name, Buffer& b);
  void add(std::string name, ModuleBase& m);
  template <class T>
  void add(std::string name, std::optional<T>& field) {
    if (field) add(std::move(name), *field);
  }
  template <class T>
  void add(std::string name, std::vector<T>& field) {
    add_each(name, field);
  }
  template <class T, size_t n>
  void add(std::string name, std::array<T, n>& field) {
    add_each(name, field);
  }
  template <class T>  // nn::Any: whatever module it holds
  requires requires(T& t) {
    { t.module() } -> std::same_as<ModuleBase*>;
  }
  void add(std::string name, T& field) {
    if (ModuleBase* held = field.module()) add(std::move(name), *held);
  }

  // "0", "1", ... inside `name`, or by themselves if it is empty.
  template <class List>
  void add_each(const std::string& name, List& list) {
    size_t i = 0;
    for (auto& element : list) add((name.empty() ? "" : name + '.') + std::to_string(i++), element);
  }

  // The names are the macro's arguments as one text: "up, down".
  template <class... T>
  void add_all([[maybe_unused]] std::string_view names, T&... fields) {
    (add(take_name(names), fields), ...);
  }

  std::vector<Field>& list() { return list_; }

 private:
  static std::string take_name(std::string_view& names);  // off the front

  std::vector<Field> list_;
};

}  // namespace mixtape::nn

// Any number of fields, each a Tensor (a parameter), an nn::Buffer, a module, an nn::Any, or a
// vector, array or optional of those. In the order in which they are to be saved.
#define MIXTAPE_FIELDS(...)                                                             \
  void list_fields([[maybe_unused]] ::mixtape::nn::Fields& fields_of_module) override { \
    fields_of_module.add_all(#__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__);                  \
  }
