#include "nn/module.h"

#include <cxxabi.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "autograd/autograd_meta.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape::nn {
namespace {

std::vector<Field> fields_of(ModuleBase& m) {
  Fields fields;
  m.list_fields(fields);
  return std::move(fields.list());
}

[[maybe_unused]] const bool root_has_a_name = [] {
  internal::Scope::name_of_root = [] {
    const auto* const root = static_cast<const ModuleBase*>(backward_state.root_module);
    if (!root) return std::string();
    const ModuleBase& module = *root;
    return type_name(typeid(module));
  };
  return true;
}();

// Every field below m, depth first, by its path.
void collect(ModuleBase& m, const std::string& prefix, std::vector<Field>& into) {
  for (Field& f : fields_of(m)) {
    f.name = prefix + f.name;
    into.push_back(f);
    if (f.module) collect(*f.module, f.name + '.', into);
  }
}
std::vector<Field> tree(const ModuleBase& m) {
  std::vector<Field> all;
  collect(const_cast<ModuleBase&>(m), "", all);  // listing fields does not change them
  return all;
}
// The tensors that are saved and loaded.
std::vector<Field> saved(const ModuleBase& m) {
  std::vector<Field> all = tree(m);
  std::erase_if(all, [](const Field& f) { return !f.tensor || !f.is_saved; });
  for (const Field& f : all)
    if (!f.is_buffer) detail::mark_listed(*f.tensor);
  return all;
}

StateDict named(const ModuleBase& m, bool buffers) {
  StateDict result;
  std::unordered_set<const void*> seen;
  for (const Field& f : tree(m)) {
    if (!f.tensor || f.is_buffer != buffers || !seen.insert(f.tensor->id()).second) continue;
    if (!buffers) detail::mark_listed(*f.tensor);
    result.emplace_back(f.name, *f.tensor);
  }
  return result;
}

using Names = std::vector<std::string>;

// The prefix that makes all names of `part` names of `all`; "" if there is none.
std::string common_prefix(const Names& part, const Names& all) {
  const std::unordered_set<std::string_view> known(all.begin(), all.end());
  for (const std::string& name : part.empty() ? Names() : all) {
    if (!name.ends_with("." + part[0])) continue;
    std::string prefix = name.substr(0, name.size() - part[0].size());
    if (std::ranges::all_of(part, [&](const auto& p) { return known.contains(prefix + p); }))
      return prefix;
  }
  return {};
}

std::string without(std::string name, std::string_view word) {
  for (size_t at; (at = name.find(word)) != name.npos;) name.erase(at, word.size());
  return name;
}

// The advice if names differ only by a wrapper's prefix: of data parallelism, torch.compile, a
// model within another. "" if they differ otherwise.
std::string renaming(const Names& missing, const Names& unexpected) {
  if (const std::string p = common_prefix(missing, unexpected); !p.empty())
    return fmt::format("its names begin with \"{0}\": load state.under(\"{0}\")", p);
  if (const std::string p = common_prefix(unexpected, missing); !p.empty())
    return fmt::format(
        "its names lack \"{0}\": load all, after StateDict all; all.add(\"{0}\", state)", p);
  for (const char* word : {"_orig_mod.", "module.", "_fsdp_wrapped_module."}) {
    std::unordered_set<std::string> bare;
    for (const std::string& name : unexpected) bare.insert(without(name, word));
    if (!missing.empty() &&
        std::ranges::all_of(missing, [&](const auto& name) { return bare.contains(name); }))
      return fmt::format("its names have \"{}\" in them: erase it from each", word);
  }
  return {};
}

// Replaces the tensor's data, for all handles to it.
void replace_data(const Tensor& t, const Tensor& data) {
  t.set_data(data);
  if (t.is_leaf())
    t.autograd_meta().accumulator.reset();  // graphs still alive keep the one with the old dtype
}

}  // namespace

