#include "dist/shards.h"

#include <fmt/format.h>

#include "autograd/autograd_meta.h"
#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "core/parse.h"
#include "core/scope.h"
#include "dist/division.h"
#include "dist/world.h"
#include "kernels/common/update.h"

namespace mixtape::dist {
using namespace internal;
namespace {

// The number of the parameter in a name such as "state.3.exp_avg", or `count` if there is none.
size_t parameter_of(const std::string& name, size_t count) {
  constexpr std::string_view prefix = "state.";
  if (!name.starts_with(prefix)) return count;
  const std::string_view rest = std::string_view(name).substr(prefix.size());
  return std::min(parse_number<size_t>(rest.substr(0, rest.find('.'))).value_or(count), count);
}

}  // namespace

Shards::Shards(optim::Optimizer& optimizer, const ShardsOptions& options)
    : optimizer_(optimizer), whole_(optimizer.params()) {
  const Scope scope("Shards");
  check(options.bucket_mb > 0, "bucket_mb must be > 0, got {}", options.bucket_mb);
  std::vector<bool> uncut;
  for (size_t g = 0; g < optimizer.groups(); ++g)
    uncut.resize(uncut.size() + optimizer.params(g).size(),
                 optimizer.reads(g) == optim::Reads::Parameter);
  for (size_t i = 0; i < whole_.size(); ++i)
    check(!optim::sharing_of(whole_[i]), "parameter {} of {} is divided already", i,
          optimizer.name());
  const World* const world = World::current();
  if (!world || world->size() == 1) return;
  std::string items;
  for (const Tensor& p : whole_)
    items += fmt::format("{} of {}{}; ", p.shape(), p.dtype(), p.is_leaf() ? "" : ", frozen");
  world->check_alike(items, "divides other parameters");
  division_ = std::make_shared<Division>(world->exchange(), whole_, uncut, options.bucket_mb);
  std::vector<Tensor> pieces;
  for (const Tensor& p : whole_) pieces.push_back(division_->has(p) ? division_->piece_of(p) : p);
  optimizer.replace_params(pieces, [&](size_t i, const Tensor& state, int64_t block) {
    const Tensor& p = whole_[i];
    if (!division_->has(p)) return state;
    const Division::Item& item = division_->item(p);
    if (item.uncut) return division_->is_elsewhere(p) ? Tensor() : state;
    return division_->own_part(item, state, block);
  });
  for (size_t i = 0; i < whole_.size(); ++i)
    if (division_->has(whole_[i]))
      for (const Tensor& t : {whole_[i], pieces[i]})
        t.autograd_meta().sharing = std::shared_ptr<optim::Sharing>(division_);
}

Shards::~Shards() {
  if (division_) division_->end();
}

Shape Shards::StateOf::shape() const {
  return block == 1 ? parameter->shape() : Shape{ceil_div(parameter->numel(), block)};
}

Shards::StateOf Shards::divided(const std::string& name) const {
  const size_t i = parameter_of(name, whole_.size());
  if (i == whole_.size() || !division_->has(whole_[i])) return {};
  const Tensor* const p = &whole_[i];
  const bool uncut = division_->item(*p).uncut;
  if (!uncut && name.ends_with(".step")) return {};
  return {p, uncut, name.ends_with("_scale") ? kernels::code_block : 1};
}

StateDict Shards::state_dict() const {
  const StateDict dict = optimizer_->state_dict();
  if (!division_) return dict;
  std::vector<StateDict> of(whole_.size() + 1);  // states by parameter, then those of none
  StateDict uncut;
  for (const auto& [name, t] : dict) {
    const StateOf state = divided(name);
    if (state.uncut) {
      if (!division_->is_elsewhere(*state.parameter)) uncut.emplace_back(name, t);
      continue;
    }
    of[parameter_of(name, whole_.size())].emplace_back(
        name,
        state.parameter ? division_->joined(division_->item(*state.parameter), t, state.block) : t);
  }
  for (const StateDict& of_rank : division_->gather(uncut))
    for (const auto& [name, t] : of_rank)
      of[parameter_of(name, whole_.size())].emplace_back(name, t);
  StateDict all;
  for (const StateDict& one : of) all.add("", one);
  return all;
}

void Shards::load_state_dict(const StateDict& dict) {
  if (!division_) return optimizer_->load_state_dict(dict);
  StateDict own;
  for (const auto& [name, t] : dict) {
    const StateOf of = divided(name);
    if (of.uncut && division_->is_elsewhere(*of.parameter)) continue;
    if (!of.parameter || of.uncut) {
      own.emplace_back(name, t);
      continue;
    }
    check(t.shape() == of.shape(), "{} must have shape {}, got {}", name, of.shape(), t.shape());
    own.emplace_back(name, division_->own_part(division_->item(*of.parameter), t, of.block));
  }
  optimizer_->load_state_dict(own);
}

void Shards::join() {
  if (!division_) return;
  const StateDict all = state_dict();
  optimizer_->replace_params(whole_, [](auto&&...) { return Tensor(); });
  optimizer_->load_state_dict(all);
  division_->end();
  division_ = {};
}

}  // namespace mixtape::dist
