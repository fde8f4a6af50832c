// Copies examples byte by byte into the rows of a batch.

#include "train/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/check.h"
#include "core/format.h"
#include "core/random.h"
#include "nn/module.h"
#include "train/data/stack.h"

namespace mixtape::train {
namespace {

// Copies rows of a contiguous tensor.
Tensor gather_rows(const Tensor& from, std::span<const int64_t> indices) {
  check(!indices.empty(), "a batch needs at least one example");
  const Shape shape = internal::with_size(from.shape(), 0, int64_t(indices.size()));
  const Tensor to(shape, from.dtype(), Device::cpu());
  const size_t bytes = to.nbytes() / indices.size();
  const auto* source = static_cast<const char*>(from.host());
  auto* out = static_cast<char*>(to.host());
  if (bytes > 0)
    for (const int64_t i : indices) {
      std::memcpy(out, source + size_t(i) * bytes, bytes);
      out += bytes;
    }
  return to;
}

// The generator for the order of an epoch, at the epoch's own part of the seed's stream.
RandomGenerator epoch_generator(uint64_t seed, uint64_t epoch) {
  RandomGenerator g(seed);
  g.set_offset(epoch << 32);
  return g;
}

}  // namespace

void Stack::put(int64_t row, const Tensor& from) {
  check(bool(from), "it has no {}", what_);
  if (!all_) {
    row_ = from.shape();
    all_ = Tensor(internal::joined({n_}, row_), from.dtype(), Device::cpu());
  }
  check(from.shape() == row_ && from.dtype() == all_.dtype(),
        "its {} is {} {}, but the first in the batch has {} {}", what_, from.dtype(), from.shape(),
        all_.dtype(), row_);
  const Tensor dense = from.contiguous();
  if (const size_t bytes = dense.nbytes())
    std::memcpy(static_cast<char*>(all_.host()) + uint64_t(row) * bytes, dense.host(), bytes);
}

void AnyDataset::require() const { check(data_ != nullptr, "no data set"); }

std::string Dataset::name() const { return nn::type_name(typeid(*this)); }
std::string Dataset::name_of(int64_t i) const { return fmt::format("example {}", i); }

Batch Dataset::gather(std::span<const int64_t> indices) const {
  const auto n = int64_t(indices.size());
  Stack x("input", n), y("target", n);
  std::vector<Stack> more;
  bool targets = false, drew = false;
  // Each row has its own random numbers, whatever earlier rows draw.
  RandomGenerator& random = generator();
  const uint64_t start = random.offset();
  for (int64_t row = 0; row < n; ++row) {
    const int64_t i = indices[size_t(row)];
    const uint64_t here = start + offset_at(row);
    random.set_offset(here);
    const auto put = [&] {
      const Example e = get(i);
      if (row == 0) {
        targets = bool(e.y);
        for (size_t k = 0; k < e.more.size(); ++k) more.emplace_back(fmt::format("more[{}]", k), n);
      }
      check(bool(e.y) == targets, "it has {} target, but the first in the batch has {}",
            e.y ? "a" : "no", targets ? "one" : "none");
      check(e.more.size() == more.size(), "more has {} tensors, but the first in the batch has {}",
            e.more.size(), more.size());
      x.put(row, e.x);
      if (targets) y.put(row, e.y);
      for (size_t k = 0; k < more.size(); ++k) more[k].put(row, e.more[k]);
    };
    about([&] { return name_of(i); }, put);
    drew |= random.offset() != here;
  }
  if (!drew) random.set_offset(start);
  Batch batch{x.all(), y.all()};
  for (const Stack& m : more) batch.more.push_back(m.all());
  return batch;
}

void Dataset::check_index(int64_t i) const {
  if (i < 0 || i >= size()) fail("{}: example {} is out of range for {}", name(), i, size());
}

TensorDataset::TensorDataset(const Tensor& x, const Tensor& y, const std::vector<Tensor>& more,
                             std::string name)
    : name_(std::move(name)) {
  const auto column = [&](const std::string& what, const Tensor& t) {
    check(bool(t), "{}: no {}", name_, what);
    check(t.device().is_host(), "{}: {} must be on the CPU, got {}", name_, what, t.device());
    check(t.rank() >= 1 && t.size(0) == x.size(0), "{}: inputs of shape {} need as many {}, got {}",
          name_, x.shape(), what, t.shape());
    return t.detach().contiguous();
  };
  x_ = column("inputs", x);
  if (y) y_ = column("targets", y);
  for (size_t k = 0; k < more.size(); ++k)
    more_.push_back(column(fmt::format("more[{}]", k), more[k]));
}

template <class F>
Example TensorDataset::map(const F& f) const {
  Example e{f(x_), y_ ? f(y_) : Tensor()};
  for (const Tensor& t : more_) e.more.push_back(f(t));
  return e;
}

Example TensorDataset::get(int64_t i) const {
  check_index(i);
  return map([&](const Tensor& t) { return t.with_layout(select(t.layout(), 0, i)); });
}

Batch TensorDataset::gather(std::span<const int64_t> indices) const {
  for (const int64_t i : indices) check_index(i);
  return map([&](const Tensor& t) { return gather_rows(t, indices); });
}

TensorDataset TensorDataset::rows(int64_t start, int64_t stop) const {
  check(0 <= start && start <= stop && stop <= size(),
        "{}: examples {} to {} are out of range for {}", name_, start, stop, size());
  const Example part =
      map([&](const Tensor& t) { return t.with_layout(slice(t.layout(), 0, start, stop)); });
  return {part.x, part.y, part.more, name_};
}

Subset::Subset(AnyDataset of, std::vector<int64_t> indices)
    : of_(std::move(of)), indices_(std::move(indices)) {
  for (const int64_t i : indices_) of_->check_index(i);
}

int64_t Subset::original(int64_t i) const {
  if (i < 0 || i >= size())
    fail("{}: example {} is out of range for a subset of {}", name(), i, size());
  return indices_[size_t(i)];
}

Example Subset::get(int64_t i) const { return of_->get(original(i)); }

Batch Subset::gather(std::span<const int64_t> indices) const {
  std::vector<int64_t> originals;
  for (const int64_t i : indices) originals.push_back(original(i));
  return of_->gather(originals);
}

int64_t valid_count(int64_t n, double valid_fraction, const std::string& name) {
  check(valid_fraction > 0 && valid_fraction < 1, "valid_fraction must be between 0 and 1, got {}",
        valid_fraction);
  const int64_t valid = std::llround(double(n) * valid_fraction);
  check(valid > 0 && valid < n, "{}: {} examples cannot be split with {} for validation", name, n,
        valid_fraction);
  return valid;
}

ConcatDataset::ConcatDataset(std::vector<AnyDataset> parts) : parts_(std::move(parts)) {
  check(!parts_.empty(), "a ConcatDataset needs data sets");
  for (const AnyDataset& part : parts_)
    ends_.push_back(part->size() + (ends_.empty() ? 0 : ends_.back()));
}
std::string ConcatDataset::name() const {
  std::string all;
  for (const AnyDataset& part : parts_) all += (all.empty() ? "" : " + ") + part->name();
  return all;
}
std::pair<const Dataset*, int64_t> ConcatDataset::find(int64_t i) const {
  check_index(i);
  const size_t part = size_t(std::ranges::upper_bound(ends_, i) - ends_.begin());
  return {&*parts_[part], i - (part > 0 ? ends_[part - 1] : 0)};
}
std::string ConcatDataset::name_of(int64_t i) const {
  const auto [part, at] = find(i);
  return part->name_of(at) + " of " + part->name();
}
Example ConcatDataset::get(int64_t i) const {
  const auto [part, at] = find(i);
  return part->get(at);
}

std::vector<Subset> random_split(AnyDataset data, const std::vector<int64_t>& sizes,
                                 uint64_t seed) {
  int64_t total = 0;
  for (const int64_t size : sizes) {
    check(0 <= size && size <= data->size(), "{}: a part must have from 0 to {} examples, got {}",
          data->name(), data->size(), size);
    total += size;
  }
  check(total == data->size(), "{0}: parts must have {2} examples in all, got {1}", data->name(),
        total, data->size());
  const std::vector<int64_t> order = shuffled(total, seed);
  std::vector<Subset> parts;
  for (auto from = order.begin(); const int64_t size : sizes) {
    parts.emplace_back(data, std::vector(from, from + size));
    from += size;
  }
  return parts;
}

Split<Subset> split(AnyDataset data, const SplitOptions& options) {
  const int64_t n = data->size(), valid = valid_count(n, options.valid_fraction, data->name());
  std::vector<int64_t> order = shuffled(n, options.seed);
  std::sort(order.begin(), order.end() - valid);
  std::sort(order.end() - valid, order.end());
  return {Subset(data, {order.begin(), order.end() - valid}),
          Subset(data, {order.end() - valid, order.end()})};
}

std::vector<int64_t> shuffled(int64_t n, uint64_t seed, uint64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  RandomGenerator g = epoch_generator(seed, epoch);
  for (int64_t i = n - 1; i > 0; --i) std::swap(order[size_t(i)], order[size_t(g.below(i + 1))]);
  return order;
}

Sampler weighted(const std::vector<double>& weights, int64_t n, uint64_t seed) {
  check(n > 0, "n must be > 0, got {}", n);
  std::vector<double> ends;  // cumulative sums
  double end = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    check(weights[i] >= 0 && std::isfinite(weights[i]), "weight {} must be finite and >= 0, got {}",
          i, weights[i]);
    ends.push_back(end += weights[i]);
  }
  check(end > 0 && std::isfinite(end), "the {} weights must have a positive finite sum, got {}",
        weights.size(), end);
  return [ends = std::move(ends), n, seed](uint64_t epoch) {
    RandomGenerator g = epoch_generator(seed, epoch);
    std::vector<int64_t> order;
    for (int64_t i = 0; i < n; ++i) {
      // The product may be rounded up to the end.
      const double at = std::min(g.uniform() * ends.back(), std::nextafter(ends.back(), 0.0));
      order.push_back(std::upper_bound(ends.begin(), ends.end(), at) - ends.begin());
    }
    return order;
  };
}

}  // namespace mixtape::train
