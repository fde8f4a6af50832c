#pragma once
// MIXTAPE_FIELDS: one line in a module that lists its fields. Parameters, names, saving, loading,
// conversion and clone use it; nothing is registered, nothing is looked up by string.

#include <array>
#include <concepts>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape::nn {

class ModuleBase;

// True if M derives from Module<M>, or from the Module of its base or of a derived class.
template <class M>
inline constexpr bool names_itself =
    std::is_base_of_v<typename M::ModuleOf, M> || std::is_base_of_v<M, typename M::ModuleOf>;
// True if M derives from a complete module, whose operator() and clone() know only that base.
template <class M>
inline constexpr bool is_heir =
    !std::is_same_v<typename M::ModuleOf, M> && std::is_base_of_v<typename M::ModuleOf, M>;

// A tensor of a module's state that is not trained, such as a running mean.
struct Buffer : Tensor {
  Buffer() = default;
  Buffer(Tensor t) : Tensor(std::move(t)) {}
};
// A buffer that is moved and converted but not saved, such as a computed table of positions.
struct UnsavedBuffer : Buffer {
  using Buffer::Buffer;
};
// A buffer that stays f32 in an f16 or bf16 model, such as a table of cosines:
//   nn::KeepsF32<nn::UnsavedBuffer> cosines = cos(angles);
template <std::derived_from<Buffer> B>
struct KeepsF32 : B {
  KeepsF32() = default;
  KeepsF32(Tensor t) : B(std::move(t)) {}
};

// A field of a module: either a tensor or another module.
struct Field {
  std::string name;
  Tensor* tensor = nullptr;
  bool is_buffer = false;
  ModuleBase* module = nullptr;
  bool is_saved = true;
  bool keeps_f32 = false;
};

// A module's fields by name: "blocks.0" in a vector or array, "heads.image" in a map. An optional's
// value has the name of the optional. Empty tensors, optionals and Anys are left out.
class Fields {
 public:
  // Adds a field, or each element of a container, by name.
  void add(std::string name, Tensor& t);
  void add(std::string name, Buffer& b);
  void add(std::string name, UnsavedBuffer& b);
  void add(std::string name, ModuleBase& m);
  template <class B>
  void add(std::string name, KeepsF32<B>& b) {
    add(std::move(name), static_cast<B&>(b));
    if (b) list_.back().keeps_f32 = true;
  }
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
  template <class T>
  void add(std::string name, std::map<std::string, T>& field) {
    for (auto& [key, value] : field) add(name + '.' + key, value);
  }
  template <class T>  // nn::Any: the module that it holds
    requires requires(T& t) {
      { t.module() } -> std::same_as<ModuleBase*>;
    }
  void add(std::string name, T& field) {
    if (ModuleBase* held = field.module()) add(std::move(name), *held);
  }

  // Names elements "0", "1", ... inside `name`, or at top level if it is empty.
  template <class List>
  void add_each(const std::string& name, List& list) {
    size_t i = 0;
    for (auto& element : list) add((name.empty() ? "" : name + '.') + std::to_string(i++), element);
  }

  // `names` has the macro's arguments as one text: "up, down".
  template <class... T>
  void add_all([[maybe_unused]] std::string_view names, T&... fields) {
    (add_first(names, fields), ...);
  }

  std::vector<Field>& list() { return list_; }

  // Sets the module's size in bytes, which its MIXTAPE_FIELDS knows.
  void set_owner(const void* module, size_t size) {
    owner_ = static_cast<const char*>(module);
    size_ = size;
  }
  bool within_owner(const void* p) const {
    return std::less_equal<const void*>()(owner_, p) && std::less<const void*>()(p, owner_ + size_);
  }

 private:
  // Adds a field under the first of `names`, which it removes. (Not inline, and not templates where
  // possible, since every module instantiates their callers.)
  void add_first(std::string_view& names, Tensor& t);
  void add_first(std::string_view& names, Buffer& b);
  void add_first(std::string_view& names, ModuleBase& m);
  template <class T>
  void add_first(std::string_view& names, T& field) {
    if constexpr (std::derived_from<T, ModuleBase>) {
      add_first(names, static_cast<ModuleBase&>(field));
    } else {
      static_assert(
          requires(std::string name) { add(name, field); },
          "a field in MIXTAPE_FIELDS is a Tensor, an nn::Buffer or nn::UnsavedBuffer, a module, an "
          "nn::Any, or a vector, array, optional or std::map<std::string, ...> of those");
      if constexpr (requires(std::string name) { add(name, field); }) add(take_name(names), field);
    }
  }
  static std::string take_name(std::string_view& names);  // removes and returns the first

  std::vector<Field> list_;
  const char* owner_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mixtape::nn

// Lists fields in the order in which they are saved. Each is a Tensor (a parameter), an nn::Buffer
// or nn::UnsavedBuffer, a module, an nn::Any, or a vector, array, optional or map by name of these.
#define MIXTAPE_FIELDS(...)                                                                \
  void list_fields([[maybe_unused]] ::mixtape::nn::Fields& fields_of_module) override {    \
    static_assert(::mixtape::nn::names_itself<std::remove_reference_t<decltype(*this)>>,   \
                  "struct M : nn::Module<M>, but here another class is in the brackets");  \
    static_assert(!::mixtape::nn::is_heir<std::remove_reference_t<decltype(*this)>>,       \
                  "derived from another module, whose forward and clone() it would keep: " \
                  "let it be a field");                                                    \
    fields_of_module.set_owner(this, sizeof *this);                                        \
    fields_of_module.add_all(#__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__);                     \
  }
