#pragma once
// Metric: a number about predictions. Each batch gives a statistic, which is summed on the device;
// the number is made of the sum when somebody looks.

#include <functional>
#include <string>

#include "core/tensor.h"

namespace mixtape::train {

struct Metric {
  std::string name;
  // Of one batch, any tensor whose sum over batches says all. Called without recording.
  std::function<Tensor(const Tensor& output, const Tensor& target)> statistic;
  // Of the sum (f64, on the CPU) over so many examples.
  std::function<double(const Tensor& total, int64_t examples)> value;
  bool higher_is_better = true;
};

// Of scores [n, classes, ...] for labels [n, ...], as for cross_entropy, or [..., classes] where
// only that fits: the part where the highest score is the label's, or where the label's is among
// the k highest.
extern const Metric accuracy;
Metric top_k(int64_t k);
// The mean over classes of 2 hits / (predicted + present); a class in neither counts as 0.
Metric f1(int64_t classes);
// Mean of (output - target)^2 over all elements, and its root.
extern const Metric mse, rmse;

// How many of each label (row) were taken for each class (column): i64 [classes, classes].
Tensor confusion_matrix(const Tensor& output, const Tensor& target, int64_t classes);

// Sums one metric over the batches of an epoch, without waiting for the device.
class Total {
 public:
  explicit Total(Metric metric) : metric_(std::move(metric)) {}

  void add(const Tensor& output, const Tensor& target);
  const Tensor& sum() const { return sum_; }
  double value() const;  // waits for the device; NaN before the first batch

 private:
  Metric metric_;
  Tensor sum_;
  int64_t examples_ = 0;
};

}  // namespace mixtape::train
