#pragma once
// Throughput: measures how fast a fit trains, how long it waits for data, and how much of a
// device's arithmetic the model's multiplications use.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/dispatch.h"
#include "core/running_ops.h"
#include "io/jsonl.h"
#include "train/callback.h"

namespace mixtape::train {

// Counts the floating-point operations of this thread's products while alive: two for each
// multiplication of a linear layer, matrix product, dot(), convolution, attention (with all keys,
// even hidden ones) or recurrent layer. A training step has three times those of its forward pass.
class FlopCounter final : internal::Observer {
 public:
  [[nodiscard]] FlopCounter() = default;
  double flops() const { return flops_; }  // counted so far

 private:
  void before(const internal::Call& call) override;
  void after(const internal::Call& call, const Tensor& result) override;
  bool reads_values() const override { return false; }

  double flops_ = 0;
  internal::RunningOps running_;  // products, in which others may be
  const Observe watching_{*this};
};

struct ThroughputOptions {
  int64_t every = 1;  // batches per row
  double peak = 0;    // FLOP/s of the device in the dtype of its products; 0: unknown
};

// Records a row for each `every` batches of a fit and appends it to a file of JSON lines. Times are
// the host's: for a device, a single one is that of queueing, but over many batches they are the
// device's. Accumulated batches count one by one; those of a group of chunks count together.
class Throughput : public Callback {
 public:
  struct Row {                     // means over `every` batches
    int64_t step;                  // batches since the training began
    double seconds, data_seconds;  // per batch; how much of that was waiting for it
    double examples, tokens;       // per second; tokens are the input's integers, if it has any
    double flops;                  // per second, in products; three times the forward pass's
    std::optional<double> utilisation;  // flops / peak: model FLOP utilisation
  };
  // Without a path there is no file. Throws Error if `every` is below 1 or `peak` below 0.
  explicit Throughput(const std::string& path = {}, const ThroughputOptions& options = {});
  const std::vector<Row>& rows() const { return rows_; }  // of all fits

  int order() const override { return observer_order + 20; }  // after callbacks that save and log
  void on_train_begin(Learner&) override;
  // Validation and saving are not waiting for data.
  void on_epoch_begin(Learner&) override { last_ = Clock::now(); }
  void on_checkpoint(Learner&) override { last_ = Clock::now(); }
  void on_batch_begin(Learner&) override;
  void on_backward_begin(Learner&) override { count(); }
  void on_batch_end(Learner&) override;
  void on_train_end(Learner&) override { counter_.reset(); }

 private:
  using Clock = std::chrono::steady_clock;
  double lap();  // returns the seconds since last_, and sets last_ to now
  void count();  // counts the operations of a forward pass that has ended

  const std::string path_;
  const ThroughputOptions options_;
  std::optional<io::JsonLines> file_;
  std::vector<Row> rows_;
  std::optional<FlopCounter> counter_;
  Clock::time_point last_;  // the begin of the batch or, while waiting for one, the end of the last
  bool waits_ = true;
  int64_t batches_ = 0;  // this and all below: since the last row
  double seconds_ = 0, data_seconds_ = 0, examples_ = 0, tokens_ = 0, flops_ = 0;
};

}  // namespace mixtape::train
