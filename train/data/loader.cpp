// Batch i of an epoch is a pure function of options, epoch and i, so any thread may make it.
// Threads claim batch numbers in order, and the loop takes batches from a ring, also in order.

#include "train/data/loader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "core/check.h"
#include "core/format.h"
#include "core/philox.h"
#include "core/thread_state.h"
#include "kernels/cpu/loops/parallel.h"
#include "optim/state_reader.h"
#include "train/data/stack.h"

namespace mixtape::train {
namespace {

using Order = std::vector<int64_t>;

void check_part(const dist::Part& part) {
  check(part.ranks > 0 && 0 <= part.rank && part.rank < part.ranks && part.chunks > 0 &&
            part.chunks % part.ranks == 0,
        "part must be of a rank below the number of ranks, which divides chunks, got rank {} of {} "
        "with {} chunks",
        part.rank, part.ranks, part.chunks);
}

}  // namespace

// Makes batches; immutable and shared by all threads.
struct DataLoader::BatchMaker {
  AnyDataset data;
  DataLoaderOptions options;
  int64_t per_epoch;    // examples
  int64_t at_once = 1;  // batches that a loop joins to one

  BatchMaker(AnyDataset d, const DataLoaderOptions& o) : data(std::move(d)), options(o) {
    check(data->size() >= 0, "{}: size() must be >= 0, got {}", data->name(), data->size());
    per_epoch = options.sampler ? int64_t(options.sampler(0).size()) : data->size();
  }

  int64_t batches() const {
    const int64_t n = per_epoch, b = options.batch_size;
    const int64_t all = n / b + (!options.drop_last && n % b > 0);
    return options.max_batches > 0 ? std::min(all, options.max_batches) : all;
  }
  Order order(uint64_t epoch) const {
    if (options.sampler) return sampled(epoch);
    if (options.shuffle) return shuffled(per_epoch, options.seed, epoch);
    Order order(static_cast<size_t>(per_epoch));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  Batch make(const Order& order, uint64_t epoch, int64_t i) const {
    const int64_t first = i * options.batch_size;
    const int64_t end = std::min(batches() * options.batch_size, int64_t(order.size()));
    const int64_t n = std::min(at_once * options.batch_size, end - first);
    try {
      return make_part(std::span(order).subspan(size_t(first), size_t(n)), epoch, first);
    } catch (const std::exception& e) {
      throw Error(fmt::format("{}: epoch {}, batch {}: {}", data->name(), epoch, i, e.what()));
    }
  }

 private:
  Order sampled(uint64_t epoch) const {
    Order order = options.sampler(epoch);
    check(int64_t(order.size()) == per_epoch,
          "{}: the sampler returned {} examples for epoch {}, but {} for epoch 0", data->name(),
          order.size(), epoch, per_epoch);
    for (const int64_t i : order)
      check(0 <= i && i < data->size(), "{}: the sampler returned example {}, out of range for {}",
            data->name(), i, data->size());
    return order;
  }
  // Makes this rank's part of the batch, which may be empty. It is made chunk by chunk, so that a
  // chunk has the same random numbers on whichever rank it is made.
  Batch make_part(std::span<const int64_t> examples, uint64_t epoch, int64_t position) const {
    const dist::Part& part = options.part;
    const int64_t n = int64_t(examples.size());
    std::vector<Batch> chunks;
    for (int64_t i = part.first_chunk(); i < part.first_chunk() + part.own_chunks(); ++i) {
      const int64_t begin = part.begin(i, n), end = part.begin(i + 1, n);
      if (begin < end)
        chunks.push_back(
            make(examples.subspan(size_t(begin), size_t(end - begin)), epoch, position + begin));
    }
    Batch all;
    if (!chunks.empty()) all = chunks.size() == 1 ? chunks[0] : joined(chunks);
    all.of_step = n;
    return all;
  }
  static Batch joined(const std::vector<Batch>& chunks) {
    const NoPolicy as_made;
    const auto join = [&](const auto& get) {
      std::vector<Tensor> parts;
      for (const Batch& chunk : chunks) parts.push_back(get(chunk));
      return parts[0] ? cat(parts, 0) : Tensor();
    };
    Batch all{join([](const Batch& b) { return b.x; }), join([](const Batch& b) { return b.y; })};
    for (size_t i = 0; i < chunks[0].more.size(); ++i)
      all.more.push_back(join([&](const Batch& b) { return b.more.at(i); }));
    return all;
  }
  // Makes the batch of these examples, the first of which is at `position` of the epoch.
  Batch make(std::span<const int64_t> examples, uint64_t epoch, int64_t position) const {
    // The result must not depend on the thread's regions and random numbers.
    const NoGrad off;
    const NoPolicy as_called;
    const DefaultDevice on_cpu(Device::cpu());
    Seed seed(Philox::seed_for(Philox::Purpose::dataset, options.seed, epoch));
    (*seed).set_offset(offset_at(position));
    Batch batch = data->gather(examples);
    if (options.transform) {
      std::vector<RowContext> rows;
      rows.reserve(examples.size());
      for (const int64_t example : examples) {
        rows.push_back({example, RandomGenerator(Philox::seed_for(Philox::Purpose::transforms,
                                                                  options.seed, epoch))});
        rows.back().random.set_offset(offset_at(position++));
      }
      batch.x = options.transform(batch.x, rows);
    }
    const auto finished = [&](const Tensor& t) {
      check(t && t.rank() > 0 && t.size(0) == int64_t(examples.size()), "{} examples became {}",
            examples.size(), t ? "a tensor of shape " + t.shape().to_string() : "no tensor");
      return t.copied_to(options.device);
    };
    batch.x = finished(batch.x);
    if (batch.y) batch.y = finished(batch.y);
    for (Tensor& t : batch.more) t = finished(t);
    return batch;
  }
};

// One loop over an epoch.
class DataLoader::EpochLoop : NoCopy {
 public:
  EpochLoop(std::shared_ptr<const BatchMaker> maker, uint64_t epoch, int64_t first)
      : maker_(std::move(maker)),
        epoch_(epoch),
        order_(maker_->order(epoch)),
        batches_(maker_->batches()),
        at_once_(maker_->at_once),
        taken_(first),
        given_(first) {}
  ~EpochLoop() {
    if (in_forked_child()) {
      forget_threads();
      return;
    }
    {
      const std::lock_guard lock(ahead_->mutex);
      stop_ = true;
    }
    ahead_->room.notify_all();
    for (std::thread& t : ahead_->threads) t.join();
  }

