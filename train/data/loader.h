#pragma once
// DataLoader: makes batches from a data set, ahead of time in threads. Order and content depend
// only on the seed and the epoch, not on the number of threads.

#include <iterator>

#include "dist/part.h"
#include "optim/state.h"
#include "train/data/transforms.h"

namespace mixtape::train {

struct DataLoaderOptions {
  int64_t batch_size = 64;
  bool shuffle = false;
  Sampler sampler = {};           // the examples of an epoch; default: all, in order
  bool drop_last = false;         // omits a smaller last batch
  int64_t max_batches = 0;        // limit per epoch (the next one is shuffled anew); 0: no limit
  int workers = 0;                // threads that make batches; 0: the loop's own thread does
  int prefetch = 2;               // batches per worker ahead of the loop
  uint64_t seed = 0;              // of the order and of random transforms
  Device device = Device::cpu();  // of the batches; copies are asynchronous
  Transform transform = {};       // of x, on the CPU
  // This rank's part of each batch: world.part(), or parallel.part(). batch_size is the whole
  // step's, and so are order, epochs and batches(): no example is left out or seen twice.
  dist::Part part = {};
};

//   for (const auto& [x, y] : loader) ...      // one epoch; the next loop is the next epoch
//
// A loop may be left early. An exception from the data set or a transform leaves the loop as an
// Error that names the data set, the epoch, the batch and, if known, the example.
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
  int64_t batch_size() const;                // of the whole step, not of this rank alone
  const DataLoaderOptions& options() const;  // as given

  // The epoch of the current loop (running or left early), else of the next one.
  uint64_t epoch() const { return epoch_; }
  int64_t position() const { return position_; }  // batches of it already delivered
  void set_epoch(uint64_t epoch);                 // for the next loop
  void skip(int64_t batches);  // the next loop runs this epoch without its first batches
  // "epoch" and "batch". Saved in a loop's body and loaded, the next loop continues with the batch
  // that follows, bit for bit. Throws Error if that batch does not exist.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

  Batch batch(int64_t i) const;  // makes batch i of epoch() for inspection

  // The position in a loop, for range-based for.
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
  Iterator begin();  // starts an epoch; ends a running loop
  std::default_sentinel_t end() const { return {}; }

  // The same loop, in which a rank has another part than the options', of several batches at once:
  //   for (const Batch& batch : loader.share(part)) ...
  // Positions count batches as ever, so that a saved state does not know who shared them.
  class Shared {
   public:
    Iterator begin() const { return loader_.begin(part_, batches_); }
    std::default_sentinel_t end() const { return {}; }

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
  bool advance(uint64_t loop);            // to the next batch; false after the last
  void stop();

  std::shared_ptr<const BatchMaker> maker_;
  std::unique_ptr<EpochLoop> epoch_loop_;
  Batch current_;
  uint64_t epoch_ = 0, loop_ = 0;  // loop_ detects iterators of earlier loops
  int64_t position_ = 0, at_once_ = 1;
  bool begun_ = false;  // a loop over this epoch has begun
};

}  // namespace mixtape::train
