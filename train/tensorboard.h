#pragma once
// TensorBoard: writes scalars over steps to event files, which are records of protobuf messages.
//
//   learner.add(std::make_shared<TensorBoard>("runs/a"));      $ tensorboard --logdir runs

#include "io/file.h"
#include "io/protobuf.h"
#include "train/history.h"

namespace mixtape::train {

class EventFile {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;

  // Creates a file in the folder under a name that TensorBoard finds. TensorBoard then ignores
  // values of earlier files for first_step and later.
  explicit EventFile(const std::string& folder, int64_t first_step = 0);
  // Values are kept as f32. Throws Error if a tag is not UTF-8.
  void write(int64_t step, const Scalars& values);

 private:
  void event(const io::ProtoMessage& fields);

  io::AppendFile file_;
};

// Writes loss, lr and scale for each step, and train_loss, valid_loss and the metrics for each
// epoch.
class TensorBoard : public HistoryWriter {
 public:
  // Writes to files in that folder, which training creates.
  explicit TensorBoard(const std::string& folder) : folder_(io::absolute(folder)) {}

 private:
  void open() override { file_.emplace(folder_); }
  void write_step(const Learner& learner, const StepRow& row) override;
  void write_epoch(const Learner& learner, const EpochRow& row) override;

  const std::string folder_;
  std::optional<EventFile> file_;
};

}  // namespace mixtape::train