  // Starts the workers, or as many as the system allows; without any, the loop makes its batches
  // itself. (Not in the constructor, since the destructor must join those that run.)
  void start() {
    const DataLoaderOptions& o = maker_->options;
    const int64_t workers = std::min<int64_t>(o.workers, batches_ - given_);
    ahead_->ring.resize(static_cast<size_t>(workers * o.prefetch));
    try {
      for (int64_t i = 0; i < workers; ++i) ahead_->threads.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
    }
  }

  Batch next() {
    const int64_t i = given_;
    if (ahead_->threads.empty() || in_forked_child()) {
      given_ += at_once_;
      return maker_->make(order_, epoch_, i);
    }
    std::unique_lock lock(ahead_->mutex);
    Slot& slot = slot_of(i);
    ahead_->ready.wait(lock, [&] { return slot.done; });
    const Slot taken = std::exchange(slot, {});
    given_ += at_once_;
    lock.unlock();
    ahead_->room.notify_one();
    if (taken.error) std::rethrow_exception(taken.error);
    return taken.batch;
  }

 private:
  struct Slot {
    bool done = false;
    Batch batch = {};
    std::exception_ptr error = {};
  };
  // The state shared by the loop and its threads.
  struct Ahead {
    std::mutex mutex;  // also for taken_, given_ and stop_
    std::condition_variable room, ready;
    std::vector<Slot> ring;
    std::vector<std::thread> threads;
  };
  Slot& slot_of(int64_t batch) {
    return ahead_->ring[static_cast<size_t>(batch / at_once_) % ahead_->ring.size()];
  }

  // True in a forked child, which lacks the threads, and must not even destroy what they wait for.
  bool in_forked_child() const { return process_ != getpid(); }
  void forget_threads() {
    static auto* const of_parents = new std::vector<std::unique_ptr<Ahead>>;
    of_parents->push_back(std::move(ahead_));
  }

