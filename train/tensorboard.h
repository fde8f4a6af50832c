#pragma once
// TensorBoard: scalars over steps in its event files, which are records of protobuf messages.
//
//   learner.add(std::make_shared<TensorBoard>("runs/a"));      $ tensorboard --logdir runs

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/file.h"
#include "train/callback.h"
#include "train/history.h"

namespace mixtape::train {

class EventFile {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;

  // A new file in the folder, named so that TensorBoard finds it. Of earlier files in that folder,
  // what they say of first_step and after is void.
  explicit EventFile(const std::string& folder, int64_t first_step = 0);
  // Values are kept as f32. Throws Error if a tag is not UTF-8.
  void write(int64_t step, const Scalars& values);

 private:
  void event(const std::string& fields);

  io::AppendFile file_;
};

// "loss", "lr" and "scale" of each step, and of each epoch "train_loss", "valid_loss" and the
// metrics, soon after they are known.
class TensorBoard : public Callback {
 public:
  explicit TensorBoard(std::string folder) : folder_(std::move(folder)) {}
  int order() const override { return looks_on; }
  void on_train_begin(Learner& learner) override;
  void on_batch_end(Learner& learner) override;
  void on_epoch_end(Learner& learner) override { write(learner); }
  void on_train_end(Learner& learner) override;  // after an exception some are missing

 private:
  void write(Learner& learner);

  const std::string folder_;
  std::optional<EventFile> file_;
  HistoryReader reader_;
};

}  // namespace mixtape::train
