#pragma once
// DataLoader: makes batches from a data set, ahead of time and in threads. Order and content depend
// only on the seed and the epoch, not on the number of threads.

#include <iterator>

#include "dist/part.h"
#include "optim/state.h"
#include "train/data/transforms.h"

namespace mixtape::train {

struct DataLoaderOptions {
  int64_t batch_size = 64;
  bool shuffle = false;
  Sampler sampler = {};           // chooses the examples of an epoch; by default all, in order
  bool drop_last = false;         // leaves out a smaller last batch
  int64_t max_batches = 0;        // limit per epoch (each epoch is shuffled anew); 0: no limit
  int workers = 0;                // threads that make batches; 0: the loop's own thread does
  int prefetch = 2;               // batches that each worker makes ahead of the loop
  uint64_t seed = 0;              // of the order and of random transforms
  Device device = Device::cpu();  // of the batches; copies are asynchronous
  Transform transform = {};       // of x, on the CPU
  // This rank's part of each batch: world.part() or parallel.part(). batch_size, order, epochs and
  // batches() are those of the whole step, so no example is left out or seen twice.
  dist::Part part = {};
};

//   for (const auto& [x, y] : loader) ...      // one epoch; the next loop is the next epoch
//
// A loop may be left early. An exception of the data set or a transform leaves the loop as an Error
// that names the data set, the epoch, the batch and, if known, the example.
class DataLoader {
  struct BatchMaker;
  class EpochLoop;

 public:
  // Throws Error if an option is out of range.
  DataLoader(AnyDataset data, const DataLoaderOptions& options = {});
  ~DataLoader();  // waits for the workers
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  int64_t examples() const;                  // of the data set
  int64_t batches() const;                   // in an epoch
  int64_t batch_size() const;                // of the whole step, over all ranks
  const DataLoaderOptions& options() const;  // as given

  // The epoch of the current loop (running or left early), or else of the next one.
  uint64_t epoch() const { return epoch_; }
  int64_t position() const { return position_; }  // batches of epoch() already delivered
  void set_epoch(uint64_t epoch);  // for the next loop; throws Error unless epoch < 2^53
  void skip(int64_t batches);      // makes the next loop skip the epoch's first batches
  // "epoch" and "batch". After loading a state saved in a loop's body, the next loop continues with
  // the following batch, bit for bit. Loading throws Error if that batch does not exist.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

  Batch batch(int64_t i) const;  // makes batch i of epoch() for inspection

  // The position in a loop, for range-based for.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    // At the first batch of the loop that has just begun.
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
  Iterator begin();                                   // starts an epoch, and ends a running loop
  std::default_sentinel_t end() const { return {}; }  // after the epoch's last batch

  // The same loop with another part for this rank than the options', of several batches at once:
  //   for (const Batch& batch : loader.share(part)) ...
  // Positions still count batches, so a saved state does not depend on how they were shared.
  class Shared {
   public:
    Iterator begin() const { return loader_.begin(part_, batches_); }  // as DataLoader::begin()
    std::default_sentinel_t end() const { return {}; }                 // as DataLoader::end()

   private:
    friend DataLoader;
    Shared(DataLoader& loader, const dist::Part& part, int64_t batches)
        : loader_(loader), part_(part), batches_(batches) {}
    DataLoader& loader_;
    const dist::Part part_;
    const int64_t batches_;
  };
  Shared share(const dist::Part& part, int64_t batches = 1);

 private:
  Iterator begin(const dist::Part& part, int64_t at_once);
  const BatchMaker& batch_maker() const;  // throws Error after a move
  bool advance(uint64_t loop);            // goes to the next batch; false after the last
  void stop();

  std::shared_ptr<const BatchMaker> maker_;
  std::unique_ptr<EpochLoop> epoch_loop_;
  Batch current_;
  uint64_t epoch_ = 0, loop_ = 0;  // loop_ detects iterators of earlier loops
  int64_t position_ = 0, at_once_ = 1;
  bool begun_ = false;  // true once a loop over this epoch has begun
};

}  // namespace mixtape::train
