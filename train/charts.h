#pragma once
// Charts of training runs: one per quantity in the metrics.jsonl of one or several runs, and a
// confusion matrix.
//
// A line of metrics.jsonl describes one step or one epoch. "step" counts batches since the training
// began; every other number is the value of a quantity with that name:
//
//   {"step":19,"loss":0.71,"lr":0.003,"scale":65536,"skipped":false}
//   {"step":20,"epoch":0,"train_loss":0.8,"valid_loss":0.7,"accuracy":0.81,"seconds":1.2}
//
// Runs that share a file have different "mode" strings.

#include <filesystem>

#include "io/jsonl.h"
#include "io/svg.h"
#include "train/history.h"
#include "train/run_folder.h"

namespace mixtape::train {

// The line that JsonlLogger writes for a row.
io::JsonFields log_line(const Learner& learner, const StepRow& row);
io::JsonFields log_line(const Learner& learner, const EpochRow& row);

struct RunLog {  // the curves of one run
  std::string name;
  std::vector<io::Series> quantities;        // each over its steps
  std::vector<double> skipped_x, skipped_y;  // skipped steps, and the loss scale there
};

// The runs in a folder's metrics.jsonl: one with the given name, or one per mode. Throws Error as
// io::read_json_lines() does, or if a line has no step.
std::vector<RunLog> read_run(const std::string& folder, const std::string& name = {});

// Thins the lines of a chart: the points in each stretch of x become one, their mean, or a gap if
// one is not finite. All lines have the same stretches, about most_points for the longest. (With
// the same number of points for each, longer runs would look smoother than shorter ones.)
void thin(io::Chart& chart, size_t most_points);

// A chart per quantity, with its file name (loss.svg, lr.svg, ...). For one run, loss.svg includes
// the validation loss; for several, there is a curve per run (a loss scale only for runs that have
// one). Throws Error if two runs have the same name.
std::vector<std::pair<std::string, io::Chart>> charts(const std::vector<RunLog>& runs);
// Writes the charts and returns the file names.
std::vector<std::string> save_charts(const std::vector<RunLog>& runs, const RunFolder& folder);

// The chart of a confusion matrix: counts [classes, classes], a row per label; by default names are
// 0, 1, ...
io::HeatMap confusion_chart(const Tensor& counts, const std::vector<std::string>& names = {});

// Draws charts of the learner's history when a fit ends; given class names, also confusion.svg,
// which takes one more validation (or warns, if the scores are not of as many classes). A training
// that does not continue a run removes older charts.
class Charts : public Callback {
 public:
  explicit Charts(std::string folder, std::vector<std::string> classes = {});  // makes the folder
  int order() const override { return observer_order + 20; }      // after ModelCheckpoint has saved
  bool everywhere() const override { return !classes_.empty(); }  // it validates
  void on_train_begin(Learner& learner) override;
  void on_checkpoint(Learner& learner) override;
  void on_train_end(Learner& learner) override;

 private:
  const RunFolder folder_;
  std::vector<std::pair<std::string, std::filesystem::file_time_type>> earlier_;
  const std::vector<std::string> classes_;
};

}  // namespace mixtape::train
