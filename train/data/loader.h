#pragma once
// DataLoader: the examples of a data set as batches ready for a network, made ahead by threads.
// Order and content depend on the seed and the epoch alone, never on the number of threads.

#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "optim/state.h"
#include "train/data/dataset.h"
#include "train/data/transforms.h"

namespace mixtape::train {

struct DataLoaderOptions {
  int64_t batch_size = 64;
  bool shuffle = false;
  Sampler sampler = {};    // which examples make an epoch, in order; all of them if there is none
  bool drop_last = false;  // leave out a last batch that is smaller
  // An epoch ends after so many, if there are more: shuffled, the next has others. 0: all.
  int64_t max_batches = 0;
  int workers = 0;    // threads that make batches; with 0, the loop makes each when it asks
  int prefetch = 2;   // batches per worker that may be ahead of the loop
  uint64_t seed = 0;  // of the order and of random transforms
  Device device = Device::cpu();  // where batches arrive, without a wait
  Transform transform = {};       // of x, before it goes to the device
};

//   for (const auto& [x, y] : loader) ...      // one epoch; the next loop is the next epoch
//
// A loop may be left early. An exception from the data set or a transform comes out of the loop, as
// an Error that names the data set, the epoch, the batch and, where one is to blame, the example.
class DataLoader {
  struct Plan;
  class Run;

 public:
  // Throws Error if an option makes no sense.
  DataLoader(AnyDataset data, const DataLoaderOptions& options = {});
  ~DataLoader();  // waits for batches in the making
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  int64_t examples() const;  // of the data set
  int64_t batches() const;   // in an epoch
  int64_t batch_size() const;
  const DataLoaderOptions& options() const;

  // The epoch of the loop now running or left early, else of the next one.
  uint64_t epoch() const { return epoch_; }
  int64_t position() const { return position_; }  // how many of its batches the loop has got
  void set_epoch(uint64_t epoch);                 // the next loop's
  void skip(int64_t batches);  // the next loop is this epoch's, without its first batches
  // "epoch" and "batch": from a loop's body, what makes the next loop after loading go on with the
  // batch that follows, bit for bit. Throws Error if there is no such batch here.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

  Batch batch(int64_t i) const;  // of epoch(), made here and now: for a look at the data

  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    explicit Iterator(DataLoader* loader) : loader_(loader), loop_(loader->loop_) { ++*this; }
    const Batch& operator*() const { return loader_->current_; }
    Iterator& operator++() {
      more_ = loader_->advance(loop_);
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !more_; }

   private:
    DataLoader* loader_;
    uint64_t loop_;
    bool more_ = false;
  };
  Iterator begin();  // starts an epoch, and ends a loop that is still running
  std::default_sentinel_t end() const { return {}; }

 private:
  const Plan& plan() const;     // throws Error if another loader has it now
  bool advance(uint64_t loop);  // to the next batch; false after the last
  void stop();

  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Run> run_;
  Batch current_;
  uint64_t epoch_ = 0, loop_ = 0;  // loop_ counts loops, to tell an iterator of an earlier one
  int64_t position_ = 0;
  bool begun_ = false;  // the epoch is that of a loop, not of the next one
};

}  // namespace mixtape::train