void Fields::add(std::string name, Tensor& t) {
  if (t) list_.push_back({std::move(name), &t, false});
}
void Fields::add(std::string name, Buffer& b) {
  if (b) list_.push_back({std::move(name), &b, true});
}
void Fields::add(std::string name, UnsavedBuffer& b) {
  if (b) list_.push_back({std::move(name), &b, true, nullptr, false});
}
void Fields::add(std::string name, ModuleBase& m) {
  list_.push_back({std::move(name), nullptr, false, &m});
}

std::string Fields::take_name(std::string_view& names) {
  const size_t comma = std::min(names.find(','), names.size());
  std::string name(names.substr(0, comma));
  names.remove_prefix(std::min(names.find_first_not_of(", ", comma), names.size()));
  return name;
}

void Fields::add_first(std::string_view& names, Tensor& t) { add(take_name(names), t); }
void Fields::add_first(std::string_view& names, Buffer& b) { add(take_name(names), b); }
void Fields::add_first(std::string_view& names, ModuleBase& m) { add(take_name(names), m); }

Tensor parameter(const Tensor& t) {
  const Tensor p = (t.is_contiguous() ? t : t.detach().contiguous()).set_requires_grad();
  using Listing = AutogradMeta::Listing;
  if (auto& listing = p.autograd_meta().listing; listing == Listing::Plain)
    listing = Listing::Unlisted;
  return p;
}

std::string type_name(const std::type_info& type) {
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr), std::free);
  const std::string full = demangled ? demangled.get() : type.name();
  size_t begin = 0;
  int depth = 0;  // of brackets, around arguments of a template or of a function around the class
  for (size_t i = 0; i < full.size(); ++i) {
    depth += (full[i] == '<' || full[i] == '(') - (full[i] == '>' || full[i] == ')');
    if (depth == 0 && full.compare(i, 2, "::") == 0) begin = i + 2;
  }
  return full.substr(begin);
}

ModuleBase::~ModuleBase() = default;
ModuleBase::ModuleBase(const ModuleBase& other) : training_(other.training_) {
  check(module_state.cloning,
        "modules are not copied (they would share parameters): std::move, std::ref or clone() it");
}

std::vector<Tensor> ModuleBase::parameters() const {
  std::vector<Tensor> result;
  for (auto& [name, t] : named_parameters()) result.push_back(t);
  return result;
}
StateDict ModuleBase::named_parameters() const { return named(*this, false); }
StateDict ModuleBase::named_buffers() const { return named(*this, true); }

StateDict ModuleBase::state_dict() const {
  StateDict result;
  for (const Field& f : saved(*this)) result.emplace_back(f.name, *f.tensor);
  return result;
}

std::vector<std::pair<std::string, ModuleBase*>> ModuleBase::named_modules() {
  std::vector<std::pair<std::string, ModuleBase*>> result{{"", this}};
  for (const Field& f : tree(*this))
    if (f.module) result.emplace_back(f.name, f.module);
  return result;
}

std::vector<ModuleBase*> ModuleBase::modules() {
  std::vector<ModuleBase*> result;
  for (const auto& [name, m] : named_modules()) result.push_back(m);
  return result;
}

int64_t ModuleBase::num_parameters() const {
  int64_t n = 0;
  for (const Tensor& t : parameters()) n += t.numel();
  return n;
}

// The name of a tensor of WeightNorm in files of PyTorch's first weight_norm; any other name stays.
static std::string old_name(std::string name) {
  for (const auto& [now, then] : {std::pair{"parametrizations.weight.original0", "weight_g"},
                                  std::pair{"parametrizations.weight.original1", "weight_v"}})
    if (name.ends_with(now)) return name.replace(name.rfind(now), std::string::npos, then);
  return name;
}

