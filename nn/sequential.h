#pragma once
// Models put together at run time: Any holds a module of any type, by value; Sequential and
// ModuleList are rows of them.

#include <functional>
#include <memory>

#include "core/check.h"
#include "nn/module.h"

namespace mixtape::nn {

template <class M>
concept TensorModule = std::derived_from<M, ModuleBase> && requires(const M& m, const Tensor& x) {
  { m.forward(x) } -> std::convertible_to<Tensor>;
};

// Owns a module that maps a tensor to a tensor.
class Any {
 public:
  Any() = default;  // holds nothing
  template <TensorModule M>
  Any(M&& module) : held_(std::make_unique<Model<M>>(std::forward<M>(module))) {}
  Any(Any&& other) noexcept : held_(std::move(other.held_)) { forget_path(); }
  Any& operator=(Any&& other) noexcept {
    held_ = std::move(other.held_);
    forget_path();
    return *this;
  }
  Any(const Any& other)
      : held_(other.held_ ? other.held_->copy() : nullptr) {}  // for clone(), as modules
  Any& operator=(const Any&) = delete;

  explicit operator bool() const { return held_ != nullptr; }
  ModuleBase* module() const { return held_ ? &held_->module() : nullptr; }
  Tensor operator()(const Tensor& x) const {
    check(held_ != nullptr, "an Any that holds no module was called");
    return held_->call(x);
  }
  // The module as what it is. Throws Error that names both types.
  template <class M>
  M& get() const {
    ModuleBase* const held = module();
    M* const m = dynamic_cast<M*>(held);
    check(m, "the module is {}, not {}", held ? type_name(typeid(*held)) : "absent",
          type_name(typeid(M)));
    return *m;
  }
  Any clone() const {
    const Cloning permit;
    Any copy(*this);
    if (copy) copy.module()->own_tensors();
    return copy;
  }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual ModuleBase& module() = 0;
    virtual Tensor call(const Tensor& x) const = 0;
    virtual std::unique_ptr<Interface> copy() const = 0;
  };
  template <class M>
  struct Model final : Interface {
    explicit Model(M&& m) : value(std::move(m)) {}
    explicit Model(const M& m) : value(m) {}
    ModuleBase& module() override { return value; }
    Tensor call(const Tensor& x) const override { return value(x); }
    std::unique_ptr<Interface> copy() const override {
      if constexpr (std::copy_constructible<M>)
        return std::make_unique<Model>(value);
      else
        fail("{} has fields that cannot be copied", type_name(typeid(M)));
    }
    M value;
  };
  // What it holds stays where it was, but may have another path from the same root now.
  void forget_path() noexcept {
    if (held_) held_->module().root_.store(nullptr, std::memory_order_relaxed);
  }

  std::unique_ptr<Interface> held_;
};

// Modules by number: names are "0.weight", "1.weight", ... Base of the two below.
template <class Derived>
class ModuleRow : public Module<Derived> {
 public:
  ModuleRow() = default;
  template <class... M>
    requires(sizeof...(M) > 1 && (std::is_lvalue_reference_v<M> || ...))
  explicit ModuleRow(M&&...) = delete;  // modules are moved in: std::move(layer), or layer.clone()
  template <TensorModule... M>
  explicit ModuleRow(M&&... modules) {
    layers_.reserve(sizeof...(M));
    (layers_.emplace_back(std::move(modules)), ...);
  }
  void push_back(Any module) { layers_.push_back(std::move(module)); }
  size_t size() const { return layers_.size(); }
  Any& operator[](size_t i) {
    check(i < size(), "module {} of {}", i, size());
    return layers_[i];
  }
  const Any& operator[](size_t i) const { return const_cast<ModuleRow&>(*this)[i]; }
  auto begin() const { return layers_.begin(); }
  auto end() const { return layers_.end(); }
  void list_fields(Fields& fields) override { fields.add_each("", layers_); }

 private:
  std::vector<Any> layers_;
};

// A function of a tensor as a module, say between the layers of a Sequential:
//   nn::Functional([](const Tensor& x) { return x.flatten(1); })
// Tensors that it captures are no parameters of it.
struct Functional : Module<Functional> {
  explicit Functional(std::function<Tensor(const Tensor&)> f) : f_(std::move(f)) {
    check(bool(f_), "Functional without a function");
  }
  Tensor forward(const Tensor& x) const { return f_(x); }
  MIXTAPE_FIELDS()

 private:
  std::function<Tensor(const Tensor&)> f_;
};

// Each module takes what the one before it returns. To C++ Sequential(another) is a move; put it
// inside with push_back(), and its names are "0.0.weight" as PyTorch's.
struct Sequential : ModuleRow<Sequential> {
  using ModuleRow::ModuleRow;
  Tensor forward(Tensor x) const {
    for (const Any& layer : *this) x = layer(x);
    return x;
  }
};

// Only holds modules, for a forward of your own to call.
struct ModuleList : ModuleRow<ModuleList> {
  using ModuleRow::ModuleRow;
};

}  // namespace mixtape::nn
