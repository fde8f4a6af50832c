// Batch i of an epoch is a pure function of the options, the epoch and i, so that any thread may
// make it. Threads take numbers in order and leave batches in a ring, from which the loop takes
// them in order.

#include "train/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "autograd/tape.h"
#include "core/check.h"
#include "core/format.h"
#include "core/philox.h"
#include "kernels/cpu/parallel.h"

namespace mixtape::train {
namespace {

// The seed of an epoch's random numbers, for one of several purposes. Generator leaves the last
// word of the counter 0.
enum class Purpose : uint32_t { transform = 1, dataset };
uint64_t epoch_seed(uint64_t seed, uint64_t epoch, Purpose purpose) {
  const Philox::Block b =
      Philox::bits({uint32_t(epoch), uint32_t(epoch >> 32), 0, uint32_t(purpose)}, uint32_t(seed),
                   uint32_t(seed >> 32));
  return uint64_t(b[0]) << 32 | b[1];
}
// Where an example's part of such a stream begins: it has four million numbers.
uint64_t example_offset(int64_t example) { return uint64_t(example) << 20; }

using Order = std::vector<int64_t>;

}  // namespace

// What makes a batch; never changes, and is shared by all threads.
struct DataLoader::Plan {
  AnyDataset data;
  DataLoaderOptions options;

  int64_t batches() const {
    const int64_t n = data->size(), b = options.batch_size;
    const int64_t all = n / b + (!options.drop_last && n % b > 0);
    return options.max_batches > 0 ? std::min(all, options.max_batches) : all;
  }
  Order order(uint64_t epoch) const {
    if (options.shuffle) return shuffled(data->size(), options.seed, epoch);
    Order order(static_cast<size_t>(data->size()));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  Batch make(const Order& order, uint64_t epoch, int64_t i) const {
    const int64_t first = i * options.batch_size;
    const int64_t n = std::min(options.batch_size, int64_t(order.size()) - first);
    try {
      return make(std::span(order).subspan(size_t(first), size_t(n)), epoch);
    } catch (const std::exception& e) {
      throw Error(fmt::format("{}: epoch {}, batch {}: {}", data->name(), epoch, i, e.what()));
    }
  }

 private:
  Batch make(std::span<const int64_t> examples, uint64_t epoch) const {
    const NoGrad off;
    const DefaultDevice here(Device::cpu());
    // What a data set draws must not depend on what this thread drew before.
    Seed seed(epoch_seed(options.seed, epoch, Purpose::dataset));
    (*seed).set_offset(example_offset(examples[0]));
    Batch batch = data->gather(examples);
    if (options.transform) {
      std::vector<Row> rows;
      rows.reserve(examples.size());
      for (const int64_t example : examples) {
        rows.push_back({example, Generator(epoch_seed(options.seed, epoch, Purpose::transform))});
        rows.back().random.set_offset(example_offset(example));
      }
      batch.x = options.transform(batch.x, rows);
    }
    for (const Tensor* t : {&batch.x, &batch.y})
      check(*t && t->rank() > 0 && t->size(0) == int64_t(examples.size()), "{} examples became {}",
            examples.size(), *t ? "a tensor of shape " + t->shape().to_string() : "no tensor");
    return {batch.x.copied_to(options.device), batch.y.copied_to(options.device)};
  }
};

// One loop over an epoch.
class DataLoader::Run {
 public:
  Run(std::shared_ptr<const Plan> plan, uint64_t epoch, int64_t first)
      : plan_(std::move(plan)),
        epoch_(epoch),
        order_(plan_->order(epoch)),
        batches_(plan_->batches()),
        taken_(first),
        given_(first) {}
  ~Run() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // (Not the constructor, which could not end threads if one cannot be started.)
  void start() {
    const DataLoaderOptions& o = plan_->options;
    const int64_t most = std::min<int64_t>(o.workers, batches_ - given_);
    ring_.resize(static_cast<size_t>(most * o.prefetch));
    for (int64_t i = 0; i < most; ++i) threads_.emplace_back([this] { work(); });
  }

