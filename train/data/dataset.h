#pragma once
// Dataset: examples by number. What loads data sees nothing else of them, so a folder of files, a
// tensor and a part of either are the same to it.

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape::train {

struct Example {
  Tensor x, y;                    // input and target, on the CPU; the target may be no tensor
  std::vector<Tensor> more = {};  // what else belongs to it: a length, a mask, a second input

  // `const auto& [x, y] = example` takes the first two.
  template <size_t i>
  const Tensor& get() const {
    return i == 0 ? x : y;
  }
};
// n examples, each tensor stacked along a first dimension: [n, ...].
using Batch = Example;

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::string name() const = 0;          // for errors: a file, say
  virtual std::string name_of(int64_t i) const;  // of example i, likewise; "example 7" by default
  virtual int64_t size() const = 0;
  // Example i of size(). Several threads call this and gather() at once.
  virtual Example get(int64_t i) const = 0;
  // The examples of these numbers, in this order; at least one. Stacks what get() gives, and throws
  // Error that names the example if its shape or dtype is not that of the first. A data set that
  // can do better than one by one overrides it.
  virtual Batch gather(std::span<const int64_t> indices) const;
};

// A data set of any kind, shared: what takes one takes `TensorDataset(x, y)` as well as a pointer.
class AnyDataset {
 public:
  template <std::derived_from<Dataset> D>
  AnyDataset(D data) : data_(std::make_shared<D>(std::move(data))) {}
  template <std::derived_from<Dataset> D>
  AnyDataset(std::shared_ptr<D> data) : data_(std::move(data)) {
    require();
  }

  // Throw Error where there is none: after a move.
  const Dataset* operator->() const { return &**this; }
  const Dataset& operator*() const {
    require();
    return *data_;
  }

 private:
  void require() const;  // throws Error if there is none
  std::shared_ptr<const Dataset> data_;
};

// Row i of tensors [n, ...] on the CPU. Throws Error if they differ in n.
class TensorDataset final : public Dataset {
 public:
  TensorDataset() = default;  // none
  TensorDataset(const Tensor& x, const Tensor& y, std::string name = "tensors");
  TensorDataset(const Tensor& x, const Tensor& y, const std::vector<Tensor>& more,
                std::string name = "tensors");

  std::string name() const override { return name_; }
  int64_t size() const override { return x_ ? x_.size(0) : 0; }
  Example get(int64_t i) const override;
  Batch gather(std::span<const int64_t> indices) const override;

  const Tensor& x() const { return x_; }
  const Tensor& y() const { return y_; }
  TensorDataset rows(int64_t start, int64_t stop) const;  // shares the tensors

 private:
  template <class F>
  Example of_each(const F& f) const;  // f of each tensor that is there

  Tensor x_, y_;  // contiguous
  std::vector<Tensor> more_;
  std::string name_;
};

// Some examples of another data set, in a given order.
class Subset final : public Dataset {
 public:
  Subset() : of_(TensorDataset()) {}  // none
  // Throws Error if an index is not within the data set.
  Subset(AnyDataset of, std::vector<int64_t> indices);

  std::string name() const override { return of_->name(); }
  int64_t size() const override { return int64_t(indices_.size()); }
  Example get(int64_t i) const override;
  Batch gather(std::span<const int64_t> indices) const override;

  const std::vector<int64_t>& indices() const { return indices_; }

 private:
  AnyDataset of_;
  std::vector<int64_t> indices_;
};

// What to train and what to validate with.
template <std::derived_from<Dataset> D>
struct Split {
  D train, valid;
};

struct SplitOptions {
  double valid_fraction = 0.1;  // rounded to whole examples
  uint64_t seed = 0;            // which ones
};

// Examples drawn at random for validation, all others for training; both keep their order. Throws
// Error if the fraction is not within 0 to 1, or either part would be empty.
Split<Subset> split(AnyDataset data, const SplitOptions& options = {});

// How many of n examples that fraction is. Throws Error likewise; `name` is for it.
int64_t valid_count(int64_t n, double valid_fraction, const std::string& name);

// 0 to n - 1 in an order that depends on the seed and the epoch alone.
std::vector<int64_t> shuffled(int64_t n, uint64_t seed, uint64_t epoch = 0);

// The numbers of an epoch's examples, in order: equally many in each epoch, and the same ones
// whenever it is asked.
using Sampler = std::function<std::vector<int64_t>(uint64_t epoch)>;
// n numbers drawn with replacement: i as often as weights[i] is large. Throws Error if a weight is
// negative or not finite, or all are 0.
Sampler weighted(const std::vector<double>& weights, int64_t n, uint64_t seed = 0);

}  // namespace mixtape::train

template <>
struct std::tuple_size<mixtape::train::Example> : std::integral_constant<size_t, 2> {};
template <size_t i>
struct std::tuple_element<i, mixtape::train::Example> {
  using type = const mixtape::Tensor;
};
