#include "dist/division.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "autograd/autograd_meta.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "dist/bucket.h"
#include "dist/world.h"
#include "kernels/kernels.h"

namespace mixtape::dist {
using namespace internal;

constexpr size_t bits = 32;  // in a word

std::shared_ptr<Division> division_of(const Tensor& parameter) {
  return std::dynamic_pointer_cast<Division>(optim::sharing_of(parameter));
}

Division::Division(const std::shared_ptr<Exchange>& exchange, const std::vector<Tensor>& parameters,
                   const std::vector<bool>& uncut, double bucket_mb)
    : exchange_(exchange), rank_(size_t(exchange->rank())), ranks_(size_t(exchange->size())) {
  for (size_t i = parameters.size(); i-- > 0;)
    if (parameters[i].is_leaf()) items_.push_back({parameters[i], {}, uncut[i]});
  lay(bucket_mb);
  cut_buffers();
  for (Buffer& b : buffers_) {
    b.data = zeros({b.size}, items_[b.items[0]].whole.dtype(), items_[b.items[0]].whole.device());
    for (const size_t i : b.items) {
      Item& item = items_[i];
      const Tensor place = place_of(item);
      detail::write(item.whole, place);
      item.whole.set_data(place);
      item.piece = item.uncut && owner(item) == rank_
                       ? place_of(item)
                       : b.data.with_layout(Layout({item.cut[rank_ + 1] - item.cut[rank_]})
                                                .at_offset(item.offset + item.cut[rank_]));
      item.piece.set_requires_grad();
      by_id_.emplace(item.whole.id(), i);
      by_id_.emplace(item.piece.id(), i);
    }
  }
}

std::shared_ptr<Exchange> Division::exchange() const {
  std::shared_ptr<Exchange> exchange = exchange_.lock();
  check(exchange != nullptr, "the World of these Shards has ended");
  return exchange;
}

void Division::end() {
  for (const Item& item : items_) item.whole.autograd_meta().sharing = {};
  items_.clear();
  buffers_.clear();
  by_id_.clear();
}

void Division::lay(double bucket_mb) {
  std::map<std::tuple<DType, DType, size_t>, size_t> open;
  for (size_t i = 0; i < items_.size(); ++i) {
    const Tensor& t = items_[i].whole;
    size_t& at = open.try_emplace({t.dtype(), t.grad_dtype(), t.device().slot()}, buffers_.size())
                     .first->second;
    if (at < buffers_.size() &&
        are_enough(buffers_[at].items.size(), buffers_[at].bytes, at == 0, bucket_mb))
      at = buffers_.size();
    if (at == buffers_.size()) buffers_.emplace_back();
    Buffer& b = buffers_[at];
    items_[i].buffer = at;
    items_[i].place = b.items.size();
    items_[i].offset = b.size;
    b.items.push_back(i);
    b.size += round_up(t.numel(), 64 / int64_t(size_of(t.dtype())));
    b.bytes += t.numel() * int64_t(size_of(t.grad_dtype()));
  }
}

// The place with `wanted` elements before it, or the nearest place where a cut is possible.
std::pair<size_t, int64_t> Division::joint_near(const Buffer& buffer, int64_t wanted) const {
  wanted = std::max<int64_t>(wanted, 0);
  for (size_t place = 0; place < buffer.items.size(); ++place) {
    const int64_t n = items_[buffer.items[place]].whole.numel();
    if (wanted >= n) {
      wanted -= n;
      continue;
    }
    const bool uncut = items_[buffer.items[place]].uncut;
    const int64_t low = uncut ? 0 : wanted / kernels::norm_block * kernels::norm_block,
                  high = uncut ? n : std::min(low + kernels::norm_block, n),
                  element = wanted - low <= high - wanted ? low : high;
    return element < n ? std::pair(place, element) : std::pair(place + 1, int64_t(0));
  }
  return {buffer.items.size(), 0};
}

// Cuts so that ranks have about equally many elements, but only where blocks of the norm end (so
// that the norm adds up as for whole gradients) or uncut parameters do.
void Division::cut_buffers() {
  std::vector<int64_t> loads(ranks_);
  int64_t all = 0;
  for (Buffer& b : buffers_) {
    for (const size_t i : b.items) all += items_[i].whole.numel();
    b.joints = {{0, 0}};
    int64_t wanted = 0;
    for (size_t r = 0; r + 1 < ranks_; ++r) {
      wanted += all / int64_t(ranks_) - loads[r];
      b.joints.push_back(std::max(b.joints.back(), joint_near(b, wanted)));
    }
    b.joints.emplace_back(b.items.size(), 0);
    for (const auto& [place, element] : b.joints) {
      b.cut.push_back(place < b.items.size() ? items_[b.items[place]].offset + element : b.size);
      for (size_t i = 0; i < b.items.size(); ++i) {
        Item& item = items_[b.items[i]];
        item.cut.push_back(place < i ? 0 : place == i ? element : item.whole.numel());
      }
    }
    for (size_t r = 0; r < ranks_; ++r)
      for (const size_t i : b.items) loads[r] += items_[i].cut[r + 1] - items_[i].cut[r];
  }
}

size_t Division::owner(const Item& item) {
  size_t r = 0;
  while (r + 2 < item.cut.size() && item.cut[r + 1] == item.cut[r]) ++r;
  return r;
}

Tensor Division::place_of(const Item& item) const {
  return buffers_[item.buffer].data.with_layout(Layout(item.whole.shape()).at_offset(item.offset));
}

// Blocks of the norm, at which parameters are cut, consist of whole blocks of codes.
Cut Division::cut_of(const Item& item, int64_t block) {
  static_assert(kernels::norm_block % kernels::code_block == 0);
  Cut cut = item.cut;
  for (int64_t& element : cut) element = ceil_div(element, block);
  return cut;
}

Tensor Division::own_part(const Item& item, const Tensor& whole, int64_t block) const {
  const Cut cut = cut_of(item, block);
  const int64_t begin = cut[rank_], n = cut[rank_ + 1] - begin;
  return whole.contiguous().with_layout(Layout({n}).at_offset(begin)).clone();
}

std::vector<StateDict> Division::gather(const StateDict& own) const {
  const std::shared_ptr<Exchange> exchange = this->exchange();
  std::vector<StateDict> all;
  if (std::ranges::none_of(items_, &Item::uncut)) return all;
  const World* const world = World::current();
  check(world && world->exchange() == exchange, "state is joined on the thread of the World");
  for (size_t r = 0; r < ranks_; ++r) all.push_back(world->of_rank(int(r), own));
  return all;
}

Tensor Division::joined(const Item& item, const Tensor& part, int64_t block) const {
  const Cut cut = cut_of(item, block);
  const Tensor whole({cut.back()}, part.dtype(), Device::cpu());
  detail::write(part.copied_to(Device::cpu()),
                whole.with_layout(Layout(part.shape()).at_offset(cut[rank_])));
  const std::shared_ptr<Exchange> exchange = this->exchange();
  exchange->run([&] {
    const Place place{Place::Kind::Gather};
    exchange->meet(place, {}, whole.nbytes());
    exchange->share_pieces(place, {{whole, cut}});
  });
  return block == 1 ? whole.with_layout(Layout(item.whole.shape())) : whole;
}

// Checks the parameters, whose data loading, converting and moving replace.
void Division::begin_step() {
  check(!items_.empty(), "the Shards of this optimizer have ended, so it has only pieces");
  exchange();
  for (const Item& item : items_) {
    const Tensor place = place_of(item), &now = item.whole;
    check(!now.has_grad(),
          "a parameter of shape {} has a gradient that its pieces do not have: Shards need a "
          "DataParallel of the model, made before backward()",
          now.shape());
    if (now.raw() == place.raw()) continue;
    check(now.dtype() == place.dtype() && now.device() == place.device(),
          "a parameter of shape {} was divided as {} on {}, and is now {} on {}: make Shards after "
          "a model is converted or moved",
          now.shape(), place.dtype(), place.device(), now.dtype(), now.device());
    detail::write(now, place);
    now.set_data(place);
  }
}

void Division::end_step() {
  const Place place{Place::Kind::Step, steps_};
  const std::shared_ptr<Exchange> exchange = this->exchange();
  exchange->run([&] {
    if (!has_met_) exchange->meet(place);
    std::map<size_t, Exchange::Divided> there;  // by device
    for (const Buffer& b : buffers_)
      there[b.data.device().slot()].emplace_back(
          b.data.copied_to(exchange->exchanges(b.data.device())), b.cut);
    for (const auto& [slot, all] : there) exchange->share_pieces(place, all);
    for (const Buffer& b : buffers_) {
      Exchange::Divided& all = there[b.data.device().slot()];
      detail::write(all.front().first.copied_to(b.data.device()), b.data);
      all.erase(all.begin());
    }
  });
  has_met_ = false;
  ++steps_;
}

// The number of parts of a gradient's norm that a rank has.
int64_t Division::parts_of(const Tensor& t, int rank) const {
  if (!t.has_grad()) return 0;
  if (!has(t)) return ceil_div(t.numel(), kernels::norm_block);  // not divided
  const Cut& cut = item(t).cut;
  return ceil_div(cut[size_t(rank) + 1] - cut[size_t(rank)], kernels::norm_block);
}

Tensor Division::join(const std::vector<Tensor>& tensors, const Tensor& parts, const Tensor& found,
                      bool steps) {
  check_no_capture("ranks tell each other of their pieces in each step");
  // The words are `found`, as bits, and the parts.
  const size_t flags = found ? ceil_div(tensors.size(), size_t(bits)) : 0;
  std::vector<double> words(flags);
  if (found) {
    const Tensor host = found.copied_to(Device::cpu());
    for (size_t i = 0; i < tensors.size(); ++i)
      if (host.data<float>()[i] != 0) words[i / bits] += double(uint64_t(1) << i % bits);
  }
  if (parts) {
    const Tensor host = parts.copied_to(Device::cpu());
    words.insert(words.end(), host.data<double>(), host.data<double>() + host.numel());
  }
  const int64_t width = parts && parts.rank() > 1 ? parts.size(1) : 1;
  const std::vector<std::vector<double>> all = meet(words);
  for (size_t r = 0; r < ranks_; ++r) {
    size_t expected = flags;
    for (const Tensor& t : tensors) expected += parts ? size_t(width * parts_of(t, int(r))) : 0;
    check(all[r].size() == expected,
          "rank {} of {} has gradients of other parameters than rank {}: {} numbers of them, not "
          "{}",
          r, ranks_, rank_, all[r].size(), expected);
  }
  has_met_ = steps;
  if (found) {
    const Tensor host({found.numel()}, f32, Device::cpu());
    for (size_t i = 0; i < tensors.size(); ++i)
      host.data<float>()[i] = float(std::ranges::any_of(
          all, [&](const auto& of_rank) { return uint64_t(of_rank[i / bits]) >> i % bits & 1; }));
    detail::write(host.copied_to(found.device()), found);
  }
  return parts ? in_order(tensors, all, flags, width).copied_to(parts.device()) : parts;
}

// The parts of whole gradients, for each those of the first rank's piece and so on.
Tensor Division::in_order(const std::vector<Tensor>& tensors,
                          const std::vector<std::vector<double>>& all, size_t flags,
                          int64_t width) const {
  std::vector<double> joined;
  std::vector<size_t> at(all.size(), flags);
  for (const Tensor& t : tensors)
    for (size_t r = 0; r < all.size(); ++r) {
      const int64_t n = width * parts_of(t, int(r));
      const auto first = all[r].begin() + ptrdiff_t(at[r]);
      if (has(t) || r == rank_) joined.insert(joined.end(), first, first + n);
      at[r] += size_t(n);
    }
  return from(joined, {int64_t(joined.size())}, f64).copied_to(Device::cpu());
}

// All ranks' words, exchanged in as many meetings as needed.
std::vector<std::vector<double>> Division::meet(const std::vector<double>& words) const {
  std::vector<std::vector<double>> all(ranks_);
  const std::shared_ptr<Exchange> exchange = this->exchange();
  exchange->run([&] {
    for (size_t at = 0, left = 1; left > 0;) {
      const size_t n = std::min(words.size() - at, Exchange::most_words - 1);
      std::vector<double> some{double(words.size() - at - n)};
      some.insert(some.end(), words.begin() + ptrdiff_t(at), words.begin() + ptrdiff_t(at + n));
      at += n;
      left = 0;
      const auto of_ranks = exchange->meet({Place::Kind::Step, steps_}, some);
      for (size_t r = 0; r < all.size(); ++r) {
        left = std::max(left, size_t(of_ranks[r][0]));
        all[r].insert(all[r].end(), of_ranks[r].begin() + 1, of_ranks[r].end());
      }
    }
  });
  return all;
}

}  // namespace mixtape::dist
