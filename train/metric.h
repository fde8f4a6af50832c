#pragma once
// Metric: a measure of the quality of predictions. Statistics of batches are summed on the device,
// and the value is computed from the sum when it is read.

#include <functional>

#include "core/tensor.h"

namespace mixtape::train {

struct Metric {
  std::string name;
  // Returns a tensor per batch, whose sum over batches determines the value. Called unrecorded.
  std::function<Tensor(const Tensor& output, const Tensor& target)> statistic;
  // Returns the value from the sum (f64, on the CPU) over all examples.
  std::function<double(const Tensor& total, int64_t examples)> value;
  bool higher_is_better = true;
};

// The fraction of labels [n, ...] whose class has the highest score (or one of the k highest).
// Scores are [n, classes, ...], as for cross_entropy(), or [..., classes] if only that fits.
extern const Metric accuracy;
Metric top_k(int64_t k);  // "top_5" for 5; throws Error unless 1 <= k, and k <= classes
// The mean over classes of 2 hits / (predicted + present); 0 for a class that occurs in neither.
Metric f1(int64_t classes);
// The mean of (output - target)^2 over all elements, and its square root.
extern const Metric mse, rmse;

// Counts for each label (row) the predicted classes (column): i64 [classes, classes].
Tensor confusion_matrix(const Tensor& output, const Tensor& target, int64_t classes);

// Sums a metric over the batches of an epoch, without waiting for the device.
class Total {
 public:
  explicit Total(Metric metric) : metric_(std::move(metric)) {}  // of no batches yet

  // Adds the statistic of a batch on its device.
  void add(const Tensor& output, const Tensor& target);
  // Replaces the sum, for example by that of all ranks.
  void set(const Tensor& sum, int64_t examples) { sum_ = sum, examples_ = examples; }
  const Tensor& sum() const { return sum_; }      // f64; undefined before the first batch
  int64_t examples() const { return examples_; }  // the number of examples in the sum
  double value() const;  // waits for the device; NaN before the first batch

 private:
  Metric metric_;
  Tensor sum_;
  int64_t examples_ = 0;
};

}  // namespace mixtape::train
