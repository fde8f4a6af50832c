#pragma once
// Pictures of trainings: of what the metrics.jsonl of a run, or of several, says about each
// quantity, and of a confusion matrix.
//
// A line of metrics.jsonl is about one step or one epoch. "step" counts batches since the training
// began; every other number is a quantity's value there, and the quantities are known by no list:
//
//   {"step":19,"loss":0.71,"lr":0.003,"scale":65536,"skipped":false}
//   {"step":20,"epoch":0,"train_loss":0.8,"valid_loss":0.7,"accuracy":0.81,"seconds":1.2}
//
// Trainings that share a file are told apart by a text, "mode".

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/jsonl.h"
#include "io/svg.h"
#include "train/callback.h"
#include "train/history.h"
#include "train/run_folder.h"

namespace mixtape::train {

// What JsonlLogger writes of a row.
io::JsonFields log_line(const Learner& l, const StepRow& row);
io::JsonFields log_line(const Learner& l, const EpochRow& row);

struct RunLog {
  std::string name;
  std::vector<io::Series> quantities;        // each over its steps
  std::vector<double> skipped_x, skipped_y;  // skipped steps, and the loss scale there
};

// The trainings in a folder's metrics.jsonl: one, with the name given, or one per mode. Throws
// Error as io::read_json_lines does, or where a line has no step.
std::vector<RunLog> read_run(const std::string& folder, const std::string& name = {});

// A curve of at most so many points, each the mean of as many neighbours (a power of two) as that
// takes. Where a value is not finite, its point is a gap.
io::Series thinned(const io::Series& s, size_t most_points);

// A chart per quantity, with the name of its file: loss.svg, lr.svg, scale.svg, accuracy.svg, ...
// Of one run, loss.svg has the validation's, too; of several, each chart has a curve per run.
// Throws Error if two runs have one name.
std::vector<std::pair<std::string, io::Chart>> charts(const std::vector<RunLog>& runs);
// Writes them, and returns the files' names.
std::vector<std::string> save_charts(const std::vector<RunLog>& runs, const RunFolder& folder);

// Of counts [classes, classes] as confusion_matrix gives them, a row per label. Without names,
// classes are numbered.
io::HeatMap confusion_chart(const Tensor& counts, const std::vector<std::string>& names = {});

// Draws the charts of the learner's history whenever a fit ends, and with names of classes
// confusion.svg, for which it goes through the validation data once more. Those of an earlier run
// are removed when a training begins that does not go on from it.
class Charts : public Callback {
 public:
  explicit Charts(std::string folder, std::vector<std::string> classes = {});
  int order() const override { return looks_on + 20; }  // once the weights are safe
  void on_train_begin(Learner& learner) override;
  void on_checkpoint(Learner& learner) override;
  void on_train_end(Learner& learner) override;

 private:
  const RunFolder folder_;
  std::vector<std::pair<std::string, std::filesystem::file_time_type>>
      earlier_;  // files there were
  const std::vector<std::string> classes_;
};

}  // namespace mixtape::train
