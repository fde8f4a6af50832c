#include "train/metric.h"

#include <cmath>
#include <limits>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape::train {
namespace {

// Scores [..., classes] of labels [...]. As for cross_entropy the classes are dimension 1, else the
// last.
Tensor scores(std::string_view metric, const Tensor& output, const Tensor& target) {
  for (const int dim : {output.rank() > 1 ? 1 : 0, output.rank() - 1}) {
    if (output.rank() == 0) break;
    Dims order;
    Shape rest;
    for (int d = 0; d < output.rank(); ++d)
      if (d != dim) order.push_back(d), rest.push_back(output.shape()[d]);
    order.push_back(dim);
    if (rest == target.shape()) return permute(output, order);
  }
  fail("{}: scores of shape {} for labels of shape {}", metric, output.shape(), target.shape());
}

double mean_of(const Tensor& total, int64_t) { return total.at(0) / total.at(1); }

// [sum, how many].
Tensor counted(const Tensor& sum, int64_t n) {
  return stack({sum.to(f64), full({}, double(n), f64, sum.device())});
}

Tensor squared_error(const Tensor& output, const Tensor& target) {
  check(output.shape() == target.shape(), "mse: output of shape {} for targets of shape {}",
        output.shape(), target.shape());
  return counted(sum(square(output.to(f64) - target.to(f64))), output.numel());
}

}  // namespace

const Metric accuracy{"accuracy",
                      [](const Tensor& output, const Tensor& target) {
                        const Tensor each = scores("accuracy", output, target);
                        return counted(sum(eq(argmax(each, -1), target)), target.numel());
                      },
                      mean_of};

Metric top_k(int64_t k) {
  check(k >= 1, "top_k: k is {}, not at least 1", k);
  const auto statistic = [k](const Tensor& output, const Tensor& target) {
    const Tensor each = scores("top_k", output, target);
    check(k <= each.size(-1), "top_k: the {} highest of {} classes", k, each.size(-1));
    return counted(sum(eq(topk(each, k, -1).indices, unsqueeze(target, -1))), target.numel());
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
  const Tensor each = scores("confusion_matrix", output, target);
  check(each.size(-1) == classes, "confusion_matrix: scores of {} classes, not {}", each.size(-1),
        classes);
  const Tensor predicted = one_hot(flatten(argmax(each, -1)), classes);
  return matmul(one_hot(flatten(target), classes).t(), predicted).to(i64);
}

void Total::add(const Tensor& output, const Tensor& target) {
  const NoGrad off;
  const Tensor batch = metric_.statistic(output.detach(), target).to(f64);
  sum_ = sum_ ? sum_ + batch : batch;
  examples_ += target.rank() > 0 ? target.size(0) : 1;
}

double Total::value() const {
  if (!sum_) return std::numeric_limits<double>::quiet_NaN();
  return metric_.value(sum_.to(Device::cpu()), examples_);
}

}  // namespace mixtape::train