LoadReport ModuleBase::load_state_dict(const StateDict& from, const LoadOptions& options) {
  std::map<std::string, Tensor> unread;
  for (const auto& [name, t] : from)
    check(unread.emplace(name, t).second, "the state to load has '{}' twice", name);
  LoadReport report;
  std::vector<std::string> wrong;
  std::vector<std::pair<Tensor, Tensor>> copies;
  std::unordered_set<const void*> loaded, own;
  const std::vector<Field> fields = saved(*this);
  for (const Field& f : fields) own.insert(f.tensor->storage().get());
  for (const Field& f : fields) {
    auto found = unread.extract(f.name);
    if (!found) found = unread.extract(old_name(f.name));
    if (!found) continue;
    const Tensor& t = found.mapped();
    loaded.insert(f.tensor->id());
    // A tensor of the module might be overwritten before it is read for another.
    const bool moves = own.contains(t.storage().get()) && !t.is_same(*f.tensor);
    copies.emplace_back(*f.tensor, moves ? t.detach().clone() : t);
    if (t.shape() != f.tensor->shape())
      wrong.push_back(
          fmt::format("{} must have shape {}, got {}", f.name, f.tensor->shape(), t.shape()));
    if (f.tensor->layout().repeats())  // copy_() would throw half way
      wrong.push_back(fmt::format("{} has shape {} and strides {}, where elements are one", f.name,
                                  f.tensor->shape(), f.tensor->strides()));
  }
  for (const Field& f : fields)  // a tied tensor needs one of its names
    if (!loaded.contains(f.tensor->id())) report.missing.push_back(f.name);
  for (const auto& [name, t] : unread) report.unexpected.push_back(name);

  const std::string hint = options.strict ? renaming(report.missing, report.unexpected) : "";
  // Files from before PyTorch counted batches lack this, on which no number depends.
  std::erase_if(report.missing, [](auto& name) { return name.ends_with("num_batches_tracked"); });
  if (!hint.empty()) wrong.push_back(hint);
  if (options.strict && hint.empty() && !report.missing.empty())
    wrong.push_back("missing: " + internal::listed(report.missing, 10));
  if (options.strict && hint.empty() && !report.unexpected.empty())
    wrong.push_back("unexpected: " + internal::listed(report.unexpected, 10));
  check(wrong.empty(), "the state does not fit the module: {}", fmt::join(wrong, "; "));

  const NoGrad off;
  for (const auto& [to, values] : copies) copy_(to, values.to(to.device()));
  return report;
}

void ModuleBase::to(DType dtype) {
  check(is_float(dtype), "parameters cannot be {}", dtype);
  const NoGrad off;
  std::unordered_set<const void*> kept;  // in f32, under every name
  if (is_half(dtype))
    for (const auto& [name, m] : named_modules())
      for (const Field& f : fields_of(*m))
        if (f.tensor && (m->keeps_f32() || f.keeps_f32)) kept.insert(f.tensor->id());
  for (const Field& f : tree(*this)) {
    if (!f.tensor || !is_float(f.tensor->dtype())) continue;
    const DType wanted = kept.contains(f.tensor->id()) ? f32 : dtype;
    if (f.tensor->dtype() != wanted) replace_data(*f.tensor, cast(f.tensor->detach(), wanted));
  }
}

void ModuleBase::to(Device device) {
  const NoGrad off;
  for (const Field& f : tree(*this))
    if (f.tensor && f.tensor->device() != device)
      replace_data(*f.tensor, f.tensor->detach().to(device));
}

void ModuleBase::train(bool on) {
  for (const auto& [name, m] : named_modules()) m->training_ = on;
}

Evaluating::Evaluating(ModuleBase& m) {
  for (const auto& [path, inner] : m.named_modules())
    was_training_.emplace_back(inner, inner->training_);
  m.eval();
}
Evaluating::~Evaluating() {
  for (const auto& [m, training] : was_training_) m->training_ = training;
}

void ModuleBase::zero_grad() {
  for (const Tensor& t : parameters()) t.set_grad({});
}

void ModuleBase::requires_grad_(bool on) {
  for (const Tensor& t : parameters()) {
    t.set_requires_grad(on);
    if (!on) t.set_grad({});
  }
}

