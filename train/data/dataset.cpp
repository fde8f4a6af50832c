// Examples are copied by bytes into their rows of a batch.

#include "train/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/check.h"
#include "core/format.h"
#include "core/random.h"
#include "train/data/stack.h"

namespace mixtape::train {
namespace {

Shape with_rows(int64_t n, const Shape& row) {
  Shape shape{n};
  for (const int64_t size : row) shape.push_back(size);
  return shape;
}

int64_t bytes_of(const Tensor& t) { return t.numel() * int64_t(size_of(t.dtype())); }

// Rows of a contiguous tensor.
Tensor gather_rows(const Tensor& from, std::span<const int64_t> indices) {
  Shape shape = from.shape();
  shape.dim[0] = int64_t(indices.size());
  const Tensor to(shape, from.dtype(), Device::cpu());
  const size_t bytes = size_t(bytes_of(to)) / indices.size();
  const auto* source = static_cast<const char*>(from.host());
  auto* out = static_cast<char*>(to.host());
  if (bytes > 0)
    for (const int64_t i : indices) {
      std::memcpy(out, source + size_t(i) * bytes, bytes);
      out += bytes;
    }
  return to;
}

Tensor row_range(const Tensor& t, int64_t start, int64_t stop) {
  return t.with_layout(slice(t.layout(), 0, start, stop));
}

}  // namespace

void Stack::put(int64_t row, const Tensor& from) {
  check(bool(from), "it has no {}", what_);
  if (!all_) {
    row_ = from.shape();
    all_ = Tensor(with_rows(n_, row_), from.dtype(), Device::cpu());
  }
  check(from.shape() == row_ && from.dtype() == all_.dtype(),
        "its {} is {} {}, that of the first in the batch {} {}", what_, from.dtype(), from.shape(),
        all_.dtype(), row_);
  const Tensor dense = from.contiguous();
  if (const int64_t bytes = bytes_of(dense))
    std::memcpy(static_cast<char*>(all_.host()) + row * bytes, dense.host(), size_t(bytes));
}

void AnyDataset::require() const { check(data_ != nullptr, "no data set"); }

Batch Dataset::gather(std::span<const int64_t> indices) const {
  const auto n = int64_t(indices.size());
  Stack x("input", n), y("target", n);
  for (int64_t row = 0; row < n; ++row)
    about(indices[size_t(row)], [&] {
      const Example e = get(indices[size_t(row)]);
      x.put(row, e.x);
      y.put(row, e.y);
    });
  return {x.all(), y.all()};
}

TensorDataset::TensorDataset(const Tensor& x, const Tensor& y, std::string name)
    : x_(x.detach().contiguous()), y_(y.detach().contiguous()), name_(std::move(name)) {
  check(x.device().is_cpu() && y.device().is_cpu(),
        "{}: inputs on {} and targets on {}: a data set is on the CPU", name_, x.device(),
        y.device());
  check(x.rank() >= 1 && y.rank() >= 1 && x.size(0) == y.size(0),
        "{}: inputs of shape {} for targets of shape {}", name_, x.shape(), y.shape());
}

Example TensorDataset::get(int64_t i) const {
  check(0 <= i && i < size(), "{}: example {} of {}", name_, i, size());
  return {x_.with_layout(select(x_.layout(), 0, i)), y_.with_layout(select(y_.layout(), 0, i))};
}

Batch TensorDataset::gather(std::span<const int64_t> indices) const {
  for (const int64_t i : indices)
    check(0 <= i && i < size(), "{}: example {} of {}", name_, i, size());
  return {gather_rows(x_, indices), gather_rows(y_, indices)};
}

TensorDataset TensorDataset::rows(int64_t start, int64_t stop) const {
  check(0 <= start && start <= stop && stop <= size(), "{}: examples {} to {} of {}", name_, start,
        stop, size());
  return {row_range(x_, start, stop), row_range(y_, start, stop), name_};
}

Subset::Subset(AnyDataset of, std::vector<int64_t> indices)
    : of_(std::move(of)), indices_(std::move(indices)) {
  for (const int64_t i : indices_)
    check(0 <= i && i < of_->size(), "{}: example {} of {}", of_->name(), i, of_->size());
}

Example Subset::get(int64_t i) const {
  check(0 <= i && i < size(), "{}: example {} of a subset of {}", name(), i, size());
  return of_->get(indices_[size_t(i)]);
}

Batch Subset::gather(std::span<const int64_t> indices) const {
  std::vector<int64_t> there;
  for (const int64_t i : indices) {
    check(0 <= i && i < size(), "{}: example {} of a subset of {}", name(), i, size());
    there.push_back(indices_[size_t(i)]);
  }
  return of_->gather(there);
}

int64_t valid_count(int64_t n, double valid_fraction, const std::string& name) {
  check(valid_fraction > 0 && valid_fraction < 1, "valid_fraction {} is not within 0 to 1",
        valid_fraction);
  const int64_t valid = std::llround(double(n) * valid_fraction);
  check(valid > 0 && valid < n, "{}: {} examples cannot be split with {} for validation", name, n,
        valid_fraction);
  return valid;
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
  Generator g(seed);
  g.set_offset(epoch << 32);  // a stretch of the stream for each epoch
  for (int64_t i = n - 1; i > 0; --i) std::swap(order[size_t(i)], order[size_t(g.below(i + 1))]);
  return order;
}

}  // namespace mixtape::train
