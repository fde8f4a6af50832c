#pragma once
// Dataset: numbered examples, the interface between sources of data and DataLoader.

#include <concepts>
#include <functional>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape::train {

struct Example {                  // an example, or a batch of them
  Tensor x, y;                    // input and target, on the CPU; y may be undefined
  std::vector<Tensor> more = {};  // other inputs: a length, a mask
  // In a batch from a loader: the number of examples of the whole step. Ranks may share them, so
  // that a rank's batch has fewer, or no x at all.
  int64_t of_step = 0;

  // Lets `const auto& [x, y] = example` take the first two.
  template <size_t i>
  const Tensor& get() const {
    return i == 0 ? x : y;
  }
};
// n examples, with each tensor stacked to [n, ...].
using Batch = Example;

// Examples by number. A subclass needs size() and get().
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::string name() const;              // for errors; by default the type's
  virtual std::string name_of(int64_t i) const;  // of example i; by default "example 7"
  virtual int64_t size() const = 0;              // examples
  // Returns example i. Several threads may call this and gather() at once.
  virtual Example get(int64_t i) const = 0;
  // The examples with these numbers (at least one), in this order. By default stacks the results of
  // get(), whose random numbers depend only on the row. If an example's shape or dtype differs from
  // the first one's, throws Error that names it.
  virtual Batch gather(std::span<const int64_t> indices) const;
  void check_index(int64_t i) const;  // throws Error unless 0 <= i < size()
};

// A shared data set of any type, for parameters that accept a value or a shared_ptr.
class AnyDataset {
 public:
  // From a value, which it owns, or a shared_ptr (Error if null).
  template <std::derived_from<Dataset> D>
  AnyDataset(D data) : data_(std::make_shared<D>(std::move(data))) {}
  template <std::derived_from<Dataset> D>
  AnyDataset(std::shared_ptr<D> data) : data_(std::move(data)) {
    require();
  }

  // Access to the data set. Throws Error after a move.
  const Dataset* operator->() const { return &**this; }
  const Dataset& operator*() const {
    require();
    return *data_;
  }

 private:
  void require() const;  // throws Error if there is no data set
  std::shared_ptr<const Dataset> data_;
};

// Tensors [n, ...] on the CPU, of which example i is row i. Throws Error if they differ in n.
class TensorDataset final : public Dataset {
 public:
  TensorDataset() = default;  // empty
  // Both [n, ...]; y may be undefined. `name` is for errors.
  TensorDataset(const Tensor& x, const Tensor& y, std::string name = "tensors")
      : TensorDataset(x, y, std::vector<Tensor>(), std::move(name)) {}
  TensorDataset(const Tensor& x, const Tensor& y, const std::vector<Tensor>& more,
                std::string name = "tensors");

  std::string name() const override { return name_; }
  int64_t size() const override { return x_ ? x_.size(0) : 0; }
  Example get(int64_t i) const override;
  Batch gather(std::span<const int64_t> indices) const override;

  const Tensor& x() const { return x_; }                  // of all examples, [n, ...]
  const Tensor& y() const { return y_; }                  // undefined if there are no targets
  TensorDataset rows(int64_t start, int64_t stop) const;  // shares the tensors

 private:
  template <class F>
  Example map(const F& f) const;  // applies f to each defined tensor

  Tensor x_, y_;  // contiguous
  std::vector<Tensor> more_;
  std::string name_;
};

// Some examples of another data set, in a given order.
class Subset final : public Dataset {
 public:
  Subset() : of_(TensorDataset()) {}  // empty
  // Throws Error if an index is out of range.
  Subset(AnyDataset of, std::vector<int64_t> indices);

  std::string name() const override { return of_->name(); }
  int64_t size() const override { return int64_t(indices_.size()); }
  Example get(int64_t i) const override;
  Batch gather(std::span<const int64_t> indices) const override;

  const std::vector<int64_t>& indices() const { return indices_; }  // into the other data set

 private:
  int64_t original(int64_t i) const;  // the number of example i in the other data set

  AnyDataset of_;
  std::vector<int64_t> indices_;
};

// Data sets one after the other.
class ConcatDataset final : public Dataset {
 public:
  explicit ConcatDataset(std::vector<AnyDataset> parts);  // throws Error if there are none

  std::string name() const override;
  std::string name_of(int64_t i) const override;
  int64_t size() const override { return ends_.back(); }
  Example get(int64_t i) const override;

 private:
  std::pair<const Dataset*, int64_t> find(int64_t i) const;  // the part, and the number in it

  std::vector<AnyDataset> parts_;
  std::vector<int64_t> ends_;  // the end of each part, as a number in the whole
};

// Training and validation data.
template <std::derived_from<Dataset> D>
struct Split {
  D train, valid;
};

struct SplitOptions {
  double valid_fraction = 0.1;  // rounded to whole examples
  uint64_t seed = 0;            // of the random choice
};

// Draws examples for validation and keeps the others for training, each in the original order.
// Throws Error unless the fraction is between 0 and 1 and both parts have examples.
Split<Subset> split(AnyDataset data, const SplitOptions& options = {});

// Draws parts of these sizes, like torch.utils.data.random_split. Throws Error unless sizes add up
// to that of the data.
std::vector<Subset> random_split(AnyDataset data, const std::vector<int64_t>& sizes,
                                 uint64_t seed = 0);

// The size of the validation part of n examples. Throws the Errors of split(), with `name`.
int64_t valid_count(int64_t n, double valid_fraction, const std::string& name);

// A permutation of 0 to n - 1 that depends only on the seed and the epoch.
std::vector<int64_t> shuffled(int64_t n, uint64_t seed, uint64_t epoch = 0);

// Returns the example numbers of an epoch, in order. Every epoch must have as many, and every call
// for an epoch must return the same.
using Sampler = std::function<std::vector<int64_t>(uint64_t epoch)>;
// Draws n numbers with replacement, i with probability proportional to weights[i]. Throws Error if
// a weight is negative or not finite, or all are 0.
Sampler weighted(const std::vector<double>& weights, int64_t n, uint64_t seed = 0);

}  // namespace mixtape::train

template <>
struct std::tuple_size<mixtape::train::Example> : std::integral_constant<size_t, 2> {};
template <size_t i>
struct std::tuple_element<i, mixtape::train::Example> {
  using type = const mixtape::Tensor;
};
