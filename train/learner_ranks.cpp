// The parts of Learner for chunks, on one rank or several: a step, and agreement between ranks.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/scope.h"
#include "dist/data_parallel.h"
#include "dist/shards.h"
#include "train/learner.h"
#include "train/ranks.h"

namespace mixtape::train {

int64_t Learner::batches_per_step() const {
  int64_t most = 1;
  for (const auto& c : callbacks_) most = std::max(most, c->batches_per_step());
  return most;
}

dist::Part Learner::part() const {
  const dist::World* const world = dist::World::current();
  const int64_t ranks = world ? world->size() : 1;
  const int64_t chunks = chunks_ > 0 ? chunks_
                         : ranks > 1 ? bounded_product(ranks, batches_per_step())
                                     : 1;
  return world ? world->part(chunks) : dist::Part{0, 1, chunks};
}

bool Learner::leaves_one(int64_t examples, int64_t batch_size) const {
  const int64_t chunks = part().chunks,
                step = chunks > 1 ? bounded_product(batch_size, batches_per_step()) : batch_size;
  return examples >= step && step / chunks > 1 && examples % step / chunks == 1;
}

DataLoader::Shared Learner::own_part(DataLoader& loader) const {
  return parallel_ ? loader.share(parallel_->part(), batches_per_step())
                   : loader.share(loader.options().part);
}

Learner::Joined::Joined(Learner& l) : learner(l) {
  const dist::Part part = l.part();
  if (part.chunks == 1) return;
  const DataLoaderOptions& o = l.data.train->options();
  const int64_t together =
      std::min(bounded_product(o.batch_size, l.batches_per_step()), l.data.train->examples());
  check(together >= part.chunks, "batches of {} examples have none for each of {} chunks", together,
        part.chunks);
  if (part.ranks > 1) {
    dist::World::current()->check_alike(
        fmt::format("{} epochs; {} batches of {}, {}with seed {}; {} chunks; {} metrics; ",
                    l.state.epochs, l.data.train->batches(), o.batch_size,
                    o.shuffle ? "shuffled " : "", o.seed, part.chunks, l.metrics.size()),
        "has other settings");
    const StateDict first = of_first_rank(l.state_dict());
    if (part.rank > 0) l.load_state_dict(first);
  }
  l.wants_stop_ = false;
  l.parallel_ = std::make_unique<dist::DataParallel>(
      l.model(), dist::DataParallelOptions{.chunks = part.chunks});
}
Learner::Joined::~Joined() { learner.parallel_.reset(); }

dist::Shards* Learner::shards() const {
  return shards_ && optimizer && shards_->divides(*optimizer) ? shards_.get() : nullptr;
}

void Learner::divide() {
  if (!divides_ || shards() || part().ranks == 1) return;
  shards_.reset();  // of another optimizer
  shards_ = std::make_unique<dist::Shards>(*optimizer);
}

void Learner::undivide() {
  if (dist::Shards* const own = shards()) own->join();
  shards_.reset();
}

void Learner::agree() {
  if (!parallel_ && part().ranks == 1) return;
  const int own = Interrupt::requested() ? Interrupt::last_signal() : 0;
  const bool stop = largest_of_ranks(wants_stop_) > 0;
  heed(stop, int(largest_of_ranks(own)));
}

void Learner::heed(bool stop, int signal) {
  if (signal > 0) Interrupt::take_over(signal);
  if (parallel_ && (stop || signal > 0)) stopping_ = true;
}

void Learner::learn_chunks(const Batch& batch) {
  const std::string smaller = smaller_batch(batch.of_step);
  const internal::Scope scope(smaller);
  state.loss = {};
  if (batch.of_step < parallel_->part().chunks) return;  // it has no chunks
  for (const auto& chunk : parallel_->chunks(batch)) {
    double loss = 0, examples = 0;
    bool runs = forward(chunk.batch);
    if (runs) {
      check_loss();
      examples = double(chunk.batch.x.size(0));
      loss = state.loss.item() * examples;
      state.objective = state.loss * chunk.weight;
      runs = notify(&Callback::on_backward_begin, /*backwards=*/true);
    }
    const int signal = Interrupt::requested() ? Interrupt::last_signal() : 0;
    parallel_->send_along({loss, examples, double(runs), double(wants_stop_),
                           double(signal == SIGINT), double(signal == SIGTERM)});
    runs ? state.objective.backward() : parallel_->skip_chunk(&scaler);
    if (state.output) state.output = state.output.detach();
    state.loss = state.objective = {};
  }
  const std::vector<double> sums = parallel_->sums();  // of all chunks
  if (sums[1] > 0) {
    const NoGrad off;
    const Tensor sum = full({}, sums[0], f64, device_);
    state.loss = sum / sums[1];
    loss_sum_ = loss_sum_ ? loss_sum_ + sum : sum;
    examples_ += int64_t(sums[1]);
  }
  if (sums[2] > 0) {
    check(notify(&Callback::on_backward_end),
          "a callback skipped a step but not its gradients, to which chunks cannot add");
    make_step();
    model_.module->zero_grad();  // including parameters that the optimizer does not have
  }
  heed(sums[3] > 0, sums[5] > 0 ? SIGTERM : sums[4] > 0 ? SIGINT : 0);
}

}  // namespace mixtape::train
