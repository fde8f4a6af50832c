#include "train/metric.h"

#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape::train {
namespace {

// The class dimension of the scores: 1, as for cross_entropy(), or the last.
int class_dim(std::string_view metric, const Tensor& output, const Tensor& target) {
  for (const int dim : {output.rank() > 1 ? 1 : 0, output.rank() - 1})
    if (output.rank() > 0 && internal::without(output.shape(), dim) == target.shape()) return dim;
  fail(
      "{}: scores of shape {} for labels of shape {} (labels name their class, and have no "
      "dimension of classes)",
      metric, output.shape(), target.shape());
}

// The labels, in the dtype of argmax().
Tensor labels(const Tensor& target) {
  check(is_integer(target.dtype()), "labels must be integers, got {}", target.dtype());
  return target.to(i64);
}

double mean_of(const Tensor& total, int64_t) { return total.at(0) / total.at(1); }

// [sum, count].
Tensor sum_and_count(const Tensor& sum, int64_t n) {
  return stack({sum.to(f64), full({}, double(n), f64, sum.device())});
}

Tensor squared_error(const Tensor& output, const Tensor& target) {
  check(output.shape() == target.shape(), "mse: shapes must be equal, got {} and {}",
        output.shape(), target.shape());
  return sum_and_count(sum(square(output.to(f64) - target.to(f64))), output.numel());
}

}  // namespace

const Metric accuracy{"accuracy",
                      [](const Tensor& output, const Tensor& target) {
                        const int dim = class_dim("accuracy", output, target);
                        return sum_and_count(sum(eq(argmax(output, dim), labels(target))),
                                             target.numel());
                      },
                      mean_of};

Metric top_k(int64_t k) {
  check(k >= 1, "top_k: k must be >= 1, got {}", k);
  const auto statistic = [k](const Tensor& output, const Tensor& target) {
    const int dim = class_dim("top_k", output, target);
    check(k <= output.size(dim), "top_k: k must be at most {}, got {}", output.size(dim), k);
    return sum_and_count(sum(eq(topk(output, k, dim).indices, unsqueeze(labels(target), dim))),
                         target.numel());
  };
  return {"top_" + std::to_string(k), statistic, mean_of};
}

Metric f1(int64_t classes) {
  const auto statistic = [classes](const Tensor& output, const Tensor& target) {
    return confusion_matrix(output, target, classes);
  };
  const auto value = [classes](const Tensor& total, int64_t) {
    double all = 0;
    for (int64_t c = 0; c < classes; ++c) {
      double predicted = 0, present = 0;
      for (int64_t i = 0; i < classes; ++i) {
        predicted += total.at(i * classes + c);
        present += total.at(c * classes + i);
      }
      const double hits = total.at(c * classes + c);
      all += hits > 0 ? 2 * hits / (predicted + present) : 0;
    }
    return all / double(classes);
  };
  return {"f1", statistic, value};
}

const Metric mse{"mse", squared_error, mean_of, false};
const Metric rmse{"rmse", squared_error,
                  [](const Tensor& total, int64_t n) { return std::sqrt(mean_of(total, n)); },
                  false};

Tensor confusion_matrix(const Tensor& output, const Tensor& target, int64_t classes) {
  const int dim = class_dim("confusion_matrix", output, target);
  check(output.size(dim) == classes, "confusion_matrix: scores of {} classes, not {}",
        output.size(dim), classes);
  // In f64, which autocast leaves alone, since bf16 counts only to 256.
  const Tensor predicted = one_hot(flatten(argmax(output, dim)), classes, f64);
  return matmul(one_hot(flatten(target), classes, f64).t(), predicted).to(i64);
}

void Total::add(const Tensor& output, const Tensor& target) {
  const NoGrad off;
  const Tensor batch = metric_.statistic(output.detach(), target).to(f64);
  sum_ = sum_ ? sum_ + batch : batch;
  examples_ += target.rank() > 0 ? target.size(0) : 1;
}

double Total::value() const {
  if (!sum_) return NAN;
  return metric_.value(sum_.to(Device::cpu()), examples_);
}

}  // namespace mixtape::train