  void work() {
    // Kernels run on this thread alone, since the pool is for the training.
    const kernels::cpu::ThreadLimit one_thread(1);
    std::unique_lock lock(ahead_->mutex);
    for (;;) {
      const auto room = [&] { return taken_ < given_ + int64_t(ahead_->ring.size()) * at_once_; };
      ahead_->room.wait(lock, [&] { return stop_ || taken_ >= batches_ || room(); });
      if (stop_ || taken_ >= batches_) return;
      const int64_t i = taken_;
      taken_ += at_once_;
      lock.unlock();
      Slot made{.done = true};
      try {
        made.batch = maker_->make(order_, epoch_, i);
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      slot_of(i) = std::move(made);
      ahead_->ready.notify_one();
    }
  }

  const std::shared_ptr<const BatchMaker> maker_;
  const uint64_t epoch_;
  const Order order_;
  const int64_t batches_, at_once_;
  const pid_t process_ = getpid();
  std::unique_ptr<Ahead> ahead_ = std::make_unique<Ahead>();
  int64_t taken_, given_;  // batches claimed by threads, and given to the loop
  bool stop_ = false;
};

DataLoader::DataLoader(AnyDataset data, const DataLoaderOptions& options)
    : maker_(std::make_shared<BatchMaker>(std::move(data), options)) {
  check(options.batch_size > 0, "batch_size must be > 0, got {}", options.batch_size);
  check(options.max_batches >= 0, "max_batches must be >= 0, got {}", options.max_batches);
  check(0 <= options.workers && options.workers <= 256, "workers must be from 0 to 256, got {}",
        options.workers);
  check(0 < options.prefetch && options.prefetch <= 1024, "prefetch must be from 1 to 1024, got {}",
        options.prefetch);
  check(!(options.shuffle && options.sampler),
        "shuffle has no effect with a sampler: set only one");
  check_part(options.part);
  options.device.require();
}
DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

const DataLoader::BatchMaker& DataLoader::batch_maker() const {
  check(maker_ != nullptr, "this loader was moved from");
  return *maker_;
}

int64_t DataLoader::examples() const { return batch_maker().data->size(); }
int64_t DataLoader::batches() const { return batch_maker().batches(); }
int64_t DataLoader::batch_size() const { return batch_maker().options.batch_size; }
const DataLoaderOptions& DataLoader::options() const { return batch_maker().options; }

Batch DataLoader::batch(int64_t i) const {
  check(i >= 0 && i < batches(), "batch {} is out of range for {} batches", i, batches());
  return batch_maker().make(batch_maker().order(epoch_), epoch_, i);
}

void DataLoader::stop() {
  epoch_loop_.reset();
  current_ = {};
  begun_ = false;
  ++loop_;
}

void DataLoader::set_epoch(uint64_t epoch) {
  // Larger ones would not be stored exactly.
  check(epoch < uint64_t(1) << 53, "epoch must be < 2^53, got {}", epoch);
  stop();
  epoch_ = epoch;
  position_ = 0;
}

void DataLoader::skip(int64_t batches) {
  check(0 <= batches && batches <= this->batches(), "cannot skip {} of {} batches", batches,
        this->batches());
  stop();
  position_ = batches;
}

StateDict DataLoader::state_dict() const {
  return {{"epoch", from({double(epoch_)}, {}, i64)},
          {"batch", from({double(position_)}, {}, i64)}};
}

void DataLoader::load_state_dict(const StateDict& dict) {
  optim::StateReader reader(dict);
  const int64_t epoch = reader.count("epoch"), batch = reader.count("batch", batches());
  reader.check_all_read();
  set_epoch(uint64_t(epoch));
  skip(batch);
}

DataLoader::Shared DataLoader::share(const dist::Part& part, int64_t batches) {
  check_part(part);
  check(batches > 0, "batches must be > 0, got {}", batches);
  return Shared(*this, part, batches);
}

DataLoader::Iterator DataLoader::begin() { return begin(options().part, 1); }

DataLoader::Iterator DataLoader::begin(const dist::Part& part, int64_t at_once) {
  auto maker = std::make_shared<BatchMaker>(batch_maker());
  maker->options.part = part;
  maker->at_once = at_once_ = std::min(at_once, std::max<int64_t>(maker->batches(), 1));
  if (begun_) set_epoch(epoch_ + 1);  // the last loop was left early
  stop();
  begun_ = true;
  epoch_loop_ = std::make_unique<EpochLoop>(std::move(maker), epoch_, position_);
  epoch_loop_->start();
  return Iterator(this);
}

bool DataLoader::advance(uint64_t loop) {
  check(loop == loop_ && epoch_loop_,
        "this loop over {} has ended: another one over the same loader began, or its epoch was set "
        "(two at once need two loaders)",
        batch_maker().data->name());
  current_ = {};  // freed before the next one is made
  if (position_ == batches()) {
    set_epoch(epoch_ + 1);
    return false;
  }
  try {
    current_ = epoch_loop_->next();
  } catch (...) {
    epoch_loop_.reset();
    throw;
  }
  position_ = std::min(position_ + at_once_, batches());
  return true;
}

}  // namespace mixtape::train