  Batch next() {
    if (threads_.empty()) return plan_->make(order_, epoch_, given_++);
    std::unique_lock lock(mutex_);
    Slot& slot = ring_[static_cast<size_t>(given_) % ring_.size()];
    ready_.wait(lock, [&] { return slot.done; });
    const Slot taken = std::exchange(slot, {});
    ++given_;
    lock.unlock();
    room_.notify_one();
    if (taken.error) std::rethrow_exception(taken.error);
    return taken.batch;
  }

 private:
  struct Slot {
    bool done = false;
    Batch batch = {};
    std::exception_ptr error = {};
  };

  void work() {
    // A loader's threads are its own: the pool is for the network.
    const kernels::cpu::ThreadLimit alone(1);
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto room = [&] { return taken_ < given_ + int64_t(ring_.size()); };
      room_.wait(lock, [&] { return stop_ || taken_ == batches_ || room(); });
      if (stop_ || taken_ == batches_) return;
      const int64_t i = taken_++;
      lock.unlock();
      Slot made{.done = true};
      try {
        made.batch = plan_->make(order_, epoch_, i);
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      ring_[static_cast<size_t>(i) % ring_.size()] = std::move(made);
      ready_.notify_one();
    }
  }

  const std::shared_ptr<const Plan> plan_;
  const uint64_t epoch_;
  const Order order_;
  const int64_t batches_;
  std::mutex mutex_;  // of what follows
  std::condition_variable room_, ready_;
  std::vector<Slot> ring_;  // batch i is in slot i % size
  int64_t taken_, given_;   // batches begun by a thread, and taken by the loop
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

DataLoader::DataLoader(AnyDataset data, const DataLoaderOptions& options)
    : plan_(std::make_shared<Plan>(Plan{std::move(data), options})) {
  check(options.batch_size > 0, "batches of {}", options.batch_size);
  check(options.max_batches >= 0, "at most {} batches in an epoch", options.max_batches);
  check(0 <= options.workers && options.workers <= 256, "{} workers, not 0 to 256",
        options.workers);
  check(0 < options.prefetch && options.prefetch <= 1024, "{} batches ahead, not 1 to 1024",
        options.prefetch);
  options.device.require();
}
DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&&) noexcept = default;

int64_t DataLoader::examples() const { return plan_->data->size(); }
int64_t DataLoader::batches() const { return plan_->batches(); }
int64_t DataLoader::batch_size() const { return plan_->options.batch_size; }
const DataLoaderOptions& DataLoader::options() const { return plan_->options; }
const Dataset& DataLoader::dataset() const { return *plan_->data; }

Batch DataLoader::batch(int64_t i) const {
  check(i >= 0 && i < batches(), "batch {} of {}", i, batches());
  return plan_->make(plan_->order(epoch_), epoch_, i);
}

void DataLoader::stop() {
  run_.reset();
  current_ = {};
  begun_ = false;
  ++loop_;
}

void DataLoader::set_epoch(uint64_t epoch) {
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

optim::StateDict DataLoader::state_dict() const {
  return {{"epoch", from({double(epoch_)}, {}, i64)},
          {"batch", from({double(position_)}, {}, i64)}};
}

void DataLoader::load_state_dict(const optim::StateDict& dict) {
  optim::StateReader reader(dict);
  const double epoch = reader.number("epoch"), batch = reader.number("batch");
  reader.check_all_read();
  check(epoch >= 0 && epoch < 0x1p53, "epoch is {}", epoch);
  check(batch >= 0 && batch <= double(batches()), "batch is {}, of {}", batch, batches());
  set_epoch(uint64_t(epoch));
  skip(int64_t(batch));
}

DataLoader::Iterator DataLoader::begin() {
  if (begun_) set_epoch(epoch_ + 1);  // a loop that was left early
  stop();
  begun_ = true;
  run_ = std::make_unique<Run>(plan_, epoch_, position_);
  run_->start();
  return Iterator(this);
}

bool DataLoader::advance(uint64_t loop) {
  check(loop == loop_ && run_, "this loop over {} has ended", plan_->data->name());
  current_ = {};  // before the next is made
  if (position_ == batches()) {
    set_epoch(epoch_ + 1);
    return false;
  }
  try {
    current_ = run_->next();
  } catch (...) {
    run_.reset();
    throw;
  }
  ++position_;
  return true;
}

}  // namespace mixtape::train