void ModuleBase::own_tensors() {
  const NoGrad off;
  std::unordered_map<const void*, Tensor> copies;
  for (const Field& f : tree(*this)) {
    if (!f.tensor) continue;
    Tensor& copy = copies[f.tensor->id()];
    if (!copy) {
      copy = f.tensor->detach().clone();
      if (f.tensor->is_leaf()) {
        copy.set_requires_grad();
        if (f.tensor->grad_dtype() != copy.dtype()) copy.set_grad_dtype(f.tensor->grad_dtype());
      }
      copy.autograd_meta().listing = f.tensor->autograd_meta().listing;
    }
    *f.tensor = copy;
  }
}

const std::string ModuleBase::omitted;

// The innermost module of root's tree that contains this module, with parameters that the tree does
// not have, as a member left out of its MIXTAPE_FIELDS; or null.
const ModuleBase* ModuleBase::omitted_by(const ModuleBase& root,
                                         const std::vector<Field>& fields) const {
  std::unordered_set<const void*> known;
  const ModuleBase* holder = nullptr;
  const auto look_into = [&](const ModuleBase& m) {
    Fields of_m;
    const_cast<ModuleBase&>(m).list_fields(of_m);  // does not change it
    if (of_m.within_owner(this)) holder = &m;
  };
  look_into(root);
  for (const Field& f : fields) {
    if (f.tensor) known.insert(f.tensor->id());
    if (f.module) look_into(*f.module);
  }
  const auto is_new = [&](const Tensor& t) { return t.requires_grad() && !known.contains(t.id()); };
  return holder && std::ranges::any_of(parameters(), is_new) ? holder : nullptr;
}

// Marks the first and last parameters of rank 2 or more that belong to no adapter; 8-bit recipes
// leave them alone.
static void mark_ends(const std::vector<Field>& fields) {
  const Tensor *first = nullptr, *last = nullptr;
  for (const Field& f : fields) {
    if (!f.tensor || f.is_buffer || f.tensor->rank() < 2 || f.tensor->grad_fn()) continue;
    if (f.name.ends_with("lora_A") || f.name.ends_with("lora_B")) continue;
    if (!first) first = f.tensor;
    last = f.tensor;
  }
  for (const Field& f : fields)
    if (f.tensor)
      f.tensor->mark_end(first && (f.tensor->is_same(*first) || f.tensor->is_same(*last)));
}

const std::string* ModuleBase::find_path(const ModuleBase& root) const {
  if (root_.load(std::memory_order_relaxed) == &root && !grad_enabled())
    return nullptr;  // a known omission, while nothing is recorded
  std::unordered_map<const ModuleBase*, const std::string*> listed;
  const auto set_path = [&](const ModuleBase& m, const std::string* path) {
    if (!listed.emplace(&m, path).second) return;
    m.path_.store(path, std::memory_order_release);
    m.root_.store(&root, std::memory_order_release);
  };
  set_path(root, intern(""));
  const std::vector<Field> fields = tree(root);
  mark_ends(fields);
  // (Once an optimizer has some, its step warns of others, such as those of a layer added later.)
  const bool is_trained = std::ranges::any_of(fields, [](const Field& f) {
    return f.tensor && f.tensor->autograd_meta().listing == AutogradMeta::Listing::Trained;
  });
  for (const Field& f : fields) {
    if (f.module) set_path(*f.module, intern(f.name));
    if (f.tensor && !f.is_buffer && !is_trained) detail::mark_listed(*f.tensor);
  }
  if (const auto at = listed.find(this); at != listed.end()) return at->second;

  const ModuleBase* const holder = omitted_by(root, fields);
  if (holder)
    check(!grad_enabled(),
          "{} holds a {} that its MIXTAPE_FIELDS leaves out, so it would be neither trained nor "
          "saved: list it there, freeze it with requires_grad_(false), or hold a pointer to it",
          type_name(typeid(*holder)), type_name(typeid(*this)));
  set_path(*this, holder ? &omitted : nullptr);
  if (!holder)
    for (const Field& f : tree(*this))
      if (f.module) set_path(*f.module, nullptr);
  return nullptr;
}

}  // namespace mixtape::nn
