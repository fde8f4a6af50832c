#pragma once
// Models composed at run time: Any holds a module of any type, Sequential and ModuleList hold
// several.

#include <functional>
#include <memory>

#include "core/check.h"
#include "nn/module.h"

namespace mixtape::detail {

[[noreturn]] void fail_other_type(const nn::ModuleBase* held, const std::type_info& wanted);
[[noreturn]] void fail_to_copy(const std::type_info& type);
[[noreturn]] void fail_out_of_range(size_t index, size_t size);

}  // namespace mixtape::detail

namespace mixtape::nn {

template <class M>
concept TensorModule = std::derived_from<M, ModuleBase> && requires(const M& m, const Tensor& x) {
  { m.forward(x) } -> std::convertible_to<Tensor>;
};

// A function of a tensor as a module, as which a Sequential takes one:
//   `nn::Sequential(nn::Conv2d(1, 4, 3), [](const Tensor& x) { return x.flatten(1); })`
// Tensors that it captures are not its parameters.
struct Functional : Module<Functional> {
  explicit Functional(std::function<Tensor(const Tensor&)> f) : f_(std::move(f)) {
    check(bool(f_), "Functional without a function");
  }
  Tensor forward(const Tensor& x) const { return f_(x); }
  MIXTAPE_FIELDS()

 private:
  std::function<Tensor(const Tensor&)> f_;
};

class Any;
template <class F>  // neither a module nor an Any
concept TensorFunction =
    !std::derived_from<std::remove_cvref_t<F>, ModuleBase> &&
    !std::same_as<std::remove_cvref_t<F>, Any> && std::is_invocable_r_v<Tensor, F&, const Tensor&>;

template <class M>
concept TensorLayer = TensorModule<M> || TensorFunction<M>;

// Owns a module that maps a tensor to a tensor. A function becomes one, a Functional.
class Any {
 public:
  Any() = default;  // empty
  template <TensorModule M>
  Any(M&& module) : held_(std::make_unique<Model<M>>(std::forward<M>(module))) {}
  template <TensorFunction F>
  Any(F&& f) : Any(Functional(std::forward<F>(f))) {}
  Any(Any&& other) noexcept : held_(std::move(other.held_)) { forget_path(); }
  Any& operator=(Any&& other) noexcept {
    held_ = std::move(other.held_);
    forget_path();
    return *this;
  }
  Any(const Any& other) : held_(other.held_ ? other.held_->copy() : nullptr) {}  // for clone() only
  Any& operator=(const Any&) = delete;

  explicit operator bool() const { return held_ != nullptr; }
  ModuleBase* module() const { return held_ ? &held_->module() : nullptr; }
  Tensor operator()(const Tensor& x) const {
    check(held_ != nullptr, "called an empty Any");
    return held_->call(x);
  }
  // The module as type M. If it has another type, throws Error that names both.
  template <class M>
  M& get() const {
    ModuleBase* const held = module();
    M* const m = dynamic_cast<M*>(held);
    if (!m) detail::fail_other_type(held, typeid(M));
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
        detail::fail_to_copy(typeid(M));
    }
    M value;
  };
  // Forgets the cached path: the module stays in place, but its path from the same root may change.
  void forget_path() noexcept {
    if (held_) held_->module().root_.store(nullptr, std::memory_order_relaxed);
  }

  std::unique_ptr<Interface> held_;
};

// The base of Sequential and ModuleList. Names are "0.weight", "1.weight" and so on.
template <class Derived>
class ModuleSequence : public Module<Derived> {
 public:
  ModuleSequence() = default;
  template <class... M>
    requires(sizeof...(M) > 1 && ((std::is_lvalue_reference_v<M> && !TensorFunction<M>) || ...))
  explicit ModuleSequence(M&&...) = delete;  // pass std::move(layer) or layer.clone()
  template <TensorLayer... M>
  explicit ModuleSequence(M&&... modules) {
    layers_.reserve(sizeof...(M));
    (layers_.emplace_back(std::forward<M>(modules)), ...);
  }
  void push_back(Any module) { layers_.push_back(std::move(module)); }
  void append(Any module) { push_back(std::move(module)); }
  size_t size() const { return layers_.size(); }
  Any& operator[](size_t i) {
    if (i >= size()) detail::fail_out_of_range(i, size());
    return layers_[i];
  }
  const Any& operator[](size_t i) const { return const_cast<ModuleSequence&>(*this)[i]; }
  auto begin() const { return layers_.begin(); }
  auto end() const { return layers_.end(); }
  void list_fields(Fields& fields) override { fields.add_each("", layers_); }

 private:
  std::vector<Any> layers_;
};

// Calls modules in order, each with the result of the one before. Sequential(another) is a move in
// C++; to nest one, push_back() it, and its names are "0.0.weight" as in PyTorch.
struct Sequential : ModuleSequence<Sequential> {
  using ModuleSequence::ModuleSequence;
  Tensor forward(Tensor x) const;
};

// Holds modules that your own forward calls.
struct ModuleList : ModuleSequence<ModuleList> {
  using ModuleSequence::ModuleSequence;
};

}  // namespace mixtape::nn
